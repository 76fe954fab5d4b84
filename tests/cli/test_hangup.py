"""SIGHUP ends a run, whichever thread of the process receives it."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from agentos.cli.session.run_session import _treat_hangup_as_term
from agentos.runs.execution.signal_watcher import WATCH

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")

LONG = 20.0


class Run:
    """A run that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.arrived = threading.Event()

    def on_signal(self, signum: int) -> None:
        self.told.append(signum)
        self.arrived.set()


def test_a_hangup_that_another_thread_gets_ends_a_run_whose_main_thread_waits() -> None:
    run, before = Run(), signal.getsignal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with _treat_hangup_as_term():
            WATCH.join(run)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # else the system prefers the main thread
            os.kill(os.getpid(), signal.SIGHUP)

            arrived = run.arrived.wait(LONG)

            WATCH.leave(run)
    finally:
        WATCH.leave(run)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        signal.signal(signal.SIGHUP, before)

    assert arrived
    assert run.told == [signal.SIGTERM]


def test_a_hangup_that_is_to_be_ignored_stays_ignored() -> None:
    run, before = Run(), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with _treat_hangup_as_term():
            WATCH.join(run)
            during = signal.getsignal(signal.SIGHUP)
            WATCH.leave(run)
    finally:
        WATCH.leave(run)
        signal.signal(signal.SIGHUP, before)

    assert during is signal.SIG_IGN
