"""A process recovers after a lost connection or a lost reply."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from agentos import CredentialCoordinator, NoCredentialAvailable
from agentos.errors import StoreUnavailable
from agentos.pool.store_protocol import Step, StepAction, TransientStoreError
from agentos.stores.redis.pubsub_wakeup import PubSubWakeup
from agentos.stores.redis.resp_connection import RespConnection
from agentos.stores.redis.server_time import server_time_for
from agentos.stores.redis.store import RedisStore
from agentos.stores.redis.store_connection import StoreConnection
from agentos.testing import FakeClock
from agentos.util.clock import SystemClock

from ...background_threads import Background
from ...contract.engine_contract import eventually
from ...redis_server import PATIENCE, RedisServer

pytestmark = pytest.mark.usefixtures("unhurried")

KEYS = ("meta", "records", "changes", "expiry")
TTL = 30.0


class Rig:
    """A server of a test's own, which can forget the last that it did, and pools on it."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.clock = FakeClock()
        self.client: redis.Redis = server.client()
        self.pools: list[CredentialCoordinator] = []

    def open(self, count: int = 1, user: str = "") -> CredentialCoordinator:
        url = self.server.url().replace("//", f"//{user}", 1)
        secrets = [f"planted-secret-{number}" for number in range(count)]
        self.pools.append(CredentialCoordinator(secrets, store=url, lease_ttl=TTL, clock=self.clock))
        return self.pools[-1]

    def store(self, pool: CredentialCoordinator) -> RedisStore:
        store: Any = pool._runtime.store
        assert isinstance(store, RedisStore)
        return store

    def tell(self, pool: CredentialCoordinator, act: StepAction) -> None:
        """As the pool does: nobody else uses the store at the same time."""
        turn: Any = pool._runtime.scheduler.run_step

        def told(_now: float) -> tuple[()]:
            self.store(pool).submit(act)
            return ()

        turn(told)

    def key(self, name: str) -> str:
        return f"agentos:{{agentos}}:{name}"

    def remember(self) -> None:
        for name in KEYS:
            self.client.copy(self.key(name), f"old:{name}", replace=True)

    def restart_as_remembered(self) -> None:
        """As from an older copy; then others do so much that the numbers are again what they were."""
        numbers: Any = self.client.hmget(self.key("meta"), "sequence", "token")
        for name in KEYS:
            self.client.copy(f"old:{name}", self.key(name), replace=True)
        self.client.hset(self.key("meta"), mapping={"sequence": numbers[0], "token": numbers[1], "run": "another"})
        self.client.zadd(self.key("changes"), {"q1": int(numbers[0])})
        self.client.client_kill_filter(_type="normal", skipme=True)

    def happens(self, condition: Callable[[], object], *, step: float = 0.0) -> None:
        """While time goes on by a *step* at each look: once the pools' own threads wait, who mend what is broken."""

        def look() -> object:
            eventually(lambda: self.clock.sleepers >= len(self.pools))
            self.clock.advance(step)
            for pool in self.pools:
                pool.get_stats()
            return condition()

        eventually(look)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with RedisServer(tmp_path) as server:
        rig = Rig(server)
        with closing(rig.client):
            yield rig
            for pool in rig.pools:
                pool.close()


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lose the answers to so many steps from now on; or, where *joins*, only to those that begin a session.

    The first is one of whoever says so: a pool's own threads take steps too, at times of their own.
    """
    left, only_joins, begun_by = 0, False, -1
    apply = StoreConnection.apply

    def lossy(link: StoreConnection, wire: RespConnection, words: list[str]) -> bytes:
        nonlocal left, begun_by
        said = apply(link, wire, words)
        head = words[0].split()
        mine = begun_by in (threading.get_ident(), 0)
        if left and mine and head[4] != "-" and (head[6] == "1" or not only_joins):
            left, begun_by = left - 1, 0
            raise TimeoutError
        return said

    def arm(count: int, *, joins: bool = False) -> None:
        nonlocal left, only_joins, begun_by
        left, only_joins, begun_by = count, joins, threading.get_ident()

    monkeypatch.setattr(StoreConnection, "apply", lossy)
    return arm


# -- coming --------------------------------------------------------------------------------------------------------


def test_a_pool_opens_though_the_first_answers_are_late(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    apply, late = StoreConnection.apply, 3

    def sometimes(link: StoreConnection, wire: RespConnection, words: list[str]) -> bytes:
        nonlocal late
        late -= 1
        if late >= 0:
            raise TimeoutError
        return apply(link, wire, words)

    monkeypatch.setattr(StoreConnection, "apply", sometimes)

    assert (_held := rig.open().acquire_nowait()).held
    assert late < 0


# -- a server that has forgotten -----------------------------------------------------------------------------------


def test_what_others_have_by_the_same_numbers_is_found_out(rig: Rig) -> None:
    pool, other = rig.open(), rig.open()
    lease = other.acquire_nowait("worker-7")
    rig.remember()
    lease.release()
    other.close()
    rig.pools.remove(other)
    assert "worker-7" not in str(pool.snapshot())

    rig.restart_as_remembered()

    rig.happens(lambda: "worker-7" in str(pool.snapshot()))


def test_the_store_is_compared_even_if_a_caller_reconnected(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PubSubWakeup, "_repair", lambda _bell: False)  # always too late
    monkeypatch.setattr(PubSubWakeup, "_next_repair", lambda _bell: PATIENCE)
    store = rig.store(rig.open())
    before = store._handshake
    rig.remember()

    rig.restart_as_remembered()

    rig.happens(lambda: store._handshake is not before)


def test_a_lease_that_the_server_has_forgotten_is_lost(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    pool = rig.open()
    rig.remember()
    lease = pool.acquire_nowait()

    rig.restart_as_remembered()

    rig.happens(lambda: not lease.held)
    eventually(lambda: "the server has lost it" in caplog.text)


def test_a_lease_that_was_given_back_and_is_there_again_is_ended(rig: Rig) -> None:
    pool = rig.open()
    lease = pool.acquire_nowait()
    rig.remember()
    lease.release()

    rig.restart_as_remembered()

    def granted() -> bool:
        try:
            return pool.acquire_nowait().release()
        except NoCredentialAvailable:
            return False

    rig.happens(granted, step=0.5)


def test_the_newest_change_is_remembered_even_if_a_reply_is_lost(rig: Rig, lose: Callable[..., None]) -> None:
    pool = rig.open()
    before = rig.store(pool)._known()
    lose(1)

    with suppress(NoCredentialAvailable):  # unless the pool's own thread has asked again by then
        pool.acquire_nowait()

    assert rig.store(pool)._known().sequence >= before.sequence > 0


def test_a_session_of_which_nothing_says_when_it_ends_ends_one_time_to_live_later(rig: Rig) -> None:
    pool, other = rig.open(), rig.open()
    _held = other.acquire_nowait()
    store = rig.store(other)
    dead = store._session
    assert dead is not None
    store._left = True  # it does nothing more
    rig.pools.remove(other)

    rig.client.zrem(rig.key("expiry"), dead)

    rig.happens(lambda: rig.client.zscore(rig.key("expiry"), dead) is not None, step=0.5)
    rig.happens(lambda: pool.snapshot()[0].leases == 0, step=0.5)
    assert (_held_2 := pool.acquire_nowait()).held


def test_a_session_of_which_only_its_end_is_left_is_forgotten(rig: Rig) -> None:
    pool = rig.open()
    rig.client.zadd(rig.key("expiry"), {"stranger.1": rig.clock.now() + 1.0})

    rig.happens(lambda: rig.client.zscore(rig.key("expiry"), "stranger.1") is None, step=0.5)

    assert (_held := pool.acquire_nowait()).held


def test_a_new_store_in_the_place_of_one_of_which_only_the_records_are_left_goes_on_with_its_numbers(rig: Rig) -> None:
    rig.open(3).close()
    newest: Any = rig.client.hget(rig.key("meta"), "sequence")
    rig.client.delete(rig.key("meta"))

    rig.open(1)

    now: Any = rig.client.hget(rig.key("meta"), "sequence")
    assert int(now) > int(newest)


# -- answers that are lost -----------------------------------------------------------------------------------------


def test_a_process_whose_join_had_no_reply_still_ends_expired_peers(rig: Rig, lose: Callable[..., None]) -> None:
    lose(1, joins=True)
    pool = rig.open()

    assert not rig.store(pool)._peers.is_newcomer(rig.clock.now() + 10 * TTL)


def test_what_was_done_is_not_done_again_if_even_the_answer_whether_it_was_is_lost(
    rig: Rig, lose: Callable[..., None]
) -> None:
    pool = rig.open()
    store = rig.store(pool)

    def once_more(step: Step) -> None:
        record = store._replica.quota(1).record()
        step.write_quota(1, {**record, "times": record.get("times", 0) + 1})

    lose(2)
    with pytest.raises(TransientStoreError):
        rig.tell(pool, once_more)

    rig.happens(lambda: not store._pending and store._unknown is None)
    assert store._replica.quota(1).record()["times"] == 1


def test_actions_deferred_after_an_interrupted_step_are_kept(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = rig.open()
    store = rig.store(pool)
    done = store._on_step_done
    told: list[str] = []

    def interrupted(*what: Any) -> None:
        done(*what)
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "_on_step_done", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rig.tell(pool, lambda step: step.wait(None, None, None, passed=False))
    monkeypatch.undo()
    rig.tell(pool, lambda _step: told.append("later"))

    assert told == ["later"]
    assert not store._pending


# -- leaving -------------------------------------------------------------------------------------------------------


def test_a_grant_that_is_under_way_when_its_process_leaves_is_none(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = rig.open()
    store, apply = rig.store(pool), StoreConnection.apply
    left = threading.Event()

    def slow(link: StoreConnection, wire: RespConnection, words: list[str]) -> bytes:
        if threading.current_thread() is not threading.main_thread():
            assert left.wait(PATIENCE)
        return apply(link, wire, words)

    monkeypatch.setattr(StoreConnection, "apply", slow)
    grant = Background(lambda: pool.acquire_nowait())
    store.leave()
    left.set()

    with pytest.raises(Exception, match="closed"):
        grant.result()
    assert "\n" not in str(rig.client.hget(rig.key("records"), "c1"))
    assert rig.client.zcard(rig.key("expiry")) == 0


# -- the way there -------------------------------------------------------------------------------------------------


def test_a_step_does_not_wait_for_the_name_of_the_server_to_be_found(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    place = rig.store(rig.open())._connection.place
    link = StoreConnection(place, server_time_for(SystemClock()), 1.0)  # and so soon it gives up
    link.open()
    found, connect = threading.Event(), link.connect
    monkeypatch.setattr(link, "connect", lambda: connect() if found.wait(PATIENCE) else None)
    link.drop("by a test")

    assert not link.reconnect_within_step()

    found.set()
    eventually(lambda: link.handshake is not None)
    link.close()


class AboutToGo:
    """The lock of one who has found nothing to mend, and goes as soon as another comes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._gone = False
        self.locked, self.release = self._lock.locked, self._lock.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._gone:
            self._gone = True
            self.release()
        return self._lock.acquire(blocking, timeout)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_a_step_reconnects_what_broke_after_another_reconnect(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    link = StoreConnection(rig.store(rig.open())._connection.place, server_time_for(SystemClock()), TTL)
    link.open()
    link.limit = PATIENCE
    monkeypatch.setattr(link, "_reconnecting", AboutToGo())
    link.drop("by a test")

    assert link.reconnect_within_step()

    link.close()


def test_a_reconnect_after_close_leaves_no_connection(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    link = StoreConnection(rig.store(rig.open())._connection.place, server_time_for(SystemClock()), TTL)
    greet = link._handshake

    def closed_meanwhile() -> Any:
        greeting = greet()
        link.close()
        return greeting

    monkeypatch.setattr(link, "_handshake", closed_meanwhile)

    assert not link.reconnect()
    assert link.handshake is None


def test_a_user_who_may_not_wake_others_is_refused_at_once_and_not_named(rig: Rig) -> None:
    rig.client.execute_command(
        "ACL", "SETUSER", "worker-sam", "on", ">planted-password", "~*", "+@all", "resetchannels"
    )

    with pytest.raises(StoreUnavailable, match="refuses this user") as caught:
        rig.open(user="worker-sam:planted-password@")

    assert not any(word in str(caught.value) for word in ("worker-sam", "planted"))


def test_a_user_who_may_not_wake_others_any_more_gives_back_what_it_has(rig: Rig) -> None:
    rig.client.execute_command("ACL", "SETUSER", "worker-sam", "on", ">planted-password", "~*", "+@all", "allchannels")
    pool, other = rig.open(user="worker-sam:planted-password@"), rig.open()
    lease = pool.acquire_nowait()
    waiter = Background(lambda: other.acquire("waiter"))
    eventually(lambda: other.explain("waiter").state == "waiting")
    rig.client.execute_command("ACL", "SETUSER", "worker-sam", "resetchannels")

    assert lease.release()

    rig.happens(lambda: not waiter.running, step=0.5)
    assert waiter.result().held


def test_a_server_that_says_nothing_of_its_run_is_none_for_a_pool(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = RespConnection.execute

    def without(wire: RespConnection, *words: str) -> Any:
        return b"redis_version:7.0.0\r\n" if words[0] == "INFO" else ask(wire, *words)

    monkeypatch.setattr(RespConnection, "execute", without)

    with pytest.raises(StoreUnavailable, match="INFO"):
        rig.open()


# -- many credentials ----------------------------------------------------------------------------------------------


def test_a_store_that_was_emptied_learns_of_many_credentials_little_by_little(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, apply = rig.store(rig.open(5)), StoreConnection.apply
    asked = tired = 0

    def tiring(link: StoreConnection, wire: RespConnection, words: list[str]) -> bytes:
        nonlocal asked, tired
        asked += 1
        if asked % 2 == 0 and store._enrolling_until is not None:
            tired += 1
            store._enrolling_until = 0.0  # its time is over
        return apply(link, wire, words)

    monkeypatch.setattr(StoreConnection, "apply", tiring)
    rig.client.delete(*[rig.key(name) for name in KEYS])

    rig.happens(
        lambda: rig.client.hlen(rig.key("records")) == 12, step=0.5
    )  # of each, of its quota, and two of who is there
    assert tired > 1
