"""The SQLite store, step by step: small processes on one file, with one clock that the test moves."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentos.errors import PoolClosed
from agentos.pool.core.quota_codec import Record
from agentos.pool.store_protocol import (
    CredentialIdentity,
    CredentialUpdate,
    QuotaReservation,
    QuotaUpdate,
    SlotGranted,
    SlotRefused,
    SlotRequest,
    Step,
    StoreBusy,
    TransientStoreError,
    name_request,
)
from agentos.stores.process_fairness import DECLINED, NOTIFY_TIMEOUT
from agentos.stores.sqlite.file import StoreFile
from agentos.stores.sqlite.rows import read_record
from agentos.stores.sqlite.store import SqliteStore
from agentos.testing import FakeClock

from ...background_threads import Background
from ..failing_stores import Bells, Faults, sqlite_error

TTL = 30.0
LIMIT = "tokens per 60s continuous"


class Process:
    """A process that uses the store, and its view: what it holds, and what it knows of the others."""

    def __init__(self, path: Path, clock: FakeClock, port: int, *, ttl: float = TTL, weight: float = 1.0) -> None:
        self.clock = clock
        self.faults = Faults()
        self.bell = Bells(port)
        self.held: set[int] = set()
        self.holders: dict[int, tuple[str, ...]] = {}
        self.lives: dict[int, str] = {}
        self.records: dict[int, Record] = {}
        self.lost: list[str] = []
        self.notes: list[str] = []
        self.file = StoreFile(path, clock, connect=self.faults.connect)
        self.store = SqliteStore(self.file, clock, self.bell, ttl=ttl, weight=weight, view=self)

    # -- the view -------------------------------------------------------------------------------------------------

    def apply_updates(self, credentials: Sequence[CredentialUpdate], quotas: Sequence[QuotaUpdate]) -> None:
        for news in credentials:
            self.holders[news.number], self.lives[news.number] = news.holders, news.life
        for about in quotas:
            self.records[about.number] = about.record

    def on_session_lost(self, why: str) -> None:
        self.held.clear()
        self.lost.append(why)

    def enrol_again(self) -> None:
        raise AssertionError("nobody replaced the file")

    def held_tokens(self) -> Sequence[int]:
        return list(self.held)

    def unreturned_tokens(self) -> Sequence[int]:
        return list(self.held)

    # -- what it does ---------------------------------------------------------------------------------------------

    def enrol(self, name: str, quota: str | None = None) -> tuple[int, int]:
        known = self.store.enrol(CredentialIdentity(self.store.fingerprint(name), name, quota or f"of {name}"))
        self.apply_updates([known.credential], [known.quota])
        return known.credential.number, known.quota.number

    def bid(
        self,
        key: tuple[int, int],
        request: str,
        *,
        slots: int = 1,
        guess: bool = False,
        at_most: int | None = None,
        still_waiting: bool = False,
        free: int = 1,
        sees_all: bool = False,
    ) -> SlotRequest:
        """For a slot of *key*; with *at_most* or a *guess*, what is used is counted in the record of its quota."""

        def reserve(_now: float, _claims: Sequence[str]) -> QuotaReservation | None:
            record = self.records[key[1]]
            used = record.get("used", 0)
            if at_most is not None and used >= at_most:
                return None
            if at_most is None and not guess:
                return QuotaReservation(None)
            new = {**record, "used": used + 1}
            if guess:
                new["limits"] = {LIMIT: {"usage": {"in_flight": in_flight(record) + 1}}}
            self.records[key[1]] = new
            return QuotaReservation(new, (LIMIT,) if guess else ())

        who = f"worker of {request}"
        name = name_request(request, 1, slots)
        return SlotRequest(name, key[0], slots, key[1], who, reserve, lambda _wanted: free, still_waiting, sees_all)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step_done(self) -> None:
        pass

    def step_failed(self) -> None:
        pass

    def ask(self, key: tuple[int, int], request: str = "", **how: Any) -> SlotGranted | SlotRefused:
        return self.send(self.bid(key, request or f"{id(self)} {next(_requests)}", **how))

    def send(self, bid: SlotRequest) -> SlotGranted | SlotRefused:
        answer = self.store.try_grant(bid)
        if isinstance(answer, SlotGranted):
            self.held.add(answer.token)
            self.store.confirm_grant()
        return answer

    def get(self, key: tuple[int, int], request: str = "", **how: Any) -> int:
        """A lease, which there must be; its token."""
        answer = self.ask(key, request, **how)
        assert isinstance(answer, SlotGranted)
        return answer.token

    def end(self, key: tuple[int, int], token: int) -> bool:
        ended: list[bool] = []
        self.store.submit(lambda step: ended.append(step.end(key[0], token)))
        self.held.discard(token)
        return ended[-1]

    def wait(self, *keys: tuple[int, int], passed: bool = False) -> None:
        """Get in line. Whoever comes next comes a little later."""
        self.store.submit(lambda step: step.wait([key[0] for key in keys] or None, None, None, passed=passed))
        self.clock.advance(0.001)

    def count(self, quota: int) -> Callable[[Step], None]:
        """An act that adds one to what the record of a quota says."""

        def count(step: Step) -> None:
            step.read(quota=quota)
            record = self.records[quota] = {**self.records[quota], "count": self.records[quota].get("count", 0) + 1}
            step.write_quota(quota, record)

        return count

    def step(self) -> None:
        """One step in which nothing is asked for."""
        self.store.submit(lambda step: None)


_requests = itertools.count()


def in_flight(record: Record) -> int:
    found: int = record.get("limits", {}).get(LIMIT, {}).get("usage", {}).get("in_flight", 0)
    return found


class Place:
    """The file, its processes, and what is really in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.processes: list[Process] = []

    def process(self, **options: Any) -> Process:
        self.processes.append(Process(self.path, self.clock, 4001 + len(self.processes), **options))
        return self.processes[-1]

    def two(self, **options: Any) -> tuple[Process, Process, tuple[int, int]]:
        """Two processes, and a key that both know."""
        one, other = self.process(**options), self.process(**options)
        key = one.enrol("key-a")
        assert other.enrol("key-a") == key
        return one, other, key

    def rows(self, sql: str, *parameters: object) -> list[Any]:
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute(sql, parameters).fetchall()
        finally:
            connection.close()

    def session(self, process: Process) -> dict[str, Any]:
        names = ("expires_at", "served", "waiting_since", "wanted", "called_at")
        (row,) = self.rows(f"select {', '.join(names)} from sessions where bell = ?", process.bell.port)
        return dict(zip(names, row, strict=True))

    def record(self, quota: int) -> Any:
        return read_record(self.rows("select record from quotas where number = ?", quota)[0][0])

    def close(self) -> None:
        for process in self.processes:
            process.faults.disarm()
            process.store.leave()  # whatever is put off
            process.store.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "pool.sqlite")
    yield place
    place.close()


