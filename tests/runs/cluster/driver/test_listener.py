"""Connections that do not identify themselves are bounded and closed, and workers can still join."""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from agentos.runs.cluster.driver import listener
from agentos.runs.cluster.wire.certificate import build_client_context
from agentos.runs.cluster.wire.messages import FrameKind

from ....redis_server import eventually
from .test_driver_server import IDENTITY, TTL, WAIT, Open


@pytest.fixture
def opened() -> Iterator[Open]:
    opened = Open(TTL)
    yield opened
    opened.end()


@pytest.fixture
def connections() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connect(opened: Open, connections: ExitStack) -> socket.socket:
    """Somebody who connects and says nothing."""
    return connections.enter_context(socket.create_connection(opened.address, timeout=WAIT))


def is_cut(connection: socket.socket) -> bool:
    """Wait until the driver has ended it. Raises TimeoutError if it never does."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def is_there(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        connection.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    return False


def test_of_too_many_silent_connections_the_oldest_are_cut_and_a_worker_joins(
    opened: Open, connections: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_UNIDENTIFIED", 5)
    monkeypatch.setattr(listener, "IDENTIFY_TIMEOUT", TTL)  # nobody is cut for that
    silent = [connect(opened, connections) for _ in range(20)]

    seat = opened.seat()

    assert seat.until(FrameKind.WELCOME)
    assert all(is_cut(each) for each in silent[:15])
    assert all(is_there(each) for each in silent[16:])


def test_those_that_have_identified_themselves_are_not_counted(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_UNIDENTIFIED", 2)
    seats = []
    for number in range(6):
        seats.append(opened.seat(f"link-{number}"))
        assert seats[-1].until(FrameKind.WELCOME)

    for number, seat in enumerate(seats):
        assert opened.ask_of(seat, number).worker.id == f"link-{number}"


@pytest.mark.parametrize("shakes_hands", [False, True])
def test_a_connection_that_does_not_identify_itself_in_time_is_cut_and_a_silent_worker_is_not(
    opened: Open, connections: ExitStack, monkeypatch: pytest.MonkeyPatch, shakes_hands: bool
) -> None:
    seat = opened.seat()
    assert seat.until(FrameKind.WELCOME)
    silent = connect(opened, connections)
    if shakes_hands:
        silent = connections.enter_context(build_client_context(IDENTITY.certificate).wrap_socket(silent))
    eventually(lambda: opened.hub._listener._unidentified)
    assert is_there(silent)
    silent.settimeout(WAIT)

    monkeypatch.setattr(opened.hub._loop, "time", lambda: time.monotonic() + listener.IDENTIFY_TIMEOUT)
    opened.hub._calls.call(lambda: None)  # it looks at the clock

    assert is_cut(silent)
    assert opened.ask_of(seat, 1).number == 1


def test_without_descriptors_it_goes_on_listening_and_says_so(
    opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, failures = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")]

    def fail_once(listening: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop()
        return accept(listening)

    monkeypatch.setattr(listener, "_AFTER_A_FAILURE", 0.01)
    monkeypatch.setattr(socket.socket, "accept", fail_once)
    with caplog.at_level(logging.WARNING, "agentos"):
        seat = opened.seat()

        assert seat.until(FrameKind.WELCOME)

    assert any("no worker can connect for now" in record.message for record in caplog.records)
