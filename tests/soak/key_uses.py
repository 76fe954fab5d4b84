"""An independent count of how many users each key had at once, from the records of ``use_key``.

It knows nothing of leases, sessions or stores. A user's records form stretches: two records that are less than ``GAP``
apart belong to the same stretch, in which the key was really in use; a suspended or dead process has none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from .shared_keys import SECRETS, SLOTS

GAP = 0.1
_NAMES = {secret: name for name, secret in SECRETS.items()}


@dataclass(frozen=True, slots=True)
class Overuse:
    """A moment at which more users than slots used one key."""

    at: float
    key: str
    users: tuple[str, ...]


def read_uses(folder: Path) -> dict[str, dict[str, list[float]]]:
    """The instants of use of all runs in *folder*, by key and user ("function 123/item")."""
    uses: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in chain.from_iterable(path.read_text().splitlines() for path in folder.glob("*.uses")):
        instant, kind, who, secret = line.split(" ")
        uses[_NAMES[secret]][f"{kind} {who}"].append(float(instant))
    return uses


def find_overuse(folder: Path, abandoned: Mapping[int, float]) -> tuple[list[Overuse], int]:
    """The moments at which a key had too many users; and how many records were of abandoned threads.

    *abandoned* says from which instant on the functions of a process no longer count: it was stopped by force, and
    Python threads cannot be killed.
    """
    found: list[Overuse] = []
    set_aside = 0
    for key, users in read_uses(folder).items():
        edges: list[tuple[float, int, str]] = []
        for user, instants in users.items():
            kind, _, who = user.partition(" ")
            until = abandoned.get(int(who.partition("/")[0]), float("inf")) if kind == "function" else float("inf")
            counted = [instant for instant in instants if instant <= until]
            set_aside += len(instants) - len(counted)
            for begin, end in _stretches(counted):
                edges += [(begin, 1, user), (end, 0, user)]
        current: set[str] = set()
        for at, begins, user in sorted(edges):
            (current.add if begins else current.discard)(user)
            if len(current) > SLOTS[key]:
                found.append(Overuse(at, key, tuple(sorted(current))))
    return found, set_aside


def _stretches(instants: Iterable[float]) -> list[tuple[float, float]]:
    stretches: list[tuple[float, float]] = []
    for instant in sorted(instants):
        if stretches and instant - stretches[-1][1] < GAP:
            stretches[-1] = (stretches[-1][0], instant)
        else:
            stretches.append((instant, instant))
    return [(begin, end) for begin, end in stretches if end > begin]  # a single record is a moment, not a use
