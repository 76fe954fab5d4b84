"""The format of numbers in answers."""

from __future__ import annotations

import pytest

from agentos.simulator.number_text import go_duration, retry_after, rfc3339

NOON = 1_750_000_000.0  # 2025-06-15T15:06:40Z


def test_whole_seconds_are_rounded_up_and_exact_ones_are_not() -> None:
    assert [retry_after(each, exact=False) for each in (0.001, 0.97, 1.0, 1.001, 59.2)] == ["1", "1", "1", "2", "60"]
    assert [retry_after(each, exact=True) for each in (0.0004, 0.25, 2.0, 7.66)] == ["0.001", "0.25", "2", "7.66"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0001, "1ms"),
        (0.012, "12ms"),
        (0.1 + 0.2, "300ms"),
        (1, "1s"),
        (7.66, "7.66s"),
        (59.9999, "1m0s"),
        (360, "6m0s"),
        (179.56, "2m59.56s"),
        (3600, "1h0m0s"),
        (37_025.7235, "10h17m5.724s"),
    ],
)
def test_durations_are_written_as_go_does(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text


def test_an_instant_is_written_in_utc_and_never_too_early() -> None:
    assert rfc3339(NOON) == "2025-06-15T15:06:40Z"
    assert rfc3339(NOON + 0.1) == "2025-06-15T15:06:41Z"
