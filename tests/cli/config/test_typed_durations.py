"""Parsing of typed durations and deadlines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.cli.config.typed_durations import parse_deadline, parse_duration
from agentos.cli.exit_codes import ExitCode
from agentos.cli.usage_error import UsageError


@pytest.fixture(autouse=True)
def _in_central_europe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30", 30),
        ("1.5", 1.5),
        (".5", 0.5),
        ("0", 0),
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("1h30m", 5400),
        ("1d2h3m4.5s", 93784.5),
        ("1h 30m", 5400),
        (" 2H ", 7200),
        ("90m", 5400),
    ],
)
def test_a_length_of_time_is_a_number_of_seconds_or_has_units(text: str, expected: float) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", " ", "-1", "-5m", "+5", "nan", "inf", "infinity", "1e3", "5x", "m", "1h30", "30m1h", "1h1h", "1,5", "٣",
     "1_000", "5 m", "07:00", "0x10", "1h\n30m", "5m\0"],
)  # fmt: skip
def test_anything_else_is_refused_by_the_name_of_the_option_with_examples(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text, "--timeout")

    assert caught.value.message == f"--timeout is not a duration: {text!r}"
    assert "1h30m" in str(caught.value.hint)
    assert caught.value.code is ExitCode.USAGE


@pytest.mark.parametrize("text", ["36501d", "9" * 30, "9" * 400])
def test_more_than_a_hundred_years_is_refused(text: str) -> None:
    for read in (parse_duration, parse_deadline):
        with pytest.raises(UsageError, match="hundred years"):
            read(text)


def test_a_refusal_does_not_show_what_may_be_a_secret_in_the_wrong_place() -> None:
    for read in (parse_duration, parse_deadline):
        with pytest.raises(UsageError) as caught:
            read("sk-" + "x" * 48)
        assert "xxxx" not in caught.value.message


@given(st.text(max_size=12))
def test_any_text_is_a_length_of_time_or_refused(text: str) -> None:
    try:
        found = parse_duration(text)
    except UsageError:
        return
    assert 0 <= found <= 100 * 365 * 86400


# -- deadlines ----------------------------------------------------------------------------------------------------


def test_a_deadline_may_be_a_length_of_time_from_now() -> None:
    now = at("2026-11-15T23:30:00")

    assert parse_deadline("1h30m", now) == now + timedelta(minutes=90)
    assert parse_deadline("0", now) == now


@pytest.mark.parametrize(
    ("text", "now", "end"),
    [
        ("07:00", "2026-11-15T23:30:00", "2026-11-16T07:00:00+01:00"),
        ("7:00", "2026-11-15T06:59:59", "2026-11-15T07:00:00+01:00"),
        ("07:00", "2026-11-15T07:00:00", "2026-11-16T07:00:00+01:00"),
        ("07:00:30", "2026-11-15T07:00:00", "2026-11-15T07:00:30+01:00"),
        ("00:00", "2026-12-31T12:00:00", "2027-01-01T00:00:00+01:00"),
        ("07:00", "2026-10-24T22:00:00", "2026-10-25T07:00:00+01:00"),  # clocks are put back that night
        ("07:00", "2026-03-28T22:00:00", "2026-03-29T07:00:00+02:00"),
        ("02:30", "2026-10-25T02:15:00+02:00", "2026-10-25T02:30:00+02:00"),
        ("02:30", "2026-10-25T02:45:00+02:00", "2026-10-25T02:30:00+01:00"),  # it is half past two once more
        ("02:30", "2026-03-29T01:00:00", "2026-03-29T03:30:00+02:00"),  # there is no half past two that night
        ("07:00", "2026-11-15T05:30:00+00:00", "2026-11-15T07:00:00+01:00"),  # half past six here
    ],
)
def test_an_hour_is_the_next_time_that_clocks_here_show_it(text: str, now: str, end: str) -> None:
    assert parse_deadline(text, at(now)) == datetime.fromisoformat(end)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("2026-11-16T07:00", "2026-11-16T07:00:00+01:00"),
        ("2026-11-16 07:00", "2026-11-16T07:00:00+01:00"),
        ("2026-11-16T07:00Z", "2026-11-16T07:00:00+00:00"),
        ("2026-11-16T07:00:00-05:00", "2026-11-16T07:00:00-05:00"),
        ("2026-07-16T07:00", "2026-07-16T07:00:00+02:00"),
    ],
)
def test_a_date_and_time_is_local_unless_it_has_a_zone(text: str, end: str) -> None:
    found = parse_deadline(text, at("2026-03-01T12:00:00"))

    assert found == datetime.fromisoformat(end)
    assert found.tzinfo is not None


@pytest.mark.parametrize(
    "text", ["", "24:00", "07:60", "-2h", "tomorrow", "nan", "2026-11-16", "2026-13-01T07:00", "07:00 pm"]
)
def test_what_is_no_time_to_end_at_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_deadline(text, at("2026-11-15T12:00:00"))

    assert caught.value.message == f"--deadline is not a deadline: {text!r}"
    assert "07:00" in str(caught.value.hint)


def test_a_deadline_that_has_passed_is_refused() -> None:
    with pytest.raises(UsageError, match="has already passed"):
        parse_deadline("2026-11-15T11:59", at("2026-11-15T12:00:00"))


def test_the_default_for_now_is_the_current_time() -> None:
    before = datetime.now(UTC)

    assert before + timedelta(hours=1) <= parse_deadline("1h") <= datetime.now(UTC) + timedelta(hours=1)
