"""Lock files of leases under which commands run: they show that a command still lives when its process is gone.

Beside the store, in ``<store>.locks``, a process that starts commands has a file of its session's name, which it keeps
locked as long as it lives; and a file ``<session>.<token>`` for each lease that a command uses. That one is locked by
an open file which the command inherits, and all that it starts: so the system ends the lock with the last of them,
whatever happens to the process, or to the helper that started them. Its content is the mark in their environment.

A process that would free the lease of a session looks here first, in its transaction. It never waits: a lease whose
command lives stays where it is, the command is ended, and somebody looks again a little later. The lock of a session
whose process is alive says nothing: such a session has lost its leases by time, because it was silent.
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
_MARK_SHAPE: Final = re.compile(rb"([0-9a-f]{8,64}\.)[0-9]{1,20}")
_TIME_TO_END: Final = 2.0  # for what is asked to end, before it is killed
_OPEN: Final = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)


class LeaseLocks:
    """The lock files beside one store, as one process uses them. Any thread may call it."""

    def __init__(self, store: Path) -> None:
        self._folder = store.with_name(store.name + ".locks")
        self._lock = threading.Lock()
        self._session: tuple[str, int] | None = None  # the one whose file we keep locked, and its descriptor
        self._paths: dict[int, Path] = {}  # by token
        self._ending: set[str] = set()  # marks whose processes were asked to end
        _all.add(self)

    # -- our own leases ---------------------------------------------------------------------------------------

    def hold(self, session: str, token: int, mark: str) -> int:
        """A descriptor for a command with that *mark* to inherit: what has it open keeps the lease locked.

        Raises OSError.
        """
        with self._lock:
            self._begin(session)
            path = self._folder / f"{session}.{token}"
            descriptor = self._locked_file(path, mark.encode())
            self._paths[token] = path
            return descriptor

    def move(self, token: int, session: str, to: int) -> None:
        """The lease was lost, and taken again with another token: its command goes on."""
        with self._lock:
            path = self._paths.pop(token, None)
            if path is None:
                return
            try:
                self._begin(session)
                self._paths[to] = path.rename(self._folder / f"{session}.{to}")
            except OSError:
                self._paths[to] = path

    def drop(self, token: int) -> None:
        """The command has ended."""
        with self._lock:
            path = self._paths.pop(token, None)
            if path is not None:
                _remove(path)

    def close(self) -> None:
        """Our session has ended, and its leases with it."""
        with self._lock:
            self._end()

    def _begin(self, session: str) -> None:
        """Show that the process of *session* is alive."""
        if self._session is not None and self._session[0] == session:
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = self._locked_file(self._folder / session, b"")
        self._end()
        self._session = (session, descriptor)

    def _end(self) -> None:
        if self._session is not None:
            session, descriptor = self._session
            self._session = None
            _remove(self._folder / session)
            os.close(descriptor)

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
        if self._session is not None:
            os.close(self._session[1])
            self._session = None

    # -- leases of others -------------------------------------------------------------------------------------

    def outlived(self, session: str) -> bool:
        """Whether commands of *session* live though its process is gone. If so, they are ended, on a thread."""
        files = [path for path in self._files() if path.name.startswith(f"{session}.")]
        if not files or _is_locked(self._folder / session):
            return False
        locked = [path for path in files if _is_locked(path)]
        self._have_ended({mark for path in locked if (mark := _mark_in(path)) is not None})
        return bool(locked)

    def forget(self, session: str) -> None:
        """Its leases are free: remove its files, unless its process is alive."""
        files = [path for path in self._files() if path.name.startswith(f"{session}.")]
        if not _is_locked(self._folder / session):
            for path in (*files, self._folder / session):
                _remove(path)

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


def _mark_in(path: Path) -> str | None:
    """What the marks of that session's commands begin with; None if it cannot be read."""
    try:
        found = _MARK_SHAPE.fullmatch(path.read_bytes())
    except OSError:
        return None
    return None if found is None else found[1].decode()


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
