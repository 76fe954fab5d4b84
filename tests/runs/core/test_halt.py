"""Halt clauses in GNU parallel's syntax."""

from __future__ import annotations

from typing import Any

import pytest

from agentos.runs.core.halt import Halt, parse_halt


@pytest.mark.parametrize(
    ("text", "halt"),
    [
        ("now,fail=1", Halt(True, "fail", 1, False)),
        ("soon,fail=3", Halt(False, "fail", 3, False)),
        ("soon,fail=10%", Halt(False, "fail", 10, True)),
        ("now,success=5", Halt(True, "success", 5, False)),
        ("soon,done=100", Halt(False, "done", 100, False)),
        ("soon,done=100%", Halt(False, "done", 100, True)),
        ("soon,fail=2.5%", Halt(False, "fail", 2.5, True)),
    ],
)
def test_a_clause_is_read_and_says_itself_again(text: str, halt: Halt) -> None:
    assert parse_halt(text) == halt
    assert str(halt) == text
    assert parse_halt(str(halt)) == halt


@pytest.mark.parametrize("text", [None, "never"])
def test_never_is_no_early_stop(text: str | None) -> None:
    assert parse_halt(text) is None


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "now",
        "fail=1",
        "now,fail",
        "now,fail=",
        "now,fail=0",
        "now,fail=0%",
        "now,fail=-1",
        "now,fail=101%",
        "now,fail=1.5",
        "now,fail=1e3",
        "now,fail=1%%",
        "now, fail=1",
        " now,fail=1",
        "now,fail=1\n",
        "later,fail=1",
        "now,failure=1",
        "Now,fail=1",
        "never,fail=1",
        1,
        0.5,
        True,
        b"now,fail=1",
    ],
)
def test_anything_else_is_a_value_error_that_names_the_argument(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^halt must"):
        parse_halt(wrong)


@pytest.mark.parametrize(
    ("text", "done", "failed", "reached"),
    [
        ("soon,fail=2", 100, 1, False),
        ("soon,fail=2", 0, 2, True),
        ("soon,fail=2", 0, 3, True),
        ("soon,success=2", 1, 100, False),
        ("soon,success=2", 2, 0, True),
        ("soon,done=3", 1, 1, False),
        ("soon,done=3", 2, 1, True),
    ],
)
def test_a_number_counts_items(text: str, done: int, failed: int, reached: bool) -> None:
    halt = parse_halt(text)
    assert halt is not None
    assert halt.reached(done, failed) is reached


@pytest.mark.parametrize(
    ("text", "done", "failed", "reached"),
    [
        ("soon,fail=10%", 0, 0, False),
        ("soon,fail=10%", 4, 1, False),
        ("soon,fail=10%", 0, 99, False),  # all failed, but 99 are too few
        ("soon,fail=10%", 0, 100, True),
        ("soon,fail=10%", 90, 10, True),
        ("soon,fail=10%", 91, 10, False),
        ("soon,fail=100%", 1, 99, False),
        ("soon,fail=100%", 0, 100, True),
        ("soon,success=50%", 49, 51, False),
        ("soon,success=50%", 50, 50, True),
        ("soon,done=100%", 99, 0, False),
        ("soon,done=100%", 100, 0, True),
    ],
)
def test_a_percentage_is_of_the_items_finished_so_far_from_the_hundredth_on(
    text: str, done: int, failed: int, reached: bool
) -> None:
    halt = parse_halt(text)
    assert halt is not None
    assert halt.reached(done, failed) is reached


@pytest.mark.parametrize(
    ("text", "done", "failed", "total", "reached"),
    [
        ("soon,fail=10%", 0, 2, 20, False),
        ("soon,fail=10%", 0, 3, 20, True),
        ("soon,fail=10%", 5, 50, 500, False),
        ("soon,fail=10%", 5, 51, 500, True),
        ("soon,fail=10%", 900, 100, 5_000, True),  # of the finished ones, though few of all
        ("soon,fail=10%", 0, 0, 0, False),
        ("soon,fail=100%", 0, 20, 20, False),  # the run is over anyway
        ("soon,done=10%", 5, 5, 100, False),
        ("soon,done=10%", 6, 5, 100, True),
    ],
)
def test_a_percentage_is_reached_earlier_once_more_than_that_part_of_all_items_is_counted(
    text: str, done: int, failed: int, total: int, reached: bool
) -> None:
    halt = parse_halt(text)
    assert halt is not None
    assert halt.reached(done, failed, total) is reached
