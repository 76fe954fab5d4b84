"""Requests wait for a key in order of arrival, each client in the way that it can bear."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agentos import CredentialCoordinator
from agentos.gateway import GatewaySettings, exchange
from agentos.gateway.error_answers import build_parked_refusal
from agentos.gateway.routes import WireForm
from agentos.gateway.waiting import hold, lanes
from agentos.pool.core.records import LeaseRequest
from agentos.transport import transport

from .running import CHAT, Provider, RawClient, Served, make_pool, provider, secret, serving, wait_until

STREAM = {**CHAT, "stream": True}
EVENTS = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
)


@pytest.fixture
def upstream() -> Iterator[Provider]:
    with provider(lambda received: received.json(received.body)) as made:
        yield made


@pytest.fixture
def pool(upstream: Provider) -> Iterator[CredentialCoordinator]:
    with make_pool(upstream.url) as made:
        yield made


@contextlib.contextmanager
def queued(served: Served, count: int, **options: Any) -> Iterator[list[RawClient]]:
    """Clients that wait, in this order."""
    clients: list[RawClient] = []
    before = served.gateway.waiting_requests
    for number in range(count):
        client = served.connect()
        client.send(served.request(body={"model": "m", "n": number}, **options))
        clients.append(client)
        served.wait_for(lambda gateway: gateway.waiting_requests == before + len(clients))
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize("in_pool", [1, 3, 100])
def test_requests_are_served_in_order_of_arrival(
    pool: CredentialCoordinator, upstream: Provider, monkeypatch: pytest.MonkeyPatch, in_pool: int
) -> None:
    monkeypatch.setattr(lanes, "MOST_IN_POOL", in_pool)
    with serving(pool) as served:
        lease = pool.acquire()
        with queued(served, 12) as clients:
            assert upstream.seen == []
            lease.release()
            assert [client.answer().json()["n"] for client in clients] == list(range(12))

    assert [json.loads(request.body)["n"] for request in upstream.seen] == list(range(12))


def test_streams_that_are_kept_alive_are_served_in_order_of_arrival(
    pool: CredentialCoordinator, upstream: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "MOST_IN_POOL", 3)
    upstream.reply = lambda received: received.reply(EVENTS)
    with serving(pool) as served, contextlib.ExitStack() as ends:
        lease = pool.acquire()
        clients = [ends.enter_context(served.connect()) for _ in range(12)]
        for number, client in enumerate(clients):
            client.send(served.request(body={**STREAM, "n": number}, headers={"x-agentos-hold": "early"}))
            assert client.head()[0] == 200
            assert client.piece() == b":\n\n"
        assert upstream.seen == []

        lease.release()

        for client in clients:
            while client.piece():
                pass
    assert [json.loads(request.body)["n"] for request in upstream.seen] == list(range(12))


def test_a_client_that_leaves_gives_up_its_place_in_the_pool(pool: CredentialCoordinator, upstream: Provider) -> None:
    with serving(pool) as served:
        lease = pool.acquire()
        with queued(served, 5) as clients:
            clients[1].close()
            clients[3].close()
            served.wait_for(lambda gateway: gateway.waiting_requests == 3)
            lease.release()
            assert [clients[number].answer().json()["n"] for number in (0, 2, 4)] == [0, 2, 4]
        served.wait_for(lambda gateway: gateway.open_requests == 0)

        assert [json.loads(request.body)["n"] for request in upstream.seen] == [0, 2, 4]
        assert pool.get_available_count() == 1
        assert sorted(record.outcome for record in served.records) == ["done", "done", "done", "left", "left"]


def test_a_client_that_leaves_ends_its_upstream_call_and_returns_the_lease(
    pool: CredentialCoordinator, upstream: Provider
) -> None:
    upstream.reply = None
    with serving(pool) as served:
        client = served.connect()
        client.send(served.request())
        sent = upstream.next()
        assert pool.get_available_count() == 0
        client.close()

        assert sent.is_closed()
        wait_until(lambda: pool.get_available_count() == 1)
        assert served.gateway.open_requests == 0


def test_a_client_that_leaves_in_mid_stream_ends_the_stream(pool: CredentialCoordinator, upstream: Provider) -> None:
    upstream.reply = None
    with serving(pool) as served:
        client = served.connect()
        client.send(served.request(body=STREAM))
        sent = upstream.next()
        sent.reply(EVENTS.partition(b"0\r\n\r\n")[0])
        client.head()
        client.close()

        assert sent.is_closed()
        wait_until(lambda: pool.get_available_count() == 1)


def test_a_wait_forces_no_collection_because_the_gateway_abandons_no_stream(
    pool: CredentialCoordinator, upstream: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection stops all streams for milliseconds, and could free no key here."""
    collections: list[float] = []
    monkeypatch.setattr(transport, "_call_later", lambda seconds, _: collections.append(seconds))
    upstream.reply = None
    with serving(pool) as served, served.connect() as streaming:
        streaming.send(served.request(body=STREAM))
        upstream.next().reply(EVENTS.partition(b"0\r\n\r\n")[0])
        streaming.head()
        with queued(served, 1):
            wait_until(lambda: bool(pool._runtime.core.waiting))

            assert collections == []


