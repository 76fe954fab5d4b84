"""PubSubWakeup wakes the maintenance thread and reconnects while it waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from agentos.stores.redis.pubsub_wakeup import PubSubWakeup
from agentos.stores.redis.server_time import server_time_for
from agentos.stores.redis.store_connection import StoreConnection
from agentos.stores.redis.url import RedisLocation
from agentos.util.clock import SystemClock

from ...background_threads import Background
from ...redis_server import PATIENCE, shared_server

pytestmark = pytest.mark.usefixtures("unhurried")


@pytest.fixture
def link(place: RedisLocation) -> Iterator[StoreConnection]:
    link = StoreConnection(place, server_time_for(SystemClock()), 30.0)
    link.open()
    yield link
    link.close()


@pytest.fixture
def bell(link: StoreConnection) -> Iterator[PubSubWakeup]:
    bell = PubSubWakeup(link)
    yield bell
    bell.close()


def publish(bell: PubSubWakeup, link: StoreConnection) -> int:
    """Return the number of subscribers that received it."""
    with closing(shared_server().client()) as client:
        return int(client.publish(link.wakeup_channel(f"{bell.name}.1"), ""))


def test_without_a_wakeup_the_wait_times_out(bell: PubSubWakeup) -> None:
    assert not bell.acquire(False)
    assert not bell.acquire(True, 0.001)


def test_a_local_wakeup_is_not_a_notification(bell: PubSubWakeup) -> None:
    bell.release()

    assert bell.acquire(True, PATIENCE)
    assert not bell.was_notified


def test_a_wakeup_by_another_process_is_a_notification(bell: PubSubWakeup, link: StoreConnection) -> None:
    assert publish(bell, link) == 1

    assert bell.acquire(True, PATIENCE)
    assert bell.was_notified


def test_a_thread_that_waits_is_woken_by_another_process(bell: PubSubWakeup, link: StoreConnection) -> None:
    waiter = Background(lambda: bell.acquire())

    publish(bell, link)

    assert waiter.result()


def test_many_notifications_wake_once(bell: PubSubWakeup, link: StoreConnection) -> None:
    for _ in range(5):
        bell.release()
        publish(bell, link)
    while bell.acquire(True, 0.05):
        pass

    assert not bell.acquire(False)


def test_a_subscription_that_was_cut_is_made_again_and_counts_as_a_call(
    bell: PubSubWakeup, link: StoreConnection
) -> None:
    with closing(shared_server().client()) as client:
        mine = [each for each in client.client_list(_type="pubsub") if each["id"] == subscriber(bell)]
        client.client_kill_filter(_id=mine[0]["id"])

    assert bell.acquire(True, PATIENCE)

    assert bell.was_notified
    assert publish(bell, link) == 1


def subscriber(bell: PubSubWakeup) -> str:
    """The server's number of the connection that listens."""
    wire = bell._connection
    assert wire is not None
    with closing(shared_server().client()) as client:
        address = "{}:{}".format(*wire._connection._sock.getsockname())
        return str(next(each["id"] for each in client.client_list() if each["addr"] == address))


def test_a_lost_connection_for_steps_is_restored_by_the_waiting_thread(
    bell: PubSubWakeup, link: StoreConnection
) -> None:
    link.drop("by a test")

    assert bell.acquire(True, PATIENCE)

    assert link.handshake is not None


def test_a_connection_lost_during_a_wait_is_restored_at_once(
    bell: PubSubWakeup, link: StoreConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    rang, waits = bell._read_wakeups, threading.Event()

    def watched(wait: float) -> bool:
        if wait:
            waits.set()
        return rang(wait)

    monkeypatch.setattr(bell, "_read_wakeups", watched)
    waiter = Background(lambda: bell.acquire())
    assert waits.wait(PATIENCE)

    link.drop("by a test")

    assert waiter.result()
    assert link.handshake is not None


def test_a_wait_on_a_closed_wakeup_returns(link: StoreConnection) -> None:
    bell = PubSubWakeup(link)
    bell.close()

    assert bell.acquire()
    bell.release()
