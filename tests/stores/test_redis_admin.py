"""A pool on a server can be read and reset from outside, in any state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentos import NotAStore, StoreDamaged, StoreTooNew, StoreUnavailable
from agentos.stores.admin import format_location, read_pause, read_store, reset_credentials
from agentos.stores.redis import read_state, reset
from agentos.stores.redis.resp_connection import RespConnection
from agentos.stores.redis.store_connection import StoreConnection
from agentos.stores.redis.url import RedisLocation
from agentos.stores.sqlite.location import parse_location
from agentos.util.clock import Clock, SystemClock

from ..contract.store_contract import STORES, Place
from ..redis_server import shared_server
from .admin_helpers import at, credential, on, opened, refuse, seen, spec, state

(REDIS,) = [store for store in STORES if store.name == "redis"]
NOBODY = "redis://planted-user:planted-password@127.0.0.1:1/0?pool=night"


pytestmark = pytest.mark.usefixtures("unhurried")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(REDIS, tmp_path)
    yield place
    place.close()


@pytest.fixture
def server() -> Iterator[Any]:
    with closing(shared_server().client()) as client:
        yield client


def key(place: Place, name: str) -> str:
    there = at(place)
    assert isinstance(there, RedisLocation)
    return there.key(name)


def test_leases_of_an_expired_session_are_not_shown(place: Place, server: Any) -> None:
    pool = opened(place, "alice")
    _held = pool.acquire_nowait("item-7")
    for session in server.zrange(key(place, "expiry"), 0, -1):
        server.zadd(key(place, "expiry"), {session: place.clock.now() - 1.0})

    assert seen(place)["alice"].holders == ()
    assert state(place, "alice").state == "available"


def test_a_process_of_another_machine_is_named_with_it(place: Place, server: Any) -> None:
    pool = opened(place, "alice")
    lease = pool.acquire_nowait("item-7")
    records = server.hgetall(key(place, "records"))
    (name,) = [name for name in records if name.startswith("s")]
    here = f'"{read_state.HOST}"'
    assert here in records[name]
    server.hset(key(place, "records"), name, records[name].replace(here, '"big"'))

    assert lease.held
    (holder,) = seen(place)["alice"].holders
    assert holder.startswith("item-7 (process ")
    assert holder.endswith(" on big)")


def test_instants_are_by_the_clock_of_who_looks(place: Place) -> None:
    pool = opened(place, "alice")
    on(pool, "alice").rate_limited(600)

    assert state(place, "alice").rate_limited_until == pytest.approx(place.clock.wall() + 600)


def test_why_no_lease_starts_is_told_as_long_as_that_lasts(place: Place, server: Any) -> None:
    opened(place, "alice")
    assert read_pause(at(place), place.clock) is None

    server.hset(key(place, "meta"), mapping={"paused_until": repr(place.clock.now() + 20.0), "why": "it was flushed"})

    assert str(read_pause(at(place), place.clock)) == "no lease starts in the next 20 s: it was flushed"
    place.clock.advance(20.0)
    assert read_pause(at(place), place.clock) is None


def test_nothing_rests_where_nobody_has_been(place: Place) -> None:
    assert read_pause(at(place), place.clock) is None
    assert read_pause(place.folder / "pool.db", place.clock) is None


# -- clearing beside others -------------------------------------------------------------------------------------------


def test_what_somebody_does_in_the_middle_of_it_is_not_lost(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = opened(place, "alice")
    on(pool, "alice").rejected("401")
    read = read_state.read_store_copy
    copies = []

    def overtaken(link: StoreConnection, wire: RespConnection, clock: Clock) -> Any:
        copies.append(read(link, wire, clock))
        if len(copies) == 1:
            pool.mark_rate_limited("planted-secret-of-alice", 600)
        return copies[-1]

    monkeypatch.setattr(reset, "read_store_copy", overtaken)

    reset_credentials(at(place), ["alice"], [spec("alice")], place.clock)

    assert len(copies) == 2
    assert state(place, "alice", spec("alice")).rate_limited_until == 0.0


def test_a_store_that_others_never_leave_alone_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = opened(place, "alice")
    read = read_state.read_store_copy

    def overtaken(link: StoreConnection, wire: RespConnection, clock: Clock) -> Any:
        copy = read(link, wire, clock)
        pool.mark_rate_limited("planted-secret-of-alice", 600)
        return copy

    monkeypatch.setattr(reset, "read_store_copy", overtaken)
    monkeypatch.setattr(reset, "_INSIST", 0.02)

    with pytest.raises(StoreUnavailable, match="other processes keep changing the same records"):
        reset_credentials(at(place), ["alice"], [spec("alice")], place.clock)


def test_clearing_nothing_writes_nothing(place: Place) -> None:
    refuse(opened(place, "alice"))
    before = place.kept()

    assert reset_credentials(at(place), ["nobody"], [], place.clock) == []
    assert place.kept() == before


# -- what is no store -------------------------------------------------------------------------------------------------


def test_a_server_that_does_not_answer_is_named_without_its_password() -> None:
    place = parse_location(NOBODY, {})
    assert isinstance(place, RedisLocation)

    with pytest.raises(StoreUnavailable) as refused:
        read_store(place, [], SystemClock())

    assert format_location(place) == "redis://127.0.0.1:1/0?pool=night"
    assert format_location(place) in str(refused.value)
    assert "planted" not in str(refused.value)


def test_a_key_of_somebody_elses_is_refused(place: Place, server: Any) -> None:
    server.hset(key(place, "meta"), "colour", "red")

    with pytest.raises(NotAStore):
        read_store(at(place), [], place.clock)


def test_a_key_of_another_type_is_refused(place: Place, server: Any) -> None:
    server.set(key(place, "meta"), "red")

    with pytest.raises(NotAStore):
        read_store(at(place), [], place.clock)


def test_a_newer_store_is_refused(place: Place, server: Any) -> None:
    opened(place, "alice").close()
    server.hset(key(place, "meta"), "format", "99")

    with pytest.raises(StoreTooNew):
        read_store(at(place), [], place.clock)


@pytest.mark.parametrize("record", ["not json", "[]", '["a", "b"]\n[1]'])
def test_a_record_that_cannot_be_read_is_said_to_be_damaged(place: Place, server: Any, record: str) -> None:
    place.open(credential("alice")).close()
    server.hset(key(place, "records"), "c1", record)

    with pytest.raises(StoreDamaged):
        read_store(at(place), [spec("alice")], place.clock)
    with pytest.raises(StoreDamaged):
        reset_credentials(at(place), ["alice"], [], place.clock)
