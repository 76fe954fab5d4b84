"""The pause of an item before its next attempt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.runs.core.backoff import MAX_BACKOFF, limit_backoff, retry_backoff


def test_the_first_limit_is_no_pause_and_those_after_it_double_from_one_second_to_sixty() -> None:
    assert [limit_backoff(n) for n in range(1, 10)] == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_a_very_long_row_is_still_a_minute() -> None:
    assert limit_backoff(10**9) == MAX_BACKOFF == 60.0
    assert retry_backoff(10**9, 0.5) == 30.0


@pytest.mark.parametrize(("tries", "window"), [(1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, 60.0), (50, 60.0)])
def test_a_failed_try_rests_anywhere_in_a_window_that_doubles(tries: int, window: float) -> None:
    assert retry_backoff(tries, 0.0) == 0.0
    assert retry_backoff(tries, 0.5) == window / 2
    assert retry_backoff(tries, 0.999) == pytest.approx(window * 0.999)


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True))
def test_no_pause_is_negative_or_longer_than_a_minute(number: int, luck: float) -> None:
    assert 0.0 <= limit_backoff(number) <= MAX_BACKOFF
    assert limit_backoff(number + 1) >= 1.0
    assert 0.0 <= retry_backoff(number, luck) < MAX_BACKOFF
