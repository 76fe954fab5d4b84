"""The tests pass as a background job, which the shell starts with SIGINT and SIGQUIT ignored, and nohup with SIGHUP."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PATIENCE = 120.0

IN_BACKGROUND = """\
import signal, subprocess, sys
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
import tests.conftest
signal.raise_signal(signal.SIGHUP)
subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
"""
IN_A_CHILD = """\
import signal
print(*(signal.getsignal(number) is signal.SIG_IGN for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)))
"""


def test_processes_that_tests_start_have_the_usual_signals_though_the_tests_run_in_background() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", IN_BACKGROUND, IN_A_CHILD],
        cwd=Path(__file__).resolve().parent.parent,
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )

    assert ended.stdout == "False False False\n"
