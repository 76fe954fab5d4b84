"""The core grants keys by its rules: no clock, no threads, an instant is a number."""

from __future__ import annotations

import pytest

from agentos import Limit, NeverFits, NoUsableCredential, PoolClosed
from agentos.pool.core.checked_pool import CheckedPool
from agentos.pool.core.cost import request_cost
from agentos.pool.core.credential_report import build_report, explain_wait
from agentos.pool.core.pool import LeasePool
from agentos.pool.core.records import PLAIN, Grant, KeySpec, Labels, LeaseRequest, Ticket
from agentos.pool.core.states import TicketState


def pool_of(*specs: KeySpec | str, keep_free: int = 0, max_lease: float | None = None) -> LeasePool:
    pool = CheckedPool(keep_free=keep_free, max_lease=max_lease)
    for spec in specs:
        pool.add(spec if isinstance(spec, KeySpec) else KeySpec(spec), 0.0)
    return pool


def ask(
    *,
    tokens: float | None = None,
    model: str | None = None,
    affinity: str | None = None,
    priority: int = 0,
    labels: Labels = frozenset(),
) -> LeaseRequest:
    cost = request_cost(None if tokens is None else {"tokens": tokens})
    return LeaseRequest(cost, model, affinity, priority, labels)


def take(pool: LeasePool, wanted: LeaseRequest = PLAIN, now: float = 0.0) -> Grant:
    grant = pool.acquire(wanted, None, now)
    assert grant is not None
    return grant


def line_up(pool: LeasePool, wanted: LeaseRequest = PLAIN, now: float = 0.0, name: str = "waiter") -> Ticket:
    ticket = Ticket(wanted, name)
    pool.enqueue(ticket, now)
    return ticket


def state(ticket: Ticket) -> TicketState:
    """A function, so that the type checker does not think it stays what it was."""
    return ticket.state


def cool(pool: LeasePool, name: str, until: float, now: float = 0.0, model: str | None = None) -> None:
    pool.close_quota(pool.keys[name], until, model=model, evidence="429", now=now)


# -- choosing a key -----------------------------------------------------------------------------------------------


def test_the_longest_unused_key_comes_first() -> None:
    pool = pool_of("a", "b", "c")

    first, second = take(pool), take(pool)
    pool.release(second, 1.0)
    pool.release(first, 2.0)

    assert [take(pool, now=3.0).key.name for _ in range(3)] == ["c", "b", "a"]


def test_the_fewest_leases_win_over_the_longest_unused() -> None:
    pool = pool_of(KeySpec("wide", slots=3), KeySpec("narrow", slots=1))

    assert [take(pool).key.name for _ in range(4)] == ["wide", "narrow", "wide", "wide"]
    assert pool.acquire(PLAIN, None, 0.0) is None


def test_a_key_that_comes_back_from_cooling_is_the_longest_unused_again() -> None:
    pool = pool_of("a", "b", "c")
    cool(pool, "a", until=10.0)
    for now in range(5):
        pool.release(take(pool, now=float(now)), float(now))

    assert take(pool, now=10.0).key.name == "a"


def test_keys_that_come_back_are_ranked_among_those_that_stayed() -> None:
    pool = pool_of(*"abcdef")
    for name in "abcdef":  # used in this order, at 0 to 5
        grant = take(pool, now=0.0)
        assert grant.key.name == name
        pool.release(grant, 0.0)
    cool(pool, "c", until=10.0)
    for _ in range(5):  # everybody but c; each finds c closed once at most
        pool.release(take(pool, now=1.0), 1.0)
    cool(pool, "e", until=20.0, now=2.0)
    pool.release(take(pool, now=3.0), 3.0)  # a again, so that b is next

    assert [take(pool, now=20.0).key.name for _ in range(6)] == ["c", "b", "d", "e", "f", "a"]


def test_an_affinity_keeps_its_key_while_it_is_free() -> None:
    pool = pool_of("a", "b", "c")
    same = ask(affinity="conversation")
    name = take(pool, same).key.name
    for grant in list(pool.leases.values()):
        pool.release(grant, 0.0)

    again = take(pool, same)
    assert again.key.name == name
    assert take(pool, same).key.name != name


