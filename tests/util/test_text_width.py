"""The width of text on a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.util.text_width import clip, display_width, pad, wrap

TEXTS = st.text(st.sampled_from("ab c文é\u0301🙂"), max_size=40)


@pytest.mark.parametrize(
    ("text", "width"), [("", 0), ("abc", 3), ("é", 1), ("文書", 4), ("e\u0301", 1), ("🙂", 2), ("\uff21", 2)]
)
def test_each_character_takes_the_columns_a_terminal_gives_it(text: str, width: int) -> None:
    assert display_width(text) == width


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("abcdefghij", 10, "abcdefghij"),
        ("abcdefghijk", 10, "abcdefg..."),
        ("abcdefghijk", 4, "abcd"),
        ("abcdefghijk", 0, ""),
        ("文書文書文書", 8, "文書..."),
        ("文書", 3, "文"),
    ],
)
def test_text_that_is_too_long_is_cut_and_says_so_where_there_is_room(text: str, width: int, expected: str) -> None:
    assert clip(text, width) == expected


@given(TEXTS, st.integers(0, 30))
def test_cut_text_never_takes_more_columns_than_there_are(text: str, width: int) -> None:
    assert display_width(clip(text, width)) <= width


@given(TEXTS, st.integers(0, 30))
def test_padded_text_takes_exactly_its_columns(text: str, width: int) -> None:
    assert display_width(pad(text, width)) == width


def test_lines_are_broken_between_words_and_words_only_where_they_must_be() -> None:
    assert wrap("nothing more starts, abcdefghijklmnop ends", 10) == [
        "nothing",
        "more",
        "starts,",
        "abcdefghij",
        "klmnop",
        "ends",
    ]


@given(TEXTS, st.integers(2, 30))
def test_wrapped_lines_fit_and_lose_nothing(text: str, width: int) -> None:
    lines = wrap(text, width)

    assert all(display_width(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())
