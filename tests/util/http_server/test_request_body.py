"""A body is kept in memory, or in a file that has no name."""

from __future__ import annotations

import pytest

from agentos.util.http_server.request_body import BodyMemory, RequestBody


@pytest.mark.parametrize("spool_above", [None, 0, 4, 5, 11])
def test_a_body_reads_back_the_same_in_memory_and_in_a_file(spool_above: int | None) -> None:
    body = RequestBody(spool_above)
    for piece in (b"hello", b" ", b"world"):
        body.write(piece)

    assert body.is_spooled == (spool_above is not None and spool_above < 11)
    assert (body.size, body.read(), body.start(3), body.end(3)) == (11, b"hello world", b"hel", b"rld")
    assert (body.piece_at(6), body.piece_at(11)) == (b"world", b"")
    body.close()


def test_bodies_share_their_memory_and_the_last_one_goes_to_a_file() -> None:
    memory = BodyMemory(10)
    first, second = RequestBody(100, memory), RequestBody(100, memory)
    first.write(b"12345678")
    second.write(b"abc")

    assert (first.is_spooled, second.is_spooled, memory.used) == (False, True, 8)
    assert second.read() == b"abc"

    first.close()
    first.close()
    second.close()

    assert memory.used == 0
