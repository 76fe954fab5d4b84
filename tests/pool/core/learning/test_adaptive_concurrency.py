"""Adaptive concurrency finds how many leases at once a credential allows."""

from __future__ import annotations

import itertools
import json
from collections import deque

import pytest

from agentos.pool.core.learning.adaptive_concurrency import MAX_SLOTS, AdaptiveConcurrency


class Caller:
    """Keeps every slot of one credential busy; the provider bears *cap* at once, and refuses the rest at once."""

    def __init__(self, width: AdaptiveConcurrency, cap: int) -> None:
        self.width, self.cap = width, cap
        self.refused = 0
        self._tokens = itertools.count(1)
        self._running: deque[int] = deque()

    def work(self, calls: int) -> Caller:
        for _ in range(calls):
            while len(self._running) < self.width.slots:
                self._start()
            token = self._running.popleft()
            if self.width.lease_succeeded(token):
                self.width.grow()
        return self

    def _start(self) -> None:
        token = next(self._tokens)
        self.width.lease_started(token, "a", len(self._running) + 1)
        if len(self._running) < self.cap:
            self._running.append(token)
        else:
            self.refused += 1
            self.width.on_refusal(token)


def grown_to(slots: int) -> AdaptiveConcurrency:
    """One that has so many slots, all proven."""
    width = AdaptiveConcurrency()
    width.slots = slots
    width.lease_started(1, "a", slots)
    width.lease_succeeded(1)
    assert width.proven == slots
    return width


def refused_at(width: AdaptiveConcurrency, at_once: int, token: int = 1000) -> bool:
    width.lease_started(token, "a", at_once)
    return width.on_refusal(token)


@pytest.mark.parametrize("cap", [1, 2, 3, 5, 8, 20, 50])
def test_the_number_that_a_provider_bears_is_found(cap: int) -> None:
    caller = Caller(AdaptiveConcurrency(), cap).work(400)

    assert caller.width.slots in (cap, cap + 1)  # now and then one more is tried
    assert caller.width.proven == cap
    before = caller.refused
    caller.work(1000)
    assert caller.refused - before <= 10


def test_it_grows_as_far_as_it_may_where_nothing_is_refused() -> None:
    caller = Caller(AdaptiveConcurrency(), cap=1000).work(300)

    assert caller.width.slots == MAX_SLOTS
    assert caller.refused == 0


def test_it_begins_with_one_and_grows_fourfold_in_the_time_of_one_call() -> None:
    width = AdaptiveConcurrency()
    assert width.slots == 1

    width.lease_started(1, "a", 1)
    assert width.lease_succeeded(1)
    width.grow()

    assert width.slots == 4


def test_it_does_not_grow_where_its_slots_are_not_used() -> None:
    width = grown_to(10)
    width.peak = 0

    for token in range(2, 100):
        width.lease_started(token, "a", 7)
        assert not width.lease_succeeded(token)

    width.lease_started(100, "a", 8)
    assert width.lease_succeeded(100)


def test_a_lease_that_ended_otherwise_tells_nothing() -> None:
    width = AdaptiveConcurrency()
    width.slots = 4
    width.lease_started(1, "a", 4)

    width.forget(1)
    width.forget(99)

    assert (width.proven, width.clean) == (0, 0)
    assert not width.on_refusal(1)


def test_a_refusal_where_as_many_were_admitted_before_is_of_a_rate() -> None:
    width = grown_to(8)

    assert not refused_at(width, 8)

    assert (width.slots, width.known) == (8, False)


def test_a_refusal_of_the_only_call_is_never_of_their_number() -> None:
    width = AdaptiveConcurrency()

    assert not refused_at(width, 1)

    assert width.slots == 1


def test_the_first_refusal_above_what_is_proven_may_be_chance_and_the_second_is_believed() -> None:
    width = grown_to(5)
    width.slots = 8

    assert refused_at(width, 6)
    assert (width.slots, width.known, width.suspected) == (5, False, 6)

    width.slots = 8
    assert refused_at(width, 6, token=1001)
    assert (width.slots, width.known) == (5, True)


