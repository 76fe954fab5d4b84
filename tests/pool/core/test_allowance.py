"""The usable part of a window's amount is found from refusals."""

from __future__ import annotations

from agentos.pool.core.limits.allowance import Allowance


def test_one_refusal_at_the_edge_is_jitter_and_a_second_in_the_same_window_is_not() -> None:
    allowance = Allowance(100.0, 60.0)

    assert not allowance.lower(98.0, 0.0)
    assert allowance.value == 100.0
    assert allowance.lower(98.0, 1.0)
    assert allowance.value == 98.0


def test_each_refusal_of_a_burst_tells_more_of_what_was_admitted() -> None:
    allowance = Allowance(100.0, 60.0)

    allowance.lower(90.0, 0.0)
    for used in (89.0, 88.0, 87.0):
        allowance.lower(used, 0.1, burst_known=True)

    assert allowance.value == 87.0


def test_a_later_refusal_lowers_it_only_by_a_part_since_others_do_not_always_use_the_same() -> None:
    allowance = Allowance(100.0, 60.0)
    allowance.lower(60.0, 0.0)

    allowance.lower(40.0, 90.0)

    assert 40.0 < allowance.value < 60.0


def test_a_refusal_soon_after_one_that_lowered_it_tells_nothing_since_that_may_count() -> None:
    allowance = Allowance(100.0, 60.0)
    allowance.lower(60.0, 0.0)

    allowance.lower(40.0, 10.0)
    allowance.lower(40.0, 20.0)
    assert allowance.value == 60.0

    allowance.lower(40.0, 70.0)
    assert allowance.value < 60.0


def test_one_refusal_of_what_was_admitted_before_is_jitter_and_the_next_one_is_not() -> None:
    allowance = Allowance(3.0, 1.0)
    allowance.lower(2.0, 0.0)

    assert not allowance.lower(1.0, 10.0)
    assert allowance.value == 2.0
    assert allowance.lower(1.0, 10.5)
    assert allowance.value < 2.0


def test_more_than_was_found_is_tried_after_three_hundred_calls_once_the_same_was_found_twice() -> None:
    allowance = Allowance(3.0, 1.0)
    allowance.lower(2.0, 0.0)
    allowance.on_take(1.0)
    assert allowance.value == 3.0

    allowance.lower(2.0, 1.1)
    assert allowance.value < 3.0

    allowance.on_take(110.0)
    assert allowance.value < 3.0
    allowance.on_take(160.0)
    assert allowance.value == 3.0


def test_what_two_bursts_of_refusals_agree_on_is_believed_at_once() -> None:
    allowance = Allowance(18.0, 60.0)
    allowance.lower(17.0, 0.0)  # before others had taken their part
    allowance.lower(12.0, 100.0)
    assert allowance.value == 14.5

    allowance.lower(12.0, 200.0)

    assert allowance.value == 12.0
    assert allowance.is_confirmed


def test_twice_as_much_more_is_tried_each_time_that_it_is_admitted() -> None:
    allowance = Allowance(100.0, 60.0)
    allowance.lower(50.0, 0.0)

    values = []
    for window in range(1, 30):
        allowance.on_take(60.0 * window)
        values.append(allowance.value)

    assert list(dict.fromkeys(values)) == [52.0, 56.0, 64.0, 80.0, 100.0]
    assert values.index(100.0) == 8  # two windows for each


def test_the_same_found_again_is_tried_again_later() -> None:
    allowance = Allowance(100.0, 60.0)
    now, tried = 0.0, []
    allowance.lower(60.0, now)
    for _ in range(3):
        began = now
        while allowance.value <= 60.0:
            now += 60.0
            allowance.on_take(now)
        tried.append((now - began) / 60.0)
        allowance.lower(60.0, now)
        allowance.value = 60.0

    assert tried == sorted(tried)
    assert tried[-1] > tried[0]


def test_bursts_that_find_the_same_in_the_end_are_alike() -> None:
    """The first refusal of a burst finds more in use than its last: others of the burst are still in flight."""
    allowance = Allowance(10.0, 1.0)
    for now in (0.0, 10.0, 20.0):
        allowance.lower(6.0, now)
        allowance.lower(5.0, now, burst_known=True)
        allowance.value = 8.0

    allowance.on_take(25.0)

    assert allowance.value == 8.0  # it is not tried every window
