"""Each invariant is shown to reject a planted fault: a check that cannot fail proves nothing."""

from __future__ import annotations

import pytest

from agentos import InvariantViolated, Limit
from agentos.pool.core import invariants
from agentos.pool.core.checked_pool import CheckedPool
from agentos.pool.core.learning.reported import ReportedLimit
from agentos.pool.core.records import PLAIN, Block, Grant, KeySpec, LeaseRequest, Ticket
from agentos.pool.core.states import Gate, TicketState


@pytest.fixture
def pool() -> CheckedPool:
    pool = CheckedPool()
    pool.add(KeySpec("a"), 0.0)
    pool.add(KeySpec("b", limits=(Limit("requests", 2, per=60),)), 0.0)
    return pool


def test_l1_notices_a_double_booking(pool: CheckedPool) -> None:
    key = pool.keys["a"]
    for token in (101, 102):
        pool.leases[token] = Grant(key, token, None, 0.0, PLAIN, ())
    key.leases = 2

    assert "a has 2 leases in force" in (invariants.l1_no_more_leases_than_slots(pool) or "")


def test_l1_notices_a_lease_nobody_counted(pool: CheckedPool) -> None:
    pool.acquire(PLAIN, None, 0.0)
    pool.leases.clear()

    assert invariants.l1_no_more_leases_than_slots(pool) is not None


def test_l2_notices_a_token_used_again() -> None:
    assert invariants.l2_tokens_only_grow([1, 2, 3]) is None
    assert invariants.l2_tokens_only_grow([1, 3, 3]) is not None


def test_l3_notices_a_stale_lease_that_changed_something() -> None:
    assert invariants.l3_only_a_current_token_changes_anything(True, True) is None
    assert invariants.l3_only_a_current_token_changes_anything(False, False) is None
    assert invariants.l3_only_a_current_token_changes_anything(False, True) is not None
    assert invariants.l3_only_a_current_token_changes_anything(True, False) is not None


def test_l6_notices_a_grant_to_one_who_had_left() -> None:
    ticket = Ticket(PLAIN, "gone")
    ticket.state = TicketState.GRANTED

    assert invariants.l6_grants_go_to_those_who_wait([ticket], {ticket: None}) is None
    assert "gone" in (invariants.l6_grants_go_to_those_who_wait([ticket], {}) or "")


def test_l10_notices_a_key_that_fell_out_of_the_index(pool: CheckedPool) -> None:
    pool.indexes.all[0].remove(pool.keys["a"])

    assert invariants.l10_slots_add_up(pool, 0.0) is not None


def test_l10_notices_slots_that_do_not_add_up(pool: CheckedPool) -> None:
    pool.keys["a"].leases = -1

    assert invariants.l10_slots_add_up(pool, 0.0) is not None


def test_r1_notices_a_start_while_closed(pool: CheckedPool) -> None:
    grant = Grant(pool.keys["a"], 1, None, 59.0, LeaseRequest(model="gpt-4o"), ())

    assert invariants.r1_nothing_starts_while_closed(grant, {(grant.key.quota, None): 59.0}) is None
    assert invariants.r1_nothing_starts_while_closed(grant, {(grant.key.quota, None): 60.0}) is not None
    assert invariants.r1_nothing_starts_while_closed(grant, {(grant.key.quota, "gpt-4o"): 60.0}) is not None
    assert invariants.r1_nothing_starts_while_closed(grant, {(grant.key.quota, "other"): 60.0}) is None


def test_r3_notices_one_who_waits_past_a_free_key(pool: CheckedPool) -> None:
    grants = [pool.acquire(PLAIN, None, 0.0), pool.acquire(PLAIN, None, 0.0)]
    ticket = Ticket(PLAIN, "patient")
    pool.enqueue(ticket, 0.0)
    assert grants[0] is not None

    pool.end(grants[0])  # and nobody ticks

    assert "patient waits although" in (invariants.r3_nobody_waits_past_a_free_key(pool, 1.0) or "")


def test_r3_notices_that_nobody_will_look_in_time(pool: CheckedPool) -> None:
    for key in pool.keys.values():
        pool.close_quota(key, 10.0, model=None, evidence="429", now=0.0)
    pool.enqueue(Ticket(PLAIN, "patient"), 0.0)
    assert invariants.r3_nobody_waits_past_a_free_key(pool, 0.0) is None

    pool.next_at = 11.0

    assert "nothing checks before 11" in (invariants.r3_nobody_waits_past_a_free_key(pool, 0.0) or "")


def test_r4_notices_one_who_was_passed(pool: CheckedPool) -> None:
    pool.acquire(PLAIN, None, 0.0)
    pool.acquire(PLAIN, None, 0.0)
    early, late = Ticket(PLAIN, "early"), Ticket(PLAIN, "late")
    pool.enqueue(early, 0.0)
    pool.enqueue(late, 0.0)
    late.state = TicketState.GRANTED

    assert "late passed early" in (invariants.r4_served_in_order(pool, [late]) or "")


def test_r4_lets_another_kind_of_request_pass(pool: CheckedPool) -> None:
    pool.acquire(PLAIN, None, 0.0)
    pool.acquire(PLAIN, None, 0.0)
    pool.enqueue(Ticket(LeaseRequest(model="slow"), "early"), 0.0)
    late = Ticket(LeaseRequest(model="quick"), "late")
    late.order = (0, 99)
    late.state = TicketState.GRANTED

    assert invariants.r4_served_in_order(pool, [late]) is None


def test_the_audit_raises_what_it_finds(pool: CheckedPool) -> None:
    pool.keys["a"].quota.blocks[None] = Block(Gate.COOLING, 60.0, 0.0, "planted")
    pool._closings[pool.keys["a"].quota, None] = 60.0

    with pytest.raises(InvariantViolated, match="R1"):
        pool.acquire(PLAIN, None, 0.0)


def test_the_audit_notices_a_limit_overrun(pool: CheckedPool, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = pool.keys["b"].quota.limits[0]
    pool.retire(pool.keys["a"], 0.0)
    monkeypatch.setattr(type(bucket), "reserve", lambda self, need, now: (0.0, 0))

    for _ in range(2):
        grant = pool.acquire(PLAIN, None, 0.0)
        assert grant is not None
        pool.release(grant, 0.0)

    with pytest.raises(InvariantViolated, match="R2"):
        pool.acquire(PLAIN, None, 0.0)


def refuted_limit(pool: CheckedPool) -> ReportedLimit:
    """Ten a minute, reported; eleven were admitted at once since then."""
    limit = ReportedLimit("requests", None, 10.0, 60.0)
    limit.begin_count(0.0)
    limit.admitted = 11.0
    pool.keys["a"].quota.learn("told requests", limit)
    return limit


def test_r7_notices_a_limit_that_more_calls_were_admitted_than_it_allows(pool: CheckedPool) -> None:
    quota, limit = pool.keys["a"].quota, refuted_limit(pool)

    assert "reported limit of a: 11 requests were admitted in 5s, it allows 10.8333" in str(
        invariants.r7_no_limit_survives_the_calls_against_it(quota, 5.0)
    )
    assert invariants.r7_no_limit_survives_the_calls_against_it(quota, 6.0) is None  # one more has flowed in
    limit.obeyed = False
    assert invariants.r7_no_limit_survives_the_calls_against_it(quota, 5.0) is None


def test_a_checked_pool_grants_nothing_while_a_refuted_limit_is_in_force(pool: CheckedPool) -> None:
    refuted_limit(pool)

    with pytest.raises(InvariantViolated, match="R7"):
        pool.acquire(PLAIN, None, 1.0)
