"""The rate of a run, and the phrase for what bounds it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from agentos.pool.snapshot import CredentialState, Headroom
from agentos.runs.display.speed import SpeedMeter, WorkerCounts, find_bound
from agentos.runs.results import ProgressStats

NOW = 1_763_220_600.0  # 15:30 UTC


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def stats(completed: int = 10, total: int | None = 100, cached: int = 0) -> ProgressStats:
    return ProgressStats(total=total, completed=completed, success_count=completed, cached=cached, start_time=0.0)


def key(
    state: str, rests: float = 0.0, *, slots: int = 1, leases: int = 0, left: float | None = None
) -> CredentialState:
    limits = () if left is None else (Headroom("requests", 120.0, left, None, False),)
    until = NOW + rests if rests else 0.0
    return CredentialState(
        "k", state=state, rate_limited_until=until, slots=slots, leases=leases, limits=limits, in_use=leases > 0
    )


LEASED = key("leased", leases=1)
LIMITED = key("limited", 1.0)
COOLING = key("cooling", 20.0)


@pytest.mark.parametrize(
    ("keys", "workers", "said"),
    [
        ([LIMITED] * 3, WorkerCounts(60, 0, 60), "key limits (3 keys at their limit)"),
        ([LIMITED], WorkerCounts(60, 0, 60), "key limits (1 key at its limit)"),
        ([LIMITED, LIMITED, COOLING], WorkerCounts(60, 0, 60), "key limits (2 of 3 keys at their limit)"),
        ([LIMITED, LIMITED, LEASED], WorkerCounts(60, 1, 59), "key limits (2 of 3 keys at their limit)"),
        ([key("leased", leases=1, left=0.4)] * 2, WorkerCounts(9, 2, 7), "key limits (2 keys at their limit)"),
        ([key("available", left=90.0)], WorkerCounts(9, 0, 9), "key limits (1 key at its limit)"),
        ([LEASED] * 3, WorkerCounts(60, 3, 57), "slots (3 keys x 1 slot)"),
        ([LEASED], WorkerCounts(60, 1, 59), "slots (1 key x 1 slot)"),
        ([key("leased", slots=4, leases=4)] * 2, WorkerCounts(60, 8, 52), "slots (2 keys x 4 slots)"),
        ([LEASED, key("leased", slots=4, leases=4)], WorkerCounts(9, 5, 4), "slots (2 keys, 5 slots in all)"),
        ([LEASED, LEASED, COOLING], WorkerCounts(60, 2, 58), "slots (2 of 3 keys x 1 slot)"),
        ([COOLING, COOLING, LEASED], WorkerCounts(60, 1, 59), "cooldowns (2 of 3 keys)"),
        ([COOLING] * 3, WorkerCounts(6, 0, 6), "cooldowns (all 3 keys; next at 15:30, in 20 s)"),
        ([key("parked", 240.0)], WorkerCounts(6, 0, 6), "cooldowns (the only key; next at 15:34, in 4 min)"),
        ([key("cooling", 2.0)] * 2, WorkerCounts(6, 0, 6), "cooldowns (all 2 keys)"),
        ([key("limited", 3_600.0)] * 2, WorkerCounts(6, 0, 6), "key limits (all 2 keys; next at 16:30, in 60 min)"),
        ([LEASED] * 8, WorkerCounts(8, 8, 0), "-j 8 (all workers busy)"),
        ([key("leased", slots=4, leases=4)], WorkerCounts(4, 4, 0), "-j 4 (all workers busy)"),
        ([], WorkerCounts(3, 3, 0), "-j 3 (all workers busy)"),
        ([], WorkerCounts(3, 1, 2), "keys (workers that wait for one: 2)"),
        # Workers that lease each call for themselves hold no lease while they wait for one.
        ([LEASED] * 3, WorkerCounts(60, 60, 0), "slots (3 keys x 1 slot)"),
        ([LIMITED] * 3, WorkerCounts(60, 60, 0), "key limits (3 keys at their limit)"),
        # A display that is not told of the workers still knows the keys.
        ([LIMITED] * 3, WorkerCounts(), "key limits (3 keys at their limit)"),
    ],
)
def test_what_bounds_the_speed_is_one_short_phrase(
    keys: list[CredentialState], workers: WorkerCounts, said: str
) -> None:
    bound = find_bound(stats(), keys, workers, NOW)

    assert bound is not None
    assert bound.text == said


def test_an_input_that_brings_nothing_bounds_the_speed() -> None:
    bound = find_bound(stats(total=None), [key("available")], WorkerCounts(8, 2, 0), NOW)

    assert bound is not None
    assert bound.text == "the input (workers wait for items)"


@pytest.mark.parametrize(("left", "said"), [(1, "the last item"), (3, "the last 3 items")])
def test_at_the_end_the_last_items_bound_the_speed(left: int, said: str) -> None:
    bound = find_bound(stats(100 - left), [LEASED] * 3, WorkerCounts(3, 3, 0), NOW)

    assert bound is not None
    assert bound.text == f"{said} (nothing else is left to start)"


@pytest.mark.parametrize(
    ("keys", "workers"),
    [
        ([key("dead")], WorkerCounts(8, 0, 8)),
        ([key("available")], WorkerCounts(8, 2, 0)),
        ([], WorkerCounts()),
    ],
)
def test_nothing_is_said_where_nothing_is_known(keys: list[CredentialState], workers: WorkerCounts) -> None:
    assert find_bound(stats(), keys, workers, NOW) is None


def test_the_usual_bound_of_the_last_seconds_is_shown() -> None:
    meter = SpeedMeter()
    at_limit, busy = ([LIMITED] * 3, WorkerCounts(9, 0, 9)), ([key("available")] * 3, WorkerCounts(9, 9, 0))

    for step in range(40):
        keys, workers = busy if step % 4 == 3 else at_limit
        meter.observe(stats(), keys, workers, NOW + step / 4)

    assert meter.describe(stats(), NOW + 10) == ["bound by: key limits (3 keys at their limit)"]
    for step in range(40):
        meter.observe(stats(), *busy, NOW + 10 + step / 4)
    assert meter.describe(stats(), NOW + 20) == ["bound by: -j 9 (all workers busy)"]


def test_that_all_keys_cool_down_is_shown_at_once_and_no_longer_than_it_is_so() -> None:
    meter = SpeedMeter()
    for second in range(10):
        meter.observe(stats(), [LEASED], WorkerCounts(1, 1, 0), NOW + second)

    meter.observe(stats(), [key("cooling", 30.0)], WorkerCounts(1, 0, 1), NOW + 10)
    assert meter.describe(stats(20), NOW + 10) == [
        "standing still",
        "bound by: cooldowns (the only key; next at 15:30, in 20 s)",
    ]
    meter.observe(stats(), [key("cooling", 30.0)], WorkerCounts(4, 1, 3), NOW + 10.5)
    assert meter.describe(stats(20), NOW + 10.5)[0] == "57 items/min", "an item still runs"
    meter.observe(stats(), [LEASED], WorkerCounts(1, 1, 0), NOW + 11)
    assert meter.describe(stats(), NOW + 11) == ["bound by: -j 1 (all workers busy)"]


def test_the_rate_is_that_of_the_last_half_minute() -> None:
    meter = SpeedMeter()
    for second in range(121):
        done = second * 10 if second < 60 else 600 + (second - 60)
        meter.observe(stats(done, None), [], WorkerCounts(), NOW + second)

    assert meter.describe(stats(660, None), NOW + 120) == ["60 items/min"]


def test_the_rate_of_slow_items_is_measured_over_more_of_them() -> None:
    meter = SpeedMeter()
    for minute in range(31):
        meter.observe(stats(minute, None), [], WorkerCounts(), NOW + 60 * minute)

    assert meter.describe(stats(30, None), NOW + 1_800) == ["60 items/h"]


def test_items_of_an_earlier_run_make_no_rate() -> None:
    meter = SpeedMeter()
    meter.observe(stats(50, cached=50), [], WorkerCounts(), NOW)

    assert meter.describe(stats(50, cached=50), NOW + 10) == []
    assert meter.describe(stats(80, cached=50), NOW + 10) == ["3.0 items/s"]


def test_a_clock_that_is_set_back_begins_anew() -> None:
    meter = SpeedMeter()
    meter.observe(stats(10), [LEASED], WorkerCounts(1, 1), NOW)
    meter.observe(stats(20), [LEASED], WorkerCounts(1, 1), NOW - 3_600)

    assert meter.describe(stats(25), NOW - 3_590) == ["30 items/min", "bound by: -j 1 (all workers busy)"]
