"""UdpWakeup wakes the waiting thread, from this process and from another."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agentos.stores.sqlite.udp_wakeup import PAUSE, LocalWakeup, UdpWakeup, create_wakeup

from ...background_threads import PATIENCE, Background

SESSION = "0f" * 16


class Hours:
    """The clock by which a bell takes its pauses; a test moves it."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hours() -> Hours:
    return Hours()


@pytest.fixture
def bell(hours: Hours) -> Iterator[UdpWakeup]:
    bell = UdpWakeup(hours)
    bell.session = SESSION
    yield bell
    bell.close()


@pytest.fixture
def other() -> Iterator[UdpWakeup]:
    other = UdpWakeup()
    yield other
    other.close()


def call_from_another_process(port: int) -> None:
    code = f"from agentos.stores.sqlite.udp_wakeup import UdpWakeup; UdpWakeup().notify_peers({port}, {SESSION!r})"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=PATIENCE)


def test_a_notification_from_another_process_wakes_the_waiting_thread(bell: UdpWakeup) -> None:
    waiting = Background(bell.acquire)
    assert not bell.was_notified

    call_from_another_process(bell.port)

    assert waiting.result()
    assert bell.was_notified


def test_many_wakeups_wake_once(bell: UdpWakeup, other: UdpWakeup) -> None:
    for _ in range(20):
        other.notify_peers(bell.port, SESSION)
        bell.release()

    assert bell.acquire(timeout=PATIENCE)
    assert not bell.acquire(False)
    other.notify_peers(bell.port, SESSION)
    assert bell.acquire(timeout=PATIENCE)  # what comes later is heard


def test_a_wait_without_a_wakeup_ends_at_its_timeout(bell: UdpWakeup) -> None:
    assert not bell.acquire(False)
    assert not bell.acquire(True, 0.001)
    assert not bell.was_notified


def test_who_is_woken_knows_whether_another_process_called(bell: UdpWakeup, other: UdpWakeup) -> None:
    bell.release()
    assert bell.acquire(timeout=PATIENCE)
    assert not bell.was_notified

    bell.release()
    other.notify_peers(bell.port, SESSION)
    bell.release()
    assert bell.acquire(timeout=PATIENCE)

    assert bell.was_notified


def test_notifying_never_blocks_without_a_reader(bell: UdpWakeup, other: UdpWakeup) -> None:
    """More than any buffer holds: who waited then would wait for ever."""
    for _ in range(20_000):
        other.notify_peers(bell.port, SESSION)
        bell.release()

    assert bell.acquire(False)
    assert not bell.acquire(False)


def test_notifying_an_unused_port_is_harmless(bell: UdpWakeup) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
        gone.bind(("127.0.0.1", 0))
        port = gone.getsockname()[1]

    for nobody in (port, LocalWakeup.port):
        bell.notify_peers(nobody, SESSION)
        assert not bell.acquire(False)
        bell.release()
        assert bell.acquire(timeout=PATIENCE)


def test_a_closed_wakeup_ends_waits_and_can_still_be_notified(bell: UdpWakeup, other: UdpWakeup) -> None:
    bell.close()

    assert bell.acquire()
    bell.release()
    bell.notify_peers(other.port, SESSION)
    other.notify_peers(bell.port, SESSION)
    bell.close()
    assert not other.acquire(False)


def test_a_wakeup_is_reachable_from_this_machine_only(bell: UdpWakeup) -> None:
    assert bell._socket.getsockname() == ("127.0.0.1", bell.port)


# -- datagrams of others --------------------------------------------------------------------------------------------


@pytest.fixture
def stranger() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        yield stranger


def flood(stranger: socket.socket, bell: UdpWakeup, count: int = 2_000) -> None:
    """More than the buffer of the port has room for."""
    for number in range(count):
        stranger.sendto(b"!." if number % 2 else b"!", ("127.0.0.1", bell.port))


@pytest.mark.parametrize("said", [b"", b"!", b".", SESSION.encode()[:-1], b"0" * 32, SESSION.encode() + b"0" * 60])
def test_a_datagram_without_the_id_of_the_session_is_no_call(
    bell: UdpWakeup, stranger: socket.socket, said: bytes
) -> None:
    stranger.sendto(said, ("127.0.0.1", bell.port))

    assert bell.acquire(timeout=PATIENCE)  # but it may have displaced a call, so whoever waits looks
    assert not bell.was_notified


