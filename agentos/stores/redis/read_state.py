"""Read the store on a server from outside: without a secret or a session, and without changing it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ...errors import StoreDamaged
from ...pool.core.quota_codec import shift_record
from ...pool.core.records import KeySpec
from ...pool.store_protocol import TransientStoreError
from ...util.clock import Clock
from ..dump import CredentialRow, DumpEntry, GrantPause, StoreDump, build_rows
from ..step_queueing import describe_process
from .clock_offset import ClockOffset
from .errors import build_opening_error
from .metadata import StoreMetadata
from .replica import CredentialRecord, Replica, UnreadableRecord, require_readable
from .resp_connection import RespConnection
from .server_time import server_time_for
from .step_messages import READ_ONLY_REQUEST, StepReply, StepRequest, parse_reply
from .store_connection import StoreConnection
from .url import RedisLocation

HOST: Final = socket.gethostname()

_PATIENCE: Final = 5.0  # a person waits longer than a step does
_ANY_TTL: Final = 30.0
_TRIES: Final = 5


def read_store(
    place: RedisLocation, specs: Iterable[KeySpec], clock: Clock, secrets: Mapping[str, str] | None = None
) -> list[CredentialRow] | None:
    """Return every credential in the pool at *place*, by name; None if there is no store yet. Raises StoreError."""
    with connect_as_visitor(place, clock) as (connection, resp):
        copy = read_store_copy(connection, resp, clock)
    if copy is None:
        return None
    now = clock.now()
    with report_damage(place):
        return build_rows(build_dump(copy), {spec.name: spec for spec in specs}, now, clock.wall() - now, secrets or {})


def read_pause(place: RedisLocation, clock: Clock) -> GrantPause | None:
    """Return why and for how long the store grants no lease; None if it grants them. Raises StoreError."""
    with connect_as_visitor(place, clock) as (connection, resp):
        meta = connection.query(lambda: connection.read_meta(resp))
        hour = connection.query(lambda: connection.server_time.read(resp)).time
    left = 0.0 if meta is None else meta.paused_until - (hour + meta.shift)
    return None if meta is None or left <= 0 else GrantPause(left, meta.why)


@dataclass(frozen=True, slots=True)
class StoreCopy:
    """All records of a store at one moment. *alive* are the sessions that have not expired."""

    meta: StoreMetadata
    replica: Replica
    clock_offset: ClockOffset
    alive: frozenset[str]


@contextmanager
def connect_as_visitor(place: RedisLocation, clock: Clock) -> Iterator[tuple[StoreConnection, RespConnection]]:
    """Connect without a session. A transient error becomes StoreUnavailable, since there is no later attempt."""
    connection = StoreConnection(place, server_time_for(clock), _ANY_TTL)
    connection.limit = _PATIENCE
    try:
        resp = connection.connect()
        try:
            yield connection, resp
        finally:
            resp.close()
    except TransientStoreError as error:
        raise build_opening_error(error, place.shown) from None


@contextmanager
def report_damage(place: RedisLocation) -> Iterator[None]:
    """Raise StoreDamaged for a malformed record."""
    try:
        with require_readable("a record"):
            yield
    except UnreadableRecord as error:
        raise StoreDamaged(path=place.shown, detail=str(error)) from None


def read_store_copy(connection: StoreConnection, resp: RespConnection, clock: Clock) -> StoreCopy | None:
    """Read all records; None if there is no store. Raises TransientStoreError or StoreError."""
    for _ in range(_TRIES):
        meta = connection.query(lambda: connection.read_meta(resp))
        if meta is None:
            return None
        ahead, reply = query(connection, resp, READ_ONLY_REQUEST, meta, clock)
        if reply.what == "done":
            break
    else:
        raise TransientStoreError(f"other processes keep changing the metadata of {connection.place.shown}")
    ends_at = connection.query(lambda: connection.read_session_expiries(resp))
    with report_damage(connection.place):
        replica, clock_offset = Replica(), ClockOffset(ahead + meta.shift)
        replica.apply_updates(reply.updates, reply.sequence)
        now = clock_offset.to_store(clock.now())
        alive = [session for session, at in ends_at.items() if at > now]
        return StoreCopy(meta, replica, clock_offset, frozenset(alive))


def query(
    connection: StoreConnection,
    resp: RespConnection,
    request: StepRequest,
    meta: StoreMetadata,
    clock: Clock,
    seen: int = 0,
) -> tuple[float, StepReply]:
    """Send a request without a session, for a caller that knows all changes up to *seen*.

    Returns how far the server's clock is ahead of ours, and the reply. Raises TransientStoreError or StoreError.
    """
    sent = clock.now()
    words = request.encode(connection.server_time.imposed(sent), meta.version, ("", ""), seen)
    raw = connection.query(lambda: connection.apply(resp, words))
    with report_damage(connection.place):
        reply = parse_reply(raw)
    return connection.server_time.received(sent, reply.time).ahead(), reply


def build_dump(copy: StoreCopy) -> StoreDump:
    """Convert the copy for people, with instants of this machine's clock."""
    replica, clock_offset = copy.replica, copy.clock_offset
    sessions, _ = replica.read_queue(clock_offset, HOST)
    processes = {session.id: describe_process(session) for session in sessions if session.id in copy.alive}
    names = {number: str(json.loads(replica.quota(number).name)) for number in replica.numbers("q")}
    entries = []
    for number in replica.numbers("c"):
        record = replica.credential(number)
        leases = [lease for lease in record.leases if lease.session in processes]
        entries.append(
            DumpEntry(
                number,
                record.fingerprint,
                record.name,
                record.life,
                record.evidence,
                clock_offset.to_local(record.since),
                _holders(record, processes),
                names[leases[0].quota] if leases else None,
            )
        )
    quotas = {
        name: (number, shift_record(replica.quota(number).record(), -clock_offset.offset))
        for number, name in names.items()
    }
    return StoreDump(entries, quotas, bytes.fromhex(copy.meta.salt))


def _holders(record: CredentialRecord, processes: dict[str, str]) -> tuple[str, ...]:
    found = []
    for lease in record.leases:
        process = processes.get(lease.session)
        if process is not None:
            found.append(process if lease.requester is None else f"{lease.requester} ({process})")
    return tuple(found)
