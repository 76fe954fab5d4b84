"""SqliteStore: a pool's state in an SQLite file, shared by the processes of one machine.

Each step is one ``BEGIN IMMEDIATE`` transaction: it executes the deferred actions, updates the view with the records it
needs, applies the rules, and commits. Commits are not synced one by one (WAL, NORMAL): a power cut may lose the last
moments, and all leases end with it anyway. A step waits some milliseconds for the write lock while it holds the pool's
lock, since other callers of the pool need the write lock too; then the caller waits outside the pool's lock and
retries.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
import uuid
from collections.abc import Callable
from random import SystemRandom
from typing import TypeVar

from ...errors import StoreDamaged, StoreUnavailable
from ...pool.core.limits.base import FOREVER
from ...pool.protocols import StoreView
from ...pool.store_protocol import StoreBusy, TransientStoreError
from ...util.clock import Clock
from ...util.event_loop import running_loop
from ...util.sqlite.errors import is_busy, transient_reason
from ..process_fairness import StoreSession
from ..session import LEAVE_RETRY_SECONDS, SessionStore
from ..step_queueing import describe_process
from .file import StoreFile, busy_backoff, yield_to_fork
from .rows import read_last_change, read_tokens, read_updates_since, update_view, was_written_by, write_moment
from .step import SqliteStep
from .udp_wakeup import LocalWakeup, UdpWakeup, WakeupTarget

T = TypeVar("T")

_NEVER_READ = -1
SESSIONS = (
    "select id, expires_at, weight, served, waiting_since, wanted, called_at, idle_until, claim, bell, pid, "
    "out_for from sessions"
)

# Attempts to get the write lock before the caller has to retry; fewer on an event loop, which they block.
_BUSY_TRIES = 24
_BUSY_TRIES_ON_A_LOOP = 4
_BUSY_PAUSE, _LONG_BUSY_PAUSE = 0.000_5, 0.002


class SqliteStore(SessionStore[SqliteStep]):
    """One process's access to the file. Used under the pool's lock, except for ``leave``."""

    def __init__(
        self,
        file: StoreFile,
        clock: Clock,
        wakeup: UdpWakeup | LocalWakeup,
        *,
        ttl: float,
        weight: float,
        view: StoreView,
    ) -> None:
        super().__init__(str(file.path), clock, ttl=ttl, weight=weight, view=view)
        self._file = file
        self._wakeup = wakeup
        self._seen = _NEVER_READ  # the newest log entry that the view has
        self._data_version = _NEVER_READ
        self._writer = secrets.randbits(62)
        self._unconfirmed: SqliteStep | None = None  # a step whose commit may or may not have taken effect
        self._must_reconnect = False  # the connection must be reopened
        self._outlived: set[str] = set()  # sessions whose surviving commands were reported

    def _salt(self) -> bytes:
        return self._file.salt

    def wake_maintenance(self) -> None:
        """Wake the thread that calls ``maintain``, which may be due earlier than it knows."""
        self._wakeup.release()

    def _check_location(self) -> None:
        if not self._file.is_still_at_path():
            self._must_reconnect = True  # the file was deleted or replaced: no other process sees our writes

    # -- steps ------------------------------------------------------------------------------------------------

    def _step(self, act: Callable[[SqliteStep], T], request: str | None = None) -> T:
        self._require_own_process()
        yield_to_fork()
        file = self._file
        file.at_work += 1
        try:
            return self._transaction(act, request)
        finally:
            file.at_work -= 1

    def _transaction(self, act: Callable[[SqliteStep], T], request: str | None) -> T:
        step: SqliteStep | None = None
        try:
            if self._must_reconnect:
                self._reconnect()
            if self._file.connection.in_transaction:
                self._file.connection.execute("rollback")  # of a step that was interrupted as it began
            self._begin_immediately()
            step = self._begin(request)
            step.acts = len(self._pending)
            self._run_deferred(step, (sqlite3.Error,))
            answer = act(step)
            step.finish()
            self._uncertain = True
            self._unconfirmed = step
            self._file.connection.execute("commit")
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            self._undo(step)
            raise self._failed(error) from None
        except BaseException:
            self._undo(step)
            raise
        self._committed(step)
        return answer

    def _begin_immediately(self) -> None:
        """Begin the transaction with the write lock, which others hold for some tens of microseconds."""
        begin = self._file.connection.execute
        tries = 0 if self._busy else _BUSY_TRIES if running_loop() is None else _BUSY_TRIES_ON_A_LOOP
        for number in range(tries):
            try:
                begin("begin immediate")
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
            else:
                self._busy = 0
                return
            # Random, so that processes do not stay in step; and fair, unlike SQLite's own waiting.
            longest = _BUSY_PAUSE if number < _BUSY_TRIES_ON_A_LOOP else _LONG_BUSY_PAUSE
            time.sleep(SystemRandom().uniform(0.1, 1.0) * longest)
        # After a failure another process holds the lock for longer: do not wait here until the lock was free once.
        self._busy += 1
        begin("begin immediate")
        self._busy = 0

    def _begin(self, request: str | None) -> SqliteStep:
        """Read the sessions, join or continue ours, and end expired ones."""
        execute = self._file.connection.execute
        now = self._clock.now()
        sessions = [StoreSession(*row) for row in execute(SESSIONS).fetchall()]
        if self._unconfirmed is not None:
            self._check_committed(self._unconfirmed, sessions)
        changes = read_last_change(execute, self._writer)
        changes.token = max(changes.token, self._highest)  # tokens grow even if the file was replaced
        step = SqliteStep(execute, now, self._ttl, changes, sessions, self._view, self._seen)
        step.former.update(self._former)
        me = next((session for session in sessions if session.id == self._session), None)
        if me is None or me.expires_at <= now:
            self._join(step, me)
        else:
            step.set_own_session(me)
            self._split_off_abandoned(step)
        for session in [session for session in step.others if session.expires_at <= now]:
            self._end_other(step, session)
        if step.me.remote_use_for != self._remote_use_for:
            step.set_remote_use(self._remote_use_for)
        if self._uncertain:
            step.end_unknown(self._view.unreturned_tokens(), but=request)
        if now >= self._renew_at:
            step.me_changed = True
            write_moment(execute, self._file.base, now, self._clock.wall() - now)
        return step

    def _end_other(self, step: SqliteStep, session: StoreSession) -> None:
        """End an expired session, unless its process is gone and commands of it still run."""
        locks, tokens = self._file.locks, read_tokens(self._file.connection.execute, session.id)
        if not locks.outlived(tokens):
            step.expire(session)
            locks.forget(tokens)
            return
        step.postpone_expiry(session)
        if session.id not in self._outlived:
            self._outlived.add(session.id)
            step.notes.append(
                f"{describe_process(session)} has ended, and commands that it started still run: they are being ended, "
                "and their keys stay leased until then"
            )

    # -- commands that may outlive this process ---------------------------------------------------------------

    def lock_lease(self, token: int, mark: str) -> int | None:
        return self._file.locks.hold(token, mark)

    def unlock_lease(self, token: int) -> None:
        self._file.locks.drop(token)

    def on_lease_replaced(self, token: int, to: int) -> None:
        self._file.locks.move(token, to)

    def _check_committed(self, step: SqliteStep, sessions: list[StoreSession]) -> None:
        """Check whether a step whose commit failed took effect nevertheless, so that it is not repeated."""
        if was_written_by(self._file.connection.execute, step.first_number, self._writer):
            del self._pending[: step.acts]
        if any(session.id == step.me.id for session in sessions):
            self._session = step.me.id  # it may have begun in that step
        self._unconfirmed = None

    def _join(self, step: SqliteStep, expired: StoreSession | None) -> None:
        """Begin a session. If we had one, it has ended without us, and its leases are lost."""
        step.join(self._new_session(step))
        if expired is not None:
            step.expire(expired)
        if self._session is not None:
            self._view.on_session_lost(
                f"it was not renewed for {self._ttl:g}s" if expired else "another process ended its session"
            )
        self._renew_at = step.now

    def _new_session(self, step: SqliteStep) -> StoreSession:
        me = StoreSession(uuid.uuid4().hex, step.now, self._weight, step.changes.served)
        me.wakeup_port, me.pid = self._wakeup.port, self._pid
        self._wakeup.session = me.id
        return me

    def _committed(self, step: SqliteStep) -> None:
        self._unconfirmed = None
        self._on_step_done(step, step.acts)
        self._session = step.me.id
        self._highest = step.changes.token
        if step.is_news:
            self._data_version = _NEVER_READ  # the next refresh reads what others did, and our own changes
        else:
            self._seen = step.changes.number
        if step.me_changed:
            self._renew_at = step.now + self._ttl / 3
            self.valid_until = step.me.expires_at - self._margin
        self.next_refresh_at = step.next_expiry()
        for port, session in step.wakeup_targets:
            self._wakeup.notify_peers(port, session)

    def _undo(self, step: SqliteStep | None) -> None:
        """Roll back a failed step, and mark the view as stale."""
        if step is None and not self._file.in_transaction():
            return  # it had not begun
        self._seen = self._data_version = _NEVER_READ
        self._uncertain = True
        self._view.step_failed()
        try:
            if self._file.in_transaction():
                self._file.connection.execute("rollback")
        except sqlite3.Error:
            self._must_reconnect = True

    def _failed(self, error: Exception) -> Exception:
        if is_busy(error):
            return StoreBusy()
        why = transient_reason(error)
        if why is None:
            return StoreDamaged(path=self.where, detail=str(error))
        self._must_reconnect = True
        return TransientStoreError(why)

    def _reconnect(self) -> None:
        self._seen = self._data_version = _NEVER_READ
        try:
            is_another = self._file.reopen()
        except StoreUnavailable as error:
            raise TransientStoreError(error.detail) from None
        self._must_reconnect = False
        if is_another:
            self._pending.clear()  # they concern the former file
            self._abandoned.clear()
            self._former.clear()
            self._view.on_session_lost("the file was removed or replaced")
            self._session = None
            self._view.enrol_again()

    # -- refreshing -------------------------------------------------------------------------------------------

    def refresh(self, since: float = FOREVER) -> bool:
        """Update the view with what others changed since the last refresh. Return False if nothing changed."""
        if self._session is None or self._left or self._must_reconnect:
            return False
        self._require_own_process()
        yield_to_fork()
        file = self._file
        file.at_work += 1
        try:
            return self._refresh()
        finally:
            file.at_work -= 1

    def _refresh(self) -> bool:
        assert self._session is not None  # noqa: S101 - for the type checker
        execute = self._file.connection.execute
        try:
            # Changes whenever another connection commits; reading it takes a few microseconds and no lock.
            data_version = execute("pragma data_version").fetchone()[0]
            if data_version == self._data_version:
                return False
            try:
                execute("begin")
                newest = execute("select max(number) from log").fetchone()[0]
                news = read_updates_since(execute, self._seen, self._session) if newest != self._seen else None
                expiry = execute("select min(expires_at) from sessions where id != ?", (self._session,)).fetchone()[0]
            finally:
                if self._file.connection.in_transaction:
                    execute("commit")
            if news is not None:
                update_view(self._view, *news)
        except sqlite3.Error as error:
            failed = self._failed(error)
            if isinstance(failed, StoreDamaged):
                raise failed from None
            return False
        self._data_version = data_version
        self._seen = newest
        self.next_refresh_at = FOREVER if expiry is None else expiry
        return news is not None

    # -- leaving ----------------------------------------------------------------------------------------------

    def _end_session(self, session: str) -> None:
        self._retry_leaving(lambda: self._file.end_session(session))

    def _schedule_expiry(self, session: str) -> None:
        self._retry_leaving(lambda: self._file.schedule_expiry(session))

    def _retry_leaving(self, leave: Callable[[], list[WakeupTarget]]) -> None:
        deadline = time.monotonic() + LEAVE_RETRY_SECONDS
        while True:
            try:
                targets = leave()
                break
            except (sqlite3.Error, OSError):
                if time.monotonic() > deadline:
                    return  # then its leases expire
            time.sleep(busy_backoff())
        for port, session in targets:
            self._wakeup.notify_peers(port, session)

    def _detach(self, *, closed: bool) -> None:
        if closed:
            self._file.close()
        elif not self._former:  # else the next process to open the file would free what an abandoned thread still uses
            self._file.leave()