def test_an_affinity_does_not_wait_for_its_key() -> None:
    pool = pool_of("a", "b")
    same = ask(affinity="conversation")
    grant = take(pool, same)
    cool(pool, grant.key.name, until=60.0)
    pool.release(grant, 0.0)

    assert take(pool, same).key.name != grant.key.name


def test_labels_restrict_which_keys_will_do() -> None:
    paid: Labels = frozenset({("tier", "paid")})
    pool = pool_of("free", KeySpec("paid", labels=paid))

    assert take(pool, ask(labels=paid)).key.name == "paid"
    assert pool.acquire(ask(labels=paid), None, 0.0) is None
    assert take(pool).key.name == "free"


def test_keep_free_leaves_that_many_slots_to_others() -> None:
    pool = pool_of("a", "b", "c", keep_free=1)
    first = take(pool)
    take(pool)
    ticket = line_up(pool)
    assert state(ticket) is TicketState.WAITING

    pool.release(first, 1.0)

    assert state(ticket) is TicketState.GRANTED


def test_keep_free_does_not_count_a_cooling_key_as_free() -> None:
    pool = pool_of("a", "b", "c", keep_free=1)
    cool(pool, "a", until=10.0)
    take(pool)

    ticket = line_up(pool)

    assert state(ticket) is TicketState.WAITING
    assert pool.next_at == 10.0
    pool.tick(10.0)
    assert state(ticket) is TicketState.GRANTED


# -- quotas and limits --------------------------------------------------------------------------------------------


def test_keys_of_one_quota_share_its_limits_and_its_cooling() -> None:
    limits = (Limit("requests", 2, per=60),)
    pool = pool_of(KeySpec("a", quota="acme", limits=limits), KeySpec("b", quota="acme", limits=limits), "other")

    assert [take(pool).key.name for _ in range(2)] == ["a", "b"]
    cool(pool, "a", until=30.0)
    states = {row.name: row.state for row in build_report(pool, 0.0)}
    assert states == {"a": "leased", "b": "leased", "other": "available"}
    pool.release(pool.leases[2], 1.0)
    assert {row.name: row.state for row in build_report(pool, 1.0)}["b"] == "cooling"


def test_a_later_deadline_always_wins() -> None:
    pool = pool_of("a")
    cool(pool, "a", until=60.0)
    cool(pool, "a", until=5.0, now=1.0)

    assert pool.acquire(PLAIN, None, 59.0) is None
    assert pool.acquire(PLAIN, None, 60.0) is not None


def test_a_limit_that_names_a_model_cools_only_that_family() -> None:
    pool = pool_of("a")
    cool(pool, "a", until=60.0, model="gpt-4o-2024-08-06")

    assert pool.acquire(ask(model="gpt-4o"), None, 1.0) is None
    assert take(pool, ask(model="gpt-4o-mini"), 1.0).key.name == "a"


def test_a_limit_that_names_no_model_cools_the_whole_quota() -> None:
    pool = pool_of("a")
    cool(pool, "a", until=60.0)

    assert pool.acquire(ask(model="gpt-4o"), None, 1.0) is None


def test_a_limit_for_a_pattern_of_models_covers_them_together() -> None:
    limits = (Limit("requests", 1, per=60, model="claude-sonnet-*"),)
    pool = pool_of(KeySpec("a", slots=9, limits=limits))
    take(pool, ask(model="claude-sonnet-4-20250514"))

    assert pool.acquire(ask(model="claude-sonnet-4-5"), None, 0.0) is None
    assert pool.acquire(ask(model="claude-haiku"), None, 0.0) is not None
    assert pool.acquire(PLAIN, None, 0.0) is not None  # no model given: limits for all models only


def test_a_long_delay_parks_and_says_why() -> None:
    pool = pool_of("a")
    cool(pool, "a", until=3600.0)

    row = build_report(pool, 0.0)[0]
    assert (row.state, row.until, row.why) == ("parked", 3600.0, "429")


def test_reserve_then_settle_lets_the_next_start_with_what_came_back() -> None:
    pool = pool_of(KeySpec("a", slots=2, limits=(Limit("tokens", 1000, per=60),)))
    grant = take(pool, ask(tokens=600))
    ticket = line_up(pool, ask(tokens=600))
    assert state(ticket) is TicketState.WAITING

    pool.settle(grant, (None, 100, None, None), 1.0)

    assert state(ticket) is TicketState.GRANTED


