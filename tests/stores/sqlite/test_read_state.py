"""The pool's file can be read without secrets, in any state, and without blocking the processes that use it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agentos import NotAStore, StoreDamaged, StoreTooNew, StoreUnavailable
from agentos.stores.sqlite import read_state
from agentos.stores.sqlite.read_state import read_store
from agentos.stores.sqlite.reset import reset_credentials
from agentos.util.sqlite.connect import connect

from ...contract.store_contract import SHARED, Place
from ..admin_helpers import credential, opened, refuse, seen, spec, state


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(SHARED[0], tmp_path)
    yield place
    place.close()


def file_of(place: Place) -> Path:
    return place.folder / "pool.db"


# -- looking ----------------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_nothing_to_look_at_and_is_not_made(tmp_path: Path, place: Place) -> None:
    assert read_store(tmp_path / "none" / "pool.db", [], place.clock) is None
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_just_being_made_is_nothing_to_look_at(tmp_path: Path, place: Place) -> None:
    file_of(place).touch()

    assert read_store(file_of(place), [], place.clock) is None


def test_leases_of_an_expired_session_are_not_shown(place: Place) -> None:
    pool = place.open(credential("alice"), lease_ttl=30.0)
    _held = pool.acquire_nowait("item-7")
    with closing(sqlite3.connect(file_of(place))) as file, file:
        file.execute("update sessions set expires_at = ?", (place.clock.now(),))

    assert seen(place)["alice"].holders == ()


def test_a_cooldown_ends_at_the_same_wall_clock_time_after_a_reboot(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = opened(place, "alice")
    pool.acquire_nowait("item-7").rate_limited(600)
    until = place.clock.wall() + 600
    monkeypatch.setattr(read_state, "read_boot_id", lambda: "another boot")
    place.clock.wall_offset += 900.0  # the monotonic clock began anew
    place.clock.advance(-900.0 + 60.0)

    found = seen(place)["alice"]

    assert found.state.state in ("cooling", "parked")
    assert found.state.rate_limited_until == pytest.approx(until)
    assert found.holders == ()


def test_reading_does_not_wait_for_writers_and_changes_nothing(place: Place) -> None:
    opened(place, "alice")
    with closing(sqlite3.connect(file_of(place), isolation_level=None)) as writer:
        writer.execute("begin immediate")
        writer.execute("update credentials set evidence = 'half written'")
        before = file_of(place).read_bytes()

        assert state(place, "alice").state == "available"

        assert file_of(place).read_bytes() == before
        writer.execute("rollback")


def test_a_file_in_a_folder_that_cannot_be_written_can_be_looked_at(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There SQLite cannot make the files beside it; root can, so that it has to be told not to."""
    refuse(opened(place, "alice"))

    def connect_there(uri: str) -> sqlite3.Connection:
        if "immutable" not in uri:
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise error
        return connect(uri)

    monkeypatch.setattr("agentos.stores.sqlite.read_state.connect", connect_there)

    assert state(place, "alice").state == "dead"

    file_of(place).with_name("pool.db-wal").touch()
    with pytest.raises(StoreUnavailable):
        read_store(file_of(place), [], place.clock)


# -- files that are no store ------------------------------------------------------------------------------------------


def test_another_file_is_refused(tmp_path: Path, place: Place) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to be looked at as one" * 100)
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as file:
        file.execute("create table mine(x)")

    for path in (text, other):
        with pytest.raises(NotAStore):
            read_store(path, [], place.clock)
    with pytest.raises(StoreUnavailable):
        read_store(tmp_path, [], place.clock)


def test_a_newer_store_is_refused(place: Place) -> None:
    opened(place, "alice").close()
    with closing(sqlite3.connect(file_of(place))) as file:
        file.execute("pragma user_version = 99")

    with pytest.raises(StoreTooNew):
        read_store(file_of(place), [], place.clock)


@pytest.mark.parametrize("record", ["not json", '{"blocks": 3}', '{"limits": {"x": {"learned": ["told"]}}}'])
def test_a_record_that_cannot_be_read_is_said_to_be_damaged(place: Place, record: str) -> None:
    opened(place, "alice").close()
    with closing(sqlite3.connect(file_of(place))) as file, file:
        file.execute("update quotas set record = ?", (record,))

    with pytest.raises(StoreDamaged):
        read_store(file_of(place), [spec("alice")], place.clock)


# -- clearing ---------------------------------------------------------------------------------------------------------


def test_a_file_that_stays_locked_is_given_up_and_said_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(place, "alice")
    monkeypatch.setattr("agentos.stores.sqlite.reset._INSIST", 0.05)
    with closing(sqlite3.connect(file_of(place), isolation_level=None)) as writer:
        writer.execute("begin immediate")

        with pytest.raises(StoreUnavailable, match="locked"):
            reset_credentials(file_of(place), ["alice"], [], place.clock)
