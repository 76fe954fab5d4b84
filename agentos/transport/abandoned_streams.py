"""Find response streams that the caller abandoned without closing them.

With most SDKs, leaving the loop over a stream neither closes nor frees it: the stream is part of a reference cycle that
only the garbage collector finds, which in a large program may take hours. Until then the stream holds its key, and the
next call may wait for that key. So while calls wait and streams are open, a timer forces a collection.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakSet

from ..util.fork_hooks import ForkSafeLocks, register_fork_hooks

# The event loop closes the generators of an abandoned stream one by one before the rest of it becomes garbage. And a
# collection is not worth it if a key becomes free at once.
_FIRST_DELAY = 0.01

# A collection may block the process for a fifth of a second. After each one that finds nothing the next is postponed
# longer, until all of them together take a hundredth of the time.
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 100.0  # in multiples of one collection's duration
_SHORTEST_PAUSE = 0.1

_IDLE_SECONDS = 5.0  # seconds the timer thread stays alive without work


class _Timer(Protocol):
    def cancel(self) -> object: ...


class OpenStreams(ForkSafeLocks):
    """The open streams of a transport, any of which may have been abandoned.

    *later* calls a function after a number of seconds and returns a timer that can be cancelled.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], _Timer]) -> None:
        self._later = later
        self._lock = threading.RLock()
        self._open: WeakSet[Any] = WeakSet()
        self._waiting = 0
        self._timer: _Timer | None = None
        self._pause = _FIRST_PAUSE
        self._not_before = 0.0
        register_fork_hooks(self)

    def in_forked_child(self) -> None:
        self._lock = threading.RLock()
        self._waiting, self._timer = 0, None  # they belong to the parent

    def add(self, stream: Any) -> None:
        """Track a stream that was passed to the caller, until its last reference goes."""
        with self._lock:
            self._open.add(stream)
            self._schedule_check()

    @contextmanager
    def collecting_while_waiting(self) -> Iterator[None]:
        """Force collections while a call waits for a key: one shortly, then at growing intervals."""
        with self._lock:
            self._waiting += 1
        try:
            with self._lock:
                self._schedule_check()
            yield
        finally:
            with self._lock:
                self._waiting -= 1
                if not self._waiting and self._timer is not None:
                    self._timer.cancel()
                    self._timer = None

    def _schedule_check(self) -> None:
        if self._waiting and self._timer is None and len(self._open):
            self._timer = self._later(max(_FIRST_DELAY, self._not_before - time.monotonic()), self._check)

    def _check(self) -> None:
        if self._waiting and time.monotonic() >= self._not_before:  # two timers may overlap
            self._collect()
        with self._lock:
            self._timer = None
            self._schedule_check()

    def _collect(self) -> None:
        before, began = len(self._open), time.monotonic()
        gc.collect()
        if len(self._open) < before:
            self._pause = _FIRST_PAUSE
            return
        ended = time.monotonic()
        self._not_before = ended + max(_SHORTEST_PAUSE, self._pause * (ended - began))
        self._pause = min(_LONGEST_PAUSE, 2.0 * self._pause)


class CollectionTimer(ForkSafeLocks):
    """Call a function later on a daemon thread; the *later* argument for transports that use threads.

    Calls start and stop waiting for keys by the thousand, and a thread for each wait would cost more than the call. One
    thread serves them all: it ignores cancelled calls and ends after some time without work.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._callback: Callable[[], None] | None = None
        self._at = 0.0
        self._thread: threading.Thread | None = None
        self._sleeps_until = 0.0
        register_fork_hooks(self)

    def in_forked_child(self) -> None:
        self._changed = threading.Condition()
        self._callback = self._thread = None  # the thread exists only in the parent

    def __call__(self, seconds: float, callback: Callable[[], None]) -> CollectionTimer:
        with self._changed:
            self._callback, self._at = callback, time.monotonic() + seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="agentos-collection-timer", daemon=True)
                self._thread.start()
            elif self._at < self._sleeps_until:
                self._changed.notify()
        return self

    def cancel(self) -> None:
        with self._changed:
            self._callback = None

    def _run(self) -> None:
        while True:
            with self._changed:
                now, idle = time.monotonic(), self._callback is None
                self._sleeps_until = now + _IDLE_SECONDS if idle else self._at
                if self._sleeps_until > now:
                    self._changed.wait(self._sleeps_until - now)
                    if idle and self._callback is None:
                        self._thread = None
                        return
                    continue
                callback, self._callback = self._callback, None
            if callback is not None:
                callback()
