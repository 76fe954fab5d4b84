"""Lock files that show that a command still uses a lease after the process that started it is gone.

They are in the folder ``<store>.locks``. A process that starts commands keeps a file ``process-...`` locked there as
long as it lives. Each lease that a command uses has a file named by its token; its lock belongs to an open file that
the command and its children inherit. So the system releases the lock with the last of them, whatever happens to the
process or the helper that started them. The file contains the name of the process's file and the mark in the
environment of its commands.

A process that would free the leases of an expired session checks here first, in its transaction. It never waits: if a
command lives and its process does not, the leases stay, the command is ended, and the check is repeated a little later.
If the process is alive, its locks are ignored: the session has expired because it was not renewed.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_MARK: Final = "AGENTOS_MARK"
_CONTENT: Final = re.compile(rb"(process-[0-9a-f]{16}) ([0-9a-f]{8,64}\.)[0-9]{1,20}")
_TIME_TO_END: Final = 2.0  # seconds from SIGTERM to SIGKILL
_OPEN: Final = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)


class LeaseLocks:
    """One process's use of the lock files of a store. Thread-safe."""

    def __init__(self, store: Path) -> None:
        self._folder = store.with_name(store.name + ".locks")
        self._lock = threading.Lock()
        self._process: tuple[str, int] | None = None  # the file that shows that this process is alive: name, descriptor
        self._held: set[int] = set()  # tokens
        self._ending: set[str] = set()  # marks whose processes are being ended
        _all.add(self)

    # -- our own leases ---------------------------------------------------------------------------------------

    def hold(self, token: int, mark: str) -> int:
        """Return a locked descriptor for a command with that *mark* to inherit. Raises OSError."""
        with self._lock:
            if self._process is None:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                name = f"process-{secrets.token_hex(8)}"
                self._process = name, self._locked_file(self._folder / name, b"")
            descriptor = self._locked_file(self._file(token), f"{self._process[0]} {mark}".encode())
            self._held.add(token)
            return descriptor

    def move(self, token: int, to: int) -> None:
        """Rename the lock of a command whose lease was lost and replaced by one with another token."""
        with self._lock:
            if token in self._held:
                self._held.discard(token)
                self._held.add(to)
                try:
                    self._file(token).rename(self._file(to))
                except OSError:
                    pass  # then it has no lock file

    def drop(self, token: int) -> None:
        """Remove the lock file after the command has ended."""
        with self._lock:
            if token in self._held:
                self._held.discard(token)
                _remove(self._file(token))

    def close(self) -> None:
        """Remove this process's file, when none of its commands runs any more."""
        with self._lock:
            if self._process is not None:
                name, descriptor = self._process
                self._process = None
                _remove(self._folder / name)
                os.close(descriptor)

    def _file(self, token: int) -> Path:
        return self._folder / str(token)

    def _locked_file(self, path: Path, content: bytes) -> int:
        """Create a file that is locked from the moment it has that name; return its descriptor."""
        import fcntl

        new = path.with_name(f".{secrets.token_hex(8)}")
        descriptor = os.open(new, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, content)
            new.rename(path)
        except BaseException:
            os.close(descriptor)
            _remove(new)
            raise
        return descriptor

    def after_fork_in_child(self) -> None:
        """Close the inherited file that shows that the parent is alive."""
        self._lock = threading.Lock()
        if self._process is not None:
            os.close(self._process[1])
            self._process = None

    # -- leases of other processes ----------------------------------------------------------------------------

    def outlived(self, tokens: Iterable[int]) -> bool:
        """Return whether a command uses one of these leases though its process is gone. If so, end the command."""
        found = [self._find_survivor_mark(token) for token in tokens]
        self._end_commands({mark for mark in found if mark})
        return any(mark is not None for mark in found)

    def forget(self, tokens: Iterable[int]) -> None:
        """Remove the lock files of freed leases, unless a command has them locked."""
        for token in tokens:
            if not _is_locked(self._file(token)):
                _remove(self._file(token))

    def _find_survivor_mark(self, token: int) -> str | None:
        """Return the mark prefix of a command that uses the lease and has outlived its process; "" if unknown.

        None: there is no such command.
        """
        path = self._file(token)
        if not _is_locked(path):
            return None
        content = _CONTENT.fullmatch(_read(path))
        if content is None:
            return ""
        return None if _is_locked(self._folder / content[1].decode()) else content[2].decode()

    def sweep(self) -> None:
        """Remove the files that are not locked. Only while no other process has the store open."""
        for path in self._files():
            if not _is_locked(path):
                _remove(path)

    def _files(self) -> list[Path]:
        try:
            return [self._folder / name for name in os.listdir(self._folder)]
        except OSError:
            return []  # no command was started yet

    def _end_commands(self, marks: set[str]) -> None:
        new = marks - self._ending
        if new:
            self._ending |= new
            threading.Thread(target=_end_marked, args=(new,), name="agentos-survivors", daemon=True).start()


_all: weakref.WeakSet[LeaseLocks] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for locks in list(_all):
        locks.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _is_locked(path: Path) -> bool:
    """Return whether the file exists and is locked."""
    try:
        import fcntl

        descriptor = os.open(path, _OPEN)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass  # the next sweep tries again


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _end_marked(marks: Iterable[str]) -> None:
    """Send SIGTERM to the processes with one of these marks, then SIGKILL. Stopped ones are not continued."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in list(_find_marked(marks)):
            try:
                os.kill(pid, number)
            except OSError:
                pass  # it has ended
        until = time.monotonic() + _TIME_TO_END
        while time.monotonic() < until and any(_find_marked(marks)):
            time.sleep(0.02)


def _find_marked(marks: Iterable[str]) -> Iterator[int]:
    """Return the processes whose mark begins with one of these. Only on systems with /proc."""
    wanted = tuple(os.fsencode(f"{_MARK}={mark}") for mark in marks)
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            continue  # it has ended, or belongs to another user
        if any(each.startswith(wanted) for each in variables):
            yield int(entry)
