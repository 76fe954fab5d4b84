"""The server of the tests does what they believe it does."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest
import redis

from .redis_server import RedisServer

HOUR = 3600.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "redis"


def run_id(client: redis.Redis) -> str:
    return str(client.info("server")["run_id"])


@pytest.mark.parametrize("empty", [True, False])
def test_a_restart_is_another_server_at_the_same_place_with_what_was_written_or_nothing(
    folder: Path, empty: bool
) -> None:
    with RedisServer(folder, aof=True) as server, closing(server.client()) as client:
        client.set("key", "value")
        before, port = run_id(client), server.port

        server.restart(empty=empty)

        with closing(server.client()) as again:
            assert again.get("key") == (None if empty else "value")
            assert run_id(again) != before
        assert server.port == port


def test_a_server_is_gone_when_its_block_is_left_even_if_it_stood_still(folder: Path) -> None:
    with RedisServer(folder) as server:
        server.pause()

    assert not server.running


def test_its_hour_can_be_set_forward_and_back_while_it_runs(folder: Path) -> None:
    with RedisServer(folder, faketime=True) as server, closing(server.client()) as client:
        client.set("key", "value", px=int(2 * HOUR * 1000))

        server.jump(HOUR)

        assert client.pttl("key") <= HOUR * 1000
        server.jump(-3 * HOUR)
        assert client.pttl("key") > 3 * HOUR * 1000
        assert abs(server.time() + 2 * HOUR - time.time()) < HOUR / 2
