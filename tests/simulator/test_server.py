"""The provider over real HTTP: with an ordinary client, and with raw sockets where the bytes matter."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from agentos.simulator import KeyPlan, Latency, ProviderPlan, QuotaPlan, Running, Scripted, Simulator, equal_keys
from agentos.simulator.server import ClientConnection, Service

AT_ONCE = Latency(0, 0)
HOURS = Latency(3600.0, 0.0)
GENERATE = "/v1beta/models/a-model:generateContent"
STREAM = "/v1beta/models/a-model:streamGenerateContent"
ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", GENERATE)
SECRETS = equal_keys(2).secrets
BODY = {"model": "a-model", "messages": [{"role": "user", "content": "x" * 40}], "max_tokens": 20}


class Time:
    """A clock for the limits, moved by the test."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextlib.contextmanager
def serving(plan: ProviderPlan, **options: Any) -> Iterator[Running]:
    """A simulator that has to have kept its own rules, and to have ended every call, by the end."""
    with Simulator(plan, **options) as simulator:
        yield simulator
        simulator.wait_idle()
        assert simulator.statistics().violations == ()


@contextlib.contextmanager
def client_of(simulator: Running) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(simulator.url.removeprefix("http://"), timeout=20)
    try:
        yield connection
    finally:
        connection.close()


@contextlib.contextmanager
def raw(simulator: Running) -> Iterator[socket.socket]:
    host, port = simulator.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        yield connection


def ask(
    connection: http.client.HTTPConnection,
    secret: str | None = SECRETS[0],
    route: str = "/v1/chat/completions",
    **changes: Any,
) -> http.client.HTTPResponse:
    headers = {"content-type": "application/json"}
    if secret is not None:
        headers["authorization"] = f"Bearer {secret}"
    connection.request("POST", route, json.dumps({**BODY, **changes}), headers)
    return connection.getresponse()


def request_bytes(body: bytes | None = None, *headers: str, route: str = "/v1/chat/completions") -> bytes:
    body = json.dumps(BODY).encode() if body is None else body
    lines = ["Host: here", f"Authorization: Bearer {SECRETS[0]}", f"Content-Length: {len(body)}", *headers]
    return f"POST {route} HTTP/1.1\r\n{''.join(line + chr(13) + chr(10) for line in lines)}\r\n".encode() + body


def read_answers(connection: socket.socket, number: int) -> list[tuple[int, bytes]]:
    """So many answers, one after the other, as they stand in the stream."""
    stream = connection.makefile("rb")
    found = []
    with stream:
        for _ in range(number):
            length = 0
            status = stream.readline()
            while (line := stream.readline()) not in (b"\r\n", b""):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            found.append((int(status.split()[1]), stream.read(length)))
    return found


def read_to_end(connection: socket.socket) -> bytes:
    found = b""
    try:
        while piece := connection.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


# The routes.


def test_an_openai_call_is_answered() -> None:
    with serving(equal_keys(1, rpm=60, tpm=6_000, latency=AT_ONCE)) as simulator, client_of(simulator) as client:
        answer = ask(client)
        told = json.loads(answer.read())

        assert (answer.status, answer.getheader("content-type")) == (200, "application/json")
        assert answer.getheader("x-ratelimit-remaining-requests") == "59"
        assert answer.getheader("x-ratelimit-remaining-tokens") == "5970"
        assert answer.getheader("date", "").endswith("GMT")
        assert (told["model"], told["usage"]["prompt_tokens"]) == ("a-model", 10)


@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
def test_an_anthropic_call_is_answered_with_either_header(header: str) -> None:
    with serving(equal_keys(1, rpm=60, latency=AT_ONCE)) as simulator, client_of(simulator) as client:
        secret = simulator.keys[0] if header == "x-api-key" else f"Bearer {simulator.keys[0]}"
        client.request("POST", "/anthropic/v1/messages", json.dumps(BODY), {header: secret})
        answer = client.getresponse()

        assert answer.status == 200
        assert answer.getheader("anthropic-ratelimit-requests-remaining") == "59"
        assert json.loads(answer.read())["type"] == "message"


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("", {"x-goog-api-key": SECRETS[1]}),
        (f"?key={SECRETS[1]}", {}),
        (f"?alt=json&key={SECRETS[1].replace('-', '%2D')}", {}),
        ("", {"authorization": f"Bearer {SECRETS[1]}"}),
        ("?key=wrong", {"x-goog-api-key": SECRETS[1]}),
    ],
)
def test_a_gemini_call_is_known_by_its_key_wherever_that_is(query: str, headers: dict[str, str]) -> None:
    with serving(equal_keys(2, rpm=60, latency=AT_ONCE)) as simulator, client_of(simulator) as client:
        client.request("POST", GENERATE + query, '{"contents": [{"parts": [{"text": "xxxx"}]}]}', headers)
        answer = client.getresponse()
        told = json.loads(answer.read())

    assert (answer.status, told["modelVersion"], told["usageMetadata"]["promptTokenCount"]) == (200, "a-model", 1)
    assert not [name for name, _ in answer.getheaders() if "ratelimit" in name or "request-id" in name]
    assert simulator.statistics().keys["key-2"].ok == 1


