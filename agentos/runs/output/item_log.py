"""Log files of items: one per item, with the output of all its attempts."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

from ...util.private_folder import PrivateFolder, folder_of, make_folders
from ..context import build_file_name
from .attempt_ends import PendingEnds

log = logging.getLogger("agentos")

MAX_LOG_SIZE = 100_000_000
_MAX_OPEN = 64
_LONGEST_END = 4_096  # bytes


class LogFolder:
    """The folder of a run's logs, created when the first item prints something.

    A log that cannot be written ends there, with one warning for all logs; the items do not fail. The first *longest*
    bytes of each attempt are kept. *inside* is the open parent folder, if the caller has it.
    """

    def __init__(self, folder: Path, longest: int = MAX_LOG_SIZE, *, inside: PrivateFolder | None = None) -> None:
        self.folder = folder
        self._inside = inside
        self.max_size = longest
        self.may_stay_open = threading.Semaphore(_MAX_OPEN)  # other logs are opened for each write
        self.ends = PendingEnds()
        self._has_warned = False

    def open_attempt(self, item_id: str, heading: str) -> ItemLog:
        """Return the log of one attempt; *heading* precedes its output."""
        return ItemLog(self, item_id, heading)

    def find_path(self, item_id: str) -> Path:
        """Return the path of the item's log."""
        return self.folder / f"{build_file_name(item_id)}.log"

    def open(self, name: str, *, create: bool = True) -> int:
        """Open a log to append to it. Raise UnsafePath if it is not a regular file of this user."""
        if self._inside is None and create:
            make_folders(self.folder.parent)
        with folder_of(self.folder, self._inside) as parent:
            if create:
                parent.make(self.folder.name)
            with parent.enter(self.folder.name) as folder:
                return folder.open(name, os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0))

    def write_ends(self, item_id: str, *, create: bool) -> None:
        """Write the pending ends of an item to its log; without one, and if not *create*, forget them."""
        if item_id not in self.ends:
            return  # written with the heading of the next attempt
        path = self.find_path(item_id)
        try:
            with self.ends.lock:
                file = self.open(path.name, create=create)
                try:
                    _write(file, self.ends.take(item_id, _read_tail(file)))
                finally:
                    os.close(file)
        except FileNotFoundError:
            self.ends.drop(item_id)
        except OSError as error:
            self.ends.drop(item_id)
            self.warn_once(path, error)

    def warn_once(self, path: Path, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "[COORDINATOR] %s cannot be written (%s): output is missing there; the items go on",
                path,
                error.strerror or type(error).__name__,
            )


class ItemLog:
    """The log of one attempt. The file is created with the first bytes."""

    def __init__(self, folder: LogFolder, item_id: str, heading: str) -> None:
        self.path = folder.find_path(item_id)
        self._item_id = item_id
        self._folder = folder
        self._heading = heading
        self._file: int | None = None
        self._begun = False
        self._over = False  # closed, or not writable
        self._room = folder.max_size
        self._left_out = 0

    @property
    def has_begun(self) -> bool:
        """True if the file has output of this attempt."""
        return self._begun

    def write(self, data: bytes) -> None:
        """Append *data*, as far as the size limit allows."""
        kept = data[: self._room]
        self._room -= len(kept)
        self._left_out += len(data) - len(kept)
        if kept:
            self._append(kept)

    def close(self) -> None:
        """Close the file, with a note about bytes left out."""
        if self._left_out:
            self._append(f"\n... log ends here, {self._left_out} bytes more were not kept\n".encode())
        self._over = True
        file, self._file = self._file, None
        if file is not None:
            self._folder.may_stay_open.release()
            try:
                os.close(file)
            except OSError as error:  # some file systems report a full disk only now
                self._folder.warn_once(self.path, error)

    def _append(self, data: bytes) -> None:
        if self._over:
            return
        try:
            if self._file is not None:
                _write(self._file, data)
            else:
                self._open_and_write(data)
        except OSError as error:
            self._folder.warn_once(self.path, error)
            self._left_out = 0
            self.close()

    def _open_and_write(self, data: bytes) -> None:
        file = self._folder.open(self.path.name)
        stays_open = self._folder.may_stay_open.acquire(blocking=False)
        if stays_open:
            self._file = file
        try:
            if self._begun:
                _write(file, data)
            else:
                self._begun = True
                heading = self._heading.encode("utf-8", "replace") + b"\n"
                with self._folder.ends.lock:
                    ends = self._folder.ends.take(self._item_id, _read_tail(file))
                    _write(file, ends + heading + data)
        finally:
            if not stays_open:
                os.close(file)


def _write(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _read_tail(file: int) -> bytes:
    """Return the last bytes of the log: enough for the line with which an attempt ends."""
    size = os.fstat(file).st_size
    return os.pread(file, _LONGEST_END, max(0, size - _LONGEST_END))
