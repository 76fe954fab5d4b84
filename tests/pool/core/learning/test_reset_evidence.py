"""The meaning of a reported reset is found from the numbers of the answers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.pool.core.learning.reported import ReportedLimit
from agentos.pool.core.learning.reset_evidence import BUCKET, SLIDING, WINDOW, ResetEvidence
from agentos.simulator.limiters import Limiter, LimiterKind, build_limiter

AMOUNT = 1_000.0


def weighed(prior: str, *answers: tuple[float, float, float], exact: bool = True) -> ResetEvidence:
    """After answers of (used, seconds until the reset, start of the call)."""
    evidence = ResetEvidence(prior)
    for used, resets_in, started_at in answers:
        evidence.add(AMOUNT, used, resets_in, started_at, exact=exact)
    return evidence


@pytest.mark.parametrize("prior", [BUCKET, WINDOW])
def test_a_reset_in_proportion_to_what_is_used_is_a_bucket(prior: str) -> None:
    evidence = weighed(prior, *((used, used / 10, used / 50) for used in range(1, 10)))

    assert evidence.shape == BUCKET
    assert evidence.find_window(10, None) == 1.0


@pytest.mark.parametrize("prior", [BUCKET, WINDOW])
def test_resets_at_one_instant_are_a_window(prior: str) -> None:
    evidence = weighed(prior, (1, 4.9, 0.1), (20, 4.0, 1.0), (22, 2.5, 2.5), (1, 4.8, 5.2), (30, 1.0, 9.0))

    assert evidence.shape == WINDOW
    assert evidence.find_window(50, None) == 5.0


@pytest.mark.parametrize("prior", [BUCKET, WINDOW])
def test_a_reset_that_never_changes_is_a_sliding_window(prior: str) -> None:
    evidence = weighed(prior, *((used, 10.0, 1.3 * used) for used in range(1, 9)))

    assert evidence.shape == SLIDING
    assert evidence.find_window(50, None) == 10.0


@pytest.mark.parametrize("hint", [None, 60.0])
def test_a_bucket_that_would_take_days_to_refill_is_a_window(hint: float | None) -> None:
    """One call is used and the reset is in half a day: a bucket of a thousand would take more than a year."""
    evidence = ResetEvidence(BUCKET)
    evidence.add(AMOUNT, 1.0, 43_200.0, 0.0, exact=True, hint=hint)

    assert evidence.shape == WINDOW


def test_whole_seconds_are_rounded_up_and_a_usual_length_decides() -> None:
    evidence = weighed(BUCKET, (1, 1.0, 0.0), (15, 8.0, 1.0), (30, 15.0, 2.0), exact=False)

    assert evidence.precision == 1.0
    assert evidence.find_window(120, None) == 60.0


def test_a_window_told_in_dates_is_shorter_than_its_longest_reset() -> None:
    """A date has whole seconds: a window of one second ends up to two seconds later by it."""
    evidence = weighed(WINDOW, *((1, 2.0 - 0.13 * at, 1.13 * at) for at in range(6)), exact=False)

    assert evidence.find_window(50, 1.0) == 1.0


@pytest.mark.parametrize(("hint", "found"), [(60.0, 1.0), (1.0, 1.0), (None, 1.0)])
def test_the_numbers_win_over_the_dialect(hint: float | None, found: float) -> None:
    evidence = weighed(BUCKET, (50, 0.5, 0.0), (99, 0.99, 1.0))

    assert evidence.find_window(100, hint) == found


def test_the_dialect_decides_where_the_numbers_do_not() -> None:
    """One request of sixty thousand used, and a reset rounded up to a second: a day or a minute."""
    evidence = weighed(BUCKET, (1, 1.0, 0.0), exact=False)

    assert evidence.find_window(60_000, 86_400.0) != evidence.find_window(60_000, 60.0) == 60.0


def test_no_answer_tells_nothing() -> None:
    assert ResetEvidence(BUCKET).find_window(10, 60.0) is None


def test_a_bucket_that_is_full_but_for_what_it_never_holds_tells_no_rate() -> None:
    evidence = weighed(BUCKET, (10, 1.0, 0.0), (16, 2.0, 0.1), (4, 0.5, 2.0))
    assert evidence.spare == 4.0

    assert evidence.find_window(20, None) is not None


def test_numbers_that_nothing_explains_are_not_believed() -> None:
    resets = (7.0, 900.0, 0.3, 55.0, 2_000.0, 12.0, 400.0, 1.1, 86.0, 3.3)
    evidence = weighed(WINDOW, *((5, resets_in, 1.0 * at) for at, resets_in in enumerate(resets)))

    assert evidence.is_unbelievable


def test_one_wrong_answer_changes_nothing() -> None:
    answers = [(used, used / 10, used / 50) for used in range(1, 10)]
    evidence = weighed(BUCKET, *answers, (3, 77.0, 0.2), *answers)

    assert evidence.shape == BUCKET
    assert not evidence.is_unbelievable
    assert evidence.find_window(10, None) == 1.0


def test_the_evidence_survives_storage() -> None:
    evidence = weighed(BUCKET, (1, 4.9, 0.1), (20, 4.0, 1.0), (22, 2.5, 2.5), (1, 4.8, 5.2))

    copy = ResetEvidence(BUCKET)
    copy.unpack(evidence.pack(), evidence.anchor)

    assert (copy.shape, copy.anchor, copy.pack()) == (evidence.shape, evidence.anchor, evidence.pack())
    assert copy.find_window(50, None) == evidence.find_window(50, None)


# -- alone with a limiter -----------------------------------------------------------------------------------------


def use(limit: ReportedLimit, limiter: Limiter, until: float) -> tuple[int, int]:
    """Make one call after the other, each as soon as the limit allows. Return how many were admitted and refused."""
    now, admitted, refused = 0.0, 0, 0
    while (now := limit.ready_at(1.0, now)) < until and refused < 100:
        stamp = limit.take(1.0, now)
        good = limiter.admit(now)
        level = limiter.level(now)
        limit.apply_reading(level.limit, math.floor(level.remaining + 1e-6), level.full_in, None, now, stamp)
        if good:
            admitted += 1
            limit.on_admitted(1.0, now, now, stamp[1])
        else:
            refused += 1
            limit.on_refusal(1.0, stamp[1], now, surprising=False)
            limit.drain(now, stamp)
    return admitted, refused


amounts = st.integers(5, 30)
windows = st.sampled_from([0.5, 1.0, 2.0, 5.0, 7.0, 10.0, 20.0, 45.0, 60.0, 100.0, 300.0])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    amount=amounts,
    window=windows,
    phase=st.floats(0.0, 0.99),
    kind=st.sampled_from(["bucket", "fixed", "gcra"]),
    prior=st.sampled_from([BUCKET, WINDOW]),
)
def test_alone_with_exact_headers_a_limit_is_used_and_hardly_ever_refused(
    amount: int, window: float, phase: float, kind: LimiterKind, prior: str
) -> None:
    limiter = build_limiter(kind, amount, window, phase=phase * window)
    limit = ReportedLimit("requests", None, float(amount), 60.0, prior)

    admitted, refused = use(limit, limiter, 20 * window)

    assert admitted >= 0.95 * 20 * amount
    assert refused <= 10  # calls that tried whether the limit is true, fewer each time


# -- buckets that hold less than their limit -----------------------------------------------------------------------


def test_the_change_between_two_answers_tells_what_a_bucket_holds() -> None:
    """600 a minute, of which it holds 15: ten a second."""
    evidence = weighed(BUCKET, (586, 0.1, 0.0), (590, 0.5, 1.0), (597, 1.2, 2.0))

    assert evidence.shape == BUCKET
    assert evidence.spare == pytest.approx(585)
    assert evidence.find_window(600, None) == 60.0


def test_use_that_is_not_ours_and_gone_at_once_is_a_bucket_that_holds_less() -> None:
    evidence = ResetEvidence(BUCKET)

    evidence.add(600, 591, 0.101, 0.0, exact=True, own=1.0)

    assert evidence.spare == 590.0
    assert evidence.find_window(600, None) == 60.0


def test_use_that_is_not_ours_and_renewed_in_a_usual_time_is_that_of_others() -> None:
    evidence = ResetEvidence(BUCKET)

    evidence.add(600, 300, 30.0, 0.0, exact=True, own=1.0)

    assert evidence.spare == 0.0
    assert evidence.find_window(600, None) == 60.0


def test_a_bucket_holds_at_least_what_an_answer_says_is_left() -> None:
    evidence = ResetEvidence(BUCKET)
    evidence.add(600, 591, 0.101, 0.0, exact=True, own=1.0)

    evidence.add(600, 400, 40.001, 1.0, exact=True)

    assert evidence.spare <= 400.0


def test_less_inflow_than_whole_seconds_promise_says_that_a_bucket_holds_less() -> None:
    evidence = weighed(BUCKET, (2_998, 1.0, 0.0), exact=False)

    evidence.note_shortfall(100.0, 2_990.0)

    assert evidence.spare == 2_990.0
    assert evidence.find_window(3_000, 60.0) == 60.0


def test_its_record_keeps_what_a_bucket_holds() -> None:
    evidence = weighed(BUCKET, (586, 0.1, 0.0), (590, 0.5, 1.0), (597, 1.2, 2.0))
    other = ResetEvidence(WINDOW)

    other.unpack(evidence.pack(), evidence.anchor)

    assert other.pack() == evidence.pack()
    assert other.spare == evidence.spare
