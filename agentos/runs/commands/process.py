"""Run commands on this machine through the helper process, and end them."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from .environment import CommandEnvironment
from .helper_client import HelperClient, SpawnedCommand
from .helper_process import kill_marked, signal_group
from .invocation import Completed, Invocation
from .outcome_file import InvalidOutcome, read_outcome_file

_CHUNK = 65_536
_PIPES_FULL = 8
_AFTER_ITS_END = 1.0  # seconds to read output after the end, if a leftover process keeps the pipes open

Write = Callable[[str, bytes], object]  # "stdout" or "stderr", and the data


class ProcessRunner:
    """Runs invocations, each on the caller's thread."""

    def __init__(self, helper: HelperClient, environment: CommandEnvironment) -> None:
        self._helper = helper
        self._environment = environment

    def run(
        self,
        invocation: Invocation,
        running: RunningCommand,
        secret: str | None,
        checkpoint: Path,
        write: Write,
        lock: int | None = None,
    ) -> Completed:
        """Run the command to its end. *write* gets its output and may block.

        *lock* is a descriptor that the command inherits; it is closed here.
        """
        try:
            variables = self._environment.build_variables(
                item_id=invocation.item_id,
                item=invocation.text,
                attempt=invocation.attempt,
                slot=invocation.slot,
                credential=invocation.credential,
                checkpoint=checkpoint,
                mark=running.mark,
            )
            if secret is not None and invocation.env_key is not None:
                variables[invocation.env_key] = secret
            variables.update(invocation.variables)
            stdin = os.fsencode(invocation.text) if invocation.stdin else None
            if invocation.prompt is not None:
                stdin = invocation.prompt.encode("utf-8", "surrogateescape")
            child = self._helper.spawn(invocation.argv, variables, stdin, lock)
            if lock is not None:
                os.close(lock)
                lock = None
            try:
                silent = _read_until_end(child, running, write, invocation)
            finally:
                child.close()
            if running.status is None and running.fault is None:
                running.kill()  # the helper is gone and cannot do it
            return self._build_completed(invocation, running, silent)
        finally:
            if lock is not None:
                os.close(lock)
            self._environment.remove_files(invocation.item_id, invocation.attempt)

    def _build_completed(self, invocation: Invocation, running: RunningCommand, silent: bool) -> Completed:
        outcome = outcome_error = None
        try:
            outcome = read_outcome_file(self._environment.outcome_file(invocation.item_id, invocation.attempt))
        except InvalidOutcome as error:
            outcome_error = str(error)
        return Completed(running.status, running.fault, running.asked_to_end, silent, outcome, outcome_error)


def _read_until_end(child: SpawnedCommand, running: RunningCommand, write: Write, invocation: Invocation) -> bool:
    """Read the command's output until it has ended. Return True if it was silent for too long and asked to end."""
    poll = select.poll()
    streams = {child.stdout: "stdout", child.stderr: "stderr"}
    for descriptor in (child.status, *streams):
        poll.register(descriptor, select.POLLIN)
    idle, silent = invocation.idle_timeout, False
    waits = 0.0
    last_output_at, until = time.monotonic(), float("inf")
    open_streams = set(streams)
    leftovers = _PIPES_FULL  # reads of buffered output after its end, even if the time for that is over
    while open_streams or not running.ended:
        now = time.monotonic()
        if idle is not None and not silent and not running.ended:
            if now >= last_output_at + idle and not poll.poll(0):
                last_output_at = max(last_output_at, running.stopped_until())  # a suspended command cannot print
                waits, waited = (0.0 if running.waits is None else running.waits()), waits
                if waits > waited:
                    last_output_at = now  # nor can one that waits for a key
                if now >= last_output_at + idle:
                    silent = True
                    running.end(invocation.kill_after)
            due = min(until, last_output_at + idle) if not silent else until
        else:
            due = until
        if now >= until and (leftovers := leftovers - 1) < 0:
            break
        ready = poll.poll(None if due == float("inf") else max(0.0, due - now) * 1000 + 1)
        for descriptor, _ in ready:
            data = os.read(descriptor, _CHUNK)
            if descriptor == child.status:
                if not running.read_helper(data):
                    poll.unregister(descriptor)
                if running.ended:
                    until = time.monotonic() + _AFTER_ITS_END
            elif data:
                running.writing = True
                write(streams[descriptor], data)
                running.writing = False
                last_output_at = time.monotonic()  # after write(): the consumer of our own output may block
            else:
                poll.unregister(descriptor)
                open_streams.discard(descriptor)
    return silent


class RunningCommand:
    """A command from its request on: its state, and the request to end it."""

    def __init__(self, helper: HelperClient) -> None:
        self.mark = helper.new_mark()  # value of AGENTOS_MARK in all its processes
        self.pid: int | None = None
        self.status: int | None = None  # wait status
        self.fault: int | None = None  # errno if it could not be started
        self.asked_to_end = False
        self.ended = False
        self.writing = False  # its output blocks in the consumer, so the command itself is not stuck
        self._helper = helper
        self._end_after: float | None = None
        self.waits: Callable[[], float] | None = None  # seconds that its calls have waited for keys so far
        self._waits_taken = 0.0
        self._helper_data = b""
        self._over = False
        self._lock = threading.Lock()

    @property
    def is_stopped(self) -> bool:
        """True while the command is suspended because this process was."""
        return self._helper.stopped_since() is not None

    def stopped_until(self) -> float:
        """Return the end of its last suspension; now, if it is suspended."""
        return self._helper.stopped_until()

    def follow(self, earlier: RunningCommand) -> None:
        """Count the waits of the attempt on from its *earlier* process."""
        self.waits, self._waits_taken = earlier.waits, earlier._waits_taken

    def take_waits(self) -> float:
        """Return the seconds that its calls have waited for keys since the last call of this method."""
        if self.waits is None:
            return 0.0
        total = self.waits()
        taken, self._waits_taken = max(0.0, total - self._waits_taken), max(total, self._waits_taken)
        return taken

    def finish(self) -> None:
        """Mark the command as finished: none of its processes runs or will run."""
        with self._lock:
            self._over = True

    def unless_finished(self, act: Callable[[], object]) -> bool:
        """Call *act* unless the command is finished, and return False if it is. *act* must not block."""
        with self._lock:
            if not self._over:
                act()
            return not self._over

    def read_helper(self, data: bytes) -> bool:
        """Process the helper's status lines. Return False at their end."""
        self._helper_data += data
        while b"\n" in self._helper_data:
            line, _, self._helper_data = self._helper_data.partition(b"\n")
            kind, _, number = line.partition(b" ")
            if kind == b"K":
                self.asked_to_end = True
            elif kind == b"S":
                with self._lock:
                    self.pid = int(number)
                    asked = self._end_after
                if asked is not None:
                    self._helper.kill(self.pid, asked, self.mark)  # end() was called before it started
            elif kind == b"E":
                self.fault = int(number)
                self.ended = True
            else:
                self.status = int(number)
                self.ended = True
        if not data:
            self.ended = True
        return bool(data)

    def kill(self) -> None:
        """Kill the command and all its processes without the helper."""
        if self.pid is not None:
            signal_group(self.pid, signal.SIGKILL)
        kill_marked(self.mark, whole=True)

    def end(self, after: float) -> None:
        """Ask the command to end, and kill what is left of it after that many seconds."""
        with self._lock:
            self._end_after = after
            pid = self.pid
        if pid is not None and not self.ended:
            self._helper.kill(pid, after, self.mark)
