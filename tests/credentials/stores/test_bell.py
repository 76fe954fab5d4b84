"""Waking the thread that waits, from this process and from another."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agentos.credentials._stores.bell import Bell, DeafBell, make_bell

from ...workflows.helpers import PATIENCE, Background


@pytest.fixture
def bell() -> Iterator[Bell]:
    bell = Bell()
    yield bell
    bell.close()


@pytest.fixture
def other() -> Iterator[Bell]:
    other = Bell()
    yield other
    other.close()


def call_from_another_process(port: int) -> None:
    code = f"from agentos.credentials._stores.bell import Bell; Bell().call({port})"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=PATIENCE)


def test_a_call_from_another_process_wakes_whoever_waits(bell: Bell) -> None:
    waiting = Background(bell.acquire)
    assert not bell.called

    call_from_another_process(bell.port)

    assert waiting.result()
    assert bell.called


def test_however_often_it_was_rung_it_wakes_once(bell: Bell, other: Bell) -> None:
    for _ in range(20):
        other.call(bell.port)
        bell.release()

    assert bell.acquire(timeout=PATIENCE)
    assert not bell.acquire(False)
    other.call(bell.port)
    assert bell.acquire(timeout=PATIENCE)  # what comes later is heard


def test_a_bell_that_is_not_rung_is_waited_for_no_longer_than_told(bell: Bell) -> None:
    assert not bell.acquire(False)
    assert not bell.acquire(True, 0.001)
    assert not bell.called


def test_who_is_woken_knows_whether_another_process_called(bell: Bell, other: Bell) -> None:
    bell.release()
    assert bell.acquire(timeout=PATIENCE)
    assert not bell.called

    bell.release()
    other.call(bell.port)
    bell.release()
    assert bell.acquire(timeout=PATIENCE)

    assert bell.called


def test_ringing_never_waits_though_nobody_listens(bell: Bell, other: Bell) -> None:
    """More than any buffer holds: who waited then would wait for ever."""
    for _ in range(20_000):
        other.call(bell.port)
        bell.release()

    assert bell.acquire(False)
    assert not bell.acquire(False)


def test_ringing_where_nobody_is_does_no_harm(bell: Bell) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
        gone.bind(("127.0.0.1", 0))
        port = gone.getsockname()[1]

    for nobody in (port, DeafBell.port):
        bell.call(nobody)
        assert not bell.acquire(False)
        bell.release()
        assert bell.acquire(timeout=PATIENCE)


def test_a_bell_that_is_closed_keeps_nobody_waiting_and_can_still_be_rung(bell: Bell, other: Bell) -> None:
    bell.close()

    assert bell.acquire()
    bell.release()
    bell.call(other.port)
    other.call(bell.port)
    bell.close()
    assert not other.acquire(False)


def test_a_bell_can_be_rung_by_this_machine_only(bell: Bell) -> None:
    assert bell._socket.getsockname() == ("127.0.0.1", bell.port)


# -- where there are no sockets -------------------------------------------------------------------------------------


def test_without_sockets_a_bell_is_rung_by_its_own_process_only(other: Bell, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no sockets here")

    monkeypatch.setattr(socket, "socket", refuse)
    deaf = make_bell()

    assert isinstance(deaf, DeafBell)
    deaf.call(other.port)
    assert not other.acquire(False)
    assert not deaf.acquire(False)
    for _ in range(3):
        deaf.release()
    assert deaf.acquire()
    assert not deaf.called
    assert not deaf.acquire(True, 0.001)
    deaf.close()
    assert deaf.acquire()
