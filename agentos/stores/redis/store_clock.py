"""The store's time as this process reckons it, and what the store says of itself.

The store's time is the server's clock and a shift, and goes on evenly: whoever has been there for a while knows it by
its own monotonic clock, whatever the server's shows and whatever others have made of that. Where the two disagree, the
first to notice changes the shift by as much; grants rest for one time to live then, for leases may have been taken for
over that were not. Only who has just come, or stood still, believes what it finds.
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
    """Translates instants by ``clock_offset``. ``meta`` is what the store said of itself when it was last asked.

    *others* tells who else was there when we last heard, and for how long each is renewed.
    """

    meta: StoreMetadata

    def __init__(self, link: StoreConnection, ttl: float, others: Callable[[], Mapping[str, float]]) -> None:
        self.clock_offset = ClockOffset()
        self.meta_is_old = False
        self._connection = link
        self._ttl = ttl
        self._others = others
        self.tolerance = clock_tolerance(ttl)
        self._slept = link.server_time.asleep_for()
        self._put_right_by = 0.0  # the last time that we did
        self._epoch: str | None = None

    def adopt_store(self, meta: StoreMetadata, heard: ServerTimeReading) -> None:
        """It is a store that we knew nothing of."""
        self.meta, self._epoch, self.meta_is_old = meta, meta.epoch, False
        self._adopt_server_time(heard)

    def is_new(self, meta: StoreMetadata) -> bool:
        """Whether that is another store than we knew."""
        return meta.epoch != self._epoch

    def longest_ttl(self) -> float:
        """The longest time to live of whoever may be there."""
        return max(self._ttl, self.meta.longest)

    def settling_time(self) -> float:
        """For how long to wait after coming, until everybody who lives would have noticed that the clock was set."""
        return self._connection.server_time.settling_time(self.longest_ttl() / 3 + safety_margin(self.longest_ttl()))

    def grants_paused_until(self) -> float:
        """Until when no lease may start, by our clock."""
        return self.clock_offset.to_local(self.meta.paused_until)

    def find_time_bounds(self, sent: float) -> tuple[str, str]:
        """The hours of the server between which something counts that is sent now."""
        expected = sent + self._ahead()
        return (
            f"{expected - self.tolerance:.6f}",
            f"{expected + self.tolerance + self._connection.limit:.6f}",
        )

    # -- what is heard ----------------------------------------------------------------------------------------

    def is_exact(self, heard: ServerTimeReading) -> bool:
        """Whether the server's hour is just what we take it for."""
        return heard.hour - heard.received <= self._ahead() <= heard.hour - heard.sent

    def apply_reading(self, heard: ServerTimeReading, *, alive: bool) -> bool:
        """Take the server's hour into account. False: what we took for the store's time was not.

        *alive*: our session has been in force all along. Then it is the server's clock that was set.
        """
        off = self._adjust(heard)
        if not off:
            return True
        if not alive or self._was_suspended(off, heard):
            self._adopt_server_time(heard)
            return False
        self._correct_server_clock(heard, off, f"the server's clock was set {'forward' if off > 0 else 'back'}")
        return True

    def apply_metadata(self, meta: StoreMetadata, heard: ServerTimeReading, *, alive: bool, newcomer: bool) -> bool:
        """The store says something else of itself, at that hour. False: what we took for its time was not.

        *newcomer*: the clock may have been set before we came, and is put right only now.
        """
        shifted = meta.shift - self.meta.shift
        self.meta, self.meta_is_old = meta, False
        off = self._adjust(heard)
        if not off:
            return True  # nothing to do with time, or somebody else has put it right
        server_is_steady = abs(off - shifted) <= 2 * self.tolerance
        undone = server_is_steady and abs(off - self._put_right_by) <= 2 * self.tolerance
        if newcomer or not alive or undone:  # then others know better
            self._adopt_server_time(heard)
            return False
        if not server_is_steady:
            return self.apply_reading(heard, alive=alive)
        self._correct_server_clock(heard, off, "another process had put the clock wrong")
        return True

    def _ahead(self) -> float:
        return self.clock_offset.offset - self.meta.shift

    def _adjust(self, heard: ServerTimeReading) -> float:
        """Move the estimate as little as may be. Returns by how much it is off if that is no drift: it stays then."""
        ahead = self._ahead()
        off = heard.nearest(ahead) - ahead
        if abs(off) > self.tolerance:
            return off
        self.clock_offset.offset += off
        return 0.0

    def _was_suspended(self, off: float, heard: ServerTimeReading) -> bool:
        """Whether our own clock has lost *off* seconds: this machine slept, or others have lived through them."""
        if abs(off - (self._connection.server_time.asleep_for() - self._slept)) <= self.tolerance:
            return True
        greeting = self._connection.handshake
        if off < 0 or greeting is None:
            return False
        try:
            ends_at = self._connection.read_session_expiries(greeting.connection)
        except FAILURES as error:
            raise self._connection.failed(error) from None
        return any_renewed_after(self.clock_offset.to_store(heard.received) + self.tolerance, ends_at, self._others())

    def _correct_server_clock(self, heard: ServerTimeReading, off: float, what: str) -> None:
        """The server's clock is off by as much: the store's time is to go on as it was."""
        now = heard.received + self.clock_offset.offset
        new = self.meta.changed(shift=self.meta.shift - off)
        new = new.paused(now + self.longest_ttl(), f"{what} by {abs(off):.1f} s")
        greeting = self._connection.handshake
        if greeting is None:
            return
        try:
            done = self._connection.amend(greeting.connection, new, self.meta)
        except FAILURES as error:
            raise self._connection.failed(error) from None
        if done:
            self.meta, self._put_right_by = new, off
        else:
            self.meta_is_old = True

    def _adopt_server_time(self, heard: ServerTimeReading) -> None:
        self._slept, self._put_right_by = self._connection.server_time.asleep_for(), 0.0
        self.clock_offset.offset = self.meta.shift + heard.ahead()
