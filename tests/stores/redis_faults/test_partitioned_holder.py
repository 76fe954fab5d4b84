"""A holder that cannot reach the server stops by its own clock before its slot is granted to another process."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ...tcp_proxy import TcpProxy
from ..pool_processes import Child, eventually, keys
from .fault_scenario import GRACE, STEADY, TTL, Scene, let_pass, lost, said

CUTS: dict[str, Callable[[TcpProxy], None]] = {
    "cut": TcpProxy.cut,
    "silent": TcpProxy.silence,
    "no replies": lambda proxy: proxy.silence(requests=False),
}


@pytest.fixture
def holder(scene: Scene, proxy: TcpProxy) -> Child:
    """Behind the proxy."""
    return scene.child(keys(1), proxy=proxy)


@pytest.fixture
def successor(scene: Scene) -> Child:
    """With a connection of its own."""
    return scene.child(keys(1), ttl=STEADY)


@pytest.mark.parametrize("how", CUTS)
def test_a_holder_that_is_cut_off_for_less_than_its_time_keeps_its_lease(
    scene: Scene, proxy: TcpProxy, how: str
) -> None:
    holder, successor = scene.child(ttl=STEADY, proxy=proxy), scene.child(ttl=STEADY)
    token = holder.do("acquire", timeout=20.0)["token"]
    successor.begin("wait", "acquire", requester="successor", timeout=20.0)
    eventually(lambda: successor.do("waits", requester="successor"))
    eventually(just_renewed(scene, holder))

    CUTS[how](proxy)
    let_pass(STEADY / 4)
    proxy.heal()

    healed_at = time.monotonic()
    assert bool(proxy.cuts) == (how == "cut")
    eventually(lambda: scene.due()[holder.pid] > healed_at + 3 * STEADY / 4)  # renewed since
    assert holder.do("held", token=token)
    assert lost(holder, token) == 0
    released = holder.ask("release", token=token)
    assert released.got is True
    answer = successor.outcome("wait")
    assert answer.got["token"] > token
    assert answer.ended >= released.began


def just_renewed(scene: Scene, child: Child) -> Callable[[], bool]:
    """Return whether most of its time is left, so that a part of it can be cut off."""
    return lambda: scene.due().get(child.pid, 0.0) > time.monotonic() + 0.95 * STEADY


@pytest.mark.parametrize(("how", "times"), [("cut", 2), ("cut", 5), ("silent", 2), ("no replies", 2)])
def test_a_holder_that_is_cut_off_for_longer_stops_before_another_has_the_slot_and_comes_back(
    scene: Scene, holder: Child, successor: Child, proxy: TcpProxy, how: str, times: float
) -> None:
    token = holder.do("acquire", timeout=20.0)["token"]
    holder.begin("watch", "until_lost", token=token)
    successor.begin("wait", "acquire", requester="successor", timeout=20.0)
    eventually(lambda: successor.do("waits", requester="successor"))

    CUTS[how](proxy)
    cut_at = time.monotonic()
    answer = successor.outcome("wait")
    let_pass(cut_at + times * TTL - time.monotonic())

    eventually(lambda: said(holder, f"redis://127.0.0.1:{proxy.port}"))  # it has noticed
    assert bool(proxy.cuts) == (how == "cut")
    assert holder.outcome("watch").got <= answer.ended
    assert answer.ended <= cut_at + STEADY + GRACE
    assert answer.got["token"] > token
    proxy.heal()
    assert holder.do("held", token=token) is False
    assert holder.do("release", token=token) is False
    assert holder.ask("reveal", token=token).error == "LeaseLost"
    eventually(lambda: lost(holder, token) == 1)
    assert holder.ask("acquire", timeout=0.3).error == "NoCredentialAvailable"  # no second grant of the slot
    holder.begin("again", "acquire", timeout=20.0)
    assert successor.do("held", token=answer.got["token"])
    released = successor.ask("release", token=answer.got["token"])
    assert released.got is True
    again = holder.outcome("again")
    assert again.got["token"] > answer.got["token"]
    assert again.ended >= released.began
