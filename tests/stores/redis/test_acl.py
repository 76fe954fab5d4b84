"""The ACL user of docs/cluster.md may do all that agentos needs, on the pool's keys only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from agentos import Credential, CredentialCoordinator
from agentos.stores.admin import read_store, reset_credentials
from agentos.stores.sqlite.location import parse_location
from agentos.testing import FakeClock

from ...background_threads import Background
from ...redis_server import RedisServer

pytestmark = pytest.mark.usefixtures("unhurried")

PAGE = Path(__file__).parents[3] / "docs" / "cluster.md"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of this test's own, on which the page's line was typed."""
    (line,) = re.findall(r"^ACL SETUSER agentos .*", PAGE.read_text(), re.MULTILINE)
    with RedisServer(tmp_path) as server:
        with closing(server.client()) as client:
            client.execute_command(*line.split())
        yield server


def url(server: RedisServer) -> str:
    return server.url().replace("redis://", "redis://agentos:password@")


def test_pools_share_their_keys_as_that_user_and_call_each_other(server: RedisServer) -> None:
    clock = FakeClock()  # so that a young server is no matter
    with (
        CredentialCoordinator(["a-secret-of-two"], store=url(server), clock=clock) as one,
        CredentialCoordinator(["a-secret-of-two"], store=url(server), clock=clock) as other,
    ):
        lease = one.acquire_nowait()
        waiting = Background(lambda: other.acquire("w"))
        lease.release()

        assert waiting.result().release()


def test_a_pool_masks_the_password_of_its_store(server: RedisServer) -> None:
    with closing(server.client()) as client:
        client.acl_setuser("planted", enabled=True, passwords=["+planted/Password"], categories=["+@all"], keys=["*"])
        client.acl_setuser("planted", enabled=True, channels=["*"])
    address = server.url().replace("redis://", "redis://planted:planted%2fPassword@")

    with CredentialCoordinator(["a-secret-of-two"], store=address, clock=FakeClock()) as pool:
        shown = pool._runtime.masked(f"{address} planted/password cGxhbnRlZC9QYXNzd29yZA==")

    assert shown == f"{server.url().replace('redis://', 'redis://planted:<secret>@')} <secret> <secret>=="


def test_a_pool_is_looked_at_and_cleared_as_that_user(server: RedisServer) -> None:
    place, clock = parse_location(url(server), {}), FakeClock()
    assert place is not None
    with CredentialCoordinator([Credential("a-secret-of-two", name="acme")], store=url(server), clock=clock) as pool:
        pool.acquire_nowait().rate_limited(600.0)

        assert read_store(place, [], clock)
        assert reset_credentials(place, ["acme"], [], clock)


def test_it_has_no_keys_but_those_of_agentos(server: RedisServer) -> None:
    with (
        closing(redis.Redis.from_url(url(server))) as client,
        pytest.raises(redis.exceptions.NoPermissionError, match="key"),
    ):
        client.hget("somebody-elses", "field")


def test_it_can_subscribe_only_to_channels_of_agentos(server: RedisServer) -> None:
    with (
        closing(redis.Redis.from_url(url(server))) as client,
        pytest.raises(redis.exceptions.NoPermissionError, match="channel"),
    ):
        client.publish("somebody-elses", "hello")
