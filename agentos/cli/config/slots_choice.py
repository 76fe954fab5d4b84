"""Choose how many items of a run may use a key at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Slots = int | Literal["auto"]


@dataclass(frozen=True, slots=True)
class SlotsChoice:
    """What a run says about the slots of its keys.

    ``for_all`` was typed, or is in the environment, and wins over what a credential states. ``otherwise`` is for
    credentials that state nothing. With ``makes_calls`` each item calls the provider itself, so that the right number
    is a matter of the provider's limits and is found out; a command makes many calls, and has its key for itself.
    """

    for_all: Slots | None = None
    otherwise: Slots | None = None
    makes_calls: bool = False

    def choose(self, stated: Slots | None, provider: str | None) -> Slots:
        """Return the slots of a key of *provider*, None if that is unknown, whose entry states this number."""
        by_default: Slots = "auto" if self.makes_calls and provider is not None else 1
        return self.for_all or stated or self.otherwise or by_default


NO_CHOICE = SlotsChoice()


def describe_key_bound(workers: int, most: int, slots: Sequence[Slots], shared_by: str) -> str | None:
    """Return a line for people if the keys, not the workers, bound how many items run at once; else None.

    *most* could run at once with more slots: so many workers, or items, as there are.
    """
    numbers = [each for each in slots if each != "auto"]
    if not numbers or len(numbers) < len(slots) or sum(numbers) >= most:
        return None
    keys = "1 key" if len(numbers) == 1 else f"{len(numbers)} keys"
    first = numbers[0]
    of_each = f" x {first} slot{'' if first == 1 else 's'}" if numbers == [first] * len(numbers) else ""
    advice = f"; --slots auto lets {shared_by} share a key" if 1 in numbers else ""
    return f"{workers} workers, {keys}{of_each}: {sum(numbers)} at once{advice}"
