"""The protocol between driver and workers: frames of a kind, a number and a body. This module does no I/O.

Each worker process has one connection to the driver. It begins with ``HELLO`` and the run's password; nothing else is
read before that. Each slot requests an item (``ASK``) and receives one (``ASSIGN``) or ends (``LEAVE``). The attempt's
output and messages are sent as ``DATA`` and its result as ``REPORT``; the worker keeps each until ``DATA_ACK`` or
``REPORT_ACK`` confirms it, because the connection may break and be replaced. ``BEAT`` lists the attempts of a worker;
``BEAT_ACK`` has the status of each. ``DRAIN`` and ``KILL`` are sent at once.

A long frame is sent in pieces of ``PIECE_SIZE`` bytes, each in a frame of its own, so that a heartbeat can be sent
between them: a worker must not look lost because it sends a lot. Only ``WINDOW`` bytes of pieces may be unconfirmed
(``PIECE_ACK``), because all that the network has buffered delays the next heartbeat.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple

from ....version import __version__

FORMAT = f"2 of agentos {__version__}"  # bodies are pickled: both ends need the same version
MAX_FRAME = 1 << 28  # bytes
MAX_HELLO = 1 << 16  # bytes of a HELLO frame before its password was verified
PASSWORD_LENGTH = 32  # bytes
PIECE_SIZE = 1 << 15  # bytes of a frame that are sent at once
WINDOW = 1 << 20  # bytes of pieces that may be unconfirmed

_HEAD = struct.Struct("!IBQ")  # length of the body, kind, number
HEAD_SIZE = _HEAD.size
_DATA = struct.Struct("!QB")
_SECONDS = struct.Struct("!d")


class FrameKind(IntEnum):
    """The type of a frame. Its number is that of a heartbeat, of a request, or the token of an attempt."""

    # sent by workers
    HELLO = 1
    ASK = 2
    REPORT = 3
    DATA = 4  # output or message of a running attempt
    BEAT = 5
    # sent by the driver
    WELCOME = 16
    ASSIGN = 17
    LEAVE = 18  # the slot that made the request ends
    REPORT_ACK = 19
    BEAT_ACK = 20
    DRAIN = 21  # the run stops: finish soon
    KILL = 22  # end this attempt within some seconds
    DATA_ACK = 23  # data up to this number was processed
    REFUSED = 24  # the worker is not accepted, and why
    # sent by both
    PIECE = 32  # part of a longer frame; its number is the count of bytes still to come
    PIECE_ACK = 33  # confirms that many bytes of pieces


class AttemptStatus(Enum):
    """Status of an attempt, as the driver sees it."""

    GO = b"g"
    DRAIN = b"d"  # the run stops: finish soon
    LOST = b"l"  # its lease is lost: others may have the key
    KILL = b"k"  # no longer wanted


class Channel(IntEnum):
    """Kind of the data that a running attempt sends."""

    STDOUT = 0
    STDERR = 1
    MESSAGE = 2  # pickled: about its lease, or for the log


# Channels by the name of a command's output stream, and the reverse.
CHANNEL_OF: Final = {"stdout": Channel.STDOUT, "stderr": Channel.STDERR}
STREAM_OF: Final = {channel: stream for stream, channel in CHANNEL_OF.items()}


def compute_margin(ttl: float) -> float:
    """Return the seconds by which a worker ends its attempts before, and the driver after, the time to live."""
    return min(1.0, 0.1 * ttl)


class Frame(NamedTuple):
    """One frame."""

    kind: FrameKind
    number: int
    body: bytes


class WireError(Exception):
    """Received bytes are not a valid frame. The connection cannot be used any more."""


class FrameTooLarge(ValueError):
    """A body exceeds the size that can be sent."""


def pack_frame(kind: FrameKind, number: int = 0, body: bytes = b"") -> bytes:
    """Encode a frame. Raise ``FrameTooLarge`` if its body is too long."""
    check_size(body)
    return _HEAD.pack(len(body), kind, number) + body


def check_size(body: bytes) -> None:
    """Raise ``FrameTooLarge`` if the body cannot be sent."""
    if len(body) > MAX_FRAME:
        raise FrameTooLarge(f"{len(body):,} bytes exceed the limit of {MAX_FRAME:,}; send a path instead")


def split_frame(frame: bytes) -> Iterator[bytes]:
    """Yield the bytes of a frame: a long one in pieces, between which other frames may be sent."""
    if len(frame) <= PIECE_SIZE:
        yield frame
        return
    whole = memoryview(frame)
    for start in range(0, len(frame), PIECE_SIZE):
        piece = whole[start : start + PIECE_SIZE]
        yield _HEAD.pack(len(piece), FrameKind.PIECE, len(frame) - start - len(piece)) + piece


class FrameReader:
    """Parses received bytes into frames.

    *longest* may be raised once the other side is trusted. With *is_password*, the first frame may be longer if it
    begins with a password for which *is_password* returns True.
    """

    def __init__(self, longest: int = MAX_FRAME, is_password: Callable[[bytes], bool] | None = None) -> None:
        self.longest = longest
        self._is_password = is_password
        self._held = bytearray()
        self._pieces = bytearray()  # received pieces of a long frame
        self._piece_bytes = 0

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that *data* completes. After a ``WireError`` nothing more may be fed."""
        held = self._held
        held += data
        while len(held) >= _HEAD.size:
            length, kind, number = _HEAD.unpack_from(held)
            if length > self.longest and not self._may_be_longer(length):
                return
            if len(held) < _HEAD.size + length:
                return
            body = bytes(held[_HEAD.size : _HEAD.size + length])
            del held[: _HEAD.size + length]
            if kind != FrameKind.PIECE:
                yield Frame(_kind(kind), number, body)
                continue
            self._pieces += body
            self._piece_bytes += length
            if len(self._pieces) + number > self.longest + _HEAD.size:
                raise WireError(f"a frame of {len(self._pieces) + number:,} bytes")
            if not number:
                yield self._join_pieces()

    def take_piece_bytes(self) -> int:
        """Return the bytes of pieces received since the last call."""
        got, self._piece_bytes = self._piece_bytes, 0
        return got

    def _may_be_longer(self, length: int) -> bool:
        """Return True if the frame may exceed the limit, False if that is not known yet, or raise ``WireError``."""
        if self._is_password is not None and length <= MAX_FRAME:
            password = bytes(self._held[_HEAD.size : _HEAD.size + PASSWORD_LENGTH])
            if len(password) < PASSWORD_LENGTH:
                return False
            if self._is_password(password):
                self.longest = MAX_FRAME
                return True
        raise WireError(f"a frame of {length:,} bytes")

    def _join_pieces(self) -> Frame:
        whole, self._pieces = self._pieces, bytearray()
        if len(whole) < _HEAD.size:
            raise WireError("pieces that do not form a frame")
        length, kind, number = _HEAD.unpack_from(whole)
        if length != len(whole) - _HEAD.size:
            raise WireError("pieces that do not form a frame")
        return Frame(_kind(kind), number, bytes(memoryview(whole)[_HEAD.size :]))


