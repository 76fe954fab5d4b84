"""Requests with the headers and habits that were recorded from the real programs are served, held and recognised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentos.gateway.waiting import hold

from .running import Provider, RawClient, Received, Served, make_pool, provider, serving, wait_until

HABITS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "agents" / "recorded" / "habits.json").read_text()
)
REQUESTS = [(name, number) for name, recorded in HABITS.items() for number in range(len(recorded))]
EVENTS = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
)
# Those that name their session in a header; the others do it in the body, or not at all.
NAMED = ("claude", "codex", "goose", "opencode")
PATIENT = ("claude", "codex")


def build(served: Served, recorded: dict[str, Any]) -> bytes:
    """A request as the program sends it, with a token of this gateway."""
    headers = {
        name: value.replace("TOKEN", served.token)
        for name, value in recorded["headers"].items()
        if name not in ("content-length", "transfer-encoding")
    }
    if "TOKEN" not in str(recorded["headers"]):
        headers["authorization"] = f"Bearer {served.token}"
    else:
        headers.setdefault("authorization", None)
    body = {"model": "m", "messages": [], "stream": recorded["streams"]} if recorded["method"] == "POST" else None
    return served.request(recorded["path"], body, method=recorded["method"], headers=headers)


def serve(name: str, upstream: Provider) -> str:
    upstream.reply = lambda received: (
        received.reply(EVENTS) if b'"stream": true' in received.body else Received.json(received)
    )
    return {"claude": "anthropic", "gemini": "gemini"}.get(name, "openai")


@pytest.mark.parametrize(("name", "number"), REQUESTS)
def test_a_recorded_request_is_served_and_its_session_recognised(name: str, number: int) -> None:
    recorded = HABITS[name][number]
    with (
        provider() as upstream,
        make_pool(upstream.url, provider=serve(name, upstream)) as pool,
        serving(pool) as served,
    ):
        with served.connect() as client:
            client.send(build(served, recorded))
            assert client.answer().status == 200
        wait_until(lambda: len(served.records) == 1)
        sent = upstream.seen[0]

    assert served.records[0].outcome == "done"
    if name in NAMED and recorded["method"] == "POST":
        assert served.records[0].session == "ID"
    assert served.token not in sent.head.decode("latin-1")
    kept = [header for header in recorded["headers"] if header.startswith(("anthropic-", "openai-", "x-stainless-"))]
    assert {header: sent.headers.get(header) for header in kept} == {
        header: recorded["headers"][header] for header in kept
    }


@pytest.mark.parametrize(("name", "number"), [each for each in REQUESTS if HABITS[each[0]][each[1]]["streams"]])
def test_a_program_that_would_leave_gets_its_headers_early(
    name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "_STREAM_AFTER", 0.0)
    with (
        provider() as upstream,
        make_pool(upstream.url, provider=serve(name, upstream)) as pool,
        serving(pool) as served,
    ):
        lease = pool.acquire()
        with served.connect() as client:
            client.send(build(served, HABITS[name][number]))
            served.wait_for(lambda gateway: gateway.waiting_requests == 1)
            if name not in PATIENT:
                assert client.head()[0] == 200  # while no key is free
            lease.release()
            if name in PATIENT:
                assert client.head()[0] == 200
            assert _last(client) == b"hello"


def _last(client: RawClient) -> bytes:
    pieces = [b""]
    while piece := client.piece():
        pieces.append(piece)
    return pieces[-1]
