"""The choice of colours by flag, environment and terminal."""

from __future__ import annotations

import io

import pytest

from agentos.cli.terminal.color import use_color
from agentos.cli.usage_error import UsageError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "on_terminal", "in_file"),
    [
        ({}, True, False),
        ({"TERM": "xterm"}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"AGENTOS_NO_COLOR": "1"}, False, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": ""}, True, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ({"FORCE_COLOR": "1", "AGENTOS_NO_COLOR": "1"}, False, False),
    ],
)
def test_the_environment_decides_before_the_stream(environ: dict[str, str], on_terminal: bool, in_file: bool) -> None:
    assert use_color(Terminal(), environ) is on_terminal
    assert use_color(io.StringIO(), environ) is in_file


@pytest.mark.parametrize("environ", [{}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}, {"TERM": "dumb"}])
def test_the_flag_decides_before_the_environment(environ: dict[str, str]) -> None:
    assert use_color(io.StringIO(), environ, "always")
    assert not use_color(Terminal(), environ, "never")


def test_a_stream_that_is_closed_or_missing_has_no_colour() -> None:
    closed = io.StringIO()
    closed.close()

    assert not use_color(closed, {})
    assert not use_color(None, {})


def test_another_flag_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="'pink'") as refused:
        use_color(io.StringIO(), {}, "pink")

    assert refused.value.hint == "give auto, always or never"
