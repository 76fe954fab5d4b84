"""The pool's state in a SQLite file, shared by every process of the machine.

Each step is one ``BEGIN IMMEDIATE`` transaction: it does what was put off, lets the view see what is true of the
records at hand, applies the rules, and commits. Commits are not synced one by one (WAL, NORMAL): a power cut may lose
the last moments, and all leases end with it anyway. A taken write lock is waited for a few milliseconds here, under
the pool's lock, since whoever else wants that wants the same; then the caller waits outside of it, and tries again.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import random
import secrets
import sqlite3
import time
import uuid
from collections.abc import Callable
from typing import TypeVar

from ...errors import PoolClosed, StoreDamaged, StoreError, StoreUnavailable
from ...sqlite.trouble import is_busy, passing
from .._core.limits import FOREVER
from .._core.turns import PASSED, PATIENCE, Session, ahead_of, charge, place_of
from ..clock import Clock
from ..loops import running_loop
from .bell import Bell, DeafBell
from .opening import StoreFile, let_others_fork, pause
from .protocol import Act, Bid, Card, Enrolled, Granted, Refused, StoreBusy, StoreTrouble, View
from .rows import last_change, news_since, tell, write_moment, wrote
from .steps import SqliteStep

T = TypeVar("T")

_NEVER_LOOKED = -1
SESSIONS = (
    "select id, expires_at, weight, served, waiting_since, wanted, called_at, idle_until, claim, bell, pid "
    "from sessions"
)

# A holder stops a little before the others may take its lease, so that its last call has begun by then.
_MARGIN = 0.1  # of the time to live
_LONGEST_MARGIN = 1.0

# How long to insist where the caller cannot come back later: when a credential joins, and when the process leaves.
_INSIST_JOINING = 5.0
_INSIST_LEAVING = 1.0
_IN_TROUBLE_FOR = 0.25

# How often to try for the lock before the caller has to come back; fewer times where a whole loop stands still.
_BUSY_TRIES = 24
_BUSY_TRIES_ON_A_LOOP = 4
_BUSY_PAUSE, _LONG_BUSY_PAUSE = 0.000_5, 0.002
_LONGEST_BUSY = 0.05


class SqliteStore:
    """One process's access to the file. Used under the pool's lock, but for ``leave``."""

    def __init__(
        self, file: StoreFile, clock: Clock, bell: Bell | DeafBell, *, ttl: float, weight: float, view: View
    ) -> None:
        self.valid_until = FOREVER
        self.next_look = FOREVER
        self._file = file
        self._clock = clock
        self._bell = bell
        self._ttl = ttl
        self._weight = weight
        self._view = view
        self._pid = os.getpid()
        self._session: str | None = None
        self._left = False
        self._renew_at = FOREVER
        self._pending: list[Act] = []
        self._seen = _NEVER_LOOKED  # the newest entry of the log that the view has
        self._data_version = _NEVER_LOOKED
        self._writer = secrets.randbits(62)
        self._highest = 0  # token that we know to have been given out
        self._uncertain = False  # a lease may be in the store that the view does not know of
        self._commits: SqliteStep | None = None  # a step of which we do not know whether it was done
        self._busy = 0  # how often the lock could not be had in a row
        self._in_trouble = False  # the connection is not to be relied on

    def fingerprint(self, secret: str) -> str:
        """By what the store knows a secret: a digest with a salt that is in this store alone."""
        return hmac.new(self._file.salt, secret.encode(), hashlib.sha256).hexdigest()[:32]

    # -- steps ------------------------------------------------------------------------------------------------

    def try_grant(self, bid: Bid) -> Granted | Refused:
        """Lease one slot, if the rules allow it at this moment."""
        answer = self._step(lambda step: self._grant(step, bid), bid.request)
        if not isinstance(answer, Granted):
            self._uncertain = False
        # Else until the caller has it in its books: an interrupt may keep it from that, and it would be nobody's.
        return answer

    def booked(self) -> None:
        """The lease that was just granted is in the caller's books."""
        self._uncertain = False

    def _grant(self, step: SqliteStep, bid: Bid) -> Granted | Refused:
        me, now = step.me, step.now
        if me.called_at is not None:
            me.called_at = PASSED  # unless there is something for us
            step.me_changed = True
        leases = step.leases_on(bid.credential)
        for request, token, at in leases:
            if request == bid.request:
                return Granted(token, at)
        contended = any(other.waiting_since is not None for other in step.others)
        if contended:
            ahead = ahead_of(me, step.others, bid.credential, step.changes.served, now)
            if ahead and len(ahead) >= bid.free(lambda number: any(each.wants(number, now) for each in ahead)):
                if me.called_at is not None:
                    me.called_at = None  # it is not our turn
                return Refused(step.call(min(ahead, key=Session.order)) + PATIENCE)
        if len(leases) >= bid.slots:
            step.read(bid.credential)
            return Refused()
        if bid.sees_all:
            step.read_all()
        else:
            step.read(bid.credential, bid.quota)
        mine = place_of(me, step.changes.served, now)
        claims = [other.claim for other in step.others if other.claim is not None and other.order() < mine]
        reserved = bid.reserve(now, claims)
        if reserved is None:
            return Refused()
        granted = step.lease(bid, reserved)
        if contended:
            step.changes.served = charge(me, step.changes.served)
            step.me_changed = True
        if me.waiting_since is not None:
            me.waiting_since = now if bid.still_waiting else None
            me.called_at = me.claim = me.idle_until = None  # if others wait here, they say anew for what
            step.me_changed = True
        return granted

    def tell(self, act: Act) -> None:
        """Do *act*, now or, if the store is busy or in trouble, at the beginning of the next step."""
        if self._left or self._elsewhere():
            return
        self._pending.append(act)
        try:
            self._plain_step()
        except (StoreBusy, StoreTrouble) as error:
            self._put_off(error)
            if isinstance(error, StoreTrouble):
                raise
        except BaseException:
            self._put_off(StoreBusy())  # interrupted: it is done soon all the same
            raise

    def enrol(self, card: Card) -> Enrolled:
        """Make a credential known, and return what is known of it."""
        enrolled = self._insist(lambda: self._step(lambda step: step.enrol(card)))
        self._uncertain = False
        return enrolled

    def keep_up(self) -> bool:
        """Renew the session if that is due, do what was put off, end what has run out. False: nothing was due."""
        now = self._clock.now()
        if self._session is None or self._left or self._elsewhere() or now < min(self._renew_at, self.next_look):
            return False
        if not self._file.is_there():
            self._in_trouble = True  # it was deleted or replaced: nobody else will see what we write there
        try:
            self._plain_step()
        except (StoreBusy, StoreTrouble) as error:
            self._put_off(error)
            raise
        return True

    def _plain_step(self) -> None:
        """Nothing but what is due anyway: what was put off, renewals, ends."""
        self._step(lambda _step: None)
        self._uncertain = False

    def renewal_at(self) -> float:
        """When ``keep_up`` is due, even if nobody waits."""
        return FOREVER if self._left else self._renew_at

    def nudge(self) -> None:
        """Wake whoever calls ``keep_up``: it may be due earlier than was thought."""
        self._bell.release()

    def is_late(self) -> bool:
        """Whether our leases must count as lost already."""
        return self._clock.now() >= self.valid_until

    def _put_off(self, error: StoreBusy | StoreTrouble) -> None:
        """Let the thread that keeps up do it, soon."""
        self._renew_at = self._clock.now() + (self.busy_for() if isinstance(error, StoreBusy) else _IN_TROUBLE_FOR)
        self.next_look = max(self.next_look, self._renew_at)
        self._bell.release()

    def _step(self, act: Callable[[SqliteStep], T], request: str | None = None) -> T:
        """Do *act* as one transaction, after what was put off. *request* is the one that is being granted.

        Afterwards it is uncertain whether the caller knows of what was done, until it says so.
        """
        self._require_own_process()
        let_others_fork()
        file = self._file
        file.at_work += 1
        try:
            return self._transaction(act, request)
        finally:
            file.at_work -= 1

    def _transaction(self, act: Callable[[SqliteStep], T], request: str | None) -> T:
        step: SqliteStep | None = None
        try:
            if self._in_trouble:
                self._reconnect()
            if self._file.connection.in_transaction:
                self._file.connection.execute("rollback")  # of a step that was interrupted in its first moment
            self._begin_immediately()
            step = self._begin(request)
            step.acts = len(self._pending)
            self._do_what_was_put_off(step)
            answer = act(step)
            step.finish()
            self._uncertain = True
            self._commits = step
            self._file.connection.execute("commit")
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            self._undo(step)
            raise self._failed(error) from None
        except BaseException:
            self._undo(step)
            raise
        self._committed(step)
        return answer

    def _do_what_was_put_off(self, step: SqliteStep) -> None:
        for number, act in enumerate(self._pending):
            try:
                act(step)
            except sqlite3.Error:
                raise
            except Exception:
                del self._pending[number]  # it would fail again and again, and nothing else would be done any more
                raise

    def _begin_immediately(self) -> None:
        """Get the write lock. Each of the others has it for some tens of microseconds; it is waited for a little."""
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
            # By chance, so that processes do not keep meeting; and fair, as waiting inside SQLite is not.
            longest = _BUSY_PAUSE if number < _BUSY_TRIES_ON_A_LOOP else _LONG_BUSY_PAUSE
            time.sleep(random.uniform(0.1, 1.0) * longest)  # noqa: S311 - nothing is secret about it
        # Once that was in vain, somebody has the lock for longer, and is not waited for here any more.
        self._busy += 1
        begin("begin immediate")
        self._busy = 0

    def busy_for(self) -> float:
        """How long to leave a store alone that was busy: longer each time."""
        return min(pause() * (1 << min(self._busy, 10)), _LONGEST_BUSY)

    def _begin(self, request: str | None) -> SqliteStep:
        """See who is there, and end what has run out."""
        execute = self._file.connection.execute
        now = self._clock.now()
        sessions = [Session(*row) for row in execute(SESSIONS).fetchall()]
        if self._commits is not None:
            self._see_whether_it_was_done(self._commits, sessions)
        changes = last_change(execute, self._writer)
        changes.token = max(
            changes.token, self._highest
        )  # should the file be another one by now, they grow all the same
        step = SqliteStep(execute, now, self._ttl, changes, sessions, self._view, self._seen)
        me = next((session for session in sessions if session.id == self._session), None)
        if me is None or me.expires_at <= now:
            self._join(step, me)
        else:
            step.i_am(me)
        for session in [session for session in step.others if session.expires_at <= now]:
            step.expire(session)
        if self._uncertain:
            step.end_unknown(self._view.tokens(), but=request)
        if now >= self._renew_at:
            step.me_changed = True
            write_moment(execute, self._file.base, now, self._clock.wall() - now)
        return step

    def _see_whether_it_was_done(self, step: SqliteStep, sessions: list[Session]) -> None:
        """A step failed in its commit, or just after it. If it was done all the same, it must not be done again."""
        if wrote(self._file.connection.execute, step.first_number, self._writer):
            del self._pending[: step.acts]
        if any(session.id == step.me.id for session in sessions):
            self._session = step.me.id  # it may have begun in that step
        self._commits = None

    def _join(self, step: SqliteStep, expired: Session | None) -> None:
        """Begin a session. If we had one, it has ended without us, and our leases with it: they never come back."""
        me = Session(uuid.uuid4().hex, step.now, self._weight, step.changes.served)
        me.bell, me.pid = self._bell.port, self._pid
        step.join(me)
        if expired is not None:
            step.expire(expired)
        if self._session is not None:
            self._view.lose(f"it was not renewed for {self._ttl:g}s" if expired else "the others had given it up")
        self._renew_at = step.now

    def _committed(self, step: SqliteStep) -> None:
        del self._pending[: step.acts]
        self._commits = None
        self._view.step_done()
        self._session = step.me.id
        self._highest = step.changes.token
        if step.is_news:
            self._data_version = _NEVER_LOOKED  # what others did is still to be looked at, and our own with it
        else:
            self._seen = step.changes.number
        if step.me_changed:
            self._renew_at = step.now + self._ttl / 3
            self.valid_until = step.me.expires_at - min(_LONGEST_MARGIN, _MARGIN * self._ttl)
        self.next_look = step.next_expiry()
        for port in step.rings:
            self._bell.call(port)

    def _undo(self, step: SqliteStep | None) -> None:
        """The step failed: nothing of it counts, and what the view was told in it may not be so."""
        if step is None and not self._file.in_transaction():
            return  # it had not begun
        self._seen = self._data_version = _NEVER_LOOKED
        self._uncertain = True
        self._view.step_failed()
        try:
            if self._file.in_transaction():
                self._file.connection.execute("rollback")
        except sqlite3.Error:
            self._in_trouble = True

    def _failed(self, error: Exception) -> Exception:
        if is_busy(error):
            return StoreBusy()
        why = passing(error)
        if why is None:
            return StoreDamaged(path=str(self._file.path), detail=str(error))
        self._in_trouble = True
        return StoreTrouble(why)

    def _reconnect(self) -> None:
        self._seen = self._data_version = _NEVER_LOOKED
        try:
            is_another = self._file.reopen()
        except StoreUnavailable as error:
            raise StoreTrouble(error.detail) from None
        self._in_trouble = False
        if is_another:
            self._pending.clear()  # they were about the other one
            self._view.lose("the file was removed or replaced")
            self._session = None
            self._view.enrol_again()

    def _insist(self, act: Callable[[], T]) -> T:
        deadline = time.monotonic() + _INSIST_JOINING
        while True:
            try:
                return act()
            except (StoreBusy, StoreTrouble) as error:
                if time.monotonic() > deadline:
                    detail = str(error) or "other processes keep it locked"
                    raise StoreUnavailable(path=str(self._file.path), detail=detail) from None
            time.sleep(pause())

    # -- looking ----------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Tell the view what others did since the last look. Cheap when that is nothing: then False."""
        if self._session is None or self._left or self._in_trouble:
            return False
        self._require_own_process()
        let_others_fork()
        file = self._file
        file.at_work += 1
        try:
            return self._look()
        finally:
            file.at_work -= 1

    def _look(self) -> bool:
        assert self._session is not None  # noqa: S101 - for the type checker
        execute = self._file.connection.execute
        try:
            # Changes whenever another connection has committed; asking takes a few microseconds and no lock.
            data_version = execute("pragma data_version").fetchone()[0]
            if data_version == self._data_version:
                return False
            try:
                execute("begin")
                newest = execute("select max(number) from log").fetchone()[0]
                news = news_since(execute, self._seen, self._session) if newest != self._seen else None
                expiry = execute("select min(expires_at) from sessions where id != ?", (self._session,)).fetchone()[0]
            finally:
                if self._file.connection.in_transaction:
                    execute("commit")
            if news is not None:
                tell(self._view, *news)
        except sqlite3.Error as error:
            failed = self._failed(error)
            if isinstance(failed, StoreDamaged):
                raise failed from None
            return False
        self._data_version = data_version
        self._seen = newest
        self.next_look = FOREVER if expiry is None else expiry
        return news is not None

    # -- leaving ----------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """End the session and all its leases at once. From any thread, at any time; again does nothing."""
        if self._left or self._elsewhere():
            return
        self._left = True
        if self._session is not None:
            self._end_session(self._session)
        self._file.leave()

    def _end_session(self, session: str) -> None:
        """On a connection of its own: another thread may be in the middle of a step, never to go on."""
        deadline = time.monotonic() + _INSIST_LEAVING
        while True:
            try:
                ports = self._file.end_session(session)
                break
            except (sqlite3.Error, OSError):
                if time.monotonic() > deadline:
                    return  # then its leases end by themselves, when they are not renewed
            time.sleep(pause())
        for port in ports:
            self._bell.call(port)

    def close(self) -> None:
        """Leave, and close the file. Only when no step is under way."""
        if self._elsewhere():
            return
        if self._pending and not self._left:
            self._write_the_rest()
        self.leave()
        self._file.close()

    def _write_the_rest(self) -> None:
        deadline = time.monotonic() + _INSIST_LEAVING
        while self._pending and time.monotonic() < deadline:
            try:
                self._plain_step()
            except (StoreBusy, StoreTrouble):
                time.sleep(pause())
            except StoreError:
                return

    # -- other processes --------------------------------------------------------------------------------------

    def _elsewhere(self) -> bool:
        """Whether this is a fork of the process that opened the file: SQLite's connections must not be carried over."""
        return os.getpid() != self._pid

    def _require_own_process(self) -> None:
        if self._elsewhere():
            raise StoreUnavailable(
                path=str(self._file.path),
                detail=f"this pool was made in process {self._pid} and forked; make one in each process",
            )
        if self._left:
            raise PoolClosed
