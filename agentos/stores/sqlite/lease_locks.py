"""Lock files of leases under which commands run: they show that a command still lives when its process is gone.

They are beside the store, in ``<store>.locks``. A process that starts commands has a file ``process-...`` there, which
it keeps locked as long as it lives; and for each lease that a command uses one that is named after the lease's token.
That one is locked by an open file which the command inherits, and all that it starts: so the system ends the lock with
the last of them, whatever happens to the process, or to the helper that started them. It says which process that is,
and the mark in the environment of its commands.

A process that would free the leases of a session looks here first, in its transaction. It never waits: if a command
lives, the leases stay where they are, the command is ended, and somebody looks again a little later. If the process
that started it is alive, the lock says nothing: such a session has lost its leases by time, because it was silent.
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
_SAID: Final = re.compile(rb"(process-[0-9a-f]{16}) ([0-9a-f]{8,64}\.)[0-9]{1,20}")
_TIME_TO_END: Final = 2.0  # for what is asked to end, before it is killed
_OPEN: Final = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)


class LeaseLocks:
    """The lock files beside one store, as one process uses them. Any thread may call it."""

    def __init__(self, store: Path) -> None:
        self._folder = store.with_name(store.name + ".locks")
        self._lock = threading.Lock()
        self._process: tuple[str, int] | None = None  # the file by which we show that we are alive, and its descriptor
        self._held: set[int] = set()  # tokens
        self._ending: set[str] = set()  # marks whose processes were asked to end
        _all.add(self)

    # -- our own leases ---------------------------------------------------------------------------------------

    def hold(self, token: int, mark: str) -> int:
        """A descriptor for a command with that *mark* to inherit: what has it open keeps the lease locked.

        Raises OSError.
        """
        with self._lock:
            if self._process is None:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                name = f"process-{secrets.token_hex(8)}"
                self._process = name, self._locked_file(self._folder / name, b"")
            descriptor = self._locked_file(self._file(token), f"{self._process[0]} {mark}".encode())
            self._held.add(token)
            return descriptor

    def move(self, token: int, to: int) -> None:
        """The lease was lost, and taken again with another token: its command goes on."""
        with self._lock:
            if token in self._held:
                self._held.discard(token)
                self._held.add(to)
                try:
                    self._file(token).rename(self._file(to))
                except OSError:
                    pass  # then it has none

    def drop(self, token: int) -> None:
        """The command has ended."""
        with self._lock:
            if token in self._held:
                self._held.discard(token)
                _remove(self._file(token))

    def close(self) -> None:
        """Nothing of ours runs any more."""
        with self._lock:
            if self._process is not None:
                name, descriptor = self._process
                self._process = None
                _remove(self._folder / name)
                os.close(descriptor)

    def _file(self, token: int) -> Path:
        return self._folder / str(token)

    def _locked_file(self, path: Path, content: bytes) -> int:
        """A new file, which is locked from the moment it has that name."""
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
        """Let go of the file by which our parent shows that it is alive."""
        self._lock = threading.Lock()
        if self._process is not None:
            os.close(self._process[1])
            self._process = None

    # -- leases of others -------------------------------------------------------------------------------------

    def outlived(self, tokens: Iterable[int]) -> bool:
        """Whether commands live that use one of these leases, and their process is gone. If so, they are ended."""
        found = [self._mark_of_survivor(token) for token in tokens]
        self._have_ended({mark for mark in found if mark})
        return any(mark is not None for mark in found)

    def forget(self, tokens: Iterable[int]) -> None:
        """These leases are free: remove their files, unless a command has them locked."""
        for token in tokens:
            if not _is_locked(self._file(token)):
                _remove(self._file(token))

    def _mark_of_survivor(self, token: int) -> str | None:
        """What the marks of a command begin with that uses the lease without its process; empty if that is not known.

        None: there is no such command.
        """
        path = self._file(token)
        if not _is_locked(path):
            return None
        said = _SAID.fullmatch(_read(path))
        if said is None:
            return ""
        return None if _is_locked(self._folder / said[1].decode()) else said[2].decode()

    def sweep(self) -> None:
        """Remove what nobody has locked. To be called only when nobody else has the store open."""
        for path in self._files():
            if not _is_locked(path):
                _remove(path)

    def _files(self) -> list[Path]:
        try:
            return [self._folder / name for name in os.listdir(self._folder)]
        except OSError:
            return []  # no command was ever started

    def _have_ended(self, marks: set[str]) -> None:
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
    """Whether anybody has that file locked. False if there is none."""
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
        pass  # whoever has the store for itself next tries again


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _end_marked(marks: Iterable[str]) -> None:
    """Ask what bears one of these marks to end, and kill what has not. What is stopped is not continued for that."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in list(_marked(marks)):
            try:
                os.kill(pid, number)
            except OSError:
                pass  # it has ended
        until = time.monotonic() + _TIME_TO_END
        while time.monotonic() < until and any(_marked(marks)):
            time.sleep(0.02)


def _marked(marks: Iterable[str]) -> Iterator[int]:
    """The processes whose mark begins so. Only where /proc is."""
    wanted = tuple(os.fsencode(f"{_MARK}={mark}") for mark in marks)
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            continue  # it has ended, or is another user's
        if any(each.startswith(wanted) for each in variables):
            yield int(entry)
