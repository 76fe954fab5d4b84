"""Every URL scheme without TLS reaches the same pool, and notifies its waiters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from agentos import CredentialCoordinator, NoCredentialAvailable
from agentos.errors import StoreUnavailable
from agentos.stores.redis import store_connection
from agentos.testing import FakeClock

from ...background_threads import Background
from ...contract.engine_contract import eventually
from ...redis_server import RedisServer, fresh_pool, shared_server

pytestmark = pytest.mark.usefixtures("unhurried")

SECRET, PASSWORD = "planted-secret", "planted-password"
SCHEMES: dict[str, Callable[[RedisServer, str], str]] = {
    "redis": lambda server, pool: server.url(pool),
    "valkey": lambda server, pool: server.url(pool).replace("redis://", "valkey://"),
    "unix": lambda server, pool: server.unix_url(pool),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_is_the_pool_of_that_name_and_one_that_waits_there_is_called(scheme: str) -> None:
    pool, clock = fresh_pool(), FakeClock()
    plain, other = (SCHEMES[each](shared_server(), pool) for each in ("redis", scheme))
    with (
        CredentialCoordinator([SECRET], store=plain, clock=clock) as one,
        CredentialCoordinator([SECRET], store=other, clock=clock) as two,
    ):
        lease = one.acquire_nowait()
        with pytest.raises(NoCredentialAvailable):
            two.acquire_nowait()
        waiting = Background(lambda: two.acquire("w"))
        eventually(lambda: two.explain("w").state == "waiting")

        assert lease.release()

        assert waiting.result().release()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RedisServer]:
    """A server with a password."""
    with RedisServer(tmp_path / "redis") as server, closing(server.client()) as client:
        client.config_set("requirepass", PASSWORD)
        yield server


def test_a_socket_takes_a_password_and_a_database(guarded: RedisServer) -> None:
    store = guarded.unix_url().replace("unix://", f"unix://:{PASSWORD}@") + "?db=1"

    with CredentialCoordinator([SECRET], store=store, clock=FakeClock()) as pool:
        assert pool.acquire_nowait().release()
    with closing(redis.Redis(unix_socket_path=str(guarded.socket), password=PASSWORD)) as client:
        assert set(client.info("keyspace")) == {"db1"}


def test_a_wrong_password_for_a_socket_is_said_without_showing_it(guarded: RedisServer) -> None:
    store = guarded.unix_url().replace("unix://", "unix://:planted-and-wrong@")

    with pytest.raises(StoreUnavailable, match="refuses this user") as caught:
        CredentialCoordinator([SECRET], store=store)

    assert "planted" not in str(caught.getrepr(style="native"))


def test_a_socket_that_is_not_there_is_said_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_connection, "_INSIST", 0.0)
    missing = tmp_path / "no.sock"

    with pytest.raises(StoreUnavailable, match="No such file") as caught:
        CredentialCoordinator([SECRET], store=f"unix://{missing}")

    assert f"unix://{missing}" in str(caught.value)
