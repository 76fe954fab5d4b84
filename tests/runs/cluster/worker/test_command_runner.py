"""Commands of a suspended worker are suspended too, and resumed only if they still have their key."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ....process_state import is_stopped
from ...commands.drivers import PATIENCE, ROOT, until

SCRIPT = "echo $$ > it; mv it pid; while [ ! -e go ]; do sleep 0.02; done"


@pytest.mark.parametrize(
    ("good_for", "how_it_went"), [(3600, "0 False"), (0, f"{signal.SIGKILL.value} True")], ids=["held", "lost"]
)
def test_a_command_of_a_worker_that_stood_still_goes_on_only_with_its_key(
    tmp_path: Path, good_for: int, how_it_went: str
) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.runs.cluster.command_runner_child", SCRIPT, str(good_for)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        until((tmp_path / "pid").exists, "the command has begun")
        command = int((tmp_path / "pid").read_text())
        worker.send_signal(signal.SIGSTOP)
        until(lambda: is_stopped(command), "the command stands still like its worker")
        (tmp_path / "go").touch()
        worker.send_signal(signal.SIGCONT)
        out, _ = worker.communicate(timeout=PATIENCE)
    finally:
        worker.kill()
        worker.communicate()

    assert out == how_it_went
