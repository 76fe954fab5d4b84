"""The key monitor: states, changes, lost time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from agentos import CredentialCoordinator
from agentos.cli.session.key_monitor import KeyMonitor
from agentos.pool.snapshot import CredentialState
from agentos.testing import FakeClock

from ...logged_messages import said_here


class Pool:
    def __init__(self, *keys: CredentialState) -> None:
        self.keys: Sequence[CredentialState] = keys
        self.error: Exception | None = None
        self.looks = 0
        self.looked = threading.Event()

    def snapshot(self) -> Sequence[CredentialState]:
        self.looks += 1
        self.looked.set()
        if self.error is not None:
            raise self.error
        return list(self.keys)


class Events(list[tuple[str, str, float | None, str]]):
    def __call__(self, *event: object) -> None:
        self.append(event)  # type: ignore[arg-type]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def events() -> Events:
    return Events()


def key(clock: FakeClock, name: str, state: str = "available", rests: float = 0.0, why: str = "") -> CredentialState:
    until = clock.wall() + rests if rests else 0.0
    return CredentialState(name, state=state, rate_limited_until=until, why=why)


# -- time lost ------------------------------------------------------------------------------------------------


def test_lost_time_is_divided_among_the_keys_that_cool_down(clock: FakeClock) -> None:
    pool = Pool(
        key(clock, "a", "cooling", 60), key(clock, "b", "parked", 6000), key(clock, "c", "dead"), key(clock, "d")
    )
    watch = KeyMonitor(pool, idle=lambda: 4, clock=clock)

    watch.refresh()
    clock.advance(3.0)
    watch.refresh()

    assert watch.totals() == (12.0, {"a": 6.0, "b": 6.0})


def test_lost_time_while_no_key_cools_down_counts_for_busy_keys(clock: FakeClock) -> None:
    watch = KeyMonitor(Pool(key(clock, "a", "leased")), idle=lambda: 2, clock=clock)

    watch.refresh()
    clock.advance(5.0)
    watch.refresh()

    assert watch.totals() == (10.0, {"": 10.0})


def test_no_time_is_lost_while_no_worker_waits(clock: FakeClock) -> None:
    waiting = [0]
    watch = KeyMonitor(Pool(key(clock, "a", "limited", 60)), idle=lambda: waiting[0], clock=clock)

    watch.refresh()
    clock.advance(100.0)
    waiting[0] = 1
    watch.refresh()
    clock.advance(2.0)
    waiting[0] = -1
    watch.refresh()
    clock.advance(50.0)
    watch.refresh()

    assert watch.totals() == (2.0, {"a": 2.0})


# -- changes --------------------------------------------------------------------------------------------------


def test_each_change_of_a_key_is_reported_once(clock: FakeClock, events: Events) -> None:
    pool = Pool(key(clock, "a"), key(clock, "b", "dead", why="401"))
    watch = KeyMonitor(pool, on_change=events, clock=clock)
    watch.refresh()
    until = clock.wall() + 60.0

    pool.keys = [key(clock, "a", "cooling", 60, "429"), pool.keys[1]]
    watch.refresh()
    watch.refresh()
    pool.keys = [key(clock, "a", "leased"), pool.keys[1]]
    watch.refresh()

    assert events == [("b", "dead", None, "401"), ("a", "cooling", until, "429"), ("a", "available", None, "")]


def test_the_ordinary_course_of_things_is_no_change(clock: FakeClock, events: Events) -> None:
    pool = Pool()
    watch = KeyMonitor(pool, on_change=events, clock=clock)

    for state, rests in [("available", 0), ("leased", 0), ("limited", 3), ("limited", 0), ("available", 0)]:
        pool.keys = [key(clock, "a", state, rests)]
        watch.refresh()

    assert events == []


def test_a_much_longer_cooldown_is_reported(clock: FakeClock, events: Events) -> None:
    pool = Pool(key(clock, "a", "cooling", 60, "first"))
    watch = KeyMonitor(pool, on_change=events, clock=clock)
    watch.refresh()

    for rests in (61, 59, 300):
        pool.keys = [key(clock, "a", "cooling", rests, f"{rests}")]
        watch.refresh()

    assert [why for *_, why in events] == ["first", "300"]


def test_a_long_limit_is_reported(clock: FakeClock, events: Events) -> None:
    watch = KeyMonitor(Pool(key(clock, "a", "limited", 5_000, "a day's requests")), on_change=events, clock=clock)

    watch.refresh()

    assert events == [("a", "limited", clock.wall() + 5_000, "a day's requests")]


# -- troubles -------------------------------------------------------------------------------------------------


def test_a_snapshot_that_fails_leaves_the_last_rows_and_is_logged_once(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool(key(clock, "a", "cooling", 60))
    watch = KeyMonitor(pool, idle=lambda: 1, clock=clock)
    watch.refresh()
    rows = watch.rows()
    pool.error = OSError("database is locked")

    for _ in range(3):
        clock.advance(1.0)
        watch.refresh()

    assert watch.rows() == rows
    assert watch.totals() == (3.0, {"a": 3.0})
    assert said_here(caplog) == ["the snapshot of the keys failed (logged once): OSError: database is locked"]


def test_a_callback_that_raised_is_called_for_the_next_change(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def fails(name: str, *_: object) -> None:
        told.append(name)
        raise OSError(28, "No space left on device")

    KeyMonitor(Pool(key(clock, "a", "dead"), key(clock, "b", "dead")), on_change=fails, clock=clock).refresh()

    assert told == ["a", "b"]
    assert len(said_here(caplog)) == 1


# -- the thread -----------------------------------------------------------------------------------------------


@pytest.fixture
def watching(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[KeyMonitor, Pool]]:
    monkeypatch.setattr(
        "agentos.cli.session.key_monitor._CLOSE_TIMEOUT", 60.0
    )  # its end is to be seen, however busy the machine is
    pool = Pool(key(clock, "a", "cooling", 60))
    watch = KeyMonitor(pool, idle=lambda: 1, clock=clock)
    watch.start()
    yield watch, pool
    watch.close()


def test_it_looks_at_once_every_second_and_at_the_end(watching: tuple[KeyMonitor, Pool], clock: FakeClock) -> None:
    watch, pool = watching
    assert [row.name for row in watch.rows()] == ["a"]

    for looks in (1, 2, 3):
        clock.wait_for_sleepers(1)
        assert pool.looks == looks
        clock.advance(1.0)
    clock.wait_for_sleepers(1)
    watch.close()
    watch.close()

    assert pool.looks == 5
    assert watch.totals()[0] == 3.0
    assert not any(thread.name == "agentos-keys" for thread in threading.enumerate())


def test_a_poke_makes_it_look_now(watching: tuple[KeyMonitor, Pool], clock: FakeClock) -> None:
    watch, pool = watching
    clock.wait_for_sleepers(1)
    pool.looked.clear()

    watch.wake()
    watch.wake()

    assert pool.looked.wait(20.0)


def test_a_real_pool_is_watched(clock: FakeClock, events: Events) -> None:
    pool = CredentialCoordinator(["secret-number-one"], clock=clock)
    watch = KeyMonitor(pool, on_change=events, clock=clock)
    watch.refresh()

    pool.mark_rate_limited("secret-number-one", 60.0)
    watch.refresh()
    clock.advance(61.0)
    watch.refresh()

    assert [(state, until) for _, state, until, _ in events] == [
        ("cooling", pytest.approx(clock.wall() - 1.0)),
        ("available", None),
    ]
    assert "secret" not in repr(events)


def test_it_ticks_every_half_minute_though_nothing_happens(clock: FakeClock) -> None:
    ticks: list[float] = []
    watch = KeyMonitor(Pool(key(clock, "a")), on_tick=lambda: ticks.append(clock.now()), clock=clock)
    began = clock.now()

    for _ in range(70):
        watch.refresh()
        clock.advance(1.0)

    assert ticks == [began + 30.0, began + 60.0]


# -- time by the wall clock -------------------------------------------------------------------------------------


def test_the_monitor_tells_how_long_the_run_stood_still_and_which_keys_were_refused(clock: FakeClock) -> None:
    pool = Pool(key(clock, "a"), key(clock, "b"))
    offline: list[float] = []
    watch = KeyMonitor(pool, unreachable=lambda: (offline[0], "refused") if offline else (None, ""), clock=clock)

    watch.refresh()
    clock.advance(5.0)
    pool.keys = [key(clock, "a", "cooling", 60), key(clock, "b", "dead", why="status 401")]
    watch.refresh()
    clock.advance(10.0)
    watch.refresh()
    died_at = clock.wall() - 10.0
    offline.append(clock.wall())
    clock.advance(2.0)
    watch.refresh()

    found = watch.key_time()
    assert (found.ran, found.still) == (17.0, {"cooling": 10.0, "network": 2.0})
    assert [(each.name, each.at) for each in found.refused] == [("b", died_at)]
    assert found.unreachable_since == offline[0]
