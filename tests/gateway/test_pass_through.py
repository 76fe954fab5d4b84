"""Requests and answers pass unchanged, with another key; errors about the key do not reach the client."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import pytest

from agentos.gateway import GatewaySettings

from .running import CHAT, Provider, Received, Served, make_pool, provider, secret, serving, wait_until

BEGUN = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"


@pytest.fixture
def upstream() -> Iterator[Provider]:
    with provider() as made:
        yield made


@pytest.fixture
def served(upstream: Provider) -> Iterator[Served]:
    with make_pool(upstream.url, 3) as pool, serving(pool) as made:
        yield made


def test_the_body_and_the_providers_headers_pass_byte_for_byte(served: Served, upstream: Provider) -> None:
    body = b'{ "model" : "gpt-4o",  "odd": "\\u00e9", "x":1.00 }'
    headers = {
        "openai-beta": "a, b",
        "anthropic-beta": "x",
        "x-stainless-lang": "python",
        "user-agent": "me/1",
        "content-type": "application/json",
    }
    with served.connect() as client:
        client.send(served.request(body=body, headers=headers))
        sent = upstream.next()
        sent.json(b'{"answer" :  1}', headers="x-request-id: req_1\r\nopenai-version: 2\r\nset-cookie: a=b\r\n")
        answer = client.answer()

    assert sent.body == body
    assert {name: sent.headers[name] for name in headers} == headers
    assert (answer.status, answer.body) == (200, b'{"answer" :  1}')
    assert (answer.headers["x-request-id"], answer.headers["openai-version"]) == ("req_1", "2")
    assert "set-cookie" not in answer.headers
    assert (answer.headers["x-agentos-key"], answer.headers["x-agentos-waited"]) == ("key-1", "0.000")


def test_credentials_cookies_and_unknown_headers_stay_here(served: Served, upstream: Provider) -> None:
    headers = {
        "cookie": "a=b",
        "openai-organization": "org-1",
        "openai-project": "proj-1",
        "x-goog-user-project": "p",
        "x-forwarded-for": "1.2.3.4",
        "proxy-authorization": "Basic x",
        "x-agentos-hold": "late",
        "x-secret-thing": "y",
        "x-api-key": served.token,
    }
    with served.connect() as client:
        client.send(served.request(headers=headers))
        sent = upstream.next()
        sent.json()
        client.answer()

    assert not set(headers) & set(sent.headers)
    assert sent.headers["authorization"] == f"Bearer {secret(1)}"


def test_the_organisation_of_a_key_is_set_from_its_env(upstream: Provider) -> None:
    env = {"OPENAI_ORG_ID": "org-9", "OPENAI_PROJECT_ID": "proj-9"}
    upstream.reply = Received.json
    with make_pool(upstream.url, env=env) as pool, serving(pool) as served:
        served.ask(headers={"openai-organization": "org-1"})

    assert upstream.seen[0].headers["openai-organization"] == "org-9"
    assert upstream.seen[0].headers["openai-project"] == "proj-9"


def test_events_of_a_stream_are_passed_on_as_they_arrive(served: Served, upstream: Provider) -> None:
    with served.connect() as client:
        client.send(served.request(body={**CHAT, "stream": True}))
        sent = upstream.next()
        assert sent.headers["accept-encoding"] == "identity"
        sent.reply(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        assert client.head()[0] == 200  # before the first event
        for number in range(3):
            event = b'data: {"n": %d}\n\n' % number
            sent.reply(b"%x\r\n%b\r\n" % (len(event), event))
            assert client.piece() == event  # before the next one is sent
        sent.reply(b"0\r\n\r\n")
        assert client.piece() == b""
        client.send(served.request())  # the connection is still good
        upstream.next().json()
        assert client.answer().status == 200


def test_a_compressed_answer_passes_as_it_is(served: Served, upstream: Provider) -> None:
    body = gzip.compress(b'{"a": 1}' * 50)
    with served.connect() as client:
        client.send(served.request(headers={"accept-encoding": "gzip, br"}))
        sent = upstream.next()
        sent.json(body, headers="content-encoding: gzip\r\n")
        answer = client.answer()

    assert "br" not in sent.headers["accept-encoding"]
    assert (answer.body, answer.headers["content-encoding"]) == (body, "gzip")


@pytest.mark.parametrize("status", [400, 404, 413, 422, 500, 503, 529])
def test_an_error_that_is_not_about_the_key_passes_byte_for_byte(
    served: Served, upstream: Provider, status: int
) -> None:
    body = b'{"error" : {"message": "prompt is too long: 9 > 8", "type":"invalid_request_error"} }'
    with served.connect() as client:
        client.send(served.request())
        upstream.next().json(body, status=status, headers="retry-after: 7\r\n")
        answer = client.answer()

    assert (answer.status, answer.body, answer.headers["retry-after"]) == (status, body, "7")
    assert len(upstream.seen) == 1


def test_a_secret_that_an_error_quotes_is_masked(served: Served, upstream: Provider) -> None:
    with served.connect() as client:
        client.send(served.request())
        upstream.next().json(json.dumps({"error": f"bad key {secret(1)}"}).encode(), status=400)
        answer = client.answer()

    assert answer.json() == {"error": "bad key sk-proj-<secret>"}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (401, {"error": {"code": "invalid_api_key", "message": "no"}}),
        (429, {"error": {"code": "rate_limit_exceeded", "message": "slow down"}}),
        (429, {"error": {"code": "insufficient_quota", "message": "pay"}}),
        (403, {"error": {"code": "account_deactivated", "message": "closed"}}),
    ],
)
def test_a_refused_key_is_replaced_by_another_unseen_by_the_client(
    served: Served, upstream: Provider, status: int, body: object
) -> None:
    def reply(received: Received) -> None:
        if received.key == secret(1):
            received.json(json.dumps(body).encode(), status=status)
        else:
            received.json()

    upstream.reply = reply
    answer = served.ask()

    assert (answer.status, answer.json(), answer.headers["x-agentos-key"]) == (200, {"ok": True}, "key-2")
    assert [request.key for request in upstream.seen] == [secret(1), secret(2)]
    assert upstream.seen[0].body == upstream.seen[1].body
    wait_until(lambda: len(served.records) == 1)
    assert (served.records[0].refusals, served.records[0].key, served.records[0].outcome) == (1, "key-2", "done")


def test_a_client_is_told_if_every_key_is_dead(served: Served, upstream: Provider) -> None:
    upstream.reply = lambda received: received.json(b'{"error": {"code": "invalid_api_key"}}', status=401)

    first, second = served.ask(), served.ask()

    assert first.status == 401  # what the provider said of the last key
    assert (second.status, second.headers["x-should-retry"]) == (403, "false")


def test_a_redirect_is_refused(served: Served, upstream: Provider) -> None:
    upstream.reply = lambda received: received.reply(
        b"HTTP/1.1 307 X\r\nlocation: http://evil.example/\r\ncontent-length: 0\r\n\r\n"
    )
    answer = served.ask()

    assert answer.status == 502
    assert "location" not in answer.headers
    assert len(upstream.seen) == 1


def test_a_lost_connection_is_an_error_and_is_not_repeated(served: Served, upstream: Provider) -> None:
    upstream.reply = lambda received: received.cut()

    answer = served.ask()

    assert (answer.status, answer.headers["x-should-retry"]) == (502, "true")
    assert len(upstream.seen) == 1


def test_a_stream_that_breaks_off_ends_without_its_end(served: Served, upstream: Provider) -> None:
    with served.connect() as client:
        client.send(served.request(body={**CHAT, "stream": True}))
        sent = upstream.next()
        sent.reply(BEGUN)
        assert client.head()[0] == 200
        assert client.piece() == b"hello"
        sent.cut()
        assert client.is_closed()
    wait_until(lambda: len(served.records) == 1)
    assert served.records[0].outcome == "cut off"


def test_a_silent_provider_is_given_up(upstream: Provider) -> None:
    settings = GatewaySettings(silence=0.05)
    with make_pool(upstream.url) as pool, serving(pool, settings) as served:
        assert served.ask().status == 504
        assert upstream.next().is_closed()


def test_a_stream_that_falls_silent_is_cut_off(upstream: Provider) -> None:
    settings = GatewaySettings(silence=0.05)
    with make_pool(upstream.url) as pool, serving(pool, settings) as served, served.connect() as client:
        client.send(served.request(body={**CHAT, "stream": True}))
        sent = upstream.next()
        sent.reply(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
        assert client.head()[0] == 200
        assert client.piece() == b"hello"

        assert client.is_closed()
        assert sent.is_closed()
        assert pool.get_available_count() == 1


def test_a_provider_without_a_key_is_refused_before_anything_is_sent(served: Served, upstream: Provider) -> None:
    answer = served.ask("/v1/messages")

    assert answer.status == 403
    assert "no key for anthropic" in answer.json()["error"]["message"]
    assert upstream.seen == []


def test_a_large_body_is_kept_in_a_file_and_arrives_whole(served: Served, upstream: Provider) -> None:
    body = b'{"model": "gpt-4o", "x": "' + b"0123456789" * 300_000 + b'"}'
    refusing = iter([429, 200])

    def reply(received: Received) -> None:
        received.json(b"{}", status=next(refusing))

    upstream.reply = reply
    answer = served.ask(body=body)

    assert answer.status == 200
    assert [request.body == body for request in upstream.seen] == [True, True]  # once more, with another key


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_above_64_mebibytes_is_refused(served: Served, upstream: Provider, chunked: bool) -> None:
    headers = {"content-length": None, "transfer-encoding": "chunked"} if chunked else {"content-length": "70000000"}
    with served.connect() as client:
        client.send(served.request(body=b"", headers=headers) + (b"4100000\r\n" if chunked else b""))
        answer = client.answer()

    assert answer.status == 413
    assert upstream.seen == []


@pytest.mark.parametrize("sent_before", [b"", b"POST /v1/messages HTTP/1.1\r\nhost: local", None])
def test_a_request_that_arrives_too_slowly_is_refused(upstream: Provider, sent_before: bytes | None) -> None:
    settings = GatewaySettings(head_timeout=0.01, body_timeout=0.01, idle_timeout=0.01, sweep=0.01)
    with make_pool(upstream.url) as pool, serving(pool, settings) as served, served.connect() as client:
        client.send(served.request()[:-3] if sent_before is None else sent_before)
        if sent_before == b"":
            assert client.is_closed()
        else:
            assert client.answer().status == 408


def test_a_chunked_request_is_sent_on_with_its_length(served: Served, upstream: Provider) -> None:
    upstream.reply = Received.json
    with served.connect() as client:
        head = served.request(body=b"", headers={"content-length": None, "transfer-encoding": "chunked"})
        client.send(head + b'8\r\n{"a": 1,\r\n7\r\n"b": 2}\r\n0\r\n\r\n')
        assert client.answer().status == 200

    assert upstream.seen[0].body == b'{"a": 1,"b": 2}'
    assert "transfer-encoding" not in upstream.seen[0].headers


def test_requests_on_one_connection_are_answered_in_order(served: Served, upstream: Provider) -> None:
    upstream.reply = lambda received: received.json(received.body)
    with served.connect() as client:
        client.send(b"".join(served.request(body={"n": number}) for number in range(5)))
        assert [client.answer().json()["n"] for _ in range(5)] == [0, 1, 2, 3, 4]


def test_a_client_of_http_1_0_gets_a_stream_until_the_connection_closes(served: Served, upstream: Provider) -> None:
    with served.connect() as client:
        client.send(served.request(body={**CHAT, "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0"))
        upstream.next().reply(BEGUN + b"0\r\n\r\n")
        answer = client.answer()

    assert (answer.body, "transfer-encoding" in answer.headers) == (b"hello", False)


def test_usage_and_the_facts_of_a_request_are_recorded(served: Served, upstream: Provider) -> None:
    usage = b'{"model": "gpt-4o", "usage": {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}}'
    upstream.reply = lambda received: received.json(usage, headers="x-request-id: req_7\r\n")
    served.ask(headers={"session-id": "s-1"})

    wait_until(lambda: len(served.records) == 1)
    record = served.records[0]
    assert (record.model, record.session, record.status, record.request_id) == ("gpt-4o", "s-1", 200, "req_7")
    assert (record.usage.input, record.usage.output, record.item) == (11, 5, None)
