"""The proxy does to connections what the tests of faults believe it does. At its other end is a real server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .redis_server import PATIENCE, eventually, fresh_pool, shared_server
from .tcp_proxy import Afterwards, TcpProxy

SHORT = 0.05  # for an answer that never comes; for all others there is patience


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    with TcpProxy(shared_server().port) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: TcpProxy) -> Iterator[redis.Redis]:
    """A client on the far side of the proxy, which tries nothing twice."""
    client = redis.Redis(port=proxy.port, socket_timeout=PATIENCE, retry=Retry(NoBackoff(), 0))
    with closing(client):
        client.ping()
        yield client


def value_of(key: str) -> int:
    with closing(shared_server().client()) as direct:
        return int(direct.get(key) or 0)


@pytest.fixture
def connection(through: redis.Redis) -> Iterator[Any]:
    """Its own, on which one can send without waiting for the answer."""
    connection: Any = through.connection_pool.get_connection()
    yield connection
    through.connection_pool.release(connection)


@pytest.mark.parametrize("then", Afterwards)
def test_a_request_whose_reply_is_lost_was_executed(
    proxy: TcpProxy, through: redis.Redis, connection: Any, then: Afterwards
) -> None:
    key = fresh_pool()
    proxy.lose_reply(b"INCRBY", then)
    assert through.ping()  # another request, which is left alone

    connection.send_command("INCRBY", key, 1)

    assert proxy.reply_lost.wait(PATIENCE)
    assert len(proxy.lost) == 1
    assert value_of(key) == 1
    if then is Afterwards.SILENT:
        assert not connection.can_read(SHORT)
    else:
        with pytest.raises(redis.ConnectionError):
            connection.read_response()
    connection.disconnect()
    assert through.incr(key) == 2  # on a new connection


def test_connections_are_cut_and_refused_until_it_is_healed(proxy: TcpProxy, through: redis.Redis) -> None:
    proxy.cut()

    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            through.ping()

    assert proxy.cuts == 1
    assert proxy.refused >= 1
    proxy.heal()
    assert through.ping()


@pytest.mark.parametrize(("requests", "replies", "executed"), [(True, False, 0), (False, True, 1), (True, True, 0)])
def test_what_is_withheld_is_executed_when_requests_pass_and_arrives_when_it_is_healed(
    proxy: TcpProxy, connection: Any, requests: bool, replies: bool, executed: int
) -> None:
    key = fresh_pool()
    proxy.silence(requests=requests, replies=replies)

    connection.send_command("INCR", key)

    eventually(lambda: value_of(key) == executed)
    assert not connection.can_read(SHORT)
    assert value_of(key) == executed
    proxy.heal()
    assert connection.read_response() == 1
