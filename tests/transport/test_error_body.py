"""Answers that are errors: how much of one is read, for how long, and what of it the caller sees."""

from __future__ import annotations

import gzip
import hashlib
import random
import socket
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import brotli
import httpx2
import pytest

from agentos import Credential, CredentialCoordinator
from agentos.testing import FakeClock
from agentos.transport.error_body import ErrorBody, redact_response

from ..background_threads import Background
from .fakes import (
    HOST,
    URL,
    WELL,
    Body,
    Provider,
    Says,
    Way,
    in_both_libraries,
    in_every_way,
    leased,
    pool_of,
    secret_of,
    states,
)

LONGEST = 128 * 1024
GZIP, DEFLATE = {"content-encoding": "gzip"}, {"content-encoding": "deflate"}
NOISE = random.Random(7).randbytes(3 * LONGEST)  # what cannot be packed


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


# -- how much --------------------------------------------------------------------------------------------------------


class Endless(Body):
    """The same piece again and again. ``taken`` is how many were asked for."""

    taken = 0

    def __iter__(self) -> Iterator[bytes]:
        (piece,) = self.pieces
        assert isinstance(piece, bytes)
        while True:
            self.taken += 1
            assert self.taken < 10_000, "somebody wants all of it"
            yield piece


@in_every_way
def test_an_error_that_never_ends_is_read_until_there_is_enough(way: Way, clock: FakeClock) -> None:
    body = Endless(b"x" * 1024)

    answer = way.ask(way.transport(pool_of(clock, "one"), Provider(Says(500, body))))

    assert (body.taken, body.closed) == (128, 1)
    assert answer.content == b"x" * LONGEST


def read_of(body: bytes) -> ErrorBody:
    read = ErrorBody(FakeClock())
    if body:
        read.add(body)
    return read


def handed_up(library: Any, body: bytes, headers: dict[str, str]) -> tuple[Any, bytes]:
    """The answer of which *body* was read, in a pool that has no secrets, and what that was taken to say."""
    response = library.Response(500, headers=headers, stream=library.ByteStream(body))
    answer, content = redact_response(library, response, read_of(body), str)
    answer.read()
    return answer, content


@in_both_libraries
@pytest.mark.parametrize(
    ("body", "headers", "told"),
    [
        (NOISE, {}, NOISE),
        (NOISE, {"content-length": str(len(NOISE))}, NOISE),
        (NOISE, {"transfer-encoding": "chunked"}, NOISE),
        (gzip.compress(NOISE)[:LONGEST], GZIP, NOISE),
        (zlib.compress(NOISE)[:LONGEST], DEFLATE, NOISE),
        (gzip.compress(bytes(5_000_000), 1), GZIP, bytes(LONGEST)),
        (gzip.compress(bytes(LONGEST + 1)), GZIP, bytes(LONGEST)),
        (gzip.compress(gzip.compress(bytes(5_000_000))), {"content-encoding": "gzip, gzip"}, bytes(LONGEST)),
        (brotli.compress(bytes(5_000_000), quality=1), {"content-encoding": "br"}, bytes(LONGEST)),
        (gzip.compress(bytes(5_000_000)), {"content-encoding": "gzip, identity"}, bytes(LONGEST)),
    ],
    ids=[
        *("long", "of a known length", "in chunks", "packed", "deflated", "a bomb", "a byte too long"),
        *("a bomb in gzip", "a bomb of brotli", "a bomb with identity"),
    ],
)
def test_an_error_that_is_cut_can_be_read_as_far_as_it_goes(
    way: Way, body: bytes, headers: dict[str, str], told: bytes
) -> None:
    answer, content = handed_up(way.library, body, headers)

    assert LONGEST - 1000 < len(content) <= LONGEST
    assert answer.content == content == told[: len(content)]
    assert answer.headers.get_list("content-length") == [str(len(content))]
    assert not {"content-encoding", "transfer-encoding"} & set(answer.headers)


@pytest.mark.parametrize(
    ("packed", "codings"),
    [
        (gzip.compress(bytes(20_000_000), 1), "gzip"),
        (gzip.compress(gzip.compress(bytes(20_000_000), 1)), "gzip, gzip"),
        (brotli.compress(bytes(20_000_000), quality=1), "br"),
    ],
    ids=["gzip", "gzip twice", "brotli"],
)
def test_little_is_unfolded_of_an_error_that_was_packed_a_thousandfold(packed: bytes, codings: str) -> None:
    tracemalloc.start()
    try:
        handed_up(httpx2, packed, {"content-encoding": codings})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 2_000_000