def test_an_estimate_is_the_95th_percentile_of_what_was_seen() -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("tokens", 1_000_000, per=60),)))
    for used in range(1, 101):
        grant = take(pool, ask(tokens=1))
        pool.settle(grant, (None, used, None, None), 0.0)
        pool.release(grant, 0.0)

    ((_, reserved, _, _),) = take(pool).draws

    assert 90 <= reserved <= 100


def test_with_no_estimate_one_is_in_flight_until_the_first_settle() -> None:
    pool = pool_of(KeySpec("a", slots=9, limits=(Limit("tokens", 1000, per=60),)))
    first = take(pool)
    waiting = [line_up(pool), line_up(pool)]
    assert [ticket.state for ticket in waiting] == [TicketState.WAITING] * 2

    pool.settle(first, (None, 10, None, None), 1.0)

    assert [ticket.state for ticket in waiting] == [TicketState.GRANTED] * 2


def test_a_token_limit_without_reports_is_set_aside_and_logged_once() -> None:
    pool = pool_of(KeySpec("a", slots=9, limits=(Limit("tokens", 10, per=60),)))
    for _ in range(5):
        pool.release(take(pool), 0.0)

    assert len(pool.notes) == 1
    assert "set aside" in pool.notes[0]
    several = [take(pool) for _ in range(4)]
    pool.settle(several[0], (None, 50, None, None), 1.0)
    assert pool.acquire(PLAIN, None, 1.0) is None  # kept again, and overdrawn


def test_a_request_that_does_not_fit_takes_nothing_of_what_would() -> None:
    pool = pool_of(KeySpec("a", limits=(Limit("requests", 2, per=60), Limit("tokens", 100, per=60))))
    pool.release(take(pool, ask(tokens=100)), 0.0)

    assert pool.acquire(ask(tokens=50), None, 0.0) is None

    requests, tokens = pool.keys["a"].quota.limits
    assert (requests.left(0.0), tokens.left(0.0)) == (1, 0)


def test_a_lease_never_settled_keeps_its_reservation() -> None:
    pool = pool_of(KeySpec("a", limits=(Limit("tokens", 1000, per=60),)))
    pool.release(take(pool, ask(tokens=1000)), 1.0)

    ticket = line_up(pool, ask(tokens=500), now=1.0)

    assert state(ticket) is TicketState.WAITING
    assert pool.next_at == pytest.approx(30.0)


# -- order --------------------------------------------------------------------------------------------------------


def test_waiters_are_served_in_order_of_priority_then_arrival() -> None:
    pool = pool_of("a")
    grant = take(pool)
    low, high, low_too = line_up(pool), line_up(pool, ask(priority=5)), line_up(pool)
    served = []
    for _ in range(3):
        (ticket,) = pool.release(grant, 1.0) or ()
        assert ticket.grant is not None
        grant = ticket.grant
        served.append(ticket)

    assert served == [high, low, low_too]


def test_a_head_that_waits_for_one_model_never_blocks_another() -> None:
    pool = pool_of("a")
    cool(pool, "a", until=3600.0, model="slow")
    head = line_up(pool, ask(model="slow"))
    for number in range(40):
        line_up(pool, ask(model="slow"), name=f"slow-{number}")

    other = line_up(pool, ask(model="quick"))

    assert (state(head), state(other)) == (TicketState.WAITING, TicketState.GRANTED)


def test_a_head_that_waits_for_another_day_never_blocks_another_model() -> None:
    limits = (Limit("requests", 1, per="day", model="slow"), Limit("requests", 60, per=60, burst=1))
    pool = pool_of(KeySpec("a", slots=1, limits=limits))
    pool.release(take(pool, ask(model="slow")), 0.0)
    head = line_up(pool, ask(model="slow"), now=10.0)

    other = line_up(pool, ask(model="quick"), now=10.0)

    assert (state(head), state(other)) == (TicketState.WAITING, TicketState.GRANTED)


def test_a_large_request_is_not_starved_by_small_ones() -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("tokens", 100, per=100),)))
    take(pool, ask(tokens=100))
    large = line_up(pool, ask(tokens=90))
    small = [line_up(pool, ask(tokens=5), now=10.0 + i, name=f"small-{i}") for i in range(20)]

    pool.tick(89.0)
    assert state(large) is TicketState.WAITING
    assert all(state(ticket) is TicketState.WAITING for ticket in small)
    pool.tick(90.0)
    assert state(large) is TicketState.GRANTED


