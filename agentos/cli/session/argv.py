"""Split the arguments of ``agentos run`` into options, items and command, which the option parser cannot do.

``agentos run [OPTIONS] [ITEMS] -- COMMAND ARGUMENTS`` with ``::: words`` before the ``--`` or at the end, as with
GNU parallel. ``--parallel`` may stand without a number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

BARE_PARALLEL = "3"
SPELLINGS: dict[str, tuple[str, ...]] = {"parallel": ("--jobs", "-j")}  # besides the option's own name
ONCE = ("--fresh", "--retry-failed", "--new-command", "--force", "--trust", "--dry-run", "-n", "--detach")


@dataclass(frozen=True, slots=True)
class Reopen:
    """The items that ``agentos retry`` runs again: those with these ids, and those whose content changed."""

    ids: tuple[str, ...] = ()
    changed: bool = False


@dataclass(frozen=True, slots=True)
class ParsedArguments:
    """The split arguments of ``agentos run``. ``words`` and ``command`` are None without their mark."""

    options: tuple[str, ...]
    words: tuple[str, ...] | None
    command: tuple[str, ...] | None
    words_last: bool = False
    reopen: Reopen | None = None  # not typed here, but after ``agentos retry``

    @property
    def resume_arguments(self) -> list[str]:
        """The arguments that continue the run: the same, without one-time options."""
        return self.resume_arguments_with()

    def resume_arguments_with(self, *more: str) -> list[str]:
        """Return ``resume_arguments`` with *more* options."""
        kept = (each for each in self.options if each not in ONCE)
        return replace(self, options=(*kept, *more)).all_arguments

    def spelling(self, name: str) -> str:
        """Return the flag of that option as it was typed last: ``--jobs`` for ``parallel``, for example."""
        flag = f"--{name.replace('_', '-')}"
        spellings: tuple[str, ...] = (flag, *SPELLINGS.get(name, ()))
        for word in reversed(self.options):
            for each in spellings:
                if word == each or word.startswith(f"{each}=" if each.startswith("--") else each):
                    return each
        return flag

    @property
    def all_arguments(self) -> list[str]:
        """All arguments, in their order."""
        words = [] if self.words is None else [":::", *self.words]
        command = [] if self.command is None else ["--", *self.command]
        return [*self.options, *command, *words] if self.words_last else [*self.options, *words, *command]


def split_arguments(arguments: Sequence[str]) -> ParsedArguments:
    """Split what was typed after ``agentos run``."""
    options, command = _split(arguments, "--")
    options, words = _split(options, ":::")
    words_last = words is None
    if command is not None and words is None:
        command, words = _split(command, ":::")
    return ParsedArguments(
        tuple(with_number(options or ())),
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


def with_number(options: Sequence[str]) -> list[str]:
    """Add the default number to a ``--parallel`` without one."""
    given: list[str] = []
    for place, option in enumerate(options):
        given.append(option)
        following = options[place + 1] if place + 1 < len(options) else ""
        if option == "--parallel" and not re.fullmatch(r"[+-]?\d.*", following):
            given.append(BARE_PARALLEL)
    return given


def find_option_value(options: Sequence[str], name: str) -> str | None:
    """Return the last value of an option, or None."""
    found = None
    for word, following in zip(options, [*options[1:], None], strict=False):
        if word == name:
            found = following
        elif word.startswith(f"{name}="):
            found = word.removeprefix(f"{name}=")
    return found