class Dripping(Body):
    """A piece a second."""

    def __init__(self, clock: FakeClock, *pieces: bytes) -> None:
        super().__init__(*pieces)
        self._clock = clock

    def __iter__(self) -> Iterator[bytes]:
        for piece in super().__iter__():
            self._clock.advance(1.0)
            yield piece


@in_every_way
def test_an_error_that_comes_by_drops_is_read_for_ten_seconds(way: Way, clock: FakeClock) -> None:
    body = Dripping(clock, *[b"x"] * 60)
    pool = pool_of(clock, "one")

    answer = way.ask(way.transport(pool, Provider(Says(500, body, {"content-length": "60"}))))

    assert answer.content == b"x" * 10
    assert answer.headers["content-length"] == "10"
    assert body.closed == 1
    assert leased(pool) == []


@in_every_way
def test_the_next_error_has_ten_seconds_of_its_own(way: Way, clock: FakeClock) -> None:
    pool = pool_of(clock, "one", "two")
    dead, broken = (Says(status, Dripping(clock, *[b"x"] * 8)) for status in (401, 500))

    assert way.ask(way.transport(pool, Provider(dead, broken))).content == b"x" * 8


# -- an error that breaks off ----------------------------------------------------------------------------------------


def broken(way: Way, status: int, *pieces: bytes, error: str = "ReadTimeout", **headers: str) -> Says:
    """An error of which no more than the *pieces* come."""
    body = Body(*pieces, getattr(way.library, error)("broken"))
    return Says(status, body, {"content-length": "100", **headers})


@in_every_way
@pytest.mark.parametrize("error", ["ReadTimeout", "ReadError", "RemoteProtocolError"])
@pytest.mark.parametrize(("status", "state"), [(429, "cooling"), (401, "dead")])
def test_a_refusal_whose_body_breaks_off_is_still_one_and_another_key_takes_the_call(
    way: Way, status: int, state: str, error: str, clock: FakeClock
) -> None:
    pool = pool_of(clock, "one", "two")
    refusal = broken(way, status, b"{", error=error, **{"retry-after": "30"})
    provider = Provider(refusal, WELL)

    assert way.ask(way.transport(pool, provider)).status_code == 200
    assert provider.keys == ["one", "two"]
    assert states(pool) == {"one": state, "two": "available"}
    assert leased(pool) == []
    assert refusal.body.closed == 1


@in_every_way
@pytest.mark.parametrize("coding", ["", "gzip"])
def test_an_error_whose_body_breaks_off_goes_up_with_what_came_of_it(way: Way, coding: str, clock: FakeClock) -> None:
    said = b"not " + secret_of("one").encode() + b"! " + NOISE[:500].hex().encode()
    packed = gzip.compress(said)[:-200] if coding else said
    line = broken(way, 500, packed, **({"content-encoding": coding} if coding else {}))

    answer = way.ask(way.transport(pool_of(clock, "one"), Provider(line)))

    assert answer.status_code == 500
    assert answer.content.startswith(b"not <secret>! ")
    assert int(answer.headers["content-length"]) == len(answer.content)


class Unclosable(Body):
    def close(self) -> None:
        raise OSError("reset")

    async def aclose(self) -> None:
        self.close()


@in_every_way
def test_an_error_whose_connection_cannot_be_closed_goes_up(way: Way, clock: FakeClock) -> None:
    answer = way.ask(way.transport(pool_of(clock, "one"), Provider(Says(500, Unclosable(b"boom")))))

    assert (answer.status_code, answer.content) == (500, b"boom")


class Watching(Body):
    """Notes how long the connection may be silent when its body begins."""

    request: Any = None
    patience: list[Any]

    def __iter__(self) -> Iterator[bytes]:
        self.patience.append(self.request.extensions["timeout"]["read"])
        return super().__iter__()


@in_every_way
@pytest.mark.parametrize(
    ("version", "timeout", "patience"),
    [
        (b"HTTP/1.1", None, 10.0),
        (b"HTTP/1.1", 600.0, 10.0),
        (b"HTTP/1.1", 3.0, 3.0),
        (b"HTTP/2", 600.0, 600.0),
    ],
)
def test_the_body_of_an_error_is_waited_for_ten_seconds_where_that_ends_no_other_call(
    way: Way, version: bytes, timeout: float | None, patience: float, clock: FakeClock
) -> None:
    seen: list[Any] = []

    def says(status: int) -> Any:
        def line(request: Any) -> Says:
            body = Watching(b"{}")
            body.request, body.patience = request, seen
            return Says(status, body, extensions={"http_version": version})

        return line

    pool = pool_of(clock, "one", "two")

    answer = way.ask(way.transport(pool, Provider(says(401), says(200))), timeout=timeout)

    assert seen == [patience, timeout]
    assert answer.request.extensions["timeout"]["read"] == timeout