def test_a_client_that_comes_again_finds_its_place(pool: CredentialCoordinator, upstream: Provider) -> None:
    with serving(pool) as served:
        lease = pool.acquire()
        with queued(served, 3) as clients:
            clients[0].close()
            served.wait_for(lambda gateway: gateway.waiting_requests == 2)
            again = served.connect()
            again.send(served.request(body={"model": "m", "n": 0}))
            served.wait_for(lambda gateway: gateway.waiting_requests == 3)
            lease.release()
            again.answer()
            for client in clients[1:]:
                client.answer()
            again.close()

    assert [json.loads(request.body)["n"] for request in upstream.seen] == [0, 1, 2]


@pytest.mark.parametrize(
    ("path", "body", "keep_alive"),
    [
        ("/v1/chat/completions", STREAM, b":\n\n"),
        ("/v1/responses", {"model": "m", "stream": True, "input": "x"}, b":\n\n"),
        ("/v1/messages", STREAM, b'event: ping\ndata: {"type": "ping"}\n\n'),
        ("/v1beta/models/m:streamGenerateContent?alt=sse", {"contents": []}, b":\n\n"),
    ],
)
def test_a_stream_is_kept_alive_in_the_form_of_its_dialect(
    upstream: Provider, monkeypatch: pytest.MonkeyPatch, path: str, body: object, keep_alive: bytes
) -> None:
    monkeypatch.setattr(hold, "_STREAM_AFTER", 0.0)
    upstream.reply = lambda received: received.reply(EVENTS)
    who = {"/v1/messages": "anthropic", "/v1beta/m": "gemini"}.get(path[:12] if "beta" not in path else path[:9])
    with make_pool(upstream.url, provider=who or "openai") as pool, serving(pool) as served:
        lease = pool.acquire()
        with served.connect() as client:
            client.send(served.request(path, body))
            status, headers = client.head()
            assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            assert client.piece() == keep_alive
            lease.release()
            assert client.piece() == b"hello"
            assert client.piece() == b""


@pytest.mark.parametrize(
    ("path", "body", "event"),
    [
        ("/v1/chat/completions", STREAM, b'data: {"error": {"message": "too long"'),
        ("/v1/responses", {"model": "m", "stream": True}, b'event: response.failed\ndata: {"type": "response.failed"'),
        ("/v1/messages", STREAM, b'event: error\ndata: {"error": {"message": "too long"'),
        ("/v1beta/models/m:streamGenerateContent?alt=sse", {}, b'data: {"error": {"message": "too long"'),
    ],
)
def test_an_error_after_the_beginning_is_told_inside_the_stream(
    upstream: Provider, path: str, body: object, event: bytes
) -> None:
    upstream.reply = lambda received: received.json(
        b'{"error": {"message": "too long", "type": "invalid_request_error"}}', status=400
    )
    who = "anthropic" if "messages" in path else "gemini" if "beta" in path else "openai"
    with make_pool(upstream.url, provider=who) as pool, serving(pool) as served:
        lease = pool.acquire()
        with served.connect() as client:
            client.send(served.request(path, body, headers={"x-agentos-hold": "early"}))
            assert client.head()[0] == 200
            client.piece()
            lease.release()
            assert client.piece().startswith(event)
            assert client.piece() == b""


