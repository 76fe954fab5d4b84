"""Tables in a pipe and on a narrow terminal."""

from __future__ import annotations

import io

import pytest

from agentos.cli.terminal.table import find_width, format_table

HEAD = ("KEY", "STATE", "UNTIL", "WHY")
ROWS = [
    ("alpha", "cooling", "18:08:01 (in 12 s)", "fix.sh reported a rate limit (ISSUE-07)"),
    ("beta", "available", "", ""),
]


def test_in_a_pipe_a_row_is_a_line_and_nothing_is_cut_off() -> None:
    assert list(format_table(HEAD, ROWS)) == [
        "KEY    STATE      UNTIL               WHY",
        "alpha  cooling    18:08:01 (in 12 s)  fix.sh reported a rate limit (ISSUE-07)",
        "beta   available",
    ]


def test_columns_that_do_not_fit_are_written_under_their_row() -> None:
    assert list(format_table(HEAD, ROWS, width=60)) == [
        "KEY    STATE      UNTIL",
        "alpha  cooling    18:08:01 (in 12 s)",
        "    why: fix.sh reported a rate limit (ISSUE-07)",
        "beta   available",
    ]
    assert list(format_table(HEAD, ROWS, width=30)) == [
        "KEY    STATE",
        "alpha  cooling",
        "    until: 18:08:01 (in 12 s);",
        "    why: fix.sh reported a",
        "    rate limit (ISSUE-07)",
        "beta   available",
    ]


@pytest.mark.parametrize("width", [8, 20, 40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, format_table(HEAD, ROWS, width=width))) <= width


def test_numbers_are_aligned_to_the_right_and_empty_columns_left_out() -> None:
    rows = [("a", "", "1,000", "x"), ("b", "", "7", "y")]

    assert list(format_table(("key", "none", "done", "why"), rows, right=(2,))) == [
        "key   done  why",
        "a    1,000  x",
        "b        7  y",
    ]


def test_a_coloured_cell_keeps_its_width() -> None:
    lines = list(format_table(HEAD, ROWS, ["33", None], coloured_column=1, width=60))

    assert lines[1] == "alpha  \x1b[33mcooling  \x1b[0m  18:08:01 (in 12 s)"
    assert lines[3] == "beta   available"


def test_only_a_terminal_has_a_width() -> None:
    assert find_width(io.StringIO()) is None
