"""The remote side calls the worker once, and reports every outcome."""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
from typing import Any

import pytest

from agentos import Interrupted, NotPicklable, NoUsableCredential, RateLimited
from agentos.runs.remote.attempt_report import AttemptReport, LogLine, Printed, build_error
from agentos.runs.remote.pickled import PickledObject, pack, unpack
from agentos.runs.remote.worker_call import run_assignment, run_assignment_async
from agentos.runs.remote.worker_lease import LeaseMessage

from .sample_assignments import SECRET, assignment, there


def value_of(report: AttemptReport) -> Any:
    assert (report.failure, report.unready) == (None, None)
    return None if report.value is None else unpack(report.value, "it")


def error_of(report: AttemptReport) -> BaseException:
    assert report.failure is not None
    return build_error(report.failure)


def give_all(item: Any, credential: str | None) -> Any:
    return item, credential


def give_context(item: Any, credential: str | None, context: Any) -> Any:
    lease = context.lease
    return [context.item_id, context.index, context.attempt, lease.name, lease.requester, lease.reveal() == credential]


def give_nothing(item: Any, credential: str | None) -> None: ...


def give_a_lock(item: Any, credential: str | None) -> Any:
    return threading.Lock()


def give_a_coroutine(item: Any, credential: str | None) -> Any:
    return give_later(item, credential)


async def forget_to_await(item: Any, credential: str | None) -> Any:
    return give_later(item, credential)


async def give_later(item: Any, credential: str | None) -> Any:
    await asyncio.sleep(0)
    return item, credential


def raise_it(item: Any, credential: str | None) -> None:
    raise item


async def raise_it_later(item: Any, credential: str | None) -> None:
    raise item


def say_much(item: Any, credential: str | None, context: Any) -> None:
    context.settle(tokens=12)
    context.log.warning("half-way")
    context.lease.rate_limited(30)
    raise RateLimited(30)


def report_and_raise(item: Any, credential: str | None, context: Any) -> None:
    error = ConnectionResetError("gone")
    context.lease.report(error)
    raise error


def settle_and_return(item: Any, credential: str | None, context: Any) -> str:
    context.settle(tokens=12)
    return "fine"


class Exits:
    """Ends the process of whoever pickles it."""

    def __reduce__(self) -> Any:
        raise SystemExit(1)


def give_an_exit(item: Any, credential: str | None) -> Any:
    return Exits()


async def give_an_exit_later(item: Any, credential: str | None) -> Any:
    return Exits()


class Unprovided(NoUsableCredential):
    """Made without the facts of its base."""

    def __init__(self) -> None:
        Exception.__init__(self, "ask the admin")


def raise_unprovided(item: Any, credential: str | None) -> None:
    raise Unprovided


def has_lease(item: Any, credential: str | None, context: Any) -> bool:
    return context.lease is not None


def is_to_stop(item: Any, credential: str | None, context: Any) -> bool:
    return bool(context.stopping.is_set())


async def wait_for_ever(item: Any, credential: str | None) -> None:
    await asyncio.Event().wait()


async def cancel_another(item: Any, credential: str | None) -> None:
    other = asyncio.ensure_future(asyncio.Event().wait())
    other.cancel()
    await other


def test_the_worker_gets_its_item_and_its_secret() -> None:
    assert value_of(there(give_all, {"n": 1})) == ({"n": 1}, SECRET)


def test_without_a_credential_it_gets_none() -> None:
    assert value_of(there(give_all, 1, credential=None, secret=None, lease=None)) == (1, None)


def test_a_worker_that_wants_it_gets_a_context() -> None:
    assert value_of(there(give_context)) == ["item-1", 0, 1, "key-1", "item-1", True]


def test_a_pool_that_is_not_ours_gives_no_lease() -> None:
    report = run_assignment(pack(has_lease, "it"), assignment(lease=None))

    assert value_of(report) is False


def test_nothing_is_a_value_too() -> None:
    assert value_of(there(give_nothing)) is None


def test_a_coroutine_function_runs_on_a_loop_of_its_own() -> None:
    assert value_of(there(give_later, 5, is_async=True)) == (5, SECRET)


def test_a_coroutine_that_nobody_awaits_is_an_error_that_says_so() -> None:
    assert "declared `async def`" in str(error_of(there(give_a_coroutine)))
    assert "not awaited: write `await`" in str(error_of(there(forget_to_await, is_async=True)))


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)], ids=lambda error: type(error).__name__
)
@pytest.mark.parametrize("is_async", [False, True], ids=["function", "coroutine"])
def test_whatever_a_worker_raises_is_in_the_report(error: BaseException, is_async: bool) -> None:
    report = there(raise_it_later if is_async else raise_it, error, is_async=is_async)

    assert type(error_of(report)) is type(error)


def test_a_value_that_cannot_travel_is_the_items_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cloudpickle", raising=False)

    error = error_of(there(give_a_lock))

    assert isinstance(error, NotPicklable)
    assert error.what == "what its worker returned"


