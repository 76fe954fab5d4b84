"""Who really sends: the transport that was given, or one of our own by the proxies of the environment."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import httpx
import httpx2
import pytest

from agentos.testing import FakeClock
from agentos.transport.inner_transports import InnerTransports

from .fakes import HOST, Provider, Way, in_both_libraries, in_every_way, leased, pool_of


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name}_proxy".upper(), raising=False)


def proxy_for(url: str) -> str | None:
    """The address of the proxy that a request for *url* would go through."""
    sender = InnerTransports(None, "HTTPTransport").for_request(httpx2.Request("GET", url))
    proxy = getattr(sender._pool, "_proxy_url", None)
    return None if proxy is None else f"{proxy.scheme.decode()}://{proxy.host.decode()}:{proxy.port}"


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({}, "https://api.openai.com/", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https://api.openai.com/", "http://p:1"),
        ({"https_proxy": "http://p:1"}, "https://api.openai.com/", "http://p:1"),
        ({"HTTPS_PROXY": "p:1"}, "https://api.openai.com/", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "http://api.openai.com/", None),
        ({"HTTP_PROXY": "http://p:1"}, "http://api.openai.com/", "http://p:1"),
        ({"ALL_PROXY": "http://p:1"}, "https://api.openai.com/", "http://p:1"),
        ({"ALL_PROXY": "http://p:1", "HTTPS_PROXY": "http://q:2"}, "https://api.openai.com/", "http://q:2"),
        ({"HTTPS_PROXY": ""}, "https://api.openai.com/", None),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "*"}, "https://api.openai.com/", None),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "api.openai.com"}, "https://api.openai.com/", None),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "other.com, openai.com"}, "https://api.openai.com/", None),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": ".openai.com"}, "https://api.openai.com/", None),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "openai.com"}, "https://evilopenai.com/", "http://p:1"),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "localhost"}, "http://localhost:8080/", None),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "gw.com:8080"}, "http://gw.com:8080/", None),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "gw.com:8080"}, "http://gw.com:9090/", "http://p:1"),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "127.0.0.1"}, "http://127.0.0.1:8080/", None),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "::1"}, "http://[::1]:8080/", None),
    ],
)
def test_the_proxies_are_those_of_the_environment(
    environment: dict[str, str], url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert proxy_for(url) == proxy


@pytest.fixture
def proxy() -> Iterator[tuple[int, list[bytes]]]:
    """The port of a proxy that answers everything itself, and the first lines of what it was asked."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as lines:
                asked.append(lines.readline())
                connection.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], asked
        thread.join(10)


@in_every_way
def test_a_call_really_goes_through_the_proxy(
    way: Way, proxy: tuple[int, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, asked = proxy
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
    transport = way.transport(pool_of(FakeClock(), "one", hosts=[f"{HOST}:80"]))

    answer = way.ask(transport, f"http://{HOST}/path", method="GET", timeout=60)

    assert answer.status_code == 204
    assert asked == [f"GET http://{HOST}/path HTTP/1.1\r\n".encode()]
    close(way, transport)


def close(way: Way, transport: object) -> None:
    if way.in_a_loop:
        asyncio.run(transport.aclose())  # type: ignore[attr-defined]
    else:
        transport.close()  # type: ignore[attr-defined]


@in_every_way
def test_a_transport_that_is_given_sends_everything_and_is_left_as_it_is(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://p:1")
    provider = Provider()
    before = dict(vars(provider))

    senders = InnerTransports(provider, "HTTPTransport")

    assert senders.for_request(way.library.Request("GET", "https://api.openai.com/")) is provider
    assert senders.all() == [provider]
    assert vars(provider) == before


def of_the_other_kind(way: Way) -> object:
    return way.library.HTTPTransport() if way.in_a_loop else way.library.AsyncHTTPTransport()


@in_every_way
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda way: way.library.Client(), "one of type Client"),
        (lambda way: way.library.HTTPTransport, "the class HTTPTransport itself"),
        (of_the_other_kind, "one of type (Async)?HTTPTransport"),
        (lambda _: "http://proxy:3128", "one of type str"),
    ],
    ids=["a client", "a class", "a transport of the other kind", "text"],
)
def test_what_is_no_transport_of_this_kind_is_refused_at_once_saying_what_to_give(
    way: Way, make: Callable[[Way], object], named: str
) -> None:
    kind = "AsyncHTTPTransport" if way.in_a_loop else "HTTPTransport"

    with pytest.raises(TypeError, match=rf"such as httpx2\.{kind}\(proxy=\.\.\.\), not {named}: "):
        way.transport(pool_of(FakeClock(), "one"), make(way))


