"""The variables and arguments by which a program finds the gateway, from the tables of agent programs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ..agents.program import Program
from ..agents.programs import PROGRAMS, find_program
from ..agents.settings import write_settings

log = logging.getLogger("agentos")

# What the SDKs of the providers read, and scripts that call the gateway themselves.
_FOR_ALL: Final = {
    "AGENTOS_GATEWAY_URL": "{url}",
    "AGENTOS_GATEWAY_TOKEN": "{token}",
    "OPENAI_BASE_URL": "{url}/v1",
    "OPENAI_API_KEY": "{token}",
    "ANTHROPIC_BASE_URL": "{url}",
    "ANTHROPIC_API_KEY": "{token}",
    "GOOGLE_GEMINI_BASE_URL": "{url}",
    "GEMINI_API_KEY": "{token}",
}


class ProgramAccess:
    """Points programs at one address. Settings that a program reads from a folder only are written below *folder*."""

    def __init__(self, url: str, folder: Path, environ: Mapping[str, str]) -> None:
        self._url = url
        self._folder = folder
        self._environ = environ
        self._settings: dict[str, dict[str, str]] = {}  # by program, once written

    def build_environment(self, argv0: str, token: str) -> dict[str, str]:
        """Return the variables for a command that begins with *argv0*, and for what it starts.

        A command that is in no table may be a script that starts any of the programs.
        """
        variables: dict[str, str] = {}
        for program in _find_programs(argv0):
            variables |= program.environment(self._url, token)
            variables |= self._write_settings(program)
        for name, text in _FOR_ALL.items():
            variables[name] = text.replace("{url}", self._url).replace("{token}", token)
        return variables

    def build_arguments(self, argv: tuple[str, ...], token: str) -> tuple[str, ...]:
        """Return the command with the arguments that its program needs."""
        program = find_program(argv[0])
        return argv if program is None else (argv[0], *program.arguments(self._url, token), *argv[1:])

    def _write_settings(self, program: Program) -> dict[str, str]:
        if program.settings is None:
            return {}
        if program.name not in self._settings:
            home = self._folder / program.name
            try:
                self._settings[program.name] = write_settings(program.settings, home, self._environ)
            except OSError as error:
                log.warning(
                    "[GATEWAY] the settings of %s cannot be written to %s: %s", program.name, home, error.strerror
                )
                self._settings[program.name] = {}
        return self._settings[program.name]


def find_variables_to_remove(argv0: str) -> frozenset[str]:
    """Return the variables that would make a program ignore the gateway."""
    return frozenset(name for program in _find_programs(argv0) for name in program.unset)


def _find_programs(argv0: str) -> Iterable[Program]:
    program = find_program(argv0)
    return PROGRAMS.values() if program is None else (program,)
