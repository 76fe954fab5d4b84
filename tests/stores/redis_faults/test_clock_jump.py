"""When the server's clock is set, no lease ends early and none stays for ever."""

from __future__ import annotations

import time

import pytest

from ..pool_processes import eventually, keys
from .fault_scenario import AWHILE, STEADY, TTL, Scene, lost, said

JUMPS = [120.0, -3600.0]


@pytest.mark.parametrize("jump", JUMPS)
def test_setting_the_server_clock_ends_no_lease_and_pauses_grants_for_one_ttl(scene: Scene, jump: float) -> None:
    holder, other = scene.child(keys(2), ttl=STEADY), scene.child(keys(2), ttl=STEADY)
    held = holder.do("acquire", timeout=20.0)
    before = scene.server.time() - time.time()
    jumped_at = time.monotonic()
    scene.server.jump(jump)
    assert abs(scene.server.time() - time.time() - before - jump) < 60.0  # it was

    answer = other.ask("acquire", timeout=20.0)

    assert jumped_at + STEADY <= answer.ended <= jumped_at + 2 * STEADY + AWHILE
    assert answer.got["name"] != held["name"]
    eventually(lambda: said(other, "clock") or said(holder, "clock"))
    other.begin("wait", "acquire", requester="other", timeout=20.0)
    eventually(lambda: time.monotonic() > jumped_at + 1.5 * STEADY)  # by then it would have been taken for dead
    assert other.do("waits", requester="other")
    assert holder.do("held", token=held["token"])
    assert lost(holder, held["token"]) == 0
    released = holder.ask("release", token=held["token"])
    assert released.got is True
    waited = other.outcome("wait")
    assert waited.got["name"] == held["name"]
    assert waited.ended >= released.began


@pytest.mark.parametrize("jump", JUMPS)
def test_a_lease_of_a_dead_holder_ends_though_the_clock_was_set(scene: Scene, jump: float) -> None:
    holder, other = scene.child(), scene.child()
    token = holder.do("acquire", timeout=20.0)["token"]
    other.begin("wait", "acquire", timeout=20.0)
    holder.kill()
    scene.server.jump(jump)
    jumped_at = time.monotonic()

    answer = other.outcome("wait")

    assert answer.got["token"] > token
    assert answer.ended <= jumped_at + 2 * TTL + AWHILE


@pytest.mark.parametrize("jumps", [(-3600.0, 3600.0), (100.0, 100.0)], ids=["there and back", "on and on"])
def test_a_clock_set_twice_in_a_moment_ends_no_lease(scene: Scene, jumps: tuple[float, float]) -> None:
    """Whoever hears of the first only when the second has been, too."""
    holder, other = scene.child(ttl=STEADY), scene.child(ttl=STEADY)
    token = holder.do("acquire", timeout=20.0)["token"]
    for jump in jumps:
        scene.server.jump(jump)

    answer = other.ask("acquire", timeout=1.5 * STEADY)

    assert answer.error == "NoCredentialAvailable"
    assert holder.do("held", token=token)
    assert lost(holder, token) == 0
    assert holder.do("release", token=token)
    assert other.do("acquire", timeout=20.0)["token"] > token


@pytest.mark.parametrize("jump", JUMPS)
def test_a_process_that_joins_after_the_clock_was_set_ends_no_live_session(scene: Scene, jump: float) -> None:
    """It knows no other hour; those who do tell before it may end anything."""
    holder = scene.child(ttl=STEADY)
    token = holder.do("acquire", timeout=20.0)["token"]
    scene.server.jump(jump)

    newcomer = scene.child(ttl=STEADY)
    answer = newcomer.ask("acquire", timeout=1.5 * STEADY)

    assert answer.error == "NoCredentialAvailable"
    assert holder.do("held", token=token)
    assert lost(holder, token) == 0
    assert holder.do("release", token=token)
    assert newcomer.do("acquire", timeout=20.0)["token"] > token
