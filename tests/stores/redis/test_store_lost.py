"""A store that loses its data gets it back from the connected processes, and pauses grants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from agentos import CredentialCoordinator, Lease, NoCredentialAvailable
from agentos.pool.store_protocol import StepAction, TransientStoreError
from agentos.stores.redis.store import RedisStore
from agentos.stores.redis.store_clock import StoreClock
from agentos.stores.redis.url import RedisLocation
from agentos.testing import FakeClock

from ...contract.engine_contract import eventually
from ...redis_server import shared_server

pytestmark = pytest.mark.usefixtures("unhurried")

TTL = 30.0


@pytest.fixture
def client() -> Iterator[Any]:
    with closing(shared_server().client()) as client:
        yield client


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


Open = Callable[..., CredentialCoordinator]


@pytest.fixture
def open_pool(place: RedisLocation, clock: FakeClock) -> Iterator[Open]:
    made: list[CredentialCoordinator] = []

    def make(ttl: float = TTL) -> CredentialCoordinator:
        url = f"{place.url}?pool={place.pool}"
        made.append(CredentialCoordinator(["planted-secret-one"], store=url, lease_ttl=ttl, clock=clock))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def forget(place: RedisLocation, client: Any) -> None:
    """As a server does that is restarted empty, or told to."""
    assert client.delete(*(place.key(name) for name in ("meta", "records", "changes", "expiry")))


def let_some_pass(clock: FakeClock) -> None:
    """Some time, when the pool's own thread waits for that: there it mends what is broken."""
    eventually(lambda: clock.sleepers)
    clock.advance(0.05)


LESSONS: dict[str, tuple[Callable[[Lease], object], str]] = {
    "a cooling": (lambda lease: lease.rate_limited(600), "cooling"),
    "a parking": (lambda lease: lease.rate_limited(7200), "parked"),
    "a death": (lambda lease: lease.rejected("401 invalid key"), "dead"),
    "no money": (lambda lease: lease.spent("insufficient_quota"), "spent"),
}


@pytest.mark.parametrize("lesson", LESSONS)
def test_what_a_process_knows_outlives_the_store(
    open_pool: Open, place: RedisLocation, client: Any, clock: FakeClock, lesson: str
) -> None:
    learn, state = LESSONS[lesson]
    pool = open_pool()
    lease = pool.acquire_nowait()
    learn(lease)
    lease.release()

    forget(place, client)

    def known_again() -> bool:
        let_some_pass(clock)
        pool.get_stats()
        return bool(client.hexists(place.key("records"), "q1"))

    eventually(known_again)
    fresh = open_pool()
    eventually(lambda: [each.state for each in fresh.snapshot()] == [state])
    assert [each.state for each in pool.snapshot()] == [state]


def test_the_state_of_a_process_outlives_the_store_even_if_written_later(
    open_pool: Open, place: RedisLocation, client: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = open_pool()
    lease = pool.acquire_nowait()
    lease.rate_limited(600)
    lease.release()
    told, tell = [], RedisStore.submit

    def tell_at_the_second_time(store: RedisStore, act: StepAction) -> None:
        told.append(act)
        if len(told) == 1:
            raise TransientStoreError("no answer")
        tell(store, act)

    monkeypatch.setattr(RedisStore, "submit", tell_at_the_second_time)

    forget(place, client)

    def told_again() -> bool:
        let_some_pass(clock)
        pool.get_stats()
        return len(told) > 1

    eventually(told_again)
    fresh = open_pool()
    eventually(lambda: [each.state for each in fresh.snapshot()] == ["cooling"])


def test_a_store_that_is_gone_waits_for_the_longest_lease_that_anybody_remembers(
    open_pool: Open, place: RedisLocation, client: Any, clock: FakeClock
) -> None:
    longest, pool = open_pool(10 * TTL), open_pool()
    longest.close()
    forget(place, client)

    def is_there_again() -> bool:
        let_some_pass(clock)
        pool.get_stats()
        return bool(client.exists(place.key("meta")))

    eventually(is_there_again)
    assert float(client.hget(place.key("meta"), "longest")) == 10 * TTL
    assert float(client.hget(place.key("meta"), "paused_until")) > clock.now() + 9 * TTL


def test_a_fresh_process_that_comes_first_to_a_store_that_is_gone_waits_if_others_are_there(
    open_pool: Open, place: RedisLocation, client: Any, clock: FakeClock
) -> None:
    pool = open_pool()
    token = pool.acquire_nowait().token
    clock.advance(0.1)
    forget(place, client)

    fresh = open_pool()

    with pytest.raises(NoCredentialAvailable):
        fresh.acquire_nowait()
    assert "epoch is gone" in str(client.hget(place.key("meta"), "why"))
    assert isinstance(pool._runtime.store, RedisStore)
    pool._runtime.store._left = True  # it does nothing more: else it says so too, and the store waits once again
    clock.advance(TTL)
    assert (_held := fresh.acquire_nowait()).token > token


def test_a_process_that_was_away_too_long_ends_no_peers_when_it_returns(
    open_pool: Open, place: RedisLocation, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = 0.0
    monkeypatch.setattr(StoreClock, "settling_time", lambda _: patience)
    holder, away = open_pool(), open_pool()
    _held = holder.acquire_nowait()
    patience = TTL / 3
    for session, _ in client.zrange(place.key("expiry"), 0, -1, withscores=True):
        client.zadd(place.key("expiry"), {session: 1.0})  # as if the server's clock had been set, too

    with pytest.raises(NoCredentialAvailable):
        away.acquire_nowait()
