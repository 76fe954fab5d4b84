"""What a parser of options cannot know: where the command begins, and which words are items.

``agentos run [OPTIONS] [ITEMS] -- COMMAND ARGUMENTS`` with ``::: words`` before the ``--`` or at the very end, as with
GNU parallel. ``--parallel`` may stand without a number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

BARE_PARALLEL = "3"
ONCE = ("--fresh", "--retry-failed", "--new-command", "--force", "--trust", "--dry-run", "-n")


@dataclass(frozen=True, slots=True)
class ParsedArguments:
    """The arguments of ``agentos run``, taken apart. ``words`` and ``command`` are None where there was no mark."""

    options: tuple[str, ...]
    words: tuple[str, ...] | None
    command: tuple[str, ...] | None
    words_last: bool = False

    @property
    def resume_arguments(self) -> list[str]:
        """What to type to go on: the same, without what was meant for this one time."""
        return self.resume_arguments_with()

    def resume_arguments_with(self, *more: str) -> list[str]:
        """The same, and *more* options."""
        kept = (each for each in self.options if each not in ONCE)
        return replace(self, options=(*kept, *more)).all_arguments

    @property
    def all_arguments(self) -> list[str]:
        """All of it."""
        words = [] if self.words is None else [":::", *self.words]
        command = [] if self.command is None else ["--", *self.command]
        return [*self.options, *command, *words] if self.words_last else [*self.options, *words, *command]


def split_arguments(arguments: Sequence[str]) -> ParsedArguments:
    """Take apart what was typed after ``agentos run``."""
    options, command = _split(arguments, "--")
    options, words = _split(options, ":::")
    words_last = words is None
    if command is not None and words is None:
        command, words = _split(command, ":::")
    return ParsedArguments(
        tuple(_with_number(options or ())),
        None if words is None else tuple(words),
        None if command is None else tuple(command),
        words_last and words is not None,
    )


def _split(arguments: Sequence[str] | None, mark: str) -> tuple[Sequence[str], Sequence[str] | None]:
    arguments = arguments or ()
    if mark not in arguments:
        return arguments, None
    place = list(arguments).index(mark)
    return arguments[:place], arguments[place + 1 :]


def _with_number(options: Sequence[str]) -> list[str]:
    """Give a ``--parallel`` that has no number the one it stands for."""
    given: list[str] = []
    for place, option in enumerate(options):
        given.append(option)
        following = options[place + 1] if place + 1 < len(options) else ""
        if option == "--parallel" and not re.fullmatch(r"[+-]?\d.*", following):
            given.append(BARE_PARALLEL)
    return given