# -- granting -----------------------------------------------------------------------------------------------------


def test_the_same_request_gets_the_same_grant_however_often_it_is_sent(place: Place) -> None:
    one, _, key = place.two()
    bid = one.bid(key, "r1", at_most=5)

    answers = [one.send(bid) for _ in range(3)]

    assert answers == [answers[0]] * 3
    assert isinstance(answers[0], SlotGranted)
    assert place.rows("select token, request from leases") == [(answers[0].token, bid.request)]
    assert place.record(key[1]) == {"used": 1}


def test_all_processes_together_have_no_more_leases_than_slots_and_a_refusal_says_who_has_them(place: Place) -> None:
    one, other, key = place.two()
    tokens = [one.get(key, "a", slots=2), other.get(key, "b", slots=2)]

    refused = [process.ask(key, slots=2) for process in (one, other)]

    assert refused == [SlotRefused(), SlotRefused()]
    assert len(one.holders[key[0]]) == len(other.holders[key[0]]) == 1
    assert one.holders[key[0]][0].startswith("worker of b (process ")
    assert one.end(key, tokens[0])
    assert other.get(key, slots=2) > max(tokens)


def test_the_rules_are_applied_to_what_is_true_and_not_to_what_was_known(place: Place) -> None:
    one, other, key = place.two()
    one.get(key, slots=9, at_most=2)
    other.get(key, slots=9, at_most=2)

    assert one.ask(key, slots=9, at_most=2) == SlotRefused()

    assert one.records[key[1]] == place.record(key[1]) == {"used": 2}


@pytest.mark.parametrize("sees_all", [False, True], ids=["that asks for one key", "that asks for all"])
def test_what_a_step_has_ended_itself_is_known_to_the_rules_in_it(place: Place, sees_all: bool) -> None:
    """Else what they write would undo it: a request of unknown cost would be in flight for ever."""
    one, other, key = place.two()
    other.get(key, guess=True)
    one.store.refresh()
    assert in_flight(one.records[key[1]]) == 1
    place.clock.advance(TTL / 2)
    one.store.maintain()
    place.clock.advance(TTL / 2)

    one.get(key, at_most=9, sees_all=sees_all)  # the other's session has run out by now

    assert place.record(key[1])["used"] == 2
    assert in_flight(place.record(key[1])) == 0


def test_tokens_grow_though_all_who_knew_them_are_gone(place: Place) -> None:
    one, other, key = place.two()
    tokens = [one.get(key, slots=9), other.get(key, slots=9), one.get(key, slots=9)]
    one.end(key, tokens[2])  # the largest is in no row any more
    one.store.close()
    other.store.close()

    later = place.process()
    again = later.enrol("key-a")

    assert again == key
    assert place.rows("select * from leases") == []
    assert [*tokens, later.get(key)] == [1, 2, 3, 4]


