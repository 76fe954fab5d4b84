"""One call from its lease to the end of its answer: what the caller sees of it, and what the pool is told."""

from __future__ import annotations

import asyncio
import datetime
import gc
import gzip
import json
import logging
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from agentos import CredentialCoordinator, ForeignHost, LeaseLost, Limit, NoCredentialAvailable, Usage
from agentos.costs.usage_log import UsageLog
from agentos.pool.core.records import Grant
from agentos.pool.lease import CURRENT_ATTEMPT, ItemLease
from agentos.providers import Event, Signal
from agentos.testing import FakeClock
from agentos.transport import CallRecord

from ..background_threads import Background
from ..logged_messages import said_here
from .fakes import (
    ASKED,
    HOST,
    URL,
    WELL,
    Body,
    Provider,
    Says,
    Way,
    in_both_libraries,
    in_every_way,
    leased,
    pool_of,
    secret_of,
    states,
)

EVENTS = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def left(pool: CredentialCoordinator) -> float:
    """How much is left of the one limit that was stated of the first key."""
    (limit,) = [limit for limit in pool.snapshot()[0].limits if not limit.learned]
    return round(limit.left, 6)


# -- answers that are none of our business ---------------------------------------------------------------------------


@in_every_way
@pytest.mark.parametrize(
    "line",
    [
        Says(200, b"plain"),
        Says(200, b"\x00\xff" * 1000, {"content-type": "audio/mpeg"}),
        Says(200, {}),
        Says(200, [1, 2]),
        Says(200, b"not JSON", JSON),
        Says(200, b"", JSON),
        Says(201, {"id": 1}),
        Says(204),
        Says(206, b"part"),
        Says(304),
        Says(302, b"moved", {"location": f"https://{HOST}/elsewhere"}),
        Says(101, b"", {"upgrade": "websocket"}),
    ],
    ids=lambda line: f"{line.status} {line.body!r:.20}",
)
def test_an_answer_that_is_no_error_passes_unchanged_and_gives_the_slot_back(
    way: Way, line: Says, clock: FakeClock
) -> None:
    pool, provider = pool_of(clock, "one"), Provider(line)

    answer = way.ask(way.transport(pool, provider))

    same = line.answer_to(answer.request)
    assert (answer.status_code, answer.content) == (same.status_code, same.read())
    assert answer.headers.raw == same.headers.raw
    assert leased(pool) == []
    assert states(pool) == {"one": "available"}


