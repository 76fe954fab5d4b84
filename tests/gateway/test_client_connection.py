"""How often an answer is written to the socket of its client."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from agentos.gateway.client_connection import GatewayConnection
from agentos.util.http_server.connection import HttpDate
from agentos.util.http_server.request_parser import NO_BODY, HttpRequest

REQUEST = HttpRequest("POST", "/v1/chat/completions", "", {}, NO_BODY, True, False)


def connect() -> tuple[GatewayConnection, list[bytes], list[Callable[[], None]]]:
    """A connection, what it writes, and what it wants to be called in the next turn of the loop."""
    turn: list[Callable[[], None]] = []
    written: list[bytes] = []
    loop: Any = SimpleNamespace(call_soon=turn.append, time=lambda: 0.0)
    service: Any = SimpleNamespace(connections=set(), date=HttpDate(), is_draining=False)
    admission: Any = SimpleNamespace(check_head=None)
    connection = GatewayConnection(service, admission, loop)
    transport: Any = SimpleNamespace(write=written.append, get_extra_info=lambda _: None)
    connection.connection_made(transport)
    return connection, written, turn


def test_the_head_of_a_stream_goes_out_with_an_event_that_is_there() -> None:
    connection, written, turn = connect()

    connection.write_head(REQUEST, 200, [], length=None)
    connection.write_piece(REQUEST, b"data: 1\n\n")
    for call in turn:
        call()

    assert len(written) == 1
    assert written[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert written[0].endswith(b"\r\n\r\n9\r\ndata: 1\n\n\r\n")


def test_the_head_of_a_stream_does_not_wait_for_its_first_event() -> None:
    connection, written, turn = connect()

    connection.write_head(REQUEST, 200, [], length=None)
    for call in turn:
        call()

    assert len(written) == 1
    assert written[0].endswith(b"\r\n\r\n")
