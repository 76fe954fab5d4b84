"""Forgetting what is known of a credential on a server, by name alone: without a session, and without a secret."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ...errors import StoreUnavailable
from ...pool.core.records import KeySpec
from ...util.clock import Clock
from ..reset_rules import Cleared, forget
from ..shared_pool.pool import SharedPool
from ..sqlite.file import pause
from .read_state import HOST, ask, book_of, read_all, undamaged, visit
from .resp_connection import Wire
from .step import RedisStep
from .step_messages import Order
from .store_connection import Link
from .url import RedisPlace

_INSIST: Final = 5.0


def clear(place: RedisPlace, names: Sequence[str], specs: Iterable[KeySpec], clock: Clock) -> list[Cleared]:
    """Forget what is known of the credentials of these names, and of their quotas; see ``outside.clear``."""
    by_name = {spec.name: spec for spec in specs}
    deadline = time.monotonic() + _INSIST
    with visit(place, clock) as (link, wire):
        while True:
            done = _try(link, wire, names, by_name, clock)
            if done is not None:
                return done
            if time.monotonic() > deadline:
                raise StoreUnavailable(path=place.shown, detail="others change the same records all the time")
            time.sleep(pause())


def _try(
    link: Link, wire: Wire, names: Sequence[str], specs: Mapping[str, KeySpec], clock: Clock
) -> list[Cleared] | None:
    """One attempt. None: somebody else was at it, and nothing was done."""
    copy = read_all(link, wire, clock)
    if copy is None:
        return []
    with undamaged(link.place):
        step = RedisStep(copy.replica, copy.border, clock.now(), SharedPool(), host=HOST)
        step.others = step.sessions  # all who have a session are others
        done = forget(step, book_of(copy), names, specs)
    if not done:
        return done
    rings = [link.bell_of(session) for session in step.rings]
    order = Order(checks=step.checks(), texts=step.texts(), rings=rings)
    _, reply = ask(link, wire, order, copy.meta, clock, copy.replica.seen)
    return done if reply.what == "done" else None
