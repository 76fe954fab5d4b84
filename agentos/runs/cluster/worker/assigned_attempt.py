"""An attempt as the worker's process has it in hand."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from ...remote.worker_lease import LeaseLoss
from ..wire.messages import Channel, FrameKind, data_body, pack_frame

_MAX_UNACKNOWLEDGED = 1 << 18  # bytes that a command may have printed without the driver having taken them


class AssignedAttempt:
    """One attempt: what it is told by the driver, and what it says. Any thread may call it.

    ``stopping``: it should finish soon. ``lost``: its key may be somebody else's by now, or is from an instant on.
    """

    __slots__ = (
        "_driver_gone",
        "_end",
        "_end_at",
        "_lock",
        "_number",
        "_room",
        "_sent_data",
        "_size",
        "body",
        "lost",
        "stopping",
        "token",
    )

    def __init__(self, token: int, body: bytes) -> None:
        self.token = token
        self.body = body
        self.stopping = threading.Event()
        self.lost = LeaseLoss()
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._driver_gone = False  # the driver takes nothing any more
        self._end: Callable[[float], object] | None = None
        self._end_at: float | None = None
        self._number = 0
        self._sent_data: deque[tuple[int, int, bytes]] = deque()  # what the driver may not have: number, size, frame
        self._size = 0

    # -- what it is told ----------------------------------------------------------------------------------------

    def on_kill(self, end: Callable[[float], object]) -> None:
        """How it is ended: *end* gets the seconds it has for that. Called at once if it was to end before."""
        with self._lock:
            self._end, at = end, self._end_at
        if at is not None:
            end(max(0.0, at - time.monotonic()))

    @property
    def is_killed(self) -> bool:
        """Whether it was told to end."""
        return self._end_at is not None

    def kill(self, after: float) -> None:
        """End it within so many seconds, if it can be ended at all. Once told, it can only be told to hurry."""
        self.stopping.set()
        with self._lock:
            at = time.monotonic() + after
            if self._end_at is not None and at >= self._end_at:
                return
            self._end_at, end = at, self._end
        if end is not None:
            end(after)

    def mark_lost(self) -> None:
        """The driver is out of reach, and will give its key to others."""
        self.lost.set()
        with self._lock:
            self._driver_gone = True
            self._room.notify_all()
        self.kill(0.0)

    # -- what it says -------------------------------------------------------------------------------------------

    def send_data(self, channel: Channel, data: bytes, send: Callable[[bytes], object]) -> None:
        """Send it, and keep it until the driver has taken it. Output waits here while too much of it is kept."""
        with self._lock:
            if channel is not Channel.MESSAGE:
                self._room.wait_for(lambda: self._size < _MAX_UNACKNOWLEDGED or self._driver_gone)
            self._number += 1
            frame = pack_frame(FrameKind.DATA, self.token, data_body(self._number, channel, data))
            self._sent_data.append((self._number, len(data), frame))
            self._size += len(data)
            send(frame)  # in here, so that it is sent in the order of its numbers

    def acknowledge(self, number: int) -> None:
        """The driver has all that was said up to this number."""
        with self._lock:
            while self._sent_data and self._sent_data[0][0] <= number:
                self._size -= self._sent_data.popleft()[1]
            self._room.notify_all()

    def unacknowledged(self) -> list[bytes]:
        """The frames that the driver may not have."""
        with self._lock:
            return [frame for _, _, frame in self._sent_data]
