"""End a session from any thread, on a separate connection: another thread may be suspended in a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ...errors import StoreError
from ...pool.protocols import StoreView
from ...pool.store_protocol import StoreBusy, TransientStoreError
from ..session import LEAVE_RETRY_SECONDS
from .clock_offset import ClockOffset
from .replica import Replica
from .resp_connection import RespConnection
from .step import RedisStep
from .step_messages import READ_ONLY_REQUEST, StepRequest, parse_reply
from .store_connection import StoreConnection

_TRIES: Final = 12
_ANY_TIME: Final = ("", "")


def leave_session(
    connection: StoreConnection, session: str, clock_offset: ClockOffset, view: StoreView, host: str
) -> None:
    """End a session and its leases, and notify waiters. Raises TransientStoreError, StoreBusy or StoreError."""
    resp = connection.connect()
    try:
        connection.query(lambda: _leave_session(connection, resp, session, clock_offset, view, host))
    finally:
        resp.close()


def schedule_expiry(connection: StoreConnection, session: str, seconds: float) -> None:
    """Let a session expire, in *seconds* at the latest. Raises TransientStoreError or StoreError."""
    resp = connection.connect()
    try:
        connection.query(lambda: _schedule_expiry(connection, resp, session, seconds))
    finally:
        resp.close()


def retry_leaving(leave: Callable[[], None], between_tries: Callable[[], None]) -> None:
    """Call *leave* until it succeeds or a time limit has passed; *between_tries* pauses."""
    deadline = time.monotonic() + LEAVE_RETRY_SECONDS
    while True:
        try:
            leave()
            break
        except (TransientStoreError, StoreBusy, StoreError):
            if time.monotonic() > deadline:
                break  # then its leases expire
        between_tries()


def _schedule_expiry(connection: StoreConnection, resp: RespConnection, session: str, seconds: float) -> None:
    meta, reading, ends_at = (
        connection.read_meta(resp),
        connection.server_time.read(resp),
        connection.read_session_expiries(resp).get(session),
    )
    if meta is not None and ends_at is not None:
        # If a step renews it meanwhile, it only expires later than it could.
        connection.schedule_expiry(resp, session, ends_at, min(ends_at, reading.time + meta.shift + seconds))


def _leave_session(
    connection: StoreConnection,
    resp: RespConnection,
    session: str,
    clock_offset: ClockOffset,
    view: StoreView,
    host: str,
) -> None:
    # Mark it as expired first: if the rest fails, the next process to look ends it.
    resp.execute("ZADD", connection.keys[3], "XX", "0", session)
    replica, request = Replica(), READ_ONLY_REQUEST
    for _ in range(_TRIES):
        meta, reading = connection.read_meta(resp), connection.server_time.read(resp)
        if meta is None:
            return
        words = request.encode(connection.server_time.imposed(reading.time), meta.version, _ANY_TIME, replica.seen)
        reply = parse_reply(connection.apply(resp, words))
        if reply.what == "meta":
            continue
        if request is not READ_ONLY_REQUEST and reply.what == "done":
            return
        replica.apply_updates(reply.updates, reply.sequence)
        step = RedisStep(replica, clock_offset, reading.received, view, host=host)
        me = next((each for each in step.sessions if each.id == session), None)
        if me is None:
            return
        step.set_own_session(me)
        step.leave()
        channels = [connection.wakeup_channel(each) for each in step.wakeup_sessions]
        request = StepRequest(
            read_versions=step.read_versions(), writes=step.writes(), ended=step.ended, wakeup_sessions=channels
        )
    raise StoreBusy