@pytest.mark.parametrize(
    ("route", "kind"),
    [
        ("/v1/chat/completions", "chat.completion"),
        ("/openai/v1/chat/completions?api-version=1", "chat.completion"),
        ("/v1/completions", "text_completion"),
        ("/a/b/v1/responses", "response"),
    ],
)
def test_every_route_works_with_a_prefix(route: str, kind: str) -> None:
    with serving(equal_keys(1, latency=AT_ONCE)) as simulator, client_of(simulator) as client:
        assert json.loads(ask(client, route=route).read())["object"] == kind


def test_the_shape_of_an_error_follows_the_route() -> None:
    with serving(equal_keys(1, spent=True, rejection_latency=0.0)) as simulator, client_of(simulator) as client:
        openai = ask(client)
        openai_body = json.loads(openai.read())
        anthropic = ask(client, route="/v1/messages")
        anthropic_body = json.loads(anthropic.read())
        gemini = ask(client, route=GENERATE)
        gemini_body = json.loads(gemini.read())

    assert (openai.status, openai_body["error"]["code"]) == (429, "insufficient_quota")
    assert (anthropic.status, anthropic_body["type"]) == (400, "error")
    assert (gemini.status, gemini_body["error"]["status"]) == (403, "PERMISSION_DENIED")


@pytest.mark.parametrize("secret", [None, "wrong"])
def test_a_call_without_a_good_secret_is_unauthorized(secret: str | None) -> None:
    with serving(equal_keys(1)) as simulator, client_of(simulator) as client:
        answer = ask(client, secret)

        assert (answer.status, json.loads(answer.read())["error"]["code"]) == (401, "invalid_api_key")


def test_health_unknown_addresses_wrong_methods_and_bad_bodies() -> None:
    with serving(equal_keys(1)) as simulator, client_of(simulator) as client:
        told = []
        for method, path, body in [
            ("GET", "/health", None),
            ("HEAD", "/health", None),
            ("POST", "/health", None),
            ("GET", "/nowhere", None),
            ("GET", "/simulator/nothing", None),
            ("GET", "/simulator/wait?in_flight=many", None),
            ("GET", "/v1/chat/completions", None),
            ("POST", "/v1/chat/completions", "{"),
            ("POST", "/v1/messages", "[]"),
            ("GET", GENERATE, None),
            ("POST", GENERATE, "[]"),
            ("POST", "/v1beta/models/a-model:countTokens", "{}"),
        ]:
            client.request(method, path, body)
            answer = client.getresponse()
            text = answer.read()
            assert method == "HEAD" or json.loads(text)
            told.append(answer.status)

    assert told == [200, 200, 405, 404, 404, 400, 405, 400, 400, 405, 400, 404]


@pytest.mark.parametrize("route", ["/nothing/v1beta/models", GENERATE])
def test_an_error_below_geminis_addresses_is_googles(route: str) -> None:
    with serving(equal_keys(1)) as simulator, client_of(simulator) as client:
        client.request("GET", route)
        error = json.loads(client.getresponse().read())["error"]

    assert set(error) == {"code", "message", "status"}


@pytest.mark.parametrize("dialect", ["full", "none"])
@pytest.mark.parametrize(
    ("route", "name"),
    [
        ("/v1/chat/completions", "x-request-id"),
        ("/mistral/v1/chat/completions", "x-request-id"),
        ("/v1/messages", "request-id"),
    ],
)
def test_every_answer_has_a_request_id_of_its_own(route: str, name: str, dialect: Any) -> None:
    script = (Scripted(500, call=3), Scripted(307, call=4))
    plan = equal_keys(1, rpm=3, latency=AT_ONCE, rejection_latency=0.0, dialect=dialect, script=script)
    with serving(plan) as simulator, client_of(simulator) as client:
        told = []
        for changes in ({}, {"stream": True}, {}, {}, {}, {"max_tokens": "many"}, {"stream": "maybe"}):
            answer = ask(client, route=route, **changes)
            answer.read()
            told.append((answer.status, answer.getheader(name, "")))
        wrong = ask(client, "wrong", route)
        wrong.read()
        told.append((wrong.status, wrong.getheader(name, "")))

    assert [status for status, _ in told] == [200, 200, 500, 307, 429, 400, 400, 401]
    assert len({identity for _, identity in told}) == len(told)
    assert all(identity.startswith("req_") for _, identity in told)