@in_every_way
def test_to_close_a_transport_closes_the_one_it_was_given(way: Way) -> None:
    provider = Provider()
    transport = way.transport(pool_of(FakeClock(), "one"), provider)

    close(way, transport)

    assert provider.closed == 1


@in_every_way
def test_a_client_that_is_closed_leaves_the_pool_open(way: Way) -> None:
    pool = pool_of(FakeClock(), "one")

    close(way, way.transport(pool))

    assert way.ask(way.transport(pool, Provider())).status_code == 200


@in_both_libraries
def test_connections_are_kept_for_the_next_request_and_not_counted(way: Way) -> None:
    senders = InnerTransports(None, "HTTPTransport")
    first, second = (senders.for_request(way.library.Request("GET", f"https://{host}/")) for host in ("a.com", "b.com"))

    assert first is second
    assert first._pool._max_connections == sys.maxsize


def test_each_library_has_a_transport_of_its_own_kind() -> None:
    senders = InnerTransports(None, "HTTPTransport")

    kinds = [type(senders.for_request(library.Request("GET", "https://a.com/"))) for library in (httpx, httpx2)]

    assert kinds == [httpx.HTTPTransport, httpx2.HTTPTransport]
    assert [type(sender) for sender in senders.all()] == kinds


@in_every_way
def test_a_transport_of_the_other_library_is_refused_naming_both(way: Way) -> None:
    other = httpx if way.library is httpx2 else httpx2
    pool = pool_of(FakeClock(), "one")
    transport = way.transport(pool, other.MockTransport(lambda _: other.Response(200)))

    with pytest.raises(
        ValueError,
        match=f"inner is a transport of {other.__name__}, and the client is one of {way.library.__name__}: ",
    ):
        way.ask(transport)

    assert leased(pool) == []


def test_a_child_that_was_forked_has_connections_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    senders, request = InnerTransports(None, "HTTPTransport"), httpx2.Request("GET", "https://a.com/")
    of_the_parent = senders.for_request(request)

    monkeypatch.setattr("agentos.transport.inner_transports.getpid", lambda: -1)

    of_the_child = senders.for_request(request)
    assert of_the_child is not of_the_parent
    assert senders.for_request(request) is of_the_child
    monkeypatch.undo()
    assert senders.for_request(request) is of_the_parent


# -- without a library -----------------------------------------------------------------------------------------------

HIDDEN = """
import sys
for name in {names!r}:
    sys.modules[name] = None
from agentos import CredentialCoordinator
pool = CredentialCoordinator(["planted-0123456789"])
for make in (pool.transport, pool.async_transport):
    try:
        print(type(make()).__mro__[1].__module__.partition(".")[0])
    except ImportError as error:
        print(error)
"""


def told_without(*names: str) -> list[str]:
    """What is said of both transports where these libraries are not installed."""
    run = subprocess.run(
        [sys.executable, "-c", HIDDEN.format(names=names)],
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    return run.stdout.splitlines()


def test_without_either_library_it_is_said_which_extra_to_install() -> None:
    told = told_without("httpx", "httpx2")

    assert (
        told
        == ["pool.transport() and context.http need httpx2 (or httpx), which is not installed: pip install httpx2"] * 2
    )


def test_httpx_alone_will_do() -> None:
    assert told_without("httpx2") == ["httpx", "httpx"]
