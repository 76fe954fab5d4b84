"""Tests of process_state.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from .process_state import is_stopped, state_of


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_shell_is_stopped_wherever_the_signal_finds_it() -> None:
    shell = subprocess.Popen(["sh", "-c", "while :; do sleep 0.001; done"], process_group=0)
    try:
        for _ in range(100):  # about one in twenty hits it between vfork and exec
            os.killpg(shell.pid, signal.SIGSTOP)
            until(lambda: is_stopped(shell.pid))
            os.killpg(shell.pid, signal.SIGCONT)
            until(lambda: not is_stopped(shell.pid))
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_a_process_that_sleeps_is_not_stopped_and_one_that_is_gone_is_neither() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        until(lambda: state_of(process.pid) == "S")
        assert not is_stopped(process.pid)
    assert (state_of(process.pid), is_stopped(process.pid)) == ("X", False)
