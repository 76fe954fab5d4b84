"""An SQLite store whose process was killed while remote workers may use its leases."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.pool.store_protocol import SlotGranted
from agentos.stores.sqlite import file, schema
from agentos.stores.sqlite.file import StoreFile
from agentos.stores.sqlite.read_state import read_store
from agentos.testing import FakeClock

from .test_store import TTL, Place, Process, in_flight

OUT_FOR = 10.0


class Lender:
    def disconnect_workers(self) -> None: ...


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "pool.sqlite")
    yield place
    place.close()


def vanish(process: Process) -> None:
    """As when it is killed: nothing more is written, and nobody is kept out by it."""
    process.file.leave()
    process.file.close()
    process.store._left = True


def vanished(place: Place, **how: Any) -> tuple[Lender, tuple[int, int]]:
    """Its lender, and the key that it had leased."""
    process, lender = place.process(), Lender()
    process.store.delegate(lender, OUT_FOR)
    key = process.enrol("key-a")
    process.get(key, "item-1", **how)
    vanish(process)
    return lender, key


def test_what_a_dead_process_had_used_elsewhere_is_free_when_nobody_can_be_using_it(place: Place) -> None:
    _, key = vanished(place)

    newcomer = place.process()
    newcomer.enrol("key-a")

    assert not isinstance(newcomer.ask(key), SlotGranted)
    place.clock.advance(OUT_FOR - 0.5)
    assert not isinstance(newcomer.ask(key), SlotGranted)
    place.clock.advance(0.5)
    assert isinstance(newcomer.ask(key), SlotGranted)


def test_those_who_come_one_after_the_other_do_not_put_off_its_end(place: Place) -> None:
    _, key = vanished(place)

    for _ in range(3):
        vanish(place.process())
        place.clock.advance(OUT_FOR / 3)
    newcomer = place.process()
    newcomer.enrol("key-a")

    assert isinstance(newcomer.ask(key), SlotGranted)


def test_a_dead_process_that_was_not_renewed_for_long_has_nothing_left(place: Place) -> None:
    _, key = vanished(place)
    place.clock.advance(TTL)

    newcomer = place.process()

    assert isinstance(newcomer.ask(key), SlotGranted)


def test_what_a_dead_process_had_given_back_or_never_lent_is_free_at_once(place: Place) -> None:
    lends, keeps, lender = place.process(), place.process(), Lender()
    lends.store.delegate(lender, OUT_FOR)
    lent, kept = lends.enrol("key-a"), keeps.enrol("key-b")
    lends.end(lent, lends.get(lent))
    keeps.get(kept)
    vanish(lends)
    vanish(keeps)

    newcomer = place.process()

    assert isinstance(newcomer.ask(lent), SlotGranted)
    assert isinstance(newcomer.ask(kept), SlotGranted)
    assert len(place.rows("select id from sessions")) == 1


def test_a_request_of_unknown_cost_is_not_in_flight_for_ever_when_its_process_is_gone(place: Place) -> None:
    _, key = vanished(place, guess=True)

    newcomer = place.process()
    newcomer.enrol("key-a")
    before = in_flight(place.record(key[1]))
    place.clock.advance(OUT_FOR)
    newcomer.get(key, guess=True)

    assert before == 0
    assert in_flight(place.record(key[1])) == 1


def test_who_waits_sees_that_the_holder_is_gone_and_until_when_it_counts(place: Place) -> None:
    _, key = vanished(place)

    newcomer = place.process()
    newcomer.enrol("key-a")
    found = read_store(place.path, [], place.clock)

    (holder,) = newcomer.holders[key[0]]
    assert holder.startswith("worker of item-1 (process ")
    assert ", which has ended: it may be in use on another machine until " in holder
    assert found is not None
    assert found[0].holders == (holder,)


def test_who_joins_beside_others_leaves_the_leases_of_one_that_is_there(place: Place) -> None:
    process, lender = place.process(), Lender()
    process.store.delegate(lender, OUT_FOR)
    key = process.enrol("key-a")
    process.get(key)

    beside = place.process()
    beside.enrol("key-a")
    place.clock.advance(OUT_FOR)

    assert not isinstance(beside.ask(key), SlotGranted)


def test_a_file_of_the_first_format_can_be_looked_at_and_is_brought_to_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = tmp_path / "pool.sqlite", FakeClock()
    with monkeypatch.context() as then:
        then.setattr(file, "MIGRATIONS", schema.MIGRATIONS[:1])
        then.setattr(file, "_FORMAT", 1)
        old = StoreFile(path, clock)
        old.connection.execute("insert into credentials values (1, 'f', 'key-a', 'alive', '', 0.0)")
        old.connection.execute("insert into quotas values (1, 'key f', '{}')")
        old.connection.execute(
            "insert into sessions(id, expires_at, weight, served, bell, pid) values ('s',9e9,1,0,0,7)"
        )
        old.connection.execute(
            "insert into leases(credential, token, session, request, granted_at, quota) values (1, 1, 's', 'r', 0.0, 1)"
        )
        old.leave()
        old.close()

    before = read_store(path, [], clock)
    new = StoreFile(path, clock)
    new.leave()
    new.close()
    after = read_store(path, [], clock)

    assert before is not None
    assert before[0].holders == ("process 7",)
    assert after is not None
    assert after[0].holders == ()
    with sqlite3.connect(path) as connection:
        assert connection.execute("select max(number) from migrations").fetchone() == (file._FORMAT,)
    connection.close()