def test_limits_hold_over_http_and_retry_after_is_kept() -> None:
    clock = Time()
    plan = equal_keys(1, rpm=60, request_burst=2, latency=AT_ONCE, rejection_latency=0.0)
    with serving(plan, clock=clock) as simulator, client_of(simulator) as client:
        statuses = []
        for moment in (0.0, 0.0, 0.5, 0.999, 1.0, 1.5):
            clock.now = 100.0 + moment
            answer = ask(client)
            answer.read()
            statuses.append((answer.status, answer.getheader("retry-after-ms")))

    assert statuses == [(200, None), (200, None), (429, "500"), (429, "1"), (200, None), (429, "500")]
    assert simulator.statistics().total.rejected == {"requests": 3}


def test_the_statistics_are_there_as_json_and_a_reset_begins_again() -> None:
    with serving(equal_keys(1, rpm=1, latency=AT_ONCE)) as simulator, client_of(simulator) as client:
        assert [ask_status(client) for _ in range(2)] == [200, 429]
        client.request("GET", "/simulator/statistics")
        told = json.loads(client.getresponse().read())
        assert (told["total"]["calls"], told["keys"]["key-1"]["rejected"]) == (2, {"requests": 1})

        simulator.reset()

        assert simulator.statistics().total.calls == 0
        assert ask_status(client) == 200


def ask_status(client: http.client.HTTPConnection) -> int:
    answer = ask(client)
    answer.read()
    return answer.status


def test_a_call_in_flight_at_a_reset_is_counted_nowhere() -> None:
    with serving(equal_keys(1, latency=HOURS)) as simulator, raw(simulator) as connection:
        connection.sendall(request_bytes())
        simulator.wait_in_flight(1)

        simulator.reset()

        simulator.wait_idle()
    assert simulator.statistics().total.calls == 0


# Streams.


@pytest.mark.parametrize("latency", [AT_ONCE, Latency(0.02, 0.0)])
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/responses", "/v1/messages", f"{STREAM}?alt=sse"])
def test_a_stream_is_a_whole_event_stream_and_the_connection_lives_on(route: str, latency: Latency) -> None:
    with serving(equal_keys(1, latency=latency)) as simulator, client_of(simulator) as client:
        for _ in range(2):
            answer = ask(client, route=route, stream=True)
            text = answer.read().decode()

            assert answer.getheader("content-type") == "text/event-stream; charset=utf-8"
            assert answer.getheader("transfer-encoding") == "chunked"
            assert text.count("data: ") >= 3
            assert text.endswith(("\n\n", "\r\n\r\n"))


@pytest.mark.parametrize("latency", [AT_ONCE, Latency(0.003, 0.0)])
def test_a_gemini_stream_without_events_is_a_json_list(latency: Latency) -> None:
    with serving(equal_keys(1, latency=latency)) as simulator, client_of(simulator) as client:
        answer = ask(client, route=STREAM)
        told = json.loads(answer.read())

    assert (answer.getheader("content-type"), answer.getheader("transfer-encoding")) == ("application/json", "chunked")
    assert [chunk["modelVersion"] for chunk in told] == ["a-model"] * 3


def test_an_error_in_place_of_a_json_list_is_one_too_unless_scripted() -> None:
    script = (Scripted(500, call=1), Scripted(500, call=2, body="{}"))
    plan = equal_keys(1, rpm=2, latency=AT_ONCE, rejection_latency=0.0, script=script)
    with serving(plan) as simulator, client_of(simulator) as client:
        failed, scripted, limited = (json.loads(ask(client, route=STREAM).read()) for _ in range(3))

    assert (failed[0]["error"]["status"], scripted, limited[0]["error"]["code"]) == ("INTERNAL", {}, 429)


