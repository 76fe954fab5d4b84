"""The usage of an attempt, collected from all that report it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agentos import Credential, CredentialCoordinator, Signal, Usage
from agentos.costs.usage_log import UsageLog
from agentos.pool.lease import CURRENT_ATTEMPT, ItemLease
from agentos.providers import Event

ANSWER = {"status": 200, "headers": {}, "body": {"usage": {"prompt_tokens": 30, "completion_tokens": 5}}}
ONE_CALL = Usage(input=30, output=5)


@pytest.fixture
def log() -> UsageLog:
    return UsageLog()


@pytest.fixture
def lease(log: UsageLog) -> Iterator[ItemLease]:
    pool = CredentialCoordinator([Credential("sk-none", name="alice")])
    held = pool.acquire("item-1")
    assert held._grant is not None
    yield ItemLease(pool._runtime, held._grant, log)
    held.release()


def test_calls_add_up_by_credential(log: UsageLog) -> None:
    log.add_call(1, "alice", ONE_CALL)
    log.add_call(2, "bob", ONE_CALL)
    log.add_call(1, "alice", ONE_CALL)

    assert log.take() == {"alice": ONE_CALL + ONE_CALL, "bob": ONE_CALL}


def test_a_total_replaces_what_was_reported_about_the_same_lease_before_it(log: UsageLog) -> None:
    log.add_call(1, "alice", ONE_CALL)
    log.add_call(2, "alice", ONE_CALL)
    log.set_total(1, "alice", Usage(input=100))

    assert log.take() == {"alice": ONE_CALL + Usage(input=100)}


def test_what_was_taken_is_not_taken_again(log: UsageLog) -> None:
    log.add_call(1, "alice", ONE_CALL)
    log.take()
    log.add_call(1, "alice", Usage(output=1))

    assert log.take() == {"alice": Usage(output=1)}


def test_usage_that_no_call_can_have_is_not_collected(log: UsageLog) -> None:
    log.add_call(1, "alice", Usage(input=2_000_000_000))

    assert not log


def test_each_answer_that_an_item_reports_adds_its_usage(lease: ItemLease, log: UsageLog) -> None:
    lease.report(dict(ANSWER))
    lease.report(dict(ANSWER))

    assert log.take() == {"alice": ONE_CALL + ONE_CALL}


def test_an_answer_that_is_reported_twice_counts_once(lease: ItemLease, log: UsageLog) -> None:
    answer = dict(ANSWER)
    lease.report(answer)
    lease.report(answer)

    assert log.take() == {"alice": ONE_CALL}


def test_a_signal_of_the_workers_own_states_usage_as_limits_name_it(lease: ItemLease, log: UsageLog) -> None:
    lease.report(Signal(Event.OK, usage={"input_tokens": 30.0, "output_tokens": 5.0}))

    assert log.take() == {"alice": ONE_CALL}


@pytest.mark.parametrize(
    ("reported", "billed"),
    [
        ({"input_tokens": 30, "output_tokens": 5}, ONE_CALL),
        ({"tokens": 35, "output_tokens": 5}, ONE_CALL),
        ({"tokens": 35}, Usage(input=35)),
        (
            {"prompt_tokens": 30, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 10}},
            Usage(input=20, output=5, cache_read=10),
        ),
        (
            {"input_tokens": 20, "cache_read_input_tokens": 10, "output_tokens": 5, "service_tier": "batch"},
            Usage(20, 5, 10),
        ),
        ({"promptTokenCount": 30, "cachedContentTokenCount": 10, "candidatesTokenCount": 5}, Usage(20, 5, 10)),
    ],
)
def test_settle_takes_amounts_or_the_usage_object_of_an_answer(
    lease: ItemLease, log: UsageLog, reported: dict[str, Any], billed: Usage
) -> None:
    assert lease.settle(reported)

    assert log.take() == {"alice": billed}


def test_settle_refuses_a_name_that_neither_limits_nor_providers_use(lease: ItemLease, log: UsageLog) -> None:
    with pytest.raises(ValueError, match="unknown dimension 'tokenz'"):
        lease.settle(input_tokens=3, tokenz=5)

    assert not log


@contextmanager
def attempt_without_lease(log: UsageLog) -> Iterator[None]:
    class Attempt:
        pool = None
        ended = False
        usage_log = log

        def item_lease(self) -> None: ...

    token = CURRENT_ATTEMPT.set(Attempt())
    try:
        yield
    finally:
        CURRENT_ATTEMPT.reset(token)


def test_leases_that_an_attempt_takes_itself_count_for_it(log: UsageLog) -> None:
    pool = CredentialCoordinator([Credential("sk-none", name="alice")])

    with attempt_without_lease(log):
        with pool.lease() as lease:
            lease.settle(input_tokens=30, output_tokens=5)
        with pool.lease() as lease:
            lease.report(dict(ANSWER))

    assert log.take() == {"alice": ONE_CALL + ONE_CALL}