def _kind(number: int) -> FrameKind:
    try:
        return FrameKind(number)
    except ValueError:
        raise WireError(f"a frame of an unknown kind, {number}") from None


# -- bodies ---------------------------------------------------------------------------------------------------------


class Hello(NamedTuple):
    """First message of a worker process on each connection."""

    link: str  # id of the worker process, the same on all its connections
    name: str  # name of the worker, for people
    asks: tuple[int, ...] = ()  # requests not answered yet
    in_hand: tuple[int, ...] = ()  # tokens of attempts that run or whose reports are unconfirmed


def hello_body(password: bytes, hello: Hello) -> bytes:
    """Encode the body of ``HELLO``. It is JSON, not a pickle: it is read before the peer is trusted."""
    fields = {"link": hello.link, "name": hello.name, "asks": hello.asks, "in_hand": hello.in_hand}
    return password + json.dumps({"format": FORMAT, **fields}).encode()


def read_hello(body: bytes) -> Hello:
    """Decode ``HELLO`` after its password was verified. Raise ``WireError`` if it is invalid."""
    try:
        values: Mapping[str, Any] = json.loads(body[PASSWORD_LENGTH:])
        if values["format"] != FORMAT:
            raise WireError(
                f"worker {values.get('name', 'without a name')} speaks format {values['format']}, the driver {FORMAT}: "
                "install the same version on both"
            )
        return Hello(str(values["link"]), str(values["name"]), _numbers(values["asks"]), _numbers(values["in_hand"]))
    except (ValueError, TypeError, KeyError) as error:
        raise WireError(f"an invalid HELLO ({type(error).__name__})") from None


