"""Slots of holders that die or are suspended go to others, and resumed holders do no harm."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from ..pool_processes import Child, eventually, keys
from .fault_scenario import AFTERWARDS, GRACE, LONG, STEADY, TOKENS, TTL, Scene, lost

HALF = len(AFTERWARDS)
KEYS = keys(2 * HALF, limits=TOKENS)


@pytest.fixture
def successor(scene: Scene) -> Child:
    return scene.child(KEYS, ttl=STEADY)


@pytest.mark.parametrize("trial", range(2))
def test_slots_of_killed_or_suspended_holders_go_to_others_and_resumed_ones_do_no_harm(
    scene: Scene, successor: Child, trial: int
) -> None:
    """Ten holders at a time: five are killed, and five stand still past their time, each to do another thing first."""
    holders = scene.children([[key] for key in KEYS])
    tokens = [holder.do("acquire", timeout=20.0)["token"] for holder in holders]
    stopped, killed = holders[:HALF], holders[HALF:]
    for holder in stopped:
        holder.stop()
    for holder in killed:
        holder.kill()
    since = time.monotonic()
    due = scene.due()
    ends = [due[holder.pid] for holder in holders if holder.pid in due]  # a busy machine may have cost others theirs

    answer = successor.ask("acquire_all", slots=len(KEYS), timeout=20.0, cost={"tokens": 1})

    assert all(holder.stopped for holder in stopped)
    got = dict(answer.got)
    assert got.keys() == {key["name"] for key in KEYS}
    assert min(ends, default=since) <= answer.ended <= since + STEADY + GRACE
    assert min(got.values()) > max(tokens)
    assert sorted(got.values()) == [token for _, token in answer.got]
    before = successor.do("snapshot")

    for holder, token, (first, told) in zip(stopped, tokens, AFTERWARDS.items(), strict=False):
        holder.tell(first, token=token, **told)
        holder.go_on()
    for holder, token, first in zip(stopped, tokens, AFTERWARDS, strict=False):
        found = {first: holder.answer()}
        found |= {what: holder.ask(what, token=token, **told) for what, told in AFTERWARDS.items() if what != first}
        assert found.pop("reveal").error == "LeaseLost"
        assert {what: answer.got for what, answer in found.items()} == dict.fromkeys(found, False)
        eventually(lambda holder=holder, token=token: lost(holder, token) == 1)  # type: ignore[misc]

    assert successor.do("snapshot") == before
    assert [successor.do("held", token=token) for token in got.values()] == [True] * len(got)
    assert successor.do("release_all") == [True] * len(got)
    for holder, key in zip(stopped, KEYS, strict=False):
        again = holder.do("acquire", timeout=20.0, cost={"tokens": 1})
        assert again["name"] == key["name"]
        assert again["token"] > max(got.values())


@pytest.mark.parametrize(("how", "code"), [("return", 0), ("sys.exit", 3), ("exception", 1), ("pool closed", 0)])
def test_a_process_that_ends_gives_back_at_once_what_it_held(scene: Scene, how: str, code: int) -> None:
    holder, successor = scene.child(ttl=LONG), scene.child(ttl=LONG)
    holder.do("acquire", timeout=20.0)
    successor.begin("wait", "acquire", requester="successor", timeout=20.0)
    eventually(lambda: successor.do("waits", requester="successor"))

    asked_at = time.monotonic()
    holder.end(how)

    answer = successor.outcome("wait")
    assert answer.got["name"] == "key-1"
    assert answer.ended - asked_at < LONG / 3
    assert holder.wait()[0] == code


@pytest.mark.parametrize("end", ["forget", "close"])
def test_a_pool_that_is_forgotten_or_closed_gives_back_at_once_what_it_held(scene: Scene, end: str) -> None:
    holder, successor = scene.child(ttl=LONG), scene.child(ttl=LONG)
    token = holder.do("acquire", timeout=20.0)["token"]
    successor.begin("wait", "acquire", requester="successor", timeout=20.0)
    eventually(lambda: successor.do("waits", requester="successor"))

    asked_at = time.monotonic()
    holder.do(end)
    if end == "close":
        assert holder.do("release", token=token)  # it leaves when its last lease is given back

    assert successor.outcome("wait").ended - asked_at < LONG / 3
    eventually(lambda: list(scene.window.pids().values()) == [successor.pid])


def test_no_slot_is_lost_by_processes_that_are_killed_in_the_middle_of_anything(scene: Scene) -> None:
    dice = random.Random(4)
    credentials = [{"name": f"key-{number}", "slots": 1 + number % 3} for number in range(4)]
    slots = Counter({str(each["name"]): int(str(each["slots"])) for each in credentials})
    survivor = scene.child(credentials, ttl=STEADY)
    children = scene.children([credentials] * 12)
    before = scene.window.last_token()
    for child in children:
        child.tell("churn", seed=dice.randrange(1 << 30))
    eventually(lambda: scene.window.last_token() > before + 60, within=120.0, every=0.01)
    for child in children:
        killed_at = child.kill()
    assert scene.tokens()

    answer = survivor.ask("acquire_all", slots=slots.total(), timeout=20.0)

    assert Counter(name for name, _ in answer.got) == slots
    assert answer.ended <= killed_at + STEADY + GRACE
    assert all(survivor.do("release_all"))
    assert scene.tokens() == []


def test_a_lease_is_lost_and_that_is_said_if_the_interpreter_could_run_no_thread_for_longer_than_its_time(
    scene: Scene,
) -> None:
    holder, successor = scene.child(), scene.child(ttl=STEADY)
    token = holder.do("acquire", timeout=20.0)["token"]
    holder.tell("keep_the_interpreter", seconds=2 * TTL)
    holder.tell("held", token=token)
    holder.tell("reveal", token=token)

    got = successor.do("acquire", timeout=20.0)

    kept = holder.answer()
    assert kept.ended - kept.began >= 2 * TTL
    assert holder.answer().got is False
    assert holder.answer().error == "LeaseLost"
    eventually(lambda: lost(holder, token) == 1)
    assert holder.do("release", token=token) is False
    assert successor.do("held", token=got["token"])