def test_a_stream_for_an_old_client_ends_with_the_connection() -> None:
    with serving(equal_keys(1, latency=AT_ONCE)) as simulator, raw(simulator) as connection:
        body = json.dumps({**BODY, "stream": True}).encode()
        connection.sendall(request_bytes(body).replace(b"HTTP/1.1", b"HTTP/1.0"))

        text = read_to_end(connection)

    assert b"transfer-encoding" not in text
    assert text.endswith(b"data: [DONE]\n\n")


def test_a_client_that_leaves_in_mid_stream_frees_its_place() -> None:
    plan = equal_keys(1, concurrency=1, latency=Latency(3600.0, 0.0))
    with serving(plan) as simulator, client_of(simulator) as second:
        with raw(simulator) as connection:
            connection.sendall(request_bytes(json.dumps({**BODY, "stream": True}).encode()))
            simulator.wait_in_flight(1)
            answer = ask(second)
            assert (answer.status, "concurrent" in json.loads(answer.read())["error"]["message"]) == (429, True)
        simulator.wait_idle()

        with raw(simulator) as connection:
            connection.sendall(request_bytes())
            simulator.wait_in_flight(1)
        simulator.wait_idle()
    total = simulator.statistics().total
    assert (total.admitted, total.left, total.in_flight, total.most_in_flight) == (2, 2, 0, 1)


# Mishaps.


def test_a_dropped_call_has_no_answer() -> None:
    with serving(equal_keys(1, latency=AT_ONCE, script=(Scripted("drop", call=1),))) as simulator:
        with client_of(simulator) as client, pytest.raises(ConnectionError):
            ask(client)
        with client_of(simulator) as client:
            assert ask(client).status == 200
    assert simulator.statistics().total.failed == 1


@pytest.mark.parametrize(
    ("route", "stream"),
    [
        ("/v1/chat/completions", False),
        ("/v1/chat/completions", True),
        (GENERATE, False),
        (STREAM, True),
        (f"{STREAM}?alt=sse", True),
    ],
)
@pytest.mark.parametrize("latency", [AT_ONCE, Latency(0.01, 0.0)])
def test_a_cut_answer_ends_in_its_middle(route: str, stream: bool, latency: Latency) -> None:
    plan = equal_keys(1, latency=latency, script=(Scripted("cut", call=1),))
    with serving(plan) as simulator, client_of(simulator) as client:
        answer = ask(client, route=route, stream=stream)

        assert answer.status == 200
        with pytest.raises(http.client.IncompleteRead):
            answer.read()


@pytest.mark.parametrize("route", ["/v1/chat/completions", GENERATE, f"{STREAM}?alt=sse"])
def test_a_stalled_call_lasts_until_its_client_leaves(route: str) -> None:
    plan = equal_keys(1, latency=AT_ONCE, script=(Scripted("stall", call=1),))
    with serving(plan) as simulator:
        with raw(simulator) as connection:
            connection.sendall(request_bytes(route=route))
            simulator.wait_in_flight(1)
        simulator.wait_idle()
    assert simulator.statistics().total.left == 1


