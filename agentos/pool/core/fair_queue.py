"""Whose turn it is when several processes want the same keys: none starves, each gets its share by weight.

Start-time fair queueing, with processes in the place of flows. Each process has a counter of what it was *served* while
others waited: one for each lease, divided by its weight. Of those that wait, the one with the smallest goes first. A
process that has not waited for a while begins where the others are: it saved nothing up.

A process whose turn it is gets *called*, and has a moment to come. Then the others go on without it, and until it
does something itself it is not waited for again: one that is stopped costs them that moment, once. One that comes and
finds nothing it could use has *passed*: it is called again next time, but nobody waits for it any more.
"""

from __future__ import annotations

from collections.abc import Iterable

# How long a called process is waited for, in seconds. Far above what waking one takes, on a machine that is busy.
NOTIFY_TIMEOUT = 0.05

# In the place of the instant at which a process was called: it came, and there was nothing for it.
DECLINED = -1.0


class StoreSession:
    """One process that uses the pool, as the others know it."""

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
        called_at: float | None = None,
        idle_until: float | None = None,
        claim: str | None = None,
        bell: int = 0,
        pid: int = 0,
        out_for: float | None = None,
        host: str = "",
        ttl: float = 0.0,
    ) -> None:
        self.id = id
        self.expires_at = expires_at
        self.weight = weight
        self.served = served
        self.waiting_since = waiting_since  # None: nobody in it waits
        self.wanted = wanted  # credentials by number, as `encode_wanted` writes them; None: any
        self.notified_at = called_at  # its turn came then, and it has done nothing since; or PASSED
        self.idle_until = idle_until  # it can start nothing before, whatever comes free; None: anything may do
        self.claim = claim  # the refill it waits for, as ``keeping`` writes it
        self.wakeup_port = bell  # how to wake it
        self.pid = pid
        self.remote_use_for = (
            out_for  # so many seconds after it is gone its leases may still be in use; None: not at all
        )
        self.host = host  # of another machine; empty: this one
        self.ttl = ttl  # how long it lasts when it is not renewed, where each has its own

    def wants(self, credential: int, now: float) -> bool:
        """Whether it waits, and that credential would do now."""
        return (
            self.waiting_since is not None
            and (self.idle_until is None or self.idle_until <= now)
            and (self.wanted is None or f" {credential} " in self.wanted)
        )

    def can_be_notified(self) -> bool:
        """Whether it was not told, since it last did something, that there may be something for it."""
        return self.notified_at is None or self.notified_at == DECLINED

    def order(self) -> tuple[float, float, str]:
        """Its place among those that wait: the smaller, the earlier."""
        return (self.served, self.waiting_since or 0.0, self.id)


def encode_wanted(credentials: Iterable[int]) -> str:
    """A list of credentials in which one can be found without taking it apart."""
    return f" {' '.join(map(str, credentials))} "


def find_queue_position(me: StoreSession, served: float, now: float) -> tuple[float, float, str]:
    """The place of *me*, who asks for something; *served* is where those who wait are."""
    return (max(me.served, served), now, me.id) if me.waiting_since is None else me.order()


def sessions_ahead(
    me: StoreSession, others: Iterable[StoreSession], credential: int, served: float, now: float
) -> list[StoreSession]:
    """The processes that may have *credential* before *me*, who asks for it; *served* is where those who wait are."""
    # Of two that wait, both must see the same one ahead, or each would let the other go first.
    mine = find_queue_position(me, served, now)
    return [
        other
        for other in others
        if other.wants(credential, now)
        and other.order() < mine
        and (other.notified_at is None or now - other.notified_at <= NOTIFY_TIMEOUT)
    ]


def next_to_notify(sessions: Iterable[StoreSession], credential: int, now: float) -> StoreSession | None:
    """Whom to tell that *credential* is free: the first of those who want it and were not called yet."""
    waiting = [session for session in sessions if session.can_be_notified() and session.wants(credential, now)]
    return min(waiting, key=StoreSession.order) if waiting else None


def charge(me: StoreSession, served: float) -> float:
    """*me* is served while others wait. Returns where those who wait are now."""
    start = max(me.served, served)
    me.served = start + 1.0 / me.weight
    return start
