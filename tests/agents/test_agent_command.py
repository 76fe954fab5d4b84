"""``agentos run --agent``, as it is typed, with a program that follows a script."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agentos.cli.session.agent_options import AgentFlags, choose_agent
from agentos.cli.usage_error import UsageError
from agentos.simulator import Latency, Scripted, Simulator, equal_keys

from . import scripted_claude as claude

PATIENCE = 60.0


class Folder:
    """A project folder with a scripted claude on its PATH."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.program = path / "bin"
        self.environ = {
            "PATH": f"{self.program}:{os.environ['PATH']}",
            "HOME": str(path),
            "AGENTOS_HOME": str(path / "state"),
            "LANG": "C.UTF-8",
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "agentos.cli", *words]

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        ended = subprocess.run(
            self.command(*words),
            cwd=self.path,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ended.returncode == code, ended.stderr
        return ended

    @property
    def starts(self) -> list[dict[str, Any]]:
        return claude.read_starts(self.program)

    def values(self) -> list[Any]:
        (path,) = self.path.glob(".agentos/runs/*/results.jsonl")
        return [json.loads(line)["value"] for line in path.read_text().splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_each_item_is_a_prompt_and_its_answer_a_result(folder: Folder) -> None:
    claude.install(folder.program, [claude.done("fine")])

    ended = folder.run("run", "--agent", "claude", ":::", "first", "second", "--", "--model", "opus")

    assert sorted(start["stdin"] for start in folder.starts) == ["first", "second"]
    assert all(start["argv"][-2:] == ["--model", "opus"] for start in folder.starts)
    assert {value["answer"] for value in folder.values()} == {"fine"}
    assert "fine" in folder.run("results", "--fields", "id,value.answer").stdout
    assert sorted(ended.stdout.splitlines()) == ["[first] fine", "[second] fine"]


def test_a_plain_command_is_recognised_and_read_with_auto(folder: Folder) -> None:
    claude.install(folder.program, [[*claude.failed("invalid_request", 400)[:-1], {"exit": 0}]])

    ended = folder.run("run", "--agent", "auto", ":::", "a.py", "--", "claude", "-p", "Review {}", code=1)

    assert folder.starts[0]["stdin"] == "Review a.py"
    assert "failed a.py: API Error" in ended.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("claude", "-p", "Review {file}", "--model", "{model}"),
        ("claude", "-p", "--model", "{model}", "Review {file}"),
        ("claude", "--model={model}", "-p", "Review {file}"),
        ("claude", "--model={model}", "--print=Review {file}"),
        ("claude", "-p", "--permission-mode", "plan", "--model={model}", "--dangerously", "Review {file}"),
    ],
)
def test_the_prompt_of_a_plain_command_is_not_the_value_of_an_option(words: tuple[str, ...]) -> None:
    choice = choose_agent(AgentFlags("auto"), words)

    assert choice is not None
    assert choice.prompt == "Review {file}"
    assert "--model={model}" in "=".join(choice.argv)


def test_a_plain_command_whose_prompt_could_be_either_word_is_refused() -> None:
    with pytest.raises(UsageError, match="which word is the prompt"):
        choose_agent(AgentFlags("auto"), ("claude", "--print", "--verbosely", "Review {}", "--model", "{model}"))


