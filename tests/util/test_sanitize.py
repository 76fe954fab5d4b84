"""Text of others is made harmless for a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.util.sanitize import apply_carriage_returns, make_printable, shorten


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain and größer 漢字", "plain and größer 漢字"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b(Bset", "set"),
        ("\x9b2Jgone", "gone"),
        ("\x1b[", ""),
        ("a\x00b\x07c\x08d", "abcd"),
        ("two\nlines\u2028three", "two lines three"),
        ("turned \u202eround", "turned round"),
        ("half \udc80", "half "),
        ("a\tb", "a\tb"),
    ],
)
def test_what_a_terminal_would_obey_is_left_out(text: str, shown: str) -> None:
    assert make_printable(text) == shown


def test_a_tab_becomes_a_blank_where_columns_count() -> None:
    assert make_printable("a\tb", tabs=False) == "a b"


@given(st.text(st.characters()))
def test_nothing_but_tabs_is_left_that_controls_anything(text: str) -> None:
    assert not any(unicodedata.category(each)[0] == "C" for each in make_printable(text) if each != "\t")


@pytest.mark.parametrize(("line", "shown"), [("10%\r50%\r99%", "99%"), ("text\r", "text"), ("text", "text"), ("", "")])
def test_a_carriage_return_starts_the_line_over(line: str, shown: str) -> None:
    assert apply_carriage_returns(line) == shown


def test_what_is_too_long_ends_in_dots() -> None:
    assert shorten("abcdefgh", 6) == "abc..."
    assert shorten("abcdef", 6) == "abcdef"
