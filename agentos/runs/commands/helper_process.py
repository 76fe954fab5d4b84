"""Helper process that starts, stops and reaps commands; a script that needs only the standard library.

It has one thread, because a process that forks must not share locks and signal handlers with other code. The driver
sends it messages and file descriptors over a socket. When that socket ends, the driver is gone: every command is asked
to end, and killed after two seconds.

A message is its length in four bytes and JSON. ``{"do": "spawn", "argv": [...], "env": {...}}`` comes with four
descriptors: the command's standard input, output and error, and one for its status lines: ``S pid`` when it starts, or
``E errno``; ``K`` when it is asked to end; ``X status`` when it ends. An optional fifth belongs to a locked file, which
the command inherits; it is unlocked when the command ends, even if other processes have inherited it.
``{"do": "kill", "pid": n, "after": s, "mark": "..."}`` asks a command's process group to end, and kills what is left
after that many seconds, in the group or not: each process that a command starts inherits the mark of its attempt,
unless it clears its environment.

A suspended driver cannot renew its leases, so its commands must be suspended too. ``{"do": "beat", "by": t}`` promises
the next such message by the instant t of the monotonic clock, which both processes share. If it does not come, or on
``{"do": "suspend"}``, every command is stopped (SIGSTOP), the driver gets ``P`` and the time of it, and requests are
deferred. ``{"do": "resume", "lost": [marks], "by": t}`` resumes the commands, except those that have lost their key,
which are killed. After the instant t it has no effect: the driver was suspended again, and gets another ``P``.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator

TYPE_CHECKING = False  # importing typing takes longer than all other imports
if TYPE_CHECKING:
    from typing import Any

LENGTH = struct.Struct("!I")
_DESCRIPTORS = 4  # and optionally the lock's
_NOT_BELOW = 100  # lowest number of the lock's descriptor in a command: scripts use small ones
_MOST_SCANS = 20  # scans for processes that are not stopped yet: new ones may start meanwhile
_LAST_WORDS = 2.0  # seconds for commands to end after the driver is gone
_TO_FINISH = 0.5  # seconds for the rest of a finished command's group, which may still pass on output
_LEFTOVERS = 1.0  # seconds from asking that rest to end until it is killed
_RESET = {signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP, signal.SIGCHLD, signal.SIGQUIT, signal.SIGXFSZ}
MARK = "AGENTOS_MARK"


class HelperProcess:
    """Running commands by process id, and the deadlines at which their process groups are killed."""

    def __init__(self, driver: socket.socket, session: str, scratch: str) -> None:
        self._driver = driver
        self._session = session  # prefix of the mark of each command
        self._scratch = scratch  # folder of the commands' outcome files
        self._base: dict[str, str] = {}
        self._status_fds: dict[int, int] = {}  # running command: descriptor for its status lines
        self._terms: dict[int, float] = {}  # process group of a finished command: when the rest is asked to end
        self._kills: dict[int, float] = {}  # process group: when the rest is killed
        self._sweeps: dict[str, float] = {}  # mark: when all processes that carry it are killed
        self._marks: dict[int, str] = {}  # mark of each running command
        self._locks: dict[int, int] = {}  # running command: descriptor of the locked file it inherited
        self._beat_by: float | None = None  # deadline of the driver's next heartbeat; None if there is none
        self._stopped_at: float | None = None  # since when all commands are suspended
        self._deferred: list[tuple[dict[str, Any], list[int]]] = []  # messages received while suspended
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)

    def run(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._driver, select.POLLIN)
        poll.register(self._wake_reader, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll(self._compute_timeout())]
            if self._wake_reader in ready:
                _drain(self._wake_reader)
                self._reap()
            if self._driver.fileno() not in ready:
                self._check_silence()
            elif not self._handle_message():
                break
            self._kill_due()
        self._end()

    def _compute_timeout(self) -> float | None:
        if self._stopped_at is not None:
            return None  # only the driver resumes the commands and their deadlines
        due = [*self._terms.values(), *self._kills.values(), *self._sweeps.values()]
        if self._beat_by is not None:
            due.append(self._beat_by)
        return max(0.0, min(due) - time.monotonic()) * 1000 + 1 if due else None

    # -- messages of the driver -------------------------------------------------------------------------------

    def _handle_message(self) -> bool:
        """Execute the next message. Return False if the driver is gone."""
        try:
            head, descriptors, _, _ = socket.recv_fds(self._driver, LENGTH.size, _DESCRIPTORS + 1)
            for each in descriptors:
                os.set_inheritable(each, False)  # or the next command would keep this one's pipes open
            while head and len(head) < LENGTH.size:
                head += self._driver.recv(LENGTH.size - len(head))
            if not head:
                return False
            message = json.loads(self._read(LENGTH.unpack(head)[0]))
        except (OSError, EOFError):
            return False
        self._execute(message, descriptors)
        return True

    def _execute(self, message: dict[str, Any], descriptors: list[int]) -> None:
        action = message["do"]
        if action == "base":
            self._base = message["env"]
        elif action == "beat":
            self._beat_by = message["by"]
        elif action == "suspend":
            self._suspend()
        elif action == "resume":
            self._resume(set(message["lost"]), message["by"])
        elif self._stopped_at is not None:
            self._deferred.append((message, descriptors))
        elif action == "kill":
            if message["pid"] in self._status_fds:
                self._stop(message["pid"], message["after"], message["mark"])
        elif len(descriptors) >= _DESCRIPTORS:
            self._spawn(message, descriptors)
        else:  # out of descriptors; the driver sees the end of its pipes
            _close(descriptors)

    def _read(self, count: int) -> bytearray:
        data = bytearray()
        while len(data) < count:
            more = self._driver.recv(min(count - len(data), 1 << 20))
            if not more:
                raise EOFError
            data += more
        return data

    def _spawn(self, message: dict[str, Any], descriptors: list[int]) -> None:
        stdin, stdout, stderr, status_fd, *locks = descriptors
        lock = _move_descriptor_up(locks[0]) if locks else None
        argv: list[str] = message["argv"]
        try:
            if lock is not None:
                os.set_inheritable(lock, True)
            pid = os.posix_spawnp(
                argv[0],
                argv,
                {**self._base, **message["env"]},
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((stdin, stdout, stderr))],
                setsid=True,
                setsigmask=(),
                setsigdef=_RESET,
            )
        except (OSError, ValueError) as error:
            _send(status_fd, f"E {getattr(error, 'errno', None) or errno.EINVAL}\n")
            os.close(status_fd)
            _unlock(lock)
        else:
            self._status_fds[pid] = status_fd
            if lock is not None:
                os.set_inheritable(lock, False)  # not inherited by later commands
                self._locks[pid] = lock
            self._marks[pid] = message["env"].get(MARK, "")
            _send(status_fd, f"S {pid}\n")
        _close((stdin, stdout, stderr))

    def _stop(self, pid: int, after: float, mark: str) -> None:
        _send(self._status_fds[pid], "K\n")
        signal_group(pid, signal.SIGTERM)
        signal_group(pid, signal.SIGCONT)  # a stopped process would not receive SIGTERM
        at = time.monotonic() + after
        self._kills[pid] = min(at, self._kills.get(pid, at))
        self._sweeps[mark] = min(at, self._sweeps.get(mark, at))

    # -- while the driver is suspended ------------------------------------------------------------------------------

    def _suspend(self) -> None:
        """Suspend every command and all processes with our mark: one that left its group may use a key, too."""
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()
            for pid in self._groups():
                signal_group(pid, signal.SIGSTOP)
            for _ in range(_MOST_SCANS):
                if not _signal_marked(self._session, signal.SIGSTOP, but_in=b"TtZX"):
                    break
        self._report_stopped()

    def _check_silence(self) -> None:
        """Suspend all if the heartbeat is overdue. Called when no message of the driver is left to read."""
        if self._beat_by is not None and self._stopped_at is None and time.monotonic() >= self._beat_by:
            self._suspend()

    def _report_stopped(self) -> None:
        try:
            self._driver.send(f"P {self._stopped_at!r}\n".encode(), socket.MSG_DONTWAIT)
        except OSError:
            pass  # it is gone, or has not read thousands of these

    def _resume(self, lost: set[str], by: float | None) -> None:
        if self._stopped_at is None:
            return
        now = time.monotonic()
        if by is not None and now > by:
            self._report_stopped()
            return
        for pid in [pid for pid in self._status_fds if self._marks[pid] in lost]:
            _send(self._status_fds[pid], "K\n")
            signal_group(pid, signal.SIGKILL)
            self._kills.pop(pid, None)
        for mark in lost:
            kill_marked(mark, whole=True)
            self._sweeps.pop(mark, None)
        for pid in self._groups():
            signal_group(pid, signal.SIGCONT)
        _signal_marked(self._session, signal.SIGCONT, but_in=b"ZX")
        for times in (self._terms, self._kills, self._sweeps):
            for each in times:
                times[each] += now - self._stopped_at  # type: ignore[index]
        self._stopped_at = None
        self._beat_by = by
        deferred, self._deferred = self._deferred, []
        for message, descriptors in deferred:
            if message["do"] == "spawn" and message["env"].get(MARK) in lost:
                _close(descriptors)  # the driver sees the end of its pipes
            else:
                self._execute(message, descriptors)

    def _groups(self) -> set[int]:
        return {*self._status_fds, *self._kills, *self._terms}

    # -- end of commands --------------------------------------------------------------------------------------

    def _reap(self) -> None:
        while True:
            pid, status = _reap_child()
            if not pid:
                return
            status_fd = self._status_fds.pop(pid, None)
            if status_fd is None:
                continue  # an orphan of a command
            del self._marks[pid]
            _unlock(self._locks.pop(pid, None))
            if not signal_group(pid, 0):
                self._kills.pop(pid, None)
            elif pid not in self._kills:
                self._terms[pid] = time.monotonic() + _TO_FINISH
            _send(status_fd, f"X {status}\n")
            os.close(status_fd)

    def _kill_due(self) -> None:
        if self._stopped_at is not None:
            return
        now = time.monotonic()
        for pid in [pid for pid, at in self._terms.items() if at <= now]:
            del self._terms[pid]
            if signal_group(pid, signal.SIGTERM):
                self._kills[pid] = now + _LEFTOVERS
        for pid in [pid for pid, at in self._kills.items() if at <= now]:
            del self._kills[pid]
            signal_group(pid, signal.SIGKILL)
        for mark in [mark for mark, at in self._sweeps.items() if at <= now]:
            del self._sweeps[mark]
            kill_marked(mark, whole=True)

    def _end(self) -> None:
        """End all commands after the driver is gone.

        A suspended command may have lost its key, so it is killed without being resumed.
        """
        groups = self._groups()
        until = time.monotonic() + _LAST_WORDS
        if self._stopped_at is None:
            for pid in self._status_fds:
                signal_group(pid, signal.SIGTERM)
                signal_group(pid, signal.SIGCONT)
        else:
            until = 0.0
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        while self._status_fds and (left := until - time.monotonic()) > 0:
            poll.poll(left * 1000 + 1)
            _drain(self._wake_reader)
            self._reap()
        for pid in groups:
            signal_group(pid, signal.SIGKILL)
        kill_marked(self._session)
        _kill_children()
        self._remove_outcome_files()

    def _remove_outcome_files(self) -> None:
        """Remove the outcome files, which are not redacted."""
        try:
            for name in os.listdir(self._scratch):
                os.unlink(os.path.join(self._scratch, name))
            os.rmdir(self._scratch)
        except OSError:
            pass  # the driver has done it, or the next one will


def _reap_child() -> tuple[int, int]:
    """Reap an ended child; return pid 0 if there is none."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0, 0


