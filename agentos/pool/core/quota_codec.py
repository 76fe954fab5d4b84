"""Encode a quota as a plain record, so that a store can keep it and another process can load it.

A record has what was learned: cooldowns, spent money, how much of each limit is used, what requests cost. It does not
have the limits: each process states its own, and finds the state of a shared one by what it limits.

A stored record has a version. To change what a record says, raise ``RECORD_VERSION``: append the conversion of learned
limits to ``_UPGRADES``, and an empty migration to ``stores/sqlite/schema.py`` (the format on Redis follows). Processes
of an older version then refuse the store, and say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from .cost import MOST_USED
from .learning.adaptive_rate import AdaptiveRate
from .learning.reported import ReportedLimit
from .limits.base import FOREVER, LimitState
from .records import OUTAGE, Block, Quota
from .states import Gate

T = TypeVar("T")
Record = Mapping[str, Any]

# The record of a quota about which nothing is known.
EMPTY_RECORD: Record = {}

# The fields of a limit's record that are instants.
_INSTANTS = (
    "empty_at",
    "heard_at",
    "mentioned_at",
    "at",
    "anchor_at",
    "searching_since",
    "took_at",
    "woke_at",
    "resting_until",
    "renewed_at",
    "full_until",
    "retry_at",
    "lowered_at",
    "proven_at",
    "probe_at",
    "blocked_at",
    "anchor",
    "since",
)

# The fields of a stated limit's record with what refusals taught about it.
_FOUND_OUT = frozenset(
    {
        *("allowance", "retry_at", "lowered_at", "proven_at"),
        *("guard", "lag", "is_window", "probe", "probe_at", "full_until", "echoes"),
        *("drained", "full_guard"),
    }
)

# Lists of starts with their amounts.
_STARTS = ("starts", "refused_starts")

_LARGEST_SUM = 1e13

_ALL_MODELS = ""  # stands for the scope None, since the keys of a record are text

# By the version that it converts from: a function that returns the record of a learned limit in the next version, or
# None if it must be learned again. The records of 0.1.0 have no version, which is 0; else they are as in version 1.
_UPGRADES: tuple[Callable[[Record], Record | None], ...] = (lambda packed: packed,)

RECORD_VERSION: Final = 1


def add_version(record: Record) -> dict[str, Any]:
    """Return the record as a store keeps it."""
    return {"version": RECORD_VERSION, **record}


def upgrade_record(stored: Record) -> Record:
    """Convert a stored record to this version. Raises ValueError if a newer agentos wrote it."""
    version = stored.get("version", 0)
    if version > RECORD_VERSION:
        raise ValueError(f"it has version {version}, and this agentos knows versions up to {RECORD_VERSION}")
    record = {name: value for name, value in stored.items() if name != "version"}
    if version < RECORD_VERSION and "limits" in record:
        upgraded = {name: _upgrade_limit(packed, version) for name, packed in record["limits"].items()}
        record["limits"] = {name: packed for name, packed in upgraded.items() if packed is not None}
    return record


def _upgrade_limit(packed: Record, version: int) -> Record | None:
    found: Record | None = packed
    for upgrade in _UPGRADES[version:]:
        if found is not None and "learned" in found:
            found = upgrade(found)
    return found


def pack_quota(quota: Quota, others: Record = EMPTY_RECORD) -> dict[str, Any]:
    """Encode *quota*. *others* is the record it came from: limits that only other processes know stay in it."""
    record: dict[str, Any] = {}
    blocks = _without_outage(quota.blocks)
    if blocks:
        record["blocks"] = {scope or _ALL_MODELS: _pack_block(block) for scope, block in blocks.items()}
    if quota.spent is not None:
        record["spent"] = _pack_block(quota.spent)
    tried = _without_outage(quota.probation)
    if tried:
        record["probation"] = {scope or _ALL_MODELS: None if at == -FOREVER else at for scope, at in tried.items()}
    if quota.concurrency is not None:
        record["width"] = quota.concurrency.pack()
    elif "width" in others:
        record["width"] = others["width"]  # of processes with adaptive slots
    if quota.history:
        record["history"] = quota.history
    limits = {name: packed for name, packed in others.get("limits", {}).items() if "learned" not in packed}
    for name, state in named_limits(quota):
        packed = state.pack()
        usage = state.usage.pack()
        if usage is not None:
            packed["usage"] = usage
        limits[name] = packed
    if limits:
        record["limits"] = limits
    return record


def unpack_quota(quota: Quota, record: Record) -> None:
    """Set *quota* to the record. Limits that the record does not have are unused. A pause for an outage stays."""
    blocks = {scope or None: _unpack_block(packed) for scope, packed in record.get("blocks", {}).items()}
    quota.blocks = blocks | _only_outage(quota.blocks)
    spent = record.get("spent")
    quota.set_spent(None if spent is None else _unpack_block(spent))
    limits = {
        name: _sanitize_limit(packed) for name, packed in record.get("limits", {}).items() if not _is_unusable(packed)
    }
    tried = record.get("probation", {}).items()
    probation = {scope or None: -FOREVER if at is None else at for scope, at in tried}
    quota.begin_probation(probation | _only_outage(quota.probation))
    if "width" in record:
        quota.inferred_elsewhere = record["width"]["slots"]
        if quota.concurrency is not None:
            quota.concurrency.unpack(record["width"])
    quota.history = [(at, text) for at, text in record.get("history", ())]
    _unpack_learned(quota, limits)
    for name, state in named_limits(quota):
        packed = limits.get(name)
        if packed is None:
            state.reset()
            state.usage.unpack(None)
        else:
            state.unpack(packed)
            state.usage.unpack(packed.get("usage"))


def _without_outage(scopes: Mapping[str | None, T]) -> dict[str | None, T]:
    return {scope: value for scope, value in scopes.items() if scope != OUTAGE}


def _only_outage(scopes: Mapping[str | None, T]) -> dict[str | None, T]:
    return {OUTAGE: scopes[OUTAGE]} if OUTAGE in scopes else {}


def _amounts_in(packed: Record) -> Iterator[float]:
    return (amount for name in _STARTS for _, amount in packed.get(name, ()))


def _sanitize_limit(packed: Record) -> Record:
    """Return the record of a limit without absurd usage, which earlier versions accepted."""
    return _reset_limit(packed) if _is_poisoned(packed) else packed


def _is_unusable(packed: Record) -> bool:
    """Return True for a learned limit with absurd usage: the next answer reports it again."""
    return "learned" in packed and _is_poisoned(packed)


def _is_poisoned(packed: Record) -> bool:
    usage = packed.get("usage")
    amounts = [*(usage["amounts"] if usage is not None else ()), *_amounts_in(packed)]
    if amounts and not (min(amounts) >= 0 and max(amounts) < MOST_USED and not math.isnan(sum(amounts))):
        return True
    sums = (packed.get("empty_at") or 0.0, packed.get("used", 0.0), packed.get("taken", 0.0))
    return not all(
        -_LARGEST_SUM < each < _LARGEST_SUM for each in sums
    )  # neither an instant nor a day's use; true for NaN too


def _unpack_learned(quota: Quota, limits: Record) -> None:
    """Keep exactly the learned limits of the record; their state is unpacked like any other."""
    gone = [name for name in quota.learned if name not in limits]
    if gone:
        quota.unlearn(gone)
    for name, packed in limits.items():
        if "learned" in packed and name not in quota.learned:
            quota.learn(name, _learned_limit(packed["learned"]))


def _learned_limit(learned: list[Any]) -> LimitState:
    if learned[0] == "told":
        return ReportedLimit(*learned[1:])
    tokens_each = learned[2] if len(learned) > 2 else None  # records of 0.1.0 have requests only
    return AdaptiveRate(learned[1], 0.0, tokens_each=tokens_each)


def shift_record_epoch(record: Record, by: float) -> dict[str, Any]:
    """Shift every instant by *by* seconds after a reboot, when no request is in flight.

    Calendar limits use the wall clock and do not shift.
    """
    new = dict(shift_record(record, by))
    if "probation" in record:
        new["probation"] = dict.fromkeys(record["probation"])  # the process that probed is gone
    if "limits" in new:
        new["limits"] = {name: _idle_limit(packed) for name, packed in new["limits"].items()}
    return new


def shift_record(record: Record, by: float) -> Record:
    """Shift every instant by *by* seconds to another clock.

    Calendar limits use the wall clock and do not shift.
    """
    if not by or not record:
        return record
    new = dict(record)
    if "blocks" in record:
        new["blocks"] = {scope: _shift_block(packed, by) for scope, packed in record["blocks"].items()}
    if "spent" in record:
        new["spent"] = _shift_block(record["spent"], by)
    if "probation" in record:
        new["probation"] = {scope: None if at is None else at + by for scope, at in record["probation"].items()}
    if "history" in record:
        new["history"] = [[at + by, text] for at, text in record["history"]]
    if "limits" in record:
        new["limits"] = {name: _shift_limit(packed, by) for name, packed in record["limits"].items()}
    return new


def merge_records(record: Record, other: Record) -> dict[str, Any]:
    """Merge two records of the same quota that were updated independently: *record*, plus what only *other* has.

    Of two cooldowns of the same models the longer one wins.
    """
    new = {**other, **record}
    if "limits" in new:
        new["limits"] = {**other.get("limits", {}), **record.get("limits", {})}
    if "blocks" in new:
        theirs = other.get("blocks", {})
        ours = {
            scope: max(block, theirs.get(scope, block), key=_ends_at)
            for scope, block in record.get("blocks", {}).items()
        }
        new["blocks"] = {**theirs, **ours}
    return new


def pack_claim(quota: int, at: float, amounts: Mapping[str, float]) -> str:
    """Encode a claim: its quota, when its request starts, and what it takes of each limit by name."""
    return f"{quota} {at!r} " + "\t".join(f"{amount!r} {name}" for name, amount in amounts.items())


def unpack_claim(text: str) -> tuple[int, float, dict[str, float]]:
    """Decode what ``pack_claim`` encoded."""
    quota, at, rest = text.split(" ", 2)
    amounts = (part.split(" ", 1) for part in rest.split("\t"))
    return int(quota), float(at), {name: float(amount) for amount, name in amounts}


def reset_record(record: Record) -> dict[str, Any]:
    """Return the record with nothing known, including limits that only other processes know.

    Takes stay counted and requests in flight stay in flight: leases in force still settle and end.
    """
    limits = record.get("limits", {})
    kept = {name: _reset_limit(packed) for name, packed in limits.items() if "learned" not in packed}
    return {"limits": kept}


def without_in_flight(record: Record, names: list[str]) -> dict[str, Any]:
    """Return the record after a request of unknown cost ended with its process, in the limits *names*."""
    limits = dict(record.get("limits", {}))
    for name in names:
        packed = dict(limits.get(name, {}))
        usage = packed.get("usage")
        if usage is not None:
            packed["usage"] = {**usage, "in_flight": max(0, usage["in_flight"] - 1)}
            limits[name] = packed
    return {**record, "limits": limits}


def named_limits(quota: Quota) -> list[tuple[str, LimitState]]:
    """Return the limits of *quota*, each with the name of its state in a record.

    Named by what is limited, not by how much: a change of the amount keeps the count.
    """
    if quota.named is not None:
        return quota.named
    named: dict[str, LimitState] = {}
    for state in quota.stated:
        limit = state.limit
        window = limit.window or "continuous"
        per = f"day from {limit.resets_at or '00:00'} {limit.tz or 'UTC'}" if limit.per == "day" else f"{limit.per:g}s"
        name = f"{limit.dimension} per {per} {window} {limit.model or ''}".rstrip()
        while name in named:
            name += "'"
        named[name] = state
    quota.named = [*named.items(), *quota.learned.items()]
    return quota.named


def _pack_block(block: Block) -> list[Any]:
    until = None if block.until == FOREVER else block.until
    return [block.gate.value, until, block.since, block.evidence, block.probe]


def _unpack_block(packed: list[Any]) -> Block:
    gate, until, since, evidence, *probe = packed  # records of older versions do not have the last
    end = FOREVER if until is None else float(until)
    return Block(Gate(gate), end, float(since), str(evidence), bool(probe and probe[0]))


def _shift_block(packed: list[Any], by: float) -> list[Any]:
    gate, until, since, *rest = packed
    return [gate, None if until is None else until + by, since + by, *rest]


def _ends_at(packed: list[Any]) -> float:
    until = packed[1]
    return FOREVER if until is None else float(until)


def _reset_limit(packed: Record) -> dict[str, Any]:
    lists: dict[str, Any] = {name: [] for name in ("fullest", *_STARTS)}
    empty = {"empty_at": None, **lists, "used": 0.0, "usage": None}
    kept = {name: value for name, value in packed.items() if name not in _FOUND_OUT}
    new = {**kept, **{name: value for name, value in empty.items() if name in packed}}
    usage = packed.get("usage")
    if usage is not None and usage["in_flight"]:
        new["usage"] = {"amounts": [], "count": 0, "in_flight": usage["in_flight"], "silent": 0, "set_aside": False}
    return new


def _shift_limit(packed: Record, by: float) -> dict[str, Any]:
    new = dict(packed)
    for name in _INSTANTS:
        if packed.get(name) is not None:
            new[name] = packed[name] + by
    for name in _STARTS:
        if name in packed:
            new[name] = [[at + by, amount] for at, amount in packed[name]]
    return new


def _idle_limit(packed: Record) -> Record:
    """Return the record with nothing in flight."""
    usage = packed.get("usage")
    return packed if usage is None else {**packed, "usage": {**usage, "in_flight": 0}}