def test_an_item_that_does_not_arrive_is_the_items_error() -> None:
    error = error_of(there(give_all, PickledObject(b"not a pickle")))

    assert isinstance(error, NotPicklable)
    assert error.what == "the item"


def test_a_worker_that_is_not_known_there_is_not_the_items_fault() -> None:
    report = run_assignment(PickledObject(b"cno_such_module\nworker\n."), assignment())

    assert report.failure is None
    assert report.unready is not None
    assert "the worker function" in report.unready
    assert "no_such_module" in report.unready


@pytest.mark.parametrize("is_async", [False, True], ids=["function", "coroutine"])
def test_a_key_that_is_missing_there_is_not_the_items_fault(is_async: bool) -> None:
    report = run_assignment(
        pack(give_later, "it"), assignment(secret=None, proof=b"x", nonce=b"y"), is_async=is_async, environ={}
    )

    assert report.unready is not None
    assert "the credential key-1 was not found" in report.unready


def test_what_the_worker_said_goes_with_the_report() -> None:
    report = there(say_much)

    assert [told.verb for told in report.lease_messages] == ["settle", "rate_limited"]
    assert [line.text for line in report.log_lines] == ["[item-1] half-way"]
    assert report.duration >= report.lease_messages[-1].at


def test_or_is_told_as_it_is_said() -> None:
    heard: list[LeaseMessage | LogLine | Printed] = []

    report = run_assignment(pack(say_much, "it"), assignment(), tell=heard.append)

    assert [type(each) for each in heard] == [LeaseMessage, LogLine, LeaseMessage]
    assert (report.lease_messages, report.log_lines) == ((), ())


def test_a_message_that_cannot_be_sent_is_logged_and_the_item_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(thing: LeaseMessage | LogLine | Printed) -> None:
        raise pickle.PicklingError("no")

    report = run_assignment(pack(settle_and_return, "it"), assignment(), tell=refuse)

    assert value_of(report) == "fine"
    assert "item-1: a message could not be sent (PicklingError)" in caplog.text


@pytest.mark.parametrize("is_async", [False, True], ids=["function", "coroutine"])
def test_a_value_that_ends_whoever_pickles_it_is_reported(is_async: bool) -> None:
    worker = give_an_exit_later if is_async else give_an_exit

    report = run_assignment(pack(worker, "it"), assignment(wants_context=False), is_async=is_async)

    assert isinstance(error_of(report), SystemExit)


def test_an_error_that_cannot_be_understood_is_reported() -> None:
    report = run_assignment(pack(raise_unprovided, "it"), assignment(wants_context=False))

    assert str(error_of(report)) == "ask the admin"


def test_an_error_that_was_reported_already_is_marked() -> None:
    marks = [report.failure and report.failure.reported for report in (there(report_and_raise), there(say_much))]

    assert marks == [True, False]


def test_the_worker_is_made_once_in_a_process() -> None:
    function = pack(Counting(), "it")

    values = [value_of(run_assignment(function, assignment(wants_context=False))) for _ in range(3)]

    assert values == [1, 2, 3]


class Counting:
    """A worker that is an object, with something that it keeps."""

    count = 0

    def __call__(self, item: Any, credential: str | None) -> int:
        self.count += 1
        return self.count


def test_it_sees_when_it_is_to_stop() -> None:
    stopping = threading.Event()
    stopping.set()

    assert value_of(run_assignment(pack(is_to_stop, "it"), assignment(), stopping=stopping)) is True
    assert value_of(run_assignment(pack(is_to_stop, "it"), assignment())) is False


def test_a_coroutine_that_is_cancelled_reports_that() -> None:
    async def main() -> AttemptReport:
        task = asyncio.ensure_future(run_assignment_async(pack(wait_for_ever, "it"), assignment(wants_context=False)))
        await asyncio.sleep(0)
        task.cancel()
        return await task

    report = asyncio.run(main())

    assert report.cancelled
    assert isinstance(error_of(report), Interrupted)


def test_a_coroutine_in_which_something_else_was_cancelled_is_not_cancelled_itself() -> None:
    report = run_assignment(pack(cancel_another, "it"), assignment(wants_context=False), is_async=True)

    assert not report.cancelled
    assert isinstance(error_of(report), asyncio.CancelledError)


def test_in_a_thread_with_a_loop_a_coroutine_cannot_be_run_and_that_is_reported() -> None:
    async def main() -> AttemptReport:
        return run_assignment(pack(give_later, "it"), assignment(wants_context=False), is_async=True)

    assert "running event loop" in str(error_of(asyncio.run(main())))


def test_a_report_shows_nothing_of_what_is_in_it() -> None:
    report = there(give_all, "private")

    assert repr(report) == "<report on attempt token 7>"
    assert pickle.loads(pickle.dumps(report)).token == 7
