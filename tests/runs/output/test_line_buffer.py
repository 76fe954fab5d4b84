"""A stream is split into lines of bounded length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.runs.output import line_buffer
from agentos.runs.output.line_buffer import MAX_LINE, LineBuffer, cut, split


def test_a_line_waits_for_its_end() -> None:
    buffer = LineBuffer()

    assert buffer.feed(b"one\ntw") == b"one\n"
    assert buffer.feed(b"o") == b""
    assert buffer.feed(b"\n\nthree") == b"two\n\n"
    assert buffer.flush() == b"three"
    assert buffer.flush() == b""


def test_lines_lose_their_ends_and_empty_ones_stay() -> None:
    assert list(split(b"one\n\ntwo\r\n")) == [(b"one", True), (b"", True), (b"two\r", True)]


def test_what_has_no_end_is_a_piece_unless_the_stream_is_at_its_end() -> None:
    assert list(split(b"one\ntwo")) == [(b"one", True), (b"two", False)]
    assert list(split(b"one\ntwo", at_end=True)) == [(b"one", True), (b"two", True)]


def test_a_line_as_long_as_may_be_stays_whole() -> None:
    line = b"x" * MAX_LINE
    buffer = LineBuffer()

    assert buffer.feed(line) == b""
    assert list(split(buffer.feed(b"\n"))) == [(line, True)]


@pytest.mark.parametrize("fed", [1000, 65_536, 1_000_000])
def test_a_line_that_is_too_long_comes_in_pieces(fed: int) -> None:
    data = b"0123456789" * 30_000 + b"\nnext\n"
    buffer = LineBuffer()

    pieces = [p for i in range(0, len(data), fed) for p in split(buffer.feed(data[i : i + fed]))]

    assert all(len(text) <= MAX_LINE for text, _ in pieces)
    assert b"".join(text + b"\n" * whole for text, whole in pieces) == data
    assert pieces[-1] == (b"next", True)


@pytest.mark.parametrize("character", ["é", "漢", "😀"])
@pytest.mark.parametrize("shift", range(4))
def test_no_character_is_torn(character: str, shift: int) -> None:
    text = "x" * shift + character * MAX_LINE
    buffer = LineBuffer()

    pieces = [p for p, _ in split(buffer.feed(text.encode()))] + [buffer.flush()]

    assert "".join(piece.decode() for piece in pieces) == text


def test_a_line_end_of_two_bytes_is_not_torn() -> None:
    buffer = LineBuffer()

    pieces = list(split(buffer.feed(b"x" * MAX_LINE + b"\r"))) + list(split(buffer.feed(b"\n")))

    assert pieces == [(b"x" * MAX_LINE, False), (b"\r", True)]


@given(st.lists(st.binary(max_size=40), max_size=12))
def test_nothing_is_lost_or_added_whatever_the_bytes(chunks: list[bytes]) -> None:
    longest, line_buffer.MAX_LINE = line_buffer.MAX_LINE, 8
    try:
        buffer = LineBuffer()
        blocks = [buffer.feed(chunk) for chunk in chunks]
        pieces = [p for block in blocks for p in split(block)] + list(split(buffer.flush(), at_end=True))
    finally:
        line_buffer.MAX_LINE = longest
    data = b"".join(chunks)

    joined = b"".join(text + b"\n" * whole for text, whole in pieces)

    assert joined in (data, data + b"\n")
    assert all(len(text) <= 8 for text, _ in pieces)


def test_a_cut_is_made_before_a_character_rather_than_in_it() -> None:
    assert cut("aé漢".encode(), 2) == b"a"
    assert cut("aé漢".encode(), 5) == "aé".encode()
    assert cut(b"\x80" * 10, 5) == b"\x80" * 5
    assert cut(b"short", 5) == b"short"
