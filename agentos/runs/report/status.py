"""The status of a run: running, finished, stopped and why, or crashed."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...util.private_folder import folder_of
from ..journal.host_name import HOST

_LONGEST_CARD: Final = 64 * 1024

STOPPED_BY: Final = "stopped by "  # prefix of the note that a stopped run writes to its journal


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a run as a ``word``, with the reason for a stop (``why``) or the owner (``pid``, ``host``).

    The words are "running", "finished", "stopped", "unfinished" (it ended by itself, with items left), "crashed", "not
    started" and, where its journal cannot be read, "unreadable".
    """

    word: str
    why: str | None = None
    pid: int | None = None
    host: str | None = None

    def __str__(self) -> str:
        match self.word:
            case "running" if self.pid is not None:
                return f"running as pid {self.pid}" + ("" if self.host in (None, HOST) else f" on {self.host}")
            case "stopped":
                return f"stopped by {self.why}"
            case "unfinished":
                return "ended with items left"
        return self.word

    def as_json(self) -> dict[str, Any]:
        """Return the status as a JSON object: its text and its parts."""
        return {"text": str(self), "word": self.word, "why": self.why, "pid": self.pid, "host": self.host}


def find_status(lock: Path, *, last_kind: str | None, note: str | None, left: int) -> RunStatus:
    """Return the status of a run from its newest entry's kind, its stop *note* and the number of items *left*."""
    if last_kind is None:
        return RunStatus("not started")
    if last_kind != "closed":
        owner = find_owner(lock)
        return owner if owner is not None else RunStatus("crashed")
    if note is not None and note.startswith(STOPPED_BY):
        return RunStatus("stopped", why=note.removeprefix(STOPPED_BY))
    return RunStatus("unfinished" if left else "finished")


def find_owner(lock: Path) -> RunStatus | None:
    """Return a running status with the current owner; None if no process owns the run."""
    try:
        with folder_of(lock) as folder:
            card = json.loads(folder.read(lock.name, _LONGEST_CARD))
        pid, host = int(card["pid"]), str(card["host"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, LookupError):
        return RunStatus("running") if _is_locked(lock) else None  # its owner may be writing the card now
    # A process that is gone holds no lock, and then the lock is not tested: testing it takes it for a moment, and could
    # turn away a run that is just starting.
    if host == HOST and not _is_alive(pid):
        return None
    return RunStatus("running", pid=pid, host=host) if _is_locked(lock) else None


if sys.platform == "win32":

    def _is_alive(pid: int) -> bool:
        return True

    def _is_locked(lock: Path) -> bool:
        import msvcrt

        with lock.open("rb+") as file:
            file.seek(1 << 30)
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            except OSError:
                return True
        return False

else:
    import fcntl

    def _is_alive(pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            pass  # it belongs to another user
        return pid > 0

    def _is_locked(lock: Path) -> bool:
        try:
            with folder_of(lock) as folder:
                file = folder.open(lock.name, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False  # a file system without locks: no run can have begun there
        finally:
            os.close(file)
        return False
