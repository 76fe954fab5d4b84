"""What a caller or a Retry-After header may say, and what becomes of it (R6)."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.credentials._core.invariants import r6_a_delay_is_sane
from agentos.credentials.delays import delay_from

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (20, 20.0),
        ("20", 20.0),
        (" 20 ", 20.0),
        ("0.5", 0.5),
        (b"30", 30.0),
        (0, 0.0),
        ("0", 0.0),
        (formatdate(NOW + 30, usegmt=True), 30.0),
        (formatdate(NOW - 30, usegmt=True), 0.0),
        ("Friday, 15-Jan-27 08:00:30 GMT", 30.0),
        ("Fri Jan 15 08:00:30 2027", 30.0),
        (277_403, 277_403.0),
        (-5, None),
        ("-5", None),
        (float("nan"), None),
        ("nan", None),
        (float("inf"), None),
        ("inf", None),
        ("", None),
        ("soon", None),
        ("5x", None),
        ("1e3", None),
        ("٣", None),
        (10**12, None),
        ("1" * 5000, None),
        (10**400, None),
        (None, None),
        (True, None),
        (object(), None),
    ],
)
def test_a_delay_is_read_or_ignored(said: object, seconds: float | None) -> None:
    assert delay_from(said, wall=NOW) == (None if seconds is None else pytest.approx(seconds, abs=1.0))


@given(st.one_of(st.text(), st.floats(), st.integers(), st.binary(), st.none(), st.booleans(), st.dates().map(str)))
def test_junk_never_raises_and_never_means_for_ever(said: object) -> None:
    assert r6_a_delay_is_sane(delay_from(said, wall=NOW)) is None


@pytest.mark.parametrize("delay", [-1.0, float("inf"), float("nan"), 36 * 86_400.0])
def test_the_predicate_notices_a_delay_that_is_not_sane(delay: float) -> None:
    assert r6_a_delay_is_sane(delay) is not None
