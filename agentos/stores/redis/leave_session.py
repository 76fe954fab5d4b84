"""Ending a session from any thread, on a connection of its own: the pool may be in the middle of a step, for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ...errors import StoreError
from ...pool.protocols import StoreView
from ...pool.store_protocol import StoreBusy, StoreTrouble
from ..session import INSIST_LEAVING
from .clock_offset import Border
from .replica import Replica
from .resp_connection import Wire
from .step import RedisStep
from .step_messages import LOOK, Order, read_reply
from .store_connection import Link

_TRIES: Final = 12
_ANY_TIME: Final = ("", "")


def depart(link: Link, session: str, border: Border, view: StoreView, host: str) -> None:
    """End it, and all its leases; who waits for them is called. Raises StoreTrouble, StoreBusy or StoreError."""
    wire = link.connect()
    try:
        link.asked(lambda: _depart(link, wire, session, border, view, host))
    finally:
        wire.close()


def let_run_out(link: Link, session: str, seconds: float) -> None:
    """Let it end by itself, in so many seconds at the latest. Raises StoreTrouble or StoreError."""
    wire = link.connect()
    try:
        link.asked(lambda: _let_run_out(link, wire, session, seconds))
    finally:
        wire.close()


def insist_on_leaving(leave: Callable[[], None], between_tries: Callable[[], None]) -> None:
    """Call *leave* until it succeeds, for a few seconds; *between_tries* pauses."""
    deadline = time.monotonic() + INSIST_LEAVING
    while True:
        try:
            leave()
            break
        except (StoreTrouble, StoreBusy, StoreError):
            if time.monotonic() > deadline:
                break  # then its leases end by themselves, when they are not renewed
        between_tries()


def _let_run_out(link: Link, wire: Wire, session: str, seconds: float) -> None:
    meta, heard, ends_at = link.read_meta(wire), link.server_time.read(wire), link.sessions(wire).get(session)
    if meta is not None and ends_at is not None:
        # Renewed meanwhile, by a step that was under way? Then it ends later than it could, and that is all.
        link.let_run_out(wire, session, ends_at, min(ends_at, heard.hour + meta.shift + seconds))


def _depart(link: Link, wire: Wire, session: str, border: Border, view: StoreView, host: str) -> None:
    # It has run out from now on: should we get no further, whoever comes next sees to the rest.
    wire.ask("ZADD", link.keys[3], "XX", "0", session)
    replica, order = Replica(), LOOK
    for _ in range(_TRIES):
        meta, heard = link.read_meta(wire), link.server_time.read(wire)
        if meta is None:
            return
        words = order.words(link.server_time.imposed(heard.hour), meta.version, _ANY_TIME, replica.seen)
        reply = read_reply(link.apply(wire, words))
        if reply.what == "meta":
            continue
        if order is not LOOK and reply.what == "done":
            return
        replica.absorb(reply.news, reply.sequence)
        step = RedisStep(replica, border, heard.received, view, host=host)
        me = next((each for each in step.sessions if each.id == session), None)
        if me is None:
            return
        step.i_am(me)
        step.leave()
        rings = [link.bell_of(each) for each in step.rings]
        order = Order(checks=step.checks(), texts=step.texts(), ended=step.ended, rings=rings)
    raise StoreBusy