def test_a_small_request_passes_where_it_delays_nobody() -> None:
    limits = (Limit("tokens", 1000, per=1000),)
    pool = pool_of(KeySpec("a", slots=9, limits=limits), KeySpec("b", slots=9, limits=limits))
    take(pool, ask(tokens=1000))  # a is empty
    take(pool, ask(tokens=500))  # b has half
    large = line_up(pool, ask(tokens=900))  # due on b at 400

    small = line_up(pool, ask(tokens=100))  # a has that at 100, and nobody waits for a

    assert pool.next_at == pytest.approx(100.0)
    pool.tick(100.0)
    assert (state(large), state(small)) == (TicketState.WAITING, TicketState.GRANTED)
    assert pool.next_at == pytest.approx(400.0)
    pool.tick(400.0)
    assert state(large) is TicketState.GRANTED


def test_one_that_asks_at_once_does_not_pass_those_who_wait() -> None:
    pool = pool_of("a")
    cool(pool, "a", until=5.0)
    line_up(pool)

    assert pool.acquire(PLAIN, None, 5.0) is None


def test_two_who_wait_on_one_key_need_two_slots() -> None:
    """One that takes no tokens may not have the slot the second of two claimants will need."""
    pool = pool_of(KeySpec("a", slots=3, limits=(Limit("tokens", 100, per=100),)))
    take(pool, ask(tokens=100))
    first, second = line_up(pool, ask(tokens=10)), line_up(pool, ask(tokens=10))
    nothing = line_up(pool, ask(tokens=0))

    pool.tick(10.0)
    pool.tick(20.0)

    assert (state(first), state(second), state(nothing)) == (
        TicketState.GRANTED,
        TicketState.GRANTED,
        TicketState.WAITING,
    )


def test_two_who_wait_for_one_quota_plan_on_two_keys() -> None:
    limits = (Limit("tokens", 100, per=100),)
    pool = pool_of(*(KeySpec(name, quota="acme", limits=limits) for name in "abc"))
    take(pool, ask(tokens=100))
    waiting = [line_up(pool, ask(tokens=10)), line_up(pool, ask(tokens=5))]

    assert {ticket.planned.name for ticket in waiting if ticket.planned is not None} == {"b", "c"}
    pool.tick(15.0)
    assert [state(ticket) for ticket in waiting] == [TicketState.GRANTED] * 2


def test_a_request_of_partly_unknown_cost_is_not_starved() -> None:
    limits = (Limit("input_tokens", 1000, per=100), Limit("output_tokens", 1000, per=100))
    pool = pool_of(KeySpec("a", slots=99, limits=limits))
    pool.settle(take(pool, ask(tokens=1000)), (None, None, 1000, 10), 0.0)
    big = line_up(pool, LeaseRequest(request_cost({"input_tokens": 900})))

    small = [line_up(pool, ask(tokens=5), now=float(now)) for now in range(1, 89)]

    assert not any(state(ticket) is TicketState.GRANTED for ticket in small)
    pool.tick(90.0)
    assert state(big) is TicketState.GRANTED


def test_revived_money_does_not_end_a_cooling() -> None:
    pool = pool_of("a")
    cool(pool, "a", until=3600.0)
    pool.spend(pool.keys["a"], "insufficient_quota", 1.0)

    pool.revive(pool.keys["a"], 2.0)

    assert pool.acquire(PLAIN, None, 3599.0) is None
    assert pool.acquire(PLAIN, None, 3600.0) is not None


def test_keep_free_and_a_spent_key_leave_nothing_and_say_so() -> None:
    pool = pool_of("a", "b", keep_free=1)
    pool.spend(pool.keys["a"], "insufficient_quota", 0.0)

    assert isinstance(line_up(pool).error, NoUsableCredential)


def test_a_told_part_that_exceeds_the_whole_never_fits() -> None:
    pool = pool_of(KeySpec("a", limits=(Limit("tokens", 1000),)))

    assert isinstance(line_up(pool, LeaseRequest(request_cost({"input_tokens": 1001}))).error, NeverFits)


def test_requests_that_were_refused_do_not_set_a_limit_aside() -> None:
    pool = pool_of(KeySpec("a", limits=(Limit("tokens", 1000, per=60),)))
    for now in range(5):
        grant = take(pool, now=float(now))
        cool(pool, "a", until=now + 1.0, now=float(now))
        pool.release(grant, float(now))

    assert pool.notes == []


