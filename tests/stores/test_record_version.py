"""Versions of quota records: stores of earlier versions open, and processes of two versions do not share one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentos import Credential, CredentialCoordinator, StoreTooNew, StoreUnavailable
from agentos.pool.core import quota_codec
from agentos.providers import Event, Reading, Signal
from agentos.stores.redis import metadata, store_connection
from agentos.stores.redis.url import parse_redis_url
from agentos.stores.sqlite import file, read_state, schema
from agentos.util.sqlite.migrations import Migration

from ..redis_server import fresh_pool, shared_server

FORMAT_OF_0_1_0 = {"sqlite": 2, "redis": 1}  # the newest that a process of version 0.1.0 opens

Limits = list[tuple[str, float]]


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store of its own."""
    return f"sqlite:///{tmp_path}/pool.sqlite" if request.param == "sqlite" else shared_server().url(fresh_pool())


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Be a process of the next version: it doubles reported limits, and learns all others again."""

    def double(packed: quota_codec.Record) -> quota_codec.Record | None:
        kind, *rest = packed["learned"]
        return {**packed, "learned": [kind, *rest[:2], 2 * rest[2], rest[3]]} if kind == "told" else None

    version = quota_codec.RECORD_VERSION + 1
    migrations = (*schema.MIGRATIONS, Migration(len(schema.MIGRATIONS) + 1, "quota records of the next version", ()))

    @contextmanager
    def be_newer() -> Iterator[None]:
        with monkeypatch.context() as then:
            then.setattr(quota_codec, "RECORD_VERSION", version)
            then.setattr(quota_codec, "_UPGRADES", (*quota_codec._UPGRADES, double))
            then.setattr(file, "MIGRATIONS", migrations)
            then.setattr(file, "_FORMAT", migrations[-1].number)
            then.setattr(read_state, "_FORMAT", migrations[-1].number)
            then.setattr(metadata, "FORMAT", metadata.FORMAT + 1)
            then.setattr(store_connection, "FORMAT", metadata.FORMAT)
            yield

    return be_newer


def open_pool(store: str, lease_ttl: float = 30.0) -> CredentialCoordinator:
    names = ("reported", "estimated")
    keys = [Credential(f"sk-version-{name}-0123456789", name=name, labels={"key": name}) for name in names]
    return CredentialCoordinator(keys, store=store, lease_ttl=lease_ttl)


def hear(pool: CredentialCoordinator) -> None:
    """Learn a limit from an answer."""
    with pool.acquire(labels={"key": "reported"}, timeout=60.0) as lease:
        lease.report(Signal(Event.OK, readings=(Reading("requests", 600.0, 599.0, window=60.0, source="x-left"),)))


def search(pool: CredentialCoordinator) -> None:
    """Begin to estimate a limit after a refusal."""
    with pool.acquire(labels={"key": "estimated"}, timeout=60.0) as lease:
        lease.report(Signal(Event.LIMITED, None, evidence=("429",), status=429))


def learned(pool: CredentialCoordinator) -> dict[str, Limits]:
    return {state.name: [(each.dimension, each.amount) for each in state.limits] for state in pool.snapshot()}


def read_format(store: str) -> int:
    if store.startswith("sqlite"):
        with closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as connection:
            return int(connection.execute("pragma user_version").fetchone()[0])
    with closing(shared_server().client()) as client:
        return int(client.hget(parse_redis_url(store).key("meta"), "format"))


def test_a_process_of_version_0_1_0_refuses_a_store_of_this_version(store: str) -> None:
    open_pool(store).close()

    assert read_format(store) > FORMAT_OF_0_1_0[store.partition(":")[0]]  # its own check, when it opens a store


def test_every_version_of_the_records_has_a_conversion_and_a_format() -> None:
    names = [migration.name for migration in schema.MIGRATIONS]

    assert len(quota_codec._UPGRADES) == quota_codec.RECORD_VERSION
    assert [f"quota records of version {1 + each}" in names for each in range(quota_codec.RECORD_VERSION)] == [True]


def test_a_newer_process_converts_learned_limits_or_learns_them_again(store: str, newer: Callable[[], Any]) -> None:
    ttl = 1.0  # a server that has just started grants nothing for so long
    with closing(open_pool(store, ttl)) as pool:
        hear(pool)
        search(pool)
        assert learned(pool)["reported"] == [("requests", 600.0)]
        assert len(learned(pool)["estimated"]) == 1

    with newer():
        with closing(open_pool(store, ttl)) as pool:
            assert learned(pool) == {"reported": [("requests", 1200.0)], "estimated": []}
            hear(pool)
            assert learned(pool)["reported"] == [("requests", 600.0)]
        with closing(open_pool(store, ttl)) as pool:  # its own records are not converted again
            assert learned(pool)["reported"] == [("requests", 600.0)]


def test_a_newer_process_beside_an_older_one_is_told_so(store: str, newer: Callable[[], Any]) -> None:
    why = "processes of an older agentos are using it"
    with closing(open_pool(store)), newer(), pytest.raises(StoreUnavailable, match=why):
        open_pool(store)

    with newer():
        open_pool(store).close()


def test_an_older_process_beside_a_newer_one_is_told_so(store: str, newer: Callable[[], Any]) -> None:
    with newer():
        pool = open_pool(store)
    with pytest.raises(StoreTooNew, match="use the newer agentos that made it"):
        open_pool(store)
    with newer():
        pool.close()


def test_an_older_process_that_was_away_while_a_newer_one_came_is_told_so(newer: Callable[[], Any]) -> None:
    store = shared_server().url(fresh_pool())
    older = open_pool(store)
    with closing(shared_server().client()) as client:
        client.delete(parse_redis_url(store).key("expiry"))  # as if its session had expired
    with newer():
        open_pool(store).close()

    with closing(older), pytest.raises(StoreTooNew):
        older.acquire(timeout=60.0)


def test_a_record_of_a_newer_version_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match=r"it has version 99, and this agentos knows versions up to \d+"):
        quota_codec.upgrade_record({"version": 99})