def test_only_the_session_that_has_a_lease_can_end_it(place: Place) -> None:
    one, other, key = place.two()
    token = one.get(key)

    assert not other.end(key, token)
    assert not other.end(key, token + 1)

    assert other.ask(key) == SlotRefused()
    assert one.end(key, token)
    assert not one.end(key, token)


def test_what_is_put_off_while_another_writes_is_done_with_the_next_step(place: Place) -> None:
    one, other, key = place.two()
    token = one.get(key)
    blocker = sqlite3.connect(place.path, isolation_level=None)
    blocker.execute("begin immediate")

    one.store.submit(lambda step: step.end(key[0], token))
    one.store.submit(one.count(key[1]))
    with pytest.raises(StoreBusy):
        other.ask(key)
    assert place.clock.now() < one.store.next_renewal_at() < place.clock.now() + 0.1  # soon
    assert one.bell.acquire(False)  # and its housekeeper is told
    blocker.close()
    place.clock.advance(0.1)
    one.store.maintain()

    assert place.record(key[1]) == {"count": 1}
    assert other.get(key)


def test_a_lock_that_another_has_for_a_moment_is_waited_for(place: Place) -> None:
    one, _, key = place.two()
    one.faults.arm(1, sqlite_error(BUSY), done=False)

    assert one.get(key)

    assert one.faults.fired_at == "begin immediate"


def test_a_locked_store_is_not_polled_for_expired_sessions(place: Place) -> None:
    one, other, _ = place.two()
    place.clock.advance(TTL / 2)
    one.store.maintain()
    place.clock.advance(other.store.next_refresh_at - place.clock.now())
    blocker = sqlite3.connect(place.path, isolation_level=None)
    blocker.execute("begin immediate")

    with pytest.raises(StoreBusy):
        one.store.maintain()

    blocker.close()
    assert one.store.next_refresh_at > place.clock.now()
    assert one.store.next_renewal_at() > place.clock.now()


# -- faults -------------------------------------------------------------------------------------------------------

IO, FULL, BUSY = sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY
FAULTS: dict[str, tuple[Callable[[], BaseException], bool]] = {
    "the disk fails": (lambda: sqlite_error(IO), False),
    "another has it locked": (lambda: sqlite_error(BUSY), False),
    "an interrupt before": (KeyboardInterrupt, False),
    "the disk fails, but it is done": (lambda: sqlite_error(IO), True),
    "an interrupt after": (KeyboardInterrupt, True),
}
faults = pytest.mark.parametrize("fault", FAULTS)


