"""Processes of the command keep their memory to themselves; programs that they start are ordinary ones."""

from __future__ import annotations

import subprocess
import sys

READ = "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"  # PR_GET_DUMPABLE
HARDEN = "from agentos.util.process_hardening import harden_process; harden_process()"


def run(*lines: str) -> list[str]:
    ended = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    return ended.stdout.split()


def test_a_hardened_process_is_not_dumpable() -> None:
    assert run(READ, HARDEN, READ) == ["1", "0"]


def test_a_program_that_a_hardened_process_starts_is_dumpable() -> None:
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {READ!r}], check=True)"

    assert run(HARDEN, start) == ["1"]


def test_using_the_library_hardens_nothing() -> None:
    use = "from agentos import CredentialCoordinator as Pool; Pool(['x' * 20]).gateway()"

    assert run(use, READ) == ["1"]