def test_a_second_refusal_far_above_the_first_is_another_chance() -> None:
    width = grown_to(5)
    width.slots = 20
    refused_at(width, 6)
    width.slots = 20

    assert refused_at(width, 16, token=1001)

    assert (width.slots, width.known, width.suspected) == (15, False, 16)


def test_calls_that_began_before_the_last_cut_do_not_cut_again() -> None:
    width = grown_to(5)
    width.slots = 10
    for token in (101, 102, 103):
        width.lease_started(token, "a", token - 95)  # the sixth, seventh and eighth at once

    assert [width.on_refusal(token) for token in (103, 102, 101)] == [True, True, True]

    assert width.slots == 5
    assert refused_at(width, 9, token=200)
    assert width.slots == 5


def test_who_came_after_one_that_was_refused_had_one_less_beside_it() -> None:
    width = grown_to(5)
    width.slots = 10
    width.lease_started(101, "a", 6)
    width.lease_started(102, "a", 7)

    width.on_refusal(101)
    assert not width.lease_succeeded(102)

    assert width.proven == 6


def test_who_came_after_one_that_was_refused_on_another_credential_had_as_many_beside_it() -> None:
    width = grown_to(5)
    width.slots = 10
    width.lease_started(101, "b", 6)
    width.lease_started(102, "a", 7)

    width.on_refusal(101)
    width.lease_succeeded(102)

    assert width.proven == 7


def test_once_known_it_grows_by_one_after_a_hundred_calls_and_then_by_more() -> None:
    width = grown_to(5)
    width.known = True
    slots = []
    for token in range(2, 450):
        width.lease_started(token, "a", width.slots)
        if width.lease_succeeded(token):
            width.grow()
        slots.append(width.slots)

    assert slots[:98] == [5] * 98
    assert slots[98] == 6
    assert sorted(set(slots)) == [5, 6, 8, 12, 20]


def test_a_known_width_that_has_grown_has_to_be_used_before_it_grows_again() -> None:
    width = grown_to(20)
    width.known = True
    width.grow()
    assert width.slots == 21

    for token in range(2, 400):
        width.lease_started(token, "a", 10)
        assert not width.lease_succeeded(token)


def test_a_known_width_that_is_refused_again_is_left_alone_for_longer() -> None:
    width = grown_to(5)
    patience = []
    for token in range(100, 108):
        width.slots = 6
        refused_at(width, 6, token)
        patience.append(width.patience)

    assert patience == [100, 100, 200, 400, 800, 1600, 1600, 1600]


def test_a_provider_that_bears_more_later_is_found_out() -> None:
    caller = Caller(AdaptiveConcurrency(), cap=5).work(600)
    caller.cap = 30

    caller.work(6000)

    assert caller.width.slots >= 30


def test_a_provider_that_bears_less_later_is_taken_for_a_slower_one() -> None:
    """The pool then learns a rate, which brings the number down as well."""
    width = grown_to(8)

    assert not refused_at(width, 6)


def test_starting_over_forgets_everything() -> None:
    width = Caller(AdaptiveConcurrency(), cap=5).work(600).width

    width.reset()

    assert width.pack() == AdaptiveConcurrency().pack()
    assert (width.patience, width.step, width.clean, width.peak) == (100, 1, 0, 0)


def test_what_is_kept_is_taken_over() -> None:
    width = Caller(AdaptiveConcurrency(), cap=5).work(600).width
    other = AdaptiveConcurrency()

    other.unpack(json.loads(json.dumps(width.pack())))

    assert other.pack() == width.pack()
    assert other.known


def test_a_result_of_another_process_restarts_the_count() -> None:
    width = grown_to(4)
    width.clean, width.peak = 50, 4

    width.unpack(width.pack())
    assert (width.clean, width.peak) == (50, 4)

    width.unpack(width.pack() | {"slots": 3})
    assert (width.clean, width.peak) == (0, 0)


