"""StoreClock: this process's estimate of the store's time, with the store's metadata.

The store's time is the server's clock plus a shift, and runs evenly: a process that has been connected for a while
knows it by its own monotonic clock. If the server's clock disagrees, the first process to notice changes the shift by
the difference, and pauses grants for one TTL: some leases may have looked expired when they were not. Only a process
that just joined, or was suspended, adopts the server's time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..session import safety_margin
from .clock_offset import ClockOffset
from .errors import FAILURES
from .metadata import StoreMetadata
from .peers import any_renewed_after
from .server_time import ServerTimeReading, clock_tolerance
from .store_connection import StoreConnection


class StoreClock:
    """Converts instants by ``clock_offset``. ``meta`` is the store's metadata as last read.

    *others* returns the other sessions, as last read, with their TTLs.
    """

    meta: StoreMetadata

    def __init__(self, connection: StoreConnection, ttl: float, others: Callable[[], Mapping[str, float]]) -> None:
        self.clock_offset = ClockOffset()
        self.meta_is_old = False
        self._connection = connection
        self._ttl = ttl
        self._others = others
        self.tolerance = clock_tolerance(ttl)
        self._suspended_before = connection.server_time.suspend_time()
        self._corrected_by = 0.0  # our last correction
        self._epoch: str | None = None

    def adopt_store(self, meta: StoreMetadata, reading: ServerTimeReading) -> None:
        """Adopt a store that this process has not used before."""
        self.meta, self._epoch, self.meta_is_old = meta, meta.epoch, False
        self._adopt_server_time(reading)

    def is_new(self, meta: StoreMetadata) -> bool:
        """Return whether that is another store than the present one."""
        return meta.epoch != self._epoch

    def longest_ttl(self) -> float:
        """Return the longest TTL of the processes that may be connected."""
        return max(self._ttl, self.meta.longest)

    def settling_time(self) -> float:
        """Return how long after joining all live processes have noticed that the clock was set."""
        return self._connection.server_time.settling_time(self.longest_ttl() / 3 + safety_margin(self.longest_ttl()))

    def grants_paused_until(self) -> float:
        """Return until when grants are paused, by our clock."""
        return self.clock_offset.to_local(self.meta.paused_until)

    def find_time_bounds(self, sent: float) -> tuple[str, str]:
        """Return the server times between which a request sent now is valid."""
        expected = sent + self._ahead()
        return (
            f"{expected - self.tolerance:.6f}",
            f"{expected + self.tolerance + self._connection.limit:.6f}",
        )

    # -- readings and metadata --------------------------------------------------------------------------------

    def is_exact(self, reading: ServerTimeReading) -> bool:
        """Return whether the estimate fits the reading."""
        return reading.time - reading.received <= self._ahead() <= reading.time - reading.sent

    def apply_reading(self, reading: ServerTimeReading, *, alive: bool) -> bool:
        """Update the estimate. Return False if it was wrong and has been replaced.

        *alive*: our session has been in force all along, so that the server's clock was set, not ours.
        """
        off = self._adjust(reading)
        if not off:
            return True
        if not alive or self._was_suspended(off, reading):
            self._adopt_server_time(reading)
            return False
        self._correct_server_clock(reading, off, f"the server's clock was set {'forward' if off > 0 else 'back'}")
        return True

    def apply_metadata(self, meta: StoreMetadata, reading: ServerTimeReading, *, alive: bool, newcomer: bool) -> bool:
        """Take new metadata. Return False if the estimate was wrong and has been replaced.

        *newcomer*: the clock may have been set before we joined, and only now corrected.
        """
        shifted = meta.shift - self.meta.shift
        self.meta, self.meta_is_old = meta, False
        off = self._adjust(reading)
        if not off:
            return True  # unrelated to time, or another process has corrected it
        server_is_steady = abs(off - shifted) <= 2 * self.tolerance
        undone = server_is_steady and abs(off - self._corrected_by) <= 2 * self.tolerance
        if newcomer or not alive or undone:  # then the other process is right
            self._adopt_server_time(reading)
            return False
        if not server_is_steady:
            return self.apply_reading(reading, alive=alive)
        self._correct_server_clock(reading, off, "another process had corrected the clock wrongly")
        return True

    def _ahead(self) -> float:
        return self.clock_offset.offset - self.meta.shift

    def _adjust(self, reading: ServerTimeReading) -> float:
        """Move the estimate as little as possible. If the error is more than drift, return it instead."""
        ahead = self._ahead()
        off = reading.nearest(ahead) - ahead
        if abs(off) > self.tolerance:
            return off
        self.clock_offset.offset += off
        return 0.0

    def _was_suspended(self, off: float, reading: ServerTimeReading) -> bool:
        """Return whether our own clock lost *off* seconds: the machine was suspended, or others have renewed since."""
        if abs(off - (self._connection.server_time.suspend_time() - self._suspended_before)) <= self.tolerance:
            return True
        handshake = self._connection.handshake
        if off < 0 or handshake is None:
            return False
        try:
            ends_at = self._connection.read_session_expiries(handshake.connection)
        except FAILURES as error:
            raise self._connection.failed(error) from None
        return any_renewed_after(self.clock_offset.to_store(reading.received) + self.tolerance, ends_at, self._others())

    def _correct_server_clock(self, reading: ServerTimeReading, off: float, what: str) -> None:
        """Change the shift, because the server's clock is off, so that the store's time runs on."""
        now = reading.received + self.clock_offset.offset
        new = self.meta.changed(shift=self.meta.shift - off)
        new = new.paused(now + self.longest_ttl(), f"{what} by {abs(off):.1f} s")
        handshake = self._connection.handshake
        if handshake is None:
            return
        try:
            done = self._connection.amend(handshake.connection, new, self.meta)
        except FAILURES as error:
            raise self._connection.failed(error) from None
        if done:
            self.meta, self._corrected_by = new, off
        else:
            self.meta_is_old = True

    def _adopt_server_time(self, reading: ServerTimeReading) -> None:
        self._suspended_before, self._corrected_by = self._connection.server_time.suspend_time(), 0.0
        self.clock_offset.offset = self.meta.shift + reading.ahead()
