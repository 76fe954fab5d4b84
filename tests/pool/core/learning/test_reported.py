"""A reported limit: which answers count, and what is left after them."""

from __future__ import annotations

import itertools
import json
import math
import random

import pytest

from agentos.pool.core.learning.reported import ReportedLimit, infer_window
from agentos.pool.core.limits.base import FOREVER

# Eight in 64 seconds: one flows in every eight seconds, exact in binary. Of eight, 0.8 are left alone.
SPARE = 0.8


def told(amount: float = 8.0, per: float = 64.0, dimension: str = "requests") -> ReportedLimit:
    return ReportedLimit(dimension, None, amount, per)


# -- as any limit -------------------------------------------------------------------------------------------------


def test_until_an_answer_says_otherwise_all_of_it_is_there() -> None:
    limit = told()

    assert limit.left(100.0) == 8.0
    assert [limit.reserve(1.0, 100.0) is not None for _ in range(9)] == [True] * 8 + [False]
    assert limit.ready_at(1.0, 100.0) == 108.0
    assert limit.left(104.0) == 0.5


def test_what_is_not_used_adds_up_to_the_limit_and_no_further() -> None:
    limit = told()
    limit.take(8.0, 0.0)

    assert limit.left(64.0) == 8.0
    assert limit.left(1e6) == 8.0


def test_what_is_larger_than_the_limit_starts_when_all_is_there_and_is_paid_for_afterwards() -> None:
    """What was learned may be wrong: it makes nothing wait for ever."""
    limit = told()
    limit.take(4.0, 0.0)

    assert limit.largest == FOREVER
    assert limit.ready_at(20.0, 0.0) == 32.0
    assert limit.reserve(20.0, 31.0) is None
    assert limit.reserve(20.0, 32.0) is not None
    assert limit.left(32.0) == -12.0
    assert limit.ready_at(1.0, 32.0) == 32.0 + 13 * 8.0


def test_the_instant_it_names_is_one_at_which_it_keeps_its_word() -> None:
    r = random.Random(3)
    for _ in range(500):
        amount = r.uniform(1, 1e5)
        limit = told(amount, r.uniform(0.5, 1e5))
        now = r.uniform(0, 1e6)
        for _ in range(5):
            need = r.uniform(0, 1.5 * amount)
            now = limit.ready_at(need, now)
            assert limit.reserve(need, now) is not None


def test_taking_what_does_not_fit_is_remembered() -> None:
    limit = told()

    assert limit.take(10.0, 0.0) == (-FOREVER, 10.0)
    assert limit.left(0.0) == -2.0


def test_undoing_leaves_no_trace() -> None:
    limit = told()
    limit.take(3.0, 0.0)
    before = (limit.empty_at, limit.taken)

    stamp = limit.reserve(2.0, 8.0)
    assert stamp is not None
    limit.undo(stamp, 2.0)

    assert (limit.empty_at, limit.taken) == before


@pytest.mark.parametrize(("by", "left"), [(2.0, 3.0), (-2.0, 7.0)])
def test_a_correction_takes_or_gives_back(by: float, left: float) -> None:
    limit = told()
    stamp = limit.take(3.0, 0.0)

    limit.correct(stamp, by, 0.0)

    assert limit.left(0.0) == left


def test_giving_back_does_not_fill_it_beyond_the_limit() -> None:
    limit = told()
    stamp = limit.take(3.0, 0.0)

    limit.correct(stamp, -3.0, 1000.0)

    assert limit.ready_at(8.0, 1000.0) == 1000.0
    assert limit.left(1000.0) == 8.0


# -- what answers say ---------------------------------------------------------------------------------------------


def test_an_answer_sets_what_is_left_less_a_little_that_is_left_alone() -> None:
    limit = told()

    limit.apply_reading(8.0, 64.0, remaining=4.0, started_at=100.0, since=0.0)

    assert limit.left(100.0) == pytest.approx(4.0 - SPARE)
    assert limit.left(108.0) == pytest.approx(5.0 - SPARE)


@pytest.mark.parametrize(("amount", "spare"), [(2.0, 0.2), (10.0, 1.0), (1000.0, 1.0)])
def test_no_more_than_one_request_is_left_alone(amount: float, spare: float) -> None:
    limit = told(amount)

    limit.apply_reading(amount, 64.0, remaining=amount, started_at=0.0, since=0.0)

    assert limit.left(0.0) == pytest.approx(amount - spare)


def test_of_tokens_nothing_is_left_alone() -> None:
    limit = told(1000.0, 60.0, "tokens")

    limit.apply_reading(1000.0, 60.0, remaining=400.0, started_at=0.0, since=0.0)

    assert limit.left(0.0) == 400.0


def test_what_was_started_since_the_answered_call_is_gone() -> None:
    limit = told()
    first = limit.take(1.0, 0.0)
    limit.take(1.0, 1.0)
    limit.take(1.0, 2.0)

    assert limit.taken_since(first) == 2.0
    limit.apply_reading(8.0, 64.0, remaining=7.0, started_at=0.0, since=limit.taken_since(first))

    assert limit.left(0.0) == pytest.approx(5.0 - SPARE)


def test_more_remaining_than_there_can_be_is_all_there_can_be() -> None:
    limit = told()

    limit.apply_reading(8.0, 64.0, remaining=1e9, started_at=0.0, since=0.0)

    assert limit.left(0.0) == pytest.approx(8.0 - SPARE)