def test_white_space_comes_before_the_json_of_a_client_that_accepts_it(
    upstream: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "_GEMINI_JSON_AFTER", 0.0)
    with make_pool(upstream.url, provider="gemini") as pool, serving(pool) as served:
        lease = pool.acquire()
        with served.connect() as client:
            agent = {
                "user-agent": "GeminiCLI-tui/0.61.0/gemini-2.5-flash (linux; x64; terminal)",
                "accept-encoding": "gzip",
            }
            client.send(served.request("/v1beta/models/m:generateContent", {"a": 1}, headers=agent))
            assert client.head()[0] == 200
            assert client.piece() == b" "
            lease.release()
            assert json.loads(client.piece()) == {"a": 1}
    assert upstream.seen[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("agent", "body", "method", "after"),
    [
        ("codex_exec/0.169.0 (Debian 12.0.0; x86_64)", {"stream": True}, "withhold", 0.0),
        ("claude-cli/2.1.326 (external, sdk-cli)", {"stream": True}, "withhold", 0.0),
        ("opencode/1.18.33 (linux; x64)", {"stream": True}, "keep-alive", 25.0),
        ("OpenAI/Python 2.20.0", {"stream": True}, "keep-alive", 25.0),
        ("OpenAI/Python 2.20.0", {}, "refuse", 540.0),
        ("QwenCode/0.24.4 (linux; x64)", {}, "refuse", 96.0),
        ("", {}, "refuse", 540.0),
    ],
)
def test_each_client_is_held_as_its_timers_allow(agent: str, body: dict[str, Any], method: str, after: float) -> None:
    from agentos.gateway.request_facts import read_facts
    from agentos.gateway.routes import find_route
    from agentos.util.http_server.request_body import RequestBody

    written = RequestBody()
    written.write(json.dumps({"model": "m", **body}).encode())
    route = find_route("POST", "/v1/responses", {})
    facts = read_facts(route, {}, "", written, "h")

    plan = hold.choose_hold(route, facts, {"user-agent": agent})

    assert (plan.method, plan.after) == (method, after)


def test_a_polite_refusal_keeps_the_place_in_line(pool: CredentialCoordinator, upstream: Provider) -> None:
    with serving(pool) as served:
        lease = pool.acquire()
        polite = served.ask(body={"model": "m", "n": 9}, headers={"x-agentos-hold": "none"})

        assert (polite.status, polite.headers["retry-after"]) == (429, "20")
        assert polite.headers["x-should-retry"] == "true"
        with queued(served, 2) as clients, served.connect() as again:
            again.send(served.request(body={"model": "m", "n": 9}))
            served.wait_for(lambda gateway: gateway.waiting_requests == 3)
            lease.release()
            for client in (*clients, again):
                client.answer()

    assert [json.loads(request.body)["n"] for request in upstream.seen] == [9, 0, 1]


def test_max_wait_ends_a_wait_with_429(pool: CredentialCoordinator) -> None:
    with serving(pool, GatewaySettings(max_wait=0.05)) as served:
        lease = pool.acquire()
        answer = served.ask()
        lease.release()

    assert answer.status == 429
    assert "no key became free" in answer.json()["error"]["message"]


def cool(pool: CredentialCoordinator, seconds: float) -> None:
    """Let all keys cool down."""
    for number in range(1, len(pool.snapshot()) + 1):
        pool.mark_rate_limited(secret(number), seconds)


def test_a_request_whose_key_opens_too_late_is_refused_for_good(
    pool: CredentialCoordinator, upstream: Provider
) -> None:
    cool(pool, 5000.0)
    with serving(pool, GatewaySettings(park_after=600.0)) as served:
        answer = served.ask("/v1/chat/completions")
        assert served.gateway.waiting_requests == 0

    assert (answer.status, answer.headers["x-should-retry"]) == (429, "false")
    assert 4900 < int(answer.headers["retry-after"]) <= 5000
    assert answer.json()["error"]["resets_at"] > 1e9
    assert "parked until" in answer.json()["error"]["message"]
    assert upstream.seen == []


def test_a_request_whose_key_is_refused_for_too_long_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_PARK_CHECK", 0.05)
    limited = b'{"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}}'
    with (
        provider(lambda received: received.json(limited, status=429, headers="retry-after: 5000\r\n")) as upstream,
        make_pool(upstream.url) as pool,
        serving(pool, GatewaySettings(park_after=600.0)) as served,
    ):
        answer = served.ask("/v1/chat/completions")

    assert (answer.status, answer.headers["x-should-retry"]) == (429, "false")
    assert "parked until" in answer.json()["error"]["message"]
    assert len(upstream.seen) == 1


def test_a_program_that_repeats_a_429_is_refused_with_another_status(pool: CredentialCoordinator) -> None:
    cool(pool, 5000.0)
    with serving(pool, GatewaySettings(park_after=600.0)) as served:
        answer = served.ask("/v1/chat/completions", headers={"user-agent": "opencode/1.18 (linux)"})

    error = answer.json()["error"]
    assert (answer.status, error["type"]) == (403, "usage_limit_reached")
    assert 4900 < int(answer.headers["retry-after"]) <= 5000


