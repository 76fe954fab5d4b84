"""Malformed requests: broken framing, smuggled requests, odd chunk sizes, double lengths, cut at any byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

BODY = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}).encode()
_PATHS = (
    *("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1beta/models/m:generateContent", "/", "*", ""),
    *("/v1/../etc/passwd", "/v1//messages", "/%2e%2e/x", "http://evil.example/v1/messages", "//evil.example/v1"),
    *("/v1/messages?key=", "/v1/messages#x", "/v1/messages HTTP/1.1\r\nx: y", "\x00", "/v1/\xff", "evil.example:443"),
)
_METHODS = ("POST", "GET", "HEAD", "PUT", "CONNECT", "OPTIONS", "TRACE", "post", "P OST", "", "POST\t", "\x16\x03\x01")
_VERSIONS = ("HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/1.1 ", "http/1.1", "", "HTTP/1.10", "XTTP/1.1")
_LENGTHS = ("0", "-1", "+5", "0x10", "1e3", " 7", "7,7", "7, 8", "99999999999999999999", "", "\t", "½", "65000000")
_CODINGS = (
    "chunked",
    "Chunked",
    "chunked, chunked",
    "gzip, chunked",
    "identity",
    "chunked\x0b",
    " chunked",
    "xchunked",
)
_CHUNKS = (
    *(
        b"0\r\n\r\n",
        b"-1\r\n",
        b"0x5\r\nhello\r\n",
        b"5\r\nhello",
        b"5\r\nhello0\r\n\r\n",
        b"5;ext=1\r\nhello\r\n0\r\n\r\n",
    ),
    *(
        b"ffffffffffffffff\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"\r\n",
        b"5\nhello\n0\n\n",
        b"00000000000005\r\nhello\r\n0\r\n\r\n",
    ),
    *(b"5\r\nhello\r\n0\r\nTrailer: x\r\nx-api-key: y\r\n\r\n", b"g\r\n", b"5\r\nhel"),
)
_LINES = (
    *("x: y", "x : y", " folded", "\tfolded", ":", "no-colon", "x\x00: y", "x: y\x00", "x: y\rz: w", "x: y\nz: w"),
    *("host: evil.example", "host: 127.0.0.1", "content-length: 3", "transfer-encoding: chunked", "connection: x"),
    *("expect: 100-continue", "expect: 200-maybe", "upgrade: websocket", "origin: http://evil.example", "te: trailers"),
    *("x" * 40_000 + ": y", "x: " + "y" * 40_000, "authorization: Basic eDp5", "authorization: Bearer", "cookie: a=b"),
)


def _mostly(random: Random, usual: str, others: tuple[str, ...]) -> str:
    return usual if random.random() < 0.85 else random.choice(others)


def malformed(random: Random, port: int, token: str) -> bytes:
    """One request, wrong in one or several ways; it may also be right, or not wrong enough."""
    valid = random.random() < 0.75
    presented = token if valid else random.choice(("", "wrong", token[:-1], token + "0", token.upper()))
    head = f"{_mostly(random, 'POST', _METHODS)} {_mostly(random, '/v1/chat/completions', _PATHS)} "
    head += f"{_mostly(random, 'HTTP/1.1', _VERSIONS)}\r\n"
    lines = [f"host: 127.0.0.1:{port}", f"authorization: Bearer {presented}"]
    body = BODY if random.random() < 0.7 else random.randbytes(random.randrange(200))
    if random.random() < 0.7:
        lines.append(f"content-length: {_mostly(random, str(len(body)), _LENGTHS)}")
    if random.random() < 0.3:
        lines.append(f"transfer-encoding: {_mostly(random, 'chunked', _CODINGS)}")
        body = b"".join(random.choice(_CHUNKS) for _ in range(random.randrange(4)))
    lines += [random.choice(_LINES) for _ in range(random.randrange(3) // random.randrange(1, 3))]
    random.shuffle(lines)
    end = _mostly(random, "\r\n", ("\n", "\r", ""))
    data = (head + "".join(f"{line}\r\n" for line in lines) + end).encode("latin-1", "replace") + body
    return _damaged(random, data)


def _damaged(random: Random, data: bytes) -> bytes:
    how: Callable[[bytes], bytes] = random.choice(
        (
            *(lambda text: text,) * 5,
            lambda text: text[: random.randrange(len(text) + 1)],
            lambda text: text.replace(b"\r\n", b"\n", random.randrange(3)),
            lambda text: text + data,  # another one behind it
            lambda text: _flipped(random, text),
            lambda text: random.randbytes(random.randrange(300)),
        )
    )
    return how(data)


def _flipped(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.randrange(1, 6)):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)