def test_after_kill_9_the_same_command_resumes_the_session(folder: Folder) -> None:
    begun = folder.path / "begun"
    claude.install(folder.program, [[claude.begin(), {"touch": str(begun)}, {"hang": True}], claude.done()])
    words = ("run", "--agent", "claude", ":::", "item")
    driver = subprocess.Popen(
        folder.command(*words), cwd=folder.path, env=folder.environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    until = time.monotonic() + PATIENCE
    while not begun.exists() and time.monotonic() < until:
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    driver.communicate()

    folder.run(*words)

    first, second = folder.starts
    assert (
        second["argv"][second["argv"].index("--resume") + 1] == first["argv"][first["argv"].index("--session-id") + 1]
    )
    assert second["stdin"] == "Continue from where you left off."
    assert folder.values()[0]["resumes"] == 1


def test_with_keys_an_agent_gets_a_token_of_the_gateway_and_no_key(folder: Folder) -> None:
    plan = equal_keys(1, latency=Latency(median=0.0, sigma=0.0))
    claude.install(folder.program, [claude.done()])
    config = '[[credentials]]\nname = "k"\nenv = "THE_KEY"\nprovider = "anthropic"\nbase_url = "{}"\n'
    with Simulator(plan) as provider:
        (folder.path / "own.toml").write_text(config.format(provider.url))
        folder.environ["THE_KEY"] = plan.secrets[0]

        folder.run("run", "--config", "own.toml", "--agent", "claude", ":::", "item")
        folder.run("run", "--config", "own.toml", "--agent", "claude", "--no-gateway", "--fresh", ":::", "item")

    through, without = (start["env"] for start in folder.starts)
    assert plan.secrets[0] not in json.dumps(through)
    assert through["ANTHROPIC_BASE_URL"].startswith("http://127.0.0.1:")
    assert through["ANTHROPIC_BASE_URL"] != provider.url
    assert (without["ANTHROPIC_API_KEY"], without["ANTHROPIC_BASE_URL"]) == (plan.secrets[0], provider.url)


def test_time_in_which_an_agents_call_waits_for_a_key_counts_for_no_timeout(folder: Folder) -> None:
    limit = Scripted(429, call=1, headers={"retry-after": "5"})
    plan = equal_keys(1, latency=Latency(median=0.0, sigma=0.0), script=(limit,))
    claude.install(folder.program, [[claude.begin(), {"ask": True}, *claude.done()[1:]]])
    config = '[[credentials]]\nname = "k"\nenv = "THE_KEY"\nprovider = "anthropic"\nbase_url = "{}"\n'
    with Simulator(plan) as provider:
        (folder.path / "own.toml").write_text(config.format(provider.url))
        folder.environ["THE_KEY"] = plan.secrets[0]

        words = ("--config", "own.toml", "--agent", "claude", "--timeout", "4s", "--idle-timeout", "3s")
        folder.run("run", *words, "--retries", "0", ":::", "item")

    assert folder.values()[0]["ending"] == "done"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--agent", "claude", "--engine", "dask://127.0.0.1:1"], "--agent runs on this machine"),
        (["--agent", "claude", "--stdin"], "an agent reads its prompt from standard input"),
        (["--agent", "claude", "--worker", "a:b"], "--worker and --agent were both given"),
        (["--agent", "codex"], "command not found: codex"),
    ],
)
def test_what_an_agent_cannot_have_is_refused(folder: Folder, words: list[str], why: str) -> None:
    claude.install(folder.program, [claude.done()])
    folder.environ["PATH"] = f"{folder.program}:/usr/bin:/bin"

    ended = folder.run("run", *words, ":::", "item", code=2)

    assert why in ended.stderr
    assert not (folder.path / ".agentos").exists()


@pytest.mark.parametrize(
    "name", ["agent", *(field.name for field in dataclasses.fields(AgentFlags) if field.name != "program")]
)
def test_a_projects_file_or_a_variable_sets_no_flag_of_an_agent(folder: Folder, name: str) -> None:
    claude.install(folder.program, [claude.done()])
    (folder.path / "agentos.toml").write_text(f'[run]\n{name} = "touch made"\n')

    refused = folder.run("run", "--agent", "claude", ":::", "item", code=2)
    (folder.path / "agentos.toml").unlink()
    folder.environ[f"AGENTOS_{name.upper()}"] = "touch made"
    folder.run("run", "--agent", "claude", ":::", "item")

    assert f"run.{name} is not known" in refused.stderr
    assert [start["stdin"] for start in folder.starts] == ["item"]
    assert not (folder.path / "made").exists()


def test_a_dry_run_shows_the_prompt(folder: Folder) -> None:
    claude.install(folder.program, [claude.done()])
    (folder.path / "prompt").write_text("Fix {}")

    ended = folder.run("run", "-n", "--agent", "claude", "--prompt", "prompt", ":::", "it")

    assert "Fix it" in ended.stdout
    assert folder.starts == []


def test_show_tells_how_each_agent_ended_what_it_took_and_how_long_it_waited(folder: Folder) -> None:
    claude.install(folder.program, [claude.parked(time.time()), claude.done()])
    folder.run("run", "--name", "night", "--agent", "claude", ":::", "one")

    shown = folder.run("show", "night").stdout
    (told,) = json.loads(folder.run("show", "night", "--json").stdout)["agents"]

    rows = [line.split() for line in shown.partition("\nagents\n")[2].splitlines()[:2]]
    assert rows[0][:7] == ["item", "ended", "resumes", "turns", "tokens", "cost", "$"]
    assert rows[1][:6] == ["one", "done", "1", "3", "110", "0.5000"]
    assert (told["ending"], told["resumes"], told["turns"], told["usage"]["output"]) == ("done", 1, 3, 10)


def test_show_says_nothing_of_agents_for_a_run_without_one(folder: Folder) -> None:
    folder.run("run", "--name", "plain", ":::", "one", "--", "true")

    assert "agents" not in folder.run("show", "plain").stdout