@pytest.mark.parametrize("route", ROUTES)
def test_a_whole_answer_that_hangs_gives_half_its_body_and_lasts_until_its_client_leaves(route: str) -> None:
    plan = equal_keys(1, latency=AT_ONCE, script=(Scripted("hang", call=1),))
    with serving(plan) as simulator:
        with client_of(simulator) as client:
            answer = ask(client, route=route)
            half = answer.read(int(answer.getheader("content-length", "0")) // 2)
            assert half.startswith(b"{")
            assert simulator.statistics().total.in_flight == 1
        simulator.wait_idle()
    assert simulator.statistics().total.left == 1


@pytest.mark.parametrize("latency", [AT_ONCE, Latency(0.003, 0.0)])
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/messages", STREAM, f"{STREAM}?alt=sse"])
def test_a_stream_that_hangs_has_begun_and_lasts_until_its_client_leaves(route: str, latency: Latency) -> None:
    plan = equal_keys(1, latency=latency, script=(Scripted("hang", call=1),))
    with serving(plan) as simulator:
        with client_of(simulator) as client:
            answer = ask(client, route=route, stream=True)
            assert b"Simulated" in answer.read1(65536)
            assert simulator.statistics().total.in_flight == 1
        simulator.wait_idle()
    assert simulator.statistics().total.left == 1


@pytest.mark.parametrize("route", [*ROUTES, f"{STREAM}?alt=sse"])
def test_a_scripted_redirect_reaches_the_client_and_spends_nothing(route: str) -> None:
    elsewhere = "http://elsewhere.invalid/v1/chat/completions"
    script = (Scripted(307, call=1, headers={"Location": elsewhere}),)
    plan = equal_keys(1, rpm=1, latency=AT_ONCE, rejection_latency=0.0, script=script)
    with serving(plan) as simulator, client_of(simulator) as client:
        answer = ask(client, route=route, stream=True)
        answer.read()
        assert (answer.status, answer.reason) == (307, "Temporary Redirect")
        assert answer.getheader("location") == elsewhere
        assert ask_status(client) == 200


def test_scripted_statuses_headers_and_bodies_arrive() -> None:
    script = (
        Scripted(429, call=1, headers={"Retry-After": "7"}, body={"error": {"code": "slow_down"}}),
        Scripted(502, call=2, headers={"Content-Type": "text/html"}, body="<html>bad gateway</html>"),
        Scripted(200, call=3, headers={"content-type": "text/event-stream"}, body="event: error\ndata: {}\n\n"),
    )
    plan = equal_keys(1, latency=AT_ONCE, rejection_latency=0.0, script=script)
    with serving(plan) as simulator, client_of(simulator) as client:
        told = []
        for _ in script:
            answer = ask(client, stream=True)
            kinds = [value for name, value in answer.getheaders() if name.lower() == "content-type"]
            told.append((answer.status, answer.getheader("retry-after"), kinds, answer.read()))

    assert told == [
        (429, "7", ["application/json"], b'{"error": {"code": "slow_down"}}'),
        (502, None, ["text/html"], b"<html>bad gateway</html>"),
        (200, None, ["text/event-stream"], b"event: error\ndata: {}\n\n"),
    ]


# Bytes.


def test_a_connection_is_kept_and_closed_when_asked() -> None:
    with serving(equal_keys(1, latency=AT_ONCE)) as simulator, raw(simulator) as connection:
        connection.sendall(request_bytes())
        assert read_answers(connection, 1)[0][0] == 200
        connection.sendall(request_bytes(None, "Connection: close"))

        text = read_to_end(connection)

    assert b"connection: close\r\n" in text
    assert text.endswith(b"}")


@pytest.mark.parametrize("latency", [AT_ONCE, Latency(0.001, 0.0)])
def test_pipelined_requests_are_answered_in_order(latency: Latency) -> None:
    with serving(equal_keys(1, latency=latency)) as simulator, raw(simulator) as connection:
        connection.sendall(request_bytes() * 20 + b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n")

        answers = read_answers(connection, 21)

    assert [status for status, _ in answers] == [200] * 21
    assert [json.loads(body)["id"] for _, body in answers[:20]] == [f"chatcmpl-{number}" for number in range(1, 21)]
    assert answers[20][1] == b'{"status": "ok"}'


def test_a_request_that_comes_byte_by_byte_is_understood() -> None:
    with serving(equal_keys(1, latency=AT_ONCE)) as simulator, raw(simulator) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request_bytes():
            connection.sendall(bytes([byte]))

        assert read_answers(connection, 1)[0][0] == 200


def test_a_chunked_body_is_understood() -> None:
    text = json.dumps(BODY).encode()
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(text[at : at + 7]), text[at : at + 7]) for at in range(0, len(text), 7))
    head = request_bytes(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    with serving(equal_keys(1, latency=AT_ONCE)) as simulator, raw(simulator) as connection:
        connection.sendall(head + chunks + b"0\r\n\r\n")

        ((status, body),) = read_answers(connection, 1)

    assert (status, json.loads(body)["usage"]["prompt_tokens"]) == (200, 10)


def test_a_client_that_asks_first_is_told_to_continue() -> None:
    whole = request_bytes(None, "Expect: 100-continue")
    head, body = whole[: whole.index(b"\r\n\r\n") + 4], whole[whole.index(b"\r\n\r\n") + 4 :]
    with serving(equal_keys(1, latency=AT_ONCE)) as simulator, raw(simulator) as connection:
        connection.sendall(head)
        assert read_answers(connection, 1) == [(100, b"")]
        connection.sendall(body)

        assert read_answers(connection, 1)[0][0] == 200


@pytest.mark.parametrize(
    ("junk", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", b"400"),
        (b"hello?\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", b"505"),
        (b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 200_000, b"431"),
    ],
)
def test_junk_is_told_so_and_sent_away(junk: bytes, status: bytes) -> None:
    with serving(equal_keys(1)) as simulator, raw(simulator) as connection:
        connection.sendall(junk)

        text = read_to_end(connection)

    assert text.startswith(b"HTTP/1.1 " + status)
    assert b'"error"' in text


class Wire(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None: ...


class Loop:
    """A loop that keeps what is to be called later."""

    def __init__(self) -> None:
        self.later: list[float] = []

    def time(self) -> float:
        return 0.0

    def call_at(self, when: float, callback: object) -> None:
        self.later.append(when)


def test_a_stream_that_hangs_sends_the_first_half_of_its_pieces_and_serves_nothing_after_it() -> None:
    wire, loop = Wire(), Loop()
    plan = equal_keys(1, latency=AT_ONCE, script=(Scripted("hang", call=1),))
    connection = ClientConnection(Service(plan), cast(asyncio.AbstractEventLoop, loop))
    connection.connection_made(wire)

    connection.data_received(request_bytes(json.dumps({**BODY, "stream": True}).encode()) + request_bytes())

    assert (wire.written.count(b"HTTP/1.1 200 OK"), b" answer" in wire.written, b" 1." in wire.written) == (
        1,
        True,
        False,
    )
    assert not wire.written.endswith(b"0\r\n\r\n")


def test_a_client_that_does_not_read_is_answered_no_further_until_it_does() -> None:
    wire, loop = Wire(), Loop()
    connection = ClientConnection(Service(equal_keys(1, latency=AT_ONCE)), cast(asyncio.AbstractEventLoop, loop))
    connection.connection_made(wire)

    connection.pause_writing()
    connection.data_received(request_bytes() * 3)

    assert wire.written == b""
    connection.resume_writing()
    assert wire.written.count(b"HTTP/1.1 200 OK") == 3


def test_what_comes_after_junk_is_thrown_away_and_the_client_is_given_time_to_read_why() -> None:
    wire, loop = Wire(), Loop()
    connection = ClientConnection(Service(equal_keys(1, latency=AT_ONCE)), cast(asyncio.AbstractEventLoop, loop))
    connection.connection_made(wire)

    connection.data_received(b"\0" + request_bytes())
    connection.data_received(request_bytes())

    assert wire.written.count(b"HTTP/1.1") == 1
    assert (wire.ended, len(loop.later)) == (True, 1)


def test_a_client_that_does_not_read_delays_only_itself() -> None:
    with serving(equal_keys(1, latency=AT_ONCE)) as simulator, raw(simulator) as slow, client_of(simulator) as client:
        slow.settimeout(0.0)
        with contextlib.suppress(BlockingIOError):
            for _ in range(100):
                slow.send(request_bytes() * 100)

        assert ask_status(client) == 200


def test_whoever_waits_for_idleness_is_told_when_the_last_client_has_left() -> None:
    with serving(equal_keys(1, latency=HOURS)) as simulator, raw(simulator) as waiting, client_of(simulator) as client:
        with raw(simulator) as busy:
            busy.sendall(request_bytes())
            simulator.wait_in_flight(1)
            waiting.sendall(b"GET /simulator/wait?in_flight=0 HTTP/1.1\r\nHost: here\r\n\r\n")
            client.request("GET", "/health")  # once this is answered, what was sent before it has been read
            client.getresponse().read()

        assert read_answers(waiting, 1) == [(200, b"{}")]


def test_200_connections_at_once_are_served() -> None:
    with serving(equal_keys(8, rpm=6_000, latency=HOURS)) as simulator, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(raw(simulator)) for _ in range(200)]
        for client in clients:
            client.sendall(request_bytes())

        simulator.wait_in_flight(200)

        stack.close()
        simulator.wait_idle()
    assert simulator.statistics().total.most_in_flight == 200


def test_no_secret_is_in_any_answer_or_statistics() -> None:
    keys = (KeyPlan("planted-secret-1", "acme"), KeyPlan("planted-secret-2", "acme", dead=True))
    plan = ProviderPlan((QuotaPlan("acme", rpm=2),), keys, latency=AT_ONCE, rejection_latency=0.0)
    seen = ""
    with serving(plan) as simulator, client_of(simulator) as client:
        for secret in ("planted-secret-1", "planted-secret-2", "planted-secret-3", "planted-secret-1"):
            for route in ("/v1/chat/completions", "/v1/messages", "/v1/nothing", f"{GENERATE}?key={secret}"):
                answer = ask(client, secret, route)
                seen += str(answer.getheaders()) + answer.read().decode()
        client.request("GET", "/simulator/statistics")
        seen += client.getresponse().read().decode()

    assert len(seen) > 2_000
    assert "planted" not in seen
