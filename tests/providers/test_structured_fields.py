"""Structured fields: lists and dictionaries with parameters, whole or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.providers.answers.structured_fields import StructuredItem, parse_dictionary, parse_list


def test_a_list_of_items_with_parameters() -> None:
    assert parse_list('"burst";q=100;w=60,"daily";q=1000;w=86400') == [
        StructuredItem("burst", {"q": 100.0, "w": 60.0}),
        StructuredItem("daily", {"q": 1000.0, "w": 86400.0}),
    ]


@pytest.mark.parametrize(
    ("text", "item"),
    [
        ('"a \\"quoted\\" \\\\ name"', StructuredItem('a "quoted" \\ name')),
        ("token/with:signs", StructuredItem("token/with:signs")),
        ("-12.5", StructuredItem(-12.5)),
        ("default ; r=50;  t=30", None),
        ("default; r=50;  t=30", StructuredItem("default", {"r": 50.0, "t": 30.0})),
        ('"x";pk=:cHNldWRv:', StructuredItem("x", {"pk": "cHNldWRv"})),
        ('"x";flag;q=1', StructuredItem("x", {"flag": "1", "q": 1.0})),
        ('"x";ok=?0', StructuredItem("x", {"ok": "0"})),
        ('"x";q=1;q=2', StructuredItem("x", {"q": 2.0})),
    ],
)
def test_each_kind_of_value(text: str, item: StructuredItem | None) -> None:
    assert parse_list(text) == (None if item is None else [item])


def test_a_dictionary_keeps_the_last_of_each_key() -> None:
    assert parse_dictionary("limit=100, remaining=50;x=1, limit=90, on") == {
        "limit": StructuredItem(90.0),
        "remaining": StructuredItem(50.0, {"x": 1.0}),
        "on": StructuredItem("1"),
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        '"a",',
        '"a',
        '"a" "b"',
        '"a";',
        '"a";Q=1',
        "(a b)",
        '"é"',
        "a=b",
        '"a"\n',
        "1" * 16,
        '"a";q=',
        "x" * 9000,
    ],
)
def test_a_malformed_list_is_ignored_whole(text: str) -> None:
    assert parse_list(text) is None


@pytest.mark.parametrize("text", ["", "=1", "Limit=1", "a=", "a b", "a=1,", "a=1 b=2"])
def test_a_malformed_dictionary_is_ignored_whole(text: str) -> None:
    assert parse_dictionary(text) is None


@given(st.text(alphabet='"\\abc;=,:?019.- ()\tqwrt', max_size=60))
def test_nothing_raises(text: str) -> None:
    parse_list(text)
    parse_dictionary(text)
