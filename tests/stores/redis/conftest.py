"""A separate pool on a real server for every test of this folder."""

from __future__ import annotations

import pytest

from agentos.stores.redis.url import RedisLocation, parse_redis_url

from ...redis_server import fresh_pool, shared_server


@pytest.fixture
def place() -> RedisLocation:
    found = parse_redis_url(shared_server().url(fresh_pool()))
    assert found is not None
    return found
