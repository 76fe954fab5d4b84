"""Reset credentials on a server by name, without a session and without their secrets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ...errors import StoreUnavailable
from ...pool.core.records import KeySpec
from ...util.clock import Clock
from ..reset_rules import ResetResult, reset_entries
from ..shared_pool.pool import SharedPool
from ..sqlite.file import busy_backoff
from .read_state import HOST, build_dump, connect_as_visitor, query, read_store_copy, report_damage
from .resp_connection import RespConnection
from .step import RedisStep
from .step_messages import StepRequest
from .store_connection import StoreConnection
from .url import RedisLocation

_INSIST: Final = 5.0


def reset_credentials(
    place: RedisLocation, names: Sequence[str], specs: Iterable[KeySpec], clock: Clock
) -> list[ResetResult]:
    """Reset these credentials and their quotas; see ``stores.admin.reset_credentials``."""
    by_name = {spec.name: spec for spec in specs}
    deadline = time.monotonic() + _INSIST
    with connect_as_visitor(place, clock) as (connection, resp):
        while True:
            done = _try(connection, resp, names, by_name, clock)
            if done is not None:
                return done
            if time.monotonic() > deadline:
                raise StoreUnavailable(path=place.shown, detail="other processes keep changing the same records")
            time.sleep(busy_backoff())


def _try(
    connection: StoreConnection, resp: RespConnection, names: Sequence[str], specs: Mapping[str, KeySpec], clock: Clock
) -> list[ResetResult] | None:
    """Make one attempt. None: another process changed something meanwhile, and nothing was done."""
    copy = read_store_copy(connection, resp, clock)
    if copy is None:
        return []
    with report_damage(connection.place):
        step = RedisStep(copy.replica, copy.clock_offset, clock.now(), SharedPool(), host=HOST)
        step.others = step.sessions  # we have no session
        done = reset_entries(step, build_dump(copy), names, specs)
    if not done:
        return done
    channels = [connection.wakeup_channel(session) for session in step.wakeup_sessions]
    request = StepRequest(read_versions=step.read_versions(), writes=step.writes(), wakeup_sessions=channels)
    _, reply = query(connection, resp, request, copy.meta, clock, copy.replica.seen)
    return done if reply.what == "done" else None
