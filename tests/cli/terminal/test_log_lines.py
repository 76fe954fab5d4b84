"""Log records that are printed during a run."""

from __future__ import annotations

import logging

import pytest

from agentos.cli.terminal.log_lines import showing_log

from ...logged_messages import said_here

log = logging.getLogger("agentos")


def said(*, without_display: bool = False, verbose: bool = False) -> list[str]:
    lines: list[str] = []
    with showing_log(
        lines.append, lambda text: text.replace("hush", "<secret>"), without_display=without_display, verbose=verbose
    ):
        log.warning("[COORDINATOR] %s is dead: hush", "alice")
        log.warning("[COORDINATOR] alice rate-limited for 3.0s")
        log.info("[COORDINATOR] alice revived")
        for level, text in ((logging.WARNING, "Stopping because of SIGINT"), (logging.WARNING, "item a failed")):
            log.handle(log.makeRecord("agentos", level, "/agentos/runs/progress.py", 1, text, (), None))
    return lines


def test_warnings_are_said_without_secrets_and_without_what_the_display_tells() -> None:
    assert said() == ["[COORDINATOR] alice is dead: <secret>\n"]


def test_verbose_says_more() -> None:
    assert len(said(verbose=True)) == 3


def test_without_a_display_at_least_the_stop_is_told() -> None:
    assert said(without_display=True)[-1] == "Stopping because of SIGINT\n"


def test_all_is_as_before_afterwards(caplog: pytest.LogCaptureFixture) -> None:
    before = log.level, log.propagate, list(log.handlers)

    said(verbose=True)

    assert (log.level, log.propagate, list(log.handlers)) == before
    assert said_here(caplog) == []


def test_a_message_that_cannot_be_made_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    lines: list[str] = []
    with showing_log(lines.append, str, without_display=False, verbose=False):
        log.warning("%d", "no number")

    assert lines == []
