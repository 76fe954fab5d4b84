"""The maintenance thread of a shared pool runs exactly as long as it is needed."""

from __future__ import annotations

import gc
import queue
import sqlite3
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from agentos import CredentialCoordinator
from agentos.pool.runtime.maintenance_thread import MaintenanceThread
from agentos.stores.shared_pool.pool import SharedPool
from agentos.stores.sqlite.store import SqliteStore
from agentos.stores.sqlite.udp_wakeup import LocalWakeup, UdpWakeup
from agentos.testing import FakeClock
from agentos.util.clock import Sleeper

from ...background_threads import PATIENCE, Background


def housekeepers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "agentos-pool"}


@pytest.fixture
def mine() -> Callable[[], set[threading.Thread]]:
    """The threads that came with this test."""
    others = housekeepers()
    return lambda: housekeepers() - others


def gone(threads: Callable[[], set[threading.Thread]]) -> bool:
    deadline = time.monotonic() + PATIENCE
    for thread in threads():
        thread.join(max(0.0, deadline - time.monotonic()))
    return not threads()


def pool_at(path: Path) -> CredentialCoordinator:
    return CredentialCoordinator(["secret-one"], store=path / "pool.sqlite", clock=FakeClock())


def test_a_pool_in_memory_has_no_thread(mine: Callable[[], set[threading.Thread]]) -> None:
    pool = CredentialCoordinator(["secret-one"], store="memory")
    pool.acquire().release()

    assert not mine()


def test_the_thread_ends_when_the_pool_is_closed_and_everything_given_back(
    tmp_path: Path, mine: Callable[[], set[threading.Thread]]
) -> None:
    pool = pool_at(tmp_path)
    lease = pool.acquire()
    (thread,) = mine()
    assert thread.daemon  # it keeps no process from ending
    pool.close()
    clock = pool._runtime.clock
    assert isinstance(clock, FakeClock)
    clock.wait_for_sleepers(1)
    assert mine() == {thread}  # the lease is still to be renewed

    lease.release()
    clock.advance(1.0)

    assert gone(mine)


def test_a_pool_that_is_forgotten_lets_go_of_its_file(
    tmp_path: Path, mine: Callable[[], set[threading.Thread]]
) -> None:
    pool = pool_at(tmp_path)
    assert isinstance(pool._runtime.store, SqliteStore)
    connection = pool._runtime.store._file.connection

    del pool
    gc.collect()

    assert gone(mine)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("select 1")


def test_the_thread_ends_when_the_pool_is_forgotten(tmp_path: Path, mine: Callable[[], set[threading.Thread]]) -> None:
    pool = pool_at(tmp_path)
    pool.reserve_credential("held")  # a lease would keep the pool
    pool._runtime.clock.wait_for_sleepers(1)  # type: ignore[attr-defined]
    forgotten = weakref.ref(pool)

    del pool
    gc.collect()

    assert gone(mine)
    assert forgotten() is None


def test_a_pool_that_could_not_be_made_leaves_no_thread_and_nothing_open(
    tmp_path: Path, mine: Callable[[], set[threading.Thread]]
) -> None:
    def make() -> bool:
        try:
            CredentialCoordinator(["same-secret", "same-secret"], store=tmp_path / "pool.sqlite", clock=FakeClock())
        except ValueError:
            return False
        return True

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert not make()
        gc.collect()

    assert not mine()
    assert [str(each.message) for each in told if each.category is ResourceWarning] == []


class Kept:
    """A pool that wants to be looked after every second, and says how often it was."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.calls: list[bool] = []
        self.fails = False
        self.does_not_know_when = False
        self.over = False

    def due_at(self) -> float:
        if self.does_not_know_when:
            raise RuntimeError("something nobody thought of")
        return self.clock.now() + 1.0

    def maintain(self, called: bool) -> None:
        self.calls.append(called)
        if self.fails:
            raise RuntimeError("something nobody thought of")

    def is_finished(self) -> bool:
        return self.over

    def passes(self, seconds: float) -> None:
        """Let time go on, when the housekeeper is asleep, and until it is again."""
        before = len(self.calls)
        self.clock.wait_for_sleepers(1)
        self.clock.advance(seconds)
        self.wait_for(before + 1)
        self.clock.wait_for_sleepers(1)

    def wait_for(self, calls: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(self.calls) < calls:
            assert time.monotonic() < deadline, f"looked after {len(self.calls)} times, not {calls}"
            threading.Event().wait(0.001)


class Told(FakeClock):
    """A clock whose waits end when the test says so, and by what: the bell, or the instant."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: queue.Queue[str] = queue.Queue()

    def wait(self, sleeper: Sleeper, until: float) -> None:
        if self.ends.get(timeout=PATIENCE) == "the bell":
            sleeper.acquire()


def test_it_looks_after_the_pool_when_that_is_due_and_knows_when_it_was_called(
    mine: Callable[[], set[threading.Thread]],
) -> None:
    clock = Told()
    kept, bell = Kept(clock), UdpWakeup()
    MaintenanceThread(kept, clock, bell, lambda: None)
    bell.session = "session-1"
    bell.notify_peers(bell.port, "session-1")

    for end in ("the bell", "the instant", "the instant"):
        clock.ends.put(end)
    kept.wait_for(3)

    assert kept.calls == [True, False, False]
    kept.over = True
    clock.ends.put("the instant")
    assert gone(mine)


def test_an_error_does_not_end_the_thread_and_is_logged(
    mine: Callable[[], set[threading.Thread]], caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    kept, bell = Kept(clock), LocalWakeup()
    kept.fails = True
    MaintenanceThread(kept, clock, bell, lambda: None)

    kept.passes(1.0)
    kept.passes(1.0)

    assert len(kept.calls) == 2
    told = [record for record in caplog.records if "looking after the pool failed" in record.message]
    assert len(told) == 2
    assert told[0].exc_info is not None
    assert "nobody thought of" in str(told[0].exc_info[1])
    kept.over = True
    bell.release()
    assert gone(mine)


def test_an_error_of_when_it_is_due_does_not_end_it_either(
    mine: Callable[[], set[threading.Thread]], caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    kept, bell = Kept(clock), LocalWakeup()
    kept.does_not_know_when = True
    MaintenanceThread(kept, clock, bell, lambda: None)

    kept.passes(1.0)

    assert any("looking after the pool failed" in record.message for record in caplog.records)
    kept.over = True
    bell.release()
    assert gone(mine)


def test_due_at_is_read_under_the_pools_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a lease that ends in that moment would end the thread, and with it every lease of the process."""
    pool = pool_at(tmp_path)
    at_once: list[bool] = []

    def due_at(core: SharedPool, now: float) -> float:
        at_once.append(Background(lambda: pool._runtime.scheduler.lock.acquire(False)).result())
        return now

    monkeypatch.setattr(SharedPool, "due_at", due_at)

    pool._runtime.due_at()

    assert not any(at_once)
    monkeypatch.undo()
    pool.close()
