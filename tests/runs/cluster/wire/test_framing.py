"""Frames are sent in order and in pieces, and a heartbeat never waits for the end of a long one."""

from __future__ import annotations

import asyncio

import pytest

from agentos.runs.cluster.wire.framing import FramedConnection
from agentos.runs.cluster.wire.messages import PIECE_SIZE, WINDOW, Frame, FrameKind, FrameReader, pack_frame

LONG = Frame(FrameKind.REPORT, 7, b"x" * (3 * PIECE_SIZE))
SHORT = Frame(FrameKind.REPORT, 8, b"y")
BEAT = Frame(FrameKind.BEAT, 1, b"")


class Network(asyncio.Transport):
    """Takes so many writes, and then no more until it is told to."""

    def __init__(self, stream: FramedConnection, room: int) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closed = False
        self._stream = stream
        self._room = room
        stream.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data
        self._room -= 1
        if self._room == 0:
            self._stream.pause_writing()

    def make_room(self) -> None:
        self._room = 1_000
        self._stream.resume_writing()

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    @property
    def frames(self) -> list[Frame]:
        return list(FrameReader().feed(bytes(self.sent)))


@pytest.fixture
def stream() -> FramedConnection:
    return FramedConnection(FrameReader())


def test_a_beat_overtakes_a_long_frame(stream: FramedConnection) -> None:
    network = Network(stream, room=1)

    stream.send(pack_frame(*LONG))
    stream.send_urgent(pack_frame(*BEAT))
    network.make_room()

    assert network.frames == [BEAT, LONG]


def test_what_is_not_urgent_keeps_its_order(stream: FramedConnection) -> None:
    network = Network(stream, room=1)

    stream.send(pack_frame(*LONG))
    stream.send(pack_frame(*SHORT))
    network.make_room()

    assert network.frames == [LONG, SHORT]


def test_no_more_is_sent_than_the_network_takes(stream: FramedConnection) -> None:
    network = Network(stream, room=2)

    stream.send(pack_frame(*LONG))

    assert len(network.sent) < 2 * PIECE_SIZE + 100


def test_no_more_is_under_way_than_the_other_side_has_confirmed(stream: FramedConnection) -> None:
    network = Network(stream, room=10_000)
    longer = Frame(FrameKind.REPORT, 7, b"x" * (3 * WINDOW))

    stream.send(pack_frame(*longer))
    sent_at_first = len(network.sent)
    other = FramedConnection(FrameReader())
    back = Network(other, room=10_000)
    came = list(other.read(bytes(network.sent)))
    rest = len(network.sent)
    while not came:
        assert not list(stream.read(bytes(back.sent)))
        back.sent.clear()
        came = list(other.read(bytes(network.sent[rest:])))
        rest = len(network.sent)

    assert sent_at_first < 1.1 * WINDOW
    assert came == [longer]


def test_it_closes_after_what_was_to_be_sent(stream: FramedConnection) -> None:
    network = Network(stream, room=1)

    stream.send(pack_frame(*LONG))
    stream.close()
    closed_before = network.closed
    network.make_room()

    assert not closed_before
    assert network.closed
    assert network.frames == [LONG]


def test_once_closed_it_sends_nothing_more(stream: FramedConnection) -> None:
    network = Network(stream, room=1)

    stream.close()
    stream.send(pack_frame(*SHORT))
    stream.send_urgent(pack_frame(*BEAT))

    assert network.frames == []


def test_cut_off_it_drops_what_waits(stream: FramedConnection) -> None:
    network = Network(stream, room=1)

    stream.send(pack_frame(*LONG))
    stream.abort()

    assert network.closed
    assert network.frames == []
