"""Client of the helper process that starts commands."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ...errors import Transient
from ..execution.process_exit import OWN_CHILDREN
from .helper_process import LENGTH

_PATIENCE = 30.0  # seconds to wait for free file descriptors
_A_WHILE = 0.05
_HELPER = Path(__file__).with_name("helper_process.py")


class SpawnedCommand:
    """A command that was requested: its pipes, and ``status`` for its progress.

    ``status`` delivers the lines that the helper writes about it, then end of file.
    """

    def __init__(self, stdout: int, stderr: int, status: int) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self.status = status

    def close(self) -> None:
        for descriptor in (self.stdout, self.stderr, self.status):
            os.close(descriptor)


class HelperClient:
    """Starts the helper process with the first command, and again if it dies. Thread-safe.

    *session* is the prefix of each command's mark, by which processes are found that left their group. *scratch* is the
    folder of the commands' outcome files; the helper removes it when all have ended. *within* is the maximum time
    between two ``beat`` calls in seconds; None if there are none.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        session: str,
        scratch: Path,
        cwd: str | None = None,
        within: float | None = None,
    ) -> None:
        self.within = within
        self._environment = dict(environment)
        self._session = session
        self._numbers = itertools.count(1)  # not a generator: threads start commands at the same instant
        self._scratch = scratch
        self._cwd = cwd
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._closed = False
        self._reaper: threading.Thread | None = None  # waits for the last helper to end
        self._suspended = False  # the helper suspends all commands, also after a restart
        self._stopped_since: float | None = None  # as reported by the helper
        self._resumed_at = -math.inf
        self._helper_output = b""

    def new_mark(self) -> str:
        """Return the mark of a new command."""
        return f"{self._session}{next(self._numbers)}"

    def start(self) -> None:
        """Start the helper."""
        with self._lock:
            self._connected()

    def spawn(
        self, argv: Sequence[str], environment: Mapping[str, str], stdin: bytes | None, lock: int | None = None
    ) -> SpawnedCommand:
        """Start a command in a session of its own, with these variables added to the common environment.

        *lock* is the descriptor of a locked file: the command inherits it, and the file is unlocked when the command
        ends.
        """
        message = {"do": "spawn", "argv": list(argv), "env": dict(environment)}
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                return self._spawn(message, stdin, lock)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                if time.monotonic() > until:
                    raise Transient(f"no pipe could be made for the command: {error.strerror}") from None
            time.sleep(_A_WHILE)  # other commands end meanwhile and release descriptors

    def _spawn(self, message: Mapping[str, object], stdin: bytes | None, lock: int | None) -> SpawnedCommand:
        theirs: list[int] = []
        ours: list[int] = []
        try:
            theirs.append(_readable(stdin))
            for _ in range(3):
                reader, writer = os.pipe()
                ours.append(reader)
                theirs.append(writer)
            self._send(message, theirs if lock is None else [*theirs, lock])
        except BaseException:
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        return SpawnedCommand(*ours)

    def kill(self, pid: int, after: float, mark: str) -> None:
        """Ask a command and all its processes to end, and kill what is left after that many seconds."""
        try:
            self._send({"do": "kill", "pid": pid, "after": after, "mark": mark}, ())
        except Transient:
            pass  # the helper is gone, and its commands with it

    # -- while this process is suspended ----------------------------------------------------------------------------

    def beat(self, by: float) -> None:
        """Promise the next heartbeat by that instant; without it the helper suspends all commands."""
        self._send_message({"do": "beat", "by": by})

    def suspend(self) -> None:
        """Suspend all commands until ``resume``."""
        with self._lock:
            self._suspended = True
            self._stopped_since = time.monotonic()
        self._send_message({"do": "suspend"})

    def resume(self, lost: Collection[str], by: float | None) -> None:
        """Resume the commands, but kill those whose marks are in *lost*. Has no effect after the instant *by*."""
        with self._lock:
            self._suspended = False
            self._stopped_since = None
            self._resumed_at = time.monotonic()
        self._send_message({"do": "resume", "lost": list(lost), "by": by})

    def stopped_since(self) -> float | None:
        """Return the time at which all commands were suspended, or None if they are not."""
        with self._lock:
            try:
                while self._socket is not None:
                    data = self._socket.recv(4096, socket.MSG_DONTWAIT)
                    self._helper_output += data
                    if not data:
                        self._disconnect()  # it died; the next command starts another one
            except OSError:
                pass  # nothing more to read
            *lines, self._helper_output = self._helper_output.split(b"\n")
            if lines:
                self._stopped_since = float(lines[-1].split()[1])
            return self._stopped_since

    def stopped_until(self) -> float:
        """Return the time at which all commands were last resumed; now, if they are suspended."""
        return self._resumed_at if self.stopped_since() is None else time.monotonic()

    def wait_for_helper(self, also: int, seconds: float | None) -> None:
        """Wait until the helper sends something or *also* is readable, for at most that many seconds."""
        with self._lock:
            readable = [also] if self._socket is None else [also, self._socket.fileno()]
        poll = select.poll()
        for descriptor in readable:
            poll.register(descriptor, select.POLLIN)
        poll.poll(None if seconds is None else seconds * 1000)

    def _send_message(self, message: Mapping[str, object]) -> None:
        """Send a message to the helper if it runs: without it there is no command either."""
        with self._lock:
            if self._socket is not None:
                try:
                    self._transmit_to(self._socket, message)
                except OSError:
                    pass  # it died; the next command starts another one

    # -- the helper process -----------------------------------------------------------------------------------------

    def close(self, *, wait: float = 0.0) -> None:
        """End the helper, which ends all commands; wait up to *wait* seconds for that."""
        with self._lock:
            self._closed = True
            self._disconnect()
        if wait and self._reaper is not None:
            self._reaper.join(wait)

    def _send(self, message: Mapping[str, object], descriptors: Sequence[int]) -> None:
        data = json.dumps(message).encode()
        with self._lock:
            try:
                self._transmit(data, descriptors)
            except OSError:
                # The helper died or was killed; its commands' pipes are at end of file.
                self._disconnect()
                try:
                    self._transmit(data, descriptors)
                except OSError as error:
                    raise Transient(f"the process that starts commands cannot be reached ({error})") from None

    def _transmit(self, data: bytes, descriptors: Sequence[int]) -> None:
        connection = self._connected()
        # The descriptors go with the first bytes; a message too large for the socket's buffer follows in pieces.
        socket.send_fds(connection, [LENGTH.pack(len(data))], list(descriptors))
        connection.sendall(data)

    def _connected(self) -> socket.socket:
        if self._closed:
            raise Transient("the run is over")
        if self._socket is None:
            mine, theirs = socket.socketpair()
            with theirs:
                # -I -S: imports nothing of the user's environment or site-packages, and so starts in 30 ms.
                self._process = subprocess.Popen(  # noqa: S603 - our own file
                    [sys.executable, "-I", "-S", str(_HELPER), str(theirs.fileno()), self._session, str(self._scratch)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env=self._environment,
                    cwd=self._cwd,
                )
            OWN_CHILDREN.add(self._process.pid)
            self._socket = mine
            self._helper_output = b""
            self._transmit_to(mine, {"do": "base", "env": self._environment})
            if self._suspended:
                self._transmit_to(mine, {"do": "suspend"})
                return mine
            self._stopped_since = None
            if self.within is not None:
                self._transmit_to(mine, {"do": "beat", "by": time.monotonic() + self.within})
        return self._socket

    @staticmethod
    def _transmit_to(connection: socket.socket, message: Mapping[str, object]) -> None:
        data = json.dumps(message).encode()
        connection.sendall(LENGTH.pack(len(data)) + data)

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            if not self._suspended:
                self._stopped_since = None  # the commands it had suspended ended with it
        if self._process is not None:
            self._reaper = threading.Thread(target=_reap, args=(self._process,), name="agentos-reaper", daemon=True)
            self._reaper.start()
            self._process = None


def _reap(helper: subprocess.Popen[bytes]) -> None:
    helper.wait()
    OWN_CHILDREN.discard(helper.pid)


def _readable(data: bytes | None) -> int:
    """Return a descriptor from which *data* can be read without a thread that writes it."""
    if data is None:
        return os.open(os.devnull, os.O_RDONLY)
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("agentos-stdin")
    else:
        import tempfile

        with tempfile.TemporaryFile(buffering=0) as file:
            descriptor = os.dup(file.fileno())
    with os.fdopen(os.dup(descriptor), "wb") as writer:
        writer.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
