"""Columns come back from the block as they were put in."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from agentos.page.item_columns import IdText
from agentos.page.packing import PackedColumns, unpack


@given(
    st.lists(st.integers(0, 0xFFFFFFFF)), st.lists(st.integers(0, 0xFFFF)), st.lists(st.integers(0, 255)), st.booleans()
)
def test_numbers_come_back_as_they_were_put_in(
    long: list[int], short: list[int], small: list[int], delta: bool
) -> None:
    columns = PackedColumns()
    columns.add_numbers("long", array("I", long), delta=delta)
    columns.add_numbers("short", array("H", short))
    columns.add_numbers("small", array("B", small))

    header, parts = unpack(columns.finish({"name": "r"}))

    assert header["name"] == "r"
    assert parts == {"long": long, "short": short, "small": small}


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_ids_come_back_whatever_characters_they_have(ids: list[str]) -> None:
    text = IdText()
    for each in ids:
        text.add(each)
    columns = PackedColumns()
    columns.add_text("ids", text.encode(), len(ids))

    assert unpack(columns.finish({}))[1]["ids"] == ids
