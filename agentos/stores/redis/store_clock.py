"""The store's time as this process reckons it, and what the store says of itself.

The store's time is the server's clock and a shift, and goes on evenly: whoever has been there for a while knows it by
its own monotonic clock, whatever the server's shows and whatever others have made of that. Where the two disagree, the
first to notice changes the shift by as much; grants rest for one time to live then, for leases may have been taken for
over that were not. Only who has just come, or stood still, believes what it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..session import margin
from .clock_offset import Border
from .errors import FAILURES
from .metadata import Meta
from .peers import renewed_after
from .server_time import Heard, tolerance
from .store_connection import Link


class StoreClock:
    """Translates instants by ``border``. ``meta`` is what the store said of itself when it was last asked.

    *others* tells who else was there when we last heard, and for how long each is renewed.
    """

    meta: Meta

    def __init__(self, link: Link, ttl: float, others: Callable[[], Mapping[str, float]]) -> None:
        self.border = Border()
        self.meta_is_old = False
        self._link = link
        self._ttl = ttl
        self._others = others
        self.tolerance = tolerance(ttl)
        self._slept = link.server_time.asleep_for()
        self._put_right_by = 0.0  # the last time that we did
        self._epoch: str | None = None

    def begin(self, meta: Meta, heard: Heard) -> None:
        """It is a store that we knew nothing of."""
        self.meta, self._epoch, self.meta_is_old = meta, meta.epoch, False
        self._believe(heard)

    def is_new(self, meta: Meta) -> bool:
        """Whether that is another store than we knew."""
        return meta.epoch != self._epoch

    def longest(self) -> float:
        """The longest time to live of whoever may be there."""
        return max(self._ttl, self.meta.longest)

    def patience(self) -> float:
        """For how long to wait after coming, until everybody who lives would have noticed that the clock was set."""
        return self._link.server_time.settling_time(self.longest() / 3 + margin(self.longest()))

    def rests_until(self) -> float:
        """Until when no lease may start, by our clock."""
        return self.border.to_local(self.meta.paused_until)

    def between(self, sent: float) -> tuple[str, str]:
        """The hours of the server between which something counts that is sent now."""
        expected = sent + self._ahead()
        return (
            f"{expected - self.tolerance:.6f}",
            f"{expected + self.tolerance + self._link.limit:.6f}",
        )

    # -- what is heard ----------------------------------------------------------------------------------------

    def agrees(self, heard: Heard) -> bool:
        """Whether the server's hour is just what we take it for."""
        return heard.hour - heard.received <= self._ahead() <= heard.hour - heard.sent

    def fits(self, heard: Heard, *, alive: bool) -> bool:
        """Take the server's hour into account. False: what we took for the store's time was not.

        *alive*: our session has been in force all along. Then it is the server's clock that was set.
        """
        off = self._adjust(heard)
        if not off:
            return True
        if not alive or self._stood_still(off, heard):
            self._believe(heard)
            return False
        self._put_right(heard, off, f"the server's clock was set {'forward' if off > 0 else 'back'}")
        return True

    def renewed(self, meta: Meta, heard: Heard, *, alive: bool, newcomer: bool) -> bool:
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
            self._believe(heard)
            return False
        if not server_is_steady:
            return self.fits(heard, alive=alive)
        self._put_right(heard, off, "another process had put the clock wrong")
        return True

    def _ahead(self) -> float:
        return self.border.offset - self.meta.shift

    def _adjust(self, heard: Heard) -> float:
        """Move the estimate as little as may be. Returns by how much it is off if that is no drift: it stays then."""
        ahead = self._ahead()
        off = heard.nearest(ahead) - ahead
        if abs(off) > self.tolerance:
            return off
        self.border.offset += off
        return 0.0

    def _stood_still(self, off: float, heard: Heard) -> bool:
        """Whether our own clock has lost *off* seconds: this machine slept, or others have lived through them."""
        if abs(off - (self._link.server_time.asleep_for() - self._slept)) <= self.tolerance:
            return True
        greeting = self._link.greeting
        if off < 0 or greeting is None:
            return False
        try:
            ends_at = self._link.sessions(greeting.wire)
        except FAILURES as error:
            raise self._link.failed(error) from None
        return renewed_after(self.border.to_store(heard.received) + self.tolerance, ends_at, self._others())

    def _put_right(self, heard: Heard, off: float, what: str) -> None:
        """The server's clock is off by as much: the store's time is to go on as it was."""
        now = heard.received + self.border.offset
        new = self.meta.changed(shift=self.meta.shift - off)
        new = new.paused(now + self.longest(), f"{what} by {abs(off):.1f} s")
        greeting = self._link.greeting
        if greeting is None:
            return
        try:
            done = self._link.amend(greeting.wire, new, self.meta)
        except FAILURES as error:
            raise self._link.failed(error) from None
        if done:
            self.meta, self._put_right_by = new, off
        else:
            self.meta_is_old = True

    def _believe(self, heard: Heard) -> None:
        self._slept, self._put_right_by = self._link.server_time.asleep_for(), 0.0
        self.border.offset = self.meta.shift + heard.ahead()
