"""The tokens that calls used, in one form for all providers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

# No run uses more. A larger figure is wrong.
_MOST = 10**15


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of one call, or of several: usages can be added.

    Providers bill the kinds at different prices, so no token is in two of ``input``, ``cache_read``, ``cache_write``
    and ``output``. ``reasoning`` is a part of ``output``.
    """

    input: int = 0  # tokens of the prompt that were neither read from a cache nor written to one
    output: int = 0  # generated tokens, including those of reasoning
    cache_read: int = 0  # tokens of the prompt that the provider had in its cache
    cache_write: int = 0  # tokens of the prompt that the provider put into its cache at a price
    reasoning: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.reasoning + other.reasoning,
        )

    def __bool__(self) -> bool:
        return self != NO_USAGE

    @property
    def total(self) -> int:
        """All tokens of the prompt and the answer."""
        return self.input + self.cache_read + self.cache_write + self.output

    def __str__(self) -> str:
        parts = [f"{self.input:,} in", f"{self.output:,} out"]
        if self.reasoning:
            parts[-1] += f" ({self.reasoning:,} reasoning)"
        cached = ((self.cache_read, "read from cache"), (self.cache_write, "written to cache"))
        parts += [f"{count:,} {what}" for count, what in cached if count]
        return f"{self.total:,} tokens: {', '.join(parts)}"

    def to_json(self) -> dict[str, int]:
        """Return the figures by name, for JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_json(cls, figures: object) -> Usage:
        """Return the usage that ``to_json`` wrote. What is missing or is no number of tokens counts as 0."""
        known: Mapping[Any, Any] = figures if isinstance(figures, Mapping) else {}
        return cls(**{each.name: count_tokens(known.get(each.name)) or 0 for each in fields(cls)})


NO_USAGE = Usage()

_NAMES = tuple(each.name for each in fields(Usage))


class UsageTotals:
    """Adds up many usages as JSON has them, several times faster than adding ``Usage`` objects."""

    __slots__ = ("_figures",)

    def __init__(self) -> None:
        self._figures = dict.fromkeys(_NAMES, 0)

    def add(self, figures: object) -> None:
        """Add a usage that ``to_json`` wrote. What is missing or is no number of tokens counts as 0."""
        if not isinstance(figures, dict):
            return
        totals = self._figures
        for name in _NAMES:
            figure = figures.get(name)
            if figure:
                totals[name] += figure if type(figure) is int and 0 < figure < _MOST else count_tokens(figure) or 0

    def read(self) -> Usage:
        """Return the sum so far."""
        return Usage(**self._figures)


def count_tokens(figure: object) -> int | None:
    """Return *figure* as a number of tokens; None if it is not one."""
    if isinstance(figure, bool) or not isinstance(figure, (int, float)) or not 0 <= figure < _MOST:
        return None
    return int(figure)
