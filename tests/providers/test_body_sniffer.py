"""What is seen of an answer's body as it passes: the same however it is cut, and little of it however long it is."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agentos.providers.answers.body_sniffer import BodySniffer

at_any_pace = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is not a fault


def seen(pieces: Iterable[bytes], encoding: str = "") -> BodySniffer:
    passing = BodySniffer(encoding)
    for piece in pieces:
        passing.feed(piece)
    return passing


def events(*data: Any, named: bool = False) -> bytes:
    """A stream of server-sent events."""
    lines = [json.dumps(each) if isinstance(each, dict) else each for each in data]
    names = [f"event: {each.get('type')}\n" if named and isinstance(each, dict) else "" for each in data]
    return "".join(f"{name}data: {line}\n\n" for name, line in zip(names, lines, strict=True)).encode()


def words(number: int) -> list[dict[str, Any]]:
    return [{"choices": [{"delta": {"content": f"word {n} "}}]} for n in range(number)]


CHAT = {"choices": [{"message": {"content": "hello"}}], "usage": {"prompt_tokens": 11, "completion_tokens": 7}}
TOOL_INPUT = {"usage": {"input_tokens": 999, "output_tokens": 999}}

CHAT_STREAM = events(*words(3), {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 7}}, "[DONE]")
ANTHROPIC_STREAM = events(
    {"type": "message_start", "message": {"usage": {"input_tokens": 11, "output_tokens": 1}}},
    {"type": "content_block_delta", "delta": {"partial_json": json.dumps(TOOL_INPUT)}},
    {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 7}},
    {"type": "message_stop"},
    named=True,
)
CACHED_STREAM = events(
    {"type": "message_start", "message": {"usage": {"input_tokens": 1, "cache_creation_input_tokens": 10}}},
    {"type": "message_delta", "usage": {"output_tokens": 7}},
    named=True,
)
RESPONSES_STREAM = events(
    {"type": "response.created", "response": {"error": None, "usage": None, "tools": [{"usage": {"type": "object"}}]}},
    {"type": "response.output_text.delta", "delta": '"usage": {"input_tokens": 999}'},
    {
        "type": "response.completed",
        "response": {
            "error": None,
            "output": [{"text": json.dumps(TOOL_INPUT)}],
            "tools": [{"usage": {"type": "object"}}],
            "usage": {"input_tokens": 11, "input_tokens_details": {"cached_tokens": 3}, "output_tokens": 7},
            "metadata": {},
        },
    },
    named=True,
)
GEMINI_STREAM = events(
    {"candidates": [{}], "usageMetadata": {"promptTokenCount": 11}},
    {"candidates": [{"functionCall": {"args": TOOL_INPUT}}], "usageMetadata": {"promptTokenCount": 11}},
    {
        "candidates": [{}],
        "usageMetadata": {"promptTokenCount": 11, "candidatesTokenCount": 4, "thoughtsTokenCount": 3},
        "modelVersion": "gemini-2.5-pro",
    },
)
GROQ_STREAM = events(*words(2), {"x_groq": {"usage": {"prompt_tokens": 11, "completion_tokens": 7}}})
SPACED = b'{"usage" :\n { "prompt_tokens": 11, "completion_tokens": 7 } }'

BODIES = {
    "chat": json.dumps(CHAT).encode(),
    "chat, streamed": CHAT_STREAM,
    "anthropic, streamed": ANTHROPIC_STREAM,
    "anthropic, streamed, cached": CACHED_STREAM,
    "responses, streamed": RESPONSES_STREAM,
    "gemini, streamed": GEMINI_STREAM,
    "groq, streamed": GROQ_STREAM,
    "with blanks": SPACED,
    "something else that is called so last": json.dumps({**CHAT, "tools": [{"usage": {"type": "object"}}]}).encode(),
    "a tool's input first": json.dumps({"content": [{"input": TOOL_INPUT}], **CHAT}).encode(),
}
USED = {"input_tokens": 11.0, "output_tokens": 7.0}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_what_was_used_is_read_from_the_end_and_what_went_in_from_the_beginning(body: bytes) -> None:
    assert seen([body]).usage().counted == USED


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_it_does_not_matter_where_a_body_is_cut(body: bytes) -> None:
    for at in range(len(body) + 1):
        assert seen([body[:at], body[at:]]).usage().counted == USED
    assert seen(body[at : at + 1] for at in range(len(body))).usage().counted == USED


LONG = events(*words(4000))  # longer than all that is kept


@st.composite
def cut_bodies(draw: st.DrawFn) -> tuple[bytes, list[int]]:
    """A body with what tells of its usage anywhere in it, and the places where it is cut."""
    told = draw(st.sampled_from(list(BODIES.values())))
    before, after = draw(st.integers(0, len(LONG))), draw(st.integers(0, len(LONG)))
    body = LONG[:before] + told + LONG[:after]
    return body, sorted(draw(st.lists(st.integers(0, len(body)), max_size=12)))


@at_any_pace
@given(cut_bodies())
@example((LONG[:100_000] + CHAT_STREAM + LONG[:100_000], [100_000]))
@example((LONG[:147_456], [147_455]))
@example((LONG[:147_457], []))
def test_a_body_says_the_same_however_it_is_cut(drawn: tuple[bytes, list[int]]) -> None:
    body, cuts = drawn
    pieces = [body[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]

    uncut, cut = seen([body]), seen(pieces)
    packed = gzip.compress(body, 1)
    unpacked = seen([packed[at : at + 1000] for at in range(0, len(packed), 1000)], "gzip")

    for other in (cut, unpacked):
        assert other.usage() == uncut.usage()
        assert other.whole() == uncut.whole()
        assert other.error() == uncut.error()


@at_any_pace
@given(st.lists(st.binary(max_size=50), max_size=8), st.sampled_from(["", "gzip", "deflate", "br", "nonsense"]))
def test_whatever_passes_nothing_fails_by_it(pieces: list[bytes], encoding: str) -> None:
    passing = seen(pieces, encoding)

    assert isinstance(passing.usage().counted, Mapping)
    assert passing.error() is None or b"error" in (passing.error() or b"")
    if encoding not in ("gzip", "deflate"):
        assert passing.whole() == b"".join(pieces)


# -- codings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_a_packed_body_is_read_wherever_it_is_cut(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(ANTHROPIC_STREAM)

    for at in range(len(packed) + 1):
        passing = seen([packed[:at], packed[at:]], encoding)
        assert passing.usage().counted == USED
        assert passing.whole() == ANTHROPIC_STREAM


@pytest.mark.parametrize("encoding", ["br", "zstd", "identity", "gzip, gzip", "utf-8"])
def test_what_is_packed_in_another_way_is_taken_as_it_is(encoding: str) -> None:
    assert seen([CHAT_STREAM], encoding).usage().counted == USED


@pytest.mark.parametrize(
    "packed",
    [
        b"not packed at all",
        gzip.compress(CHAT_STREAM)[:20],
        b"\x1f\x8b" + gzip.compress(CHAT_STREAM)[2:10] + b"\xff" * 200,
    ],
    ids=["not packed", "cut", "damaged"],  # gzip puts the hour into what it packs
)
def test_what_cannot_be_unpacked_is_not_seen(packed: bytes) -> None:
    passing = seen([packed[:5], packed[5:], b"more", b""], "gzip")

    assert passing.usage().counted == {}
    assert passing.error() is None


def test_what_follows_the_end_of_a_packed_body_is_not_seen() -> None:
    assert seen([gzip.compress(b"{}") + b"trailing", b"more"], "gzip").whole() == b"{}"


def test_what_comes_after_the_end_of_a_packed_body_is_not_kept() -> None:
    passing = seen([gzip.compress(CHAT_STREAM)], "gzip")

    tracemalloc.start()
    try:
        for _ in range(100):
            passing.feed(bytes(10_000))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held < 50_000
    assert passing.whole() == CHAT_STREAM


# -- long ones -------------------------------------------------------------------------------------------------------


def test_a_body_too_long_to_be_parsed_as_one_is_not_handed_out_whole() -> None:
    limit = 64 * 1024

    assert seen([b"x" * limit]).whole() == b"x" * limit
    assert seen([b"x" * limit, b"x"]).whole() is None
    assert seen([b"x" * 10 * limit]).whole() is None


@pytest.mark.parametrize("size", [70_000, 140_000, 150_000, 1_000_000])
def test_a_long_document_still_tells_what_was_used(size: int) -> None:
    body = json.dumps({"data": [{"embedding": "0" * size}], "usage": {"prompt_tokens": 11, "total_tokens": 11}})

    assert seen([body.encode()]).usage().counted == {"input_tokens": 11.0}


def test_a_long_stream_tells_what_went_in_at_its_beginning_and_what_came_out_at_its_end() -> None:
    begin, rest = ANTHROPIC_STREAM.split(b"\n\n", 1)
    body = begin + b"\n\n" + LONG + rest

    assert seen([body]).usage().counted == USED


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_long_beginning_hides_nothing_of_the_end(body: bytes) -> None:
    told = seen([LONG, body]).usage().counted

    assert told["output_tokens"] == 7.0
    assert told.get("input_tokens", 11.0) == 11.0


def test_what_only_the_middle_of_a_long_stream_tells_is_not_known() -> None:
    assert seen([LONG, CHAT_STREAM, LONG]).usage().counted == {}


@pytest.mark.parametrize("packed", [False, True])
def test_little_is_kept_of_fifty_megabytes(packed: bool) -> None:
    """The last of the pieces of the packed one unfolds to fifty megabytes at once."""
    piece = LONG[: 64 * 1024]
    passing = BodySniffer("gzip" if packed else "")
    bomb = gzip.compress(b" " * 50_000_000, 1) if packed else b""

    tracemalloc.start()
    try:
        if packed:
            passing.feed(bomb)
        else:
            for _ in range(800):
                passing.feed(piece)
        passing.usage()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 2_000_000
    assert passing.whole() is None


def test_pieces_of_nothing_are_not_collected() -> None:
    passing = BodySniffer("gzip")
    passing.feed(b"not packed")

    tracemalloc.start()
    try:
        for _ in range(20_000):
            passing.feed(b"x")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held < 50_000


# -- errors inside ---------------------------------------------------------------------------------------------------

OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


@pytest.mark.parametrize(
    "body",
    [
        CHAT_STREAM + events({"error": {"message": "no"}}),
        ANTHROPIC_STREAM + events(OVERLOADED, named=True),
        CHAT_STREAM + b'event: error\ndata: {"message": "no"}\n\n',
        CHAT_STREAM + b'event:error\ndata: {"message": "no"}\n\n',
        LONG + events(OVERLOADED, named=True),
        b'{"error": {"message": "no"}}',
    ],
)
def test_a_stream_that_may_tell_of_an_error_is_handed_out_to_be_looked_at(body: bytes) -> None:
    shown = seen([body]).error()

    assert shown is not None
    assert shown.endswith(body[-100:])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        CHAT_STREAM,
        ANTHROPIC_STREAM,
        LONG,
        events({"delta": 'he said "error" and "event" : "error"'}),
        events({"delta": json.dumps(json.dumps(OVERLOADED))}),
    ],
)
def test_a_stream_that_tells_of_none_is_not_looked_at_again(body: bytes) -> None:
    assert seen([body]).error() is None


# -- the end of a stream ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        CHAT_STREAM,
        LONG + CHAT_STREAM,
        CHAT_STREAM.replace(b"\n", b"\r\n"),
        CHAT_STREAM.replace(b"data: ", b"data:"),
        ANTHROPIC_STREAM,
        ANTHROPIC_STREAM.replace(b"event: ", b"event:"),
        RESPONSES_STREAM,
        events(*words(2), {"candidates": [{"content": {}, "finishReason": "STOP"}]}),
        b'data: {"candidates": [{"finishReason" :\n"STOP"}]}',
    ],
)
def test_a_stream_that_has_said_so_is_over(body: bytes) -> None:
    assert seen([body]).is_over()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        LONG,
        ANTHROPIC_STREAM.partition(b"event: message_stop")[0],
        RESPONSES_STREAM.partition(b"event: response.completed")[0],
        events({"delta": "say:\ndata: [DONE]"}),
        events({"delta": "say:\nevent: message_stop"}),
        events({"delta": '"finishReason": "STOP"'}),
        events({"delta": json.dumps(CHAT_STREAM.decode())}),
        events({"delta": json.dumps(ANTHROPIC_STREAM.decode())}),
    ],
)
def test_a_stream_that_has_not_said_so_is_not_over(body: bytes) -> None:
    assert not seen([body]).is_over()


# -- one word of usage, and several ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [{"usage": {"input_tokens": 11}}, {"usage": {"input_tokens": 11}, "text": "x" * 20_000}]
)
def test_one_word_of_usage_is_all_there_is(body: dict[str, Any]) -> None:
    assert seen([json.dumps(body).encode()]).usage().counted == {"input_tokens": 11.0}


@pytest.mark.parametrize(
    "told",
    [
        [{"input_tokens": 11}, {"output_tokens": 7}],
        [{"input_tokens": 11, "output_tokens": 1}, {"output_tokens": 7}],
        [{"input_tokens": 5, "output_tokens": 1}, {"input_tokens": 11, "output_tokens": 7}],
        [{"input_tokens": 11}, {"output_tokens": 3}, {"output_tokens": 7}],
        [{"input_tokens": 11, "output_tokens": 7}, {}],
        [{}, {"input_tokens": 11, "output_tokens": 7}],
    ],
)
def test_of_several_words_of_usage_the_last_counts_and_the_first_where_it_is_silent(told: list[dict[str, int]]) -> None:
    assert seen([events(*({"usage": word} for word in told))]).usage().counted == USED


def test_a_first_word_of_usage_that_comes_late_is_not_looked_for() -> None:
    late = LONG[:20_000] + events({"usage": {"input_tokens": 5}}, {"usage": {"output_tokens": 7}})

    assert seen([late]).usage().counted == {"output_tokens": 7.0}


# -- what is not usage -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b'{"usage": null}',
        b'{"usage": "much"}',
        b'{"usage": [1]}',
        b'{"usage": {}}',
        b'{"usage": {"prompt_tokens": "11"}}',
        b'{"usage": {"prompt_tokens": -1}}',
        b'{"usage": {"prompt_tokens": true}}',
        b'{"usage": {"prompt_tokens": 1e400}}',
        b'{"usage": {"prompt_tokens": NaN}}',
        b'{"usage": {"prompt_tokens": 11',
        b'{"usage": ' + b'{"a":' * 2000,
        b'{"usage": {"x": "' + b"y" * 9000 + b'", "prompt_tokens": 11}}',
        b'{"usages": {"prompt_tokens": 11}}',
        b'{"usage_metadata": {"prompt_tokens": 11}}',
    ],
)
def test_what_is_no_usage_is_not_taken_for_one(body: bytes) -> None:
    assert seen([body]).usage().counted == {}
