"""The store's time runs on when a clock is set, and one process corrects the shift."""

from __future__ import annotations

from typing import Any

import pytest

from agentos.stores.redis import server_time as timekeeping
from agentos.stores.redis.metadata import FORMAT, StoreMetadata
from agentos.stores.redis.server_time import ServerTime, ServerTimeReading
from agentos.stores.redis.store_clock import StoreClock
from agentos.stores.redis.store_connection import StoreConnection
from agentos.util.clock import SystemClock

TTL = 30.0
AHEAD = 1000.0  # by so much the server's clock is ahead of ours
META = StoreMetadata("v1", FORMAT, "ab", "epoch-1", "", "run-1", longest=TTL)


class Server:
    """The part of a StoreConnection that StoreClock uses: expiries of sessions, and changes of the metadata."""

    server_time = ServerTime(SystemClock())
    limit = 0.25

    def __init__(self) -> None:
        self.handshake = self
        self.connection = None
        self.meta = META
        self.ends_at: dict[str, float] = {}

    def read_session_expiries(self, _wire: Any) -> dict[str, float]:
        return self.ends_at

    def amend(self, _wire: Any, new: StoreMetadata, old: StoreMetadata) -> bool:
        if self.meta.version != old.version:
            return False
        self.meta = new
        return True


def at(local: float, jump: float = 0.0) -> ServerTimeReading:
    """The server's hour at an instant of ours, after its clock was set by so much."""
    return ServerTimeReading(local - 0.001, local + 0.001, local + AHEAD + jump)


@pytest.fixture
def server() -> Server:
    return Server()


def come(server: Server, jump: float = 0.0, local: float = 100.0) -> StoreClock:
    clock = StoreClock(as_link(server), TTL, lambda: {"other.1": TTL})
    clock.adopt_store(server.meta, at(local, jump))
    return clock


def as_link(server: Any) -> StoreConnection:
    found: StoreConnection = server
    return found


def store_time(clock: StoreClock, local: float) -> float:
    return clock.clock_offset.to_store(local)


@pytest.mark.parametrize("jump", [120.0, -3600.0])
def test_when_the_servers_clock_is_set_the_stores_time_runs_on_and_grants_pause(server: Server, jump: float) -> None:
    clock = come(server)

    assert clock.apply_reading(at(200.0, jump), alive=True)

    assert store_time(clock, 200.0) == pytest.approx(200.0 + AHEAD)
    assert server.meta.shift == pytest.approx(-jump, abs=0.01)
    assert clock.grants_paused_until() == pytest.approx(200.0 + TTL, abs=0.01)
    assert f"clock was set {'forward' if jump > 0 else 'back'} by {abs(jump):.1f} s" in server.meta.why


def test_the_second_process_to_notice_finds_the_clock_corrected(server: Server) -> None:
    first, second = come(server), come(server)
    first.apply_reading(at(200.0, 120.0), alive=True)
    put_right = server.meta

    assert second.apply_reading(at(201.0, 120.0), alive=True)
    assert second.meta_is_old
    assert second.apply_metadata(server.meta, at(202.0, 120.0), alive=True, newcomer=False)

    assert server.meta is put_right
    assert store_time(second, 202.0) == pytest.approx(202.0 + AHEAD, abs=0.01)


def test_a_newcomer_adopts_a_later_correction_of_the_clock(server: Server) -> None:
    old, fresh = come(server), come(server, jump=120.0, local=190.0)
    old.apply_reading(at(200.0, 120.0), alive=True)
    put_right = server.meta

    assert not fresh.apply_metadata(server.meta, at(201.0, 120.0), alive=True, newcomer=True)

    assert server.meta is put_right
    assert store_time(fresh, 201.0) == pytest.approx(201.0 + AHEAD, abs=0.01)


def test_two_clocks_that_are_set_one_after_the_other_are_both_put_right(server: Server) -> None:
    clock = come(server)
    clock.apply_reading(at(200.0, 120.0), alive=True)

    clock.apply_reading(at(300.0, 60.0), alive=True)

    assert store_time(clock, 300.0) == pytest.approx(300.0 + AHEAD, abs=0.01)
    assert server.meta.shift == pytest.approx(-60.0, abs=0.01)