def test_before_there_is_a_session_no_datagram_is_a_call(hours: Hours, stranger: socket.socket) -> None:
    new = UdpWakeup(hours)
    stranger.sendto(b"", ("127.0.0.1", new.port))

    assert new.acquire(timeout=PATIENCE)
    assert not new.was_notified
    new.close()


def test_a_flood_wakes_the_waiting_thread_once_per_pause(
    bell: UdpWakeup, hours: Hours, stranger: socket.socket
) -> None:
    looks = 0
    for _ in range(20):  # two pauses
        flood(stranger, bell, 200)
        looks += bell.acquire(False)
        hours.now += PAUSE / 10

    assert looks == 2
    assert not bell.was_notified


def test_a_wait_that_ends_within_a_pause_keeps_its_timeout(
    bell: UdpWakeup, hours: Hours, stranger: socket.socket
) -> None:
    flood(stranger, bell)
    assert bell.acquire(False)
    flood(stranger, bell)

    assert not bell.acquire(True, PAUSE / 2)
    assert not bell.acquire(True, 0.0)
    hours.now += PAUSE
    assert bell.acquire(True, PATIENCE)


def test_a_wait_without_an_end_goes_on_after_the_pause(bell: UdpWakeup, stranger: socket.socket) -> None:
    flood(stranger, bell)
    assert bell.acquire(False)
    flood(stranger, bell)

    assert bell.acquire()
    assert not bell.was_notified


def test_a_notification_in_a_pause_is_read_when_the_pause_ends(
    bell: UdpWakeup, other: UdpWakeup, hours: Hours, stranger: socket.socket
) -> None:
    stranger.sendto(b"!", ("127.0.0.1", bell.port))
    assert bell.acquire(False)

    other.notify_peers(bell.port, SESSION)
    assert not bell.acquire(False)
    hours.now += PAUSE

    assert bell.acquire(False)
    assert bell.was_notified


def test_a_call_that_finds_no_room_is_made_up_for_by_a_look(
    bell: UdpWakeup, other: UdpWakeup, hours: Hours, stranger: socket.socket
) -> None:
    flood(stranger, bell)
    other.notify_peers(bell.port, SESSION)

    assert bell.acquire(False)


def test_a_notification_among_unknown_datagrams_is_read_at_once(
    bell: UdpWakeup, other: UdpWakeup, stranger: socket.socket
) -> None:
    stranger.sendto(b"!", ("127.0.0.1", bell.port))
    other.notify_peers(bell.port, SESSION)
    stranger.sendto(b"!", ("127.0.0.1", bell.port))

    assert bell.acquire(False)
    assert bell.was_notified


def test_calls_are_never_paused_for(bell: UdpWakeup, other: UdpWakeup) -> None:
    for _ in range(50):
        other.notify_peers(bell.port, SESSION)
        bell.release()
        assert bell.acquire(False)


def test_a_local_wakeup_works_in_a_pause_during_a_flood(bell: UdpWakeup, hours: Hours, stranger: socket.socket) -> None:
    flood(stranger, bell)
    assert bell.acquire(False)
    flood(stranger, bell)

    waiting = Background(bell.acquire)
    bell.release()
    assert waiting.result()

    bell.release()
    assert bell.acquire(False)
    assert not bell.acquire(False)


# -- where there are no sockets -------------------------------------------------------------------------------------


def test_without_sockets_only_the_own_process_can_wake(other: UdpWakeup, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no sockets here")

    monkeypatch.setattr(socket, "socket", refuse)
    deaf = create_wakeup()

    assert isinstance(deaf, LocalWakeup)
    deaf.notify_peers(other.port, SESSION)
    assert not other.acquire(False)
    assert not deaf.acquire(False)
    for _ in range(3):
        deaf.release()
    assert deaf.acquire()
    assert not deaf.was_notified
    assert not deaf.acquire(True, 0.001)
    deaf.close()
    assert deaf.acquire()
