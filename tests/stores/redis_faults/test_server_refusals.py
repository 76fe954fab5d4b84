"""A server answers with refusals: out of memory, read-only replica, wrong password."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from agentos import Credential, CredentialCoordinator, NoCredentialAvailable
from agentos.errors import StoreUnavailable

from ...redis_server import RedisServer, fresh_pool
from ..pool_processes import eventually, keys
from .fault_scenario import Scene

SECRET, PASSWORD, WRONG = "planted-secret", "planted-password", "planted-and-wrong"


@dataclass(frozen=True)
class Refusal:
    """A way to make a server refuse, and to let it be as it was; and the word by which that is explained."""

    begin: Callable[[Any], object]
    end: Callable[[Any], object]
    word: str


REFUSALS = {
    "no memory": Refusal(
        begin=lambda client: client.config_set("maxmemory", 1),
        end=lambda client: client.config_set("maxmemory", 0),
        word="memory",
    ),
    "a replica": Refusal(
        begin=lambda client: client.replicaof("127.0.0.1", 1),
        end=lambda client: client.replicaof("NO", "ONE"),
        word="replica",
    ),
}


@pytest.fixture
def admin(server: RedisServer) -> Iterator[Any]:
    """A client that was there before, and is not refused."""
    with closing(server.client()) as client:
        client.ping()
        yield client


def ended_connections(admin: Any) -> set[str]:
    """All connections of pools are ended by the server. What was last done on them."""
    pools = [each for each in admin.client_list() if each["cmd"] in ("evalsha", "subscribe")]
    for each in pools:
        admin.client_kill_filter(_id=each["id"])
    return {each["cmd"] for each in pools}


@pytest.mark.parametrize("which", REFUSALS)
def test_while_the_server_refuses_nothing_starts_and_what_was_given_back_is_so_when_it_does_not(
    scene: Scene, admin: Any, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool = scene.open(keys(2))
    lease = pool.acquire(timeout=20.0)
    REFUSALS[which].begin(admin)

    with pytest.raises(NoCredentialAvailable):
        pool.acquire(timeout=0.3)
    assert lease.release()

    eventually(lambda: any(REFUSALS[which].word in line for line in caplog.messages))
    assert scene.tokens() == [lease.token]
    REFUSALS[which].end(admin)
    eventually(lambda: scene.tokens() == [])
    assert pool.acquire(timeout=20.0).release()


def test_a_server_that_has_forgotten_the_scripts_is_given_them_again(scene: Scene, admin: Any) -> None:
    pool = scene.open()
    lease = pool.acquire(timeout=20.0)

    admin.script_flush()

    assert lease.release()
    assert pool.acquire(timeout=20.0).release()


def test_a_pool_whose_connections_were_all_ended_by_the_server_goes_on(scene: Scene, admin: Any) -> None:
    pool = scene.open()
    lease = pool.acquire(timeout=20.0)

    assert ended_connections(admin) == {"evalsha", "subscribe"}

    assert lease.release()
    assert pool.acquire(timeout=20.0).release()


@pytest.fixture
def guarded(server: RedisServer, admin: Any) -> Iterator[RedisServer]:
    """The server, with a password."""
    admin.config_set("requirepass", PASSWORD)
    yield server
    admin.config_set("requirepass", "")


def with_password(server: RedisServer, password: str) -> str:
    return server.url(fresh_pool()).replace("redis://", f"redis://:{password}@")


@pytest.mark.parametrize("password", [WRONG, ""])
def test_a_wrong_password_is_an_error_at_opening_that_does_not_show_it(guarded: RedisServer, password: str) -> None:
    url = with_password(guarded, password) if password else guarded.url()

    with pytest.raises(StoreUnavailable, match="refuses this user") as refused:
        CredentialCoordinator([SECRET], store=url)

    assert "planted" not in str(refused.getrepr(style="native"))
    assert f"127.0.0.1:{guarded.port}" in str(refused.value)


def test_a_password_that_is_changed_in_use_is_trouble_until_it_is_put_right_and_is_never_shown(
    guarded: RedisServer, admin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with CredentialCoordinator([Credential(SECRET, name="key-1")], store=with_password(guarded, PASSWORD)) as pool:
        assert pool.acquire(timeout=20.0).release()
        admin.config_set("requirepass", WRONG)
        ended_connections(admin)

        with pytest.raises(NoCredentialAvailable):
            pool.acquire(timeout=0.3)

        admin.config_set("requirepass", PASSWORD)
        assert pool.acquire(timeout=20.0).release()
    eventually(lambda: any("refuses this user" in line for line in caplog.messages))
    assert "planted" not in caplog.text