def signal_group(pid: int, number: int) -> bool:
    """Send a signal to a process group. Return False if there is no such group."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # a member runs as another user, or (on macOS) is a zombie
    return True


def _send(descriptor: int, text: str) -> None:
    try:
        os.write(descriptor, text.encode())
    except OSError:
        pass  # the reader is gone


def _close(descriptors: Iterable[int]) -> None:
    for each in descriptors:
        os.close(each)


def _move_descriptor_up(descriptor: int) -> int:
    """Move the descriptor to a number that scripts do not use, if possible, and return it."""
    try:
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _NOT_BELOW)
    except OSError:
        return descriptor
    os.close(descriptor)
    return moved


def _unlock(descriptor: int | None) -> None:
    """Unlock a file for all processes that have it open, and close it."""
    if descriptor is not None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass


# -- processes that left their group, and those of an earlier driver ------------------------------------------------


def find_by_variable(name: str, value: str, *, whole: bool = False) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield processes whose variable *name* begins with *value* (or is the *whole*), with their AGENTOS_ variables.

    Finds none on systems without /proc.
    """
    wanted = os.fsencode(f"{name}={value}")
    try:
        entries = os.listdir("/proc")
    except OSError:
        return
    for entry in entries:
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            continue  # it has ended, or belongs to another user
        if wanted in variables if whole else any(each.startswith(wanted) for each in variables):
            ours = (os.fsdecode(each).partition("=") for each in variables if each.startswith(b"AGENTOS_"))
            yield int(entry), {variable: text for variable, _, text in ours}


