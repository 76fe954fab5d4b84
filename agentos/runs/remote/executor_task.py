"""What an executor is asked to run for each item. Its name is what a dashboard shows."""

from __future__ import annotations

import os
import signal
import threading

from .assignment import Assignment
from .attempt_report import Report
from .pickled import Parcel
from .worker_call import carry_out


def agentos_item(function: Parcel, assignment: Assignment, is_async: bool) -> Report:
    """Carry out one assignment, in a process of an executor."""
    if os.getpid() != assignment.driver:
        _leave_interrupts_to_the_driver()
    return carry_out(function, assignment, is_async=is_async)


def _leave_interrupts_to_the_driver() -> None:
    """Ctrl-C reaches every process of a terminal. What runs here may end: whether it is waited for is decided there.

    For good, not for this item alone: between two items it would end this process, and with it the whole executor.
    """
    here = threading.current_thread() is threading.main_thread()  # only there it can be set
    if here and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
