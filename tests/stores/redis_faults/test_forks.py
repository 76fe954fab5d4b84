"""A forked process leaves the connections that it inherited alone."""

from __future__ import annotations

import pytest

from ..pool_processes import keys
from .fault_scenario import AFTERWARDS, LONG, TOKENS, Scene


@pytest.mark.parametrize("slots", [1, 2], ids=["nothing is free", "something is free"])
def test_a_pool_that_was_forked_says_to_the_child_that_each_process_needs_its_own(scene: Scene, slots: int) -> None:
    parent = scene.child(keys(1, slots), ttl=LONG)
    parent.do("acquire", timeout=20.0)

    (in_child,) = parent.do("fork", commands=[("acquire", {"timeout": 0.5})])

    assert in_child["error"] == "StoreUnavailable"
    assert "in each process" in in_child["text"]


@pytest.mark.parametrize("how", ["return", "sys.exit", "_exit"])
def test_whatever_a_forked_child_does_with_the_pool_of_its_parent_the_parent_is_unharmed(
    scene: Scene, how: str
) -> None:
    credentials = keys(1, limits=TOKENS)
    parent = scene.child(credentials, ttl=LONG)
    token = parent.do("acquire", timeout=20.0)["token"]
    before = scene.window.leases()
    commands = [(what, {"token": token, **more}) for what, more in AFTERWARDS.items()]

    parent.do("fork", how=how, commands=[("acquire", {"timeout": 0.1}), *commands, ("close", {})])

    assert scene.window.leases() == before
    assert parent.do("held", token=token)
    assert parent.do("release", token=token)
    assert parent.do("acquire", timeout=20.0)["token"] > token


def test_a_forked_child_can_make_a_pool_of_its_own(scene: Scene) -> None:
    parent = scene.child(keys(2), ttl=LONG)
    mine = parent.do("acquire")
    own = {"url": scene.url(), "credentials": keys(2), "pool": "own", "lease_ttl": LONG}

    in_child = parent.do(
        "fork",
        commands=[
            ("open", own),
            ("acquire", {"pool": "own", "timeout": 20.0}),
            ("acquire", {"pool": "own", "timeout": 0.0}),
        ],
    )

    assert in_child[1]["value"]["name"] != mine["name"]
    assert in_child[2]["error"] == "NoCredentialAvailable"
    assert parent.do("held", token=mine["token"])
    assert parent.do("release", token=mine["token"])
    assert parent.do("acquire", timeout=20.0)


def test_a_child_that_was_forked_in_the_middle_of_a_step_is_refused_the_pool_of_its_parent(scene: Scene) -> None:
    parent = scene.child(keys(3), ttl=LONG)

    found = parent.do("fork_in_the_middle", times=10, commands=[("acquire", {"timeout": 1.0})])

    assert [answer["error"] for answers in found for answer in answers or [{"error": "it hangs"}]] == [
        "StoreUnavailable"
    ] * 10


def test_a_child_that_was_forked_in_the_middle_of_a_step_can_make_a_pool_of_its_own(scene: Scene) -> None:
    parent = scene.child(keys(3), ttl=LONG)
    own = {"url": scene.url(), "credentials": keys(3), "pool": "own", "lease_ttl": LONG}

    found = parent.do(
        "fork_in_the_middle",
        times=10,
        commands=[
            ("open", own),
            ("acquire", {"pool": "own", "timeout": 20.0}),
            ("release_all", {}),
            ("close", {"pool": "own"}),
        ],
    )

    assert len(found) == 10, f"child {len(found)} hangs"
    assert [answer for answers in found for answer in answers if "error" in answer] == []
    assert parent.do("acquire", timeout=20.0)
