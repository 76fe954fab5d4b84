"""The limiters against a second reckoning from their definitions, over all calls since the start."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.simulator.limiters import FixedWindow, Gcra, Limiter, LimiterKind, SlidingLog, TokenBucket, build_limiter

KINDS: tuple[LimiterKind, ...] = ("bucket", "fixed", "sliding", "gcra")

# Gaps in eighths of a second: exact as floats and as fractions, so that edges are hit.
gaps = st.lists(st.integers(0, 24), min_size=1, max_size=60)


class Definition:
    """Decides by the definition of a limiter, exactly, from the list of all earlier calls."""

    def __init__(self, kind: LimiterKind, amount: int, window: int, capacity: int, phase: Fraction) -> None:
        self.kind, self.amount, self.window, self.capacity, self.phase = kind, amount, window, capacity, phase
        self.counted: list[Fraction] = []

    def fits(self, now: Fraction) -> bool:
        if self.kind == "fixed":
            began = (now + self.phase) // self.window * self.window - self.phase
            return sum(at >= began for at in self.counted) < self.amount
        if self.kind == "sliding":
            return sum(at > now - self.window for at in self.counted) < self.amount
        # In no stretch of time since a call more than the capacity and the refill of that stretch.
        rate = Fraction(self.amount, self.window)
        return all(
            len(self.counted) - first + 1 <= self.capacity + rate * (now - at) for first, at in enumerate(self.counted)
        )


@pytest.mark.parametrize("kind", KINDS)
@given(
    gaps=gaps, amount=st.integers(1, 6), window=st.integers(1, 8), capacity=st.integers(1, 6), phase=st.integers(0, 7)
)
def test_a_limiter_admits_what_its_definition_admits(
    kind: LimiterKind, gaps: list[int], amount: int, window: int, capacity: int, phase: int
) -> None:
    limiter = build_limiter(kind, amount, window, capacity=capacity, phase=phase % window)
    definition = Definition(kind, amount, window, capacity, Fraction(phase % window))
    now = Fraction(0)
    for gap in gaps:
        now += Fraction(gap, 8)
        fits = definition.fits(now)
        assert limiter.admit(float(now)) is fits
        if fits:
            definition.counted.append(now)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@given(gaps=gaps, amount=st.integers(1, 6), window=st.integers(1, 8), capacity=st.integers(1, 6))
def test_a_call_is_admitted_after_exactly_the_stated_wait_and_not_before(
    kind: LimiterKind, counted: bool, gaps: list[int], amount: int, window: int, capacity: int
) -> None:
    limiter = build_limiter(kind, amount, window, capacity=capacity, count_rejections=counted)
    now = 0.0
    for gap in gaps:
        now += gap / 8
        wait = limiter.retry_in(now)
        if wait > 0.01:
            assert limiter.retry_in(now + wait - 0.01) > 0
        assert limiter.retry_in(now + wait) == 0
        now += wait
        assert limiter.admit(now)
        limiter.admit(now)


@pytest.mark.parametrize("kind", KINDS)
@given(gaps=gaps, amount=st.integers(1, 6), window=st.integers(1, 8))
def test_the_whole_part_of_what_is_left_is_what_is_admitted_at_once(
    kind: LimiterKind, gaps: list[int], amount: int, window: int
) -> None:
    limiter = build_limiter(kind, amount, window)
    now = 0.0
    for gap in gaps:
        now += gap / 8
        limiter.admit(now)
    limit, remaining, resets_in = limiter.level(now)
    assert 0 <= remaining <= limit == amount
    assert 0 <= resets_in <= window + 1e-9
    assert sum(limiter.admit(now) for _ in range(amount + 1)) == math.floor(remaining + 1e-6)


def spent(limiter: Limiter, count: int) -> Limiter:
    """The limiter after that many admitted calls at the instant 0."""
    assert all(limiter.admit(0.0) for _ in range(count))
    return limiter


def test_each_kind_states_its_own_reset() -> None:
    assert spent(TokenBucket(10, 60, 20), 5).level(0.0) == (10, 15, 30)  # until full
    assert spent(FixedWindow(10, 60, 20), 5).level(1.0) == (10, 5, 39)  # until the end of the window
    assert spent(SlidingLog(10, 60), 5).level(1.0) == (10, 5, 59)  # until the oldest call leaves it
    assert spent(Gcra(600, 60, 10), 5).level(0.0) == (10, 5, 0.5)  # its capacity, until full


def test_a_refusal_that_counts_takes_what_is_left_of_one_and_makes_no_debt() -> None:
    for limiter in (TokenBucket(10, 10, 2, count_rejections=True), Gcra(10, 10, 2, count_rejections=True)):
        spent(limiter, 2)
        assert not limiter.admit(0.5)
        assert limiter.retry_in(0.5) == 1.0
        assert not limiter.admit(0.5)
        assert limiter.retry_in(0.5) == 1.0


def test_a_refusal_that_counts_stays_in_a_sliding_window_beyond_the_amount() -> None:
    limiter = spent(SlidingLog(2, 10, count_rejections=True), 2)
    assert not limiter.admit(4.0)
    assert limiter.retry_in(4.0) == 6.0
    assert not limiter.admit(5.0)
    assert limiter.retry_in(5.0) == 9.0  # of those at 0, 0, 4 and 5 three have to leave


def test_a_refusal_that_counts_ends_with_its_fixed_window() -> None:
    limiter = spent(FixedWindow(2, 10, count_rejections=True), 2)
    assert not limiter.admit(9.0)
    assert limiter.admit(10.0)


def test_what_was_not_used_is_given_back() -> None:
    for kind in KINDS:
        limiter = build_limiter(kind, 10, 60)
        limiter.take(8.0, 0.0)
        limiter.give_back(5.0, 1.0)
        assert limiter.retry_in(1.0, 7.0) == 0.0
        assert limiter.retry_in(1.0, 10.5) == math.inf


@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_that_is_halved_gives_half_and_keeps_no_more_than_it_can_hold(kind: LimiterKind) -> None:
    limiter = build_limiter(kind, 10, 10)
    limiter.take(1.0, 0.0)
    limiter.change(0.5, 0.0)

    left = sum(limiter.admit(0.0) for _ in range(20))
    later = sum(limiter.admit(10.0) for _ in range(20))

    assert left == (5 if kind in ("bucket", "gcra") else 4)  # windows also count what was given before
    assert later == 5
    assert limiter.level(10.0).limit == 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_that_is_raised_gives_more_from_then_on(kind: LimiterKind) -> None:
    limiter = spent(build_limiter(kind, 10, 10), 10)
    limiter.change(2.0, 0.0)

    assert sum(limiter.admit(0.0) for _ in range(30)) == (0 if kind in ("bucket", "gcra") else 10)
    assert sum(limiter.admit(10.0) for _ in range(30)) == 20
