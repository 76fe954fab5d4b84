"""A server is killed, restarts with its saved data or empty, or is flushed while it runs."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from ..pool_processes import Child, eventually, keys
from .fault_scenario import AWHILE, STEADY, Scene, lost, said


@pytest.fixture
def holder(scene: Scene) -> Child:
    return scene.child(keys(2), ttl=STEADY)


@pytest.fixture
def other(scene: Scene) -> Child:
    return scene.child(keys(2), ttl=STEADY)


def used(*children: Child) -> int:
    """They all have had leases; the last token."""
    for child in children:
        for _ in range(5):
            token: int = child.do("acquire", timeout=20.0)["token"]
            assert child.do("release_all") == [True]
    return token


def lose_the_server(scene: Scene, other: Child) -> None:
    """It is killed, and that was noticed."""
    scene.server.kill()
    answer = other.ask("acquire", timeout=0.05)
    assert answer.error == "NoCredentialAvailable"
    assert answer.ended - answer.began < AWHILE
    eventually(lambda: said(other, "redis://"))


def test_a_server_that_comes_back_with_what_it_had_grants_nothing_for_one_time_to_live_and_says_so(
    scene: Scene, holder: Child, other: Child
) -> None:
    used(holder, other)
    held = holder.do("acquire", timeout=20.0)
    lose_the_server(scene, other)
    restarted_at = time.monotonic()
    scene.server.start()

    answer = other.ask("acquire", timeout=20.0)

    assert restarted_at + STEADY <= answer.ended <= restarted_at + 2 * STEADY + AWHILE
    assert answer.got["name"] != held["name"]
    assert answer.got["token"] > held["token"]
    eventually(lambda: said(other, "start"))  # why it had to wait
    assert holder.do("held", token=held["token"])  # it was away for less than that
    assert holder.do("release", token=held["token"])
    assert lost(holder, held["token"]) == 0
    assert other.do("acquire", timeout=20.0)["name"] == held["name"]


def test_a_server_that_comes_back_empty_grants_nothing_for_one_time_to_live_and_no_token_twice(
    scene: Scene, holder: Child, other: Child
) -> None:
    used(holder, other)
    held = holder.do("acquire", timeout=20.0)
    holder.begin("watch", "until_lost", token=held["token"])
    lose_the_server(scene, other)
    restarted_at = time.monotonic()
    scene.server.restart(empty=True)

    answer = other.ask("acquire_all", slots=2, timeout=20.0)

    assert holder.outcome("watch").got <= answer.ended

    assert restarted_at + STEADY <= answer.ended <= restarted_at + 2 * STEADY + AWHILE
    assert min(token for _, token in answer.got) > held["token"]
    eventually(lambda: said(other, "start"))
    assert holder.do("held", token=held["token"]) is False
    assert holder.do("release", token=held["token"]) is False
    assert holder.ask("reveal", token=held["token"]).error == "LeaseLost"
    eventually(lambda: lost(holder, held["token"]) == 1)
    assert all(other.do("release_all"))
    assert holder.do("acquire", timeout=20.0)["token"] > max(token for _, token in answer.got)


def test_a_token_that_only_one_process_knows_is_not_given_out_again_by_an_empty_server(
    scene: Scene, holder: Child, other: Child
) -> None:
    """The one that knows fewer comes first to the new server."""
    highest = used(other, holder)
    holder.stop()
    scene.server.restart(empty=True)
    other.do("acquire", timeout=20.0)
    holder.go_on()

    assert holder.do("acquire", timeout=20.0)["token"] > highest


def test_a_server_that_is_emptied_under_its_holders_ends_their_leases_and_grants_nothing_for_a_while(
    scene: Scene, holder: Child, other: Child
) -> None:
    held = holder.do("acquire", timeout=20.0)
    emptied_at = time.monotonic()
    with closing(scene.server.client()) as client:
        assert client.flushall()
        assert client.dbsize() == 0

    answer = other.ask("acquire_all", slots=2, timeout=20.0)

    assert emptied_at + STEADY <= answer.ended <= emptied_at + 2 * STEADY + AWHILE
    assert min(token for _, token in answer.got) > held["token"]
    eventually(lambda: said(other, "epoch"))
    eventually(lambda: lost(holder, held["token"]) == 1)
    assert holder.do("held", token=held["token"]) is False
    assert holder.do("release", token=held["token"]) is False
    assert all(other.do("release_all"))
    assert holder.do("acquire", timeout=20.0)["token"] > max(token for _, token in answer.got)
