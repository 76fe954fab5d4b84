"""Agent: an agent program as the worker of a run, beside ``Command``."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..runs.agents.agent_protocol import AgentKey, AgentReader, AgentStart
from ..runs.commands.command import Command
from .program import Program
from .programs import PROGRAMS
from .reading import PlainReader
from .settings import write_settings

RESUME_PROMPT = "Continue from where you left off."
MOST_RESUMES = 5
_STAND_IN = "{key}"  # stands for the key, which is given by its own variable


class Agent:
    """Makes a worker that is an agent program: ``Agent("claude", prompt="Fix {title}", options=["--model", "opus"])``.

    What it makes is a ``Command``. Its prompt, with the item in its placeholders, goes to the program's standard input.
    The value of an item is a dict with the program's final ``answer``, ``session``, ``turns``, ``resumes`` and
    ``cost_usd``. An item whose agent met a limit waits for its end without a process and then resumes the same session,
    at most *resumes* times, with *resume_prompt*; 0: it begins anew. *executable* is where the program is, if it is not
    on the PATH. Further arguments are those of ``Command``.
    """

    def __new__(  # type: ignore[misc]
        cls,
        program: str,
        *,
        prompt: str = "{}",
        options: Sequence[str] = (),
        resumes: int = MOST_RESUMES,
        resume_prompt: str = RESUME_PROMPT,
        executable: str | None = None,
        settings_folder: Path | None = None,
        **command: Any,
    ) -> Command:
        known = PROGRAMS.get(program)
        if known is None or not known.start:
            names = ", ".join(name for name, each in PROGRAMS.items() if each.start)
            raise ValueError(f"program must be one of {names}, not {program!r}")
        if isinstance(resumes, bool) or not isinstance(resumes, int) or resumes < 0:
            raise ValueError(f"resumes must be a whole number of at least 0, not {resumes!r}")
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError('prompt must be a text, such as "Fix {}"')
        adapter = ProgramAdapter(known, resumes, resume_prompt, settings_folder)
        return Command([executable or known.executables[0], *options], agent=adapter, prompt=prompt, **command)


class ProgramAdapter:
    """One program behind the run's protocol for agents."""

    def __init__(self, program: Program, resumes: int, resume_prompt: str, settings_folder: Path | None) -> None:
        self.name = program.name
        self.most_resumes = resumes if program.resume else 0
        self.resume_prompt = resume_prompt
        self._program = program
        self._settings_folder = settings_folder

    def new_session(self) -> str | None:
        """Return a new id; None if the program chooses ids itself."""
        return str(uuid.uuid4()) if self._program.picks_session else None

    def build_start(
        self,
        words: Sequence[str],
        prompt: str,
        session: str | None,
        *,
        resume: bool,
        key: AgentKey | None,
        environ: Mapping[str, str],
    ) -> AgentStart:
        """Build the process that begins *session*, or resumes it."""
        program = self._program
        variables: dict[str, str] = {}
        flags: list[str] = []
        if key is not None:
            if program.settings is not None and self._settings_folder is not None:
                variables |= write_settings(program.settings, self._settings_folder / program.name, environ)
            if key.base_url is not None:
                address = key.base_url.removesuffix("/").removesuffix("/v1")
                flags = program.arguments(address, "")
                named = program.key_reference and self._find_variable(key.provider, with_address=False)
                stand_in = _STAND_IN if not named else str(program.key_reference).replace("NAME", named)
                given = program.environment(address, stand_in)
                variables |= {name: text for name, text in given.items() if _STAND_IN not in text}
        argv = [words[0], *flags]
        for word in program.resume if resume else program.start:
            if word == "{options}":
                argv += words[1:]
            else:
                argv.append(word.replace("{session}", session or ""))
        variable = None if key is None else self._find_variable(key.provider, with_address=bool(flags))
        return AgentStart(tuple(argv), prompt, variables, variable)

    def _find_variable(self, provider: str | None, *, with_address: bool) -> str | None:
        """Return the variable for the key: that of its provider, or that of the provider that the program is for."""
        if with_address:  # a program configured by flags reads the variable that they name
            return next((name for name, text in self._program.variables.items() if text == "{token}"), None)
        known = self._program.key_variables
        return known.get(provider or "") or known.get(self._program.provider)

    def open_reader(self, environ: Mapping[str, str], resumed: str | None) -> AgentReader:
        """Return the reader for one process with that environment."""
        return (self._program.reader or PlainReader)(environ, resumed)
