"""A Dask cluster of real processes on this machine: one scheduler and some workers, which tests may kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

_PATIENCE = 120.0
ROOT = Path(__file__).parents[3]


class Processes:
    """Starts them, waits until they are there, and ends all that is left at the end. Each has its log in *folder*."""

    def __init__(self, folder: Path, *, dashboard: bool = False, environ: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "scheduler.json"
        self._environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "false",
            "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
            # It asks for all frames, in which Python 3.11 may stand still if a thread starts (cpython#106883).
            "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "false",
            **(environ or {}),
        }
        self._logs: list[IO[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        where = ["--dashboard-address", "127.0.0.1:0", "--dashboard" if dashboard else "--no-dashboard"]
        self.scheduler = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(self._file), *where
        )

    @property
    def address(self) -> str:
        """Where the scheduler is, as ``engine=`` takes it."""
        self._wait_for(self._file)
        told = json.loads(self._file.read_text())["address"]
        return str(told).replace("tcp://", "dask://")

    @property
    def tcp_address(self) -> str:
        return self.address.replace("dask://", "tcp://")

    def add_workers(self, count: int, threads: int) -> None:
        """Start so many worker processes. They may take a second or two to join."""
        for _ in range(count):
            self.workers.append(
                self._start(
                    "worker",
                    "--host",
                    "127.0.0.1",
                    "--scheduler-file",
                    str(self._file),
                    "--nthreads",
                    str(threads),
                    "--no-nanny",
                    "--no-dashboard",
                    "--dashboard-address",
                    "127.0.0.1:0",
                    "--local-directory",
                    str(self.folder / "space"),
                    "--death-timeout",
                    "120",
                )
            )

    def kill_scheduler(self) -> None:
        self._kill(self.scheduler)

    def kill_worker(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def logged(self) -> str:
        """All that its processes wrote, to standard output and error."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            self._kill(process)
        for log in self._logs:
            log.close()

    def _start(self, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = open(self.folder / f"{kind}-{len(self._logs)}.log", "wb")  # noqa: SIM115 - closed at the end
        self._logs.append(log)
        return subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{kind}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=self._environ,
            cwd=self.folder,
        )

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.kill()
        process.wait()

    def _wait_for(self, path: Path) -> None:
        until = time.monotonic() + _PATIENCE
        while not path.exists() or not path.read_text().strip():
            assert self.scheduler.poll() is None, f"the scheduler ended: {self.logged()}"
            assert time.monotonic() < until, "the scheduler did not come up"
            time.sleep(0.02)
