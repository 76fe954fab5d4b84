"""The driver's end of the pipe to the notifier: reports are written without waiting, and dropped if it is full."""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from .targets import NotifyTarget

log = logging.getLogger("agentos")

_PACKAGE: Final = Path(__file__).parents[2]
_CONTAINER_PATIENCE: Final = 5.0


class NotifierClient:
    """Starts the notifier, and tells it what happens. Never raises: no message is worth a run.

    The secrets in *targets* go through the pipe. *environ* is that of the notifier and of the commands that it runs.
    """

    def __init__(
        self,
        targets: Sequence[NotifyTarget],
        *,
        run: str,
        folder: Path,
        commands: Mapping[str, str],
        environ: Mapping[str, str],
    ) -> None:
        self._lock = threading.Lock()
        self._pipe: int | None = None
        self._last: Mapping[str, Any] | None = None
        self.pid: int | None = None  # of the process that starts the notifier, and then ends
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "agentos.notify.notifier"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,  # open as long as there is something to send
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={
                    **environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, [str(_PACKAGE), environ.get("PYTHONPATH")])),
                },
                start_new_session=True,  # what is typed at the terminal is not for it
            )
        except OSError as error:
            log.warning("no messages about this run will be sent: %s", error.strerror)
            return
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101, PT018 - for mypy
        self._pipe = os.dup(self._process.stdin.fileno())
        self._process.stdin.close()
        self.pid = self._process.pid
        hello = {"run": run, "folder": str(folder.absolute()), "commands": dict(commands)}
        self._write({"hello": {**hello, "targets": [target.to_json() for target in targets]}})
        if self._pipe is not None:
            os.set_blocking(self._pipe, False)

    def report(self, facts: Mapping[str, Any]) -> None:
        """Report the state of the run, if it has changed."""
        if facts != self._last:
            self._last = facts
            self._write({"facts": facts})

    def note_stopping(self, why: str) -> None:
        """Report that the run has begun to stop."""
        self._write({"stopping": why})

    def end(self, code: int, why: str | None, facts: Mapping[str, Any]) -> None:
        """Report the end of the run. The notifier goes on by itself; only the first process of a container waits."""
        self._write({"end": {"code": code, "why": why, "facts": facts}})
        self._close_pipe()
        if os.getpid() == 1 and self.pid is not None and self._process.stdout is not None:
            select.select([self._process.stdout], [], [], _CONTAINER_PATIENCE)
        self.close()

    def close(self) -> None:
        """Leave the notifier to itself. Without ``end`` before it, that means that the run has crashed."""
        self._close_pipe()
        if self.pid is not None and self._process.stdout is not None:
            self._process.stdout.close()
            self._process.poll()
            self._process.returncode = 0  # nobody should be warned that it is not waited for

    def _close_pipe(self) -> None:
        with self._lock:
            pipe, self._pipe = self._pipe, None
            if pipe is not None:
                os.close(pipe)

    def _write(self, line: Mapping[str, Any]) -> None:
        with self._lock:
            if self._pipe is None:
                return
            try:
                os.write(self._pipe, json.dumps(line).encode() + b"\n")
            except BlockingIOError:
                pass  # the next report has everything that this one had
            except OSError:
                os.close(self._pipe)
                self._pipe = None