@in_every_way
def test_a_head_request_has_headers_and_no_body(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one"), Provider(Says(200, Body(), {**JSON, "content-length": "1000"}))

    answer = way.ask(way.transport(pool, provider), method="HEAD")

    assert (answer.headers["content-length"], answer.content) == ("1000", b"")
    assert leased(pool) == []


@in_every_way
def test_a_redirect_within_its_host_is_followed_with_the_key(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one"), Provider(Says(307, b"", {"location": "/elsewhere"}), WELL)

    answer = way.ask(way.transport(pool, provider), follow_redirects=True)

    assert answer.status_code == 200
    assert [request.url.path for request in provider.seen] == ["/v1/chat/completions", "/elsewhere"]
    assert provider.keys == ["one", "one"]


@in_every_way
@pytest.mark.parametrize("location", ["https://evil.com/", f"https://{HOST}.evil.com/", f"https://{HOST}@evil.com/"])
def test_a_redirect_to_a_foreign_host_is_refused_and_no_key_is_sent(way: Way, location: str, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one"), Provider(Says(307, b"", {"location": location}), WELL)

    with pytest.raises(ForeignHost):
        way.ask(way.transport(pool, provider), follow_redirects=True)

    assert len(provider.seen) == 1
    assert leased(pool) == []


# -- what a client does with an answer -------------------------------------------------------------------------------


@in_every_way
@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_client_measures_and_counts_an_answer_as_always(way: Way, status: int, clock: FakeClock) -> None:
    body = json.dumps({"error": {"message": "no"}}).encode()
    packed = gzip.compress(body)
    pool = pool_of(clock, "one")

    answer = way.ask(way.transport(pool, Provider(Says(status, packed, {**JSON, "content-encoding": "gzip"}))))

    assert answer.content == body
    assert answer.num_bytes_downloaded == len(packed)
    assert isinstance(answer.elapsed, datetime.timedelta)
    assert (answer.is_closed, answer.is_stream_consumed) == (True, True)


@in_every_way
@pytest.mark.parametrize("status", [200, 400])
def test_an_answer_can_be_taken_raw_piece_by_piece(way: Way, status: int, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one"), Provider(Says(status, Body(b"one ", b"two"), EVENTS))

    assert b"".join(way.pieces(way.transport(pool, provider), most=10)) == b"one two"
    assert leased(pool) == []


@in_every_way
@pytest.mark.parametrize("status", [200, 400])
def test_the_extensions_of_an_answer_are_kept(way: Way, status: int, clock: FakeClock) -> None:
    line = Says(status, b"{}", JSON, {"http_version": b"HTTP/2", "stream_id": 3})

    answer = way.ask(way.transport(pool_of(clock, "one"), Provider(line)))

    assert answer.http_version == "HTTP/2"
    assert answer.extensions["stream_id"] == 3
    assert isinstance(answer.extensions["agentos"], CallRecord)


@in_every_way
@pytest.mark.parametrize("status", [200, 400])
def test_hooks_of_a_client_are_called_with_what_it_sent_and_got(way: Way, status: int, clock: FakeClock) -> None:
    told: list[Any] = []

    def hook(thing: Any) -> None:
        told.append(thing)

    async def async_hook(thing: Any) -> None:
        told.append(thing)

    hooks = [async_hook if way.in_a_loop else hook]
    transport = way.transport(pool_of(clock, "one"), Provider(Says(status, b"{}", JSON)))

    answer = way.ask(transport, hooks={"request": hooks, "response": hooks})

    assert told == [answer.request, answer]
    assert "planted" not in repr(told[0].headers.raw)
    assert answer.extensions["agentos"].credential == "one"


@in_every_way
def test_what_a_mock_transport_made_is_over_when_it_comes(way: Way, clock: FakeClock) -> None:
    usage = {"prompt_tokens": 30, "completion_tokens": 70}
    pool = pool_of(clock, "one", tpm=1000)
    mock = way.library.MockTransport(lambda _: way.library.Response(200, json={"usage": usage}))

    answer = way.ask(way.transport(pool, mock))

    assert answer.json() == {"usage": usage}
    assert leased(pool) == []
    assert left(pool) == 900


# -- the record ------------------------------------------------------------------------------------------------------


@in_both_libraries
@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({"x-request-id": "req-1"}, "req-1"),
        ({"Request-Id": "req-1"}, "req-1"),
        ({"apim-request-id": "b", "X-Request-ID": "a"}, "a"),
        ({"x-amzn-RequestId": "req-1"}, "req-1"),
        ({"x-request-id": "", "request-id": "req-1"}, "req-1"),
        ({"x-request-id": "x" * 1000}, "x" * 200),
        ({}, None),
    ],
)
def test_the_record_has_the_providers_own_id_of_the_call(
    way: Way, status: int, headers: dict[str, str], found: str | None, clock: FakeClock
) -> None:
    line = Says(status, b"{}", headers)

    record = way.ask(way.transport(pool_of(clock, "one"), Provider(line))).extensions["agentos"]

    assert record.request_id == found
    assert repr(record) == f"CallRecord(credential='one', request_id={found!r}, waited=0.000, refusals=())"


# -- errors that say too much ----------------------------------------------------------------------------------------

ECHO = {"error": {"code": "invalid_api_key", "message": f"Incorrect API key provided: {secret_of('one')}."}}
MASKED = {"error": {"code": "invalid_api_key", "message": "Incorrect API key provided: <secret>."}}


@in_every_way
@pytest.mark.parametrize("status", [400, 401, 500])
@pytest.mark.parametrize("coding", ["", "gzip", "chunked"])
def test_an_error_that_quotes_the_key_goes_up_without_it(
    way: Way, status: int, coding: str, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    body = json.dumps(ECHO).encode()
    headers = dict(JSON)
    if coding == "gzip":
        body = gzip.compress(body)
        headers["content-encoding"] = "gzip"
    elif coding == "chunked":
        headers["transfer-encoding"] = "chunked"
    line = Says(status, Body(body) if coding == "chunked" else body, headers)
    pool = pool_of(clock, "one")

    answer = way.ask(way.transport(pool, Provider(line)))

    assert answer.json() == MASKED
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert not {"content-encoding", "transfer-encoding"} & {name.lower() for name in answer.headers}
    assert states(pool)["one"] == "dead"
    assert "planted" not in caplog.text + repr(pool.snapshot())


@in_every_way
def test_an_error_whose_coding_is_not_true_is_handed_up_as_it_is_but_for_the_key(way: Way, clock: FakeClock) -> None:
    body = json.dumps(ECHO).encode()
    line = Says(400, body, {**JSON, "content-encoding": "gzip"})

    answer = way.ask(way.transport(pool_of(clock, "one"), Provider(line)))

    assert answer.json() == MASKED
    assert int(answer.headers["content-length"]) == len(answer.content)


@in_every_way
@pytest.mark.parametrize("status", [400, 429])
def test_an_error_whose_coding_is_not_true_can_be_read(way: Way, status: int, clock: FakeClock) -> None:
    line = Says(status, b"too many", {"content-encoding": "gzip"})

    answer = way.ask(way.transport(pool_of(clock, "one"), Provider(line), max_wait=0))

    assert (answer.status_code, answer.content) == (status, b"too many")


@in_every_way
def test_an_error_that_quotes_another_key_of_the_pool_goes_up_without_it(way: Way, clock: FakeClock) -> None:
    line = Says(400, f"not {secret_of('two')} but \xff".encode("latin-1"))

    answer = way.ask(way.transport(pool_of(clock, "one", "two"), Provider(line)))

    assert answer.content.startswith(b"not <secret>")
    assert answer.content.endswith(b" but \xff")
    assert b"planted" not in answer.content


@in_every_way
def test_an_error_in_a_packed_body_is_understood(way: Way, clock: FakeClock) -> None:
    body = gzip.compress(json.dumps({"error": {"code": "insufficient_quota"}}).encode())
    pool, provider = pool_of(clock, "one", "two"), Provider(Says(429, body, {**JSON, "content-encoding": "gzip"}), WELL)

    assert way.ask(way.transport(pool, provider)).status_code == 200
    assert states(pool)["one"] == "spent"


def raw_pieces(way: Way, line: Says, clock: FakeClock) -> list[bytes]:
    """The pieces of an answer, as the caller gets them."""
    return way.pieces(way.transport(pool_of(clock, "one"), Provider(line)), most=10)


@in_every_way
@pytest.mark.parametrize("kind", ["text/event-stream", "Text/Event-Stream; charset=utf-8"])
def test_a_stream_of_events_that_quotes_the_key_goes_up_without_it(way: Way, kind: str, clock: FakeClock) -> None:
    secret = secret_of("one").encode()
    body = Body(b"data: 1\n\n", b"data: not " + secret + b", " + secret + b"\n\n", b"data: 3\n\n")

    passed = raw_pieces(way, Says(200, body, {"content-type": kind}), clock)

    assert passed == [b"data: 1\n\n", b"data: not <secret>, <secret>\n\n", b"data: 3\n\n"]


@in_every_way
@pytest.mark.parametrize("coding", ["gzip", "deflate", "x-gzip"])
def test_a_packed_stream_of_events_that_quotes_the_key_goes_up_without_it(
    way: Way, coding: str, clock: FakeClock
) -> None:
    said = b"data: 1\n\ndata: not " + secret_of("one").encode() + b"\n\ndata: 3\n\n"
    packed = zlib.compress(said) if coding == "deflate" else gzip.compress(said)
    line = Says(200, packed, {**EVENTS, "content-encoding": coding})

    answer = way.ask(way.transport(pool_of(clock, "one"), Provider(line)))

    assert answer.content == b"data: 1\n\ndata: not <secret>\n\ndata: 3\n\n"
    assert not {"content-encoding", "content-length"} & set(answer.headers)


@in_every_way
def test_what_is_held_back_of_a_stream_comes_when_it_ends(way: Way, clock: FakeClock) -> None:
    passed = raw_pieces(way, Says(200, Body(b"data: a", b" plan"), EVENTS), clock)

    assert b"".join(passed) == b"data: a plan"


@in_every_way
def test_a_packed_stream_that_is_damaged_is_the_librarys_own_error_and_gives_the_slot_back(
    way: Way, clock: FakeClock
) -> None:
    packed = gzip.compress(json.dumps(list(range(5000))).encode())
    body = Body(packed[:1000], bytes(1000))
    pool = pool_of(clock, "one")

    with pytest.raises(way.library.DecodingError):
        way.ask(way.transport(pool, Provider(Says(200, body, {**EVENTS, "content-encoding": "gzip"}))))

    assert leased(pool) == []


@in_every_way
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("text/event-stream", "data: nothing to hide\n\n"),
        ("application/json", secret_of("one")),
        ("audio/mpeg", secret_of("one")),
    ],
)
def test_the_pieces_of_all_other_answers_are_handed_on_as_they_are(
    way: Way, kind: str, said: str, clock: FakeClock
) -> None:
    pieces = [f"{number} {said}".encode() for number in range(3)]

    passed = raw_pieces(way, Says(200, Body(*pieces), {"content-type": kind}), clock)

    assert list(map(id, passed)) == list(map(id, pieces))


# -- what was used ---------------------------------------------------------------------------------------------------


def streamed(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


USAGE = {"usage": {"prompt_tokens": 30, "completion_tokens": 70}}
WORDS = [{"choices": [{"delta": {"content": "word " * 100}}]}] * 500


@in_every_way
@pytest.mark.parametrize(
    "line",
    [
        Says(200, USAGE),
        Says(
            200,
            b'\x00\x00\x00\x7f{"metrics":{},"usage":{"inputTokens":30,"outputTokens":70}}\xb3',
            {"content-type": "application/vnd.amazon.eventstream"},
        ),
        Says(200, {"data": "x" * 100_000, **USAGE}),
        Says(200, {"data": "x" * 1_000_000, **USAGE}),
        Says(200, gzip.compress(json.dumps(USAGE).encode()), {**JSON, "content-encoding": "GZIP"}),
        Says(200, json.dumps(USAGE).encode(), {"content-type": "Application/JSON; charset=utf-8"}),
        Says(200, streamed(*WORDS[:3], USAGE), EVENTS),
        Says(200, streamed(*WORDS, USAGE), EVENTS),
        Says(200, gzip.compress(streamed(*WORDS, USAGE)), {**EVENTS, "content-encoding": "gzip"}),
    ],
    ids=[
        "short",
        "of Bedrock",
        "long",
        "longer",
        "packed",
        "in capitals",
        "streamed",
        "long, streamed",
        "packed, streamed",
    ],
)
def test_what_a_call_really_used_is_taken_from_the_limit(way: Way, line: Says, clock: FakeClock) -> None:
    pool = pool_of(clock, "one", tpm=1000)

    way.ask(way.transport(pool, Provider(line)), json={**ASKED, "max_tokens": 500})

    assert left(pool) == 900


@in_every_way
def test_what_was_used_when_an_old_answer_was_made_is_not_counted_again(way: Way, clock: FakeClock) -> None:
    pool = pool_of(clock, "one", tpm=1000)

    way.ask(way.transport(pool, Provider(Says(200, USAGE))), method="GET")

    assert left(pool) == 1000


@in_every_way
def test_a_stream_that_nobody_reads_to_its_end_used_what_it_had_told(way: Way, clock: FakeClock) -> None:
    start = streamed({"type": "message_start", "message": {"usage": {"input_tokens": 30, "output_tokens": 1}}})
    body = Body(start, *[streamed(word) for word in WORDS])
    pool = pool_of(clock, "one", limits=[Limit("input_tokens", 1000)])

    way.pieces(way.transport(pool, Provider(Says(200, body, EVENTS))), most=2)

    assert left(pool) == 970
    assert leased(pool) == []
    assert body.closed


@in_every_way
def test_of_a_stream_that_nobody_reads_to_its_end_the_estimate_of_the_output_stands(way: Way, clock: FakeClock) -> None:
    start = streamed({"type": "message_start", "message": {"usage": {"input_tokens": 30, "output_tokens": 1}}})
    pool = pool_of(clock, "one", limits=[Limit("output_tokens", 1000)])
    transport = way.transport(pool, Provider(Says(200, Body(start, streamed(WORDS[0])), EVENTS)))

    way.pieces(transport, most=1, max_tokens=500)

    assert left(pool) == 500


@in_every_way
def test_what_a_request_may_take_is_reserved_while_it_is_under_way(way: Way, clock: FakeClock) -> None:
    pool, during = pool_of(clock, "one", limits=[Limit("output_tokens", 1000)]), list[float]()

    def line(_: Any) -> Says:
        during.append(left(pool))
        return WELL

    way.ask(way.transport(pool, Provider(line)), json={**ASKED, "max_tokens": 400})

    assert during == [600]


@in_every_way
def test_what_a_request_may_take_is_estimated_by_what_the_last_one_took(way: Way, clock: FakeClock) -> None:
    pool, reserved = pool_of(clock, "one", limits=[Limit("input_tokens", 10_000, per="day")]), list[float]()

    def line(_: Any) -> Says:
        reserved.append(before - left(pool))
        return Says(200, {"usage": {"prompt_tokens": 2000, "completion_tokens": 1}})

    transport = way.transport(pool, Provider(line))
    for _ in range(2):
        before = left(pool)
        way.ask(transport, json={**ASKED, "messages": ["word " * 400]})

    assert reserved[0] < 0.9 * reserved[1]


@in_every_way
def test_a_stream_that_breaks_off_is_told_to_the_pool(
    way: Way, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, told = pool_of(clock, "one"), list[Event]()
    hear = pool._runtime.report_signal

    def heard(grant: Grant, signal: Signal, **sure: Any) -> Any:
        told.append(signal.event)
        return hear(grant, signal, **sure)

    monkeypatch.setattr(pool._runtime, "report_signal", heard)

    with pytest.raises(way.library.ReadError):
        way.ask(way.transport(pool, breaking(way, 1)))

    assert told == [Event.OK, Event.NETWORK]
    assert leased(pool) == []


@in_every_way
@pytest.mark.parametrize(
    ("event", "rests"),
    [
        ({"error": {"code": "rate_limit_exceeded", "message": "slow"}}, True),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}}, True),
        ({"error": None, "choices": []}, False),
        ({"choices": [{"delta": {"content": '"error": {"code": "rate_limit_exceeded"}'}}]}, False),
    ],
)
def test_an_error_in_the_middle_of_a_stream_is_told_to_the_pool(
    way: Way, event: dict[str, Any], rests: bool, clock: FakeClock
) -> None:
    body = streamed(*WORDS[:2], event)
    pool = pool_of(clock, "one")

    answer = way.ask(way.transport(pool, Provider(Says(200, body, EVENTS))))

    assert answer.content == body
    with pytest.raises(NoCredentialAvailable) if rests else nullcontext():
        pool.acquire_nowait(model="a-model")


