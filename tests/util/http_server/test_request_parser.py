"""Requests are parsed from bytes, however they are split."""

from __future__ import annotations

import random

import pytest

from agentos.util.http_server.request_parser import MAX_BODY, MAX_HEAD, BadRequest, HttpRequest, RequestReader

HOST = b"Host: here\r\n"


def read_all(data: bytes, size: int | None = None) -> list[HttpRequest]:
    reader = RequestReader()
    found = []
    step = size or len(data) or 1
    for start in range(0, len(data), step):
        reader.feed(data[start : start + step])
        while (request := reader.next_request()) is not None:
            found.append(request)
    return found


def post(body: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"POST /v1/x?a=b HTTP/1.1\r\n" + HOST + lines + b"Content-Length: %d\r\n\r\n" % len(body) + body


CHUNKED = (
    b"POST /c HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: Chunked\r\n\r\n"
    b"5\r\nhello\r\n1;name=value\r\n \r\nA\r\nwide world\r\n0\r\nTrailer: x\r\n\r\n"
)
STREAM = post(b'{"a": 1}', b"X-Two: 1", b"x-two:\t2 ") + b"\r\nGET /g HTTP/1.0\r\n\r\n" + CHUNKED + post(b"")


@pytest.mark.parametrize("size", [None, 1, 2, 3, 7, 64])
def test_requests_are_the_same_however_the_bytes_are_cut(size: int | None) -> None:
    first, second, third, fourth = read_all(STREAM, size)

    assert (first.method, first.path, first.query, first.body.read()) == ("POST", "/v1/x", "a=b", b'{"a": 1}')
    assert first.headers["x-two"] == "1, 2"
    assert (first.keep_alive, first.http10) == (True, False)
    assert (second.method, second.path, second.keep_alive, second.http10) == ("GET", "/g", False, True)
    assert third.body.read() == b"hello wide world"
    assert fourth.body.read() == b""


def test_what_the_connection_header_wishes_is_known() -> None:
    def kept(version: bytes, wish: bytes) -> bool:
        (request,) = read_all(b"GET / HTTP/" + version + b"\r\n" + HOST + b"Connection: " + wish + b"\r\n\r\n")
        return request.keep_alive

    assert [kept(b"1.1", b"Close"), kept(b"1.1", b"keep-alive")] == [False, True]
    assert [kept(b"1.0", b"close"), kept(b"1.0", b"Keep-Alive")] == [False, True]


def test_a_target_for_a_proxy_is_understood() -> None:
    (request,) = read_all(b"GET http://here:80/a/b?c HTTP/1.1\r\n" + HOST + b"\r\n")

    assert (request.path, request.query) == ("/a/b", "c")


def test_a_client_that_waits_to_be_asked_for_its_body_is_noticed() -> None:
    reader = RequestReader()
    whole = post(b"12345", b"Expect: 100-Continue")
    reader.feed(whole[:-5])
    assert reader.next_request() is None
    assert reader.expects_continue
    reader.feed(whole[-5:])

    request = reader.next_request()

    assert request is not None
    assert request.body.read() == b"12345"
    assert not reader.expects_continue


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00", 400),
        (b"\0", 400),
        (b"{}", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"G(T / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505),
        (b"GET / SPDY/1\r\n" + HOST + b"\r\n", 400),
        (b"GET nowhere HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"no colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"space : 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b" folded: 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"a: b\nc: d\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"a: b\0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % (MAX_BODY + 1), 413),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Expect: magic\r\n\r\n", 417),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 2000, 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabcd0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\n", 413),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"t: 1\r\n" * 9000, 431),
        (b"GET / HTTP/1.1\r\na: " + b"b" * MAX_HEAD, 431),
        (b"GET / HTTP/1.1\r\na: " + b"b" * MAX_HEAD + b"\r\n\r\n", 431),
    ],
)
def test_what_is_no_request_is_refused(data: bytes, status: int) -> None:
    with pytest.raises(BadRequest) as caught:
        read_all(data)
    assert caught.value.status == status


def test_the_same_length_told_twice_is_told_once() -> None:
    (request,) = read_all(post(b"abc", b"Content-Length: 3"))

    assert request.body.read() == b"abc"


def test_junk_is_refused_or_waited_for_and_never_anything_else() -> None:
    chance = random.Random(3)
    statuses = set()
    for _ in range(3_000):
        data = bytearray(STREAM)
        for _ in range(chance.randrange(1, 6)):
            place = chance.randrange(len(data))
            data[place : place + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        try:
            read_all(bytes(data), chance.choice([None, 5]))
        except BadRequest as error:
            statuses.add(error.status)
    assert {400} < statuses <= {400, 413, 417, 431, 501, 505}
