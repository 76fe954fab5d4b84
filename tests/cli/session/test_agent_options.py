"""The flags about agents choose a program, its options and its prompt, or are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentos.cli.session.agent_options import AgentFlags, choose_agent
from agentos.cli.usage_error import UsageError


def test_without_agent_a_command_stays_as_it_is() -> None:
    assert choose_agent(AgentFlags(), ("claude", "-p", "{}")) is None


@pytest.mark.parametrize("command", [None, ("--model", "opus")])
def test_what_follows_the_dashes_are_options_of_the_named_program(command: tuple[str, ...] | None) -> None:
    choice = choose_agent(AgentFlags("claude"), command)

    assert choice is not None
    assert choice.argv == ("claude", *(command or ()))
    assert (choice.prompt, choice.resumes) == ("{}", 5)


@pytest.mark.parametrize(
    ("command", "argv", "prompt"),
    [
        (["claude", "-p", "Review {}", "--model", "opus"], ["claude", "--model", "opus"], "Review {}"),
        (["/opt/claude", "--print", "--output-format", "json", "{}"], ["/opt/claude"], "{}"),
        (["claude", "-p", "--verbose"], ["claude"], "{}"),
        (["codex", "exec", "--json", "-m", "x", "fix {title}"], ["codex", "-m", "x"], "fix {title}"),
        (["gemini", "--prompt=say {}", "-o", "json", "--yolo"], ["gemini", "--yolo"], "say {}"),
        (["opencode", "run", "-m", "a/b", "{}", "{id}"], ["opencode", "-m", "a/b", "{id}"], "{}"),
        (["aider", "--message", "do {}", "--yes-always"], ["aider", "--yes-always"], "do {}"),
    ],
)
def test_auto_takes_the_program_its_options_and_its_prompt_from_a_command(
    command: list[str], argv: list[str], prompt: str
) -> None:
    choice = choose_agent(AgentFlags("auto"), command)

    assert choice is not None
    assert (list(choice.argv), choice.prompt) == (argv, prompt)


def test_a_prompt_file_is_read_and_is_part_of_the_runs_identity(tmp_path: Path) -> None:
    (tmp_path / "prompt.md").write_text("Fix {title}\n")

    choice = choose_agent(AgentFlags("claude", prompt=str(tmp_path / "prompt.md")), None)

    assert choice is not None
    assert choice.prompt == "Fix {title}\n"
    assert choice.identity == ("claude", "<", str(tmp_path / "prompt.md"))


@pytest.mark.parametrize(
    ("flags", "command", "why"),
    [
        (AgentFlags(prompt="x"), None, "--prompt is for agents"),
        (AgentFlags(no_resume=True), None, "--no-resume is for agents"),
        (AgentFlags("vim"), None, "--agent must be one of claude"),
        (AgentFlags("openai"), None, "--agent must be one of claude"),
        (AgentFlags("auto"), None, "needs a command after --"),
        (AgentFlags("auto"), ("sh", "-c", "claude -p {}"), "sh is none of claude"),
        (AgentFlags("auto"), ("claude", "{}"), "would wait for a person: -p is missing"),
        (AgentFlags("claude"), ("--output-format", "json"), "--output-format is set by agentos"),
        (AgentFlags("claude"), ("--output-format=json",), "--output-format is set by agentos"),
        (AgentFlags("claude", resumes=2, no_resume=True), None, "both given"),
        (AgentFlags("claude", prompt="/nowhere/prompt"), None, "cannot be read: No such file"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags: AgentFlags, command: tuple[str, ...] | None, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        choose_agent(flags, command)


@pytest.mark.parametrize(("data", "why"), [(b" \n", "is empty"), (b"\xff\xfe", "is not UTF-8 text")])
def test_a_prompt_file_without_a_text_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "prompt").write_bytes(data)

    with pytest.raises(UsageError, match=why):
        choose_agent(AgentFlags("claude", prompt=str(tmp_path / "prompt")), None)


def test_two_prompts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "prompt").write_text("x")

    with pytest.raises(UsageError, match="--prompt and a prompt in the command"):
        choose_agent(AgentFlags("auto", prompt=str(tmp_path / "prompt")), ("claude", "-p", "fix {}"))
