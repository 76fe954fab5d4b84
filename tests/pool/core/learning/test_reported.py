"""A reported limit: which answers count, and what is left after them."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from agentos.pool.core.learning.reported import ReportedLimit
from agentos.pool.core.learning.reset_evidence import BUCKET, SLIDING, WINDOW
from agentos.pool.core.limits.base import FOREVER

# Eight in 64 seconds: one flows in every eight seconds, exact in binary. What flows in within 0.02 s is left alone.
SPARE = 0.0025


def told(
    amount: float = 8.0, per: float = 64.0, dimension: str = "requests", scope: str | None = None, prior: str = BUCKET
) -> ReportedLimit:
    return ReportedLimit(dimension, scope, amount, per, prior)


def hear(
    limit: ReportedLimit,
    remaining: float,
    at: float,
    *,
    of: float | None = None,
    resets_in: float | None = None,
    window: float | None = 64.0,
    stamp: Any = None,
    in_flight: float = 0.0,
) -> None:
    """An answer to a call that started at *at*: so much was left."""
    amount = limit.limit.amount if of is None else of
    limit.apply_reading(amount, remaining, resets_in, window, at, stamp, in_flight)


# -- as any limit -------------------------------------------------------------------------------------------------


def test_a_request_that_would_wait_for_long_tries_soon_if_the_limit_is_true() -> None:
    """Nothing else would ever show that it is too low. One call only, and the next one much later."""
    limit = told(8.0, 640.0)
    limit.take(8.0, 100.0)

    assert limit.ready_at(1.0, 100.0) == 101.0
    assert limit.reserve(1.0, 101.0) is not None
    assert limit.ready_at(1.0, 101.0) == 104.0


def test_until_an_answer_says_otherwise_all_of_it_is_there() -> None:
    limit = told(dimension="tokens")

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
    limit = told(dimension="tokens")
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

    limit.take(10.0, 0.0)

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


def test_an_answer_sets_what_is_left() -> None:
    limit = told()

    hear(limit, 4.0, 100.0)

    assert limit.left(100.0) == pytest.approx(4.0 - SPARE)
    assert limit.left(108.0) == pytest.approx(5.0 - SPARE)


def test_the_reset_of_a_bucket_tells_the_fraction_that_remaining_does_not() -> None:
    """``remaining`` is rounded down: with answers that take long, a small limit would be used at 60 %."""
    limit = told(10.0, 1.0)

    hear(limit, 4.0, 100.0, resets_in=0.52, window=1.0)

    assert limit.left(100.0) == pytest.approx(4.8 - 0.2)


@pytest.mark.parametrize(("amount", "spare"), [(2.0, 0.04), (10.0, 0.2), (1000.0, 1.0)])
def test_no_more_than_one_request_is_left_alone(amount: float, spare: float) -> None:
    limit = told(amount, 1.0)

    hear(limit, amount, 0.0, window=1.0)

    assert limit.left(0.0) == pytest.approx(amount - spare)


def test_of_tokens_nothing_is_left_alone() -> None:
    limit = told(1000.0, 60.0, "tokens")

    hear(limit, 400.0, 0.0, window=60.0)

    assert limit.left(0.0) == 400.0


def test_what_was_started_since_the_answered_call_is_gone() -> None:
    limit = told()
    first = limit.take(1.0, 0.0)
    limit.take(1.0, 1.0)
    limit.take(1.0, 2.0)

    hear(limit, 7.0, 0.0, stamp=first)

    assert limit.left(0.0) == pytest.approx(5.0 - SPARE)


def test_more_remaining_than_there_can_be_is_all_there_can_be() -> None:
    limit = told()

    hear(limit, 1e9, 0.0)

    assert limit.left(0.0) == pytest.approx(8.0 - SPARE)


def test_an_answer_to_an_older_call_says_nothing_new() -> None:
    limit = told()
    hear(limit, 2.0, 100.0)

    hear(limit, 80.0, 99.0, of=80.0)

    assert limit.left(100.0) == pytest.approx(2.0 - SPARE)
    assert limit.limit.amount == 8.0


def test_of_calls_that_began_together_the_one_that_arrived_first_counts() -> None:
    """Its answer has the most remaining, and what began with it is counted on top."""
    limit = told()
    stamps = [limit.take(1.0, 100.0 + each / 100) for each in range(3)]

    for stamp, remaining in zip(stamps, (5.0, 7.0, 6.0), strict=True):
        hear(limit, remaining, 100.0, stamp=stamp)

    assert limit.left(100.0) == pytest.approx(5.0 - SPARE)


def test_a_limit_that_has_changed_is_kept_as_it_is_now() -> None:
    limit = told()

    hear(limit, 16.0, 0.0, of=16.0, window=32.0)

    assert (limit.limit.amount, limit.limit.per) == (16.0, 32.0)
    limit.take(16.0, 0.0)
    assert limit.ready_at(1.0, 0.0) == pytest.approx(2.0, abs=0.1)


def test_a_limit_below_one_request_still_lets_one_start_now_and_then() -> None:
    limit = told(0.5, 60.0)

    hear(limit, 0.0, 0.0, window=60.0)

    at = limit.ready_at(1.0, 0.0)
    assert 0.0 < at <= 120.0
    assert limit.reserve(1.0, at) is not None


def test_what_others_took_since_is_gone_though_the_answered_call_took_less_than_thought() -> None:
    limit = told(1000.0, 60.0, "tokens")
    first = limit.take(500.0, 0.0)
    limit.take(300.0, 0.0)
    stamp = limit.correct(first, -400.0, 0.0)

    hear(limit, 900.0, 0.0, window=60.0, stamp=stamp)

    assert limit.left(0.0) == 600.0


def test_a_limit_that_is_not_obeyed_holds_nothing_back() -> None:
    limit = told()
    hear(limit, 0.0, 0.0)
    assert limit.ready_at(1.0, 0.0) > 0.0

    limit.obeyed = False

    assert limit.ready_at(1.0, 0.0) == 0.0


# -- how the limit is renewed -------------------------------------------------------------------------------------

# What a provider with 10 calls in 5 seconds reports of the call number *place*, which arrives at *at*: used and reset.
Provider = Callable[[int, float], tuple[float, float]]


def bucket_of_10(place: int, at: float) -> tuple[float, float]:
    used = max(1.0, place - 2.0 * at)
    return math.ceil(used), used / 2.0


def window_of_10(place: int, at: float) -> tuple[float, float]:
    return min(10.0, at % 5.0 // 0.4 + 1.0), 5.0 - at % 5.0


def sliding_of_10(place: int, at: float) -> tuple[float, float]:
    return min(10.0, place + 1.0), 5.0


@pytest.mark.parametrize("prior", [BUCKET, WINDOW])
@pytest.mark.parametrize("hint", [None, 60.0])
@pytest.mark.parametrize(
    ("provider", "shape"),
    [(bucket_of_10, BUCKET), (window_of_10, WINDOW), (sliding_of_10, SLIDING)],
    ids=["bucket", "window", "sliding"],
)
def test_the_window_is_read_from_the_numbers_and_not_from_the_dialect(
    provider: Provider, shape: str, hint: float | None, prior: str
) -> None:
    limit = told(10.0, 60.0, prior=prior)

    for place in range(40):
        at = 1000.0 + place * 0.4
        stamp = limit.take(1.0, at)
        used, resets_in = provider(place, place * 0.4)
        hear(limit, 10.0 - used, at, resets_in=resets_in, window=hint, stamp=stamp)

    assert limit.shape == shape
    assert limit.limit.per == pytest.approx(5.0)
    assert limit.believed


@pytest.mark.parametrize(("per", "rate"), [(1.0, 100.0), (10.0, 10.0), (86_400.0, 100 / 86_400)])
def test_one_answer_of_a_bucket_says_how_fast_it_refills(per: float, rate: float) -> None:
    """``x-ratelimit-limit-requests: 100`` is not 100 a minute if half of it is back in half a second."""
    limit = told(100.0, 60.0)

    hear(limit, 50.0, 1000.0, resets_in=per / 2 + 0.003, window=None)

    assert limit.limit.per == per
    assert limit.believed_rate == pytest.approx(rate)


def test_a_window_that_ended_is_all_there_again_within_a_tenth_of_a_second() -> None:
    limit = told(10.0, 5.0, prior=WINDOW)
    for place in range(12):
        at = 1000.0 + place * 0.5
        stamp = limit.take(1.0, at)
        used, resets_in = window_of_10(place, place * 0.5)
        hear(limit, 10.0 - used, at, resets_in=resets_in, window=None, stamp=stamp)
    limit.take(8.0, 1006.0)

    assert limit.ready_at(1.0, 1006.0) == pytest.approx(1010.0, abs=0.06)
    # One goes first, then twice as many each time.
    assert limit.ready_at(10.0, 1006.0) == pytest.approx(limit.ready_at(1.0, 1006.0) + 0.1, abs=0.01)


def test_numbers_that_no_meaning_explains_are_not_believed() -> None:
    """The reset is of another limit: it jumps about, whatever is used."""
    limit = told(100.0, 60.0)
    luck = random.Random(1)

    for place in range(30):
        at = 1000.0 + place
        stamp = limit.take(1.0, at)
        hear(limit, 90.0, at, resets_in=luck.uniform(1.0, 1000.0), window=None, stamp=stamp)

    assert not limit.believed


# -- the evidence for and against ---------------------------------------------------------------------------------


def test_a_limit_does_not_survive_more_admitted_calls_than_it_allows() -> None:
    """Believed: 10 in 10 s. Admitted: 5 a second."""
    limit = told(10.0, 10.0)
    limit.begin_count(1000.0)
    hear(limit, 5.0, 1000.0, window=10.0)

    for each in range(1, 400):
        before = limit.believed_rate
        refuted = limit.on_admitted(1.0, 1000.0 + each / 5, 1000.0 + each / 5)
        assert refuted == (each > 12)  # a capacity of 10, and in 2.4 s flow in 2.4
        assert (limit.believed_rate > before) == refuted
        assert not limit.is_refuted(1000.0 + each / 5)

    assert limit.believed_rate == pytest.approx(5.0, rel=0.05)
    assert limit.obeyed


def test_a_limit_whose_amount_was_admitted_at_once_and_more_is_dropped() -> None:
    """Believed: 10 in 60 s. So much more at once measures no rate, but the amount is wrong."""
    limit = told(10.0, 60.0)
    limit.begin_count(1000.0)
    hear(limit, 0.0, 1000.0, window=60.0)
    assert limit.ready_at(1.0, 1001.0) > 1001.0

    assert [limit.on_admitted(1.0, 1000.1, 1001.0) for _ in range(11)] == [False] * 10 + [True]

    assert not limit.believed
    assert limit.ready_at(1.0, 1001.0) == 1001.0


def test_calls_that_the_limit_allows_do_not_raise_it() -> None:
    limit = told(10.0, 1.0)
    limit.begin_count(1000.0)

    assert not any(limit.on_admitted(1.0, 1000.0 + each / 10, 1000.0 + each / 10) for each in range(500))
    assert limit.believed_rate == 10.0


def test_a_refusal_lowers_again_what_admitted_calls_raised() -> None:
    limit = told(10.0, 10.0)
    limit.begin_count(1000.0)
    hear(limit, 5.0, 1000.0, window=10.0)
    for each in range(1, 100):
        limit.on_admitted(1.0, 1000.0 + each / 5, 1000.0 + each / 5)
    assert limit.believed_rate > 4.0

    stamp = limit.take(1.0, 1020.0)
    limit.on_refusal(1.0, stamp[1], 1020.1, surprising=False)
    hear(limit, 0.0, 1020.0, window=10.0, stamp=stamp)

    assert limit.believed_rate == pytest.approx(1.0)


def test_calls_from_before_the_last_refusal_prove_nothing() -> None:
    limit = told(10.0, 60.0)
    limit.begin_count(1000.0)

    assert not any(limit.on_admitted(1.0, 999.0, 1001.0) for _ in range(100))
    assert limit.admitted == 0.0


def test_a_probe_that_another_limit_held_back_proves_nothing_when_a_later_call_is_admitted() -> None:
    limit = told(10.0, 3600.0)
    hear(limit, 0.0, 1000.0, window=3600.0)
    limit.take(1.0, 1000.0)
    probe_at = limit.ready_at(1.0, 1000.0)
    assert 1000.0 < probe_at < 1360.0  # long before anything flows in
    stamp = limit.reserve(1.0, probe_at)
    assert stamp is not None
    trust = limit.trust

    limit.undo(stamp, 1.0)
    assert limit.ready_at(1.0, probe_at) == probe_at  # the next call tries
    later = limit.take(1.0, 9000.0)
    limit.on_admitted(1.0, 9000.0, 9001.0, later[1])

    assert limit.trust == trust


# -- for a store --------------------------------------------------------------------------------------------------


def copied(limit: ReportedLimit) -> ReportedLimit:
    packed = json.loads(json.dumps(limit.pack()))
    other = ReportedLimit(*packed["learned"][1:])
    other.unpack(packed)
    return other


@pytest.mark.parametrize("provider", [bucket_of_10, window_of_10, sliding_of_10], ids=["bucket", "window", "sliding"])
def test_a_copy_from_a_record_cannot_be_told_from_the_original(provider: Provider) -> None:
    limit = ReportedLimit("requests", "large", 10.0, 60.0)
    for place in range(9):
        stamp = limit.take(1.0, 16.0 + place)
        used, resets_in = provider(place, float(place))
        hear(limit, 10.0 - used, 16.0 + place, resets_in=resets_in, window=None, stamp=stamp)
        limit.on_admitted(1.0, 16.0 + place, 16.5 + place)
    limit.on_refusal(1.0, stamp[1], 25.0, surprising=True)
    limit.drain(24.0, stamp)

    other = copied(limit)

    assert other.pack() == limit.pack()
    assert (other.limit, other.scope, other.largest, other.learned) == (limit.limit, "large", FOREVER, True)
    for one, now in itertools.product((limit, other), (26.0, 30.0)):
        later = one.take(2.0, now)
        hear(one, 4.0, now, resets_in=2.5, window=None, stamp=later)
        one.on_admitted(2.0, now, now + 0.1)
    assert other.pack() == limit.pack()
    assert [other.ready_at(need, 31.0) for need in (1.0, 5.0, 10.0)] == [
        limit.ready_at(need, 31.0) for need in (1.0, 5.0, 10.0)
    ]
    hear(other, 10.0, 15.0)  # older than what the original has heard
    assert other.pack() == limit.pack()


def test_a_record_of_an_earlier_version_opens() -> None:
    """It knows only what is left."""
    limit = told()
    limit.take(3.0, 0.0)
    limit.unpack(
        {
            "learned": ["told", "requests", None, 16.0, 32.0],
            "empty_at": 84.0,
            "heard_at": 100.0,
            "heard_taken": 5.0,
            "taken": 6.0,
        }
    )

    assert (limit.limit.amount, limit.limit.per, limit.heard_at, limit.taken) == (16.0, 32.0, 100.0, 6.0)
    assert limit.left(100.0) == 8.0
    assert limit.believed
    assert limit.reserve(9.0, 100.0) is None


def test_a_copy_of_one_that_nothing_was_heard_of_is_full() -> None:
    other = copied(told())

    assert (other.empty_at, other.heard_at) == (-FOREVER, -FOREVER)
    assert other.left(0.0) == 8.0


def test_another_process_knows_at_once_that_a_bucket_holds_less_than_its_limit() -> None:
    limit = told(60_000.0, 60.0, "tokens")
    limit.evidence.spare = 45_000.0
    limit._measure(60_000.0, 60.0)
    packed = json.loads(json.dumps(limit.pack()))
    other = ReportedLimit(*packed["learned"][1:])

    other.unpack(packed)

    assert other.fill_time == limit.fill_time == 15.0
    for each in (limit, other):
        each.take(14_000.0, 100.0)
    assert other.ready_at(2_000.0, 100.0) == limit.ready_at(2_000.0, 100.0) == 101.0


def test_unpacking_takes_over_a_limit_that_has_changed() -> None:
    limit, other = told(), told()
    hear(limit, 4.0, 0.0, of=16.0)

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


# -- the instants that it names -----------------------------------------------------------------------------------


def lived(luck: random.Random, dimension: str = "requests") -> tuple[ReportedLimit, float]:
    """A limit about which answers have said many things, some of them wrong; and the instant."""
    amount, per = luck.choice(((4.0, 1.0), (10.0, 5.0), (60.0, 60.0), (100.0, 3600.0)))
    limit = told(amount, per, dimension, prior=luck.choice((BUCKET, WINDOW, SLIDING)))
    now, renewed_at = 1000.0, 1000.0 + per
    limit.begin_count(now)
    meaning = luck.choice((BUCKET, WINDOW, SLIDING, "chance"))
    for _ in range(luck.randint(0, 60)):
        now += luck.choice((0.0, 0.01, 0.2, per / amount, per / 3))
        while renewed_at <= now:
            renewed_at += per
        need = 1.0 if dimension == "requests" else luck.uniform(0.0, amount / 2)
        stamp = limit.reserve(need, now)
        if stamp is None:
            continue
        used = luck.uniform(1.0, amount)
        resets = {BUCKET: used * per / amount, WINDOW: renewed_at - now, SLIDING: per}
        resets_in = resets.get(meaning, luck.uniform(0.0, 2 * per))
        happens = luck.random()
        if happens < 0.1:
            limit.undo(stamp, need)
        elif happens < 0.3:
            limit.on_refusal(need, stamp[1], now, surprising=luck.random() < 0.5)
            limit.drain(now, stamp)
        else:
            hear(limit, amount - math.ceil(used), now, resets_in=resets_in, window=None, stamp=stamp)
            limit.on_admitted(need, now, now, stamp[1])
    return limit, now


@pytest.mark.parametrize("dimension", ["requests", "tokens"])
def test_whatever_answers_said_a_call_can_start_at_the_instant_that_is_named_and_not_before(dimension: str) -> None:
    """Else a waiting request would be looked at too late, or for nothing again and again."""
    for number in range(400):
        luck = random.Random(number)
        limit, now = lived(luck, dimension)
        need = 1.0 if dimension == "requests" else luck.uniform(0.0, 1.5 * limit.limit.amount)

        at = limit.ready_at(need, now)

        assert now <= at < FOREVER, number
        assert limit.ready_at(need, now, extra=1.0) >= at, number
        for between in (now + (at - now) * share for share in (0.1, 0.5, 0.9)):
            assert limit.ready_at(need, between) == pytest.approx(at, abs=1e-5), number
        assert copied(limit).ready_at(need, now) == at, number
        assert limit.reserve(need, at) is not None, number


@pytest.mark.parametrize("renews", [True, False])
def test_a_window_that_is_renewed_in_this_instant_is_not_renewed_for_each_call(renews: bool) -> None:
    """Instants are sums of floats: a call may start a hair before the end of the window, and counts in the next one."""
    limit = ReportedLimit("requests", None, 11.0, 60.0, WINDOW)
    limit.take(11.0, 50.0)
    limit.renewed_at, limit.remaining, limit.heard_taken = 110.05, 0.0, 11.0
    limit.renews, limit.trust = renews, 3.0
    now = 110.05 - 5e-7

    count = 0
    while count < 100 and limit.ready_at(1.0, now) <= now:
        limit.take(1.0, now)
        count += 1

    assert 1 <= count <= 11


def test_a_window_that_seemed_to_slide_is_renewed_again_after_it_was_renewed_several_times() -> None:
    limit = told(8.0, 60.0, prior=WINDOW)
    limit.slides, renews = 1.0, []
    for window in range(6):
        began_at = 60.25 * window
        hear(limit, 7.0, began_at, resets_in=59.75, window=60.0, stamp=limit.take(1.0, began_at))
        renews.append(limit.renews)

    assert renews == [False] * 4 + [True] * 2


def test_in_a_window_no_more_starts_than_others_leave_whatever_an_answer_says_is_left() -> None:
    limit = told(3.0, 60.0, prior=WINDOW)
    limit.renews, limit.trust, limit.usable.value = True, 3.0, 2.0
    limit.renewed_at, limit.heard_at, limit.remaining = 120.0, 30.0, 3.0

    limit.take(2.0, 61.0)

    assert limit.ready_at(1.0, 62.0) >= 120.0


def test_a_burst_of_which_some_are_refused_leaves_nothing_and_not_less() -> None:
    """Calls that start together arrive in any order, and those that were refused took nothing."""
    limit = told(8.0, 640.0)
    stamps = [limit.take(1.0, 100.0 + number / 1_000) for number in range(10)]
    for stamp in (stamps[2], stamps[5]):
        limit.apply_reading(8.0, 0.0, 640.0, 64.0, 100.0, stamp, refused=True, now=100.02)
        limit.on_refusal(1.0, stamp[1], 100.02, surprising=False)
        limit.drain(100.0, stamp)
    hear(limit, 7.0, 100.0, resets_in=80.0, stamp=stamps[0])

    assert limit.left(100.05) == pytest.approx(0.0, abs=0.5)
