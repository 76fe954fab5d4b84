"""The time of a run by the wall clock: when it stood still, how much of the limits it used, which keys it lost.

``KeyClock`` adds it up during a run; the event log keeps it; the closing summary and ``agentos show`` describe it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ...pool.snapshot import OUT_OF_USE, CredentialStatus
from ...util.durations import format_rough_duration

if TYPE_CHECKING:
    from ...pool.snapshot import CredentialState, Headroom

COOLING: Final = "cooling"
NETWORK: Final = "network"

SHORT_COOLDOWN: Final = 10.0  # seconds for which a key that keeps to its limit waits without being in trouble
_SHORTEST: Final = 1.0  # seconds of standing still that are told
_LONG_ENOUGH: Final = 10.0  # seconds after which the used share of a limit says something

_STATUS: Final = re.compile(r"\bstatus (\d{3})\b")
_CODE: Final = re.compile(r"\berror\.(?:code|type|status|reason)\S*: ([\w.-]+)")


@dataclass(frozen=True, slots=True)
class RefusedKey:
    """A key that the provider refused: ``state`` is dead or spent; ``at`` is None if it was so before the run."""

    name: str
    state: str
    why: str
    at: float | None = None

    def __str__(self) -> str:
        """Return ``key openai-2: rejected (401 invalid_api_key) at 03:12``."""
        status, code = _STATUS.search(self.why), _CODE.search(self.why)
        found = " ".join(match[1] for match in (status, code) if match is not None) or self.why
        what = "no money left" if self.state == CredentialStatus.SPENT else "rejected"
        when = " before this start" if self.at is None else f" at {time.strftime('%H:%M', time.localtime(self.at))}"
        return f"key {self.name}: {what}{f' ({found})' if found else ''}{when}"

    def as_json(self) -> dict[str, Any]:
        """Return the key as a JSON object."""
        return {"name": self.name, "state": self.state, "why": self.why, "at": self.at}


@dataclass(frozen=True, slots=True)
class KeyTime:
    """``ran`` is the time of the run; ``still`` the part in which nothing could run, by reason: cooling or network.

    ``keys`` is how many keys there were then, ``cooling`` how long each could not be used. ``used`` and ``allowed`` are
    what was used of the stated limits, and what they allowed in that time, by dimension. ``refused`` are the keys that
    are out of use at the end. ``unreachable_since`` is set if the network did not answer at the end.
    """

    ran: float = 0.0
    still: Mapping[str, float] = field(default_factory=dict)
    keys: int = 0
    cooling: Mapping[str, float] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=dict)
    allowed: Mapping[str, float] = field(default_factory=dict)
    refused: tuple[RefusedKey, ...] = ()
    unreachable_since: float | None = None
    unreachable_why: str = ""

    @property
    def used_share(self) -> float | None:
        """The used share of the limit that was used most; None if no limit is stated."""
        shares = [min(1.0, self.used.get(name, 0.0) / most) for name, most in self.allowed.items() if most > 0]
        return max(shares, default=None)

    def describe(self) -> Iterator[str]:
        """Yield the lines about keys and time for people."""
        yield from map(str, self.refused)
        count = f"all {self.keys} keys" if self.keys > 1 else "the key"
        for reason, text in ((COOLING, f"{count} cooling down"), (NETWORK, "no answer from the network")):
            seconds = self.still.get(reason, 0.0)
            if seconds >= _SHORTEST:
                yield f"stood still {format_rough_duration(seconds)} of {format_rough_duration(self.ran)}: {text}"
        share = self.used_share
        if share is not None and self.ran >= _LONG_ENOUGH:
            yield f"{round(100 * share)} % of the limit used"

    def as_json(self) -> dict[str, Any]:
        """Return everything as a JSON object, as the event log keeps it."""
        return {
            "ran": self.ran,
            "still": dict(self.still),
            "keys": self.keys,
            "cooling": dict(self.cooling),
            "used": dict(self.used),
            "allowed": dict(self.allowed),
            "refused": [each.as_json() for each in self.refused],
            "unreachable_since": self.unreachable_since,
            "unreachable_why": self.unreachable_why,
        }


class KeyClock:
    """Adds up the time of a run from snapshots of its keys. For one thread at a time."""

    def __init__(self) -> None:
        self._ran = 0.0
        self._still: dict[str, float] = {}
        self._keys = 0
        self._cooling: dict[str, float] = {}
        self._limits: dict[tuple[str, str, str | None, float], _LimitUse] = {}
        self._refused: dict[str, RefusedKey] = {}
        self._has_begun = False

    def add(self, rows: Sequence[CredentialState], seconds: float, wall: float, *, offline: bool) -> None:
        """Add the *seconds* from *wall* (epoch seconds) on, in which the keys were as in *rows*."""
        self._ran += seconds
        usable = [row for row in rows if row.state not in OUT_OF_USE]
        resting = {row.name: _find_rest(row, seconds, wall) for row in usable}
        cooling = dict(self._cooling)  # a copy: another thread may be reading the old one
        for name, rest in resting.items():
            if rest:
                cooling[name] = cooling.get(name, 0.0) + rest
        self._cooling = cooling
        still = min(resting.values(), default=0.0)
        if still and not any(row.leases for row in usable):
            reason = NETWORK if offline else COOLING
            self._still = {**self._still, reason: self._still.get(reason, 0.0) + still}
            self._keys = max(self._keys, len(usable))

    def observe(self, rows: Sequence[CredentialState], now: float, wall: float) -> None:
        """Note the keys that are refused, and what is left of the limits, at *now* and *wall*."""
        before = self._refused
        self._refused = {
            row.name: before.get(row.name)
            or RefusedKey(row.name, row.state, row.why, wall if self._has_begun else None)
            for row in rows
            if row.state in (CredentialStatus.DEAD, CredentialStatus.SPENT)
        }
        self._has_begun = True
        for quota, limits in {row.quota: row.limits for row in rows if row.state not in OUT_OF_USE}.items():
            for limit in limits:
                if limit.learned or limit.set_aside or limit.amount <= 0:
                    continue  # a share of a limit that is only believed in would be a guess
                if isinstance(limit.per, str) or limit.window == "sliding":
                    continue  # what comes back of such a limit between two looks is not known
                key = (quota, limit.dimension, limit.model, limit.per)
                use = self._limits.get(key)
                if use is None:
                    self._limits[key] = _LimitUse(limit, now)
                else:
                    use.look(limit, now)

    def read(self, unreachable_since: float | None = None, unreachable_why: str = "") -> KeyTime:
        """Return the sums so far."""
        used: dict[str, float] = {}
        allowed: dict[str, float] = {}
        for (_, dimension, _, _), use in list(self._limits.items()):
            used[dimension] = used.get(dimension, 0.0) + use.used
            allowed[dimension] = allowed.get(dimension, 0.0) + use.allowed
        return KeyTime(
            self._ran,
            self._still,
            self._keys,
            self._cooling,
            used,
            allowed,
            tuple(self._refused.values()),
            unreachable_since,
            unreachable_why,
        )


class _LimitUse:
    """What was used of one limit that refills: what it had and got, without what is left."""

    __slots__ = ("_at", "_fullest", "_left", "allowed", "used")

    def __init__(self, limit: Headroom, now: float) -> None:
        self._left = self._fullest = limit.left
        self._at = now
        self.used = 0.0
        self.allowed = max(0.0, limit.left)

    def look(self, limit: Headroom, now: float) -> None:
        assert not isinstance(limit.per, str)  # noqa: S101 - for the type checker: the caller has checked it
        refill = limit.amount / limit.per * (now - self._at)
        self.used += max(0.0, min(self._fullest, self._left + refill) - limit.left)
        self.allowed += refill
        self._left, self._at = limit.left, now
        self._fullest = max(self._fullest, limit.left)


def is_resting(row: CredentialState, wall: float) -> bool:
    """True if the key cannot be used for a while. One that waits some seconds to keep to its limit does not rest."""
    if row.state == CredentialStatus.LIMITED:
        return row.rate_limited_until - wall > SHORT_COOLDOWN
    return row.state in (CredentialStatus.COOLING, CredentialStatus.PARKED)


def _find_rest(row: CredentialState, seconds: float, wall: float) -> float:
    """Return how many of the *seconds* from *wall* on the key rested."""
    if not is_resting(row, wall):
        return 0.0
    return seconds if row.rate_limited_until <= wall else min(seconds, row.rate_limited_until - wall)


def read_key_time(events: Iterable[Mapping[str, Any]]) -> KeyTime:
    """Return the time of a run from its event log: sums over its sessions, and the keys at the end of the last."""
    last: dict[float, Mapping[str, Any]] = {}
    newest: Mapping[str, Any] = {}
    for event in events:
        kind, session = event.get("kind"), event.get("session")
        if kind == "session":
            newest = {}
        elif kind == "waiting" and isinstance(session, (int, float)) and "ran" in event:
            newest = last[session] = event
    refused = newest.get("refused")
    return KeyTime(
        sum(_number(each.get("ran")) for each in last.values()),
        _sum(each.get("still") for each in last.values()),
        max((int(_number(each.get("keys"))) for each in last.values()), default=0),
        _sum(each.get("cooling") for each in last.values()),
        _sum(each.get("used") for each in last.values()),
        _sum(each.get("allowed") for each in last.values()),
        tuple(filter(None, map(_read_refused, refused if isinstance(refused, list) else ()))),
        since if isinstance(since := newest.get("unreachable_since"), (int, float)) else None,
        str(newest.get("unreachable_why") or ""),
    )


def _read_refused(found: object) -> RefusedKey | None:
    if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in ("name", "state", "why")):
        return None  # the file may have been edited
    at = found.get("at")
    return RefusedKey(found["name"], found["state"], found["why"], float(at) if isinstance(at, (int, float)) else None)


def _sum(parts: Iterable[object]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, seconds in part.items() if isinstance(part, dict) else ():
            total[str(name)] = total.get(str(name), 0.0) + _number(seconds)
    return total


def _number(found: object) -> float:
    """Return a number of at least 0; 0 for anything else, because the file may have been edited."""
    is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
    return max(0.0, float(found)) if is_number and found == found and abs(found) < 1e12 else 0.0  # type: ignore[arg-type]
