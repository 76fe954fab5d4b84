"""The estimate of the server's clock."""

from __future__ import annotations

from typing import Any, cast

import pytest

from agentos.stores.redis.server_time import ServerTimeReading, clock_tolerance, server_time_for
from agentos.testing import FakeClock
from agentos.util.clock import SystemClock

AHEAD = 1000.0  # by so much the server's clock is taken to be ahead of ours


def test_the_server_time_is_assumed_half_way_between_sending_and_receiving() -> None:
    assert ServerTimeReading(99.0, 101.0, 1100.0).ahead() == 1000.0


@pytest.mark.parametrize("hour", [1200.0, 1200.5, 1201.0])
def test_an_estimate_that_may_be_right_is_kept(hour: float) -> None:
    assert ServerTimeReading(200.0, 201.0, hour).nearest(AHEAD) == AHEAD


@pytest.mark.parametrize(("hour", "ahead"), [(1199.75, 999.75), (1201.25, 1000.25), (-2400.0, -2600.0)])
def test_an_estimate_that_cannot_be_right_is_moved_as_little_as_may_be(hour: float, ahead: float) -> None:
    assert ServerTimeReading(200.0, 201.0, hour).nearest(AHEAD) == ahead


def test_a_process_that_stood_still_between_asking_and_hearing_takes_that_for_no_jump() -> None:
    assert ServerTimeReading(200.0, 900.0, 1850.0).nearest(AHEAD) == AHEAD


@pytest.mark.parametrize(("ttl", "seconds"), [(1.0, 0.05), (30.0, 0.5), (3600.0, 0.5)])
def test_a_short_time_to_live_bears_little(ttl: float, seconds: float) -> None:
    assert clock_tolerance(ttl) == seconds


class Wire:
    """A connection whose server answers every question with this time."""

    def execute(self, *_words: str) -> list[bytes]:
        return [b"1700000000", b"250000"]


def test_the_machines_clock_leaves_the_server_its_own_time() -> None:
    time = server_time_for(SystemClock())

    assert time.read(cast("Any", Wire())).time == 1_700_000_000.25
    assert time.imposed(7.0) == ""
    assert time.received(7.0, 9.0).time == 9.0
    assert time.answered_at(7.0) == 7.0
    assert (time.uptime(10.0), time.uptime(0.0)) == (9.0, 0.0)
    assert time.settling_time(4.0) == 4.0


def test_a_driven_clock_is_the_servers_time_too() -> None:
    clock = FakeClock(now=50.0)
    time = server_time_for(clock)

    assert time.read(cast("Any", Wire())) == ServerTimeReading(50.0, 50.0, 50.0)
    assert float(time.imposed(7.1)) == 7.1
    assert time.received(7.0, 9.0) == ServerTimeReading(7.0, 7.0, 7.0)
    assert time.answered_at(7.0) < 7.0
    assert time.uptime(0.0) > 1e9
    assert time.settling_time(4.0) == time.suspend_time() == 0.0
