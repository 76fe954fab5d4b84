"""Whatever is sent to the gateway, it does not crash, and sends nothing that is wrong to a provider."""

from __future__ import annotations

import json
import logging
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random

import pytest

from agentos.gateway import GatewaySettings

from .malformed import malformed
from .running import Received, Served, make_pool, provider, secret, serving

REQUESTS = int(os.environ.get("AGENTOS_MALFORMED", "2000"))
SEED = int(os.environ.get("AGENTOS_MALFORMED_SEED", "21"))


QUICK = GatewaySettings(head_timeout=0.02, body_timeout=0.02, idle_timeout=0.02, sweep=0.02)


def test_malformed_requests_never_crash_it_nor_reach_a_provider_with_a_key(caplog: pytest.LogCaptureFixture) -> None:
    random = Random(SEED)
    caplog.set_level(logging.ERROR)
    with (
        provider(lambda received: received.json()) as upstream,
        make_pool(upstream.url, slots=64) as pool,
        serving(pool, QUICK) as served,
        ThreadPoolExecutor(16) as threads,
    ):
        reached = 0
        for _ in range(0, REQUESTS, 500):
            some = [malformed(random, served.port, served.token) for _ in range(min(500, REQUESTS))]
            for said in threads.map(partial(exchange, served.port), some):
                assert secret(1).encode() not in said
            for sent in upstream.seen:
                check(sent, served)
            reached += len(upstream.seen)
            upstream.seen.clear()

        assert reached > REQUESTS / 100  # some were right, or right enough
        # On a busy machine its timeouts end a right request as well: one of many is served.
        assert any(serves(served) for _ in range(100))
        served.wait_for(lambda gateway: gateway.open_requests == 0)
        assert pool.get_available_count() == 1
    assert caplog.text == ""  # asyncio logs what a callback raises


def serves(served: Served) -> bool:
    try:
        return served.ask().status == 200
    except ConnectionError:
        return False


def exchange(port: int, data: bytes) -> bytes:
    """Send the bytes in two parts, and read until the gateway closes the connection."""
    cut = sum(data) % (len(data) + 1)
    said = b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        try:
            client.sendall(data[:cut])
            client.sendall(data[cut:])
            if cut % 2:
                client.shutdown(socket.SHUT_WR)  # a client that has left
            while piece := client.recv(65536):
                said += piece
        except ConnectionError:
            pass  # it was refused before its end
    return said


def check(sent: Received, served: Served) -> None:
    """What reaches the provider is one request that its client meant, with our key and nothing of the client's."""
    assert sent.key == secret(1)
    method, target, _ = sent.head.split(b"\r\n")[0].split(b" ")
    assert method == b"POST"
    assert target.partition(b"?")[0] in (b"/v1/chat/completions", b"/v1/responses", b"/v1/messages")
    assert int(sent.headers["content-length"]) == len(sent.body)
    assert "transfer-encoding" not in sent.headers
    assert "evil.example" not in sent.headers["host"]
    assert served.token.encode() not in sent.head
    names = [line.partition(b":")[0].lower() for line in sent.head.split(b"\r\n")[1:] if line]
    assert len(names) == len(set(names)), names
    json.dumps(sent.body.decode("latin-1"))
