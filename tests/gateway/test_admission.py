"""Who may ask, and what others are told."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.gateway.tokens import TokenHolder

from .running import Provider, Received, Served, make_pool, provider, secret, serving


@pytest.fixture
def upstream() -> Iterator[Provider]:
    with provider(Received.json) as made:
        yield made


@pytest.fixture
def served(upstream: Provider) -> Iterator[Served]:
    with make_pool(upstream.url) as pool, serving(pool) as made:
        yield made


@pytest.mark.parametrize("header", ["authorization", "x-api-key", "x-goog-api-key", "api-key"])
def test_the_token_is_accepted_in_every_header_for_keys(served: Served, upstream: Provider, header: str) -> None:
    value = f"Bearer {served.token}" if header == "authorization" else served.token
    headers = {"authorization": None, header: value}

    assert served.ask(headers=headers).status == 200

    sent = upstream.next() if not upstream.seen else upstream.seen[-1]
    assert sent.key == secret(1)
    assert served.token not in str(sent.head)


def test_a_placeholder_beside_the_token_does_no_harm(served: Served) -> None:
    assert served.ask(headers={"x-api-key": "placeholder"}).status == 200


def test_a_weak_token_is_refused(upstream: Provider) -> None:
    with make_pool(upstream.url) as pool, pytest.raises(ValueError, match="token must be at least 16"):
        pool.gateway(token="short")


def test_the_token_is_accepted_in_the_query_and_not_sent_on(served: Served, upstream: Provider) -> None:
    path = f"/v1/chat/completions?a=1&key={served.token}&b=2&%6bey={served.token}"

    assert served.ask(path, headers={"authorization": None}).status == 200
    assert upstream.seen[-1].target == "/v1/chat/completions?a=1&b=2"


@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        ({"authorization": None}, 401, "token is missing or wrong"),
        ({"authorization": "Bearer wrong"}, 401, "token is missing or wrong"),
        ({"authorization": "Bearer sk-ant-oat01-abc"}, 401, "login of a subscription"),
        ({"authorization": "Bearer eyJh.eyJz.abc"}, 401, "login of a subscription"),
        ({"host": "evil.example"}, 403, "Host"),
        ({"host": "evil.example:80"}, 403, "Host"),
        ({"origin": "http://evil.example"}, 403, "web pages"),
        ({"origin": "null"}, 403, "web pages"),
        ({"sec-fetch-site": "cross-site"}, 403, "web pages"),
        ({"upgrade": "websocket", "connection": "upgrade"}, 426, "WebSocket"),
    ],
)
def test_a_request_that_may_not_pass_is_refused_with_the_reason(
    served: Served, upstream: Provider, headers: dict[str, str], status: int, says: str
) -> None:
    answer = served.ask(headers=headers)

    assert answer.status == status
    assert says in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert upstream.seen == []


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:99"])
def test_the_names_of_this_machine_are_accepted(served: Served, host: str) -> None:
    assert served.ask(headers={"host": host}).status == 200


def test_a_refusal_has_the_form_of_the_provider_that_was_asked(served: Served) -> None:
    wrong = {"authorization": "Bearer wrong"}

    assert served.ask("/v1/messages", headers=wrong).json()["error"]["type"] == "authentication_error"
    assert served.ask("/v1beta/models/m:generateContent", headers=wrong).json()["error"]["status"] == "UNAUTHENTICATED"
    assert served.ask(headers=wrong).json()["error"]["code"] == "invalid_api_key"


def test_a_refused_head_request_gets_no_body(served: Served) -> None:
    with served.connect() as client:
        client.send(served.request("/", None, method="HEAD"))
        assert client.answer(without_body=True).status == 404
        assert client.is_closed()


def test_a_revoked_token_is_refused_also_on_an_open_connection(served: Served) -> None:
    tokens = served.gateway.tokens
    token = tokens.issue(TokenHolder("item", 1))
    with served.connect() as client:
        client.send(served.request(token=token))
        assert client.answer().status == 200
        tokens.revoke(token)
        client.send(served.request(token=token))
        assert client.answer().status == 401


def test_tokens_differ_and_share_only_the_stem_that_is_redacted(served: Served) -> None:
    tokens = served.gateway.tokens
    issued = [tokens.issue(TokenHolder(str(number), 1)) for number in range(50)]

    assert len(set(issued)) == 50
    assert all(token.startswith(tokens.stem) and len(token) > len(tokens.stem) + 10 for token in issued)
    assert tokens.find(tokens.stem) is None


def test_an_item_may_hold_64_requests_and_no_more(upstream: Provider) -> None:
    with make_pool(upstream.url) as pool, serving(pool) as served:
        lease = pool.acquire()
        token = served.gateway.tokens.issue(TokenHolder("item", 1))
        clients = [served.connect() for _ in range(64)]
        for client in clients:
            client.send(served.request(token=token))
        served.wait_for(lambda gateway: gateway.waiting_requests == 64)

        assert served.ask(token=token).status == 429

        lease.release()
        assert [client.answer().status for client in clients] == [200] * 64
        for client in clients:
            client.close()


def test_a_unix_socket_serves_any_host_name_and_is_private(upstream: Provider, tmp_path: Path) -> None:
    path = tmp_path / "gateway.sock"
    with make_pool(upstream.url) as pool, serving(pool, unix_socket=path) as served:
        assert os.stat(path).st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(path))
            client.sendall(served.request(headers={"host": "anything", "connection": "close"}))
            data = b""
            while piece := client.recv(65536):
                data += piece
        assert data.startswith(b"HTTP/1.1 200")
    assert not path.exists()
