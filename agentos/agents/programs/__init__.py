"""One table for each program, in a file of its own."""

from __future__ import annotations

from typing import Final

from ..program import Program
from .aider import AIDER
from .anthropic import ANTHROPIC
from .claude import CLAUDE
from .codex import CODEX
from .gemini import GEMINI
from .goose import GOOSE
from .openai import OPENAI
from .opencode import OPENCODE
from .qwen import QWEN

PROGRAMS: Final = {
    program.name: program for program in (CLAUDE, CODEX, GEMINI, OPENCODE, AIDER, GOOSE, QWEN, OPENAI, ANTHROPIC)
}


def find_program(argv0: str) -> Program | None:
    """Return the program that the first word of a command names, with or without its folder; None if it is another."""
    return next((program for program in PROGRAMS.values() if program.recognises(argv0)), None)
