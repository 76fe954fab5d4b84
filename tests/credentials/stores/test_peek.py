"""Whoever has no secret can look at the pool's file and have something forgotten, and nobody at work is held up."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from agentos import (
    Credential,
    CredentialCoordinator,
    CredentialState,
    Limit,
    NotAStore,
    StoreDamaged,
    StoreTooNew,
    StoreUnavailable,
)
from agentos.credentials._core.records import KeySpec
from agentos.credentials._stores import peek
from agentos.credentials._stores.clearing import clear
from agentos.credentials._stores.peek import Sighting, look
from agentos.providers import Event, Reading, Signal
from agentos.sqlite.connect import connect

from ...contract.stores import SHARED, Place, ended

KEYS: dict[str, dict[str, Any]] = {
    "alice": {"slots": 2, "rpm": 60, "tpm": 10_000, "rpd": 1_000},
    "bob": {"quota": "acme", "slots": 3},
    "carol": {"quota": "acme"},
    "dave": {"slots": "auto"},
    "erin": {"limits": [Limit("requests", 5, window="sliding"), Limit("tokens", 100, model="m-*")]},
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(SHARED[0], tmp_path)
    yield place
    place.close()


def credential(name: str, secret: str | None = None, **facts: Any) -> Credential:
    return Credential(secret or f"planted-secret-of-{name}", name=name, **(KEYS.get(name, {}) | facts))


def opened(place: Place, *names: str) -> CredentialCoordinator:
    return place.open(*(credential(name) for name in names or KEYS))


def spec(name: str) -> KeySpec:
    made = credential(name)
    slots = 1 if made.slots == "auto" else made.slots
    return KeySpec(name, slots, made.quota, made.limits, auto=made.slots == "auto")


def file_of(place: Place) -> Path:
    return place.folder / "pool.db"


def seen(place: Place, *specs: KeySpec) -> dict[str, Sighting]:
    found = look(file_of(place), specs, place.clock)
    assert found is not None
    return {each.state.name: each for each in found}


def state(place: Place, name: str, *specs: KeySpec) -> CredentialState:
    return seen(place, *specs)[name].state


def limited(delay: float, *readings: Reading) -> Signal:
    return Signal(Event.LIMITED, delay, readings=readings, evidence=("header retry-after",), status=429)


def on(pool: CredentialCoordinator, name: str) -> Any:
    """A lease on that very credential."""
    others = []
    while (lease := pool.acquire_nowait()).name != name:
        others.append(lease)
    for other in others:
        other.release()
    return lease


def refuse(pool: CredentialCoordinator) -> None:
    """Its first credential is dead, and the process ends."""
    with pool.lease() as lease:
        lease.rejected("401")
    pool.close()
    assert pool.is_over()


# -- looking ----------------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_nothing_to_look_at_and_is_not_made(tmp_path: Path, place: Place) -> None:
    assert look(tmp_path / "none" / "pool.db", [], place.clock) is None
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_just_being_made_is_nothing_to_look_at(tmp_path: Path, place: Place) -> None:
    file_of(place).touch()

    assert look(file_of(place), [], place.clock) is None


def test_with_what_is_stated_it_looks_as_it_does_from_inside(place: Place) -> None:
    pool = opened(place)
    held = [pool.acquire_nowait(f"item-{number}") for number in range(5)]
    place.clock.advance(1.0)
    for lease in held:
        lease.settle(input_tokens=30, output_tokens=20)
    held[0].report(limited(20.0, Reading("requests", 500, 20, window=60.0, source="x-remaining")))
    held[1].rate_limited(7_200, model="m-large")
    held[2].rejected("401 invalid_api_key")
    held[3].release()
    place.clock.advance(0.5)

    outside = [each.state for each in seen(place, *map(spec, KEYS)).values()]

    def comparable(row: CredentialState) -> dict[str, Any]:
        facts = asdict(row)
        facts["limits"] = sorted(str(limit) for limit in row.limits)
        return {name: fact for name, fact in facts.items() if name != "reserved_by"}

    assert [comparable(row) for row in outside] == [comparable(row) for row in pool.snapshot()]


def test_nothing_stated_still_shows_states_and_what_was_learned(place: Place) -> None:
    pool = opened(place, "alice", "bob")
    on(pool, "alice").report(limited(20.0, Reading("requests", 500, 20, window=60.0, source="x-remaining")))
    on(pool, "bob").rejected("401")

    rows = {name: each.state for name, each in seen(place).items()}

    assert (rows["bob"].state, rows["bob"].why) == ("dead", "401")
    assert [(limit.dimension, limit.amount, limit.learned) for limit in rows["alice"].limits] == [
        ("requests", 500.0, True)
    ]


def test_holders_are_named_with_their_process(place: Place) -> None:
    pool = opened(place, "alice")
    lease = pool.acquire_nowait("item-7")

    assert seen(place, spec("alice"))["alice"].holders == (f"item-7 (process {os.getpid()})",)
    lease.release()
    assert seen(place, spec("alice"))["alice"].holders == ()


def test_more_leases_than_are_stated_here_are_as_many_slots(place: Place) -> None:
    pool = opened(place, "bob")
    held = [pool.acquire_nowait() for _ in range(2)]

    row = state(place, "bob")

    assert all(lease.held for lease in held)
    assert (row.state, row.leases, row.slots) == ("leased", 2, 2)


def test_leases_of_a_process_that_was_not_heard_of_for_too_long_are_not_shown(place: Place) -> None:
    pool = place.open(credential("alice"), lease_ttl=30.0)
    pool.acquire_nowait("item-7")
    with closing(sqlite3.connect(file_of(place))) as file, file:
        file.execute("update sessions set expires_at = ?", (place.clock.now(),))

    assert seen(place)["alice"].holders == ()


def test_a_cooling_is_until_the_same_hour_after_a_reboot(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = opened(place, "alice")
    pool.acquire_nowait("item-7").rate_limited(600)
    until = place.clock.wall() + 600
    monkeypatch.setattr(peek, "time_base", lambda: "another boot")
    place.clock.wall_offset += 900.0  # the monotonic clock began anew
    place.clock.advance(-900.0 + 60.0)

    found = seen(place)["alice"]

    assert found.state.state in ("cooling", "parked")
    assert found.state.rate_limited_until == pytest.approx(until)
    assert found.holders == ()


def test_of_several_secrets_of_one_name_the_newest_is_shown_and_said_so(place: Place) -> None:
    refuse(place.open(credential("alice", "the-first-secret")))
    place.open(credential("alice", "the-second-secret"))

    found = seen(place)["alice"]

    assert (found.state.state, found.secrets) == ("available", 2)


def test_of_several_secrets_of_one_name_one_in_use_is_shown(place: Place) -> None:
    first = place.open(credential("alice", "the-first-secret"))
    place.open(credential("alice", "the-second-secret"))

    lease = first.acquire_nowait("item-7")

    assert lease.held
    assert seen(place)["alice"].holders == (f"item-7 (process {os.getpid()})",)


def test_the_quota_of_a_credential_is_known_by_its_lease_or_by_what_is_stated(place: Place) -> None:
    pool = place.open(credential("bob"), credential("carol"), credential("zoe", quota="other"))
    on(pool, "carol").rate_limited(600)  # its lease goes on

    assert state(place, "carol").state == "leased"
    assert state(place, "carol").quota == "acme"
    assert state(place, "bob").state == "available"  # nobody says whose quota it shares
    assert state(place, "bob", spec("bob")).state == "cooling"


def test_the_only_named_quota_is_that_of_a_credential_without_its_own(place: Place) -> None:
    pool = opened(place, "alice", "bob")
    lease = on(pool, "bob")
    lease.rate_limited(600)
    lease.release()

    assert (state(place, "bob").quota, state(place, "bob").state) == ("acme", "cooling")


def test_looking_does_not_wait_for_whoever_writes_and_changes_nothing(place: Place) -> None:
    opened(place, "alice")
    with closing(sqlite3.connect(file_of(place), isolation_level=None)) as writer:
        writer.execute("begin immediate")
        writer.execute("update credentials set evidence = 'half written'")
        before = file_of(place).read_bytes()

        assert state(place, "alice").state == "available"

        assert file_of(place).read_bytes() == before
        writer.execute("rollback")


def test_a_file_nobody_uses_can_be_looked_at(place: Place) -> None:
    refuse(opened(place, "alice"))

    assert state(place, "alice").state == "dead"
    assert opened(place, "alice").snapshot()[0].state == "dead"


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

    monkeypatch.setattr("agentos.credentials._stores.peek.connect", connect_there)

    assert state(place, "alice").state == "dead"

    file_of(place).with_name("pool.db-wal").touch()
    with pytest.raises(StoreUnavailable):
        look(file_of(place), [], place.clock)


# -- files that are no store ------------------------------------------------------------------------------------------


def test_another_file_is_refused(tmp_path: Path, place: Place) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to be looked at as one" * 100)
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as file:
        file.execute("create table mine(x)")

    for path in (text, other):
        with pytest.raises(NotAStore):
            look(path, [], place.clock)
    with pytest.raises(StoreUnavailable):
        look(tmp_path, [], place.clock)


def test_a_newer_store_is_refused(place: Place) -> None:
    opened(place, "alice").close()
    with closing(sqlite3.connect(file_of(place))) as file:
        file.execute("pragma user_version = 99")

    with pytest.raises(StoreTooNew):
        look(file_of(place), [], place.clock)


@pytest.mark.parametrize("record", ["not json", '{"blocks": 3}', '{"limits": {"x": {"learned": ["told"]}}}'])
def test_a_record_that_cannot_be_read_is_said_to_be_damaged(place: Place, record: str) -> None:
    opened(place, "alice").close()
    with closing(sqlite3.connect(file_of(place))) as file, file:
        file.execute("update quotas set record = ?", (record,))

    with pytest.raises(StoreDamaged):
        look(file_of(place), [spec("alice")], place.clock)


# -- clearing ---------------------------------------------------------------------------------------------------------


def test_what_is_cleared_is_as_if_it_had_never_been_used(place: Place) -> None:
    pool = opened(place, "alice", "dave")
    for name in ("alice", "dave"):
        lease = on(pool, name)
        lease.report(limited(600.0, Reading("requests", 500, 0, window=60.0, source="x-remaining")))
        lease.rejected("401")
        lease.release()
    before = {row.name: row.state for row in pool.snapshot()}

    done = clear(file_of(place), ["alice", "dave"], [spec("alice"), spec("dave")], place.clock)

    assert before == {"alice": "dead", "dave": "dead"}
    assert [(each.name, each.secrets) for each in done] == [("alice", 1), ("dave", 1)]
    fresh = CredentialCoordinator([credential("alice"), credential("dave")], clock=place.clock)
    assert [(row.state, row.slots, row.limits) for row in pool.snapshot()] == [
        (row.state, row.slots, row.limits) for row in fresh.snapshot()
    ]


@pytest.mark.parametrize("name", ["bob", "carol"])
def test_whoever_waits_for_what_is_cleared_starts_soon(place: Place, name: str) -> None:
    pool = opened(place, "bob", "carol")
    lease = pool.acquire_nowait()
    lease.rate_limited(3_600)
    lease.release()
    waiter = place.waiting(pool, "item-8")

    clear(file_of(place), [name], [spec("bob"), spec("carol")], place.clock)

    place.soon(ended(waiter))
    assert waiter.result().held


def test_slots_that_were_found_out_are_forgotten_by_those_at_work_too(place: Place) -> None:
    pool = place.open(credential("dave"))
    for _ in range(12):
        leases = [pool.acquire_nowait() for _ in range(pool.snapshot()[0].slots)]
        for lease in leases:
            lease.report(Signal(Event.OK))
            lease.release()
    grown = pool.snapshot()[0].slots

    clear(file_of(place), ["dave"], [], place.clock)

    assert grown > 1
    assert pool.snapshot()[0].slots == 1


def test_leases_in_force_stay_when_their_credential_is_cleared(place: Place) -> None:
    pool = opened(place, "alice")
    lease = pool.acquire_nowait("item-7")

    clear(file_of(place), ["alice"], [spec("alice")], place.clock)

    assert lease.held
    assert seen(place, spec("alice"))["alice"].state.leases == 1
    assert lease.release()


def test_every_secret_of_a_name_is_cleared(place: Place) -> None:
    for secret in ("the-first-secret", "the-second-secret"):
        refuse(place.open(credential("alice", secret)))

    (done,) = clear(file_of(place), ["alice", "alice", "nobody"], [], place.clock)

    assert (done.name, done.secrets) == ("alice", 2)
    for secret in ("the-first-secret", "the-second-secret"):
        assert place.open(credential("alice", secret)).snapshot()[0].state == "available"


def test_what_belongs_to_a_quota_nobody_knows_stays(place: Place) -> None:
    pool = place.open(credential("bob"), credential("zoe", quota="other"))
    lease = on(pool, "bob")
    lease.rate_limited(600)
    lease.release()

    (done,) = clear(file_of(place), ["bob"], [], place.clock)

    assert done.quota is None
    assert {row.name: row.state for row in pool.snapshot()}["bob"] == "cooling"


def test_a_file_that_stays_locked_is_given_up_and_said_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(place, "alice")
    monkeypatch.setattr("agentos.credentials._stores.clearing._INSIST", 0.05)
    with closing(sqlite3.connect(file_of(place), isolation_level=None)) as writer:
        writer.execute("begin immediate")

        with pytest.raises(StoreUnavailable, match="locked"):
            clear(file_of(place), ["alice"], [], place.clock)
