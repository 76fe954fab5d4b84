"""A session as it is written, and who is there. Each has a record of its own: who changes one disturbs no other.

A session's record also says how far those who wait had come when it was written: the newest of all says where they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from ...pool.core.fair_queue import PASSED, Session
from ...pool.core.quota_codec import pack_claim, unpack_claim
from .clock_offset import Border

dump: Final = json.JSONEncoder(separators=(",", ":")).encode

LINE: Final = "line"  # who is there, and how far those who wait had come when that last changed
WAITS: Final = "waits"  # written when somebody begins to wait, or for something else; only its version says something
FRONT: Final = "front"  # the same, when it is before somebody else who waits


def record_of(session: str) -> str:
    """The name of the record of that session."""
    return f"s{session}"


def line_text(sessions: Iterable[Session], served: float) -> str:
    """Who is there, as it is written."""
    return dump([served, [session.id for session in sessions]])


def read_line(text: str) -> tuple[list[str], float]:
    """Who is there, and how far those who wait had come."""
    served, ids = json.loads(text)
    return [record_of(each) for each in ids], float(served)


def session_text(session: Session, served: float, border: Border, host: str) -> str:
    """A session as it is written."""
    called_at = session.called_at
    return dump(
        [
            served,
            session.id,
            session.ttl,
            session.weight,
            session.served,
            border.to_store(session.waiting_since),
            session.wanted,
            called_at if called_at == PASSED else border.to_store(called_at),
            border.to_store(session.idle_until),
            _moved_claim(session.claim, border.offset),
            session.pid,
            session.host or host,
        ]
    )


def read_session(text: str, border: Border, here: str) -> tuple[Session, float]:
    """A session in this process's time, and how far those who wait had come."""
    line_served, name, ttl, weight, served, waiting_since, wanted, called_at, idle_until, claim, pid, host = json.loads(
        text
    )
    session = Session(name, 0.0, weight, served, border.to_local(waiting_since), wanted, pid=pid, ttl=ttl)
    session.called_at = called_at if called_at == PASSED else border.to_local(called_at)
    session.idle_until = border.to_local(idle_until)
    session.claim = _moved_claim(claim, -border.offset)
    session.host = "" if host == here else host
    return session, float(line_served)


def _moved_claim(claim: str | None, by: float) -> str | None:
    if claim is None or not by:
        return claim
    quota, at, amounts = unpack_claim(claim)
    return pack_claim(quota, at + by, amounts)
