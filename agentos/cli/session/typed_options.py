"""Split typed options into units, so that those of ``agentos retry`` can replace those a run was started with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..usage_error import UsageError

# Options of one of these sets exclude each other: a typed one replaces all of its set.
_EXCLUSIVE: Final = (
    frozenset({"halt", "max_failures"}),
    frozenset({"progress", "bar"}),
    frozenset({"group", "keep_order", "line_buffer"}),
)
# These say what the run is, not how it is executed.
_FIXED: Final = frozenset({"items_from", "listed", "worker", "id", "format", "name", "dir", "fresh", "retry_failed"})
_OWN: Final = frozenset({"--dir", "--trust", "--changed", "--help", "-h"})
_OWN_WITH_VALUE: Final = frozenset({"--dir"})
ITEMS: Final = "--items"


@dataclass(frozen=True, slots=True)
class TypedOption:
    """One option as it was typed, with its value. ``name`` is None for a word that is not an option."""

    name: str | None
    words: tuple[str, ...]


class OptionTable:
    """The options of ``agentos run``: by each spelling, the name and whether a value follows."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        self._known: dict[str, tuple[str, bool]] = {}
        for each in parameters:
            if getattr(each, "param_type_name", "") == "option":
                for spelling in (*each.opts, *each.secondary_opts):
                    self._known[spelling] = (each.name, not each.is_flag)

    def split(self, words: Sequence[str]) -> list[TypedOption]:
        """Return the units of *words*; what the table does not know is a word of its own."""
        found: list[TypedOption] = []
        place = 0
        while place < len(words):
            word = words[place]
            name, takes = self._find(word)
            length = 2 if takes and not _has_value(word) and place + 1 < len(words) else 1
            found.append(TypedOption(name, tuple(words[place : place + length])))
            place += length
        return found

    def _find(self, word: str) -> tuple[str | None, bool]:
        spelling = word.partition("=")[0] if word.startswith("--") else word[:2]
        return self._known.get(spelling, (None, False))


def _has_value(word: str) -> bool:
    return "=" in word if word.startswith("--") else len(word) > 2


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """The options of a run that were typed after ``agentos retry``."""

    options: Sequence[TypedOption]
    table: OptionTable

    def replace_in(self, arguments: Sequence[str]) -> list[str]:
        """Return the options that a run was started with, with these instead of what they replace."""
        replaced = {option.name for option in self.options}
        for group in _EXCLUSIVE:
            if group & replaced:
                replaced |= group
        kept = [each for each in self.table.split(arguments) if each.name is None or each.name not in replaced]
        return [word for option in (*kept, *self.options) for word in option.words]


def split_retry(arguments: Sequence[str], table: OptionTable) -> tuple[list[str], RetryOptions]:
    """Split what was typed after ``agentos retry`` into its own words, and options for the run.

    ``--items A B`` becomes ``--items A --items B``. Raise UsageError for an option that would make it another run.
    """
    own: list[str] = []
    rest: list[TypedOption] = []
    place = 0
    while place < len(arguments):
        word = arguments[place]
        if word == ITEMS:
            while place + 1 < len(arguments) and not arguments[place + 1].startswith("-"):
                place += 1
                own += [ITEMS, arguments[place]]
            if word == arguments[place]:
                own.append(ITEMS)  # the parser says that it needs an id
        elif word.partition("=")[0] in (_OWN | {ITEMS}):
            own.append(word)
            if word in _OWN_WITH_VALUE and place + 1 < len(arguments):
                place += 1
                own.append(arguments[place])
        else:
            (option, *_) = table.split(arguments[place:])
            if option.name in _FIXED:
                raise UsageError(
                    f"{option.words[0]} would make it another run, and retry continues one",
                    "start it with: agentos run",
                )
            if option.name is None:
                own.append(word)
            else:
                rest.append(option)
            place += len(option.words) - 1
        place += 1
    return own, RetryOptions(rest, table)
