"""One line about a failure, and its facts in the journal."""

from __future__ import annotations

import pytest

from agentos.runs.failures import decode_facts, describe_failure, encode_facts


@pytest.mark.parametrize(
    ("error", "error_type", "place", "line"),
    [
        ("'nope'", "KeyError", "work.py:3 in ask", "KeyError: 'nope' (work.py:3 in ask)"),
        ("ValueError", "ValueError", "work.py:3 in ask", "ValueError (work.py:3 in ask)"),
        ("\nfirst\nsecond", "RuntimeError", None, "RuntimeError: first"),
        ("exit 3: boom", "CommandFailed", None, "exit 3: boom"),
        ("timed out after 5s", "TimeoutError", None, "timed out after 5s"),
        ("mine", "TimeoutError", "work.py:3 in ask", "TimeoutError: mine (work.py:3 in ask)"),
        ("duplicate id", None, None, "duplicate id"),
        (None, None, None, "no reason was recorded"),
    ],
)
def test_a_failure_is_described_in_one_line(
    error: str | None, error_type: str | None, place: str | None, line: str
) -> None:
    assert describe_failure(error, error_type, place) == line


def test_the_facts_come_back_from_the_journal() -> None:
    facts = {"error_type": "CommandFailed", "exit": 3, "signal": None, "tail": ("one", "two"), "code": 3}

    assert decode_facts(encode_facts(facts, str)) == facts


@pytest.mark.parametrize("detail", [None, "not JSON", "[1]", '{"type": 7}'])
def test_a_detail_of_another_format_has_no_facts(detail: str | None) -> None:
    assert decode_facts(detail) == {}