def kill_marked(mark: str, *, whole: bool = False) -> None:
    """Kill all processes with the mark; twice, for those that are just being started."""
    for _ in range(2):
        for pid, _variables in find_by_variable(MARK, mark, whole=whole):
            _kill(pid)


def _signal_marked(mark: str, number: int, *, but_in: bytes) -> bool:
    """Signal processes whose mark begins so, except in these states. Return False if there are none."""
    found = False
    for pid, _variables in find_by_variable(MARK, mark):
        if _read_state(pid) not in but_in:
            found = True
            _kill(pid, number)
    return found


def _read_state(pid: int) -> bytes:
    """Return the state of a process: ``R``, ``S``, ``T``, ``Z`` ..., or ``X`` if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return b"X"


def _kill_children() -> None:
    """Kill children that left their group and cleared their environment.

    This process is the subreaper, so it also gets the orphans of what is killed here; a helper of a run nested in an
    item may be among them.
    """
    until = time.monotonic() + _LAST_WORDS
    while (children := _list_children()) and time.monotonic() < until:
        for pid in children:
            _kill(pid)
        while _reap_child()[0]:
            pass
        time.sleep(0.005)


def _list_children() -> list[int]:
    found = []
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if int(parent) == os.getpid() and state != b"Z":
            found.append(int(entry))
    return found


def _kill(pid: int, number: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def main() -> None:
    """Serve the driver on the socket whose descriptor is the first argument, until the driver is gone.

    The other arguments are the session's mark and the folder of the outcome files.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends with its driver, not before
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if sys.platform == "linux":
        import ctypes

        library = ctypes.CDLL(None)
        # Become subreaper: orphans of a command are reaped here, not by init.
        library.prctl(36, 1, 0, 0, 0)
        # Keys pass through this process: no other may read its memory. Commands are ordinary processes again.
        library.prctl(4, 0, 0, 0, 0)
    with socket.socket(fileno=int(sys.argv[1])) as driver:
        driver.set_inheritable(False)
        HelperProcess(driver, sys.argv[2], sys.argv[3]).run()


if __name__ == "__main__":
    main()
