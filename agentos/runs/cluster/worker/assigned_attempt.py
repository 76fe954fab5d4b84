"""An attempt assigned to this worker process."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from ...remote.worker_lease import LeaseLoss
from ..wire.messages import Channel, FrameKind, data_body, pack_frame

_MAX_UNACKNOWLEDGED = 1 << 18  # bytes of output that the driver may not have confirmed


class AssignedAttempt:
    """One attempt: requests of the driver and data for the driver. Thread-safe.

    ``stopping``: it should finish soon. ``lost``: its key is, or from an instant on may be, granted to others.
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
        self._driver_gone = False  # the driver is out of reach
        self._end: Callable[[float], object] | None = None
        self._end_at: float | None = None
        self._number = 0
        self._sent_data: deque[tuple[int, int, bytes]] = deque()  # unconfirmed data: number, size, frame
        self._size = 0

    # -- requests of the driver -------------------------------------------------------------------------------------

    def on_kill(self, end: Callable[[float], object]) -> None:
        """Set the function that ends the attempt; it gets the seconds left. Call it at once if kill() came before."""
        with self._lock:
            self._end, at = end, self._end_at
        if at is not None:
            end(max(0.0, at - time.monotonic()))

    @property
    def is_killed(self) -> bool:
        """True if the attempt was asked to end."""
        return self._end_at is not None

    def kill(self, after: float) -> None:
        """End the attempt within that many seconds, if it can be ended. A later call can only shorten the time."""
        self.stopping.set()
        with self._lock:
            at = time.monotonic() + after
            if self._end_at is not None and at >= self._end_at:
                return
            self._end_at, end = at, self._end
        if end is not None:
            end(after)

    def mark_lost(self) -> None:
        """End the attempt: the driver is out of reach and will grant its key to others."""
        self.lost.set()
        with self._lock:
            self._driver_gone = True
            self._room.notify_all()
        self.kill(0.0)

    # -- data for the driver ----------------------------------------------------------------------------------------

    def send_data(self, channel: Channel, data: bytes, send: Callable[[bytes], object]) -> None:
        """Send data and keep it until the driver confirms it. Output blocks while too much is unconfirmed."""
        with self._lock:
            if channel is not Channel.MESSAGE:
                self._room.wait_for(lambda: self._size < _MAX_UNACKNOWLEDGED or self._driver_gone)
            self._number += 1
            frame = pack_frame(FrameKind.DATA, self.token, data_body(self._number, channel, data))
            self._sent_data.append((self._number, len(data), frame))
            self._size += len(data)
            send(frame)  # under the lock, so that frames are sent in the order of their numbers

    def acknowledge(self, number: int) -> None:
        """Drop the data that the driver has confirmed, up to that number."""
        with self._lock:
            while self._sent_data and self._sent_data[0][0] <= number:
                self._size -= self._sent_data.popleft()[1]
            self._room.notify_all()

    def unacknowledged(self) -> list[bytes]:
        """Return the frames that the driver may not have received."""
        with self._lock:
            return [frame for _, _, frame in self._sent_data]