def test_what_another_process_found_is_then_gone_beyond_one_by_one() -> None:
    width = Caller(AdaptiveConcurrency(), cap=1000).work(20).width
    other = grown_to(5)
    for token in (100, 101):
        other.slots = 6
        refused_at(other, 6, token)
    assert other.known

    width.unpack(other.pack())
    width.grow()

    assert width.slots == 6


def test_how_patient_another_process_is_and_how_far_it_leaps_is_taken_over() -> None:
    other = grown_to(5)
    for token in range(100, 104):
        other.slots = 6
        refused_at(other, 6, token)
    other.grow()
    width = AdaptiveConcurrency()

    width.unpack(json.loads(json.dumps(other.pack())))

    assert (width.patience, width.step) == (other.patience, other.step) == (400, 2)


def test_from_sixteen_on_it_doubles_in_the_time_of_one_call() -> None:
    width = grown_to(16)

    width.grow()

    assert width.slots == 17


def test_the_step_is_for_a_width_that_is_known() -> None:
    width = AdaptiveConcurrency()
    for _ in range(5):
        width.grow()

    assert width.step == 1


def test_nothing_is_remembered_of_leases_that_have_ended() -> None:
    caller = Caller(AdaptiveConcurrency(), cap=5).work(1000)

    assert len(caller.width._in_flight) <= MAX_SLOTS


# -- where answers take long --------------------------------------------------------------------------------------


def long_calls(slots: int) -> AdaptiveConcurrency:
    """One whose answers take a minute, with two calls in flight since the instant 0."""
    width = AdaptiveConcurrency()
    width.note_latency(60.0)
    width.slots = slots
    for token in (1, 2):
        width.lease_started(token, "a", token, 0.0)
    return width


def test_a_single_refusal_among_long_calls_is_of_a_rate() -> None:
    width = long_calls(8)
    width.lease_started(3, "a", 3, 10.0)

    assert not width.on_refusal(3, 10.02)

    assert (width.slots, width.known) == (8, False)


def test_one_more_call_that_is_refused_again_and_again_is_too_many() -> None:
    width = long_calls(8)
    believed = []
    for token in (3, 4, 5, 6):
        width.lease_started(token, "a", 3, 10.0 * token)
        believed.append(width.on_refusal(token, 10.0 * token + 0.02))

    assert believed == [False, False, False, True]
    assert (width.slots, width.known) == (2, True)


def test_refusals_within_a_few_seconds_are_of_a_rate_where_answers_take_a_minute() -> None:
    """None of the calls in flight ends meanwhile, so that their number explains nothing yet."""
    width = long_calls(8)
    believed = []
    for token in range(3, 13):
        width.lease_started(token, "a", 3, 10.0 + token)
        believed.append(width.on_refusal(token, 10.02 + token))

    assert not any(believed)
    assert (width.slots, width.known) == (8, False)


def test_a_call_that_is_in_flight_for_long_counts_as_admitted() -> None:
    width = long_calls(8)
    width.lease_started(3, "a", 3, 10.0)
    width.lease_started(4, "a", 3, 20.0)  # another had ended

    assert not width.on_refusal(4, 20.02)

    assert width.proven == 3


def test_no_more_at_once_than_a_small_share_of_what_was_admitted() -> None:
    """When an unknown limit is reached, all that are in flight are refused."""
    width = AdaptiveConcurrency()
    width.note_latency(0.1)
    for token in range(200):
        width.lease_started(token, "a", width.slots)
        if width.lease_succeeded(token):
            width.grow()

    assert width.slots == 16


def test_keys_of_one_quota_grow_together_by_as_much_as_one_key() -> None:
    width = AdaptiveConcurrency()

    for _ in range(8):
        width.grow(8)

    assert width.slots == 4


def test_slots_that_are_freed_together_do_not_fill_together() -> None:
    width = AdaptiveConcurrency()
    width.slots = 16
    width.lease_started(1, "a", 1, 5.0)
    assert width.paced_at(1) < 5.0  # nothing is known of the time that answers take

    width.note_latency(0.1)

    assert width.paced_at(1) == pytest.approx(5.0025)
    assert width.paced_at(16) < 5.0  # so short a time is not worth a timer
