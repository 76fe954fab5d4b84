"""How a run spent its time: standing still, the used share of limits, refused keys."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agentos.pool.snapshot import CredentialState, Headroom
from agentos.runs.report.key_time import KeyClock, KeyTime, RefusedKey, read_key_time

NOW = 1_763_220_600.0


def key(name: str, state: str = "available", rests: float = 0.0, **more: Any) -> CredentialState:
    return CredentialState(name, state=state, rate_limited_until=NOW + rests if rests else 0.0, **more)


def spent(rows: list[CredentialState], seconds: float = 10.0, *, offline: bool = False) -> KeyTime:
    clock = KeyClock()
    clock.add(rows, seconds, NOW, offline=offline)
    return clock.read()


def test_a_run_stands_still_while_all_keys_cool_down_and_none_is_in_use() -> None:
    rows = [key("a", "cooling", 60), key("b", "parked", 6_000), key("c", "dead")]

    assert (spent(rows).still, spent(rows).keys) == ({"cooling": 10.0}, 2)


@pytest.mark.parametrize(
    "other",
    [
        key("b"),
        key("b", "leased", leases=1),
        key("b", "cooling", 60, leases=1),
        key("b", "limited", 3),  # it keeps to its limit, as it should
    ],
)
def test_it_does_not_while_a_key_can_be_used_or_is_in_use(other: CredentialState) -> None:
    assert spent([key("a", "cooling", 60), other]).still == {}


def test_a_key_that_waits_long_for_its_limit_rests() -> None:
    assert spent([key("a", "limited", 60)]).still == {"cooling": 10.0}


def test_the_time_after_the_end_of_the_shortest_cooldown_does_not_count() -> None:
    assert spent([key("a", "cooling", 4), key("b", "cooling", 60)]).still == {"cooling": 4.0}


def test_while_the_network_does_not_answer_that_is_the_reason() -> None:
    assert spent([key("a", "cooling", 60)], offline=True).still == {"network": 10.0}


def test_the_time_of_each_key_is_told_apart() -> None:
    assert spent([key("a", "cooling", 4), key("b")]).cooling == {"a": 4.0}


def limited(left: float, **more: Any) -> list[CredentialState]:
    return [key("a", limits=(Headroom("requests", 120.0, left, None, False, **more),))]


def test_the_used_share_is_what_was_used_of_what_the_limit_allowed() -> None:
    clock = KeyClock()
    clock.observe(limited(120.0), 0.0, NOW)
    clock.observe(limited(0.0), 30.0, NOW)  # the burst, without a refill: it was full
    clock.observe(limited(10.0), 60.0, NOW)

    found = clock.read()

    assert (found.used, found.allowed) == ({"requests": 170.0}, {"requests": 240.0})
    assert found.used_share == pytest.approx(170 / 240)


@pytest.mark.parametrize("more", [{"per": "day"}, {"window": "sliding"}, {"learned": True}])
def test_limits_of_which_rate_or_refill_are_not_known_have_no_share(more: dict[str, Any]) -> None:
    clock = KeyClock()
    clock.observe(limited(120.0, **more), 0.0, NOW)

    assert clock.read().used_share is None


def test_a_full_limit_that_nobody_uses_is_not_used() -> None:
    clock = KeyClock()
    for second in range(0, 600, 60):
        clock.observe(limited(120.0), float(second), NOW)

    assert clock.read().used_share == 0.0


def test_keys_that_die_during_the_run_have_a_time_and_those_before_have_none() -> None:
    clock = KeyClock()
    clock.observe([key("a", "dead", why="status 401"), key("b")], 0.0, NOW)
    clock.observe([key("a", "dead", why="status 401"), key("b", "spent", why="status 402")], 1.0, NOW + 1)
    clock.observe([key("a", "dead", why="status 401"), key("b", "spent", why="status 402")], 2.0, NOW + 2)

    assert clock.read().refused == (
        RefusedKey("a", "dead", "status 401", None),
        RefusedKey("b", "spent", "status 402", NOW + 1),
    )


def test_it_is_described_for_people() -> None:
    at = time.mktime((2026, 11, 16, 3, 12, 0, 0, 0, -1))
    found = KeyTime(
        ran=87.0,
        still={"cooling": 52.0, "network": 0.4},
        keys=3,
        used={"requests": 96.0, "tokens": 5.0},
        allowed={"requests": 100.0, "tokens": 100.0},
        refused=(
            RefusedKey("openai-2", "dead", "body error.code: invalid_api_key; status 401", at),
            RefusedKey("acme", "spent", "body error.type: insufficient_quota; status 429", None),
            RefusedKey("mine", "dead", "the vault says no", at),
        ),
    )

    assert list(found.describe()) == [
        "key openai-2: rejected (401 invalid_api_key) at 03:12",
        "key acme: no money left (429 insufficient_quota) before this start",
        "key mine: rejected (the vault says no) at 03:12",
        "stood still 52 s of 87 s: all 3 keys cooling down",
        "96 % of the limit used",
    ]


def test_nothing_is_said_about_a_short_run_without_trouble() -> None:
    assert list(KeyTime(ran=3.0, used={"requests": 1.0}, allowed={"requests": 2.0}).describe()) == []


def test_the_event_log_keeps_it_and_sessions_add_up() -> None:
    refused = (RefusedKey("a", "dead", "status 401", NOW),)
    first = KeyTime(87.0, {"cooling": 52.0}, 3, {"a": 60.0}, {"requests": 5.0}, {"requests": 10.0}, refused)
    second = KeyTime(13.0, {"cooling": 8.0}, 2, {"a": 1.0}, {"requests": 1.0}, {"requests": 2.0}, (), NOW, "refused")
    events = [
        {"kind": "session"},
        {"kind": "waiting", "session": 1.0, **first.as_json()},
        {"kind": "session"},
        {"kind": "waiting", "session": 2.0, **KeyTime(1.0).as_json()},
        {"kind": "waiting", "session": 2.0, **second.as_json()},
    ]

    assert read_key_time(events[:2]) == first
    total = read_key_time(events)
    assert (total.ran, total.still, total.keys) == (100.0, {"cooling": 60.0}, 3)
    assert (total.refused, total.unreachable_since, total.unreachable_why) == ((), NOW, "refused")


@pytest.mark.parametrize(
    "event",
    [
        {"ran": "x", "still": [], "keys": None, "refused": [7, {"name": 1}]},
        {"ran": float("nan"), "still": {"cooling": "y"}, "refused": "a"},
    ],
)
def test_an_edited_event_log_does_not_break_it(event: dict[str, Any]) -> None:
    found = read_key_time([{"kind": "waiting", "session": 1.0, **event}])

    assert (found.ran, found.refused) == (0.0, ())
