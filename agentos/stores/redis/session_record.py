"""Encode and decode sessions and the list of sessions. Each session has its own record, to avoid conflicts.

A record also contains the fair queue's virtual time at its writing; the largest of all records is the present one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from ...pool.core.quota_codec import pack_claim, unpack_claim
from ..process_fairness import DECLINED, StoreSession
from .clock_offset import ClockOffset

encode_json: Final = json.JSONEncoder(separators=(",", ":")).encode

SESSION_LIST: Final = "line"  # ids of the present sessions, and the virtual time when that last changed
# Empty records, written for their version: a session begins to wait or waits for something else; it does so before
# another waiting session.
WAITING_CHANGED: Final = "waits"
FRONT_CHANGED: Final = "front"


def record_name(session: str) -> str:
    """Return the name of the session's record."""
    return f"s{session}"


def encode_session_list(sessions: Iterable[StoreSession], served: float) -> str:
    """Encode the list of sessions."""
    return encode_json([served, [session.id for session in sessions]])


def decode_session_list(text: str) -> tuple[list[str], float]:
    """Return the record names of the sessions, and the virtual time."""
    served, ids = json.loads(text)
    return [record_name(each) for each in ids], float(served)


def encode_session(session: StoreSession, served: float, clock_offset: ClockOffset, host: str) -> str:
    """Encode a session."""
    called_at = session.notified_at
    return encode_json(
        [
            served,
            session.id,
            session.ttl,
            session.weight,
            session.served,
            clock_offset.to_store(session.waiting_since),
            session.wanted,
            called_at if called_at == DECLINED else clock_offset.to_store(called_at),
            clock_offset.to_store(session.idle_until),
            _shift_claim(session.claim, clock_offset.offset),
            session.pid,
            session.host or host,
        ]
    )


def decode_session(text: str, clock_offset: ClockOffset, here: str) -> tuple[StoreSession, float]:
    """Return the session in this process's time, and the virtual time."""
    queue_served, name, ttl, weight, served, waiting_since, wanted, called_at, idle_until, claim, pid, host = (
        json.loads(text)
    )
    session = StoreSession(name, 0.0, weight, served, clock_offset.to_local(waiting_since), wanted, pid=pid, ttl=ttl)
    session.notified_at = called_at if called_at == DECLINED else clock_offset.to_local(called_at)
    session.idle_until = clock_offset.to_local(idle_until)
    session.claim = _shift_claim(claim, -clock_offset.offset)
    session.host = "" if host == here else host
    return session, float(queue_served)


def _shift_claim(claim: str | None, by: float) -> str | None:
    if claim is None or not by:
        return claim
    quota, at, amounts = unpack_claim(claim)
    return pack_claim(quota, at + by, amounts)
