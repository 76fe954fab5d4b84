"""The proxy does to connections what the tests of faults believe it does. At its other end is a real server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .redis_server import fresh_pool, shared_server
from .tcp_proxy import Afterwards, TcpProxy

SHORT = 0.05  # for an answer that never comes


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    with TcpProxy(shared_server().port) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: TcpProxy) -> Iterator[redis.Redis]:
    """A client on the far side of the proxy, which tries nothing twice."""
    client = redis.Redis(port=proxy.port, socket_timeout=SHORT, retry=Retry(NoBackoff(), 0))
    with closing(client):
        client.ping()
        yield client


def value_of(key: str) -> int:
    with closing(shared_server().client()) as direct:
        return int(direct.get(key) or 0)


@pytest.mark.parametrize(
    ("then", "error"), [(Afterwards.RESET, redis.ConnectionError), (Afterwards.SILENT, redis.TimeoutError)]
)
def test_a_request_whose_reply_is_lost_was_executed(
    proxy: TcpProxy, through: redis.Redis, then: Afterwards, error: type[Exception]
) -> None:
    key = fresh_pool()
    proxy.lose_reply(b"INCRBY", then)
    assert through.ping()  # another request, which is left alone

    with pytest.raises(error):
        through.incr(key)

    assert proxy.reply_lost.is_set()
    assert len(proxy.lost) == 1
    assert value_of(key) == 1
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
    proxy: TcpProxy, through: redis.Redis, requests: bool, replies: bool, executed: int
) -> None:
    key = fresh_pool()
    connection: Any = through.connection_pool.get_connection()
    proxy.silence(requests=requests, replies=replies)

    connection.send_command("INCR", key)

    assert not connection.can_read(SHORT)
    assert value_of(key) == executed
    proxy.heal()
    assert connection.read_response() == 1
    through.connection_pool.release(connection)
