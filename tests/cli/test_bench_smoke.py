"""The benchmark of the command runs, with five items and our contender only."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "cli.py"
OURS = Path(sys.executable).with_name("agentos")


@pytest.mark.skipif(not BENCH.exists(), reason="the benchmarks are not part of this copy")
@pytest.mark.skipif(not OURS.exists(), reason="the command is not installed beside this interpreter")
def test_a_small_benchmark_of_the_command_has_a_row_and_a_verdict(tmp_path: Path) -> None:
    asked = [sys.executable, str(BENCH), "--only", "wall", "--contender", "agentos", "--items", "5", "--repeats", "1"]

    # A process of its own, for it waits for all children that it has.
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=150)

    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^5 times true, .*\n  agentos +[0-9]", done.stdout, re.MULTILINE)
    assert "wall time by GNU parallel: not known" in done.stdout
    assert list(tmp_path.iterdir()) == []
