from __future__ import annotations

import json
import random
import sqlite3
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.runs.journal import encode_row, replace_surrogates
from agentos.runs.journal.entry_text import ADDED, COLUMNS, join_columns, join_rows

TEXTS = st.none() | st.text(st.characters(codec=None))
NUMBERS = st.none() | st.integers(-(2**63), 2**63 - 1)
TAKEN_APART = f"select {', '.join(f'j.value ->> {n}' for n in range(len(COLUMNS)))} from json_each(?) j order by j.key"


def through_sqlite(rows: list[str]) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(":memory:")
    try:
        return connection.execute(TAKEN_APART, (join_rows(rows),)).fetchall()
    finally:
        connection.close()


@settings(max_examples=150, deadline=None)
@given(
    at=st.floats(),
    item=TEXTS,
    token=NUMBERS,
    attempt=NUMBERS,
    duration=st.none() | st.floats(),
    value=TEXTS,
    error=TEXTS,
    added=st.tuples(TEXTS, TEXTS, TEXTS),
)
def test_what_is_read_back_dumps_to_the_same_text(
    at: float,
    item: str | None,
    token: int | None,
    attempt: int | None,
    duration: float | None,
    value: str | None,
    error: str | None,
    added: tuple[str | None, str | None, str | None],
) -> None:
    content, usage, flags = added
    facts: dict[str, Any] = {"value": value, "error": error, "content": content, "usage": usage, "flags": flags}
    row = encode_row(at, "done", item, token, attempt, "key-a", duration, **facts)

    read = through_sqlite([row, row])

    assert join_columns(read) == join_rows([row, row])
    kept = len(COLUMNS) - len(ADDED) if added == (None, None, None) else len(COLUMNS)
    assert json.dumps([each[:kept] for each in read], separators=(",", ":")) == join_rows([row, row])
    assert row == json.dumps(json.loads(row), separators=(",", ":"))
    assert read[0][2] == (None if item is None else replace_surrogates(item))


def test_times_survive_sqlite_exactly() -> None:
    chance = random.Random(7)
    rows = [encode_row(chance.uniform(0, 3e9), "done", duration=chance.expovariate(0.1)) for _ in range(20_000)]

    assert join_columns(through_sqlite(rows)) == join_rows(rows)


def test_times_are_kept_to_a_tenth_of_a_millisecond_and_finite() -> None:
    assert json.loads(encode_row(1.00004999, "done", duration=0.00016))[::6] == [1.0, 0.0002]
    assert json.loads(encode_row(float("nan"), "done", duration=float("inf")))[::6] == [0.0, 1e11]
    assert encode_row(3, "done", duration=2).startswith('[3.0,"done"')


def test_nul_and_half_surrogates_become_visible_escapes() -> None:
    assert replace_surrogates("a\0b\ud800c") == "a\\x00b\\ud800c"
    assert replace_surrogates("plain, é and \U0001f600") == "plain, é and \U0001f600"
    assert through_sqlite([encode_row(1.0, "done", "a\0b\ud800", error="\U0001f600")])[0][2] == "a\\x00b\\ud800"


def test_text_that_only_looks_like_an_escape_is_left_alone() -> None:
    value = json.dumps("a\0b\U0001f600")

    assert through_sqlite([encode_row(1.0, "done", value=value)])[0][8] == value


def test_a_number_is_never_written_as_a_word() -> None:
    assert json.loads(encode_row(1.0, "done", token=True))[3] == 1


def test_a_row_too_long_for_sqlite_is_refused_before_it_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.runs.journal.entry_text.LONGEST_ROW", 1000)

    with pytest.raises(ValueError, match="too long for a journal"):
        encode_row(1.0, "done", value="x" * 1000)
