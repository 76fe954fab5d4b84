"""Errors for an address at which there is no Dask scheduler."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterator

import pytest

from agentos.runs.engines.dask_probe import NoScheduler, probe_scheduler

from .background_call import Aside

WAIT = 20.0
Greeter = Callable[[bytes], int]


@pytest.fixture
def greeting(aside: Aside) -> Iterator[Greeter]:
    """A port on which whoever comes is told so much, and then left."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT)

        def serve(words: bytes) -> int:
            def greet() -> None:
                connection, _ = server.accept()
                with connection:
                    connection.sendall(words)

            aside.submit(greet)
            return int(server.getsockname()[1])

        yield serve


def test_one_that_greets_as_dask_does_is_taken_for_a_scheduler(greeting: Greeter) -> None:
    probe_scheduler("127.0.0.1", greeting(struct.pack("<Q", 200)), None, WAIT)


@pytest.mark.parametrize(
    ("words", "said"),
    [(b"SSH-2.0-x\r\n", "not a Dask scheduler"), (b"", "is closed at once"), (b"220", "is closed at once")],
)
def test_one_that_does_not_is_said_to_be_none(greeting: Greeter, words: bytes, said: str) -> None:
    with pytest.raises(NoScheduler, match=said):
        probe_scheduler("127.0.0.1", greeting(words), None, WAIT)


@pytest.mark.parametrize(("tls", "other"), [(None, "wants tls://"), (ssl.create_default_context(), "dask://")])
def test_one_that_says_nothing_is_not_waited_for_and_what_it_may_be_is_told(
    tls: ssl.SSLContext | None, other: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(NoScheduler, match=f"dashboard.*{other}"):
        probe_scheduler("127.0.0.1", silent.getsockname()[1], tls, 0.05)


def test_one_that_speaks_no_tls_is_said_to_be_none(greeting: Greeter) -> None:
    with pytest.raises(NoScheduler, match="something answers there"):
        probe_scheduler("127.0.0.1", greeting(b"+PONG and more\r\n"), ssl.create_default_context(), WAIT)


def test_a_host_that_is_not_known_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)

    with pytest.raises(NoScheduler, match="the host nowhere cannot be resolved"):
        probe_scheduler("nowhere", 8786, None, WAIT)


def test_where_nothing_listens_it_says_how_to_start_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    with pytest.raises(NoScheduler, match=f"start one: dask scheduler --port {port}"):
        probe_scheduler("127.0.0.1", port, None, WAIT)


def test_a_host_that_does_not_answer_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", silent)

    with pytest.raises(NoScheduler, match=r"no answer within 5s: is far up, and port 8786 open to us\?"):
        probe_scheduler("far", 8786, None, 5.0)
