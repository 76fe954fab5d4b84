"""What driver and workers say to each other: frames of a kind, a number and some bytes. No socket in here.

A worker's process has one link to the driver. It begins with ``HELLO`` and the run's password, before which nothing
else is read. Each seat asks for an item (``ASK``) and is given one (``ASSIGN``) or let go (``LEAVE``); what came of it
goes home as ``SAID`` and at last as ``REPORT``, and each is kept until ``TAKEN`` or ``KEPT`` says that it arrived, for
the connection may break and another one take its place. ``BEAT`` names all the attempts a link has in hand; ``HEARD``
says of each whether it goes on. ``DRAIN`` and ``KILL`` do not wait for the next beat.

A long frame is sent in pieces, each in a frame of its own (``PIECE_SIZE``), so that a beat can go between them: it
must not look as if a worker were gone because its neighbour has much to say. Of the pieces that the other side has not
confirmed (``GOT``) only so many are under way: all that the network has taken is in front of the next beat.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple

from ....version import __version__

FORMAT = f"2 of agentos {__version__}"  # what travels is pickled: both ends must be the same
MAX_FRAME = 1 << 28  # bytes of a frame
MAX_HELLO = 1 << 16  # of a greeting whose password has not been read yet
PASSWORD_LENGTH = 32  # bytes
PIECE_SIZE = 1 << 15  # bytes of a frame that are sent at once
WINDOW = 1 << 20  # bytes of pieces that may be under way

_HEAD = struct.Struct("!IBQ")  # bytes that follow the head, kind, number
HEAD_SIZE = _HEAD.size
_DATA = struct.Struct("!QB")
_SECONDS = struct.Struct("!d")


class FrameKind(IntEnum):
    """What a frame is. Its number is that of a beat, an ask, or the token of an attempt."""

    # of a worker
    HELLO = 1
    ASK = 2
    REPORT = 3
    DATA = 4  # by an attempt that goes on
    BEAT = 5
    # of the driver
    WELCOME = 16
    ASSIGN = 17
    LEAVE = 18  # the seat that asked may go
    REPORT_ACK = 19
    BEAT_ACK = 20
    DRAIN = 21  # the run stops: finish soon
    KILL = 22  # end this attempt, within so many seconds
    DATA_ACK = 23  # what was said, up to this number
    REFUSED = 24  # no link for you, and why
    # of both
    PIECE = 32  # of a longer frame; its number says how many bytes are still to come
    PIECE_ACK = 33  # so many bytes of pieces


class AttemptStatus(Enum):
    """What the driver thinks of an attempt."""

    GO = b"g"
    DRAIN = b"d"  # the run stops: it should finish soon
    LOST = b"l"  # its lease is lost: others may have the key
    KILL = b"k"  # nobody waits for it any more


class Channel(IntEnum):
    """What an attempt says while it goes on."""

    STDOUT = 0
    STDERR = 1
    MESSAGE = 2  # of its key, or for the log: a pickle


# The channel of each stream of a command, by the name under which its output is kept, and the reverse.
CHANNEL_OF: Final = {"stdout": Channel.STDOUT, "stderr": Channel.STDERR}
STREAM_OF: Final = {channel: stream for stream, channel in CHANNEL_OF.items()}


def compute_margin(ttl: float) -> float:
    """By how much a worker gives up its attempts before, and the driver after, the time to live."""
    return min(1.0, 0.1 * ttl)


class Frame(NamedTuple):
    """One of them."""

    kind: FrameKind
    number: int
    body: bytes


class WireError(Exception):
    """What came is no frame of ours. The connection cannot be used any more."""


class FrameTooLarge(ValueError):
    """Nothing that long is sent."""


def pack_frame(kind: FrameKind, number: int = 0, body: bytes = b"") -> bytes:
    """A frame as it is sent. Raises ``FrameTooLarge``."""
    check_size(body)
    return _HEAD.pack(len(body), kind, number) + body


def check_size(body: bytes) -> None:
    """Raises ``FrameTooLarge`` if that cannot be sent."""
    if len(body) > MAX_FRAME:
        raise FrameTooLarge(
            f"{len(body):,} bytes are more than the {MAX_FRAME:,} that are sent at once; send a path instead"
        )


def split_frame(frame: bytes) -> Iterator[bytes]:
    """A frame as it goes over the wire: a long one in pieces, between which other frames may be sent."""
    if len(frame) <= PIECE_SIZE:
        yield frame
        return
    whole = memoryview(frame)
    for start in range(0, len(frame), PIECE_SIZE):
        piece = whole[start : start + PIECE_SIZE]
        yield _HEAD.pack(len(piece), FrameKind.PIECE, len(frame) - start - len(piece)) + piece


class FrameReader:
    """Takes bytes as they come, gives the frames in them.

    *longest* may be raised once the other side is trusted. With *knows*, a first frame may be longer than that if it
    begins with a password for which *knows* says yes.
    """

    def __init__(self, longest: int = MAX_FRAME, knows: Callable[[bytes], bool] | None = None) -> None:
        self.longest = longest
        self._knows = knows
        self._held = bytearray()
        self._pieces = bytearray()  # of a long frame
        self._piece_bytes = 0

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete by now. Raises ``WireError``, after which nothing more may be fed."""
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
        """How many bytes of pieces have come since this was last asked."""
        got, self._piece_bytes = self._piece_bytes, 0
        return got

    def _may_be_longer(self, length: int) -> bool:
        """False: that is not known before more of it has come. Raises ``WireError`` if it may not."""
        if self._knows is not None and length <= MAX_FRAME:
            password = bytes(self._held[_HEAD.size : _HEAD.size + PASSWORD_LENGTH])
            if len(password) < PASSWORD_LENGTH:
                return False
            if self._knows(password):
                self.longest = MAX_FRAME
                return True
        raise WireError(f"a frame of {length:,} bytes")

    def _join_pieces(self) -> Frame:
        whole, self._pieces = self._pieces, bytearray()
        if len(whole) < _HEAD.size:
            raise WireError("pieces that make no frame")
        length, kind, number = _HEAD.unpack_from(whole)
        if length != len(whole) - _HEAD.size:
            raise WireError("pieces that make no frame")
        return Frame(_kind(kind), number, bytes(memoryview(whole)[_HEAD.size :]))


