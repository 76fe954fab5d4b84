"""An OS lock on a file beside the journal: one owner at a time. It ends with its process, however that ends."""

from __future__ import annotations

import json
import os
import sys
import time
import weakref
from pathlib import Path

from agentos.errors import JournalInUse

from ...util.private_folder import PrivateFolder, folder_of
from .host_name import HOST

if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        # Windows locks prevent reading too: lock a byte far behind the text, so that a refused run can read the text.
        os.lseek(file, 1 << 30, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        os.lseek(file, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class OwnerLock:
    """The exclusive right to use a journal, from construction to `release`. Raises JournalInUse with the owner's name.

    Raises UnsafePath if the lock file is not an ordinary file of ours.
    """

    def __init__(self, path: Path, *, journal: Path, run: str, folder: PrivateFolder | None = None) -> None:
        with folder_of(path, folder) as opened:
            file = opened.open(path.name, os.O_RDWR | os.O_CREAT)
        try:
            try:
                _lock(file)
            except (BlockingIOError, PermissionError):  # the second is the Windows error
                raise JournalInUse(path=str(journal), owner=_owner(os.read(file, 4096))) from None
            card = {"pid": os.getpid(), "host": HOST, "started": time.time(), "run": run}
            os.ftruncate(file, 0)
            os.write(file, json.dumps(card).encode("ascii"))
        except BaseException:
            os.close(file)
            raise
        self._file: int | None = file
        _held.add(self)

    def release(self) -> None:
        """Release the lock. The file stays: removing it could remove the lock of the next owner."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


# A forked child of a worker inherits the lock and would keep it after this process is killed: it releases it at once.
_held: weakref.WeakSet[OwnerLock] = weakref.WeakSet()


def _release_all() -> None:
    for lock in _held:
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_all)


def _owner(content: bytes) -> str:
    try:
        card = json.loads(content)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(card["started"]))
        return f"run {card['run']!r} (pid {card['pid']} on {card['host']} since {since})"
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        return "another run"
