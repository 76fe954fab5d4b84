"""Waiting processes are notified by others and need not poll: in these tests no time passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from agentos import CredentialCoordinator, Lease
from agentos.stores.redis.url import RedisLocation
from agentos.testing import FakeClock

from ...background_threads import Background
from ...contract.engine_contract import eventually
from ...redis_server import shared_server

pytestmark = pytest.mark.usefixtures("unhurried")


@pytest.fixture
def pools(place: RedisLocation) -> Iterator[list[CredentialCoordinator]]:
    """Two that share one key, each as if in a process of its own. Their clock stands still: none looks by itself."""
    url, clock = shared_server().url(place.pool), FakeClock()
    made = [CredentialCoordinator(["planted-secret"], store=url, clock=clock) for _ in range(2)]
    with closing(made[0]), closing(made[1]):
        yield made


def waiting(pool: CredentialCoordinator) -> Background[Lease]:
    """Somebody who waits there, and whose waiting is known to the others."""
    waiter = Background(lambda: pool.acquire("waiter"))
    eventually(lambda: pool.explain("waiter").state == "waiting")
    return waiter


def test_a_released_lease_notifies_its_waiter(pools: list[CredentialCoordinator]) -> None:
    holder, other = pools
    lease = holder.acquire_nowait()
    waiter = waiting(other)

    lease.release()

    assert waiter.result().held


def test_a_leaving_process_notifies_the_waiter_for_its_lease(pools: list[CredentialCoordinator]) -> None:
    holder, other = pools
    store: Any = holder._runtime.store
    _held = holder.acquire_nowait()
    waiter = waiting(other)

    store.close()

    assert waiter.result().held