def stall(server: socket.socket) -> bytes:
    """Answer one call with an error that stops after its first byte. Returns b"" if the client then leaves."""
    connection, _ = server.accept()
    with connection:
        connection.settimeout(20.0)  # the client has no such limit of its own
        while not connection.recv(65536).endswith(b"}"):
            pass
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 100\r\n\r\n{")
        return connection.recv(1)


@in_every_way
def test_the_library_leaves_an_error_that_falls_silent(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.transport.error_body.LONGEST_TIME", 0.05)
    pool = pool_of(FakeClock(), "one", hosts=["127.0.0.1"])
    sender = way.library.AsyncHTTPTransport() if way.in_a_loop else way.library.HTTPTransport()

    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        served = Background(lambda: stall(server))
        answer = way.ask(way.transport(pool, sender), url, timeout=None)

        assert served.result() == b""
    assert (answer.status_code, answer.content) == (400, b"{")


# -- what the caller sees --------------------------------------------------------------------------------------------


def coded(codings: str) -> dict[str, str]:
    return {"content-encoding": codings}


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def damaged(data: bytes) -> bytes:
    """In gzip, and whole, but what follows it is broken."""
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH) + bytes(2000) + b"\xff" * 2000


QUOTE = f"not {secret_of('one')}!"
QUOTING: dict[str, dict[str, Any]] = {
    "body": {"body": QUOTE.encode()},
    "gzip": {"body": gzip.compress(QUOTE.encode()), "headers": GZIP},
    "deflate": {"body": zlib.compress(QUOTE.encode()), "headers": DEFLATE},
    "deflate without a header": {"body": raw_deflate(QUOTE.encode()), "headers": DEFLATE},
    "gzip and identity": {"body": gzip.compress(QUOTE.encode()), "headers": coded("gzip, identity")},
    "identity and gzip": {"body": gzip.compress(QUOTE.encode()), "headers": coded("Identity,GZIP")},
    "gzip twice": {"body": gzip.compress(gzip.compress(QUOTE.encode())), "headers": coded("gzip, gzip")},
    "brotli": {"body": brotli.compress(QUOTE.encode()), "headers": coded("br")},
    "deflate in brotli": {"body": brotli.compress(zlib.compress(QUOTE.encode())), "headers": coded("deflate, br")},
    "text in a coding that it does not have": {"body": QUOTE.encode(), "headers": coded("gzip, br")},
    "text in an unknown coding": {"body": QUOTE.encode(), "headers": coded("utf-8")},
    "gzip with a fault behind it": {"body": damaged(QUOTE.encode()), "headers": GZIP},
    "header": {"headers": {"www-authenticate": QUOTE}},
    "one header of several": {"headers": {"x-first": "a", "www-authenticate": QUOTE, "x-request-id": "req-1"}},
    "request id": {"headers": {"x-request-id": QUOTE}},
    "reason phrase": {"extensions": {"reason_phrase": QUOTE.encode()}},
}


def seen_by_the_caller(answer: Any) -> str:
    shown = (answer.text, answer.headers.raw, answer.reason_phrase, answer.extensions, answer)
    return " ".join(map(repr, shown))


@in_both_libraries
@pytest.mark.parametrize("status", [400, 503])
@pytest.mark.parametrize("quoting", QUOTING.values(), ids=QUOTING.keys())
def test_a_key_that_an_error_quotes_is_masked_wherever_it_stands(
    way: Way, status: int, quoting: dict[str, Any], clock: FakeClock
) -> None:
    answer = way.ask(way.transport(pool_of(clock, "one"), Provider(Says(status, **quoting))))

    shown = seen_by_the_caller(answer)
    assert "not <secret>!" in shown
    assert "planted" not in shown
    assert "0123456789" not in shown


@in_both_libraries
def test_headers_beside_one_that_quotes_a_key_stay_as_they_are(way: Way, clock: FakeClock) -> None:
    line = Says(503, **QUOTING["one header of several"])

    answer = way.ask(way.transport(pool_of(clock, "one"), Provider(line)))

    assert (answer.headers["x-first"], answer.headers["x-request-id"]) == ("a", "req-1")


@in_both_libraries
def test_a_request_id_that_quotes_a_key_is_masked_in_the_record_of_the_call(way: Way, clock: FakeClock) -> None:
    line = Says(400, **QUOTING["request id"])

    record = way.ask(way.transport(pool_of(clock, "one"), Provider(line))).extensions["agentos"]

    assert record.request_id == "not <secret>!"
    assert repr(record) == "CallRecord(credential='one', request_id='not <secret>!', waited=0.000, refusals=())"


@in_both_libraries
def test_a_request_id_that_quotes_a_key_is_masked_in_the_refusal(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one", "two"), Provider(Says(401, **QUOTING["request id"]), WELL)

    record = way.ask(way.transport(pool, provider)).extensions["agentos"]

    assert [refusal.request_id for refusal in record.refusals] == ["not <secret>!"]
    assert "planted" not in repr(record)


def test_in_a_large_pool_ten_characters_of_the_calls_own_key_are_masked(clock: FakeClock) -> None:
    secrets = [hashlib.sha256(bytes([number])).hexdigest() for number in range(60)]
    keys = [Credential(secret, hosts=[HOST]) for secret in secrets[:-1]]
    keys.append(Credential(secrets[-1], name="own", hosts=[HOST], labels=["own"]))
    pieces = [secrets[-1][begin : begin + 10] for begin in range(8)]
    provider = Provider(*(Says(400, f"not {piece}!".encode()) for piece in pieces))
    pool = CredentialCoordinator(keys, clock=clock)
    client = httpx2.Client(transport=pool.transport(provider, labels="own"))

    told = {client.get(URL).text for _ in pieces}

    assert told == {"not <secret>!"}


UNTOUCHED = {
    "plain": (b'{"error": "\xc3\xa4 \xff\x00 "}', {"content-type": "application/json"}),
    "gzip": (gzip.compress(b"nothing to hide"), GZIP),
    "deflate": (zlib.compress(b"nothing to hide"), DEFLATE),
    "gzip and identity": (gzip.compress(b"nothing to hide"), {"content-encoding": "gzip, identity"}),
    "gzip twice": (gzip.compress(gzip.compress(b"nothing to hide")), {"content-encoding": "gzip, gzip"}),
    "brotli": (brotli.compress(b"nothing to hide"), {"content-encoding": "br"}),
    "nothing in an unknown coding": (b"", {"content-encoding": "zstd"}),
}


NOTE = b"[the body of this error was left out: its content coding%s cannot be decoded]"
UNREADABLE = {
    "an unknown coding": (NOISE[:500], "zstd", b" zstd"),
    "an unknown coding within a known one": (gzip.compress(NOISE[:500]), "lz4, gzip", b" lz4"),
    "what is not coded as it says": (NOISE[:500], "gzip", b" gzip"),
    "no brotli": (NOISE[:500], "br", b" br"),
    "too many codings": (NOISE[:500], ", ".join(["gzip"] * 6), b""),
    "a name that is none": (NOISE[:500], "x" * 21, b""),
}


@in_every_way
@pytest.mark.parametrize(("body", "codings", "named"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_an_error_that_cannot_be_decoded_is_replaced_by_a_note_and_still_classified(
    way: Way, body: bytes, codings: str, named: bytes, clock: FakeClock
) -> None:
    pool = pool_of(clock, "one")
    headers = {"content-encoding": codings, "content-type": "application/json"}

    answer = way.ask(way.transport(pool, Provider(Says(401, body, headers))))

    assert (answer.status_code, answer.content) == (401, NOTE % named)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers.get_list("content-length") == [str(len(answer.content))]
    assert "content-encoding" not in answer.headers
    assert states(pool) == {"one": "dead"}


@in_every_way
@pytest.mark.parametrize(("body", "headers"), UNTOUCHED.values(), ids=UNTOUCHED.keys())
def test_an_error_without_a_secret_goes_up_byte_for_byte(
    way: Way, body: bytes, headers: dict[str, str], clock: FakeClock
) -> None:
    transport = way.transport(pool_of(clock, "one"), Provider(Says(503, body, headers)))

    assert b"".join(way.pieces(transport, most=10)) == body


@in_both_libraries
@pytest.mark.parametrize(("body", "headers"), UNTOUCHED.values(), ids=UNTOUCHED.keys())
def test_an_error_without_a_secret_has_the_headers_it_came_with(way: Way, body: bytes, headers: dict[str, str]) -> None:
    came_with = {"X-Odd-Case": "Kept", **headers, "Content-Length": "15"}
    response = way.library.Response(500, headers=came_with)

    answer, _ = redact_response(way.library, response, read_of(body), str)

    assert answer.headers.raw == response.headers.raw


@in_both_libraries
def test_the_connection_of_an_error_that_was_read_is_not_handed_up(way: Way) -> None:
    response = way.library.Response(500, extensions={"network_stream": object(), "http_version": b"HTTP/2"})

    answer, _ = redact_response(way.library, response, read_of(b""), str)

    assert answer.extensions == {"http_version": b"HTTP/2"}
