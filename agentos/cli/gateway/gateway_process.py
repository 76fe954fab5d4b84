"""The gateway of a run of Python functions, in a process of its own: functions may block this one's interpreter."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, Final

from ...costs.usage import Usage

log = logging.getLogger("agentos")

_MOST_RESTARTS: Final = 5  # in a minute
_ENDS_WITHIN: Final = 5.0
_FLUSHED_WITHIN: Final = 2.0


class GatewayProcess:
    """Runs the gateway's process until it is closed, and starts it again if it ends: same port, same token.

    *config* has the keys, which go through a pipe; *environ* is the environment of the process, without secrets.
    Raises OSError if the process cannot listen.
    """

    def __init__(self, config: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        self._config = dict(config)
        self._environ = dict(environ)
        self._record: Callable[[Any], None] | None = None
        self._closing = False
        self._restarts: list[float] = []
        self._flushed = threading.Condition()
        self._asked = self._answered = 0
        self.waiting_requests = 0
        self.url = self.token = ""
        self._process = self._start()
        listening: Future[None] = Future()
        self._thread = threading.Thread(target=self._read, args=(listening,), name="agentos-gateway", daemon=True)
        self._thread.start()
        listening.result()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "agentos.cli.gateway.gateway_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environ,
            start_new_session=True,  # a signal of the terminal is for the run, which decides when the gateway ends
        )
        assert process.stdin is not None  # noqa: S101 - for the type checker
        try:
            process.stdin.write(json.dumps(self._config).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # its end is noticed where its output is read
        return process

    def _read(self, listening: Future[None]) -> None:
        while True:
            process = self._process
            assert process.stdout is not None  # noqa: S101 - for the type checker
            for line in process.stdout:
                with contextlib.suppress(ValueError):
                    self._take(json.loads(line), listening)
            process.wait()
            if self._closing:
                return
            if not listening.done():
                listening.set_exception(OSError("the gateway's process ended before it listened"))
                return
            now = time.monotonic()
            self._restarts = [each for each in self._restarts if each > now - 60.0] + [now]
            if len(self._restarts) > _MOST_RESTARTS:
                log.error("[GATEWAY] its process ended %d times in a minute, and is not started again", _MOST_RESTARTS)
                return
            log.warning("[GATEWAY] its process ended with code %s, and is started again", process.returncode)
            self._process = self._start()

    def _take(self, message: dict[str, Any], listening: Future[None]) -> None:
        if "listening" in message:
            found = message["listening"]
            self.url, self.token = found["url"], found["token"]
            self._config.update(port=found["port"], token=found["token"])
            if not listening.done():
                listening.set_result(None)
        elif "error" in message and not listening.done():
            listening.set_exception(OSError(message["error"]))
        elif "flushed" in message:
            with self._flushed:
                self._answered = message["flushed"]
                self._flushed.notify_all()
        elif "waiting" in message:
            self.waiting_requests = message["waiting"]
        elif "request" in message and self._record is not None:
            self._record(_RecordedRequest(message["request"]))

    def flush(self) -> None:
        """Wait until the requests that have been answered are recorded, or the process is gone."""
        with self._flushed:
            self._asked += 1
            number, process = self._asked, self._process
            try:
                assert process.stdin is not None  # noqa: S101 - for the type checker
                process.stdin.write(b'{"flush": %d}\n' % number)
                process.stdin.flush()
            except (OSError, ValueError):
                return
            self._flushed.wait_for(lambda: self._answered >= number or process.poll() is not None, _FLUSHED_WITHIN)

    def bind(self, record: Callable[[Any], None]) -> None:
        """Pass a record of each request to *record*, from now on."""
        self._record = record

    def close(self) -> None:
        """End the process. Idempotent."""
        self._closing = True
        process = self._process
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._thread.join(_ENDS_WITHIN)
        if process.stdout is not None:
            process.stdout.close()


class _RecordedRequest(SimpleNamespace):
    """A request as the process reported it; see ``runs.commands.attempt_access.RequestRecord``."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__(**{**fields, "usage": Usage.from_json(fields.get("usage"))})
        self._fields = fields

    def to_json(self) -> dict[str, Any]:
        return self._fields


@contextlib.contextmanager
def replaced_environment(variables: Mapping[str, str], without: frozenset[str]) -> Any:
    """Set *variables* in this process's environment, and remove those in *without*, until the block ends."""
    before = dict(os.environ)
    for name in without:
        os.environ.pop(name, None)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in {*variables, *without}:
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)
