"""Fields of results, as somebody types them, and cells that a spreadsheet opens."""

from __future__ import annotations

from typing import Any

import pytest

from agentos.runs.exports.result_fields import (
    LONGEST_CELL,
    find_columns,
    find_missing,
    find_unknown,
    format_cell,
    select,
    select_typed,
)


def result(**facts: Any) -> dict[str, Any]:
    return {"id": "a", "outcome": "done", "credential": "key-a", "usage": None, **facts}


@pytest.mark.parametrize(
    ("field", "found"),
    [
        ("id", "a"),
        ("key", "key-a"),
        ("tokens", 15),
        ("usage.output", 5),
        ("item.text", "hi"),
        ("item.a.b", 1),  # a name with a dot
        ("item.a.b.c", None),
        ("value.choices.0.text", "first"),
        ("value.choices.1", {"text": "second"}),
        ("value.choices.7", None),
        ("value.choices.x", None),
        ("value.nothing.below", None),
    ],
)
def test_a_field_is_found_by_its_path(field: str, found: Any) -> None:
    usage = {"input": 7, "output": 5, "cache_read": 2, "cache_write": 1, "reasoning": 4}
    value = {"choices": [{"text": "first"}, {"text": "second"}]}

    assert select_typed(result(usage=usage, item={"text": "hi", "a.b": 1}, value=value), field) == found


def test_a_field_that_no_result_can_have_is_named() -> None:
    assert find_unknown(["id", "item.x", "value.a.0", "usage.input", "key"]) is None
    assert find_unknown(["id", "idd", "other"]) == "idd"
    assert find_unknown(["outcome.x"]) == "outcome.x"


def test_every_field_of_items_and_values_is_a_column() -> None:
    columns = find_columns(
        [
            result(item={"text": "hi", "meta": {"lang": "de"}}, value={"n": 1, "list": [1], "none": None}),
            result(item="plain", value="text"),
            result(outcome="failed", item={"text": "ho", "more": 1}, value=None),
        ]
    )

    assert [".".join(column) for column in columns] == [
        *("id", "outcome", "item.text", "item.meta.lang", "item", "item.more"),
        *("value.n", "value.list", "value.none", "value"),
        *("error", "attempts", "key", "duration", "tokens", "finished_at"),
    ]
    assert select(result(item={"meta": {"lang": "de"}}), ("item", "meta", "lang")) == "de"
    assert select(result(item="plain"), ("item", "meta", "lang")) is None


def test_values_with_a_name_of_their_own_each_do_not_make_a_column_each() -> None:
    many = [result(item="x", value={"by_name": {f"name-{n}": 1}, "n": n}) for n in range(1000)]
    endless = [result(item="x", value={f"name-{n}": 1}) for n in range(1000)]

    assert [".".join(column) for column in find_columns(many)][2:5] == ["item", "value.by_name", "value.n"]
    assert [".".join(column) for column in find_columns(endless)][2:4] == ["item", "value"]


def test_columns_that_only_some_results_need_are_there_if_one_has_them() -> None:
    columns = find_columns([result(item="x", value=None, value_repr="<Odd>"), result(item="x", redacted=True)])

    assert [column for (column, *_) in columns][3:6] == ["error", "value_repr", "redacted"]


@pytest.mark.parametrize("text", ["=1+1", "+x", "-x", "@me", "\tx", "\r=x", "\n=x", "-", "--3", "-3.5.1", "+1 x"])
def test_a_cell_that_could_be_a_formula_is_text(text: str) -> None:
    assert format_cell("value", text) == f"'{text}"


@pytest.mark.parametrize("text", ["-3.5", "+7", "-.5", "-1e-9", "3=3", "a-b", "", "'=x"])
def test_a_number_or_a_harmless_text_stays_as_it_is(text: str) -> None:
    assert format_cell("value", text) == text


@pytest.mark.parametrize(
    ("text", "cell"),
    [("a\n", "a"), ("a\nb\r\n", "a\nb"), ("a\n\n", "a\n"), ("\n", ""), ("-1\n", "-1"), ("=x\n", "'=x")],
)
def test_a_cell_ends_without_the_line_end_of_a_command(text: str, cell: str) -> None:
    assert format_cell("value.stdout", text) == cell


def test_cells_of_other_types() -> None:
    shown = [format_cell("value", value) for value in (None, True, -3.5, {"a": "ü"}, [1, 2], "a\0b")]

    assert shown == ["", "true", "-3.5", '{"a": "ü"}', "[1, 2]", "a\ufffdb"]
    assert format_cell("finished_at", 1_794_853_278.18) == "2026-11-16 18:21:18"
    assert format_cell("finished_at", "finished_at") == "finished_at"


def test_a_cell_is_never_longer_than_spreadsheets_take() -> None:
    for text in ("x" * 40_000, "=" * 40_000):
        assert len(format_cell("value", text)) == LONGEST_CELL
    assert format_cell("value", "x" * 40_000).endswith(" [cut]")


def test_a_path_is_missing_if_no_result_has_it() -> None:
    results = [result(item="x", value={"a": None, "b": [1]}), result(item="x", value={"c": {"d": 1}})]

    assert find_missing(results, ["id", "value.a", "value.b.0", "value.c.d", "value.e", "value.f"]) == "value.e"
    assert find_missing(results, ["value.b.1"]) == "value.b.1"
    assert find_missing(results, ["item.text"]) == "item.text"
    assert find_missing(results, ["id", "value.a", "value.c"]) is None


def test_no_path_is_missing_where_there_is_nothing_to_look_in() -> None:
    assert find_missing([], ["value.stdout"]) is None
    assert find_missing([result(item="x", value=None)], ["value.stdout"]) is None
