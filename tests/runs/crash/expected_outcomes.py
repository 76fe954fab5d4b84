"""What every item of the runs here does, known beforehand: the child acts it, the checks compare with it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from json import dumps, loads
from typing import Any

SECRETS = [
    "sk-crash-Qm7vTz2LxWb9RkYd4Hs6",
    "sk-crash-Jn3cPf8GuEa5VoMx1Zt7",
    "sk-crash-Bw6yDq4KiXs9LhTr2Nc8",
    "sk-crash-Fz1eUa7OmCg3YjPv5Sk4",
]


class Kind(Enum):
    PLAIN = "plain"
    FAILS = "fails"
    TRANSIENT = "transient"  # raises Transient in its first attempt
    LIMITED = "limited"  # raises RateLimited in its first attempt
    ODD = "odd"  # returns what is not JSON


_KINDS = {3: Kind.FAILS, 7: Kind.TRANSIENT, 11: Kind.LIMITED, 13: Kind.ODD, 17: Kind.TRANSIENT}
_PERIOD = 20


def kind_of(n: int) -> Kind:
    return _KINDS.get(n % _PERIOD, Kind.PLAIN)


def id_of(n: int) -> str:
    return f"item-{n:03d}"


def number_of(item_id: str) -> int:
    return int(item_id.removeprefix("item-"))


def outcome_of(n: int) -> str:
    return "failed" if kind_of(n) is Kind.FAILS else "done"


def value_of(n: int) -> Any:
    """What its worker returns."""
    return complex(n) if kind_of(n) is Kind.ODD else {"n": n, "square": n * n}


def recorded_value_of(n: int) -> tuple[str | None, str | None]:
    """Its value in a journal: as JSON, or else how it looks."""
    if kind_of(n) is Kind.FAILS:
        return None, None
    value = value_of(n)
    return (None, repr(value)) if kind_of(n) is Kind.ODD else (dumps(value, separators=(",", ":")), None)


def own_retries_of(n: int) -> int:
    """How often it must be run again for its own sake, crashes aside."""
    return 1 if kind_of(n) in {Kind.TRANSIENT, Kind.LIMITED} else 0


@dataclass(frozen=True)
class Script:
    """One run, as its process is told. ``way`` names how the coordinator is called: see ``child.WAYS``."""

    way: str
    workers: int = 4
    keys: int = 4
    slots: int = 1
    items: int = 200
    pause: float = 0.006  # that each item takes
    start: str = "queued"
    bulk: int = 0  # bytes that each value has besides
    full_after: int | None = None  # executions after which the disk is full, until somebody lifts the limit
    die_at: tuple[str, int] | None = None  # it kills itself right after that many lines with that word
    still_at: tuple[str, int] | None = None  # it stands still there, until it is told to go on
    gate: str | None = None  # where it waits to be let on: before the "opening", or before its first "item"

    @property
    def at_once(self) -> int:
        """How many items can be running at one moment."""
        return min(self.workers, self.keys * self.slots)

    @property
    def numbers(self) -> range:
        return range(self.items)

    @property
    def ids(self) -> list[str]:
        return [id_of(n) for n in self.numbers]

    def to_text(self) -> str:
        return dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Script:
        return cls(**loads(text))
