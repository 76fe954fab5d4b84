"""The pool's state on a Redis server, shared by processes of many machines.

A step is decided here, on what this process last heard, and sent to the server with the version of all that it was
decided on; there it is done as a whole, or answered with what has changed, and then decided again. A step has a number,
so that one whose answer was lost is known to have been done or not. What does not come within a fraction of a second
is trouble, and is never waited for in a step.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from redis.exceptions import ConnectionError as Disconnected

from ...errors import StoreDamaged, StoreError
from ...pool.core.fair_queue import Session
from ...pool.core.limits.base import FOREVER
from ...pool.protocols import StoreView
from ...pool.store_protocol import Act, Bid, Granted, Refused, StoreBusy, StoreTrouble
from ...util.clock import Clock
from ..session import SessionStore
from .errors import FAILURES
from .leave_session import depart, insist_on_leaving, let_run_out
from .metadata import Known, Meta
from .peers import Company
from .pubsub_wakeup import RedisBell
from .replica import NEW, Replica, Unreadable
from .server_time import Heard
from .step import RedisStep
from .step_messages import LOOK, Order, Reply, read_reply
from .store_clock import StoreClock
from .store_connection import Greeting, Link

T = TypeVar("T")

_TRIES: Final = 12
_CUT: Final = (Disconnected, OSError)


class _Sent(NamedTuple):
    """A step of which we do not know whether it was done."""

    number: int
    session: str
    acts: Sequence[Act]  # of those that were put off
    joins: bool


class RedisStore(SessionStore[RedisStep]):
    """One process's access to the server. Used under the pool's lock, but for ``leave``."""

    def __init__(
        self, link: Link, clock: Clock, bell: RedisBell, *, ttl: float, weight: float, view: StoreView
    ) -> None:
        self._asleep_for = link.server_time.asleep_for
        super().__init__(link.place.shown, clock, ttl=ttl, weight=weight, view=view)
        self._link = link
        self._bell = bell
        self._host = socket.gethostname()
        self._greeting: Greeting | None = None  # the connection that is in use
        self._time = StoreClock(link, ttl, self._others)
        self._company = Company(self._time.patience)
        self._replica = Replica()
        self._numbers = 0  # of steps
        self._sessions = 0
        self._gone = False  # the server says that our session has run out
        self._asked_at = -FOREVER  # when the newest answer was asked for
        self._new_enough = FOREVER  # a step that changes nothing need not be sent if we have asked then or later
        self._newest = 0  # the newest change that was heard of, whatever is forgotten
        self._unknown: _Sent | None = None
        self._to_compare = False  # what the store knows of our leases with what we do
        self._too_few = False  # fewer sessions can run out than there are
        self._enrolling_until: float | None = None
        self._not_enrolled = False  # the store is another one, which does not know our credentials
        self._told_of_rest = ""  # what people were told
        link.known = self._known
        self._insist(self._be_ready)  # a first answer may be late, and lost with its connection

    def _salt(self) -> bytes:
        return bytes.fromhex(self._time.meta.salt)

    def _known(self) -> Known:
        return Known(self._time.meta.epoch, self._newest, self._highest, self._time.meta.longest)

    @property
    def valid_until(self) -> float:
        """When our leases must count as lost. While this machine sleeps, its clock stands still and theirs goes on."""
        return self._valid_until - self._asleep_for()

    @valid_until.setter
    def valid_until(self, at: float) -> None:
        self._valid_until = at + self._asleep_for()

    def nudge(self) -> None:
        """Wake whoever calls ``keep_up``: it may be due earlier than was thought."""
        self._bell.release()

    # -- granting ---------------------------------------------------------------------------------------------

    def try_grant(self, bid: Bid) -> Granted | Refused:
        """Lease one slot, if the rules allow it at this moment, and grants do not rest."""
        self._new_enough = bid.since
        try:
            answer = super().try_grant(bid)
        finally:
            self._new_enough = FOREVER
        if isinstance(answer, Granted):
            return Granted(self._highest, answer.at) if answer.token == NEW else answer
        if answer.why != self._told_of_rest and answer.not_before is not None:
            self._told_of_rest = answer.why
            if answer.why:
                left = answer.not_before - self._clock.now()
                self._view.note(f"no lease starts in the next {left:.1f} s: {answer.why}")
        return answer

    def _grant(self, step: RedisStep, bid: Bid) -> Granted | Refused:
        until = self._time.rests_until()
        if until <= step.now:
            return super()._grant(step, bid)
        return Refused(until, self._time.meta.why)

    # -- steps ------------------------------------------------------------------------------------------------

    def _step(self, act: Callable[[RedisStep], T], request: str | None = None) -> T:
        try:
            return self._try(act, request)
        except Unreadable as error:
            raise StoreDamaged(path=self.where, detail=str(error)) from None

    def _try(self, act: Callable[[RedisStep], T], request: str | None) -> T:
        deadline = time.monotonic() + self._link.limit
        for _ in range(_TRIES):
            self._require_own_process()  # each time: who leaves may have done so meanwhile, from another thread
            self._be_ready()
            step = self._begin(request)
            try:
                step.acts = len(self._pending)
                self._do_what_was_put_off(step, (StoreTrouble, StoreBusy, StoreError, Unreadable))
                answer = act(step)
                done = self._send(step)
            except BaseException:
                self._undo(step)
                if self._unknown is not None:
                    self._replica.forget()  # it may be half of it
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
        """See who is there, and end what has run out."""
        now = self._clock.now()
        if now >= self.next_look and not self._company.run_out:
            self._converse(LOOK)
            now = self._clock.now()
        step = RedisStep(self._replica, self._time.border, now, self._view, host=self._host)
        step.former.update(self._former)
        me = _find(step.sessions, self._session)
        if me is None or self._gone:
            self._join(step, me)
        else:
            step.i_am(me)
            self._leave_abandoned_behind(step)
        if step.others or self._company.run_out:
            self._see_to_the_others(step)
        if self._uncertain:
            step.end_unknown(self._view.tokens(), but=request)
        return step

    def _see_to_the_others(self, step: RedisStep) -> None:
        """End the sessions of those that are gone."""
        self._company.expire_gone(step)
        too_far = self._company.too_far(step.others, self._time.tolerance, step.now)
        if too_far or self._too_few:
            assert self._greeting is not None  # noqa: S101 - for the type checker
            now = self._time.border.to_store(self._clock.now())
            self._link.correct_expiry(self._greeting.wire, step.others, too_far, now)
            self._too_few = False

    def _join(self, step: RedisStep, expired: Session | None) -> None:
        """Begin a session. If we had one, it has ended without us, and our leases with it: they never come back."""
        me = self._new_session(step)
        step.join(me)
        self._company.joined(me.id, step.now)  # from here on: in the very first step nobody is taken for gone
        if expired is not None:
            step.expire(expired)
        if self._session is not None:
            self._view.lose(f"it was not renewed for {self._ttl:g}s" if expired else "the others had given it up")
        self._renew_at = step.now

    def _new_session(self, step: RedisStep) -> Session:
        self._sessions += 1
        me = Session(f"{self._bell.name}.{self._sessions}", 0.0, self._weight, step.served)
        me.pid, me.ttl = self._pid, self._ttl
        return me

    def _send(self, step: RedisStep) -> bool:
        """Let the server do it. False: it was not done, and is to be decided again."""
        texts = step.texts()
        renews = step.now >= self._renew_at or step.me_changed
        if self._asked_at >= self._new_enough and not (texts or renews or step.acts or step.ended):
            self._done(step, 0)
            return True
        self._numbers += 1
        order = Order(
            step.me.id,
            self._numbers,
            joins=step.joins,
            renew=self._ttl if renews else None,
            floor=self._highest if step.grants else None,
            checks=step.checks(),
            texts=texts,
            ended=step.ended,
            rings=[self._link.bell_of(session) for session in step.rings],
        )
        self._unknown = _Sent(self._numbers, step.me.id, self._pending[: step.acts], step.joins)
        sent, reply = self._converse(order)
        was_done = reply.what == "late" and reply.was_done(order.number)  # its answer was lost, and asked for again
        if renews and (reply.what in ("done", "news") or was_done) and (reply.what != "news" or not step.joins):
            self._renewed(sent)
        if reply.what != "done" and not was_done:
            self._unknown = None
            self._gone = self._gone or reply.what == "gone"
            return False
        if step.joins:
            self._session, self._gone = step.me.id, False
            if step.is_continued:
                self._company.goes_on_as(step.me.id)
            else:
                self._company.joined(step.me.id, sent)
        if not was_done:
            self._replica.wrote(texts, step.records, reply.sequence, reply.token)
        token = reply.last_token() if was_done else reply.token
        if token is not None:
            self._highest = token
        if step.ended:
            self._company.ended(step.ended)
        self._too_few = reply.sessions is not None and reply.sessions < len(step.sessions)
        self._uncertain = True
        self._done(step, step.acts)
        self._unknown = None
        return True

    def _renewed(self, sent: float) -> None:
        self._renew_at = sent + self._ttl / 3
        self.valid_until = sent + self._ttl - self._margin

    def _undo(self, step: RedisStep) -> None:
        """The step was in vain: nothing of it counts, and what the view was told in it may not be so."""
        self._replica.untold.update(step.touched())
        self._replica.forget_sessions(step.changed_sessions())
        self._uncertain = True
        self._view.step_failed()

    # -- talking to the server --------------------------------------------------------------------------------

    def _converse(self, order: Order) -> tuple[float, Reply]:
        """Send it. Returns when, and what was answered; the news in it are taken over."""
        sent = self._clock.now()
        words = order.words(
            self._link.server_time.imposed(sent), self._time.meta.version, self._time.between(sent), self._replica.seen
        )
        said = self._ask(words)
        try:
            reply = read_reply(said)
        except ValueError:
            raise Unreadable("what the server answers is not readable") from None
        self._take_in(reply, self._link.server_time.received(sent, reply.hour))
        return sent, reply

    def _ask(self, words: list[str]) -> bytes:
        """What the server says to it. After a cut it is sent again, once: what was done is not done twice."""
        assert self._greeting is not None  # noqa: S101 - for the type checker
        try:
            return self._link.apply(self._greeting.wire, words)
        except FAILURES as error:
            failed = self._link.failed(error)
            if isinstance(error, TimeoutError) or not isinstance(error, _CUT):
                raise failed from None
            if not self._link.mend_in_a_step():
                raise StoreTrouble(self._link.why) from None  # which says more than that it was cut
        greeting = self._link.greeting
        if greeting is None or greeting.meta.version != self._time.meta.version:
            raise failed
        self._greeting = greeting
        try:
            return self._link.apply(greeting.wire, words)
        except FAILURES as error:
            raise self._link.failed(error) from None

    def _take_in(self, reply: Reply, heard: Heard) -> None:
        if reply.what == "meta":
            self._time.meta_is_old = True
            return
        if not self._time.agrees(heard) and not self._time.fits(heard, alive=self._alive(heard.sent)):
            self._clocks_moved()
        if reply.what == "time":
            return
        self._replica.absorb(reply.news, reply.sequence)
        self._newest = max(self._newest, reply.sequence)
        self._asked_at = self._link.server_time.answered_at(heard.sent)
        if reply.expiry is not None:
            self._company.seen(reply.expiry, heard.hour + self._time.meta.shift, heard.received, self._time.border)
            self.next_look = self._company.next_look

    def _alive(self, now: float) -> bool:
        """Whether our session should be in force: then the store's time has been ours all along."""
        return self._session is not None and not self._gone and now < self.valid_until + self._margin

    def _others(self) -> dict[str, float]:
        """Who else was there when we last heard, and for how long each is renewed."""
        sessions, _ = self._replica.line(self._time.border, self._host)
        return {session.id: session.ttl for session in sessions if session.id != self._session}

    def _clocks_moved(self) -> None:
        """What is known has other instants now, by this process's clock."""
        self._replica.forget_line()
        self._replica.tell_all()
        self._renew_at = self._clock.now()

    # -- coming and coming back -------------------------------------------------------------------------------

    def _be_ready(self) -> None:
        """Have a connection, and know what the store there says of itself. Raises StoreTrouble."""
        greeting = self._link.greeting
        if greeting is None:
            raise StoreTrouble(self._link.why)
        if greeting is not self._greeting:
            self._adopt(greeting)
        if self._time.meta_is_old:
            self._hear_of_the_store(greeting)
        if self._not_enrolled:
            self._enrol_again()
        if self._unknown is not None:
            self._find_out(self._unknown)
        if self._to_compare:
            self._compare()

    def _adopt(self, greeting: Greeting) -> None:
        self._greeting = greeting
        # The server may have forgotten what it did last, and done other things since by the same numbers.
        self._replica.forget()
        self._to_compare = True
        if not self._time.is_new(greeting.meta):
            self._meta_came(greeting.meta, greeting.heard)
            return
        before = self._session
        self._time.begin(greeting.meta, greeting.heard)
        self._newest = 0
        self._unknown, self._session, self._gone = None, None, False
        self._pending.clear()  # they were about the other one
        self._abandoned.clear()
        self._former.clear()
        if before is not None:
            self._view.lose(greeting.meta.why or "the store is another one by now")
            self._not_enrolled = True

    def _hear_of_the_store(self, greeting: Greeting) -> None:
        try:
            meta, heard = self._link.read_meta(greeting.wire), self._link.server_time.read(greeting.wire)
        except FAILURES as error:
            raise self._link.failed(error) from None
        if meta is None or self._time.is_new(meta):
            self._link.drop("the store is another one by now")  # and is met as such
            raise StoreTrouble(self._link.why)
        self._meta_came(meta, heard)

    def _meta_came(self, meta: Meta, heard: Heard) -> None:
        newcomer = self._company.is_newcomer(heard.sent)
        if not self._time.renewed(meta, heard, alive=self._alive(heard.sent), newcomer=newcomer):
            self._clocks_moved()

    def _compare(self) -> None:
        """See what is there. If that is not all our leases, something is forgotten, and others may have them."""
        if not self._replica.seen and self._converse(LOOK)[1].what != "done":
            raise StoreBusy
        self._to_compare, self._uncertain = False, True
        if self._session is not None:
            records = map(self._replica.credential, self._replica.numbers("c"))
            known = {lease.token for record in records for lease in record.leases if lease.session == self._session}
            if not known.issuperset(self._view.in_hand()):
                self._view.lose("the server has forgotten it (restored from an older copy?)")

    def _enrol_again(self) -> None:
        """As far as one comes in the time of one answer; the rest, and what was to be done, is for the next step."""
        self._not_enrolled, self._enrolling_until = False, time.monotonic() + self._link.limit
        new_enough, self._new_enough = self._new_enough, -FOREVER  # those that are enrolled need not be sent again
        try:
            self._view.enrol_again()
        except BaseException:
            self._not_enrolled = True
            raise
        finally:
            self._enrolling_until, self._new_enough = None, new_enough
        raise StoreBusy  # what was to be done was about numbers of the other store

    def _insist(self, act: Callable[[], T]) -> T:
        if self._enrolling_until is None:
            return super()._insist(act)
        # In the middle of a step nobody insists: that step fails, and the rest of this is done in the next.
        if time.monotonic() > self._enrolling_until:
            raise StoreBusy
        return act()

    def _find_out(self, sent: _Sent) -> None:
        """Whether a step was done whose answer never came. After this one it can be done no more."""
        self._numbers += 1
        at, reply = self._converse(Order(sent.session, self._numbers, renew=self._ttl))  # kept, as any that renews
        if reply.what in ("meta", "time"):
            raise StoreBusy
        if reply.was_done(sent.number):
            for act in sent.acts:  # an interrupt may have come when they were struck off already
                if self._pending[:1] == [act]:
                    del self._pending[0]
            if sent.joins:
                self._session, self._gone = sent.session, reply.what == "gone"
                self._company.joined(sent.session, at)
            self._highest = max(self._highest, reply.last_token() or 0)
        self._unknown = None

    def _between_tries(self) -> None:
        """While a caller insists, who is the only one there: nobody else may be mending yet."""
        if self._link.mend_in() <= 0:
            self._link.mend()
        super()._between_tries()

    def _is_due(self, now: float) -> bool:
        return super()._is_due(now) or (self._link.greeting is not None and self._link.greeting is not self._greeting)

    # -- looking ----------------------------------------------------------------------------------------------

    def look(self, since: float = FOREVER) -> bool:
        """Tell the view what others did; what was heard at *since* or later is new enough. False: nothing."""
        if self._session is None or self._left or self._gone or self._link.greeting is not self._greeting:
            return False
        self._require_own_process()
        if self._greeting is None or self._not_enrolled:
            return False
        try:
            if self._asked_at < since:
                self._converse(LOOK)
            if self._time.meta_is_old:
                self._renew_at = self._clock.now()
                self.nudge()
            return self._tell()
        except (StoreTrouble, StoreBusy):  # the store may just say something else of itself: a step sees to it
            return False
        except Unreadable as error:
            raise StoreDamaged(path=self.where, detail=str(error)) from None

    def _tell(self) -> bool:
        if not self._replica.untold:
            return False
        step = RedisStep(self._replica, self._time.border, self._clock.now(), self._view, host=self._host)
        me = _find(step.sessions, self._session)
        if me is None:
            return False  # we have been given up; the next step sees to it
        step.i_am(me)
        return step.tell_the_rest()

    # -- leaving ----------------------------------------------------------------------------------------------

    def _end_session(self, session: str) -> None:
        leave = partial(depart, self._link, session, self._time.border, self._view, self._host)
        insist_on_leaving(leave, super()._between_tries)

    def _let_run_out(self, session: str) -> None:
        leave = partial(let_run_out, self._link, session, self._out_for or self._ttl)
        insist_on_leaving(leave, super()._between_tries)

    def _let_go(self, *, closed: bool) -> None:
        if closed:
            self._link.close()


def _find(sessions: Sequence[Session], wanted: str | None) -> Session | None:
    for session in sessions:
        if session.id == wanted:
            return session
    return None
