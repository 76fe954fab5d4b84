"""Looking at the store on a server from outside: without a secret, without a session, and without changing anything."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ...errors import StoreDamaged
from ...pool.core.quota_codec import shifted
from ...pool.core.records import KeySpec
from ...pool.store_protocol import StoreTrouble
from ...util.clock import Clock
from ..dump import Book, Entry, Pause, Sighting, sightings
from ..step_queueing import process_of
from .clock_offset import Border
from .errors import at_opening
from .metadata import Meta
from .replica import CredentialRecord, Replica, Unreadable, readable
from .resp_connection import Wire
from .server_time import server_time_for
from .step_messages import LOOK, Order, Reply, read_reply
from .store_connection import Link
from .url import RedisPlace

HOST: Final = socket.gethostname()

_PATIENCE: Final = 5.0  # a person waits longer than a step may
_ANY_TTL: Final = 30.0
_TRIES: Final = 5


def look(place: RedisPlace, specs: Iterable[KeySpec], clock: Clock) -> list[Sighting] | None:
    """Every credential in the pool at *place*, by name; None if nobody has used it yet. Raises StoreError."""
    with visit(place, clock) as (link, wire):
        copy = read_all(link, wire, clock)
    if copy is None:
        return None
    now = clock.now()
    with undamaged(place):
        return sightings(book_of(copy), {spec.name: spec for spec in specs}, now, clock.wall() - now)


def resting(place: RedisPlace, clock: Clock) -> Pause | None:
    """Why no lease starts there at present, and for how long; None: they do. Raises StoreError."""
    with visit(place, clock) as (link, wire):
        meta = link.asked(lambda: link.read_meta(wire))
        hour = link.asked(lambda: link.server_time.read(wire)).hour
    left = 0.0 if meta is None else meta.paused_until - (hour + meta.shift)
    return None if meta is None or left <= 0 else Pause(left, meta.why)


@dataclass(frozen=True, slots=True)
class Copy:
    """All that is in a store, as it was a moment ago. *alive* are the sessions that have not run out."""

    meta: Meta
    replica: Replica
    border: Border
    alive: frozenset[str]


@contextmanager
def visit(place: RedisPlace, clock: Clock) -> Iterator[tuple[Link, Wire]]:
    """A connection for somebody who takes no part. Trouble with it is a StoreUnavailable: nobody comes back later."""
    link = Link(place, server_time_for(clock), _ANY_TTL)
    link.limit = _PATIENCE
    try:
        wire = link.connect()
        try:
            yield link, wire
        finally:
            wire.close()
    except StoreTrouble as error:
        raise at_opening(error, place.shown) from None


@contextmanager
def undamaged(place: RedisPlace) -> Iterator[None]:
    """What cannot be made sense of in here is damage."""
    try:
        with readable("a record"):
            yield
    except Unreadable as error:
        raise StoreDamaged(path=place.shown, detail=str(error)) from None


def read_all(link: Link, wire: Wire, clock: Clock) -> Copy | None:
    """What is there; None if nothing is. Raises StoreTrouble or StoreError."""
    for _ in range(_TRIES):
        meta = link.asked(lambda: link.read_meta(wire))
        if meta is None:
            return None
        ahead, reply = ask(link, wire, LOOK, meta, clock)
        if reply.what == "done":
            break
    else:
        raise StoreTrouble(f"others keep changing what {link.place.shown} says of itself")
    ends_at = link.asked(lambda: link.sessions(wire))
    with undamaged(link.place):
        replica, border = Replica(), Border(ahead + meta.shift)
        replica.absorb(reply.news, reply.sequence)
        now = border.to_store(clock.now())
        alive = [session for session, at in ends_at.items() if at > now]
        return Copy(meta, replica, border, frozenset(alive))


def ask(link: Link, wire: Wire, order: Order, meta: Meta, clock: Clock, seen: int = 0) -> tuple[float, Reply]:
    """What the server says to somebody without a session who knows all changes up to *seen*.

    Before that, how far its clock is ahead of ours. Raises StoreTrouble or StoreError.
    """
    sent = clock.now()
    words = order.words(link.server_time.imposed(sent), meta.version, ("", ""), seen)
    said = link.asked(lambda: link.apply(wire, words))
    with undamaged(link.place):
        reply = read_reply(said)
    return link.server_time.received(sent, reply.hour).ahead(), reply


def book_of(copy: Copy) -> Book:
    """The same as people are told, in this machine's time."""
    replica, border = copy.replica, copy.border
    sessions, _ = replica.line(border, HOST)
    processes = {session.id: process_of(session) for session in sessions if session.id in copy.alive}
    names = {number: str(json.loads(replica.quota(number).name)) for number in replica.numbers("q")}
    entries = []
    for number in replica.numbers("c"):
        record = replica.credential(number)
        leases = [lease for lease in record.leases if lease.session in processes]
        entries.append(
            Entry(
                number,
                record.fingerprint,
                record.name,
                record.life,
                record.evidence,
                border.to_local(record.since),
                _holders(record, processes),
                names[leases[0].quota] if leases else None,
            )
        )
    quotas = {name: (number, shifted(replica.quota(number).record(), -border.offset)) for number, name in names.items()}
    return Book(entries, quotas)


def _holders(record: CredentialRecord, processes: dict[str, str]) -> tuple[str, ...]:
    found = []
    for lease in record.leases:
        process = processes.get(lease.session)
        if process is not None:
            found.append(process if lease.requester is None else f"{lease.requester} ({process})")
    return tuple(found)
