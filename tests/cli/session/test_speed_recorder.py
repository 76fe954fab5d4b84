"""What bounds a run is recorded second by second, by the word for it, with the time that workers were idle."""

from __future__ import annotations

from typing import Any

import pytest

from agentos.cli.session.speed_recorder import SpeedFacts, SpeedRecorder, classify
from agentos.pool.snapshot import CredentialState
from agentos.runs.display.speed import WorkerCounts
from agentos.runs.report.speed_bounds import BOUNDS, read_speed_bounds
from agentos.runs.results import ProgressStats
from agentos.testing import FakeClock

from ...logged_messages import said_here

MANY = ProgressStats(total=1_000, completed=10)


def facts(running: int, waiting: int = 0, *keys: CredentialState, **more: Any) -> SpeedFacts:
    return SpeedFacts(more.pop("stats", MANY), keys, WorkerCounts(8, running, waiting), **more)


def key(name: str, state: str, leases: int = 0) -> CredentialState:
    return CredentialState(name, state=state, leases=leases, rate_limited_until=4e9 if state == "cooling" else 0.0)


class Written(list[dict[str, Any]]):
    def __call__(self, kind: str, /, **more: Any) -> None:
        self.append({"kind": kind, **more})


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.mark.parametrize(
    ("given", "word", "keys"),
    [
        (facts(8), "workers", []),
        (facts(2, 6, key("a", "leased", 2)), "slots", []),
        (facts(0, 8, key("a", "cooling"), key("b", "cooling")), "quota", ["a", "b"]),
        (facts(1, 7, key("a", "cooling"), key("b", "leased", 1)), "quota", ["a"]),
        (facts(0, 8, key("a", "cooling"), key("b", "dead")), "quota", ["a"]),
        (facts(2, stats=ProgressStats(total=None)), "input", []),
        (facts(2, stats=ProgressStats(total=10, completed=8)), "end", []),
        (facts(2, held=True), "disk", []),
        (facts(2, offline=True), "network", []),
        (facts(2, on_cluster=True), "cluster", []),
        (facts(2), "unknown", []),
    ],
)
def test_each_bound_has_its_word(given: SpeedFacts, word: str, keys: list[str]) -> None:
    assert classify(given, 1e9) == (word, keys)
    assert word in BOUNDS


def test_seconds_and_idle_workers_add_up_by_what_bounded_the_run(clock: FakeClock) -> None:
    written, now = Written(), facts(8)
    recorder = SpeedRecorder(lambda: now, written, clock=clock)

    for given in [facts(8)] * 3 + [facts(2, 6, key("a", "cooling"))] * 2 + [facts(8)]:
        now = given
        clock.advance(1.0)
        recorder.sample()
    recorder.close()

    bounds = read_speed_bounds(written)
    assert bounds.by == {"workers": 4.0, "quota": 2.0}
    assert bounds.lost == {"quota": 1.5}  # six of eight workers, for two seconds
    assert bounds.keys == {"a": 2.0}
    periods = [(set(each.by), each.until - each.since) for each in bounds.periods]
    assert periods == [({"workers"}, 3.0), ({"quota"}, 2.0), ({"workers"}, 1.0)]
    assert [each.running for each in bounds.periods] == [8.0, 2.0, 8.0]


def test_a_long_run_is_recorded_in_longer_periods(clock: FakeClock) -> None:
    written, now = Written(), facts(8)
    recorder = SpeedRecorder(lambda: now, written, clock=clock)

    for second in range(2 * 3_600):
        now = facts(8) if second % 2 else facts(2, 6, key("a", "cooling"))
        clock.advance(1.0)
        recorder.sample()
    recorder.close()

    assert len(written) < 1_500
    assert read_speed_bounds(written).by == {"workers": 3_600.0, "quota": 3_600.0}


def test_nothing_is_recorded_before_the_run_begins(clock: FakeClock) -> None:
    written = Written()
    recorder = SpeedRecorder(lambda: None, written, clock=clock)

    clock.advance(1.0)
    recorder.close()

    assert written == []


def test_an_error_is_logged_once_and_the_recorder_goes_on(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> SpeedFacts:
        raise ValueError("no facts")

    recorder = SpeedRecorder(broken, Written(), clock=clock)
    for _ in range(3):
        clock.advance(1.0)
        recorder.sample()
    recorder.close()

    assert len(said_here(caplog)) == 1


def test_edited_records_are_skipped() -> None:
    good: dict[str, Any] = {
        "kind": "bound",
        "since": 1.0,
        "until": 3.0,
        "by": {"workers": 2.0, "moon": 1.0},
        "idle": "x",
        "parallel": 2,
    }
    edited: list[dict[str, Any]] = [
        {**good, "since": "x"},
        {**good, "until": 0.5},
        {"kind": "bound"},
        {"kind": "key"},
        good,
    ]

    bounds = read_speed_bounds(edited)

    assert bounds.by == {"workers": 2.0}
    assert bounds.lost == {}
