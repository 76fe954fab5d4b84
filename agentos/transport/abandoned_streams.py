"""Finding streams that nobody reads any more.

Who leaves the loop over a stream has, with most SDKs, neither closed nor freed it: it is part of a cycle that only the
garbage collector sees, and in a large program that may not look for hours. Meanwhile the stream holds its key, and the
next call may be waiting for just that one. So while calls wait and streams are open, the collector is made to look.
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

# A loop ends the generators of a forgotten stream one by one, and only then is the rest of it garbage. Nor is it worth
# a look if a key comes at once.
_A_MOMENT = 0.01

# A look may take a fifth of a second, in which nothing else runs. After each that was in vain the next one is put off
# for longer, until all of them together take a hundredth of the time.
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 100.0  # in looks
_SHORTEST_PAUSE = 0.1

_STAYS = 5.0  # seconds that a watchman waits for something to do


class _Timer(Protocol):
    def cancel(self) -> object: ...


class OpenStreams(ForkSafeLocks):
    """The streams of a transport that may have been forgotten.

    *later* calls a function after so many seconds, and returns what can be cancelled.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], _Timer]) -> None:
        self._later = later
        self._lock = threading.RLock()
        self._open: WeakSet[Any] = WeakSet()
        self._waiting = 0  # calls that wait for a key
        self._timer: _Timer | None = None
        self._pause = _FIRST_PAUSE
        self._not_before = 0.0
        register_fork_hooks(self)

    def in_forked_child(self) -> None:
        self._lock = threading.RLock()
        self._waiting, self._timer = 0, None  # they are the parent's

    def add(self, stream: Any) -> None:
        """It was handed up. It is forgotten here with its last reference."""
        with self._lock:
            self._open.add(stream)
            self._schedule_check()

    @contextmanager
    def collecting_while_waiting(self) -> Iterator[None]:
        """While a call waits for a key: look for forgotten streams in a moment, and again now and then."""
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
            self._timer = self._later(max(_A_MOMENT, self._not_before - time.monotonic()), self._check)

    def _check(self) -> None:
        if self._waiting and time.monotonic() >= self._not_before:  # two timers may have crossed
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
    """Calls a function later, on a thread of its own that holds nobody up: the *later* of a transport for threads.

    Waits for keys come and go by the thousand, and a thread for each would cost more than the call. So there is one,
    which sleeps through what was called off, and goes when it has had nothing to do for a while.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._act: Callable[[], None] | None = None
        self._at = 0.0
        self._thread: threading.Thread | None = None
        self._sleeps_until = 0.0
        register_fork_hooks(self)

    def in_forked_child(self) -> None:
        self._changed = threading.Condition()
        self._act = self._thread = None  # which runs in the parent only

    def __call__(self, seconds: float, act: Callable[[], None]) -> CollectionTimer:
        with self._changed:
            self._act, self._at = act, time.monotonic() + seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="agentos-watchman", daemon=True)
                self._thread.start()
            elif self._at < self._sleeps_until:
                self._changed.notify()
        return self

    def cancel(self) -> None:
        with self._changed:
            self._act = None

    def _run(self) -> None:
        while True:
            with self._changed:
                now, idle = time.monotonic(), self._act is None
                self._sleeps_until = now + _STAYS if idle else self._at
                if self._sleeps_until > now:
                    self._changed.wait(self._sleeps_until - now)
                    if idle and self._act is None:
                        self._thread = None
                        return
                    continue
                act, self._act = self._act, None
            if act is not None:
                act()