def _numbers(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(each) for each in values)


def welcome_body(good_for: float, job: bytes) -> bytes:
    """Encode ``WELCOME``: for how many seconds leases are valid, and the job of all workers."""
    return _SECONDS.pack(good_for) + job


def read_welcome(body: bytes) -> tuple[float, bytes]:
    """Decode ``WELCOME``."""
    (good_for,) = _SECONDS.unpack_from(body)
    return float(good_for), body[_SECONDS.size :]


def assign_body(request: int, assignment: bytes) -> bytes:
    """Encode ``ASSIGN``: the attempt for the request of that number."""
    return request.to_bytes(8) + assignment


def read_assign(body: bytes) -> tuple[int, bytes]:
    """Decode ``ASSIGN``."""
    return int.from_bytes(body[:8]), body[8:]


def beat_body(tokens: Sequence[int]) -> bytes:
    """Encode ``BEAT``: the tokens of the worker's attempts."""
    return struct.pack(f"!{len(tokens)}Q", *tokens)


def read_beat(body: bytes) -> tuple[int, ...]:
    """Decode ``BEAT``. Raise ``WireError`` if it is invalid."""
    if len(body) % 8:
        raise WireError("an invalid BEAT")
    return struct.unpack(f"!{len(body) // 8}Q", body)


def beat_ack_body(good_for: float, statuses: Iterable[AttemptStatus]) -> bytes:
    """Encode ``BEAT_ACK``: for how many seconds leases are valid, and the status of each token in order."""
    return _SECONDS.pack(good_for) + b"".join(status.value for status in statuses)


def read_beat_ack(body: bytes) -> tuple[float, list[AttemptStatus]]:
    """Decode ``BEAT_ACK``."""
    (good_for,) = _SECONDS.unpack_from(body)
    return float(good_for), [AttemptStatus(bytes((byte,))) for byte in body[_SECONDS.size :]]


def data_body(number: int, channel: Channel, data: bytes) -> bytes:
    """Encode ``DATA``; *number* counts an attempt's data frames from 1."""
    return _DATA.pack(number, channel) + data


def read_data(body: bytes) -> tuple[int, Channel, bytes]:
    """Decode ``DATA``. Raise ``WireError`` if it is invalid."""
    try:
        number, channel = _DATA.unpack_from(body)
        return number, Channel(channel), body[_DATA.size :]
    except (struct.error, ValueError):
        raise WireError("an invalid DATA frame") from None


def data_ack_body(number: int) -> bytes:
    """Encode ``DATA_ACK``: all data up to that number was processed."""
    return number.to_bytes(8)


def read_data_ack(body: bytes) -> int:
    """Decode ``DATA_ACK``."""
    return int.from_bytes(body)


def kill_body(after: float) -> bytes:
    """Encode ``KILL``: the seconds within which the attempt should end."""
    return _SECONDS.pack(after)


def read_kill(body: bytes) -> float:
    """Decode ``KILL``."""
    (after,) = _SECONDS.unpack(body)
    return float(after)