@in_every_way
@pytest.mark.parametrize(
    ("method", "headers", "believed"),
    [
        ("POST", JSON, True),
        ("POST", EVENTS, True),
        ("GET", EVENTS, True),
        ("GET", JSON, False),
        ("DELETE", JSON, False),
    ],
)
def test_an_error_in_a_good_answer_is_believed_unless_it_is_a_document_that_was_fetched(
    way: Way, method: str, headers: dict[str, str], believed: bool, clock: FakeClock
) -> None:
    body = json.dumps({"id": "batch-1", "error": {"code": "invalid_api_key", "message": "no"}}).encode()
    if headers is EVENTS:
        body = b"data: " + body + b"\n\n"
    pool = pool_of(clock, "one")

    way.ask(way.transport(pool, Provider(Says(200, body, headers))), method=method)

    assert states(pool) == {"one": "dead" if believed else "available"}


def told_to_be_left(requests: int) -> Says:
    told = {"x-ratelimit-limit-requests": "100", "x-ratelimit-remaining-requests": str(requests)}
    return Says(200, USAGE, told)


@in_every_way
@pytest.mark.parametrize(("passed", "news"), [(0.0, False), (0.2, True)])
def test_an_answer_that_is_no_news_is_not_read_for_limits_but_for_what_it_used(
    way: Way, passed: float, news: bool, clock: FakeClock
) -> None:
    pool = pool_of(clock, "one", limits=[Limit("tokens", 1000, per="day")])
    transport = way.transport(pool, Provider(told_to_be_left(90), told_to_be_left(60)))
    way.ask(transport)
    clock.advance(passed)

    way.ask(transport)

    (told,) = [limit for limit in pool.snapshot()[0].limits if limit.learned]
    assert (told.left < 60) is news
    assert left(pool) == 800


