"""Read the limits in headers: the amount, what remains, and when it resets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ..dialect import Dialect
from ..signal import Reading
from .date_and_number_formats import is_date, parse_delay, parse_instant, parse_number
from .headers import REPEATED
from .structured_fields import StructuredItem, parse_dictionary, parse_list

_MINUTE, _DAY = 60.0, 86_400.0
_SECONDS = {"second": 1.0, "minute": _MINUTE, "hour": 3600.0, "day": _DAY, "week": 7 * _DAY, "month": 30 * _DAY}
_LETTERS = {"s": 1.0, "m": _MINUTE, "h": 3600.0, "d": _DAY, "w": 7 * _DAY}
_SHORT_WINDOW = re.compile(r"(\d{1,4})([smhdw])", re.ASCII)

_PARTS = ("limit", "remaining", "reset")
# The prefix of a header name, and the dimension if the rest of the name has none.
_FAMILIES = (
    ("x-ratelimit-", "requests"),
    ("x-tokenlimit-", "tokens"),
    ("anthropic-ratelimit-", None),
    ("anthropic-priority-", None),
    ("ratelimit-", "requests"),
)
_IETF = "ratelimit"
_OLDEST_DATE = 2.5  # seconds; some servers write a new Date once a second only
_THREE_FIELDS = "ratelimit-*"  # RateLimit-Limit, -Remaining and -Reset of the older drafts
_LONGEST_ANSWER = 3_600.0  # seconds
UNIFIED = "anthropic-ratelimit-unified-"
_CLAIMS = {"five_hour": "5h", "seven_day": "7d"}


@dataclass(frozen=True, slots=True)
class _HeaderMeaning:
    """The limit and the part of it (limit, remaining or reset) that a header states."""

    source: str  # the name with * for the part: equal for all parts of one limit
    part: int
    dimension: str
    window: float | None


def parse_readings(fields: Mapping[str, str], dialect: Dialect, now: float) -> tuple[Reading, ...]:
    """Return a reading for each limit in *fields*, in their order."""
    groups: dict[str, tuple[_HeaderMeaning, list[str | None]]] = {}
    for name, value in fields.items():
        meaning = _parse_header_name(name)
        if meaning is not None:
            group = groups.get(meaning.source)
            if group is None:
                group = groups[meaning.source] = (meaning, [None, None, None])
            group[1][meaning.part] = value
    if not groups:
        return ()
    wall = _find_current_time(fields, now)
    readings: list[Reading | None] = []
    for source, (meaning, values) in groups.items():
        if source == _IETF:
            readings += _ietf_readings(fields)
        elif source == UNIFIED:
            readings += _unified_readings(fields, wall)
        else:
            readings.append(_build_reading(meaning, values, fields, dialect, wall))
    return tuple([reading.sane() for reading in readings if reading is not None])


def parse_provider_time(fields: Mapping[str, str], now: float) -> float:
    """Return the provider's current time from its ``Date``, else *now*: its dates are relative to that."""
    text = fields.get("date")
    at = None if text is None else last_valid(text, parse_instant)
    return now if at is None else at


def _find_current_time(fields: Mapping[str, str], now: float) -> float:
    """Return *now* if the provider's ``Date`` agrees with it, else that: it has whole seconds and is often old."""
    wall = parse_provider_time(fields, now)
    return now if abs(wall - now) <= _OLDEST_DATE else wall


def last_valid(text: str, read: Callable[[str], float | None]) -> float | None:
    """Return ``read(text)``; for several values, separated by commas or repeated, the last valid one."""
    value = read(text)
    if value is not None or (REPEATED not in text and "," not in text):
        return value
    for whole in reversed(text.split(REPEATED)):
        for piece in (whole, *reversed(whole.split(","))):
            value = read(piece)
            if value is not None:
                return value
    return None


@lru_cache(maxsize=4096)
def _parse_header_name(name: str) -> _HeaderMeaning | None:
    if name in ("ratelimit", "ratelimit-policy"):
        return _HeaderMeaning(_IETF, 0, "", None)
    if name.startswith(UNIFIED):
        return _HeaderMeaning(UNIFIED, 0, "", None)
    family = next((family for family in _FAMILIES if name.startswith(family[0])), None)
    if family is None:
        return None
    prefix, implied = family
    words = name.removeprefix(prefix).split("-")
    at = 0 if words[0] in _PARTS else len(words) - 1
    if words[at] not in _PARTS:
        return None
    part = _PARTS.index(words.pop(at))
    dimension = find_dimension(" ".join(words)) or (implied if all(_parse_window(word) for word in words) else None)
    if dimension is None:
        return None
    window = next(filter(None, map(_parse_window, words)), None)
    words.insert(at, "*")
    return _HeaderMeaning(prefix + "-".join(words), part, dimension, window)


