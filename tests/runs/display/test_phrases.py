"""The phrases of the displays."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from agentos.costs import Usage
from agentos.pool.snapshot import CredentialState
from agentos.runs.display.phrases import (
    describe_no_usable_key,
    find_next_available,
    format_clock_time,
    format_closing,
    format_counts,
    format_time_left,
    format_until,
)
from agentos.runs.results import ProgressStats
from agentos.util.durations import format_minutes, format_rough_duration

NOW = 1_763_220_600.0  # a Saturday, 15:30 UTC


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0 s"),
        (0.2, "1 s"),
        (42.0, "42 s"),
        (240.0, "4 min"),
        (7_300.0, "2 h"),
        (9_000.0, "2.5 h"),
        (200_000.0, "2.3 days"),
    ],
)
def test_a_wait_is_told_as_exactly_as_a_person_plans(seconds: float, said: str) -> None:
    assert format_rough_duration(seconds) == said


@pytest.mark.parametrize(
    ("ahead", "said"),
    [(120.0, "15:32"), (40_000.0, "02:36"), (86_400.0, "Sun 15:30"), (8 * 86_400.0, "23 Nov 15:30")],
)
def test_an_hour_has_its_day_where_it_would_mislead_without(ahead: float, said: str) -> None:
    assert format_clock_time(NOW + ahead, NOW) == said


@pytest.mark.parametrize(("ahead", "said"), [(-5.0, ""), (0.0, ""), (42.0, "for 42 s"), (240.0, "until 15:34 (4 min)")])
def test_a_rest_is_told_by_its_end(ahead: float, said: str) -> None:
    assert format_until(NOW + ahead, NOW) == said


@pytest.mark.parametrize(("seconds", "said"), [(-1.0, "0:00"), (14.9, "0:14"), (134.0, "2:14"), (3_734.0, "1:02:14")])
def test_running_times_are_short(seconds: float, said: str) -> None:
    assert format_minutes(seconds) == said


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (None, "time left not known"),
        (float("inf"), "time left not known"),
        (6.4, "about 0:00:06 left, done at 15:30"),
        (303.0, "about 0:05:00 left, done at 15:35"),
        (743.0, "about 0:12:30 left, done at 15:42"),
        (9_999.0, "about 2:47:00 left, done at 18:16"),
    ],
)
def test_the_time_left_is_no_finer_than_anybody_can_know_it(left: float | None, said: str) -> None:
    assert format_time_left(left, NOW) == said


def key(state: str, rests: float = 0.0) -> CredentialState:
    return CredentialState("k", state=state, rate_limited_until=NOW + rests if rests else 0.0)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ([], ""),
        ([key("available"), key("dead")], ""),
        ([key("cooling", 240.0)], ""),
        ([key("dead"), key("dead"), key("spent")], "no usable key left: 2 dead, 1 spent"),
    ],
)
def test_that_no_key_can_be_used_is_said_when_it_is_so(keys: list[CredentialState], said: str) -> None:
    assert describe_no_usable_key(keys) == said


@pytest.mark.parametrize(
    ("keys", "ahead"),
    [
        ([], None),
        ([key("available")], None),
        ([key("cooling", 240.0), key("leased")], None),
        ([key("limited")], None),
        ([key("limited", 2.0), key("cooling", 240.0)], 2.0),
        ([key("cooling", 600.0), key("parked", 240.0), key("dead")], 240.0),
        ([key("dead")], None),
    ],
)
def test_the_next_key_is_known_while_all_rest(keys: list[CredentialState], ahead: float | None) -> None:
    assert find_next_available(keys, NOW) == (None if ahead is None else NOW + ahead)


def test_the_closing_tells_what_became_of_the_items_how_fast_and_what_is_left() -> None:
    stats = ProgressStats(
        total=300, completed=142, failed=4, success_count=138, cached=22, start_time=0.0, end_time=120.0
    )

    assert list(format_closing(stats, "night")) == [
        "night: 138 of 300 done, 4 failed, 22 from an earlier run",
        "took 0:02:00, 60 items/min",
        "left over: 158 not begun",
    ]
    assert list(format_closing(replace(stats, interrupted=3, parked=5, stopped_by="SIGINT")))[2:] == [
        "stopped by SIGINT: 3 interrupted, 5 parked, 150 not begun"
    ]


def test_the_closing_tells_the_tokens_that_were_used() -> None:
    usage = Usage(input=1_200, output=345, cache_read=60_000, cache_write=70, reasoning=300)
    stats = ProgressStats(total=1, completed=1, success_count=1, usage=usage)

    assert list(format_closing(stats))[2] == (
        "used 61,615 tokens: 1,200 in, 345 out (300 reasoning), 60,000 read from cache, 70 written to cache"
    )


def test_what_to_do_about_what_stopped_it_has_lines_of_its_own() -> None:
    stats = ProgressStats(total=4, stopped_by="a key that is not there; export it; or use --ship-secrets")

    assert list(format_closing(stats))[2:] == [
        "stopped by a key that is not there: 4 not begun",
        "  export it",
        "  or use --ship-secrets",
    ]


@pytest.mark.parametrize(
    ("completed", "elapsed", "said"),
    [
        (1_000, 10.0, ", 100 items/s"),
        (50, 10.0, ", 5.0 items/s"),
        (3, 7_200.0, ", 1.5 items/h"),
        (0, 5.0, ""),
        (5, 0.0, ""),
    ],
)
def test_the_speed_is_told_in_a_unit_that_fits(completed: int, elapsed: float, said: str) -> None:
    stats = ProgressStats(
        total=completed, completed=completed, success_count=completed, start_time=0.0, end_time=elapsed
    )

    assert list(format_closing(stats))[1].partition(",")[1:] == tuple(said.partition(",")[1:])


def test_attempts_without_a_result_are_counted_by_what_stopped_them() -> None:
    stats = ProgressStats(10, retried=2, limited=3, rejected=4, unreachable=5)

    assert "".join(text for text, _ in format_counts(stats)) == (
        "done 0, failed 0, retried 2, rate-limited 3, rejected 4, unreachable 5"
    )
    assert next(iter(format_closing(stats))) == (
        "0 of 10 done, 0 failed, 2 retried, 3 rate-limited, 4 rejected, 5 unreachable"
    )


def test_the_summary_says_since_when_the_network_does_not_answer() -> None:
    at = time.mktime((2026, 11, 16, 9, 12, 0, 0, 0, -1))
    stats = ProgressStats(1, unreachable_since=at, unreachable_why="ConnectError: refused")

    assert "no answer from the network since 09:12: ConnectError: refused" in list(format_closing(stats))