@pytest.mark.parametrize("form", WireForm)
@pytest.mark.parametrize("wait", [429.0, 500.0, 15003.0])
def test_a_final_refusal_has_no_number_that_a_client_takes_for_a_status(form: WireForm, wait: float) -> None:
    """opencode repeats an error whose text has one of these anywhere, as the instant of a reset may."""
    refusal = build_parked_refusal(wait, 1_795_000_429.0 + wait, status=403)

    body = refusal.body(form).decode()
    assert re.search("429|500|502|503|504|524", body) is None
    assert "parked until 2026-11-18" in body


def test_a_request_whose_key_opens_soon_enough_waits(pool: CredentialCoordinator) -> None:
    cool(pool, 0.5)
    with serving(pool, GatewaySettings(park_after=600.0)) as served:
        assert served.ask().status == 200


@pytest.mark.parametrize("is_probe", [False, True], ids=["in use", "probed after a limit"])
def test_a_request_whose_keys_are_only_in_use_waits(
    pool: CredentialCoordinator, monkeypatch: pytest.MonkeyPatch, is_probe: bool
) -> None:
    checks: list[float] = []
    runtime = pool._runtime
    find = runtime.seconds_until_open

    def check(request: LeaseRequest) -> float:
        checks.append(find(request))
        return checks[-1]

    monkeypatch.setattr(runtime, "seconds_until_open", check)
    monkeypatch.setattr(exchange, "_FIRST_PARK_CHECK", 0.01)
    monkeypatch.setattr(exchange, "_PARK_CHECK", 0.01)
    with serving(pool, GatewaySettings(park_after=600.0)) as served:
        if is_probe:
            cool(pool, 0.05)
        leases = [pool.acquire() for _ in pool.snapshot()]
        with queued(served, 1) as (client,):
            wait_until(lambda: len(checks) >= 3)
            for lease in leases:
                lease.release()

            assert client.answer().status == 200
    assert set(checks) == {0.0}


def test_draining_serves_what_waits_and_accepts_nothing_new(pool: CredentialCoordinator, upstream: Provider) -> None:
    with serving(pool) as served:
        lease = pool.acquire()
        with queued(served, 2) as clients:
            loop = served.thread._loop
            assert loop is not None
            draining = asyncio.run_coroutine_threadsafe(served.gateway.drain(), loop)
            wait_until(lambda: _refuses(served))
            assert not draining.done()
            lease.release()
            assert [client.answer().status for client in clients] == [200, 200]
            draining.result(30)


def _refuses(served: Served) -> bool:
    try:
        with served.connect() as client:
            client.send(served.request())
            client.socket.settimeout(0.2)
            return client.is_closed()
    except (ConnectionError, TimeoutError):
        return True


def test_closing_ends_what_waits(pool: CredentialCoordinator) -> None:
    with serving(pool) as served:
        lease = pool.acquire()
        with queued(served, 3) as clients:
            closing = threading.Thread(target=served.thread.close)
            closing.start()
            assert all(client.is_closed() for client in clients)
            closing.join()
        lease.release()
    assert pool.get_available_count() == 1


def test_a_gateway_that_was_closed_is_started_again_at_its_address(upstream: Provider) -> None:
    async def main(pool: CredentialCoordinator) -> None:
        gateway = pool.gateway()
        async with gateway:
            first = (gateway.url, gateway.port, gateway.token)
        assert gateway.port == first[1]
        async with gateway:
            assert (gateway.url, gateway.port, gateway.token) == first

    with make_pool(upstream.url) as pool:
        asyncio.run(main(pool))


@pytest.mark.parametrize("times", [{"max_wait": -1}, {"park_after": "soon"}])
def test_a_wait_that_is_no_number_of_seconds_is_refused(pool: CredentialCoordinator, times: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(times))):
        pool.gateway(**times)


def test_a_request_that_is_ended_before_its_first_step_leaves_nothing(upstream: Provider) -> None:
    async def end_at_once(pool: CredentialCoordinator) -> tuple[int, list[str]]:
        outcomes: list[str] = []
        async with pool.gateway(on_request=lambda request: outcomes.append(request.outcome)) as gateway:
            service = gateway._service
            assert service is not None
            original = exchange.Exchange.begin

            def begin(self: exchange.Exchange) -> None:
                original(self)
                self.end()

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(exchange.Exchange, "begin", begin)
                reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
                head = f"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\nx-api-key: {gateway.token}\r\n"
                writer.write(f"{head}content-length: 2\r\n\r\n{{}}".encode())
                assert await reader.read() == b""
                writer.close()
            while not outcomes:
                await asyncio.sleep(0)
            return gateway.open_requests, outcomes

    with make_pool(upstream.url) as pool:
        assert asyncio.run(end_at_once(pool)) == (0, ["cut off"])
        assert pool.get_available_count() == 1
