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


def leave_session(link: StoreConnection, session: str, border: ClockOffset, view: StoreView, host: str) -> None:
    """End a session and its leases, and notify waiters. Raises TransientStoreError, StoreBusy or StoreError."""
    wire = link.connect()
    try:
        link.query(lambda: _leave_session(link, wire, session, border, view, host))
    finally:
        wire.close()


def schedule_expiry(link: StoreConnection, session: str, seconds: float) -> None:
    """Let a session expire, in *seconds* at the latest. Raises TransientStoreError or StoreError."""
    wire = link.connect()
    try:
        link.query(lambda: _schedule_expiry(link, wire, session, seconds))
    finally:
        wire.close()


def insist_on_leaving(leave: Callable[[], None], between_tries: Callable[[], None]) -> None:
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


def _schedule_expiry(link: StoreConnection, wire: RespConnection, session: str, seconds: float) -> None:
    meta, heard, ends_at = (
        link.read_meta(wire),
        link.server_time.read(wire),
        link.read_session_expiries(wire).get(session),
    )
    if meta is not None and ends_at is not None:
        # If a step renews it meanwhile, it only expires later than it could.
        link.schedule_expiry(wire, session, ends_at, min(ends_at, heard.hour + meta.shift + seconds))


def _leave_session(
    link: StoreConnection, wire: RespConnection, session: str, border: ClockOffset, view: StoreView, host: str
) -> None:
    # Mark it as expired first: if the rest fails, the next process to look ends it.
    wire.ask("ZADD", link.keys[3], "XX", "0", session)
    replica, order = Replica(), READ_ONLY_REQUEST
    for _ in range(_TRIES):
        meta, heard = link.read_meta(wire), link.server_time.read(wire)
        if meta is None:
            return
        words = order.encode(link.server_time.imposed(heard.hour), meta.version, _ANY_TIME, replica.seen)
        reply = parse_reply(link.apply(wire, words))
        if reply.what == "meta":
            continue
        if order is not READ_ONLY_REQUEST and reply.what == "done":
            return
        replica.apply_updates(reply.updates, reply.sequence)
        step = RedisStep(replica, border, heard.received, view, host=host)
        me = next((each for each in step.sessions if each.id == session), None)
        if me is None:
            return
        step.set_own_session(me)
        step.leave()
        rings = [link.wakeup_channel(each) for each in step.wakeup_sessions]
        order = StepRequest(
            read_versions=step.read_versions(), writes=step.writes(), ended=step.ended, wakeup_sessions=rings
        )
    raise StoreBusy