def find_dimension(words: str) -> str | None:
    """Return the dimension that *words*, in lower case, name; None if it is not one of ours."""
    if "token" in words:
        if "input" in words or "prompt" in words:
            return "input_tokens"
        if "output" in words or "generated" in words or "completion" in words:
            return "output_tokens"
        return "tokens"
    return "requests" if "req" in words else None


def _parse_window(word: str) -> float | None:
    if match := _SHORT_WINDOW.fullmatch(word):
        return float(match[1]) * _LETTERS[match[2]] or None
    return _SECONDS.get(word.removesuffix("s"))


def _build_reading(
    meaning: _HeaderMeaning, values: list[str | None], fields: Mapping[str, str], dialect: Dialect, wall: float
) -> Reading | None:
    limit_text, remaining_text, reset_text = values
    limit, window = (None, None) if limit_text is None else _limit_and_window(limit_text)
    remaining = None if remaining_text is None else last_valid(remaining_text, parse_number)
    reset = None if reset_text is None else last_valid(reset_text, lambda text: parse_delay(text, wall=wall))
    if reset == 0 and (dialect.zero_reset_is_unknown or limit is remaining is None):
        reset = None
    if reset is not None and "retry-after" in fields:
        reset = _find_nearer_reset(reset, reset_text or "", fields["retry-after"], wall)
    if limit is remaining is reset is None:
        return None
    window = window or meaning.window
    if window is None and limit is not None and meaning.source == _THREE_FIELDS:
        window = _find_policy_window(fields, limit)
    if window is None and dialect.resource_windows:
        window = dialect.resource_windows.get(fields.get("x-ratelimit-resource", ""))
    assumed = window is None and meaning.dimension in dialect.windows
    if window is None:
        window = dialect.windows.get(meaning.dimension)
    dated = reset is not None and reset_text is not None and is_date(reset_text)
    overdue = _find_overdue(reset_text, wall) if dated and reset == 0 and reset_text is not None else 0.0
    return Reading(
        *(meaning.dimension, limit, remaining, reset, window, meaning.source),
        assumed=assumed,
        dated=dated,
        overdue=overdue,
    )


def _find_overdue(reset_text: str, wall: float) -> float:
    """Return how long ago the instant of a reset was; 0 if that is longer than answers take."""
    then = last_valid(reset_text, lambda text: parse_delay(text, wall=wall - _LONGEST_ANSWER))
    return _LONGEST_ANSWER - then if then else 0.0


def _find_nearer_reset(reset: float, reset_text: str, retry_text: str, wall: float) -> float:
    """Return the delay of ``Retry-After`` if it is the same instant as the reset: slowapi's reset is a second late."""
    delay = last_valid(retry_text, lambda text: parse_delay(text, wall=wall))
    return delay if delay is not None and 0 <= reset - delay <= 1 and is_date(reset_text) else reset


def _limit_and_window(text: str) -> tuple[float | None, float | None]:
    """Parse ``100``, or ``100, 100;w=60`` of older drafts, with the window of each quota after the limit."""
    if ";" in text:
        items = parse_list(text.replace(REPEATED, ","))
        if items and isinstance(items[0].value, float) and items[0].value >= 0:
            limit = items[0].value
            quotas = [item for item in items if item.value == limit and _read_count(item, "w")]
            return limit, _read_count(quotas[0], "w") if quotas else None
        return None, None
    return last_valid(text, parse_number), None


def _ietf_readings(fields: Mapping[str, str]) -> Iterable[Reading]:
    """Read ``RateLimit-Policy`` and ``RateLimit`` of the drafts: 08 to 10 are lists, 07 is a dictionary."""
    policies = {item.value: item for item in _parse_policies(_join_values(fields, "ratelimit-policy"))}
    text = _join_values(fields, "ratelimit")
    states = {item.value: item for item in parse_list(text) or () if _read_count(item, "r") is not None}
    for name in dict.fromkeys([*states, *policies]):
        policy, state = policies.get(name, _NOTHING), states.get(name, _NOTHING)
        unit = policy.parameters.get("qu", "requests")
        dimension = find_dimension(unit.lower()) if isinstance(unit, str) and unit != "concurrent-requests" else None
        limit, remaining = _read_count(policy, "q"), _read_count(state, "r")
        if dimension is not None and (limit, remaining) != (None, None):
            source = "ratelimit" if state is not _NOTHING else "ratelimit-policy"
            yield Reading(
                dimension,
                limit,
                remaining,
                _check_delay(_read_count(state, "t")),
                _read_count(policy, "w") or None,
                source,
            )
    if not states and (older := parse_dictionary(text)):
        limit, remaining, reset = (_read_item_count(older.get(part)) for part in _PARTS)
        if (limit, remaining) != (None, None):
            window = None if limit is None else _find_policy_window(fields, limit)
            yield Reading("requests", limit, remaining, _check_delay(reset), window, "ratelimit")


