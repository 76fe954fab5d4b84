"""A step on the replica: what it depends on, and what it writes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentos.pool.store_protocol import (
    CredentialIdentity,
    QuotaReservation,
    SlotGranted,
    SlotRefused,
    SlotRequest,
    name_request,
)
from agentos.stores.granting import grant
from agentos.stores.process_fairness import StoreSession
from agentos.stores.redis.clock_offset import ClockOffset
from agentos.stores.redis.replica import CredentialRecord, HeldLease, QuotaRecord, Replica
from agentos.stores.redis.session_record import (
    FRONT_CHANGED,
    SESSION_LIST,
    WAITING_CHANGED,
    encode_session,
    encode_session_list,
    record_name,
)
from agentos.stores.redis.step import RedisStep
from agentos.stores.shared_pool.pool import SharedPool

HOST = "here"
HERE = ClockOffset(0.0)
KEY = CredentialRecord.written("ab12", "key-1", "alive", "", 1.0)


def lease(token: int, session: str) -> HeldLease:
    return HeldLease.written(token, session, f"request {token}", None, 20.0, 1, None)


@pytest.fixture
def replica() -> Replica:
    """A credential with one lease of a session that is there, and one of a session that is not."""
    record = KEY.with_leases((lease(7, "me"), lease(8, "gone")))
    replica = Replica()
    sessions = [StoreSession("me", 0.0), StoreSession("other", 0.0)]
    texts = {record_name(session.id): encode_session(session, 0.0, HERE, HOST) for session in sessions}
    texts |= {
        SESSION_LIST: encode_session_list(sessions, 0.0),
        "c1": record.text(),
        "q1": QuotaRecord('"key ab12"', "{}").text(),
    }
    replica.apply_updates([word for name, text in texts.items() for word in (name, "4", text)], 4)
    return replica


def step_on(replica: Replica) -> RedisStep:
    step = RedisStep(replica, HERE, 50.0, SharedPool(), host=HOST)
    if step.sessions:
        step.set_own_session(step.sessions[0])
    return step


def test_a_lease_of_a_session_that_is_gone_is_none_and_goes_too(replica: Replica) -> None:
    step = step_on(replica)

    assert [token for _, _, token, _ in step.leases_on(1)] == [7]

    written = step.records["c1"]
    assert isinstance(written, CredentialRecord)
    assert [held.token for held in written.leases] == [7]


def test_leases_of_an_ended_session_have_no_holder(replica: Replica) -> None:
    step = step_on(replica)

    assert step.enrol(CredentialIdentity("ab12", "key-1", "key ab12")).credential.holders == ()


def test_a_credential_is_known_again_by_its_fingerprint_and_has_its_new_name(replica: Replica) -> None:
    step = step_on(replica)

    enrolled = step.enrol(CredentialIdentity("ab12", "renamed", "key ab12"))

    assert (enrolled.credential.number, enrolled.quota.number) == (1, 1)
    written = step.records["c1"]
    assert isinstance(written, CredentialRecord)
    assert written.name == "renamed"


def test_a_new_credential_depends_on_its_number_being_unused(replica: Replica) -> None:
    step = step_on(replica)

    step.enrol(CredentialIdentity("cd34", "key-2", "key cd34"))

    assert {"c2 0", "q2 0"} <= {f"{name} {version}" for name, version in pairs(step.read_versions())}


def pairs(checks: str) -> list[tuple[str, str]]:
    words = checks.split()
    return list(zip(words[::2], words[1::2], strict=True))


def test_a_failed_step_leaves_no_trace_of_its_new_records(replica: Replica) -> None:
    step = step_on(replica)

    step.enrol(CredentialIdentity("cd34", "key-2", "key cd34"))

    assert not set(step.affected_records()) & {"c2", "q2"}


# -- what a step rests on ----------------------------------------------------------------------------------------------


def line_step(*waiting: tuple[str, float], me: str = "me") -> RedisStep:
    """A step on a line of sessions that wait, each with what it was served; *me* is ours, whether it waits or not."""
    sessions = [StoreSession(name, 0.0, served=served, waiting_since=10.0) for name, served in waiting]
    if all(session.id != me for session in sessions):
        sessions.append(StoreSession(me, 0.0))
    texts = {record_name(session.id): encode_session(session, 0.0, HERE, HOST) for session in sessions}
    texts |= {
        SESSION_LIST: encode_session_list(sessions, 0.0),
        "c1": KEY.with_leases((lease(7, me),)).text(),
        "q1": '"key ab12"\n{}',
    }
    replica = Replica()
    replica.apply_updates([word for name, text in texts.items() for word in (name, "4", text)], 4)
    step = RedisStep(replica, HERE, 50.0, SharedPool(), host=HOST)
    step.set_own_session(next(session for session in step.sessions if session.id == me))
    return step


def rests_on(step: RedisStep) -> set[str]:
    return {name for name, _ in pairs(step.read_versions())}


def bid_for(slots: int) -> SlotRequest:
    def reserve(_now: float, _claims: Sequence[str]) -> QuotaReservation:
        return QuotaReservation(None)

    name = name_request("r", 1, slots)
    return SlotRequest(name, 1, slots, 1, None, reserve, lambda _wanted: 1, still_waiting=False)


def test_joining_the_end_of_the_queue_does_not_conflict_with_waiters() -> None:
    step = line_step(("other", 3.0))

    step.served = 3.0
    step.wait(None, None, None, passed=False)

    assert set(step.writes()) == {"sme", WAITING_CHANGED}
    assert rests_on(step) == {SESSION_LIST, "sme"}


def test_joining_the_queue_before_a_waiter_writes_the_front_record() -> None:
    step = line_step(("other", 3.0))

    step.wait(None, None, None, passed=False)

    assert set(step.writes()) == {"sme", WAITING_CHANGED, FRONT_CHANGED}


def test_a_grant_to_the_first_waiter_does_not_depend_on_later_ones() -> None:
    step = line_step(("me", 1.0), ("other", 3.0))

    assert isinstance(grant(step, bid_for(slots=2)), SlotGranted)

    assert rests_on(step) == {SESSION_LIST, FRONT_CHANGED, "sme", "c1", "q1"}
    assert set(step.writes()) == {"sme", "c1"}


def test_a_grant_without_waiting_depends_on_no_process_beginning_to_wait() -> None:
    step = line_step()

    assert isinstance(grant(step, bid_for(slots=2)), SlotGranted)

    assert rests_on(step) == {SESSION_LIST, WAITING_CHANGED, "c1", "q1"}
    assert set(step.writes()) == {"c1"}


def test_a_refusal_depends_on_the_sessions_ahead() -> None:
    step = line_step(("first", 1.0), ("second", 2.0), ("me", 3.0))

    assert isinstance(grant(step, bid_for(slots=2)), SlotRefused)

    assert {"sfirst", "ssecond"} <= rests_on(step)  # the one is called, and the other reason enough
    assert set(step.writes()) == {"sfirst"}


def test_a_free_slot_depends_on_the_notified_session_and_none_behind() -> None:
    step = line_step(("first", 1.0), ("second", 2.0))

    assert step.end(1, 7)

    assert rests_on(step) == {SESSION_LIST, FRONT_CHANGED, "sfirst", "c1"}
    assert step.wakeup_sessions == ["first"]


def test_a_free_slot_without_waiters_depends_on_no_process_beginning_to_wait() -> None:
    step = line_step()

    assert step.end(1, 7)

    assert rests_on(step) == {SESSION_LIST, WAITING_CHANGED, "c1"}
