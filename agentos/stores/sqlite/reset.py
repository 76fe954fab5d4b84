"""Reset credentials in the pool's file by name, without a session and without their secrets."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from ...errors import StoreUnavailable
from ...pool.core.records import KeySpec
from ...util.clock import Clock
from ...util.sqlite.errors import is_busy, transient_reason
from ..process_fairness import StoreSession
from ..reset_rules import ResetResult, reset_entries
from ..shared_pool.pool import SharedPool
from .file import StoreFile, busy_backoff
from .read_state import read_dump
from .rows import read_last_change
from .step import SqliteStep
from .store import SESSIONS
from .udp_wakeup import WakeupTarget, create_wakeup

_INSIST: Final = 5.0


def reset_credentials(path: Path, names: Sequence[str], specs: Iterable[KeySpec], clock: Clock) -> list[ResetResult]:
    """Reset these credentials and their quotas: rejections, cooldowns, exhausted balances, usage.

    Waiting processes notice within a second, others at their next request. Leases in force stay. Names that the file
    does not have are left out. Raises StoreError if the file cannot be written.
    """
    file = StoreFile(path, clock)
    wakeup = create_wakeup()
    try:
        done, targets = _retry(file, names, {spec.name: spec for spec in specs}, clock)
        for port, session in targets:
            wakeup.notify_peers(port, session)
    finally:
        wakeup.close()
        file.leave()
        file.close()
    return done


def _retry(
    file: StoreFile, names: Sequence[str], specs: dict[str, KeySpec], clock: Clock
) -> tuple[list[ResetResult], list[WakeupTarget]]:
    execute = file.connection.execute
    deadline = time.monotonic() + _INSIST
    while True:
        try:
            execute("begin immediate")
            try:
                step = _step(file, clock)
                done = reset_entries(step, read_dump(execute, step.now, clock.wall() - step.now), names, specs)
                step.finish()
                execute("commit")
            finally:
                if file.connection.in_transaction:
                    execute("rollback")
        except sqlite3.Error as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise StoreUnavailable(path=str(file.path), detail=transient_reason(error) or str(error)) from None
        else:
            return done, step.wakeup_targets
        time.sleep(busy_backoff())


def _step(file: StoreFile, clock: Clock) -> SqliteStep:
    """Return a step without a session of its own: all sessions are others."""
    execute = file.connection.execute
    sessions = [StoreSession(*row) for row in execute(SESSIONS).fetchall()]
    changes = read_last_change(execute)
    step = SqliteStep(execute, clock.now(), 0.0, changes, sessions, SharedPool(), changes.number)
    step.others = sessions
    return step
