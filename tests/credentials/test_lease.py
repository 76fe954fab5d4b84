"""The lease of an item, as the calls of its worker use it: what they take adds up, and what they met with is kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentos import CredentialCoordinator, Event
from agentos.credentials.credential import Credential
from agentos.credentials.lease import ItemLease
from agentos.providers.signal import Signal
from agentos.testing import FakeClock

OK = Signal(Event.OK)
LIMITED = Signal(Event.LIMITED, delay=30.0, status=429)
WRONG = Signal(Event.CALLER, status=400)


@pytest.fixture
def pool() -> CredentialCoordinator:
    return CredentialCoordinator(
        [Credential("planted0123456789", name="one", rpm=100, tpm=1000)], clock=FakeClock(), debug=True
    )


@pytest.fixture
def lease(pool: CredentialCoordinator) -> Iterator[ItemLease]:
    with pool.lease() as of_the_run:
        assert of_the_run._grant is not None
        yield ItemLease(pool, of_the_run._grant)


def left(pool: CredentialCoordinator) -> dict[str, float]:
    """How much is left of the limits, by dimension."""
    return {limit.dimension: round(limit.left, 6) for limit in pool.snapshot()[0].limits}


def used(given: float, made: float) -> dict[str, float]:
    return {"input_tokens": given, "output_tokens": made}


def test_what_the_calls_of_an_item_use_adds_up(pool: CredentialCoordinator, lease: ItemLease) -> None:
    for _ in range(3):
        lease.answered(Signal(Event.OK, usage=used(10.0, 5.0)), None)

    assert left(pool) == {"requests": 97, "tokens": 955}


def test_what_the_ends_of_streams_tell_adds_up_and_is_no_further_call(
    pool: CredentialCoordinator, lease: ItemLease
) -> None:
    for _ in range(3):
        lease.answered(OK, None)
        lease.used_more(used(10.0, 5.0))

    assert left(pool) == {"requests": 97, "tokens": 955}


def test_what_was_told_at_once_and_at_the_end_of_a_stream_adds_up(
    pool: CredentialCoordinator, lease: ItemLease
) -> None:
    lease.answered(Signal(Event.OK, usage=used(10.0, 5.0)), None)
    lease.answered(OK, None)

    lease.used_more(used(100.0, 50.0))

    assert left(pool) == {"requests": 98, "tokens": 835}


def test_a_call_that_was_answered_with_an_error_is_counted_too(pool: CredentialCoordinator, lease: ItemLease) -> None:
    lease.answered(WRONG, None)
    lease.answered(OK, None)

    assert left(pool)["requests"] == 98


def test_a_limit_that_the_pool_acts_on_is_the_trouble_of_the_item(lease: ItemLease) -> None:
    answer = object()

    assert lease.answered(LIMITED, answer)

    assert (lease.trouble, lease.signal) == ("limited", LIMITED)
    assert lease.last_report is answer


def test_a_good_answer_after_a_limit_leaves_no_trouble_behind(lease: ItemLease) -> None:
    lease.answered(LIMITED, None)

    assert not lease.answered(OK, None)

    assert (lease.trouble, lease.signal) == (None, OK)


def test_an_error_that_is_the_callers_own_is_no_trouble_of_the_lease(lease: ItemLease) -> None:
    assert not lease.answered(WRONG, None)

    assert (lease.trouble, lease.signal) == (None, WRONG)
