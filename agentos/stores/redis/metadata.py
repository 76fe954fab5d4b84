"""What the store says of itself, and what a process makes of it when it comes: whether leases may start, or why not.

An *epoch* is the life of one store. Whoever knew one and finds another, or finds that numbers have gone back, knows
that leases may be in use that the store has forgotten; so nothing is granted until the last has ended by itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

FORMAT: Final = 1

_NEVER: Final = 0.0


@dataclass(frozen=True, slots=True)
class StoreMetadata:
    """The store's own record. Instants are in the store's time: the server's clock and *shift*."""

    version: str  # another with each change, and in each store
    format: int
    salt: str
    epoch: str
    before: str  # the epoch whose end made this one begin, or that was found lost in it
    run: str  # of the server that was written to last
    shift: float = 0.0
    paused_until: float = _NEVER
    why: str = ""
    longest: float = 0.0  # time to live of those who may be there: so long a lease may be in use unheard of
    sequence: int = 0
    token: int = 0

    def fields(self) -> list[str]:
        """What is written when it is changed, as names and values. The counters go on by themselves."""
        return [
            *("version", self.version, "format", str(self.format), "salt", self.salt, "epoch", self.epoch),
            *("before", self.before, "run", self.run, "shift", repr(self.shift)),
            *("paused_until", repr(self.paused_until), "why", self.why, "longest", repr(self.longest)),
        ]

    def changed(self, **fields: object) -> StoreMetadata:
        """The one that comes after it."""
        return replace(self, version=_unique(), **fields)  # type: ignore[arg-type]

    def paused(self, until: float, why: str) -> StoreMetadata:
        """Grants rest until that instant of the store; a longer rest stays."""
        if until <= self.paused_until:
            return self
        return self.changed(paused_until=until, why=why)


def parse_metadata(fields: Mapping[str, str]) -> StoreMetadata:
    """The record as it was read. Raises ValueError or KeyError if it is none."""
    return StoreMetadata(
        version=fields["version"],
        format=int(fields["format"]),
        salt=fields["salt"],
        epoch=fields["epoch"],
        before=fields["before"],
        run=fields["run"],
        shift=float(fields["shift"]),
        paused_until=float(fields["paused_until"]),
        why=fields["why"],
        longest=float(fields["longest"]),
        sequence=int(fields["sequence"]),
        token=int(fields["token"]),
    )


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server as it was met: which run of it, for how long it surely has been up, and its hour."""

    run: str
    uptime: float
    hour: float


@dataclass(frozen=True, slots=True)
class KnownStoreState:
    """What a process knew of the store before."""

    epoch: str
    sequence: int
    token: int
    longest: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreActivity:
    """What shows that others use the store."""

    sessions: bool = False  # some have not ended, be it that they have run out
    in_force: bool = False  # and some of those have not run out
    listening: bool = False  # processes wait to be woken by others, whatever is in the store


def reconcile_metadata(
    meta: StoreMetadata | None,
    server: ServerInfo,
    known: KnownStoreState | None,
    *,
    ttl: float,
    signs: StoreActivity,
    salt: str,
) -> StoreMetadata:
    """What the store should say of itself, now that a process has come that *known* is known to.

    *ttl* is that of its own leases. The very same object if nothing is to be changed.
    """
    if meta is None:
        return _create_metadata(server, known, ttl, signs, salt)
    now = server.hour + meta.shift
    new = _with_longest(meta, server, ttl, signs)
    ttl = max(ttl, meta.longest, 0.0 if known is None else known.longest)
    if known is not None and known.epoch == meta.epoch and _went_back(meta, known):
        new = new.changed(epoch=_unique(), before=known.epoch)
        new = new.paused(now + ttl, "the store's newest entries are gone (restored from an older copy?)")
    elif known is not None and known.epoch not in (meta.epoch, meta.before):
        new = new.changed(before=known.epoch).paused(now + ttl, _GONE)
    if known is not None and known.token > meta.token:
        new = new.changed(token=known.token)  # others may not have heard of the newest
    if server.run != meta.run:
        new = new.changed(run=server.run, token=max(new.token + _LEAP, _first_token(server)))
        if server.uptime < ttl:
            new = new.paused(now + ttl - server.uptime, _started(server))
        elif signs.in_force:
            new = new.paused(now + ttl, "another server answers now, which may not know the newest leases")
    return new


_GONE: Final = "the store's epoch is gone (the server was restarted empty, or flushed?)"

# More tokens than a server can have given out and forgotten, when it forgets what it did last.
_LEAP: Final = 1_000_000


def _first_token(server: ServerInfo) -> int:
    """Above every token of a store that was here before: there are fewer than one for each millisecond of its life."""
    return int(server.hour * 1000)


def _unique() -> str:
    return uuid.uuid4().hex


def _went_back(meta: StoreMetadata, known: KnownStoreState) -> bool:
    return meta.token < known.token or meta.sequence < known.sequence


def _started(server: ServerInfo) -> str:
    return f"the server had been up for only {server.uptime:.0f} s: leases of before may still be in use"


def _with_longest(meta: StoreMetadata, server: ServerInfo, ttl: float, signs: StoreActivity) -> StoreMetadata:
    """As long as the longest time to live of whoever may be there; ours alone, if all others have left."""
    if ttl > meta.longest:
        new = meta.changed(longest=ttl)
        if server.uptime < ttl:  # whoever came to it first could not know that leases last so long here
            new = new.paused(server.hour + meta.shift + ttl - server.uptime, _started(server))
        return new
    if ttl < meta.longest and server.run == meta.run and not (signs.sessions or signs.listening):
        return meta.changed(longest=ttl)
    return meta


def _create_metadata(
    server: ServerInfo, known: KnownStoreState | None, ttl: float, signs: StoreActivity, salt: str
) -> StoreMetadata:
    token = _first_token(server)
    new = StoreMetadata(_unique(), FORMAT, salt, _unique(), "", server.run, longest=ttl, token=token)
    if known is not None:
        ttl = max(ttl, known.longest)
        new = replace(new, before=known.epoch, token=max(token, known.token), longest=ttl)
        return replace(new, paused_until=server.hour + ttl, why=_GONE)
    if signs.listening:
        return replace(new, paused_until=server.hour + ttl, why=_GONE)
    if server.uptime < ttl:
        return replace(new, paused_until=server.hour + ttl - server.uptime, why=_started(server))
    return new
