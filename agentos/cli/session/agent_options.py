"""The options of ``agentos run`` about agent programs, and the agent that they choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..usage_error import UsageError

if TYPE_CHECKING:
    from ...agents.program import Program
    from ...runs.commands.command import Command

AUTO = "auto"
_LONGEST_PROMPT = 10_000_000  # bytes


@dataclass(frozen=True, slots=True)
class AgentFlags:
    """The typed flags about agents; None: not typed. No file or variable sets them: a cloned project has none."""

    program: str | None = None
    prompt: str | None = None
    resumes: int | None = None
    no_resume: bool = False
    resume_prompt: str | None = None
    clone: bool = False
    keep: bool = False
    after: str | None = None

    def list_typed(self) -> list[str]:
        """Return the flags that were typed besides ``--agent``."""
        given = {
            "--prompt": self.prompt is not None,
            "--resumes": self.resumes is not None,
            "--no-resume": self.no_resume,
            "--resume-prompt": self.resume_prompt is not None,
            "--clone": self.clone,
            "--keep": self.keep,
            "--after": self.after is not None,
        }
        return [name for name, typed in given.items() if typed]


@dataclass(frozen=True, slots=True)
class AgentChoice:
    """The agent of a run: its program, the command without what agentos adds, and its prompt."""

    program: str
    argv: tuple[str, ...]
    prompt: str
    prompt_file: str | None
    resumes: int
    resume_prompt: str
    after: str | None = None
    clone: bool = False
    keep: bool = False

    @property
    def identity(self) -> tuple[str, ...]:
        """The words by which the run's name is built."""
        return self.argv if self.prompt_file is None else (*self.argv, "<", self.prompt_file)


def choose_agent(flags: AgentFlags, command: Sequence[str] | None) -> AgentChoice | None:
    """Return the agent that was chosen, or None for a run without one. Raise ``UsageError``."""
    if flags.program is None:
        if typed := flags.list_typed():
            raise UsageError(f"{typed[0]} is for agents", "name one: --agent claude")
        return None
    from ...agents.agent import MOST_RESUMES, RESUME_PROMPT
    from ...agents.programs import PROGRAMS, find_program

    if flags.no_resume and flags.resumes is not None:
        raise UsageError("--resumes and --no-resume were both given", "give one of them")
    if flags.keep and not flags.clone:
        raise UsageError("--keep is about the trees of --clone", "give both, or none of them")
    if flags.after is not None and not flags.after.strip():
        raise UsageError("--after must be a script, such as 'git push'")
    agents = {name: program for name, program in PROGRAMS.items() if program.start}
    prompt = "{}" if flags.prompt is None else _read_prompt(flags.prompt)
    if flags.program == AUTO:
        if not command:
            raise UsageError("--agent auto needs a command after --", "as in: --agent auto -- claude -p 'Review {}'")
        program = find_program(command[0])
        if program is None:
            raise UsageError(f"--agent auto: {command[0]} is none of {', '.join(agents)}")
        options, found = _take_apart(program, command[1:])
        if flags.prompt is not None and found is not None:
            raise UsageError("--prompt and a prompt in the command were both given", "leave one of them out")
        words, prompt = (command[0], *options), prompt if found is None else found
    else:
        found_program = agents.get(flags.program)
        if found_program is None:
            raise UsageError(
                f"--agent must be one of {', '.join(agents)}, or {AUTO}, not {flags.program!r}",
                "another program runs as a command: agentos run ITEMS -- PROGRAM {}",
            )
        program = found_program
        words = (program.executables[0], *(command or ()))
        for word in words[1:]:
            name = word.partition("=")[0]
            if name in program.own_words:
                raise UsageError(
                    f"{name} is set by agentos for {program.name}", "after -- give only further options of the program"
                )
    return AgentChoice(
        program=program.name,
        argv=words,
        prompt=prompt,
        prompt_file=None if flags.prompt is None else str(Path(flags.prompt).absolute()),
        resumes=0 if flags.no_resume else MOST_RESUMES if flags.resumes is None else flags.resumes,
        resume_prompt=flags.resume_prompt or RESUME_PROMPT,
        after=flags.after,
        clone=flags.clone,
        keep=flags.keep,
    )


def _read_prompt(path: str) -> str:
    try:
        data = Path(path).read_bytes()
        text = data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"--prompt: {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--prompt: {path} is not UTF-8 text") from None
    if not text.strip() or len(data) > _LONGEST_PROMPT:
        raise UsageError(f"--prompt: {path} is {'empty' if not text.strip() else 'longer than 10 MB'}")
    return text


def _take_apart(program: Program, words: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the options of a command and its prompt, without the words that agentos sets itself.

    The prompt is the first word with a placeholder that is not the value of an option; without one, the item itself.
    """
    from ...runs.commands.template import has_placeholder

    options: list[str] = []
    prompt: str | None = None
    sure: list[int] = []  # where in the options a prompt is
    unsure: list[int] = []  # where it may be, or else the value of the option before it
    left = iter(words)
    before = ""
    for word in left:
        name, equals, value = word.partition("=")
        if name in program.own_words:
            if equals and name in program.prompt_words:
                prompt = value if prompt is None else prompt
            elif not equals and program.own_words[name]:
                next(left, None)
        else:
            if has_placeholder(word) and (before in program.own_words or not word.startswith("-")):
                is_value = before.startswith("-") and "=" not in before and before not in program.own_words
                (unsure if is_value else sure).append(len(options))
            options.append(word)
        before = word
    if prompt is None and (sure or unsure):
        if not sure and len(unsure) > 1:
            raise UsageError("--agent auto: which word is the prompt?", f"use --agent {program.name} --prompt FILE")
        prompt = options.pop((sure or unsure)[0])
    if program.headless and not any(word.partition("=")[0] in program.headless for word in words):
        raise UsageError(
            f"--agent auto: {program.name} would wait for a person: {program.headless[0]} is missing",
            f"or use --agent {program.name}, which adds it",
        )
    return options, prompt


def build_agent(choice: AgentChoice, settings_folder: Path, run_folder: Path, **command: object) -> Command:
    """Return the worker of the run. Raise ``UsageError`` if a program that it needs is not there."""
    import shutil

    from ...agents.agent import Agent
    from ...runs.agents.work_tree import WorkTrees

    for name, what in ((choice.argv[0], choice.program), *((("git", "git"),) if choice.clone else ())):
        if shutil.which(name) is None:
            raise UsageError(f"command not found: {name}", f"nothing was run; install {what} first")
    program = choice.argv[0]
    return Agent(
        choice.program,
        prompt=choice.prompt,
        options=choice.argv[1:],
        executable=str(Path(program).absolute()) if "/" in program else program,  # it may run in another folder
        resumes=choice.resumes,
        resume_prompt=choice.resume_prompt,
        settings_folder=settings_folder,
        after=choice.after,
        trees=WorkTrees(run_folder.absolute() / "trees", _find_repository(), choice.keep) if choice.clone else None,
        **command,
    )


def _find_repository() -> str | None:
    """Return the repository of the current folder, if there is one."""
    import subprocess

    command = ["git", "rev-parse", "--show-toplevel"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words
    return found.stdout.rstrip("\n") if found.returncode == 0 else None
