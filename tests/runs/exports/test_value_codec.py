"""A worker's value as text for the journal, and back; no secret is in it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.pool.redaction import MASK, Masker
from agentos.runs.exports.value_codec import decode_value, encode_value
from agentos.runs.output.stream_redaction import Redaction

SECRET = "sk-values-0123456789abcdef"
JSON = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(st.none() | inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def masking(secret: str = SECRET) -> Any:
    return Redaction(Masker([secret])).masked


@given(JSON)
def test_a_json_value_comes_back_as_it_was(value: Any) -> None:
    for mask in (None, masking()):
        text, shown = encode_value(value, mask)

        assert shown is None
        assert decode_value(text) == value


def test_none_is_neither_text_nor_repr() -> None:
    assert encode_value(None, None) == encode_value(None, masking()) == (None, None)
    assert decode_value(None) is None


def test_a_tuple_comes_back_as_a_list() -> None:
    text, _ = encode_value((1, ("a", None)), None)

    assert decode_value(text) == [1, ["a", None]]


@pytest.mark.parametrize("value", [math.nan, math.inf, [1.0, -math.inf], {1, 2}, object, b"x", {"a": {1: object()}}])
def test_what_is_not_json_is_kept_as_its_repr(value: Any) -> None:
    assert encode_value(value, None) == (None, repr(value))


def test_a_repr_is_cut_off_where_it_gets_long() -> None:
    _, shown = encode_value({"x" * 10_000}, None)

    assert shown is not None
    assert len(shown) == 2_000


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_a_value_that_cannot_show_itself_is_named_by_its_kind() -> None:
    assert encode_value(Shy(), None) == (None, "<Shy>")


def test_a_value_that_holds_itself_is_shown() -> None:
    value: list[Any] = []
    value.append(value)

    assert encode_value(value, None) == (None, "[[...]]")


# -- secrets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (SECRET, MASK),
        (f"Bearer {SECRET}", f"Bearer {MASK}"),
        ({"key": [SECRET, 1]}, {"key": [MASK, 1]}),
        ({SECRET: 1}, {MASK: 1}),
        (SECRET.encode().hex(), MASK),
    ],
)
def test_a_secret_inside_a_json_value_is_masked_and_the_rest_stays(value: Any, expected: Any) -> None:
    text, shown = encode_value(value, masking())

    assert (decode_value(text), shown) == (expected, None)


def test_a_secret_inside_a_repr_is_masked() -> None:
    assert encode_value({SECRET}, masking()) == (None, f"{{'{MASK}'}}")
    assert encode_value(SECRET.encode(), masking()) == (None, f"b'{MASK}'")


def test_a_number_that_is_a_secret_leaves_no_json_behind() -> None:
    secret = "12345678901234567890"
    text, shown = encode_value({"account": int(secret)}, masking(secret))

    assert text is None
    assert shown == f'{{"account":{MASK}}}'


@pytest.mark.parametrize(
    "secret", ['quote"quote"quote"quote', "back\\slash\\back\\slash", "ümläut-ümläut-ümläut", "tab\ttab\ttab\ttab\ttab"]
)
def test_a_secret_that_json_writes_otherwise_is_masked_too(secret: str) -> None:
    for value in (secret, {"a": f"<{secret}>"}, {secret}):
        text, shown = encode_value(value, masking(secret))
        said = f"{text}{shown}"

        assert MASK in said
        assert secret not in said
        assert secret.encode("unicode_escape").decode() not in said
        if text is not None:
            decode_value(text)


@pytest.mark.parametrize("length", [8, 11, 14])
def test_a_short_secret_is_masked_wherever_it_stands(length: int) -> None:
    secret = "k3y-5ecret-short"[:length]
    for before in range(16):
        text, _ = encode_value("x" * before + secret, masking(secret))

        assert secret not in str(text)
