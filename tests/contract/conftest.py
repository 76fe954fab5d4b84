"""Run every test that uses ``engine`` or ``place`` with each engine and each store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentos import CredentialCoordinator
from agentos.stores.redis import store_connection

from ..redis_server import PATIENCE
from .engine_contract import ENGINES, Engine, Gate, all_are_back, eventually
from .store_contract import SHARED, STORES, Place


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.name)
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.param
    return found


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Open at the end of the test, whatever happened, so that nobody is left behind it."""
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def make_pool() -> Iterator[Callable[..., CredentialCoordinator]]:
    """Pools that check their own promises; at the end every lease is back and nobody waits."""
    made: list[CredentialCoordinator] = []

    def make(*credentials: object, debug: bool = True, **options: object) -> CredentialCoordinator:
        made.append(CredentialCoordinator(list(credentials), debug=debug, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for pool in made:
        eventually(lambda pool=pool: all_are_back(pool))  # type: ignore[misc]


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool waits for its server as long as a machine needs that has other things to do: no time passes by that."""
    monkeypatch.setattr(store_connection, "_LIMIT", PATIENCE)


@pytest.fixture(params=STORES, ids=lambda store: store.name)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Return a location for a pool's state, of every store."""
    place = Place(request.param, tmp_path)
    yield place
    place.close()


@pytest.fixture(params=SHARED, ids=lambda store: store.name)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A place that several pools can open, and that outlives them."""
    place = Place(request.param, tmp_path)
    yield place
    place.close()
