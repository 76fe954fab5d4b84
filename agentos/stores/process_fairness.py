"""The fair queue between processes that share a store: none starves, each gets its share by weight.

Start-time fair queueing, with processes in the place of flows. Each process has a counter of what it was *served* while
others waited: one per lease, divided by its weight. Of the waiting processes, the one with the smallest counter goes
first. A process that has not waited for a while starts at the counter of the others: it saves nothing up.

The process that is next gets *notified* and has a short time to act. After that the others go on without it, and do not
wait for it again until it acts: a stopped process delays them once. A process that acts and finds nothing that it can
use has *declined*: it is notified again next time, but the others do not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable

# Seconds for which the others wait for a notified process. Far above what a wake-up takes on a busy machine.
NOTIFY_TIMEOUT = 0.05

# In place of the instant of the notification: it acted, and nothing was usable.
DECLINED = -1.0


class StoreSession:
    """One process that uses the pool, as recorded in the store."""

    __slots__ = (
        "claim",
        "expires_at",
        "host",
        "id",
        "idle_until",
        "notified_at",
        "pid",
        "remote_use_for",
        "served",
        "ttl",
        "waiting_since",
        "wakeup_port",
        "wanted",
        "weight",
    )

    def __init__(
        self,
        id: str,  # noqa: A002 - as the column is called
        expires_at: float,
        weight: float = 1.0,
        served: float = 0.0,
        waiting_since: float | None = None,
        wanted: str | None = None,
        notified_at: float | None = None,
        idle_until: float | None = None,
        claim: str | None = None,
        wakeup_port: int = 0,
        pid: int = 0,
        remote_use_for: float | None = None,
        host: str = "",
        ttl: float = 0.0,
    ) -> None:
        self.id = id
        self.expires_at = expires_at
        self.weight = weight
        self.served = served
        self.waiting_since = waiting_since  # None: no request waits in it
        self.wanted = wanted  # credential numbers, encoded by `encode_wanted`; None: any
        self.notified_at = notified_at  # when it was notified, if it has not acted since; or DECLINED
        self.idle_until = idle_until  # it can start nothing before; None: it may at any time
        self.claim = claim  # the refill it waits for, encoded by ``quota_codec``
        self.wakeup_port = wakeup_port
        self.pid = pid
        self.remote_use_for = remote_use_for  # seconds of use of its leases after it is gone; None: not at all
        self.host = host  # of another machine; empty: this one
        self.ttl = ttl  # seconds until it expires without renewal, where sessions differ in that

    def wants(self, credential: int, now: float) -> bool:
        """Return True if it waits and could use that credential now."""
        return (
            self.waiting_since is not None
            and (self.idle_until is None or self.idle_until <= now)
            and (self.wanted is None or f" {credential} " in self.wanted)
        )

    def can_be_notified(self) -> bool:
        """Return True if it was not notified since it last acted."""
        return self.notified_at is None or self.notified_at == DECLINED

    def order(self) -> tuple[float, float, str]:
        """Return its position among the waiting processes: smaller is earlier."""
        return (self.served, self.waiting_since or 0.0, self.id)


def encode_wanted(credentials: Iterable[int]) -> str:
    """Encode credential numbers so that one can be found without parsing."""
    return f" {' '.join(map(str, credentials))} "


def find_queue_position(me: StoreSession, served: float, now: float) -> tuple[float, float, str]:
    """Return the position of *me*, which requests a lease; *served* is the counter of the waiting processes."""
    return (max(me.served, served), now, me.id) if me.waiting_since is None else me.order()


def sessions_ahead(
    me: StoreSession, others: Iterable[StoreSession], credential: int, served: float, now: float
) -> list[StoreSession]:
    """Return the processes that precede *me* for *credential*; *served* is the counter of the waiting processes."""
    # Two waiting processes must agree on which one is ahead, or each would let the other go first.
    mine = find_queue_position(me, served, now)
    return [
        other
        for other in others
        if other.wants(credential, now)
        and other.order() < mine
        and (other.notified_at is None or now - other.notified_at <= NOTIFY_TIMEOUT)
    ]


def next_to_notify(sessions: Iterable[StoreSession], credential: int, now: float) -> StoreSession | None:
    """Return the process to notify that *credential* is free: the first that wants it and was not notified."""
    waiting = [session for session in sessions if session.can_be_notified() and session.wants(credential, now)]
    return min(waiting, key=StoreSession.order) if waiting else None


def charge(me: StoreSession, served: float) -> float:
    """Charge *me* for a lease while others wait. Return the new counter of the waiting processes."""
    start = max(me.served, served)
    me.served = start + 1.0 / me.weight
    return start
