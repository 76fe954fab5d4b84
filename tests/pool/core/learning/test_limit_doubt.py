"""The sequential test of a known limit."""

from __future__ import annotations

from agentos.pool.core.learning.limit_doubt import LimitDoubt

NOTHING = (0.0, 0.0)


def refused(doubt: LimitDoubt, *at: tuple[float, float]) -> bool:
    """Note refusals, each at an instant and after so much was taken; return the last answer."""
    return [doubt.on_refusal(taken, now - 0.1, now) for now, taken in at][-1]


def test_three_refusals_with_few_admitted_between_are_more_than_chance() -> None:
    doubt = LimitDoubt()

    assert not refused(doubt, (10.0, 20.0), (20.0, 22.0))
    assert refused(doubt, (30.0, 24.0))


def test_refusals_of_one_burst_count_once() -> None:
    assert not refused(LimitDoubt(), (10.0, 20.0), (10.01, 20.0), (10.02, 20.0), (10.03, 20.0))


def test_one_refusal_in_a_hundred_calls_is_chance_however_often() -> None:
    assert not refused(LimitDoubt(), *((100.0 * n, 100.0 * n) for n in range(1, 100)))


def test_the_refusals_that_decide_measure_what_was_admitted_between_them() -> None:
    doubt = LimitDoubt()
    refused(doubt, (10.0, 20.0), (20.0, 23.0), (30.0, 26.0))

    assert doubt.measure(0.3) == (4.0, 20.0)  # six were taken, of which two were refused


def test_nothing_is_measured_while_other_things_held_the_calls_back() -> None:
    doubt = LimitDoubt()
    refused(doubt, (10.0, 20.0), (20.0, 23.0), (30.0, 26.0))

    assert doubt.measure(3.0) == NOTHING


def test_the_measurement_begins_with_the_refusal_that_chance_does_not_explain() -> None:
    doubt = LimitDoubt()
    refused(doubt, (10.0, 20.0), (1_000.0, 1_000.0), (1_010.0, 1_003.0), (1_020.0, 1_006.0))

    assert doubt.measure(0.3) == (4.0, 20.0)