# -- streams that are left -------------------------------------------------------------------------------------------


def begin(way: Way, transport: Any) -> Any:
    """Begin a streamed call in a thread; the loop of the other kind is the caller's."""
    client = way.library.Client(transport=transport)
    return client.send(client.build_request("POST", URL, json=ASKED), stream=True)


@in_both_libraries
def test_a_stream_holds_its_slot_until_it_is_closed(way: Way, clock: FakeClock) -> None:
    pool, body = pool_of(clock, "one"), Body(b"data: 1\n\n")
    answer = begin(way, pool.transport(Provider(Says(200, body, EVENTS))))
    assert leased(pool) == ["one"]

    answer.close()
    answer.close()

    assert leased(pool) == []
    assert body.closed == 1


@in_both_libraries
@pytest.mark.parametrize("in_a_ring", [False, True])
def test_a_stream_that_is_forgotten_gives_its_slot_back_and_the_next_call_closes_it(
    way: Way, in_a_ring: bool, clock: FakeClock
) -> None:
    pool, body = pool_of(clock, "one"), Body(b"data: 1\n\n")
    transport = pool.transport(Provider(Says(200, body, EVENTS), WELL))
    answer = begin(way, transport)
    if in_a_ring:
        answer.extensions["self"] = answer

    del answer
    gc.collect()

    assert leased(pool) == []
    assert body.closed == 0  # whoever collects garbage must not touch the network
    way.ask(transport)
    assert body.closed == 1