def test_the_last_word_of_several_settles_counts() -> None:
    pool = pool_of(KeySpec("a", limits=(Limit("tokens", 100, per=100),)))
    grant = take(pool, ask(tokens=10))
    for used in (60, 20):
        pool.settle(grant, (None, used, None, None), 0.0)

    assert pool.keys["a"].quota.limits[0].left(0.0) == pytest.approx(80)


def test_an_overrun_taken_back_gives_back_no_more_than_the_bucket_could_have_held() -> None:
    pool = pool_of(KeySpec("a", slots=2, limits=(Limit("tokens", 64, per=60),)))
    first = take(pool, ask(tokens=64))
    take(pool, ask(tokens=64), now=3600.0)
    for used in (80, 16):
        pool.settle(first, (None, used, None, None), 3600.0)

    assert pool.keys["a"].quota.limits[0].left(3600.0) == pytest.approx(0)


def test_keep_free_counts_a_key_that_rested_though_only_labelled_requests_came_since() -> None:
    pool = LeasePool(keep_free=1)
    for name in ("a", "b"):
        pool.add(KeySpec(name, labels=frozenset({("kind", "")})), 0.0)
    cool(pool, "a", until=30.0)
    assert pool.acquire(PLAIN, None, 0.0) is None  # "a" is found closed
    waiting = Ticket(LeaseRequest(labels=frozenset({("kind", "")})), "w")
    pool.enqueue(waiting, 0.0)

    pool.tick(30.0)

    assert waiting.state is TicketState.GRANTED


def test_keys_that_come_back_one_by_one_leave_nothing_behind() -> None:
    pool = pool_of(*(f"k{i}" for i in range(50)))
    for now in range(1, 400):
        for number in range(5):
            cool(pool, f"k{(now * 7 + number) % 50}", until=now + 0.5, now=float(now))
        for grant in [take(pool, now=now + 0.6) for _ in range(10)]:
            pool.release(grant, now + 0.7)

    (lane,) = pool.indexes.all
    assert sum(len(level._heap) for level in lane.levels) < 200
    assert len(lane.later) < 100


# -- what can never be --------------------------------------------------------------------------------------------


def test_an_empty_pool_has_no_usable_credential() -> None:
    ticket = line_up(pool_of())

    assert isinstance(ticket.error, NoUsableCredential)
    assert "empty" in str(ticket.error)


def test_labels_that_no_key_has_fail_at_once() -> None:
    ticket = line_up(pool_of("a"), ask(labels=frozenset({("tier", "paid")})))

    assert isinstance(ticket.error, NoUsableCredential)
    assert "tier=paid" in str(ticket.error)


def test_a_cost_beyond_every_limit_never_fits() -> None:
    small, large = (Limit("tokens", 100),), (Limit("tokens", 200),)
    pool = pool_of(KeySpec("a", limits=small), KeySpec("b", limits=large))

    error = line_up(pool, ask(tokens=300)).error

    assert isinstance(error, NeverFits)
    assert (error.dimension, error.cost, error.largest) == ("tokens", 300, 200)


def test_the_last_key_dying_fails_those_who_wait() -> None:
    pool = pool_of("a", "b")
    grants = [take(pool), take(pool)]
    ticket = line_up(pool)

    pool.reject(grants[0].key, "401", 1.0)
    assert state(ticket) is TicketState.WAITING
    pool.reject(grants[1].key, "401", 2.0)

    assert state(ticket) is TicketState.FAILED
    assert isinstance(ticket.error, NoUsableCredential)
    assert "2 dead" in str(ticket.error)


def test_a_spent_quota_serves_nobody_until_a_person_acts() -> None:
    pool = pool_of(KeySpec("a", quota="acme"), KeySpec("b", quota="acme"))
    grant = take(pool)
    pool.spend(grant.key, "insufficient_quota", 0.0)

    assert isinstance(line_up(pool).error, NoUsableCredential)
    assert [row.state for row in build_report(pool, 1.0)] == ["spent", "spent"]
    pool.revive(pool.keys["b"], 2.0)
    assert take(pool, now=2.0).key.name == "b"