@pytest.mark.parametrize(("first", "second"), [(-3600, 3600), (3600, -3600), (-100, -100), (100, 100), (50, 70)])
def test_a_clock_that_is_set_twice_in_a_short_time_is_corrected(server: Server, first: float, second: float) -> None:
    one, two = come(server), come(server)
    one.apply_reading(at(200.0, first), alive=True)

    assert two.apply_metadata(server.meta, at(201.0, first + second), alive=True, newcomer=False)
    assert one.apply_metadata(server.meta, at(202.0, first + second), alive=True, newcomer=False)

    for clock in (one, two):
        assert store_time(clock, 202.0) == pytest.approx(202.0 + AHEAD, abs=0.02)
        assert clock.grants_paused_until() == pytest.approx(201.0 + TTL, abs=1.1)
    assert server.meta.shift == pytest.approx(-first - second, abs=0.02)


def test_a_process_that_lost_time_adopts_the_correction_of_others(server: Server) -> None:
    """Its machine stood still without its knowing."""
    still, steady = come(server), come(server)
    still.apply_reading(at(200.0, 3.0), alive=True)

    assert steady.apply_metadata(server.meta, at(204.0), alive=True, newcomer=False)
    assert not still.apply_metadata(server.meta, at(201.0, 3.0), alive=True, newcomer=False)

    assert server.meta.shift == pytest.approx(0.0, abs=0.02)
    assert store_time(still, 201.0) == pytest.approx(204.0 + AHEAD, abs=0.02)
    assert store_time(steady, 204.0) == pytest.approx(204.0 + AHEAD, abs=0.02)


def test_a_process_detects_its_suspension_by_renewals_of_others(server: Server) -> None:
    clock = come(server)
    server.ends_at = {"other.1": 202.5 + AHEAD + TTL}

    assert not clock.apply_reading(at(200.0, 3.0), alive=True)

    assert server.meta is META
    assert store_time(clock, 200.0) == pytest.approx(203.0 + AHEAD)


def test_a_newcomer_after_a_clock_change_does_not_correct_it(server: Server) -> None:
    clock = come(server)
    server.ends_at = {"other.1": 190.0 + AHEAD + TTL, "fresh.1": 320.0 + AHEAD + TTL}

    assert clock.apply_reading(at(200.0, 120.0), alive=True)

    assert server.meta.shift == pytest.approx(-120.0, abs=0.01)


def test_grants_pause_for_the_longest_ttl_of_the_present_processes(server: Server) -> None:
    server.meta = META.changed(longest=300.0)
    clock = come(server)

    clock.apply_reading(at(200.0, 120.0), alive=True)

    assert clock.grants_paused_until() == pytest.approx(500.0, abs=0.01)


def test_the_settling_time_follows_the_longest_ttl(server: Server) -> None:
    server.meta = META.changed(longest=300.0)

    assert come(server).settling_time() == pytest.approx(101.0)


def test_what_is_no_more_than_drift_moves_the_stores_time_a_little(server: Server) -> None:
    clock = come(server)

    assert clock.apply_reading(at(200.0, 0.25), alive=True)

    assert server.meta is META
    assert store_time(clock, 200.0) == pytest.approx(200.25 + AHEAD, abs=0.002)


def test_who_has_no_session_believes_the_server(server: Server) -> None:
    clock = come(server)

    assert not clock.apply_reading(at(200.0, 120.0), alive=False)

    assert server.meta is META
    assert store_time(clock, 200.0) == pytest.approx(200.0 + AHEAD + 120.0)


def test_who_was_asleep_believes_the_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timekeeping, "read_suspend_time", lambda: 5.0)
    clock = come(server)
    monkeypatch.setattr(timekeeping, "read_suspend_time", lambda: 125.0)

    assert not clock.apply_reading(at(200.0, 120.0), alive=True)

    assert server.meta is META


def test_what_is_sent_counts_while_the_server_may_still_be_waited_for(server: Server) -> None:
    earliest, latest = map(float, come(server).find_time_bounds(200.0))

    assert earliest == pytest.approx(200.0 + AHEAD - 0.5)
    assert latest == pytest.approx(200.0 + AHEAD + 0.5 + 0.25)
