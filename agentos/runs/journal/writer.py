"""The thread that commits entries in batches and then passes on their receipts.

A caller that puts an entry never waits, so the queue is a bare deque and the wake-up a bare lock. The writer marks
itself asleep and then checks the queue again; a caller appends and then checks whether the writer is asleep. In every
order of these steps one of them sees the other, so no entry stays behind.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from threading import Event, Lock, Thread, current_thread
from typing import Any, Final, Protocol

from agentos.errors import JournalUnavailable
from agentos.util.sqlite.errors import TransientSqliteError

from .commit_log import CommitLog
from .entry_text import encode_row

log = logging.getLogger("agentos")

# A commit ends at either limit, so that a long queue needs no second copy in memory and its first receipts come soon.
MAX_ROWS: Final = 1000
MAX_TEXT: Final = 4 * 1024 * 1024

# Seconds between attempts while the journal cannot be written.
FIRST_PAUSE: Final = 0.05
MAX_PAUSE: Final = 1.0


class PendingStart(Protocol):
    """An attempt that has begun. Its entry is skipped if it has ended before the entry is written."""

    @property
    def ended(self) -> bool: ...

    def start_row(self) -> str: ...


class _FlushMark:
    """A position in the queue that a caller of `flush` waits for."""

    def __init__(self) -> None:
        self.reached = Event()
        self.committed = False


class _Abandoned(Exception):
    """Raised after `abandon`: uncommitted entries are given up."""


class JournalWriter:
    """Takes entries from any thread and commits them in order.

    ``on_committed`` gets the receipts of each commit, in order, once it is durable. ``on_trouble`` gets a text once
    when the journal cannot be written for now, and None when it can again. ``on_lost`` gets the error when the journal
    is lost for good; later entries are dropped. All three run on the writer's thread.
    """

    def __init__(
        self,
        store: CommitLog,
        *,
        on_committed: Callable[[list[Any]], None],
        on_trouble: Callable[[str | None], None],
        on_lost: Callable[[JournalUnavailable], None],
        nap: float = 0.002,
    ) -> None:
        self._store = store
        self._on_committed = on_committed
        self._on_trouble = on_trouble
        self._on_lost = on_lost
        self._nap = nap
        self._queue: deque[tuple[str | None, Any]] = deque()
        self._uncommitted: list[Any] = []  # receipts of the commit in progress
        self._wakeup = Lock()
        self._wakeup.acquire()
        self._asleep = False
        self._urgent = False
        self._closing = False
        self._abandoned = False
        self._over = False
        self._closed = False
        self._hurry = Event()
        self._thread = Thread(target=self._run, name="agentos-journal", daemon=True)
        self._thread.start()

    def put(self, row: str, receipt: Any = None, *, urgent: bool = False) -> None:
        """Commit *row* soon, at once if *urgent*; then pass *receipt* to ``on_committed``."""
        if self._over:
            self._release_waiter(receipt)
            return
        self._queue.append((row, receipt))
        if urgent:
            self._urgent = True
            self._signal_wakeup()
            self._drop_if_over()
        elif self._asleep:
            self._wake_sleeper()

    def put_start(self, start: PendingStart) -> None:
        """Commit the start soon, unless it has ended by then."""
        if self._over:
            return
        self._queue.append((None, start))
        if self._asleep:
            self._wake_sleeper()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all earlier entries are committed and their receipts passed on; False if they are not."""
        if current_thread() is self._thread:
            raise RuntimeError("flush() was called on the writer's own thread, where it would wait for itself")
        mark = _FlushMark()
        self._queue.append((None, mark))
        self._urgent = True
        self._signal_wakeup()
        self._drop_if_over()
        mark.reached.wait(timeout)
        return mark.committed

    def close(self, timeout: float | None = None) -> bool:
        """Commit everything, record the clean end, close the files and release the journal.

        Return False if that takes longer than *timeout* seconds: the writer keeps trying; call `close` again to wait
        on, or `abandon` to give up. Also False if the journal was lost or abandoned.
        """
        self._closing = True
        self._interrupt_wait()
        if current_thread() is not self._thread:
            self._thread.join(timeout)
        return self._closed and not self._thread.is_alive()  # files and lock are closed after the last entry

    def abandon(self) -> None:
        """Give up uncommitted entries and close. Returns at once; `close` waits for the end."""
        self._abandoned = True
        self._interrupt_wait()

    # -- the writer's own thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._abandoned and self._wait_for_work():
                self._commit_batch()
            if not self._abandoned:
                self._append([encode_row(time.time(), "closed")])
                self._closed = True
        except _Abandoned:
            pass
        except JournalUnavailable as error:
            self._lose(error)
        except Exception as error:
            log.exception("the journal's writer failed")
            self._lose(JournalUnavailable(path=str(self._store.files.db), detail=f"its writer failed: {error!r}"))
        finally:
            self._over = True
            self._drop_queue()
            self._store.close()

    def _wait_for_work(self) -> bool:
        """Wait until an entry is queued, and a little longer to gather more; False when it is time to close."""
        while not self._queue:
            if self._closing or self._abandoned:
                return False
            self._asleep = True
            if not self._queue and not self._closing and not self._abandoned:
                self._wakeup.acquire()
            self._asleep = False
        if not self._urgent and not self._closing and len(self._queue) < MAX_ROWS:
            self._wakeup.acquire(timeout=self._nap)
        return True

    def _commit_batch(self) -> None:
        """Commit the front of the queue, as much as fits in one commit."""
        rows: list[str] = []
        receipts: list[Any] = []
        marks: list[_FlushMark] = []
        length = 0
        queue = self._queue
        self._urgent = False
        while queue and len(rows) < MAX_ROWS and length < MAX_TEXT:
            row, receipt = queue.popleft()
            if row is None:
                if isinstance(receipt, _FlushMark):
                    marks.append(receipt)
                    continue
                row, receipt = self._start_row(receipt), None
                if row is None:
                    continue
            rows.append(row)
            length += len(row)
            if receipt is not None:
                receipts.append(receipt)
        if queue:
            self._urgent = True  # the rest has waited long enough
        try:
            if rows:
                self._uncommitted = receipts
                self._append(rows)
                self._uncommitted = []
            if receipts:
                self._call_back(self._on_committed, receipts)
            for mark in marks:
                mark.committed = True
        finally:
            for mark in marks:
                mark.reached.set()

    def _start_row(self, start: PendingStart) -> str | None:
        try:
            return None if start.ended else start.start_row()
        except Exception:
            log.exception("the start of an attempt could not be recorded")
            return None

    def _append(self, rows: list[str]) -> None:
        """Commit *rows*, however long it takes. Raises JournalUnavailable or _Abandoned."""
        pause = FIRST_PAUSE
        troubled = False
        while True:
            try:
                self._store.append(rows)
                break
            except TransientSqliteError as trouble:
                if not troubled:
                    troubled = True
                    log.warning("%s", trouble)
                    self._call_back(self._on_trouble, str(trouble))
            self._hurry.wait(pause)
            self._hurry.clear()
            if self._abandoned:
                raise _Abandoned
            pause = min(2 * pause, MAX_PAUSE)
        if troubled:
            log.warning("the journal %s can be written again", self._store.files.db)
            self._call_back(self._on_trouble, None)

    def _lose(self, error: JournalUnavailable) -> None:
        self._over = True
        self._call_back(self._on_lost, error)
        self._drop_queue()

    def _drop_if_over(self) -> None:
        """Drop the queue if the writer ended before it saw what the caller has just queued."""
        if self._over:
            self._drop_queue()

    def _drop_queue(self) -> None:
        in_hand, self._uncommitted = self._uncommitted, []
        for receipt in in_hand:
            self._release_waiter(receipt)
        while self._queue:
            try:
                _, receipt = self._queue.popleft()
            except IndexError:  # another thread took it
                return
            self._release_waiter(receipt)

    def _release_waiter(self, receipt: Any) -> None:
        """Release the waiter of an entry that will not be written."""
        if isinstance(receipt, _FlushMark):
            receipt.reached.set()
        elif callable(receipt):
            self._call_back(lambda _: receipt(), None)

    def _call_back(self, callback: Callable[[Any], None], fact: Any) -> None:
        # A failing callback must not stop the journal.
        try:
            callback(fact)
        except BaseException:
            log.exception("a callback of the journal failed")

    def _wake_sleeper(self) -> None:
        # Cleared by the caller, not by the writer when it wakes: until then every other caller would also signal, and
        # these signals would cut the nap short.
        self._asleep = False
        self._signal_wakeup()

    def _interrupt_wait(self) -> None:
        self._hurry.set()
        self._signal_wakeup()

    def _signal_wakeup(self) -> None:
        try:
            self._wakeup.release()
        except RuntimeError:  # already signalled
            pass
