"""RedisStore: a pool's state on a Redis server, shared by processes of many machines.

Steps use optimistic concurrency. This process decides a step on its replica of the records, and sends it with the
versions of all records it depends on. The server executes the step as a whole, or replies with what has changed; then
the step is decided again. A step has a number, so that after a lost reply the server knows whether it was executed. A
reply that does not arrive within a fraction of a second is a transient error; a step never waits longer.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from redis.exceptions import ConnectionError as Disconnected

from ...errors import StoreDamaged, StoreError
from ...pool.core.limits.base import FOREVER
from ...pool.protocols import StoreView
from ...pool.store_protocol import SlotGranted, SlotRefused, SlotRequest, StoreBusy, TransientStoreError
from ...util.clock import Clock
from ..process_fairness import StoreSession
from ..session import SessionStore
from .errors import FAILURES
from .leave_session import leave_session, retry_leaving, schedule_expiry
from .metadata import KnownStoreState, StoreMetadata
from .peers import PeerSessions
from .pubsub_wakeup import PubSubWakeup
from .replica import NEW, Replica, UnreadableRecord
from .server_time import ServerTimeReading
from .step import RedisStep
from .step_messages import READ_ONLY_REQUEST, StepReply, StepRequest, UnconfirmedStep, parse_reply
from .store_clock import StoreClock
from .store_connection import Handshake, StoreConnection

T = TypeVar("T")

_TRIES: Final = 12
_CUT: Final = (Disconnected, OSError)


class RedisStore(SessionStore[RedisStep]):
    """One process's access to the server. Used under the pool's lock, except for ``leave``."""

    def __init__(
        self,
        connection: StoreConnection,
        clock: Clock,
        wakeup: PubSubWakeup,
        *,
        ttl: float,
        weight: float,
        view: StoreView,
    ) -> None:
        self._suspend_time = connection.server_time.suspend_time
        super().__init__(connection.place.shown, clock, ttl=ttl, weight=weight, view=view)
        self._connection = connection
        self._wakeup = wakeup
        self._host = socket.gethostname()
        self._handshake: Handshake | None = None  # of the connection in use
        self._time = StoreClock(connection, ttl, self._others)
        self._peers = PeerSessions(self._time.settling_time)
        self._replica = Replica()
        self._numbers = 0  # of steps
        self._sessions = 0
        self._gone = False  # according to the server, our session has expired
        self._requested_at = -FOREVER  # when the newest reply was requested
        self._fresh_since = (
            FOREVER  # a step without changes is not sent if the newest reply was requested then or later
        )
        self._newest = 0  # the newest change ever seen
        self._unknown: UnconfirmedStep | None = None
        self._to_compare = False  # compare the store's record of our leases with the view's
        self._too_few = False  # fewer sessions have an expiry than exist
        self._enrolling_until: float | None = None
        self._not_enrolled = False  # the store was replaced, and does not have our credentials
        self._pause_reported = ""  # the reason last reported
        connection.known = self._known
        self._retry(self._ensure_connected)  # the first reply may be late, and lost with its connection

    def _salt(self) -> bytes:
        return bytes.fromhex(self._time.meta.salt)

    def _known(self) -> KnownStoreState:
        return KnownStoreState(self._time.meta.epoch, self._newest, self._highest, self._time.meta.longest)

    @property
    def valid_until(self) -> float:
        """Instant at which our leases count as lost, allowing for the time that this machine was suspended."""
        return self._valid_until - self._suspend_time()

    @valid_until.setter
    def valid_until(self, at: float) -> None:
        self._valid_until = at + self._suspend_time()

    def wake_maintenance(self) -> None:
        """Wake the thread that calls ``maintain``, which may be due earlier than it knows."""
        self._wakeup.release()

    # -- granting ---------------------------------------------------------------------------------------------

    def try_grant(self, bid: SlotRequest) -> SlotGranted | SlotRefused:
        """Lease one slot, if the rules allow it now and grants are not paused."""
        self._fresh_since = bid.since
        try:
            answer = super().try_grant(bid)
        finally:
            self._fresh_since = FOREVER
        if isinstance(answer, SlotGranted):
            return SlotGranted(self._highest, answer.at) if answer.token == NEW else answer
        if answer.why != self._pause_reported and answer.not_before is not None:
            self._pause_reported = answer.why
            if answer.why:
                left = answer.not_before - self._clock.now()
                self._view.note(f"no lease starts in the next {left:.1f} s: {answer.why}")
        return answer

    def _grant(self, step: RedisStep, bid: SlotRequest) -> SlotGranted | SlotRefused:
        until = self._time.grants_paused_until()
        if until <= step.now:
            return super()._grant(step, bid)
        return SlotRefused(until, self._time.meta.why)

    # -- steps ------------------------------------------------------------------------------------------------

    def _step(self, act: Callable[[RedisStep], T], request: str | None = None) -> T:
        try:
            return self._try(act, request)
        except UnreadableRecord as error:
            raise StoreDamaged(path=self.where, detail=str(error)) from None

    def _try(self, act: Callable[[RedisStep], T], request: str | None) -> T:
        deadline = time.monotonic() + self._connection.limit
        for _ in range(_TRIES):
            self._require_own_process()  # each time: another thread may have left the store
            self._ensure_connected()
            step = self._begin(request)
            try:
                step.acts = len(self._pending)
                self._run_deferred(step, (TransientStoreError, StoreBusy, StoreError, UnreadableRecord))
                answer = act(step)
                done = self._send(step)
            except BaseException:
                self._undo(step)
                if self._unknown is not None:
                    self._replica.forget()  # it may be half updated
                raise
            if done:
                self._busy = 0
                return answer
            self._undo(step)
            if time.monotonic() > deadline:
                break
        self._busy += 1
        raise StoreBusy

    def _begin(self, request: str | None) -> RedisStep:
        """Begin a step: join or continue our session, and end expired ones."""
        now = self._clock.now()
        if now >= self.next_refresh_at and not self._peers.expired:
            self._exchange(READ_ONLY_REQUEST)
            now = self._clock.now()
        step = RedisStep(self._replica, self._time.clock_offset, now, self._view, host=self._host)
        step.former.update(self._former)
        me = step.find_session(self._session)
        if me is None or self._gone:
            self._join(step, me)
        else:
            step.set_own_session(me)
            self._split_off_abandoned(step)
        if step.others or self._peers.expired:
            self._end_expired_peers(step)
        if self._uncertain:
            step.end_unknown(self._view.unreturned_tokens(), but=request)
        return step

    def _end_expired_peers(self, step: RedisStep) -> None:
        """End expired sessions, and correct expiries that are too late or missing."""
        self._peers.expire_gone(step)
        too_far = self._peers.find_expiring_too_late(step.others, self._time.tolerance, step.now)
        if too_far or self._too_few:
            assert self._handshake is not None  # noqa: S101 - for the type checker
            now = self._time.clock_offset.to_store(self._clock.now())
            self._connection.correct_expiry(self._handshake.connection, step.others, too_far, now)
            self._too_few = False

    def _join(self, step: RedisStep, expired: StoreSession | None) -> None:
        """Begin a session. If we had one, it has ended without us, and its leases are lost."""
        me = self._new_session(step)
        step.join(me)
        self._peers.on_join(me.id, step.now)  # already here, so that this step does not end others
        if expired is not None:
            step.expire(expired)
        if self._session is not None:
            self._view.on_session_lost(
                f"it was not renewed for {self._ttl:g}s" if expired else "another process ended its session"
            )
        self._renew_at = step.now

    def _new_session(self, step: RedisStep) -> StoreSession:
        self._sessions += 1
        me = StoreSession(f"{self._wakeup.name}.{self._sessions}", 0.0, self._weight, step.served)
        me.pid, me.ttl = self._pid, self._ttl
        return me

    def _send(self, step: RedisStep) -> bool:
        """Send the step to the server. Return False if it was not executed and must be decided again."""
        texts = step.writes()
        renews = step.now >= self._renew_at or step.me_changed
        if self._requested_at >= self._fresh_since and not (texts or renews or step.acts or step.ended):
            self._on_step_done(step, 0)
            return True
        self._numbers += 1
        request = StepRequest(
            step.me.id,
            self._numbers,
            joins=step.joins,
            renew=self._ttl if renews else None,
            floor=self._highest if step.grants else None,
            read_versions=step.read_versions(),
            writes=texts,
            ended=step.ended,
            wakeup_sessions=[self._connection.wakeup_channel(session) for session in step.wakeup_sessions],
        )
        self._unknown = UnconfirmedStep(self._numbers, step.me.id, self._pending[: step.acts], step.joins)
        sent, reply = self._exchange(request)
        was_done = reply.what == "late" and reply.was_done(request.number)  # sent again after a lost reply
        if renews and (reply.what in ("done", "news") or was_done) and (reply.what != "news" or not step.joins):
            self._renewed(sent)
        if reply.what != "done" and not was_done:
            self._unknown = None
            self._gone = self._gone or reply.what == "gone"
            return False
        if step.joins:
            self._session, self._gone = step.me.id, False
            if step.is_continued:
                self._peers.continue_as(step.me.id)
            else:
                self._peers.on_join(step.me.id, sent)
        if not was_done:
            self._replica.apply_own_writes(texts, step.records, reply.sequence, reply.token)
        token = reply.last_token() if was_done else reply.token
        if token is not None:
            self._highest = token
        if step.ended:
            self._peers.remove(step.ended)
        self._too_few = reply.sessions is not None and reply.sessions < len(step.sessions)
        self._uncertain = True
        self._on_step_done(step, step.acts)
        self._unknown = None
        return True

    def _renewed(self, sent: float) -> None:
        self._renew_at = sent + self._ttl / 3
        self.valid_until = sent + self._ttl - self._margin

    def _undo(self, step: RedisStep) -> None:
        """Discard a failed step, and mark what it showed to the view as stale."""
        self._replica.unreported.update(step.affected_records())
        self._replica.invalidate_sessions(step.changed_sessions())
        self._uncertain = True
        self._view.step_failed()

    # -- exchange with the server -----------------------------------------------------------------------------

    def _exchange(self, request: StepRequest) -> tuple[float, StepReply]:
        """Send a request and apply the updates in its reply. Return when it was sent, and the reply."""
        sent = self._clock.now()
        words = request.encode(
            self._connection.server_time.imposed(sent),
            self._time.meta.version,
            self._time.find_time_bounds(sent),
            self._replica.seen,
        )
        raw = self._send_request(words)
        try:
            reply = parse_reply(raw)
        except ValueError:
            raise UnreadableRecord("the server's reply is not readable") from None
        self._apply_reply(reply, self._connection.server_time.received(sent, reply.time))
        return sent, reply

    def _send_request(self, words: list[str]) -> bytes:
        """Return the server's reply. After a lost connection send again, once: the server does not execute it twice."""
        assert self._handshake is not None  # noqa: S101 - for the type checker
        try:
            return self._connection.apply(self._handshake.connection, words)
        except FAILURES as error:
            failed = self._connection.failed(error)
            if isinstance(error, TimeoutError) or not isinstance(error, _CUT):
                raise failed from None
            if not self._connection.reconnect_within_step():
                raise TransientStoreError(self._connection.why) from None  # more specific than the lost connection
        handshake = self._connection.handshake
        if handshake is None or handshake.meta.version != self._time.meta.version:
            raise failed
        self._handshake = handshake
        try:
            return self._connection.apply(handshake.connection, words)
        except FAILURES as error:
            raise self._connection.failed(error) from None

    def _apply_reply(self, reply: StepReply, reading: ServerTimeReading) -> None:
        if reply.what == "meta":
            self._time.meta_is_old = True
            return
        if not self._time.is_exact(reading) and not self._time.apply_reading(reading, alive=self._alive(reading.sent)):
            self._clocks_moved()
        if reply.what == "time":
            return
        self._replica.apply_updates(reply.updates, reply.sequence)
        self._newest = max(self._newest, reply.sequence)
        self._requested_at = self._connection.server_time.answered_at(reading.sent)
        if reply.expiry is not None:
            self._peers.update(
                reply.expiry, reading.time + self._time.meta.shift, reading.received, self._time.clock_offset
            )
            self.next_refresh_at = self._peers.next_check_at

    def _alive(self, now: float) -> bool:
        """Return whether our session should be in force, so that our estimate of the store's time is valid."""
        return self._session is not None and not self._gone and now < self.valid_until + self._margin

    def _others(self) -> dict[str, float]:
        """Return the other sessions, as last read, with their TTLs."""
        sessions, _ = self._replica.read_queue(self._time.clock_offset, self._host)
        return {session.id: session.ttl for session in sessions if session.id != self._session}

    def _clocks_moved(self) -> None:
        """Convert all instants again after a change of the clock offset."""
        self._replica.invalidate_queue()
        self._replica.mark_all_unreported()
        self._renew_at = self._clock.now()

    # -- connecting and reconnecting --------------------------------------------------------------------------

    def _ensure_connected(self) -> None:
        """Adopt a new connection, and bring this process's state in line with its store. Raises TransientStoreError."""
        handshake = self._connection.handshake
        if handshake is None:
            raise TransientStoreError(self._connection.why)
        if handshake is not self._handshake:
            self._adopt(handshake)
        if self._time.meta_is_old:
            self._refresh_metadata(handshake)
        if self._not_enrolled:
            self._enrol_again()
        if self._unknown is not None:
            self._resolve_unknown_step(self._unknown)
        if self._to_compare:
            self._compare_leases()

    def _adopt(self, handshake: Handshake) -> None:
        self._handshake = handshake
        # The server may have lost its last changes, and reused their numbers since.
        self._replica.forget()
        self._to_compare = True
        if not self._time.is_new(handshake.meta):
            self._on_metadata(handshake.meta, handshake.time_reading)
            return
        before = self._session
        self._time.adopt_store(handshake.meta, handshake.time_reading)
        self._newest = 0
        self._unknown, self._session, self._gone = None, None, False
        self._pending.clear()  # they concern the former store
        self._abandoned.clear()
        self._former.clear()
        if before is not None:
            self._view.on_session_lost(handshake.meta.why or "the store was replaced")
            self._not_enrolled = True

    def _refresh_metadata(self, handshake: Handshake) -> None:
        try:
            meta, reading = (
                self._connection.read_meta(handshake.connection),
                self._connection.server_time.read(handshake.connection),
            )
        except FAILURES as error:
            raise self._connection.failed(error) from None
        if meta is None or self._time.is_new(meta):
            self._connection.drop("the store was replaced")  # reconnecting finds out the rest
            raise TransientStoreError(self._connection.why)
        self._on_metadata(meta, reading)

    def _on_metadata(self, meta: StoreMetadata, reading: ServerTimeReading) -> None:
        newcomer = self._peers.is_newcomer(reading.sent)
        if not self._time.apply_metadata(meta, reading, alive=self._alive(reading.sent), newcomer=newcomer):
            self._clocks_moved()

    def _compare_leases(self) -> None:
        """Compare the leases in the store with ours. If one is missing, the store has lost data, and so are all."""
        if not self._replica.seen and self._exchange(READ_ONLY_REQUEST)[1].what != "done":
            raise StoreBusy
        self._to_compare, self._uncertain = False, True
        if self._session is not None:
            records = map(self._replica.credential, self._replica.numbers("c"))
            known = {lease.token for record in records for lease in record.leases if lease.session == self._session}
            if not known.issuperset(self._view.held_tokens()):
                self._view.on_session_lost("the server has lost it (restored from an older copy?)")

    def _enrol_again(self) -> None:
        """Enrol all credentials in a replaced store, within the time of one reply; the next step continues."""
        self._not_enrolled, self._enrolling_until = False, time.monotonic() + self._connection.limit
        fresh_since, self._fresh_since = self._fresh_since, -FOREVER  # those already enrolled are not sent again
        try:
            self._view.enrol_again()
        except BaseException:
            self._not_enrolled = True
            raise
        finally:
            self._enrolling_until, self._fresh_since = None, fresh_since
        raise StoreBusy  # the caller's action used numbers of the former store

    def _retry(self, act: Callable[[], T]) -> T:
        if self._enrolling_until is None:
            return super()._retry(act)
        # Within a step there are no retries: the step fails, and the next one continues.
        if time.monotonic() > self._enrolling_until:
            raise StoreBusy
        return act()

    def _resolve_unknown_step(self, sent: UnconfirmedStep) -> None:
        """Find out whether a step without a reply was executed. After this request it can no longer be."""
        self._numbers += 1
        # A step that renews is recorded under its number.
        at, reply = self._exchange(StepRequest(sent.session, self._numbers, renew=self._ttl))
        if reply.what in ("meta", "time"):
            raise StoreBusy
        if reply.was_done(sent.number):
            for act in sent.acts:  # an interrupt may have come after some were removed
                if self._pending[:1] == [act]:
                    del self._pending[0]
            if sent.joins:
                self._session, self._gone = sent.session, reply.what == "gone"
                self._peers.on_join(sent.session, at)
            self._highest = max(self._highest, reply.last_token() or 0)
        self._unknown = None

    def _before_retry(self) -> None:
        """Reconnect in this thread: at first no other thread does."""
        if self._connection.reconnect_delay() <= 0:
            self._connection.reconnect()
        super()._before_retry()

    def _is_due(self, now: float) -> bool:
        return super()._is_due(now) or (
            self._connection.handshake is not None and self._connection.handshake is not self._handshake
        )

    # -- refreshing -------------------------------------------------------------------------------------------

    def refresh(self, since: float = FOREVER) -> bool:
        """Update the view with what others changed; data requested at *since* or later will do. False: no change."""
        if self._session is None or self._left or self._gone or self._connection.handshake is not self._handshake:
            return False
        self._require_own_process()
        if self._handshake is None or self._not_enrolled:
            return False
        try:
            if self._requested_at < since:
                self._exchange(READ_ONLY_REQUEST)
            if self._time.meta_is_old:
                self._renew_at = self._clock.now()
                self.wake_maintenance()
            return self._update_view()
        except (TransientStoreError, StoreBusy):  # the next step handles it
            return False
        except UnreadableRecord as error:
            raise StoreDamaged(path=self.where, detail=str(error)) from None

    def _update_view(self) -> bool:
        if not self._replica.unreported:
            return False
        step = RedisStep(self._replica, self._time.clock_offset, self._clock.now(), self._view, host=self._host)
        me = step.find_session(self._session)
        if me is None:
            return False  # our session has ended; the next step handles it
        step.set_own_session(me)
        return step.update_view()

    # -- leaving ----------------------------------------------------------------------------------------------

    def _end_session(self, session: str) -> None:
        leave = partial(leave_session, self._connection, session, self._time.clock_offset, self._view, self._host)
        retry_leaving(leave, super()._before_retry)

    def _schedule_expiry(self, session: str) -> None:
        leave = partial(schedule_expiry, self._connection, session, self._remote_use_for or self._ttl)
        retry_leaving(leave, super()._before_retry)

    def _detach(self, *, closed: bool) -> None:
        if closed:
            self._connection.close()
