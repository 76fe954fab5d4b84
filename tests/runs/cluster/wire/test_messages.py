"""Frames are parsed from any chunks of bytes, and invalid ones are refused."""

from __future__ import annotations

import math

import pytest

from agentos.runs.cluster.wire.messages import (
    FORMAT,
    MAX_HELLO,
    PASSWORD_LENGTH,
    PIECE_SIZE,
    AttemptStatus,
    Channel,
    Frame,
    FrameKind,
    FrameReader,
    FrameTooLarge,
    Hello,
    WireError,
    beat_ack_body,
    beat_body,
    data_body,
    hello_body,
    pack_frame,
    read_beat,
    read_beat_ack,
    read_data,
    read_hello,
    read_welcome,
    split_frame,
    welcome_body,
)

FRAMES = [
    Frame(FrameKind.ASK, 7, b""),
    Frame(FrameKind.REPORT, 2**63, b"x" * 1_000),
    Frame(FrameKind.BEAT, 1, beat_body([4, 5])),
]


@pytest.mark.parametrize("at_once", [1, 3, 14, 10_000])
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(at_once: int) -> None:
    sent = b"".join(pack_frame(*frame) for frame in FRAMES)
    frames = FrameReader()

    came = [frame for start in range(0, len(sent), at_once) for frame in frames.feed(sent[start : start + at_once])]

    assert came == FRAMES


def test_a_long_frame_of_a_stranger_is_refused_before_its_bytes_are_there() -> None:
    frames = FrameReader(MAX_HELLO)

    with pytest.raises(WireError, match="a frame of"):
        list(frames.feed(pack_frame(FrameKind.HELLO, 0, b"x" * (MAX_HELLO + 1))[:20]))


@pytest.mark.parametrize("at_once", [7, 10_000])
def test_a_long_greeting_is_read_once_its_password_was_found_right(at_once: int) -> None:
    frames = FrameReader(MAX_HELLO, is_password=lambda password: password == b"p" * PASSWORD_LENGTH)
    hello = Hello("link", "node-3:77", (), tuple(range(20_000)))
    sent = pack_frame(FrameKind.HELLO, 0, hello_body(b"p" * PASSWORD_LENGTH, hello))

    (came,) = (frame for i in range(0, len(sent), at_once) for frame in frames.feed(sent[i : i + at_once]))

    assert read_hello(came.body) == hello


def test_a_long_greeting_with_another_password_is_refused_before_it_is_there() -> None:
    frames = FrameReader(MAX_HELLO, is_password=lambda _password: False)
    sent = pack_frame(FrameKind.HELLO, 0, b"x" * (MAX_HELLO + 1))

    with pytest.raises(WireError, match="a frame of"):
        list(frames.feed(sent[:100]))


@pytest.mark.parametrize("size", [0, PIECE_SIZE - 13, PIECE_SIZE - 12, 3 * PIECE_SIZE + 1])
def test_a_frame_comes_out_of_its_pieces_as_it_went_in(size: int) -> None:
    frame = Frame(FrameKind.REPORT, 7, bytes(size))

    assert list(FrameReader().feed(b"".join(split_frame(pack_frame(*frame))))) == [frame]


def test_other_frames_may_go_between_the_pieces_of_a_long_one() -> None:
    long, beat = Frame(FrameKind.REPORT, 7, bytes(3 * PIECE_SIZE)), Frame(FrameKind.BEAT, 1, b"")
    first, *others = split_frame(pack_frame(*long))

    assert list(FrameReader().feed(b"".join([first, pack_frame(*beat), *others]))) == [beat, long]


@pytest.mark.parametrize(("left", "body"), [(1 << 40, b"x"), (0, b"x"), (0, pack_frame(FrameKind.ASK, 1, b"abc")[:-1])])
def test_pieces_that_make_no_frame_are_refused(left: int, body: bytes) -> None:
    with pytest.raises(WireError):
        list(FrameReader().feed(pack_frame(FrameKind.PIECE, left, body)))


def test_a_frame_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(WireError, match="unknown kind, 99"):
        list(FrameReader().feed(b"\0\0\0\0\x63" + bytes(8)))


def test_what_is_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.runs.cluster.wire.messages.MAX_FRAME", 10)

    with pytest.raises(FrameTooLarge, match="send a path instead"):
        pack_frame(FrameKind.REPORT, 1, b"x" * 11)


def test_a_greeting_tells_who_it_is_and_what_is_under_way() -> None:
    hello = Hello("link", "node-3:77", (1, 2), (30, 40))

    assert read_hello(hello_body(b"p" * PASSWORD_LENGTH, hello)) == hello


@pytest.mark.parametrize(
    "told", [b"", b"[]", b"{}", b'{"format": "%s"}', b'{"format": "%s", "link": "", "name": "", "asks": 3}']
)
def test_a_greeting_that_makes_no_sense_is_refused(told: bytes) -> None:
    with pytest.raises(WireError, match="invalid"):
        read_hello(b"p" * PASSWORD_LENGTH + told.replace(b"%s", FORMAT.encode()))


def test_a_greeting_of_another_version_is_told_to_install_the_same() -> None:
    with pytest.raises(WireError, match="install the same version"):
        read_hello(b"p" * PASSWORD_LENGTH + b'{"format": 99}')


def test_a_worker_from_before_the_modules_moved_is_refused() -> None:
    """Its pickles name classes by their old paths, and it calls its format 1."""
    hello = b'{"format": "1 of agentos 0.1.0", "link": "link", "name": "node-3:77", "asks": [], "in_hand": []}'

    with pytest.raises(WireError, match="install the same version on both"):
        read_hello(b"p" * PASSWORD_LENGTH + hello)


def test_a_beat_and_its_answer_speak_of_the_same_attempts() -> None:
    standings = [AttemptStatus.GO, AttemptStatus.KILL, AttemptStatus.LOST, AttemptStatus.DRAIN]

    assert read_beat(beat_body([1, 2, 3, 4])) == (1, 2, 3, 4)
    assert read_beat_ack(beat_ack_body(2.5, standings)) == (2.5, standings)


def test_a_welcome_says_for_how_long_leases_are_good() -> None:
    assert read_welcome(welcome_body(math.inf, b"the job")) == (math.inf, b"the job")


def test_what_is_said_keeps_its_number_and_its_channel() -> None:
    assert read_data(data_body(3, Channel.STDERR, b"oh")) == (3, Channel.STDERR, b"oh")


@pytest.mark.parametrize("body", [b"", b"\0" * 8 + b"\x09"])
def test_what_is_said_on_no_channel_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="invalid"):
        read_data(body)
