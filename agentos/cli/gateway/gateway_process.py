"""The gateway of a run of Python functions, in a process of its own: functions may block this one's interpreter."""

from __future__ import annotations

import contextlib
import itertools
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
from typing import TYPE_CHECKING, Any, Final

from ...costs.usage import Usage
from ...costs.usage_log import UsageLog
from ...gateway.token_access import TokenAccess
from ...gateway.tokens import TokenHolder, new_item_token, new_stem

if TYPE_CHECKING:
    from ...gateway.program_access import ProgramAccess

log = logging.getLogger("agentos")

_MOST_RESTARTS: Final = 5  # in a minute
_ENDS_WITHIN: Final = 5.0
_ANSWERED_WITHIN: Final = 5.0


class GatewayProcess:
    """Runs the gateway's process until it is closed, and starts it again if it ends: same port, same tokens.

    It is the ``AttemptAccess`` of a run: it makes the item tokens, so that a new process gets those that are valid.
    *config* has the keys, which go through a pipe; *environ* is the environment of the process, without secrets;
    *point* builds what points programs at its address. Raises OSError if the process cannot listen.
    """

    def __init__(
        self, config: Mapping[str, Any], environ: Mapping[str, str], point: Callable[[str], ProgramAccess]
    ) -> None:
        self.stem = new_stem()
        self._config = {**config, "stem": self.stem}
        self._environ = dict(environ)
        self._record: Callable[[Any], None] | None = None
        self._restarts: list[float] = []
        # Of the process, of what it must know, and of writing to it. Not of reading: a process that waits until its
        # output is read does not read what is written to it.
        self._lock = threading.Lock()
        self._closing = False
        self._valid: dict[str, TokenHolder] = {}  # by token
        self._unanswered: dict[int, Future[None]] = {}
        self._numbers = itertools.count(1)
        self._holders: dict[tuple[str | None, int | None], TokenHolder] = {}  # until all is recorded
        self.waiting_requests = 0
        self.url = self.token = ""
        self._process = self._start()
        listening: Future[None] = Future()
        self._thread = threading.Thread(target=self._read, args=(listening,), name="agentos-gateway", daemon=True)
        self._thread.start()
        listening.result()
        self.programs = point(self.url)

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "agentos.cli.gateway.gateway_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environ,
            start_new_session=True,  # a signal of the terminal is for the run, which decides when the gateway ends
        )
        items = [_describe(token, holder) for token, holder in self._valid.items()]
        with contextlib.suppress(BrokenPipeError):  # its end is noticed where its output is read
            _write(process, {**self._config, "items": items})
        return process

    def _read(self, listening: Future[None]) -> None:
        while True:
            process = self._process
            assert process.stdout is not None  # noqa: S101 - for the type checker
            for line in process.stdout:
                with contextlib.suppress(ValueError):
                    self._take(json.loads(line), listening)
            process.wait()
            if not listening.done():
                listening.set_exception(OSError("the gateway's process ended before it listened"))
            with self._lock:
                is_replaced = listening.exception() is None and not self._closing and self._may_restart()
                if is_replaced:
                    log.warning("[GATEWAY] its process ended with code %s, and is started again", process.returncode)
                    self._process = self._start()
                self.waiting_requests = 0
                unanswered = list(self._unanswered.values())
                self._unanswered.clear()
            for each in unanswered:
                each.set_result(None)
            if not is_replaced:
                return
            _close_pipes(process)

    def _may_restart(self) -> bool:
        now = time.monotonic()
        self._restarts = [each for each in self._restarts if each > now - 60.0] + [now]
        if len(self._restarts) <= _MOST_RESTARTS:
            return True
        log.error("[GATEWAY] its process ended %d times in a minute, and is not started again", _MOST_RESTARTS)
        return False

    def _take(self, message: dict[str, Any], listening: Future[None]) -> None:
        if "listening" in message:
            found = message["listening"]
            self.url, self.token = found["url"], found["token"]
            self._config.update(port=found["port"], token=found["token"])
            if not listening.done():
                listening.set_result(None)
        elif "error" in message and not listening.done():
            listening.set_exception(OSError(message["error"]))
        elif "answered" in message:
            if (answered := self._unanswered.pop(message["answered"], None)) is not None:
                answered.set_result(None)
        elif "waiting" in message:
            self.waiting_requests = message["waiting"]
        elif "request" in message:
            request = _RecordedRequest(message["request"])
            holder = self._holders.get((request.item, request.attempt))
            if holder is not None and holder.usage_log is not None:
                holder.usage_log.add_call(None, request.key, request.usage)
            if self._record is not None:
                self._record(request)

    def open(self, item_id: str, attempt: int, usage_log: UsageLog, program: str) -> TokenAccess:
        """Return the access of one attempt; *program* is that with which its command begins, if it is one."""
        return TokenAccess(self, TokenHolder(item_id, attempt, usage_log), program)

    def issue(self, holder: TokenHolder) -> str:
        """Return a new token for *holder* once the process accepts it. One that replaces it does from its start."""
        token = new_item_token(self.stem)
        self._holders[holder.item_id, holder.attempt] = holder
        with self._lock:
            self._valid[token] = holder
            accepted = self._send({"issue": _describe(token, holder)})
        _wait(accepted)
        return token

    def longest_wait(self, holder: TokenHolder) -> float:
        """Return 0: how long requests wait is known only once they are recorded."""
        return 0.0

    def revoke(self, token: str, holder: TokenHolder) -> None:
        """Make *token* invalid, end the requests of *holder*, and wait until all that was answered is recorded."""
        with self._lock:
            if self._valid.pop(token, None) is None:
                return
            recorded = self._send({"revoke": token})
        _wait(recorded)
        self._holders.pop((holder.item_id, holder.attempt), None)

    def _send(self, command: dict[str, Any]) -> Future[None]:
        """Send a command. The result is there when the process has obeyed, or is gone. The caller holds the lock."""
        number, answered = next(self._numbers), Future[None]()
        self._unanswered[number] = answered
        try:
            _write(self._process, {**command, "number": number})
        except (OSError, ValueError):
            del self._unanswered[number]
            answered.set_result(None)  # the next one gets all valid tokens when it starts
        return answered

    def bind(self, record: Callable[[Any], None]) -> None:
        """Pass a record of each request to *record*, from now on."""
        self._record = record

    def close(self) -> None:
        """End the process. Idempotent."""
        with self._lock:
            self._closing, process = True, self._process
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._thread.join(_ENDS_WITHIN)
        _close_pipes(process)


def _describe(token: str, holder: TokenHolder) -> list[Any]:
    return [token, holder.item_id, holder.attempt]


def _write(process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    assert process.stdin is not None  # noqa: S101 - for the type checker
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()


def _wait(answered: Future[None]) -> None:
    with contextlib.suppress(TimeoutError):
        answered.result(_ANSWERED_WITHIN)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


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