class Trial:
    """A process with a key of its own, about to do something that fails at one statement after the other."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.one, self.other, _ = place.two()
        self.keys: list[tuple[int, int]] = []

    def new_key(self) -> tuple[int, int]:
        name = f"trial {len(self.keys)}"
        key = self.one.enrol(name)
        assert self.other.enrol(name) == key
        self.keys.append(key)
        return key

    def everywhere(self, fault: str, prepare: Callable[[], Callable[[], object]]) -> Iterator[str]:
        """Do what *prepare* returns with the fault at one statement after the other, until it has no more."""
        make, done = FAULTS[fault]
        for number in itertools.count(2 if done else 1):  # a step that has begun and does not know is told of apart
            act = prepare()
            self.one.faults.arm(number, make(), done=done)
            try:
                act()
            except (StoreBusy, TransientStoreError, KeyboardInterrupt):
                pass
            self.one.faults.disarm()
            if not self.one.faults.fired_at:
                assert number > 4
                return
            yield f"{fault} at statement {number}, {self.one.faults.fired_at!r}"

    def judge(self, where: str) -> None:
        """After the next step all agree: what is in the file, what the process holds, and what it knows."""
        one, place = self.one, self.place
        one.step()
        one.store.refresh()
        sessions = [one.store._session, self.other.store._session]
        assert sorted(place.rows("select id from sessions")) == sorted((each,) for each in sessions), where
        mine = place.rows("select token, quota, guessed from leases where session = ?", sessions[0])
        assert {token for token, _, _ in mine} == one.held, where
        for _, quota in self.keys:
            record = place.record(quota)
            assert one.records[quota] == record, where
            assert in_flight(record) == sum(number == quota for _, number, guess in mine if guess), where
        ((newest,),) = place.rows("select token from log order by number desc limit 1")
        assert place.rows("select token from leases where token > ?", newest) == [], where


@pytest.fixture
def trial(place: Place) -> Trial:
    return Trial(place)


@faults
def test_a_grant_that_fails_anywhere_leaves_no_lease_that_its_caller_does_not_know_of(trial: Trial, fault: str) -> None:
    def grant() -> Callable[[], object]:
        key = trial.new_key()
        return lambda: trial.one.ask(key, guess=True)

    for where in trial.everywhere(fault, grant):
        trial.judge(where)
        if not trial.one.held:
            assert isinstance(trial.other.ask(trial.keys[-1]), SlotGranted), where  # the slot is free


@faults
def test_a_grant_that_fails_anywhere_and_is_sent_again_is_granted_once(trial: Trial, fault: str) -> None:
    bids: list[SlotRequest] = []

    def grant() -> Callable[[], object]:
        bids.append(trial.one.bid(trial.new_key(), f"request {len(bids)}", at_most=5))
        return lambda: trial.one.send(bids[-1])

    for where in trial.everywhere(fault, grant):
        answer = trial.one.send(bids[-1])

        assert isinstance(answer, SlotGranted), where
        found = trial.place.rows("select token from leases where credential = ?", bids[-1].credential)
        assert found == [(answer.token,)], where
        assert trial.place.record(bids[-1].quota) == {"used": 1}, where
        trial.judge(where)


@faults
def test_a_grant_that_fails_anywhere_in_a_session_that_begins_anew_leaves_no_lease_behind(
    trial: Trial, fault: str
) -> None:
    def grant() -> Callable[[], object]:
        key = trial.new_key()
        trial.place.clock.advance(TTL + 1)
        trial.other.step()
        return lambda: trial.one.ask(key, guess=True)

    for where in trial.everywhere(fault, grant):
        trial.judge(where)
        if not trial.one.held:
            assert isinstance(trial.other.ask(trial.keys[-1]), SlotGranted), where


@faults
def test_an_end_that_fails_anywhere_is_done_with_the_next_step(trial: Trial, fault: str) -> None:
    def end() -> Callable[[], object]:
        key = trial.new_key()
        token = trial.one.get(key)
        trial.one.held.discard(token)
        return lambda: trial.one.store.submit(lambda step: step.end(key[0], token))

    for where in trial.everywhere(fault, end):
        trial.judge(where)
        assert isinstance(trial.other.ask(trial.keys[-1]), SlotGranted), where


@faults
def test_a_renewal_that_fails_anywhere_is_made_up_for_with_the_next_step(trial: Trial, fault: str) -> None:
    clock = trial.place.clock

    def renew() -> Callable[[], object]:
        clock.advance(TTL / 3)
        trial.other.step()
        return trial.one.store.maintain

    for where in trial.everywhere(fault, renew):
        trial.judge(where)
        clock.advance(TTL / 3)
        trial.one.store.maintain()
        assert trial.place.session(trial.one)["expires_at"] == clock.now() + TTL, where
        assert trial.one.lost == []


@faults
def test_an_act_that_fails_anywhere_is_applied_exactly_once(trial: Trial, fault: str) -> None:
    """Also one that would do something else the second time, as what a lease settles does."""

    def count() -> Callable[[], object]:
        quota = trial.new_key()[1]
        return lambda: trial.one.store.submit(trial.one.count(quota))

    for where in trial.everywhere(fault, count):
        trial.judge(where)
        assert trial.place.record(trial.keys[-1][1]) == {"count": 1}, where


def test_a_caller_that_is_interrupted_before_it_has_noted_its_lease_does_not_keep_it(trial: Trial) -> None:
    key = trial.new_key()
    trial.one.store.refresh()
    assert isinstance(trial.one.store.try_grant(trial.one.bid(key, "r", guess=True)), SlotGranted)

    trial.judge("after a grant that nobody noted")

    assert trial.one.held == set()
    assert trial.other.get(key)


def test_an_interrupt_while_others_are_called_loses_no_slot(trial: Trial) -> None:
    one, other, key, another = trial.one, trial.other, trial.new_key(), trial.new_key()
    token = one.get(another)
    other.wait(another)
    one.held.discard(token)
    one.faults.arm(1, sqlite_error(IO), done=False)
    with pytest.raises(TransientStoreError):
        one.store.submit(lambda step: step.end(another[0], token))

    one.bell.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        one.ask(key)  # and with it what was put off, for which the other is called

    one.bell.interrupts = False
    trial.judge("after an interrupt")
    assert other.get(key)


def test_a_failed_rollback_leaves_no_process_locked_out(trial: Trial) -> None:
    one, key = trial.one, trial.new_key()

    def fail(step: Step) -> None:
        one.count(key[1])(step)
        if not one.faults.fired_at:
            one.faults.arm(1, sqlite_error(IO), done=False)  # the rollback
            raise sqlite_error(FULL)

    with pytest.raises(TransientStoreError):
        one.store.submit(fail)

    assert one.faults.fired_at == "rollback"
    trial.judge("after the rollback")
    assert trial.place.record(key[1]) == {"count": 1}
    assert trial.other.get(key)


def test_an_interrupt_as_a_step_begins_locks_no_process_out(trial: Trial) -> None:
    one, key = trial.one, trial.new_key()
    one.faults.arm(1, KeyboardInterrupt(), done=True)

    with pytest.raises(KeyboardInterrupt):
        one.ask(key)

    assert one.faults.fired_at == "begin immediate"
    assert trial.other.get(key)
    assert one.ask(key) == SlotRefused()


def test_an_act_that_raises_is_not_tried_again(place: Place) -> None:
    """Else one that always does would keep everything else from being done, for ever."""
    one, _, key = place.two()

    def wrong(step: Step) -> None:
        step.write_quota(key[1], {"half": "done"})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        one.store.submit(wrong)

    assert place.record(key[1]) == {}
    one.store.submit(one.count(key[1]))
    assert place.record(key[1]) == {"count": 1}
    assert one.get(key)


# -- sessions -----------------------------------------------------------------------------------------------------


def test_an_expired_session_is_ended_by_a_peer_and_notices_it(place: Place) -> None:
    one, other, key = place.two()
    late = one.get(key, guess=True)
    place.clock.advance(TTL - 1)
    other.store.maintain()
    assert other.ask(key) == SlotRefused()
    place.clock.advance(1)

    taken = other.get(key, guess=True)

    assert taken > late
    assert place.rows("select token from leases") == [(taken,)]
    assert in_flight(place.record(key[1])) == 1
    assert one.lost == []
    one.step()
    assert one.lost == ["another process ended its session"]
    assert one.held == set()
    assert not one.end(key, late)


def test_an_expired_session_is_lost_even_if_no_peer_ended_it(place: Place) -> None:
    one, other, key = place.two()
    late = one.get(key, guess=True)
    place.clock.advance(TTL)

    one.step()

    assert one.lost == [f"it was not renewed for {TTL:g}s"]
    assert place.rows("select token from leases") == []
    assert in_flight(place.record(key[1])) == 0
    assert one.get(key) > late
    assert other.ask(key) == SlotRefused()


def test_a_session_is_renewed_when_a_third_of_its_time_is_over_and_not_before(place: Place) -> None:
    one, _, key = place.two()
    one.get(key)
    began = place.clock.now()
    assert one.store.next_renewal_at() == began + TTL / 3

    place.clock.advance(TTL / 3 - 0.5)
    one.store.maintain()
    assert place.session(one)["expires_at"] == began + TTL
    place.clock.advance(0.5)
    one.store.maintain()

    assert place.session(one)["expires_at"] == place.clock.now() + TTL
    assert one.store.next_renewal_at() == place.clock.now() + TTL / 3


def test_a_holder_stops_a_little_before_others_may_take_its_lease(place: Place) -> None:
    one, other, key = place.two(ttl=5.0)
    one.get(key)
    place.clock.advance(4.4)
    assert not one.store.is_expired()

    place.clock.advance(0.1)

    assert one.store.is_expired()
    other.store.maintain()
    assert other.ask(key) == SlotRefused()


def test_a_waiter_knows_when_the_next_session_expires(place: Place) -> None:
    one, other, key = place.two()
    one.get(key)
    place.clock.advance(1)
    other.wait(key)

    assert other.store.next_refresh_at == place.session(one)["expires_at"]
    one.wait()
    other.store.refresh()
    assert other.store.next_refresh_at == place.session(one)["expires_at"] == place.clock.now() + TTL - 0.001

    place.clock.advance(other.store.next_refresh_at - place.clock.now())
    other.store.maintain()
    assert place.rows("select * from leases") == []


def test_a_lease_that_was_settled_leaves_those_in_flight_alone_when_its_session_ends(place: Place) -> None:
    one, other, key = place.two()
    token = one.get(key, slots=2, guess=True)

    def settle(step: Step) -> None:
        step.write_quota(key[1], {"limits": {LIMIT: {"usage": {"in_flight": 0}}}})
        step.settle(key[0], token)

    one.store.submit(settle)
    other.get(key, slots=2, guess=True)
    one.store.leave()

    assert in_flight(place.record(key[1])) == 1


# -- turns --------------------------------------------------------------------------------------------------------


def test_a_waiter_is_notified_when_a_lease_ends_and_served_before_later_ones(place: Place) -> None:
    holder, waiter, key = place.two()
    token = holder.get(key)
    since = place.clock.now()
    waiter.wait(key)
    assert place.session(waiter)["waiting_since"] == since

    holder.end(key, token)

    assert holder.bell.take_rings() == [waiter.bell.port]
    assert place.session(waiter)["called_at"] == place.clock.now()
    assert holder.ask(key) == SlotRefused(place.clock.now() + NOTIFY_TIMEOUT)
    assert holder.bell.take_rings() == []  # once is enough
    assert waiter.get(key)
    found = place.session(waiter)
    assert (found["waiting_since"], found["called_at"]) == (None, None)


def test_a_call_carries_the_id_of_the_session_that_the_called_process_has_by_then(place: Place) -> None:
    holder, waiter, key = place.two()
    place.clock.advance(TTL * 2)  # both sessions end, and new ones begin
    token = holder.get(key)
    waiter.wait(key)

    holder.end(key, token)
    holder.store.leave()

    ((session,),) = place.rows("select id from sessions where bell = ?", waiter.bell.port)
    assert waiter.bell.session == session
    assert holder.bell.sessions_rung == [session, session]  # for the lease that ended, and for the process that left


def test_one_that_is_called_and_does_not_come_is_passed_over_after_a_moment_and_only_once(place: Place) -> None:
    holder, waiter, key = place.two()
    token = holder.get(key)
    waiter.wait(key)
    holder.end(key, token)
    assert isinstance(holder.ask(key), SlotRefused)

    place.clock.advance(NOTIFY_TIMEOUT + 0.01)

    for _ in range(3):
        holder.end(key, holder.get(key))
    assert holder.bell.take_rings() == [waiter.bell.port]


def test_a_process_that_still_waits_after_a_grant_stays_queued(place: Place) -> None:
    one, other, key = place.two()
    one.wait(key)
    other.wait(key)

    one.get(key, still_waiting=True, slots=2)

    found = place.session(one)
    assert (found["waiting_since"], found["served"]) == (place.clock.now(), 1.0)
    assert place.rows("select max(served) from log") == [(0.0,)]
    assert isinstance(one.ask(key, slots=2), SlotRefused)  # the other's turn
    assert other.get(key, slots=2)


def test_a_process_is_charged_by_its_weight_and_only_while_others_wait(place: Place) -> None:
    heavy, other, key = place.process(weight=4.0), place.process(), (0, 0)
    key = heavy.enrol("key-a")
    other.enrol("key-a")
    heavy.end(key, heavy.get(key))
    assert place.session(heavy)["served"] == 0.0

    other.wait()
    heavy.wait(key)
    heavy.get(key, free=2, slots=2)

    assert place.session(heavy)["served"] == 0.25


def test_a_request_is_granted_if_more_slots_are_free_than_processes_are_ahead(place: Place) -> None:
    one, other, key = place.two()
    other.wait(key)

    assert isinstance(one.ask(key, slots=2, free=1), SlotRefused)
    assert one.get(key, slots=2, free=2)


def test_one_that_comes_and_finds_nothing_has_passed_and_the_next_is_called(place: Place) -> None:
    holder, first, key = place.two()
    second = place.process()
    second.enrol("key-a")
    token = holder.get(key)
    for process in (first, second):
        process.wait(key)
    holder.end(key, token)
    assert holder.bell.take_rings() == [first.bell.port]

    now = place.clock.now()
    first.wait(key, passed=True)

    assert first.bell.take_rings() == [second.bell.port]
    assert place.session(first)["called_at"] == DECLINED
    assert place.session(second)["called_at"] == now
    assert second.get(key)


def test_a_process_that_declined_is_not_waited_for_and_notified_next_time(place: Place) -> None:
    holder, picky, key = place.two()
    picky.wait(key)
    picky.wait(key, passed=True)

    token = holder.get(key)
    holder.end(key, token)

    assert holder.bell.take_rings() == [picky.bell.port]
    assert isinstance(holder.ask(key), SlotRefused)


def test_one_that_is_called_and_waits_no_more_lets_the_next_be_called(place: Place) -> None:
    holder, first, key = place.two()
    second = place.process()
    second.enrol("key-a")
    token = holder.get(key)
    for process in (first, second):
        process.wait(key)
    holder.end(key, token)

    first.store.submit(lambda step: step.stop_waiting())

    assert first.bell.take_rings() == [second.bell.port]
    assert place.session(first)["waiting_since"] is None
    assert second.get(key)


def test_a_waiter_that_releases_what_it_waits_for_notifies_no_other(place: Place) -> None:
    one, other, key = place.two()
    token = one.get(key)
    one.wait(key)
    other.wait(key)

    one.end(key, token)

    assert one.bell.take_rings() == []
    assert one.get(key)


def test_a_new_waiter_begins_at_the_queues_virtual_time(place: Place) -> None:
    one, other, key = place.two()
    late = place.process()
    late.enrol("key-a")
    one.wait(key)
    other.wait(key)
    for process in (one, other, one, other, one):
        process.end(key, process.get(key, still_waiting=True))
        place.clock.advance(0.001)

    late.wait(key)

    ((served,),) = place.rows("select served from log order by number desc limit 1")
    assert place.session(late)["served"] == served > 1


def test_one_that_is_called_too_early_is_still_waited_for_at_its_turn(place: Place) -> None:
    """It was the first in line, until one came that had less."""
    holder, called, key = place.two()
    first = place.process()
    first.enrol("key-a")
    first.wait(key)
    called.wait(key)
    called.get(key, slots=2, free=2, still_waiting=True)  # so that it has had more than the first
    token = holder.get(key, slots=2, free=3)
    first.store.submit(lambda step: step.stop_waiting())
    holder.end(key, token)
    assert place.session(called)["called_at"] == place.clock.now()
    first.wait(key)

    assert isinstance(called.ask(key, slots=2), SlotRefused)

    assert place.session(called)["called_at"] is None
    assert called.bell.take_rings() == [first.bell.port]


def test_one_that_was_called_for_another_key_does_not_keep_the_next_from_being_called(place: Place) -> None:
    holder, first, key = place.two()
    second, third = place.process(), place.process()
    another = holder.enrol("key-b")
    tokens = holder.get(key), holder.get(another)
    for process in (first, second, third):
        process.wait(key, another)
    holder.end(key, tokens[0])
    holder.end(another, tokens[1])
    assert holder.bell.take_rings() == [first.bell.port, second.bell.port]

    first.wait(key, another, passed=True)

    assert first.bell.take_rings() == [third.bell.port]


def test_only_waiters_that_want_the_free_credential_are_notified(place: Place) -> None:
    holder, waiter, key = place.two()
    another = waiter.enrol("key-b")
    waiter.wait(another)

    holder.end(key, holder.get(key))

    assert holder.bell.take_rings() == []
    assert place.session(waiter)["called_at"] is None


@pytest.mark.parametrize("opened", ["a quota", "a life"])
def test_a_reopened_quota_or_a_dead_credential_notifies_all_waiters(place: Place, opened: str) -> None:
    one, other, key = place.two()
    third = place.process()
    third.step()
    idle = place.process()
    idle.step()
    other.wait(key)
    third.wait(key)

    if opened == "a quota":
        one.store.submit(lambda step: step.write_quota(key[1], {"new": 1}, opened=True))
    else:
        one.store.submit(lambda step: step.write_life(key[0], "dead", "401", 5.0))

    assert sorted(one.bell.take_rings()) == [other.bell.port, third.bell.port]
    other.store.refresh()
    assert (other.records[key[1]], other.lives[key[0]]) in (({"new": 1}, "alive"), ({}, "dead"))


def test_of_two_that_want_a_free_key_one_gets_it_whatever_others_were_served_elsewhere(place: Place) -> None:
    """Each waits at the key since before others, at another one, were served more often than both."""
    holder, first, key = place.two()
    second, *others = place.process(), place.process(), place.process()
    second.enrol("key-a")
    token = holder.get(key)
    elsewhere, _ = (other.enrol("key-b") for other in others)

    def serve_others() -> None:
        for number in range(6):
            others[number % 2].wait(elsewhere)
            others[1 - number % 2].wait(elsewhere)
            others[number % 2].end(elsewhere, others[number % 2].get(elsewhere, still_waiting=True))

    first.wait(key)
    serve_others()
    second.wait(key)
    serve_others()
    holder.end(key, token)

    answers = [first.ask(key), second.ask(key)]

    assert [type(answer) for answer in answers].count(SlotGranted) == 1, answers


# -- leaving ------------------------------------------------------------------------------------------------------


def test_leaving_during_a_step_of_another_thread_ends_leases_and_notifies_waiters(
    place: Place,
) -> None:
    one, other, key = place.two()
    one.get(key, slots=2, guess=True)
    other.wait(key)
    left: list[Background[None]] = []

    def leave(_step: Step) -> None:
        left.append(Background(one.store.leave))

    one.store.submit(leave)
    one.store.leave()
    left[0].result()

    assert place.rows("select token from leases") == []
    assert place.rows("select bell from sessions") == [(other.bell.port,)]
    assert in_flight(place.record(key[1])) == 0
    assert one.bell.take_rings() == [other.bell.port]
    assert other.get(key)


def test_a_store_that_was_left_takes_no_more_acts_and_grants_nothing(place: Place) -> None:
    one, other, key = place.two()
    one.store.leave()

    one.store.submit(one.count(key[1]))
    one.store.maintain()
    assert not one.store.refresh()
    with pytest.raises(PoolClosed):
        one.ask(key)
    one.store.leave()

    assert place.record(key[1]) == {}
    assert place.rows("select bell from sessions") == [(other.bell.port,)]
    assert one.store.next_renewal_at() == float("inf")


def test_what_is_still_put_off_when_the_store_is_closed_is_written_before(place: Place) -> None:
    one, _, key = place.two()
    one.faults.arm(1, sqlite_error(FULL), done=False)
    with pytest.raises(TransientStoreError):
        one.store.submit(one.count(key[1]))

    one.store.close()

    assert place.record(key[1]) == {"count": 1}


# -- what is in it ------------------------------------------------------------------------------------------------


def test_a_fingerprint_is_the_same_in_one_store_only_and_cannot_be_made_without_its_salt(
    place: Place, tmp_path: Path
) -> None:
    one, other, _ = place.two()
    elsewhere = Place(tmp_path / "another.sqlite")
    secret = "sk-a-secret"

    mine = one.store.fingerprint(secret)

    assert mine == other.store.fingerprint(secret)
    assert mine != one.store.fingerprint(secret + "x")
    assert mine != elsewhere.process().store.fingerprint(secret)
    elsewhere.close()
    raw = secret.encode()
    for name in ("md5", "sha1", "sha256", "sha512", "blake2b"):
        for digest in (hashlib.new(name, raw), hmac.new(b"", raw, name), hmac.new(raw, b"", name)):
            assert not digest.hexdigest().startswith(mine[:12])
    assert hmac.new(one.file.salt, raw, "sha256").hexdigest().startswith(mine)  # so the salt is all there is to know
    assert len(mine) == 32


def test_a_credential_is_known_by_its_fingerprint_and_has_the_name_it_was_last_given(place: Place) -> None:
    one = place.process()
    first = one.store.enrol(CredentialIdentity("f1", "alice", "q"))

    again = one.store.enrol(CredentialIdentity("f1", "bob", "q"))
    another = one.store.enrol(CredentialIdentity("f2", "bob", "q"))

    assert again == first
    assert another.credential.number != first.credential.number
    assert another.quota.number == first.quota.number
    assert place.rows("select fingerprint, name from credentials order by number") == [("f1", "bob"), ("f2", "bob")]


def test_a_look_when_nothing_has_changed_asks_one_thing(place: Place) -> None:
    one, other, key = place.two()
    another = one.enrol("key-b")
    one.get(key)
    one.store.refresh()
    asked: list[str] = []
    one.file.connection.set_trace_callback(asked.append)

    assert not one.store.refresh()
    assert asked == ["pragma data_version"]
    other.store.submit(other.count(key[1]))

    assert one.store.refresh()
    assert one.records[key[1]] == {"count": 1}
    assert one.get(another)
    del asked[:]
    assert not one.store.refresh()
    assert asked == ["pragma data_version"]


def test_a_store_that_was_busy_before_anything_was_begun_need_not_be_read_anew(place: Place) -> None:
    """With many processes that happens all the time, and reading everything is too expensive."""
    one, _, key = place.two()
    one.store.refresh()
    blocker = sqlite3.connect(place.path, isolation_level=None)
    blocker.execute("begin immediate")
    with pytest.raises(StoreBusy):
        one.ask(key)
    blocker.close()
    asked: list[str] = []
    one.file.connection.set_trace_callback(asked.append)

    assert not one.store.refresh()

    assert asked == ["pragma data_version"]


def test_a_refresh_returns_the_changes_and_holders_of_all_others(place: Place) -> None:
    one, other, key = place.two()
    one.store.refresh()
    token = other.get(key, "r", at_most=9)
    other.store.submit(lambda step: step.write_life(key[0], "dead", "401", 5.0))

    assert one.store.refresh()

    assert one.lives[key[0]] == "dead"
    assert one.records[key[1]] == {"used": 1}
    assert [holder.split(" (")[0] for holder in one.holders[key[0]]] == ["worker of r"]
    other.end(key, token)
    assert one.store.refresh()
    assert one.holders[key[0]] == ()


def test_a_process_that_missed_log_entries_reads_everything(place: Place) -> None:
    """The log does not keep everything that happened meanwhile."""
    one, other, key = place.two()
    another = one.enrol("key-b")
    one.store.refresh()
    other.store.refresh()
    other.store.submit(other.count(another[1]))
    for _ in range(1500):
        other.store.submit(other.count(key[1]))

    assert one.store.refresh()

    assert one.records == other.records == {quota: place.record(quota) for _, quota in (key, another)}


def test_what_others_did_is_still_news_after_a_step_that_was_about_something_else(place: Place) -> None:
    one, other, key = place.two()
    another = one.enrol("key-b")
    one.store.refresh()
    other.store.submit(other.count(key[1]))

    one.get(another)

    assert one.store.refresh()
    assert one.records[key[1]] == {"count": 1}
