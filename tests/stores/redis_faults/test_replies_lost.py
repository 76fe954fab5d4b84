"""A step whose reply was lost is not executed twice, and delays no caller for long."""

from __future__ import annotations

import time

import pytest

from agentos import CredentialCoordinator
from agentos.stores.redis import store_connection

from ...redis_server import PATIENCE
from ...tcp_proxy import Afterwards, TcpProxy
from ..pool_processes import eventually, keys
from .fault_scenario import LONG, STEADY, Scene

STEP = b"EVALSHA"
SLOTS = 3
SOON = LONG / 3


@pytest.fixture(params=Afterwards, ids=lambda then: then.name.lower())
def then(request: pytest.FixtureRequest) -> Afterwards:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def witness(scene: Scene) -> CredentialCoordinator:
    """A pool with a connection of its own."""
    return scene.open(keys(1, slots=SLOTS))


@pytest.fixture
def pool(
    scene: Scene,
    proxy: TcpProxy,
    witness: CredentialCoordinator,
    then: Afterwards,
    monkeypatch: pytest.MonkeyPatch,
) -> CredentialCoordinator:
    """A pool behind the proxy. It has had a lease: all its connections are made."""
    if then is Afterwards.RESET:  # which is mended within the step, and a machine may have other things to do
        monkeypatch.setattr(store_connection, "_LIMIT", PATIENCE)
    pool = scene.open(keys(1, slots=SLOTS), ttl=LONG, proxy=proxy)
    assert pool.acquire(timeout=20.0).release()
    return pool


def leased(pool: CredentialCoordinator) -> int:
    (row,) = pool.snapshot()
    return row.leases


def take_all(pool: CredentialCoordinator, count: int) -> None:
    """There are so many slots to be had, soon, and not one more."""
    deadline = time.monotonic() + SOON
    leases = [pool.acquire(timeout=max(0.0, deadline - time.monotonic())) for _ in range(count)]
    assert leased(pool) == SLOTS
    assert all(lease.release() for lease in leases)


def test_an_acquire_whose_reply_was_lost_is_one_lease(
    scene: Scene, pool: CredentialCoordinator, witness: CredentialCoordinator, proxy: TcpProxy, then: Afterwards
) -> None:
    before = scene.window.last_token()
    proxy.lose_reply(STEP, then)

    lease = pool.acquire(timeout=20.0)

    assert len(proxy.lost) == 1
    assert proxy.reply_lost.is_set()
    assert lease.held
    assert scene.tokens() == [lease.token]
    # One that was given up on, because no answer came in time, is ended by the step that asks again.
    assert lease.token == before + 1 if then is Afterwards.RESET else lease.token > before + 1
    take_all(witness, SLOTS - 1)
    assert lease.release()
    assert scene.tokens() == []


def test_a_release_whose_reply_was_lost_frees_one_slot_once(
    scene: Scene, pool: CredentialCoordinator, witness: CredentialCoordinator, proxy: TcpProxy, then: Afterwards
) -> None:
    lease, kept = pool.acquire(timeout=20.0), pool.acquire(timeout=20.0)
    proxy.lose_reply(STEP, then)

    assert lease.release()

    assert len(proxy.lost) == 1
    take_all(witness, SLOTS - 1)
    eventually(proxy.reply_lost.is_set)
    assert lease.release() is False
    assert scene.tokens() == [kept.token]
    assert kept.held
    assert kept.release()


def test_a_renewal_whose_reply_was_lost_keeps_the_lease(scene: Scene, proxy: TcpProxy, then: Afterwards) -> None:
    pool = scene.open(ttl=STEADY, proxy=proxy)
    lease = pool.acquire(timeout=20.0)
    (due,) = scene.due().values()
    proxy.lose_reply(STEP, then)

    assert proxy.reply_lost.wait(PATIENCE)
    lost_at = time.monotonic()

    eventually(lambda: min(scene.due().values(), default=0.0) > lost_at + STEADY)  # it was renewed once more, by itself
    assert len(proxy.lost) == 1
    assert min(scene.due().values()) > due
    assert lease.held
    assert scene.tokens() == [lease.token]
    assert lease.release()