_NOTHING = StructuredItem("")


def _find_policy_window(fields: Mapping[str, str], limit: float) -> float | None:
    """Return the window of *limit* in ``RateLimit-Policy: 100;w=60, 5000;w=3600``, as drafts up to 07 write it."""
    policies = _parse_policies(_join_values(fields, "ratelimit-policy"))
    return next((_read_count(item, "w") or None for item in policies if item.value == limit), None)


@lru_cache(maxsize=256)
def _parse_policies(text: str) -> tuple[StructuredItem, ...]:
    return tuple(parse_list(text) or ())


def violated_resets(fields: Mapping[str, str], names: Iterable[str]) -> list[float]:
    """Return when the policies called *names* have quota again, as far as ``RateLimit`` states it."""
    states = {item.value: item for item in parse_list(_join_values(fields, "ratelimit")) or ()}
    resets = [_check_delay(_read_count(states[name], "t")) for name in names if name in states]
    return [reset for reset in resets if reset is not None]


def _join_values(fields: Mapping[str, str], name: str) -> str:
    return fields.get(name, "").replace(REPEATED, ",")


def _read_count(item: StructuredItem, parameter: str) -> float | None:
    return _non_negative(item.parameters.get(parameter))


def _read_item_count(item: StructuredItem | None) -> float | None:
    return None if item is None else _non_negative(item.value)


def _non_negative(value: object) -> float | None:
    return value if isinstance(value, float) and value >= 0 else None


def _check_delay(seconds: float | None) -> float | None:
    return None if seconds is None else parse_delay(seconds, wall=0.0)


def _unified_readings(fields: Mapping[str, str], wall: float) -> Iterable[Reading]:
    """Read the windows of a subscription. They state the share that is used, never an amount."""
    labels = {
        name.removeprefix(UNIFIED).rpartition("-")[0]: None
        for name in fields
        if name.startswith(UNIFIED) and name.endswith(("-utilization", "-reset", "-status"))
    }
    for label in labels:
        window = _parse_window(label.partition("_")[0])
        if window is None:
            continue
        at = f"{UNIFIED}{label}-"
        spent = last_valid(fields.get(at + "utilization", ""), parse_number)
        reset = last_valid(fields.get(at + "reset", ""), lambda text: parse_delay(text, wall=wall))
        # A subscription may continue beyond its share as paid usage: while it is allowed, nothing is used up.
        allowed = fields.get(f"{UNIFIED}status", "").strip().lower().startswith("allowed")
        rejected = fields.get(at + "status", "").strip().lower() == "rejected"
        used_up = not allowed and (rejected or (spent is not None and spent >= 1))
        if spent is not None or reset is not None or used_up:
            yield Reading("tokens", None, 0.0 if used_up else None, reset, window, at + "*", spent)


def unified_rejection(fields: Mapping[str, str], readings: Iterable[Reading], wall: float) -> float | None:
    """Return the seconds until a subscription with status ``rejected`` is open again.

    The window is the one that the answer names (the representative claim), else the latest of those used up, else the
    reset given for all.
    """
    resets = {
        reading.source: reading.resets_in
        for reading in readings
        if reading.source.startswith(UNIFIED) and reading.resets_in is not None
    }
    claim = fields.get(UNIFIED + "representative-claim", "").strip().lower()
    for words, label in _CLAIMS.items():
        if claim.startswith(words):
            reset = resets.get(f"{UNIFIED}{label}{claim.removeprefix(words)}-*", resets.get(f"{UNIFIED}{label}-*"))
            if reset is not None:
                return reset
    spent = [
        reading.resets_in
        for reading in readings
        if reading.source.startswith(UNIFIED) and reading.remaining == 0 and reading.resets_in is not None
    ]
    if spent:
        return max(spent)
    return last_valid(fields.get(UNIFIED + "reset", ""), lambda text: parse_delay(text, wall=wall))
