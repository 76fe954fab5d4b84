"""Metadata after a connection: when grants are paused, depending on what a process remembers and the server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentos.stores.redis.metadata import (
    FORMAT,
    KnownStoreState,
    ServerInfo,
    StoreActivity,
    StoreMetadata,
    parse_metadata,
    reconcile_metadata,
)

TTL = 30.0
NOW = 5000.0
OLD = ServerInfo("run-1", uptime=1000.0, time=NOW)
YOUNG = replace(OLD, run="run-2", uptime=10.0)
OTHER = replace(OLD, run="run-2")
TOKEN = 6_000_000  # above all that a store on such a server begins with
META = StoreMetadata("v1", FORMAT, "ab", "epoch-1", "", "run-1", longest=TTL, sequence=7, token=TOKEN)
KNOWN = KnownStoreState("epoch-1", sequence=7, token=TOKEN, longest=TTL)
NOBODY, RUN_OUT, IN_FORCE = StoreActivity(), StoreActivity(sessions=True), StoreActivity(sessions=True, in_force=True)


def come(
    meta: StoreMetadata | None,
    server: ServerInfo = OLD,
    known: KnownStoreState | None = None,
    activity: StoreActivity = RUN_OUT,
    *,
    ttl: float = TTL,
) -> StoreMetadata:
    return reconcile_metadata(meta, server, known, ttl=ttl, activity=activity, salt="cd")


# -- no store is there ---------------------------------------------------------------------------------------------


def test_a_fresh_store_on_an_old_server_grants_at_once() -> None:
    assert come(None).paused_until <= NOW


def test_a_fresh_store_on_a_young_server_waits_until_that_has_lived_for_one_time_to_live() -> None:
    made = come(None, YOUNG)

    assert made.paused_until == NOW + TTL - 10
    assert made.why == "the server had been up for only 10 s: leases from before its start may still be in use"


def test_a_store_that_is_gone_is_made_anew_and_waits_and_gives_no_token_twice() -> None:
    made = come(None, known=KNOWN)

    assert (made.paused_until, made.token, made.before) == (NOW + TTL, TOKEN, "epoch-1")
    assert made.epoch != "epoch-1"
    assert "epoch is gone" in made.why


def test_a_new_store_where_processes_still_listen_waits_as_one_that_is_gone() -> None:
    made = come(None, activity=StoreActivity(listening=True))

    assert made.paused_until == NOW + TTL
    assert "epoch is gone" in made.why


def test_a_store_that_is_gone_waits_for_the_longest_lease_that_was_known_in_it() -> None:
    made = come(None, known=replace(KNOWN, longest=300.0))

    assert (made.paused_until, made.longest) == (NOW + 300.0, 300.0)


def test_a_new_store_gives_no_token_that_one_before_it_may_have_given() -> None:
    before = come(None)

    later = come(None, replace(OLD, time=NOW + 60.0))

    assert later.token >= before.token + 60_000


# -- one is there --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [None, KNOWN, replace(KNOWN, token=TOKEN - 2, sequence=2)])
def test_a_store_that_is_as_it_was_stays_as_it_is(known: KnownStoreState | None) -> None:
    assert come(META, known=known, activity=IN_FORCE) is META


@pytest.mark.parametrize("known", [replace(KNOWN, token=TOKEN + 1), replace(KNOWN, sequence=8)])
def test_where_numbers_have_gone_back_a_new_epoch_begins_and_waits(known: KnownStoreState) -> None:
    new = come(META, known=known)

    assert (new.before, new.paused_until, new.token) == ("epoch-1", NOW + TTL, known.token)
    assert new.epoch != "epoch-1"
    assert "newest entries are gone" in new.why


def test_who_knew_another_epoch_makes_the_one_it_finds_wait() -> None:
    new = come(META, known=KnownStoreState("epoch-0", 900, TOKEN + 90))

    assert (new.epoch, new.before, new.paused_until, new.token) == ("epoch-1", "epoch-0", NOW + TTL, TOKEN + 90)


def test_the_second_process_of_a_lost_epoch_does_not_pause_grants_again() -> None:
    first = come(META, known=KnownStoreState("epoch-0", 900, TOKEN + 90))

    later = come(first, replace(OLD, time=NOW + 20), KnownStoreState("epoch-0", 900, TOKEN + 89))

    assert later is first


def test_a_restarted_server_pauses_grants_for_the_remaining_ttl() -> None:
    new = come(META, YOUNG, KNOWN)

    assert (new.run, new.epoch, new.paused_until) == ("run-2", "epoch-1", NOW + TTL - 10)


def test_the_second_process_at_a_restarted_server_changes_nothing() -> None:
    new = come(META, YOUNG, KNOWN)

    assert come(new, YOUNG, KNOWN) is new


def test_another_old_server_waits_if_the_store_is_in_use() -> None:
    new = come(META, OTHER, KNOWN, IN_FORCE)

    assert (new.run, new.paused_until) == ("run-2", NOW + TTL)


def test_another_old_server_grants_at_once_if_the_store_is_unused() -> None:
    new = come(META, OTHER)

    assert (new.run, new.paused_until <= NOW) == ("run-2", True)


@pytest.mark.parametrize("token", [5, TOKEN])
def test_another_run_of_the_server_gives_no_token_that_it_may_have_forgotten(token: int) -> None:
    new = come(replace(META, token=token), YOUNG)

    assert new.token >= max(token + 1_000_000, NOW * 1000)


# -- how long leases last ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", [YOUNG, OTHER])
def test_a_pause_lasts_for_the_longest_ttl_of_the_present_processes(server: ServerInfo) -> None:
    new = come(replace(META, longest=300.0), server, activity=IN_FORCE)

    assert new.paused_until == NOW + 300.0 - (10 if server is YOUNG else 0)


def test_a_longer_ttl_is_written_to_the_metadata() -> None:
    assert come(META, ttl=60.0, activity=IN_FORCE).longest == 60.0


def test_a_longer_ttl_extends_the_pause_of_a_young_server() -> None:
    new = come(replace(META, longest=1.0, run="run-2"), YOUNG)

    assert (new.paused_until, new.longest) == (NOW + TTL - 10, TTL)


def test_a_longer_ttl_at_an_old_server_pauses_nothing() -> None:
    new = come(replace(META, longest=1.0))

    assert (new.paused_until, new.why) == (0.0, "")


@pytest.mark.parametrize("activity", [RUN_OUT, IN_FORCE, StoreActivity(listening=True)])
def test_a_longer_time_to_live_is_remembered_while_anybody_may_have_it(activity: StoreActivity) -> None:
    assert come(META, ttl=1.0, activity=activity) is META


def test_a_longer_time_to_live_is_forgotten_when_all_have_left() -> None:
    assert come(META, ttl=1.0, activity=NOBODY).longest == 1.0


# -- as it is written ----------------------------------------------------------------------------------------------


def test_a_longer_pause_stays() -> None:
    resting = META.paused(NOW + 100, "for long")

    assert come(resting, YOUNG).paused_until == NOW + 100


def test_a_pause_is_in_the_stores_own_time() -> None:
    shifted = META.changed(shift=-120.0)

    assert come(shifted, YOUNG).paused_until == NOW - 120 + TTL - 10


def test_every_change_has_another_version() -> None:
    new = come(META, YOUNG)

    assert len({META.version, new.version, new.changed().version}) == 3


def test_what_is_written_is_read_again() -> None:
    written = META.changed(shift=-1.25, paused_until=1e9, why="so")
    words = [*written.fields(), "sequence", "7", "token", str(TOKEN)]

    assert parse_metadata(dict(zip(words[::2], words[1::2], strict=True))) == written
