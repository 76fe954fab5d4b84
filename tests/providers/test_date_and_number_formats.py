"""Delays, resets and counts as providers write them, and what becomes of each."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.providers.answers.date_and_number_formats import format_quoted, parse_delay, parse_instant, parse_number
from agentos.providers.signal import LONGEST_DELAY

NOW = 1_800_000_000.0  # Friday, 2027-01-15 08:00:00 UTC


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (20, 20.0),
        ("20", 20.0),
        (" 20 ", 20.0),
        (b"30", 30.0),
        (bytearray(b"30"), 30.0),
        ("0", 0.0),
        (0, 0.0),
        ("0.5", 0.5),
        (".5", 0.5),
        ("277403", 277_403.0),
        ("33011.38", 33_011.38),
        ("33011.382867097855", 33_011.382867097855),
    ],
)
def test_seconds_are_read_as_they_are(said: object, seconds: float) -> None:
    assert parse_delay(said, wall=NOW) == seconds


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("6m0s", 360.0),
        ("2m59.56s", 179.56),
        ("10h17m5.723541104s", 37_025.723541104),
        ("12ms", 0.012),
        ("88us", 0.000088),
        ("88µs", 0.000088),
        ("500ns", 5e-7),
        ("1s", 1.0),
        ("1d", 86_400.0),
        ("1d2h", 93_600.0),
        ("58.934310785s", 58.934310785),
    ],
)
def test_a_duration_is_the_sum_of_its_parts(said: str, seconds: float) -> None:
    assert parse_delay(said, wall=NOW) == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize(
    "said",
    [
        formatdate(NOW + 30, usegmt=True),
        "Fri, 15 Jan 2027 08:00:30 GMT",
        "Friday, 15-Jan-27 08:00:30 GMT",
        "Fri Jan 15 08:00:30 2027",
        "2027-01-15T08:00:30Z",
        "2027-01-15t08:00:30z",
        "2027-01-15T09:00:30+01:00",
        "2027-01-15T03:00:30-0500",
        "2027-01-15 08:00:30",
        "1800000030",
        "1800000030000",
        1_800_000_030,
        1_800_000_030_000,
    ],
)
def test_all_forms_of_an_instant_are_the_same_instant(said: object) -> None:
    assert parse_delay(said, wall=NOW) == 30.0


def test_the_fraction_and_the_offset_of_an_instant_count() -> None:
    assert parse_instant("2026-01-02T03:04:05.678+01:00") == pytest.approx(1_767_319_445.678)


def test_an_epoch_in_seconds_and_one_in_milliseconds_are_told_apart() -> None:
    assert parse_delay("1655120964", wall=1_655_120_900.0) == 64.0
    assert parse_delay("1791331200000", wall=1_791_331_140.0) == 60.0


@pytest.mark.parametrize(
    "said",
    [formatdate(NOW - 30, usegmt=True), "2025-08-21T12:40:59Z", "1799999000", "Sun, 06 Nov 1994 08:49:37 GMT"],
)
def test_an_instant_in_the_past_means_now(said: str) -> None:
    assert parse_delay(said, wall=NOW) == 0.0


@pytest.mark.parametrize(
    "said",
    [
        -5,
        "-5",
        "-5s",
        float("nan"),
        "nan",
        float("inf"),
        "inf",
        "",
        " ",
        "soon",
        "m",
        "s",
        "5x",
        "1m2h",
        "1s1s",
        "1e3",
        "٣",
        "1,5",
        "2027-13-45T08:00:00Z",
        "Fri, 99 Jan 2027 08:00:00 GMT",
        "Fri, 15 Xyz 2027 08:00:00 GMT",
        10**12,  # as an epoch it would be of 2001: junk, not "now"
        "1000000000",
        "1" * 5000,
        "1s" * 5000,
        10**400,
        None,
        True,
        object(),
        [20],
    ],
)
def test_junk_says_nothing(said: object) -> None:
    assert parse_delay(said, wall=NOW) is None


@pytest.mark.parametrize("said", [LONGEST_DELAY + 1, "36d", "2030-01-01T00:00:00Z", "1900000000", "999999999"])
def test_a_delay_beyond_35_days_is_unknown(said: object) -> None:
    assert parse_delay(said, wall=NOW) is None


def test_35_days_are_still_a_delay() -> None:
    assert parse_delay(LONGEST_DELAY, wall=NOW) == LONGEST_DELAY


def test_a_leap_second_is_read() -> None:
    assert parse_delay("2027-01-15T08:00:60Z", wall=NOW) == 60.0


@given(st.one_of(st.text(), st.floats(), st.integers(), st.binary(), st.none(), st.booleans(), st.datetimes().map(str)))
def test_nothing_raises_and_nothing_means_for_ever(said: object) -> None:
    delay = parse_delay(said, wall=NOW)

    assert delay is None or 0 <= delay <= LONGEST_DELAY


@given(st.text(alphabet="0123456789.dhmsunµ:-TZ+, GMTJanFri", max_size=40))
def test_what_looks_nearly_right_does_not_raise_either(said: str) -> None:
    delay = parse_delay(said, wall=NOW)

    assert delay is None or 0 <= delay <= LONGEST_DELAY


@pytest.mark.parametrize(
    ("said", "count"),
    [("0", 0.0), (" 5000 ", 5000.0), ("0.5", 0.5), ("-1", None), ("", None), ("many", None), ("9" * 40, None)],
)
def test_a_count_below_zero_is_not_told(said: str, count: float | None) -> None:
    assert parse_number(said) == count


@pytest.mark.parametrize(
    ("said", "quoted"),
    [("20", "20"), (" 6m0s ", "6m0s"), ("Fri, 15 Jan 2027 08:00:30 GMT", "30 s ahead")],
)
def test_a_date_is_quoted_anew(said: str, quoted: str) -> None:
    assert format_quoted(said, wall=NOW) == quoted
