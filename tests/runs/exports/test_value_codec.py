"""A worker's value as text for the journal, and back; no secret is in it."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import uuid
import warnings
from collections import deque
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import anthropic
import attrs
import openai
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.pool.redaction import MASK, Masker, value_windows
from agentos.runs.exports.value_codec import EncodedValue, decode_value, encode_value
from agentos.runs.output.stream_redaction import Redaction

SECRET = "values-0123456789abcdef"
JSON = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(st.none() | inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def masking(secret: str = SECRET) -> Any:
    return Redaction(Masker([secret]), windows=value_windows).masked


@given(JSON)
def test_a_json_value_comes_back_as_it_was(value: Any) -> None:
    for mask in (None, masking()):
        encoded = encode_value(value, mask)

        assert encoded == EncodedValue(encoded.text, value=value)
        assert decode_value(encoded.text) == value


def test_none_is_neither_text_nor_repr() -> None:
    assert encode_value(None, None) == encode_value(None, masking()) == EncodedValue(None)
    assert decode_value(None) is None


def test_a_tuple_comes_back_as_a_list() -> None:
    assert decoded((1, ("a", None))) == ([1, ["a", None]], "tuple")


# -- objects ------------------------------------------------------------------------------------------------------


def decoded(value: Any) -> tuple[Any, str | None]:
    """Return what every later reader gets of the value, and the name of its class."""
    encoded = encode_value(value, None)
    assert (encoded.repr, encoded.problem) == (None, None)
    assert encoded.value == decode_value(encoded.text)
    return encoded.value, encoded.type_name


class Mood(enum.Enum):
    GOOD = "good"
    PAIR = (1, datetime.date(2026, 7, 1))


class Level(enum.IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: int
    y: Any


@dataclasses.dataclass
class Answer:
    text: str
    parts: Any = None


@attrs.define
class Score:
    points: float
    of: Answer


class Old:
    """A model as pydantic 1 makes them."""

    __fields__ = ("name",)

    def dict(self) -> Any:
        return {"name": Path("a/b")}


class Number:
    """A number, or an array of numbers, as numpy makes them."""

    dtype = "float32"

    def __init__(self, content: Any) -> None:
        self.content = content

    def tolist(self) -> Any:
        return self.content


class Verdict(pydantic.BaseModel):
    at: datetime.datetime
    tags: set[str]
    raw: bytes = b""
    nested: Any = None


class Names(pydantic.RootModel[list[str]]):
    pass


NOON = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC)
HERE = __name__


@pytest.mark.parametrize(
    ("value", "expected", "name"),
    [
        (Mood.GOOD, "good", f"{HERE}.Mood"),
        (Mood.PAIR, [1, "2026-07-01"], f"{HERE}.Mood"),
        (Level.HIGH, 3, f"{HERE}.Level"),
        (Point(1, Point(2, None)), {"x": 1, "y": {"x": 2, "y": None}}, f"{HERE}.Point"),
        (Answer("a", [Answer("b")]), {"text": "a", "parts": [{"text": "b", "parts": None}]}, f"{HERE}.Answer"),
        (Score(0.5, Answer("a")), {"points": 0.5, "of": {"text": "a", "parts": None}}, f"{HERE}.Score"),
        (Old(), {"name": "a/b"}, f"{HERE}.Old"),
        (Names(["ann"]), ["ann"], f"{HERE}.Names"),
        (NOON, "2026-07-01T12:00:00+00:00", "datetime.datetime"),
        (NOON.date(), "2026-07-01", "datetime.date"),
        (NOON.time(), "12:00:00", "datetime.time"),
        (datetime.timedelta(minutes=1, milliseconds=500), 60.5, "datetime.timedelta"),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007", "uuid.UUID"),
        (Decimal("1.50"), "1.50", "decimal.Decimal"),
        (PurePosixPath("a/b"), "a/b", "pathlib.PurePosixPath"),
        ({3, 10, 2}, [2, 3, 10], "set"),
        (frozenset({"a", 1}), ["a", 1], "frozenset"),
        (b"text", "text", "bytes"),
        (bytearray(b"\xff\x00"), {"base64": "/wA="}, "bytearray"),
        (deque([1, 2]), [1, 2], "collections.deque"),
        (range(3), [0, 1, 2], "range"),
        (Number(0.25), 0.25, f"{HERE}.Number"),
        (Number([[1, 2], [3, 4]]), [[1, 2], [3, 4]], f"{HERE}.Number"),
        (math.nan, "NaN", None),
        ([1.0, -math.inf], [1.0, "-Infinity"], None),
        (
            {1: "int", None: 2, (1, "b"): 3, NOON.date(): 4},
            {"1": "int", "null": 2, '[1,"b"]': 3, "2026-07-01": 4},
            None,
        ),
    ],
)
def test_an_object_is_encoded_by_what_it_holds_wherever_it_stands(value: Any, expected: Any, name: str | None) -> None:
    assert decoded(value) == (expected, name)
    assert decoded({"deep": [(value,)]}) == ({"deep": [[expected]]}, None)


def test_a_pydantic_model_is_encoded_even_if_pydantic_cannot() -> None:
    nested = {"score": Score(1.0, Answer("a"))}

    assert decoded(Verdict(at=NOON, tags={"x"})) == (
        {"at": "2026-07-01T12:00:00Z", "tags": ["x"], "raw": "", "nested": None},
        f"{HERE}.Verdict",
    )
    assert decoded(Verdict(at=NOON, tags={"x"}, raw=b"\xff", nested=nested))[0] == {
        "at": "2026-07-01T12:00:00+00:00",
        "tags": ["x"],
        "raw": {"base64": "/w=="},
        "nested": {"score": {"points": 1.0, "of": {"text": "a", "parts": None}}},
    }


def test_an_answer_of_the_openai_sdk_is_encoded() -> None:
    message = {"role": "assistant", "content": "salt"}
    answer = openai.types.chat.ChatCompletion.model_validate(
        {
            "id": "c-1",
            "object": "chat.completion",
            "created": 1,
            "model": "gpt",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        }
    )

    value, name = decoded({"answer": answer})[0]["answer"], decoded(answer)[1]

    assert (value["choices"][0]["message"]["content"], value["usage"]["total_tokens"]) == ("salt", 5)
    assert name == "openai.types.chat.chat_completion.ChatCompletion"


def test_an_answer_of_the_anthropic_sdk_is_encoded() -> None:
    # As the SDK makes it of a response: fields and types that it does not know are kept, not refused.
    answer = anthropic.types.Message.construct(
        id="m-1",
        type="message",
        role="assistant",
        model="claude",
        content=[anthropic.types.TextBlock(type="text", text="salt"), {"type": "of tomorrow", "n": 1}],
        stop_reason="end_turn",
        usage=anthropic.types.Usage(input_tokens=3, output_tokens=2),
        later="new",
    )

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value, name = decoded(answer)

    assert (value["content"][0]["text"], value["content"][1]["n"]) == ("salt", 1)
    assert (value["usage"]["output_tokens"], value["later"]) == (2, "new")
    assert name == "anthropic.types.message.Message"


OBJECTS = st.recursive(
    JSON
    | st.none()
    | st.floats()
    | st.binary(max_size=8)
    | st.dates()
    | st.datetimes()
    | st.timedeltas()
    | st.uuids()
    | st.decimals()
    | st.sampled_from([*Mood, *Level, object(), Path("a")]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Answer, st.text(), inner)
        | st.builds(Point, st.integers(), inner)
        | st.builds(Number, inner)
        | st.dictionaries(st.text() | st.integers() | st.booleans() | st.dates(), inner, max_size=3)
        | st.frozensets(st.integers() | st.text() | st.floats(), max_size=3)
    ),
    max_leaves=8,
)


@given(OBJECTS)
def test_every_value_is_encoded_or_described_and_read_back_equal(value: Any) -> None:
    encoded = encode_value(value, None)

    assert (encoded.text is None) == (encoded.repr is not None or value is None)
    assert encoded.value == decode_value(encoded.text)
    assert encode_value([encoded.value], None).text == f"[{encoded.text or 'null'}]"


# -- values that cannot be encoded --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (object, "type has no JSON form"),
        ({"a": {1: open}}, "builtin_function_or_method has no JSON form"),
        ([1, iter([1])], "list_iterator has no JSON form"),
        ({1: "int", "1": "text"}, "two keys of a dict have the same text"),
        (1j, "complex has no JSON form"),
    ],
)
def test_anything_else_is_kept_as_its_repr_with_the_reason(value: Any, problem: str) -> None:
    encoded = encode_value(value, None)

    assert (encoded.text, encoded.value, encoded.repr, encoded.problem) == (None, None, repr(value), problem)
    assert encoded.type_name == type(value).__qualname__


def test_a_repr_is_cut_off_where_it_gets_long() -> None:
    assert len(encode_value(["x" * 10_000, object()], None).repr or "") == 2_000


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_a_value_that_cannot_show_itself_is_named_by_its_kind() -> None:
    assert encode_value(Shy(), None).repr == "<Shy>"


class Broken(Number):
    def tolist(self) -> Any:
        raise RuntimeError("no")


def test_a_value_whose_methods_raise_is_described_with_the_error() -> None:
    encoded = encode_value(Broken(1), None)

    assert (encoded.text, encoded.problem) == (None, f"encoding {HERE}.Broken raised RuntimeError")


def test_a_value_that_holds_itself_is_shown() -> None:
    value: list[Any] = []
    value.append(value)

    encoded = encode_value(value, None)

    assert (encoded.text, encoded.repr, encoded.problem) == (None, "[[...]]", "encoding list raised RecursionError")


# -- secrets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (SECRET, MASK),
        (f"Bearer {SECRET}", f"Bearer {MASK}"),
        ({"key": [SECRET, 1]}, {"key": [MASK, 1]}),
        ({SECRET: 1}, {MASK: 1}),
        (SECRET.encode().hex(), MASK),
        ({SECRET}, [MASK]),
        (SECRET.encode(), MASK),
        (Answer(SECRET), {"text": MASK, "parts": None}),
    ],
)
def test_a_secret_inside_a_json_value_is_masked_and_the_rest_stays(value: Any, expected: Any) -> None:
    encoded = encode_value(value, masking())

    assert (encoded.value, encoded.repr, encoded.redacted) == (expected, None, True)
    assert decode_value(encoded.text) == expected


def test_a_secret_inside_a_repr_is_masked() -> None:
    encoded = encode_value([SECRET, 1j], masking())

    assert (encoded.text, encoded.repr, encoded.redacted) == (None, f"['{MASK}', 1j]", True)


def test_a_number_that_is_a_secret_becomes_text_and_the_rest_stays() -> None:
    secret = "12345678901234567890"
    encoded = encode_value({"account": int(secret), "of": "ann"}, masking(secret))

    assert (encoded.value, encoded.redacted) == ({"account": MASK, "of": "ann"}, True)


def test_a_mask_that_would_cut_an_escape_sequence_leaves_json_behind() -> None:
    secret = "\u00fcml\u00e4ut-\u00fcml\u00e4ut-\u00fcml\u00e4ut"
    encoded = encode_value(
        {"a": f"\u00ff{secret}\u00ff"}, lambda text: text.replace("fc", MASK, 1).replace(secret, MASK)
    )

    assert encoded.value == {"a": f"\u00ff{MASK}\u00ff"}


@pytest.mark.parametrize(
    "secret", ['quote"quote"quote"quote', "back\\slash\\back\\slash", "ümläut-ümläut-ümläut", "tab\ttab\ttab\ttab\ttab"]
)
def test_a_secret_that_json_writes_otherwise_is_masked_too(secret: str) -> None:
    for value in (secret, {"a": f"<{secret}>"}, {secret}, [secret, 1j]):
        encoded = encode_value(value, masking(secret))
        said = f"{encoded.text}{encoded.repr}"

        assert MASK in said
        assert encoded.redacted
        assert secret not in said
        assert secret.encode("unicode_escape").decode() not in said
        assert decode_value(encoded.text) == encoded.value


@pytest.mark.parametrize("length", [8, 11, 14])
def test_a_short_secret_is_masked_wherever_it_stands(length: int) -> None:
    secret = "k3y-5ecret-short"[:length]
    for before in range(16):
        assert secret not in str(encode_value("x" * before + secret, masking(secret)).text)
