"""A remote lease sends each of its calls as a message."""

from __future__ import annotations

import threading
import time
from email.utils import formatdate
from enum import StrEnum
from typing import Any

import pytest

from agentos import Event, Lease, LeaseLost, Signal
from agentos.pool.core.cost import AbsurdUsage, parse_used
from agentos.runs.remote.worker_lease import LeaseLoss, LeaseMessage, RemoteLease

from .sample_assignments import SECRET

REFUSED: dict[str, Any] = {"status": 429, "headers": {"retry-after": "30"}}


@pytest.fixture
def heard() -> list[LeaseMessage]:
    return []


@pytest.fixture
def lease(heard: list[LeaseMessage]) -> RemoteLease:
    return RemoteLease("key-1", 42, SECRET, heard.append, model="a-model")


def test_it_has_whatever_a_lease_has_for_its_holder(lease: RemoteLease) -> None:
    at_home = {name for name in dir(Lease) if not name.startswith("_")}

    assert at_home <= {name for name in dir(lease) if not name.startswith("_")}


def test_it_is_named_and_numbered_and_reveals_its_secret_when_asked(lease: RemoteLease) -> None:
    assert (lease.name, lease.token, lease.held) == ("key-1", 42, True)
    assert lease.reveal() == lease.secret.reveal() == SECRET
    assert SECRET not in f"{lease!r} {lease.secret}"


def test_the_lease_is_lost_at_its_instant_without_a_message(heard: list[LeaseMessage]) -> None:
    loss = LeaseLoss(until=time.monotonic() + 3_600)
    lease = RemoteLease("key-1", 42, SECRET, heard.append, lost=loss)
    before = lease.held, lease.reveal()

    loss.until = time.monotonic()

    assert before == (True, SECRET)
    assert not lease.held
    with pytest.raises(LeaseLost, match="the run's driver was lost, or has lost the lease"):
        lease.reveal()


def test_each_verb_is_noted_in_order(lease: RemoteLease, heard: list[LeaseMessage]) -> None:
    assert lease.settle({"input_tokens": 3}, output_tokens=4)
    assert lease.rate_limited("30", model="a-model")
    assert lease.rejected("no longer valid")
    assert lease.spent("paid up")

    settled, limited, rejected, spent = heard
    assert (settled.verb, settled.used) == ("settle", {"input_tokens": 3.0, "output_tokens": 4.0})
    assert (limited.verb, limited.delay, limited.model) == ("rate_limited", 30.0, "a-model")
    assert (rejected.verb, rejected.reason) == ("rejected", "no longer valid")
    assert (spent.verb, spent.reason) == ("spent", "paid up")
    assert 0 <= settled.at <= spent.at


class Name(StrEnum):
    """What the user calls things by, in a module that home may not have."""

    MODEL = "a-model"
    TOKENS = "tokens"


def test_lease_messages_contain_plain_values_only(lease: RemoteLease, heard: list[LeaseMessage]) -> None:
    lease.rate_limited(1, model=Name.MODEL)
    lease.settle({Name.TOKENS: 3})
    lease.spent(Name.MODEL)
    lease.report(Signal(Event.LIMITED, delay=1.0, model=Name.MODEL))

    limited, settled, spent, reported = heard
    assert reported.signal is not None
    assert (limited.model, settled.used, reported.signal.model) == ("a-model", {"tokens": 3.0}, "a-model")
    assert {type(text) for text in (limited.model, *(settled.used or ()), spent.reason, reported.signal.model)} == {str}


def test_a_date_to_wait_for_is_made_seconds_where_it_was_told(lease: RemoteLease, heard: list[LeaseMessage]) -> None:
    lease.rate_limited(formatdate(time.time() + 100, usegmt=True))

    assert heard[0].delay == pytest.approx(100, abs=5)


def test_an_answer_is_read_where_it_was_given(lease: RemoteLease, heard: list[LeaseMessage]) -> None:
    signal = lease.report(REFUSED)

    assert signal is not None
    assert (signal.event, signal.delay) == (Event.LIMITED, 30.0)
    assert (heard[0].verb, heard[0].signal) == ("report", signal)


@pytest.mark.parametrize("thing", ["nothing of the kind", None, Signal("no event")])  # type: ignore[arg-type]
def test_what_is_no_answer_is_not_noted(lease: RemoteLease, heard: list[LeaseMessage], thing: object) -> None:
    assert lease.report(thing) is None
    assert heard == []


def test_it_knows_whether_an_error_was_reported(lease: RemoteLease) -> None:
    error, other = OSError("gone"), OSError("gone")

    lease.report(error)

    assert lease.has_reported(error)
    assert not lease.has_reported(other)


def test_it_knows_an_error_by_the_response_that_was_reported(lease: RemoteLease) -> None:
    error = OSError("gone")
    error.response = REFUSED  # type: ignore[attr-defined]

    lease.report(REFUSED)

    assert lease.has_reported(error)


def test_before_any_report_no_error_was_reported(lease: RemoteLease) -> None:
    assert not lease.has_reported(OSError("gone"))  # it has no response, and nothing was reported


@pytest.mark.parametrize("figure", [-1, 1e15, float("nan"), float("inf"), 10**400], ids=lambda figure: str(figure)[:8])
def test_absurd_usage_is_told_for_the_pool_to_ignore(
    lease: RemoteLease, heard: list[LeaseMessage], figure: float
) -> None:
    assert lease.settle(input_tokens=figure, output_tokens=3)

    (told,) = heard
    assert told.used is not None
    with pytest.raises(AbsurdUsage):
        parse_used("settle", told.used)


@pytest.mark.parametrize("wrong", [{"tokens": "9"}, {"words": 3}, {"words": -1}])
def test_a_wrong_figure_is_refused_there(
    lease: RemoteLease, heard: list[LeaseMessage], wrong: dict[str, float]
) -> None:
    with pytest.raises(ValueError, match=r"^settle"):
        lease.settle(wrong)
    assert heard == []


def test_a_wrong_model_is_refused_there(lease: RemoteLease) -> None:
    with pytest.raises(ValueError, match=r"^model must"):
        lease.rate_limited(3, model="")


def test_a_block_only_borrows_it(lease: RemoteLease) -> None:
    with lease as again:
        assert again is lease

    assert lease.held


async def _borrow(lease: RemoteLease) -> bool:
    async with lease as again:
        return again is lease


def test_an_async_block_does_too(lease: RemoteLease) -> None:
    import asyncio

    assert asyncio.run(_borrow(lease))
    assert lease.held


def test_once_released_it_is_not_held(lease: RemoteLease) -> None:
    assert lease.release()
    assert not lease.held
    assert not lease.release()


def test_once_the_driver_is_lost_the_secret_is_not_given_out(heard: list[LeaseMessage]) -> None:
    lost = threading.Event()
    lease = RemoteLease("key-1", 42, SECRET, heard.append, lost=lost)

    lost.set()

    assert not lease.held
    with pytest.raises(LeaseLost, match="lease 42 on credential key-1"):
        lease.reveal()
    assert not lease.settle(tokens=3)
    assert len(heard) == 1  # evidence, should it ever arrive
