"""Rows and table of keys for ``agentos keys``."""

from __future__ import annotations

import datetime
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ...pool.snapshot import CredentialStatus
from ...util.durations import format_rough_duration
from .table import find_width, format_table

if TYPE_CHECKING:
    from ...pool.requests import KeySpec
    from ...pool.snapshot import Headroom, LimitInForce
    from ...stores.dump import CredentialRow, GrantPause

NEVER_USED: Final = "never used"
DISABLED: Final = "disabled"


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One key as shown. Instants are epoch seconds; ``until`` is None if no instant is known."""

    name: str
    state: str
    available: bool
    until: float | None
    why: str
    quota: str
    slots: int
    leases: int
    holders: tuple[str, ...]
    limits: tuple[dict[str, Any], ...]
    secrets: int  # number of secrets that have had this name
    paused_until: float | None = None  # no key is leased before it
    paused_why: str = ""
    secrets_in_use: int = 0  # number of them that are leased now
    limits_in_force: tuple[LimitInForce, ...] = ()
    slots_source: str = "stated"  # or "estimated"

    def as_json(self) -> dict[str, Any]:
        """Return the row as a JSON object."""
        return {
            "name": self.name,
            "state": self.state,
            "available": self.available,
            "until": self.until,
            "why": self.why,
            "quota": self.quota,
            "slots": self.slots,
            "leases": self.leases,
            "holders": self.holders,
            "limits": self.limits,
            "secrets": self.secrets,
            "paused_until": self.paused_until,
            "paused_why": self.paused_why,
            "secrets_in_use": self.secrets_in_use,
            "limits_in_force": [asdict(limit) for limit in self.limits_in_force],
            "slots_source": self.slots_source,
        }


def build_rows(
    seen: Sequence[CredentialRow], specs: Sequence[KeySpec], disabled: Sequence[str], *, everything: bool
) -> tuple[list[KeyRow], int]:
    """Return the rows, with the configured keys first and in their order, and the number of other keys in the store."""
    by_name = {each.state.name: each for each in seen}
    rows = [_row(by_name.pop(spec.name)) if spec.name in by_name else _unused(spec) for spec in specs]
    off = [_switched_off(name, by_name.pop(name, None)) for name in disabled]
    rest = [_row(each) for _, each in sorted(by_name.items())]
    return [*rows, *(rest if everything else ()), *off], 0 if everything else len(rest)


def mark_paused(rows: Sequence[KeyRow], pause: GrantPause, now: float) -> list[KeyRow]:
    """Mark all rows as unavailable while the store grants nothing."""
    return [replace(row, available=False, paused_until=now + pause.left, paused_why=pause.why) for row in rows]


def _row(seen: CredentialRow) -> KeyRow:
    state = seen.state
    return KeyRow(
        name=state.name,
        state=state.state,
        available=state.is_available,
        until=state.rate_limited_until or None,
        why=state.why,
        quota=state.quota,
        slots=state.slots,
        leases=state.leases,
        holders=seen.holders,
        limits=tuple(_limit_json(limit) for limit in state.limits if math.isfinite(limit.left)),  # JSON has no infinity
        secrets=seen.secrets,
        secrets_in_use=seen.secrets_in_use,
        limits_in_force=state.limits_in_force,
        slots_source=state.slots_source,
    )


def _limit_json(limit: Headroom) -> dict[str, Any]:
    return {
        "dimension": limit.dimension,
        "amount": limit.amount,
        "left": limit.left,
        "model": limit.model,
        "set_aside": limit.set_aside,
        "per": limit.per,
        "learned": limit.learned,
    }


def _unused(spec: KeySpec) -> KeyRow:
    return KeyRow(spec.name, NEVER_USED, True, None, "", spec.quota or spec.name, spec.slots, 0, (), (), 0)


def _switched_off(name: str, seen: CredentialRow | None) -> KeyRow:
    if seen is None:
        return KeyRow(name, DISABLED, False, None, "", name, 1, 0, (), (), 0)
    return replace(_row(seen), state=DISABLED, available=False, until=None)


# -- for people -------------------------------------------------------------------------------------------------------

_COLOURS: Final[Mapping[str, str]] = {
    CredentialStatus.AVAILABLE: "32",
    CredentialStatus.LEASED: "36",
    CredentialStatus.COOLING: "33",
    CredentialStatus.LIMITED: "36",  # it runs at its limit: nothing is wrong
    CredentialStatus.PARKED: "35",
    CredentialStatus.SPENT: "31",
    CredentialStatus.DEAD: "31",
    NEVER_USED: "2",
    DISABLED: "2",
}
_HEADINGS: Final = ("KEY", "STATE", "IN USE", "UNTIL", "WHY")
_LIMIT_HEADINGS: Final = ("QUOTA", "LIMIT IN FORCE", "LEFT", "SOURCE", "HOW SURE")


def print_keys(
    rows: Sequence[KeyRow], more: int, missing: str | None, *, pause: GrantPause | None = None, coloured: bool
) -> None:
    """Print the number of available keys, a table of them, and one of the limits of their quotas.

    *missing* is the location of a store that does not exist yet. *pause*: the store grants nothing for now.
    """
    if missing is not None:
        print(f"no run has used a store at {missing} yet")
    counted = [row for row in rows if row.state != DISABLED]
    if rows or missing is None:
        because = "" if pause is None else f": {pause}"
        print(f"{sum(row.available for row in counted)} of {len(counted)} available{because}")
    width = find_width(sys.stdout)
    if rows:
        colours = [_COLOURS.get(row.state) if coloured else None for row in rows]
        cells = [_cells(row) for row in rows]
        print("", *format_table(_HEADINGS, cells, colours, coloured_column=1, width=width), sep="\n")
        limits = {row.quota: row.limits_in_force for row in counted if row.limits_in_force}
        in_force = [_limit_cells(quota, limit) for quota, found in limits.items() for limit in found]
        if in_force:
            print("", *format_table(_LIMIT_HEADINGS, in_force, width=width), sep="\n")
    elif missing is None:
        print("the store has no keys yet; the first run that uses a key adds it")
    if more:
        print(f"\n{more} more in the store; --all shows them")


def _cells(row: KeyRow) -> tuple[str, ...]:
    use = f"{row.leases}/{row.slots}" if row.state not in (NEVER_USED, DISABLED) else ""
    use += " (estimated)" if row.slots_source == "estimated" else ""
    why = [row.why] if row.why else []
    if row.holders:
        why.append(f"held by {_some(row.holders)}")
    if row.secrets_in_use > 1:
        why.append(f"{row.secrets_in_use} secrets of this name are in use: one is shown")
    until = "" if row.until is None else format_until(row.until, time.time())
    return row.name, row.state, use, until, "; ".join(why)


def _limit_cells(quota: str, limit: LimitInForce) -> tuple[str, ...]:
    from ...pool.snapshot import format_number

    return quota, limit.describe(), format_number(math.floor(limit.left)), limit.source, limit.certainty


def _some(holders: Sequence[str]) -> str:
    more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
    return ", ".join(holders[:3]) + more


def format_until(until: float, now: float) -> str:
    """Format a future instant: "15:32 (in 4 min)", with the day if it is not today."""
    at, today = (datetime.datetime.fromtimestamp(min(each, _LAST_INSTANT)) for each in (until, now))
    if at.date() == today.date():
        hour = f"{at:%H:%M:%S}" if until - now < 120 else f"{at:%H:%M}"
    else:
        hour = f"{at:%a %H:%M}" if until - now < 6 * 86_400 else f"{at:%Y-%m-%d %H:%M}"
    return f"{hour} (in {format_rough_duration(until - now)})"


_LAST_INSTANT: Final = 253_000_000_000.0  # in the year 9987: datetime ends with 9999