def _kind(number: int) -> FrameKind:
    try:
        return FrameKind(number)
    except ValueError:
        raise WireError(f"a frame of an unknown kind, {number}") from None


# -- bodies ---------------------------------------------------------------------------------------------------------


class Hello(NamedTuple):
    """How a link begins, or begins again after its connection broke."""

    link: str  # the same for all connections of one link
    name: str  # of the worker, for people
    asks: tuple[int, ...] = ()  # not answered yet
    in_hand: tuple[int, ...] = ()  # tokens of attempts that run there, or whose reports have not arrived


def hello_body(password: bytes, hello: Hello) -> bytes:
    """The body of ``HELLO``. It is no pickle: it is read before anybody is trusted."""
    fields = {"link": hello.link, "name": hello.name, "asks": hello.asks, "in_hand": hello.in_hand}
    return password + json.dumps({"format": FORMAT, **fields}).encode()


def read_hello(body: bytes) -> Hello:
    """What ``hello_body`` told, once its password was found right. Raises ``WireError``."""
    try:
        told: Mapping[str, Any] = json.loads(body[PASSWORD_LENGTH:])
        if told["format"] != FORMAT:
            raise WireError(
                f"worker {told.get('name', 'without a name')} speaks format {told['format']}, the driver {FORMAT}: "
                "install the same version on both"
            )
        return Hello(str(told["link"]), str(told["name"]), _numbers(told["asks"]), _numbers(told["in_hand"]))
    except (ValueError, TypeError, KeyError) as error:
        raise WireError(f"a greeting that is not understood ({type(error).__name__})") from None


def _numbers(told: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(each) for each in told)


def welcome_body(good_for: float, job: bytes) -> bytes:
    """The driver's answer to a greeting: for how long its leases are good, and what all its workers are told."""
    return _SECONDS.pack(good_for) + job


def read_welcome(body: bytes) -> tuple[float, bytes]:
    """What ``welcome_body`` told."""
    (good_for,) = _SECONDS.unpack_from(body)
    return float(good_for), body[_SECONDS.size :]


def assign_body(ask: int, assignment: bytes) -> bytes:
    """The attempt for the seat that asked by this number."""
    return ask.to_bytes(8) + assignment


def read_assign(body: bytes) -> tuple[int, bytes]:
    """What ``assign_body`` told."""
    return int.from_bytes(body[:8]), body[8:]


def beat_body(tokens: Sequence[int]) -> bytes:
    """The attempts in hand."""
    return struct.pack(f"!{len(tokens)}Q", *tokens)


def read_beat(body: bytes) -> tuple[int, ...]:
    """What ``beat_body`` told. Raises ``WireError``."""
    if len(body) % 8:
        raise WireError("a beat that is not understood")
    return struct.unpack(f"!{len(body) // 8}Q", body)


def beat_ack_body(good_for: float, standings: Iterable[AttemptStatus]) -> bytes:
    """The driver's answer to a beat: for how long its leases are good, and what of each token, in their order."""
    return _SECONDS.pack(good_for) + b"".join(standing.value for standing in standings)


def read_beat_ack(body: bytes) -> tuple[float, list[AttemptStatus]]:
    """What ``beat_ack_body`` told."""
    (good_for,) = _SECONDS.unpack_from(body)
    return float(good_for), [AttemptStatus(bytes((byte,))) for byte in body[_SECONDS.size :]]


def data_body(number: int, channel: Channel, data: bytes) -> bytes:
    """The *number*-th thing that an attempt said, from 1."""
    return _DATA.pack(number, channel) + data


def read_data(body: bytes) -> tuple[int, Channel, bytes]:
    """What ``data_body`` told. Raises ``WireError``."""
    try:
        number, channel = _DATA.unpack_from(body)
        return number, Channel(channel), body[_DATA.size :]
    except (struct.error, ValueError):
        raise WireError("something was said that is not understood") from None


def data_ack_body(number: int) -> bytes:
    """Everything up to this number was taken."""
    return number.to_bytes(8)


def read_data_ack(body: bytes) -> int:
    """What ``data_ack_body`` told."""
    return int.from_bytes(body)


def kill_body(after: float) -> bytes:
    """How many seconds the attempt has to end in."""
    return _SECONDS.pack(after)


def read_kill(body: bytes) -> float:
    """What ``kill_body`` told."""
    (after,) = _SECONDS.unpack(body)
    return float(after)
