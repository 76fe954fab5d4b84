"""Fixtures of the fault tests: a server for each test, and processes with pools on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ...redis_server import RedisServer, fresh_pool
from ...tcp_proxy import TcpProxy
from ..pool_processes import Family
from .fault_scenario import Scene, aged


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """One that has run for a day, by its own account: what is asked of it first, it grants."""
    with RedisServer(tmp_path / "redis", aof=True, faketime=True) as server:
        aged(server)
        yield server


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[TcpProxy]:
    with TcpProxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def scene(server: RedisServer, proxy: TcpProxy, processes: Family) -> Iterator[Scene]:
    """Pools on that server, some of them by way of that proxy. After the test they are judged: see `Scene.close`."""
    scene = Scene(server, processes, fresh_pool())
    yield scene
    scene.close()
