"""A stream of events on its way: the key does not show however it is cut and packed, and nothing is held up for it."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from itertools import pairwise

import pytest

from agentos.pool.secret import Secret
from agentos.transport.event_stream import EventStreamFilter

SECRET = "planted-aab-0123456789"
SAID = f"data: 1\n\ndata: not {SECRET}, {SECRET}{SECRET}!\n\ndata: 3\n\n".encode()
SHOWN = b"data: 1\n\ndata: not <secret>, <secret><secret>!\n\ndata: 3\n\n"


def passed(*pieces: bytes, coding: str = "", secret: str = SECRET) -> list[bytes]:
    """What goes on for each of the *pieces*, and what at the end."""
    events = EventStreamFilter(Secret(secret), coding)
    return [*(events.redact(events.decompress(piece)) for piece in pieces), events.flush()]


def in_two(data: bytes) -> list[tuple[bytes, bytes]]:
    return [(data[:at], data[at:]) for at in range(len(data) + 1)]


def by_bytes(data: bytes) -> list[bytes]:
    return [data[a:b] for a, b in pairwise(range(len(data) + 1))]


def test_a_key_that_is_cut_in_two_anywhere_is_masked() -> None:
    assert {b"".join(passed(*cut)) for cut in in_two(SAID)} == {SHOWN}


def test_a_key_that_comes_byte_by_byte_is_masked() -> None:
    assert b"".join(passed(*by_bytes(SAID))) == SHOWN


@pytest.mark.parametrize("change", [bytes.upper, bytes.swapcase])
def test_a_key_in_another_letter_case_that_is_cut_in_two_anywhere_is_masked(change: Callable[[bytes], bytes]) -> None:
    said = SAID.replace(SECRET.encode(), change(SECRET.encode()))

    assert {b"".join(passed(*cut)) for cut in in_two(said)} == {SHOWN}


PACKED = {
    "gzip": gzip.compress(SAID),
    "x-gzip": gzip.compress(SAID),
    "deflate": zlib.compress(SAID),
}


@pytest.mark.parametrize(("coding", "packed"), PACKED.items(), ids=PACKED.keys())
def test_a_key_in_a_packed_stream_is_masked_however_that_is_cut(coding: str, packed: bytes) -> None:
    cuts = [*in_two(packed), by_bytes(packed)]

    assert {b"".join(passed(*cut, coding=coding)) for cut in cuts} == {SHOWN}


def test_deflate_without_its_two_first_bytes_is_understood() -> None:
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(SAID) + packer.flush()

    assert b"".join(passed(packed, coding="deflate")) == SHOWN


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_what_is_not_coded_as_it_says_goes_on_as_it_is_but_for_the_key(coding: str) -> None:
    assert b"".join(passed(SAID, SAID, coding=coding)) == 2 * SHOWN


def test_a_piece_is_handed_on_as_it_is_unless_the_key_may_begin_at_its_end() -> None:
    pieces = [b"data: plants and plans\n\n", b"data: pl", b"", b"ain\n\n", b"planted-aa"]

    assert passed(*pieces) == [pieces[0], b"data: ", b"", b"plain\n\n", b"", b"<secret>"]


def test_no_more_is_held_back_than_may_be_the_key() -> None:
    assert passed(b"aaaa", b"b!", secret="aab") == [b"aa", b"<secret>!", b""]


def test_a_beginning_of_the_key_that_is_short_enough_for_chance_goes_on_at_the_end() -> None:
    assert passed(b"data: planted")[-1] == b"planted"
