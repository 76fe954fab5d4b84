"""StoreMetadata: the store's record about itself, and whether leases may be granted after a process connects.

An *epoch* is the life of one store. A process that remembers another epoch, or finds that a counter has gone back,
knows that leases may be in use that the store has lost; so nothing is granted until the last of them has expired.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ...pool.core.quota_codec import RECORD_VERSION

FORMAT: Final = 1 + RECORD_VERSION

_NEVER: Final = 0.0


@dataclass(frozen=True, slots=True)
class StoreMetadata:
    """The store's record about itself. Instants are in the store's time: the server's clock plus *shift*."""

    version: str  # unique for each change, in all stores
    format: int
    salt: str
    epoch: str
    before: str  # the epoch that this one replaced, or that was found lost
    run: str  # run id of the last server that was written to
    shift: float = 0.0
    paused_until: float = _NEVER
    why: str = ""
    longest: float = 0.0  # longest TTL of present sessions: so long a lost lease may be in use
    sequence: int = 0
    token: int = 0

    def fields(self) -> list[str]:
        """Return the fields to write as names and values, without the counters, which the scripts increase."""
        return [
            *("version", self.version, "format", str(self.format), "salt", self.salt, "epoch", self.epoch),
            *("before", self.before, "run", self.run, "shift", repr(self.shift)),
            *("paused_until", repr(self.paused_until), "why", self.why, "longest", repr(self.longest)),
        ]

    def changed(self, **fields: object) -> StoreMetadata:
        """Return a copy with these changes and a new version."""
        return replace(self, version=_unique(), **fields)  # type: ignore[arg-type]

    def paused(self, until: float, why: str) -> StoreMetadata:
        """Return a copy that pauses grants until that instant of the store; a longer pause stays."""
        if until <= self.paused_until:
            return self
        return self.changed(paused_until=until, why=why)


def parse_metadata(fields: Mapping[str, str]) -> StoreMetadata:
    """Parse the record. Raises ValueError or KeyError if it is malformed."""
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
    """The server that answered: its run id, its minimum uptime, and its time."""

    run: str
    uptime: float
    time: float


@dataclass(frozen=True, slots=True)
class KnownStoreState:
    """The state of the store that a process remembers."""

    epoch: str
    sequence: int
    token: int
    longest: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreActivity:
    """Signs that other processes use the store."""

    sessions: bool = False  # some have not been ended, though they may have expired
    in_force: bool = False  # some of those have not expired
    listening: bool = False  # processes are subscribed to wake-ups, whatever the store contains


def reconcile_metadata(
    meta: StoreMetadata | None,
    server: ServerInfo,
    known: KnownStoreState | None,
    *,
    ttl: float,
    activity: StoreActivity,
    salt: str,
) -> StoreMetadata:
    """Return the store metadata after a process connects; *known* is what that process remembers from before.

    *ttl* is that of its own leases. Returns *meta* itself if nothing changes.
    """
    if meta is None:
        return _create_metadata(server, known, ttl, activity, salt)
    now = server.time + meta.shift
    new = _with_longest(meta, server, ttl, activity)
    if meta.format < FORMAT:
        new = new.changed(format=FORMAT)  # from its next step on, a process of an older version refuses the store
    ttl = max(ttl, meta.longest, 0.0 if known is None else known.longest)
    if known is not None and known.epoch == meta.epoch and _went_back(meta, known):
        new = new.changed(epoch=_unique(), before=known.epoch)
        new = new.paused(now + ttl, "the store's newest entries are gone (restored from an older copy?)")
    elif known is not None and known.epoch not in (meta.epoch, meta.before):
        new = new.changed(before=known.epoch).paused(now + ttl, _GONE)
    if known is not None and known.token > meta.token:
        new = new.changed(token=known.token)  # the store may have lost the newest
    if server.run != meta.run:
        new = new.changed(run=server.run, token=max(new.token + _LEAP, _first_token(server)))
        if server.uptime < ttl:
            new = new.paused(now + ttl - server.uptime, _started(server))
        elif activity.in_force:
            new = new.paused(now + ttl, "another server answers now, which may lack the newest leases")
    return new


_GONE: Final = "the store's epoch is gone (the server was restarted empty, or flushed?)"

# More tokens than a server can have granted since it last saved its data.
_LEAP: Final = 1_000_000


def _first_token(server: ServerInfo) -> int:
    """Return a token above those of any earlier store, which grants less than one per millisecond of its life."""
    return int(server.time * 1000)


def _unique() -> str:
    return uuid.uuid4().hex


def _went_back(meta: StoreMetadata, known: KnownStoreState) -> bool:
    return meta.token < known.token or meta.sequence < known.sequence


def _started(server: ServerInfo) -> str:
    return f"the server had been up for only {server.uptime:.0f} s: leases from before its start may still be in use"


def _with_longest(meta: StoreMetadata, server: ServerInfo, ttl: float, activity: StoreActivity) -> StoreMetadata:
    """Return *meta* with the longest TTL of the present processes; ours, if all others have left."""
    if ttl > meta.longest:
        new = meta.changed(longest=ttl)
        if server.uptime < ttl:  # the first process after its start did not know a TTL as long as ours
            new = new.paused(server.time + meta.shift + ttl - server.uptime, _started(server))
        return new
    if ttl < meta.longest and server.run == meta.run and not (activity.sessions or activity.listening):
        return meta.changed(longest=ttl)
    return meta


def _create_metadata(
    server: ServerInfo, known: KnownStoreState | None, ttl: float, activity: StoreActivity, salt: str
) -> StoreMetadata:
    token = _first_token(server)
    new = StoreMetadata(_unique(), FORMAT, salt, _unique(), "", server.run, longest=ttl, token=token)
    if known is not None:
        ttl = max(ttl, known.longest)
        new = replace(new, before=known.epoch, token=max(token, known.token), longest=ttl)
        return replace(new, paused_until=server.time + ttl, why=_GONE)
    if activity.listening:
        return replace(new, paused_until=server.time + ttl, why=_GONE)
    if server.uptime < ttl:
        return replace(new, paused_until=server.time + ttl - server.uptime, why=_started(server))
    return new