@in_both_libraries
def test_an_async_stream_that_is_forgotten_gives_its_slot_back_and_the_next_call_closes_it(
    way: Way, clock: FakeClock
) -> None:
    pool, body = pool_of(clock, "one"), Body(b"data: 1\n\n")
    client = way.library.AsyncClient(transport=pool.async_transport(Provider(Says(200, body, EVENTS), WELL)))

    async def story() -> None:
        answer = await client.send(client.build_request("POST", URL, json=ASKED), stream=True)
        assert leased(pool) == ["one"]
        del answer
        gc.collect()
        assert leased(pool) == []
        await client.post(URL, json=ASKED)

    asyncio.run(story())
    assert body.closed == 1


def breaking(way: Way, count: int, headers: dict[str, str] = EVENTS) -> Provider:
    """Streams that break off after their first piece, as they do when their connection is closed."""
    return Provider(*(Says(200, Body(b"data: 1\n\n", way.library.ReadError("closed")), headers) for _ in range(count)))


@in_both_libraries
@pytest.mark.parametrize("headers", [EVENTS, JSON, {}], ids=["events", "JSON", "of no kind"])
def test_a_transport_that_is_closed_gives_the_slots_of_open_answers_back_and_what_becomes_of_them_is_no_news(
    way: Way, headers: dict[str, str], clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    pool = pool_of(clock, "one", "two", "three")
    transport = pool.transport(breaking(way, 3, headers))
    answers = [begin(way, transport) for _ in range(3)]
    assert len(leased(pool)) == 3

    transport.close()

    assert leased(pool) == []
    for answer in answers:
        with pytest.raises(way.library.ReadError):
            answer.read()
    assert set(states(pool).values()) == {"available"}
    assert said_here(caplog) == []


@in_both_libraries
@pytest.mark.parametrize("headers", [EVENTS, JSON, {}], ids=["events", "JSON", "of no kind"])
def test_an_async_transport_that_is_closed_gives_the_slots_of_open_answers_back_and_what_becomes_of_them_is_no_news(
    way: Way, headers: dict[str, str], clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    pool = pool_of(clock, "one", "two", "three")
    transport = pool.async_transport(breaking(way, 3, headers))
    client = way.library.AsyncClient(transport=transport)

    async def story() -> None:
        answers = [await client.send(client.build_request("POST", URL, json=ASKED), stream=True) for _ in range(3)]
        assert len(leased(pool)) == 3

        await transport.aclose()

        assert leased(pool) == []
        for answer in answers:
            with pytest.raises(way.library.ReadError):
                await answer.aread()

    asyncio.run(story())
    assert set(states(pool).values()) == {"available"}
    assert said_here(caplog) == []


class Interrupted(FakeClock):
    """A clock in whose midst, when it is asked for the hour, another thread does something, once."""

    def __init__(self) -> None:
        super().__init__()
        self.acts: list[Callable[[], object]] = []

    def wall(self) -> float:
        while self.acts:
            self.acts.pop()()
        return super().wall()


@in_both_libraries
def test_an_answer_that_breaks_off_while_another_thread_closes_the_transport_breaks_off_with_its_own_error(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Interrupted()
    pool = pool_of(clock, "one")
    transport = pool.transport(breaking(way, 1))
    answer = begin(way, transport)

    clock.acts.append(transport.close)
    with pytest.raises(way.library.ReadError):
        answer.read()

    assert clock.acts == []
    assert leased(pool) == []
    assert said_here(caplog) == []


class Stuck(Body):
    """Cannot be closed: its loop has ended, say."""

    def close(self) -> None:
        super().close()
        raise RuntimeError("Event loop is closed")

    async def aclose(self) -> None:
        self.close()


@in_both_libraries
def test_a_forgotten_stream_that_cannot_be_closed_is_not_the_next_callers_trouble(way: Way, clock: FakeClock) -> None:
    pool, bodies = pool_of(clock, "one", "two"), [Stuck(b"data: 1\n\n"), Stuck(b"data: 1\n\n")]
    provider = Provider(*[Says(200, body, EVENTS) for body in bodies], WELL)
    transport = pool.transport(provider)
    answers = [begin(way, transport) for _ in bodies]
    del answers
    gc.collect()

    assert way.ask(transport).status_code == 200
    assert [body.closed for body in bodies] == [1, 1]


@in_both_libraries
def test_a_stream_that_cannot_be_closed_still_gives_its_slot_back(way: Way, clock: FakeClock) -> None:
    pool, body = pool_of(clock, "one"), Stuck(b"data: 1\n\n")
    answer = begin(way, pool.transport(Provider(Says(200, body, EVENTS))))

    with pytest.raises(RuntimeError, match="Event loop is closed"):
        answer.close()

    assert leased(pool) == []


# -- a lease that is lost, or lent -----------------------------------------------------------------------------------


@in_every_way
def test_no_call_is_begun_with_a_lease_that_was_lost_meanwhile(
    way: Way, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, provider = pool_of(clock, "one"), Provider()
    monkeypatch.setattr(pool._runtime, "find_loss_reason", lambda _: "this process stood still")

    with pytest.raises(LeaseLost, match="lease 2 on credential one is lost: this process stood still"):
        way.ask(way.transport(pool, provider))

    assert provider.seen == []
    assert leased(pool) == []


@in_every_way
def test_a_lease_that_was_lost_before_anything_was_sent_is_replaced(
    way: Way, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, provider = pool_of(clock, "one"), Provider()
    monkeypatch.setattr(
        pool._runtime, "find_loss_reason", lambda grant: "this process stood still" if grant.token == 1 else None
    )

    assert way.ask(way.transport(pool, provider)).status_code == 200

    assert leased(pool) == []


class Attempt:
    """An item under way, with the lease that its run took for it."""

    ended = False

    def __init__(self, pool: CredentialCoordinator) -> None:
        self.pool = pool._runtime
        self.lease = pool.acquire("item-1", model=ASKED["model"])
        assert self.lease._grant is not None
        self.usage_log = UsageLog()
        self.lent = ItemLease(pool._runtime, self.lease._grant, self.usage_log)

    def item_lease(self) -> ItemLease:
        return self.lent


@contextmanager
def an_item(pool: CredentialCoordinator) -> Iterator[Attempt]:
    pool._runtime.is_used_by_run = True
    attempt = Attempt(pool)
    token = CURRENT_ATTEMPT.set(attempt)
    try:
        yield attempt
    finally:
        CURRENT_ATTEMPT.reset(token)
        attempt.lease.release()


LIMITED = Says(429, {"error": {"code": "rate_limit_exceeded"}}, {"retry-after": "30"})


@in_every_way
def test_a_call_within_an_item_uses_the_items_lease_and_leaves_it_to_the_run(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one", "two", tpm=1000), Provider(WELL)
    transport = way.transport(pool, provider)
    with an_item(pool) as item:
        for _ in range(3):
            way.ask(transport)

        assert provider.keys == ["one"] * 3
        assert leased(pool) == ["one"]
        assert item.lent.trouble is None
        assert left(pool) == 1000 - 3 * 15
        assert item.usage_log.take() == {"one": Usage(input=3 * 10, output=3 * 5)}


@in_both_libraries
def test_a_stream_that_an_item_left_open_is_closed_before_its_key_is_used_again(way: Way, clock: FakeClock) -> None:
    body = Body(b"data: 1\n\n", b"data: 2\n\n")
    pool, provider = pool_of(clock, "one"), Provider(Says(200, body, {"content-type": "text/event-stream"}), WELL)
    transport = way.transport(pool, provider)
    client = way.library.Client(transport=transport)
    with an_item(pool) as item:
        response = client.send(client.build_request("POST", f"https://{HOST}/", json=ASKED), stream=True)
        pieces = response.iter_raw()
        next(pieces)

        item.lent.end_attempt()

        assert (body.closed, leased(pool)) == (0, ["one"])  # the run gives it back
    way.ask(transport)
    assert body.closed == 1


@in_both_libraries
def test_calls_of_a_thread_that_left_its_item_are_warned_of_once(
    way: Way, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    pool = pool_of(clock, "one")
    transport = way.transport(pool, Provider(), max_wait=0)
    with an_item(pool):
        for _ in range(2):
            with pytest.raises(NoCredentialAvailable):
                Background(lambda: way.ask(transport)).result()

    assert caplog.text.count("a call that belongs to no item waits for a key") == 1
    assert 'lease="call"' in caplog.text


@in_every_way
def test_within_an_item_a_limit_is_waited_for_on_the_same_key(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one", "two"), Provider(LIMITED, WELL)
    transport = way.transport(pool, provider)

    def work() -> Any:
        with an_item(pool) as item:
            return way.ask(transport), item.lent.trouble

    call = Background(work)
    clock.wait_for_sleepers(1)
    clock.advance(29.9)
    assert clock.sleepers
    clock.advance(0.1)

    answer, trouble = call.result()
    assert answer.status_code == 200
    assert answer.extensions["agentos"].waited == 30
    assert provider.keys == ["one", "one"]
    assert trouble is None


@in_every_way
@pytest.mark.parametrize(
    ("line", "arguments", "trouble"),
    [
        (LIMITED, {"max_wait": 29}, "limited"),
        (Says(429, {}, {"retry-after": "7200"}), {}, "parked"),
        (Says(401, {"error": {"code": "invalid_api_key"}}), {}, "key_dead"),
        (Says(429, {"error": {"code": "insufficient_quota"}}), {}, "money_gone"),
        (Says(404, {"error": {"code": "model_not_found"}}), {}, "not_entitled"),
    ],
)
def test_within_an_item_what_does_not_pass_in_time_goes_up_at_once(
    way: Way, line: Says, arguments: dict[str, Any], trouble: str, clock: FakeClock
) -> None:
    pool, provider = pool_of(clock, "one", "two"), Provider(line)
    transport = way.transport(pool, provider, **arguments)
    with an_item(pool) as item:
        answer = way.ask(transport)

        assert (answer.status_code, provider.keys) == (line.status, ["one"])
        assert item.lent.trouble == trouble
        assert item.lent.last_report is answer
        assert leased(pool) == ["one"]


@in_every_way
def test_an_item_whose_key_belongs_elsewhere_is_told_and_nothing_is_sent(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one"), Provider()
    pool.add("sk-ant-planted-0123456789")
    transport = way.transport(pool, provider)

    with an_item(pool), pytest.raises(ForeignHost, match="the item that makes this call was started with") as refused:
        way.ask(transport, "https://api.anthropic.com/v1/messages")

    assert refused.value.credentials == ("one",)
    assert provider.seen == []
