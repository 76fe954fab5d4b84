"""The lease of an item adds up the usage of its worker's calls and keeps what they reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentos import CredentialCoordinator, Event, NoCredentialAvailable
from agentos.pool.credential import Credential
from agentos.pool.lease import ItemLease
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
        yield ItemLease(pool._runtime, of_the_run._grant)


def left(pool: CredentialCoordinator) -> dict[str, float]:
    """How much is left of the limits, by dimension."""
    return {limit.dimension: round(limit.left, 6) for limit in pool.snapshot()[0].limits}


def used(given: float, made: float) -> dict[str, float]:
    return {"input_tokens": given, "output_tokens": made}


def test_what_the_calls_of_an_item_use_adds_up(pool: CredentialCoordinator, lease: ItemLease) -> None:
    for _ in range(3):
        lease.record_answer(Signal(Event.OK, usage=used(10.0, 5.0)), None)

    assert left(pool) == {"requests": 97, "tokens": 955}


def test_what_the_ends_of_streams_tell_adds_up_and_is_no_further_call(
    pool: CredentialCoordinator, lease: ItemLease
) -> None:
    for _ in range(3):
        lease.record_answer(OK, None)
        lease.add_usage(used(10.0, 5.0))

    assert left(pool) == {"requests": 97, "tokens": 955}


def test_what_was_told_at_once_and_at_the_end_of_a_stream_adds_up(
    pool: CredentialCoordinator, lease: ItemLease
) -> None:
    lease.record_answer(Signal(Event.OK, usage=used(10.0, 5.0)), None)
    lease.record_answer(OK, None)

    lease.add_usage(used(100.0, 50.0))

    assert left(pool) == {"requests": 98, "tokens": 835}


def test_a_call_that_was_answered_with_an_error_is_counted_too(pool: CredentialCoordinator, lease: ItemLease) -> None:
    lease.record_answer(WRONG, None)
    lease.record_answer(OK, None)

    assert left(pool)["requests"] == 98


def test_a_limit_that_the_pool_acts_on_is_the_trouble_of_the_item(lease: ItemLease) -> None:
    answer = object()

    assert lease.record_answer(LIMITED, answer)

    assert (lease.trouble, lease.signal) == ("limited", LIMITED)
    assert lease.last_report is answer


def test_a_good_answer_after_a_limit_leaves_no_trouble_behind(lease: ItemLease) -> None:
    lease.record_answer(LIMITED, None)

    assert not lease.record_answer(OK, None)

    assert (lease.trouble, lease.signal) == (None, OK)


def test_an_error_that_is_the_callers_own_is_no_trouble_of_the_lease(lease: ItemLease) -> None:
    assert not lease.record_answer(WRONG, None)

    assert (lease.trouble, lease.signal) == (None, WRONG)


ABSURD = [-1, -0.5, 1e9 + 1, 1e15, 1e308, float("inf"), float("-inf"), float("nan"), 10**400, -(10**400)]


@pytest.mark.parametrize("figure", ABSURD, ids=lambda figure: str(figure)[:8])
def test_usage_that_no_call_can_have_is_ignored_with_one_warning(
    pool: CredentialCoordinator, caplog: pytest.LogCaptureFixture, figure: float
) -> None:
    with pool.lease(cost={"tokens": 300}) as lease:
        assert lease.settle(tokens=figure)
        assert lease.settle(input_tokens=figure, output_tokens=1)
        assert lease.settle(requests=figure)
        lease.report(Signal(Event.OK, usage={"input_tokens": figure, "output_tokens": 1.0}))

        assert left(pool) == {"requests": 99, "tokens": 700}
        assert lease.settle(tokens=100)

    assert left(pool) == {"requests": 99, "tokens": 900}
    (said,) = [record.getMessage() for record in caplog.records if "usage" in record.getMessage()]
    assert "one" in said
    assert "above 1e+09" in said
    assert not lease.settle(tokens=figure)  # the lease has ended


def test_a_call_of_an_item_with_absurd_usage_does_not_spoil_that_of_the_others(
    pool: CredentialCoordinator, lease: ItemLease
) -> None:
    lease.record_answer(Signal(Event.OK, usage=used(10.0, 5.0)), None)
    lease.record_answer(Signal(Event.OK, usage=used(1e15, 5.0)), None)
    lease.add_usage(used(-1.0, 5.0))
    lease.add_usage(used(10.0, 5.0))

    assert left(pool) == {"requests": 98, "tokens": 970}


@pytest.mark.parametrize("told", [{"tokens": "9"}, {"tokens": None}, {"words": 1}, {"words": -1}, ["tokens"]])
def test_what_is_no_usage_at_all_is_refused(pool: CredentialCoordinator, told: Any) -> None:
    with pool.lease() as lease, pytest.raises((ValueError, TypeError)):
        lease.settle(told)


def test_usage_that_a_limit_cannot_bear_puts_it_out_of_use_for_a_day_and_not_for_years(
    pool: CredentialCoordinator,
) -> None:
    with pool.lease(cost={"tokens": 500}) as lease:
        lease.settle(tokens=1e9)
        lease.settle(tokens=1e9)

        assert left(pool)["tokens"] == -1000 * 1440

        lease.settle(tokens=400)  # the last word counts

    assert left(pool)["tokens"] == 600


@pytest.mark.parametrize("verb", ["settle", "report", "calls", "stream"])
def test_input_tokens_alone_count_against_a_limit_of_tokens(verb: str) -> None:
    """As an embedding tells them."""
    clock = FakeClock()
    pool = CredentialCoordinator([Credential("planted0123456789", name="one", slots=20, tpm=1000)], clock=clock)
    begun = 0
    for _ in range(20):
        try:
            lease = pool.acquire_nowait()
        except NoCredentialAvailable:
            break
        begun += 1
        assert lease._grant is not None
        if verb == "settle":
            lease.settle(input_tokens=900)
        elif verb == "report":
            lease.report({"status": 200, "headers": {}, "body": {"usage": {"prompt_tokens": 900, "total_tokens": 900}}})
        elif verb == "calls":
            ItemLease(pool._runtime, lease._grant).record_answer(Signal(Event.OK, usage={"input_tokens": 900.0}), None)
        else:
            ItemLease(pool._runtime, lease._grant).add_usage({"input_tokens": 900.0})
        lease.release()

    assert begun == 1
    assert left(pool) == {"tokens": 100}


@pytest.mark.parametrize("verb", ["report", "add_usage"])
def test_what_calls_cost_is_remembered_before_any_limit_is_known(verb: str) -> None:
    pool = CredentialCoordinator(["sk-a"])

    with pool.lease() as lease:
        assert lease._grant is not None
        if verb == "report":
            lease.report({"status": 200, "headers": {}, "body": {"usage": {"prompt_tokens": 900, "total_tokens": 900}}})
        else:
            ItemLease(pool._runtime, lease._grant).add_usage({"input_tokens": 900.0})
        costs = lease._grant.key.quota.costs

    assert costs is not None
    assert costs.mean == 900.0


def test_input_tokens_of_a_call_that_broke_off_leave_what_was_reserved(pool: CredentialCoordinator) -> None:
    with pool.lease(cost={"tokens": 300}) as lease:
        assert lease._grant is not None
        pool._runtime.settle_usage(lease._grant, {"input_tokens": 10.0}, whole=False)
        assert left(pool)["tokens"] == 700
        pool._runtime.settle_usage(lease._grant, {"input_tokens": 10.0})

    assert left(pool)["tokens"] == 990


# -- reasons for people --------------------------------------------------------------------------------------------

OPENAI_429 = {
    "status": 429,
    "headers": {"retry-after": "20", "openai-version": "2020-10-01"},
    "body": {"error": {"code": "rate_limit_exceeded", "type": "requests", "message": "Rate limit reached"}},
}


def reason_of(report: Callable[[ItemLease], object], requester: str | None = "ISSUE-07") -> str:
    pool = CredentialCoordinator([Credential("planted0123456789", name="one")], clock=FakeClock())
    with pool.lease(requester) as of_the_run:
        assert of_the_run._grant is not None
        report(ItemLease(pool._runtime, of_the_run._grant, reporter="fix.sh"))
    return pool.snapshot()[0].why


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (lambda lease: lease.rate_limited(20), "fix.sh reported a rate limit (ISSUE-07)"),
        (lambda lease: lease.rate_limited(), "fix.sh reported a rate limit without a delay (ISSUE-07)"),
        (lambda lease: lease.rejected("401 invalid key"), "fix.sh reported 401 invalid key (ISSUE-07)"),
        (lambda lease: lease.spent("no money"), "fix.sh reported no money (ISSUE-07)"),
        (
            lambda lease: lease.report(OPENAI_429),
            "openai answered 429: rate_limit_exceeded; retry-after: 20 (ISSUE-07)",
        ),
        (
            lambda lease: lease.report(
                Signal(Event.LIMITED, 20.0, evidence=("status 429", "exception urllib.HTTPError"), status=429)
            ),
            "the provider answered 429 (ISSUE-07)",
        ),
        (
            lambda lease: lease.report(Signal(Event.LIMITED, 20.0, evidence=("the gateway said so",))),
            "the gateway said so (ISSUE-07)",
        ),
        (lambda lease: lease.rejected("planted0123456789 is wrong"), "fix.sh reported <secret> is wrong (ISSUE-07)"),
    ],
)
def test_the_reason_of_a_key_names_the_worker_and_the_item(report: Callable[[ItemLease], object], reason: str) -> None:
    assert reason_of(report) == reason


def test_a_lease_of_no_item_is_reported_by_its_holder() -> None:
    pool = CredentialCoordinator(["planted0123456789", "planted9876543210"], clock=FakeClock())
    with pool.lease("night") as named, pool.lease() as unnamed:
        named.rate_limited(20)
        unnamed.rate_limited(20)

    assert [row.why for row in pool.snapshot()] == ["night reported a rate limit", "the caller reported a rate limit"]


def test_the_repr_of_a_pool_names_its_credentials_and_no_secret() -> None:
    few = CredentialCoordinator([Credential("sk-proj-0123456789abcdef", name="alice")])
    many = CredentialCoordinator([f"secret-number-{number}" for number in range(7)])

    assert repr(few) == "<CredentialCoordinator of 1 credential: alice>"
    assert repr(many) == "<CredentialCoordinator of 7 credentials: key-1, key-2, key-3, key-4, key-5 and 2 more>"
    assert repr(CredentialCoordinator([])) == "<CredentialCoordinator of 0 credentials>"