def test_an_answer_to_an_older_call_says_nothing_new() -> None:
    limit = told()
    limit.apply_reading(8.0, 64.0, remaining=2.0, started_at=100.0, since=0.0)

    limit.apply_reading(80.0, 64.0, remaining=80.0, started_at=99.0, since=0.0)

    assert limit.left(100.0) == pytest.approx(2.0 - SPARE)
    assert limit.limit.amount == 8.0


def test_of_two_calls_that_began_together_the_later_answer_counts() -> None:
    limit = told()
    limit.apply_reading(8.0, 64.0, remaining=2.0, started_at=100.0, since=0.0)

    limit.apply_reading(8.0, 64.0, remaining=6.0, started_at=100.0, since=0.0)

    assert limit.left(100.0) == pytest.approx(6.0 - SPARE)


def test_a_limit_that_has_changed_is_kept_as_it_is_now() -> None:
    limit = told()

    limit.apply_reading(16.0, 32.0, remaining=16.0, started_at=0.0, since=0.0)

    assert (limit.limit.amount, limit.limit.per) == (16.0, 32.0)
    limit.take(16.0, 0.0)
    assert limit.ready_at(1.0, 0.0) == pytest.approx(2.0 * 2.0)  # one, and the one that is left alone


def test_a_limit_below_one_request_still_lets_one_start_now_and_then() -> None:
    limit = told(0.5, 60.0)

    limit.apply_reading(0.5, 60.0, remaining=0.0, started_at=0.0, since=0.0)

    at = limit.ready_at(1.0, 0.0)
    assert 0.0 < at < 120.0
    assert limit.reserve(1.0, at) is not None


def test_what_others_took_since_is_gone_though_the_answered_call_took_less_than_thought() -> None:
    limit = told(1000.0, 60.0, "tokens")
    first = limit.take(500.0, 0.0)
    limit.take(300.0, 0.0)
    stamp = limit.correct(first, -400.0, 0.0)

    assert limit.taken_since(stamp) == 300.0


# -- for a store --------------------------------------------------------------------------------------------------


def copied(limit: ReportedLimit) -> ReportedLimit:
    packed = json.loads(json.dumps(limit.pack()))
    other = ReportedLimit(*packed["learned"][1:])
    other.unpack(packed)
    return other


def test_a_copy_from_a_record_cannot_be_told_from_the_original() -> None:
    limit = ReportedLimit("requests", "large", 8.0, 64.0)
    stamp = limit.take(3.0, 16.0)
    limit.apply_reading(12.0, 64.0, remaining=5.0, started_at=16.0, since=limit.taken_since(stamp))

    other = copied(limit)

    assert other.pack() == limit.pack()
    assert (other.limit, other.scope, other.largest, other.learned) == (limit.limit, "large", FOREVER, True)
    for one, now in itertools.product((limit, other), (20.0, 30.0)):
        one.take(2.0, now)
    assert other.pack() == limit.pack()
    other.apply_reading(
        12.0, 64.0, remaining=12.0, started_at=15.0, since=0.0
    )  # older than what the original has heard
    assert other.pack() == limit.pack()


def test_a_copy_of_one_that_nothing_was_heard_of_is_full() -> None:
    other = copied(told())

    assert (other.empty_at, other.heard_at) == (-FOREVER, -FOREVER)
    assert other.left(0.0) == 8.0


def test_unpacking_takes_over_a_limit_that_has_changed() -> None:
    limit, other = told(), told()
    limit.apply_reading(16.0, 64.0, remaining=4.0, started_at=0.0, since=0.0)

    other.unpack(json.loads(json.dumps(limit.pack())))

    assert other.limit.amount == 16.0
    assert other.left(0.0) == limit.left(0.0)
    assert other.ready_at(8.0, 0.0) == limit.ready_at(8.0, 0.0)


def test_a_reset_fills_it() -> None:
    limit = told()
    limit.take(20.0, 0.0)

    limit.reset()

    assert limit.left(0.0) == 8.0
    assert limit.taken == 20.0


# -- how long a window is -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "remaining", "resets_in", "window"),
    [
        (60.0, 30.0, 30.0, 60.0),  # half is used and back in half a minute
        (60.0, 59.0, 1.0, 60.0),
        (1000.0, 0.0, 3600.0, 3600.0),
        (1000.0, 500.0, 43_200.0, 86_400.0),
        (10.0, 0.0, 1.0, 1.0),
        (10.0, 0.0, 10.0, 10.0),
        (10.0, 0.0, 7.0, 10.0),  # 0.7 of ten
        (10.0, 0.0, 14.0, 10.0),
        (10.0, 0.0, 6.9, 60.0),  # nothing usual: a minute
        (10.0, 0.0, 14.1, 60.0),
        (60.0, 60.0, 30.0, 60.0),  # nothing is used, and so the figures say nothing
        (60.0, 90.0, 30.0, 60.0),
        (100.0, 80.0, 720.0, 3600.0),  # a fifth is used: that is enough
        (100.0, 81.0, 684.0, 60.0),  # less is not: of a minute that began just now it would look like an hour
        (1000.0, 999.0, 59.0, 60.0),
        (60.0, 30.0, None, 60.0),
        (60.0, 30.0, 0.0, 60.0),
        (60.0, 30.0, -5.0, 60.0),
        (60.0, 30.0, math.nan, 60.0),
        (60.0, 30.0, math.inf, 60.0),
        (math.nan, math.nan, 30.0, 60.0),
    ],
)
def test_the_window_is_the_usual_one_that_the_figures_fit(
    limit: float, remaining: float, resets_in: float | None, window: float
) -> None:
    assert infer_window(limit, remaining, resets_in) == window
