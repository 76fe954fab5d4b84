"""The instant at which the watchdog considers the interpreter of the command blocked."""

from __future__ import annotations

import signal

import pytest

from agentos.cli.exit_guard import _LIMIT, _LIMIT_IF_HANDLED, ExitGuard

INT, TERM, HUP = (bytes([number]) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
GRACE, WINDOW = 8.0, 0.3


@pytest.fixture
def guard() -> ExitGuard:
    return ExitGuard(GRACE, WINDOW)


def test_one_interrupt_that_is_not_read_may_wait_for_ever(guard: ExitGuard) -> None:
    guard.on_pending(INT, now=10.0)
    guard.on_pending(INT, now=99.0)

    assert guard.due is None


@pytest.mark.parametrize("both", [INT + INT, INT + TERM, TERM + INT, HUP + INT])
def test_two_signals_that_are_not_read_end_the_command_within_a_second(guard: ExitGuard, both: bytes) -> None:
    guard.on_pending(both[:1], now=10.0)
    guard.on_pending(both, now=12.0)

    assert guard.due == 12.0 + _LIMIT


def test_a_second_signal_that_is_not_read_ends_it_though_the_first_was_heeded(guard: ExitGuard) -> None:
    guard.on_pending(INT, now=10.0)
    guard.on_handled(1, now=10.1)
    guard.on_pending(b"", now=10.1)

    guard.on_pending(INT, now=20.0)

    assert guard.due == 20.0 + _LIMIT


def test_a_first_signal_that_is_heeded_before_anybody_looked_counts_once(guard: ExitGuard) -> None:
    guard.on_handled(1, now=10.0)

    assert guard.due is None
    guard.on_pending(INT, now=11.0)
    assert guard.due == 11.0 + _LIMIT


@pytest.mark.parametrize("number", [TERM, HUP])
def test_a_request_to_end_that_is_not_read_has_its_grace(guard: ExitGuard, number: bytes) -> None:
    guard.on_pending(number, now=10.0)

    assert guard.due == 10.0 + GRACE + _LIMIT


def test_a_command_that_has_heeded_a_request_to_end_sees_to_its_grace_itself(guard: ExitGuard) -> None:
    guard.on_pending(TERM, now=10.0)

    guard.on_handled(1, now=10.1)

    assert guard.due is None


def test_two_sigterm_within_a_moment_are_one(guard: ExitGuard) -> None:
    guard.on_pending(TERM, now=10.0)
    guard.on_pending(TERM + TERM, now=10.0 + WINDOW / 2)

    assert guard.due == 10.0 + GRACE + _LIMIT


def test_a_command_that_ends_by_itself_has_a_little_longer(guard: ExitGuard) -> None:
    guard.on_pending(INT + INT, now=10.0)

    guard.on_handled(2, now=10.2)

    assert guard.due == 10.2 + _LIMIT_IF_HANDLED


def test_what_else_is_written_there_is_no_signal(guard: ExitGuard) -> None:
    guard.on_pending(bytes([0, 0x7E, 0x7F, signal.SIGCHLD, signal.SIGALRM]), now=10.0)

    assert guard.due is None