def test_a_retired_key_serves_its_leases_to_the_end_and_no_more() -> None:
    pool = pool_of("a", "b")
    grant = take(pool)
    pool.retire(grant.key, 1.0)
    pool.release(grant, 2.0)

    assert take(pool, now=3.0).key.name == "b"
    assert pool.acquire(PLAIN, None, 3.0) is None
    pool.revive(pool.keys["a"], 4.0)
    assert take(pool, now=4.0).key.name == "a"


def test_a_key_added_or_revived_serves_those_who_wait() -> None:
    pool = pool_of("a")
    take(pool)
    first, second = line_up(pool), line_up(pool)

    pool.add(KeySpec("b"), 1.0)
    assert (state(first), state(second)) == (TicketState.GRANTED, TicketState.WAITING)
    pool.retire(pool.keys["b"], 2.0)
    pool.release(pool.leases[2], 2.0)
    assert state(second) is TicketState.WAITING
    pool.revive(pool.keys["b"], 3.0)
    assert state(second) is TicketState.GRANTED


# -- leases -------------------------------------------------------------------------------------------------------


def test_a_stale_release_changes_nothing() -> None:
    pool = pool_of("a")
    old = take(pool)
    pool.release(old, 1.0)
    new = take(pool, now=2.0)

    assert pool.release(old, 3.0) is None
    assert pool.settle(old, (None, 1, None, None), 3.0) is None
    assert pool.leases == {new.token: new}
    assert new.token > old.token


def test_a_withdrawn_ticket_is_skipped() -> None:
    pool = pool_of("a")
    grant = take(pool)
    gone, stays = line_up(pool), line_up(pool)

    pool.withdraw(gone, 1.0)
    pool.release(grant, 2.0)

    assert (state(gone), state(stays)) == (TicketState.WITHDRAWN, TicketState.GRANTED)


def test_a_ticket_that_leaves_after_its_grant_passes_it_on() -> None:
    pool = pool_of("a")
    grant = take(pool)
    left, next_one = line_up(pool), line_up(pool)
    pool.release(grant, 1.0)
    assert state(left) is TicketState.GRANTED

    assert list(pool.withdraw(left, 2.0)) == [next_one]
    assert state(next_one) is TicketState.GRANTED


def test_a_large_request_that_leaves_lets_the_small_ones_by() -> None:
    pool = pool_of(KeySpec("a", slots=9, limits=(Limit("tokens", 100, per=100),)))
    take(pool, ask(tokens=90))
    large, small = line_up(pool, ask(tokens=80)), line_up(pool, ask(tokens=5))
    assert state(small) is TicketState.WAITING

    pool.withdraw(large, 1.0)

    assert state(small) is TicketState.GRANTED


def test_max_lease_ends_a_forgotten_lease() -> None:
    pool = pool_of("a", max_lease=30.0)
    forgotten = take(pool)
    ticket = line_up(pool, now=1.0)
    assert pool.next_at == 30.0

    pool.tick(30.0)

    assert state(ticket) is TicketState.GRANTED
    assert pool.release(forgotten, 31.0) is None
    assert "max_lease" in pool.notes[0]


def test_closing_fails_every_waiter() -> None:
    pool = pool_of("a")
    grant = take(pool)
    tickets = [line_up(pool), line_up(pool, ask(model="b"))]

    assert len(pool.close()) == 2
    assert all(isinstance(ticket.error, PoolClosed) for ticket in tickets)
    assert pool.release(grant, 1.0) == ()
    assert isinstance(line_up(pool).error, PoolClosed)


def test_a_waiter_is_told_what_it_waits_for() -> None:
    pool = pool_of("a", "b", KeySpec("c", limits=(Limit("tokens", 100, per=100),)))
    take(pool)
    cool(pool, "b", until=60.0)
    pool.release(take(pool, ask(tokens=100)), 0.0)
    ticket = line_up(pool, ask(tokens=50))

    assert explain_wait(pool, ticket, 1.0) == [
        "c: limited (not enough left for its cost), in 49.0s",
        "b: cooling (429), in 59.0s",
        "a: leased (every slot is leased)",
    ]


def test_many_kinds_of_requests_do_not_pile_up() -> None:
    pool = pool_of(KeySpec("a", limits=(Limit("requests", 1e6, model="m-1"),)))
    for number in range(500):
        pool.release(take(pool, ask(model=f"m-{number}")), 0.0)

    assert len(pool.indexes.all) <= 64
