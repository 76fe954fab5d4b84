"""Log messages about waiting for a credential: one per shortage and kind."""

from __future__ import annotations

import datetime
import logging

from ..core.credential_report import derive_state
from ..core.learning.adaptive_pool import AdaptivePool
from ..core.limits.base import FOREVER

_LOG_INTERVAL = 60.0
_SHORT = 5.0  # seconds: whoever goes at the speed of the limits waits that long all the time
_LAST_HOUR = 253_000_000_000.0  # in the year 9987: datetime ends in 9999


class ShortageLog:
    """Selects which waiting requests are logged, and at which level. Used under the pool's lock."""

    def __init__(self, core: AdaptivePool) -> None:
        self._core = core
        self.logged_kinds: set[str] = set()  # the kinds logged in the current shortage
        self._quiet_until = -FOREVER  # for shortages in a run, and short ones

    def message(self, now: float, stay: bool, *, of_a_run: bool) -> tuple[int, str] | None:
        """Return the level and text to log for a request that has to wait: once per shortage and kind.

        Whoever goes at the speed of the limits is short of keys all the time: that is logged once a minute.
        """
        core = self._core
        if core.not_before > now:
            return None  # a short wait for the store or another process: not yet a shortage
        exhausted = (
            bool(core.leases) or core.next_at == FOREVER or any(key.leases_elsewhere for key in core.keys.values())
        )
        kind = "exhausted" if exhausted else "limited"
        if kind in self.logged_kinds:
            return None
        self.logged_kinds.add(kind)
        if of_a_run or (not exhausted and core.next_at - now < _SHORT):
            if now < self._quiet_until:
                return None
            self._quiet_until = now + _LOG_INTERVAL
        if exhausted:
            # Waiting for a key in use is normal in a busy pool.
            return logging.INFO, "Credential pool exhausted" + (", waiting for release..." if stay else "")
        until = _format_hour(core.next_at + core.wall.offset)
        planned = None if core.next_ticket is None else core.next_ticket.planned
        why = "" if planned is None else derive_state(planned, now)[2]  # not always a limit: a provider may be down
        return (
            logging.WARNING,
            f"no key is available until {until} (in {core.next_at - now:.1f}s){f': {why}' if why else ''}",
        )


def _format_hour(epoch: float) -> str:
    return datetime.datetime.fromtimestamp(min(epoch, _LAST_HOUR)).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
