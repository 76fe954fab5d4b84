"""An exception of a provider's client cools the right quota down, and the item is treated fairly."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from agentos import (
    Context,
    Credential,
    CredentialCoordinator,
    CredentialState,
    ParallelCoordinator,
    ProgressStats,
    RateLimited,
    WorkflowResult,
)
from agentos.errors import Interrupted, Transient
from agentos.pool.core.records import LeaseRequest
from agentos.pool.runtime.pool_runtime import PoolRuntime
from agentos.providers import Event, Signal
from agentos.runs.core.records import Attempt, Item
from agentos.runs.core.states import AttemptEnd
from agentos.runs.execution.error_policy import classify_error, find_requested_delay, is_transient, report_error
from agentos.testing import FakeClock

from ... import background_threads

SECRET = "sk-signals-of-errors-0123456789"


def client_error(status: int, body: object = None, client: str = "openai", **headers: str) -> Exception:
    """An exception as that client makes it, known by its shape."""
    base = type("APIError", (Exception,), {"__module__": client})
    error: Any = type("APIStatusError", (base,), {"__module__": client})(f"Error code: {status} for {SECRET}-a")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    error.response = SimpleNamespace(status_code=status, headers=named, url=f"https://api.{client}.com/v1")
    error.status_code, error.body = status, body
    return error  # type: ignore[no-any-return]


def website(status: int) -> Exception:
    """One that a client for any server makes: nobody knows whose answer that was."""
    base = type("HTTPError", (Exception,), {"__module__": "httpx"})
    error: Any = type("HTTPStatusError", (base,), {"__module__": "httpx"})(str(status))
    error.response = SimpleNamespace(status_code=status, headers={}, url="https://example.org/secret")
    return error  # type: ignore[no-any-return]


def no_answer() -> Exception:
    base = type("APIError", (Exception,), {"__module__": "openai"})
    return type("APIConnectionError", (base,), {"__module__": "openai"})("Connection error.")  # type: ignore[no-any-return]


def limit(seconds: float = 20.0) -> Exception:
    return client_error(429, retry_after=str(seconds))


def dead() -> Exception:
    return client_error(401, {"code": "invalid_api_key"})


def busy() -> Exception:
    return client_error(503)


class Background(background_threads.Background[tuple[ProgressStats, list[WorkflowResult]]]):
    """A run in a thread of its own."""

    def wait(self, seconds: float) -> None:
        """Until it is over, but no longer than that."""
        self._thread.join(seconds)


# -- judging ------------------------------------------------------------------------------------------------------


def attempt(trouble: str | None = None) -> Attempt:
    made = Attempt(Item(0, "item", 0), 1, 1, None, 0.0)
    made.lease = SimpleNamespace(trouble=trouble)
    return made


def never(_error: BaseException) -> bool:
    return False


@pytest.mark.parametrize("event", [Event.LIMITED, Event.PARKED, Event.RAMP])
def test_too_many_is_a_limit_whatever_the_rule_says(event: Event) -> None:
    assert classify_error(attempt(), ValueError(), never, Signal(event)) is AttemptEnd.LIMIT
    assert classify_error(attempt(), ValueError(), is_transient, Signal(event)) is AttemptEnd.LIMIT


@pytest.mark.parametrize("event", [Event.BUSY, Event.NETWORK, Event.KEY_DEAD, Event.MONEY_GONE, Event.NOT_ENTITLED])
def test_what_passes_is_worth_another_try_by_the_default_rule_and_by_no_other(event: Event) -> None:
    assert classify_error(attempt(), ValueError(), is_transient, Signal(event)) is AttemptEnd.TRANSIENT
    assert classify_error(attempt(), ValueError(), never, Signal(event)) is AttemptEnd.ERROR


@pytest.mark.parametrize("event", [Event.BUSY, Event.NETWORK, Event.KEY_DEAD, Event.MONEY_GONE, Event.NOT_ENTITLED])
def test_what_the_pool_acted_on_costs_the_item_no_try(event: Event) -> None:
    acted = attempt(event.name.lower())

    assert classify_error(acted, ValueError(), is_transient, Signal(event)) is AttemptEnd.LIMIT


@pytest.mark.parametrize("event", [Event.CALLER, Event.NEVER_FITS, Event.OK])
def test_the_requests_own_fault_fails_it(event: Event) -> None:
    assert classify_error(attempt(), ValueError(), is_transient, Signal(event)) is AttemptEnd.ERROR


def test_interrupted_ends_the_attempt_as_stopped_whatever_was_reported() -> None:
    assert classify_error(attempt(), Interrupted(), is_transient, Signal(Event.BUSY)) is AttemptEnd.STOPPED


@pytest.mark.parametrize("error", [RateLimited(5), Interrupted(), Transient(), ValueError(), asyncio.CancelledError()])
def test_our_own_words_and_strangers_are_no_signals(error: BaseException) -> None:
    assert report_error(attempt(), error, None, 1.8e9) is None


def test_an_error_after_a_timeout_says_nothing() -> None:
    made = attempt()
    made.cancelled = "timeout"

    assert report_error(made, limit(), None, 1.8e9) is None


def test_without_a_pool_an_error_is_still_understood() -> None:
    signal = report_error(attempt(), limit(), None, 1.8e9)

    assert signal is not None
    assert (signal.event, signal.delay) == (Event.LIMITED, 20.0)


# -- runs ---------------------------------------------------------------------------------------------------------


class Told:
    """A run in a thread, while the test lets time pass; who was called with which credential, and when."""

    def __init__(
        self, *names: str, step: float = 1.0, workers: int = 1, slots: int | Literal["auto"] = 1, **options: Any
    ) -> None:
        self.clock = FakeClock()
        self.step = step
        self.pool = CredentialCoordinator(
            [Credential(f"{SECRET}-{name}", name=name, slots=slots) for name in names], clock=self.clock, debug=True
        )
        self.run = ParallelCoordinator(workers, self.pool, clock=self.clock, **options)
        self.began = self.clock.now()
        self.calls: list[tuple[int, str, float]] = []

    def of(self, items: int, work: Callable[[int, int], object]) -> tuple[ProgressStats, list[WorkflowResult]]:
        """Run *work*, which is told the item and how many calls there were before, of any item."""
        lock = threading.Lock()

        def worker(item: int, _key: str | None, context: Context) -> object:
            with lock:
                before = len(self.calls)
                lease = context.lease
                self.calls.append((item, "" if lease is None else lease.name, self.clock.now() - self.began))
            return work(item, before)

        call = Background(lambda: self.run.execute_parallel(range(items), worker, str))
        until = time.monotonic() + background_threads.PATIENCE
        while call.running and time.monotonic() < until:
            call.wait(0.005)
            if self.at_rest():
                self.clock.advance(self.step)
        return call.result()

    def at_rest(self) -> bool:
        """Whether nobody is at work, and only time can bring the run on: then no worker is late by it."""
        runs = list(self.run._running)
        return bool(runs and len(runs[0].state.idle) == self.run.max_workers and self.clock.sleepers)

    def state(self, name: str = "a") -> CredentialState:
        return next(row for row in self.pool.snapshot() if row.name == name)


def raising(*errors: Exception | None) -> Callable[[int, int], object]:
    """The first calls raise these, in order; None goes well, as all that follow do."""

    def work(item: int, before: int) -> int:
        error = errors[before] if before < len(errors) else None
        if error is not None:
            raise error
        return item

    return work


def test_a_limit_cools_the_key_down_as_long_as_reported_and_uses_no_retry() -> None:
    told = Told("a", retries=0)

    stats, results = told.of(1, raising(limit(20.0), limit(30.0)))

    assert results[0].success
    assert results[0].attempts == 3
    assert (stats.limited, stats.retried, stats.failed) == (2, 0, 0)
    first, second, third = (at for _, _, at in told.calls)
    assert second - first >= 20.0
    assert third - second >= 30.0


def test_a_limit_of_one_key_sends_the_item_to_another_at_once() -> None:
    told = Told("a", "b", retries=0)

    _, results = told.of(1, raising(limit(86_400.0)))

    assert results[0].success
    assert [name for _, name, _ in told.calls] == ["a", "b"]
    assert told.state("a").state == "parked"
    assert told.state("b").state == "available"


def test_what_was_learned_from_an_error_is_in_the_snapshot() -> None:
    told = Told("a", "b")
    error = client_error(
        429, x_ratelimit_limit_requests="60", x_ratelimit_remaining_requests="0", x_ratelimit_reset_requests="60s"
    )

    told.of(1, raising(error))

    (learned,) = told.state("a").limits
    assert (learned.dimension, learned.amount, learned.learned) == ("requests", 60.0, True)


def test_a_dead_key_is_left_for_another_and_costs_no_try() -> None:
    told = Told("a", "b", retries=0)

    stats, results = told.of(3, raising(dead()))

    assert [result.success for result in results] == [True] * 3
    assert told.state("a").state == "dead"
    assert {name for _, name, _ in told.calls[1:]} == {"b"}
    assert stats.failed == 0


def test_money_that_is_gone_sends_the_item_to_another_key() -> None:
    told = Told("a", "b", retries=0)

    _, results = told.of(1, raising(client_error(429, {"code": "insufficient_quota"})))

    assert results[0].success
    assert told.state("a").state == "spent"


def test_a_model_that_a_key_may_not_use_sends_the_item_to_another_key() -> None:
    told = Told("a", "b", retries=0, model_func=lambda item: "large")

    _, results = told.of(1, raising(client_error(404, {"code": "model_not_found"})))

    assert results[0].success
    assert [name for _, name, _ in told.calls] == ["a", "b"]
    assert told.state("a").state == "available"


@pytest.mark.parametrize("error", [busy, no_answer])
def test_what_passes_is_tried_again_as_any_transient_error(error: Callable[[], Exception]) -> None:
    told = Told("a", retries=1)

    stats, results = told.of(1, raising(error()))

    assert results[0].success
    assert (stats.limited, stats.retried) == (0, 1)
    assert told.state().state == "available"
    assert told.state().limits == ()


@pytest.mark.parametrize("error", [busy, no_answer])
def test_what_passes_too_often_fails_the_item(error: Callable[[], Exception]) -> None:
    told = Told("a", retries=1)

    stats, _ = told.of(1, raising(error(), error()))

    assert (stats.failed, stats.retried) == (1, 1)


def test_a_busy_provider_that_says_how_long_is_left_alone_for_that() -> None:
    told = Told("a", retries=1)

    told.of(1, raising(client_error(503, retry_after="25")))

    assert told.calls[1][2] - told.calls[0][2] >= 25.0


def test_a_busy_provider_uses_no_retries_while_all_keys_cool_down() -> None:
    """Two tries say nothing; from the third busy answer on the provider is left alone, and the item just waits."""
    told = Told("a", retries=2, step=5.0)

    stats, results = told.of(1, raising(*[busy() for _ in range(12)]))

    assert results[0].success
    assert stats.retried == 2
    assert stats.limited == 10


def test_busy_answers_among_many_successes_cool_no_key_down() -> None:
    told = Told("a", retries=2)
    errors = [busy() if number in (0, 30, 60) else None for number in range(100)]

    stats, _ = told.of(90, raising(*errors))

    assert (stats.success_count, stats.retried, stats.limited) == (90, 3, 0)


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_the_requests_own_fault_fails_it_at_once(status: int) -> None:
    told = Told("a")

    stats, _ = told.of(2, raising(client_error(status)))

    assert (stats.failed, stats.success_count, stats.limited, stats.retried) == (1, 1, 0, 0)
    assert told.state().state == "available"


def test_an_error_that_any_code_may_raise_says_nothing_of_the_key() -> None:
    told = Told("a", retries=5)

    stats, _ = told.of(1, raising(*[ConnectionResetError("a database, perhaps") for _ in range(5)]))

    assert (stats.retried, stats.limited) == (5, 0)
    assert told.state().state == "available"


@pytest.mark.parametrize("before", [[], [503]], ids=["at once", "after it was busy"])
@pytest.mark.parametrize("status", [401, 402])
def test_a_website_that_wants_a_password_or_money_costs_no_key_its_life(status: int, before: list[int]) -> None:
    told = Told("a", retries=3)
    statuses = [*before, status, status]

    stats, results = told.of(1, raising(*map(website, statuses)))

    assert results[0].success
    assert (stats.retried, stats.limited) == (len(statuses), 0)
    assert told.state().state == "available"


@pytest.mark.parametrize("status", [401, 402])
def test_the_third_consecutive_refusal_by_an_unknown_host_counts_for_this_run_only(status: int) -> None:
    told = Told("a", retries=9)

    stats, _ = told.of(1, raising(*[website(status) for _ in range(9)]))

    assert len(told.calls) == 3
    assert (stats.retried, stats.success_count) == (2, 0)
    assert stats.stopped_by is not None
    assert "1 refused three times by a host that is not known to be its provider's" in stats.stopped_by
    assert told.state().state == "available"
    assert told.of(1, raising())[0].success_count == 1


def test_refusals_of_an_unknown_provider_do_not_count_with_a_success_between() -> None:
    told = Told("a", retries=9)

    stats, _ = told.of(5, raising(*[website(401), None] * 5))

    assert (stats.success_count, stats.retried) == (5, 5)
    assert told.state().state == "available"


def test_a_refusal_of_another_provider_does_not_count_at_once() -> None:
    told = Told("a", retries=3)
    other = client_error(401, {"type": "error", "error": {"type": "authentication_error"}}, client="anthropic")

    stats, _ = told.of(1, raising(client_error(503), other))

    assert (stats.success_count, stats.retried) == (1, 2)
    assert told.state().state == "available"


# -- errors that are no such errors -------------------------------------------------------------------------------


def nasty(kind: str, module: str) -> Exception:
    """One that does not let itself be looked at."""

    def refuse(_error: object) -> object:
        raise ValueError("no response here")

    base = type("APIError", (Exception,), {"__module__": module, "response": property(refuse)})
    return type(kind, (base,), {"__module__": module})("nasty")  # type: ignore[no-any-return]


@pytest.mark.parametrize("error", [nasty("APIConnectionError", "openai"), nasty("Unheard", "somewhere")])
@pytest.mark.parametrize("reported", [False, True])
def test_an_error_that_cannot_be_looked_at_ends_its_item_and_no_other(error: Exception, reported: bool) -> None:
    pool = CredentialCoordinator([Credential(SECRET, name="a", slots=4)], debug=True)

    def worker(item: int, _key: str | None, context: Context) -> int:
        assert context.lease is not None
        if reported:
            context.lease.report({"status": 200, "headers": {}, "body": None})
        if item == 1:
            raise error
        return item

    run = ParallelCoordinator(1, pool, retries=0)
    stats, results = Background(lambda: run.execute_parallel(range(4), worker, str)).result()

    assert [result.success for result in results] == [True, False, True, True]
    assert (stats.success_count, stats.failed) == (3, 1)
    assert pool.snapshot()[0].leases == 0


# -- what a failure teaches ---------------------------------------------------------------------------------------


def test_items_that_failed_with_an_error_of_their_own_do_not_make_a_credential_wider() -> None:
    told = Told("a", slots="auto", retries=0)

    stats, _ = told.of(6, raising(*[ValueError("mine") for _ in range(6)]))

    assert stats.failed == 6
    assert told.state().slots == 1
    told.of(1, raising())
    assert told.state().slots > 1


def test_a_limit_of_one_model_lets_the_others_go_on() -> None:
    told = Told("a", slots=4, retries=0, model_func=lambda item: ("large", "small")[item])
    error = client_error(429, {"type": "error", "error": {"type": "rate_limit_error"}}, "anthropic", retry_after="40")

    stats, _ = told.of(2, raising(error))

    assert stats.success_count == 2
    assert [item for item, _, _ in told.calls] == [0, 1, 0]
    first, other, again = (at for _, _, at in told.calls)
    assert other - first < 30.0
    assert again - first >= 40.0


def test_a_rule_of_ones_own_decides_what_passes_but_not_what_is_a_limit() -> None:
    told = Told("a", retries=3, retry_if=lambda error: False)

    stats, _ = told.of(2, raising(limit(1.0), None, busy()))

    assert (stats.limited, stats.retried, stats.failed, stats.success_count) == (1, 0, 1, 1)


def test_an_error_that_was_reported_and_then_raised_teaches_once() -> None:
    told = Told("a", slots=4)
    error = limit(5.0)
    heard: list[Any] = []

    def worker(item: int, _key: str | None, context: Context) -> int:
        assert context.lease is not None
        if not heard:
            heard.append(context.lease.report(error))
            raise error
        return item

    call = Background(lambda: told.run.execute_parallel([0], worker, str))
    while call.running:
        call.wait(0.005)
        told.clock.advance(1.0)
    stats, _ = call.result()

    assert (stats.limited, stats.success_count) == (1, 1)
    assert len(told.state().history) == 1


def test_no_secret_gets_from_an_error_into_the_pool_or_the_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told = Told("a", "b", "c", retries=0)
    errors = [limit(5.0), dead(), client_error(429, {"code": "insufficient_quota", "message": f"{SECRET}-b"})]

    stats, results = told.of(2, raising(*errors))

    assert stats.success_count == 2
    assert SECRET not in repr((told.pool.snapshot(), results)) + caplog.text


def test_a_coroutines_limit_is_reported_as_a_functions_is() -> None:
    clock = FakeClock()
    pool = CredentialCoordinator([Credential(f"{SECRET}-{name}", name=name) for name in "ab"], clock=clock, debug=True)
    names: list[str] = []

    async def worker(item: int, _key: str | None, context: Context) -> int:
        assert context.lease is not None
        names.append(context.lease.name)
        if len(names) == 1:
            raise limit(3600.0)
        return item

    call = Background(lambda: ParallelCoordinator(1, pool, retries=0, clock=clock).execute_parallel([0], worker, str))
    while call.running:
        call.wait(0.005)
        clock.advance(1.0)
    stats, _ = call.result()

    assert names == ["a", "b"]
    assert stats.limited == 1


def without_a_pool(error: Exception, **options: Any) -> list[float]:
    """When an item of a run without credentials is tried, whose first call raises that."""
    clock = FakeClock()
    starts: list[float] = []

    def worker(item: int, _key: str | None) -> int:
        starts.append(clock.now())
        if len(starts) == 1:
            raise error
        return item

    call = Background(lambda: ParallelCoordinator(1, clock=clock, **options).execute_parallel([0], worker, str))
    call.wait(0.5)  # that is over at once, if nothing has to be waited for: then no time passes at all
    while call.running:
        call.wait(0.005)
        clock.advance(1.0)
    stats, _ = call.result()
    assert stats.success_count == 1
    return starts


def test_without_a_pool_a_limit_costs_no_try_either() -> None:
    assert len(without_a_pool(limit(20.0), retries=0)) == 2


@pytest.mark.parametrize("error", [limit(20.0), RateLimited(20), RateLimited("20")])
def test_without_a_pool_a_limit_is_waited_for_as_long_as_was_told(error: Exception) -> None:
    first, second = without_a_pool(error, retries=0)

    assert second - first >= 20.0


def test_with_lease_call_a_limit_delays_the_item_as_long_as_reported() -> None:
    told = Told("a", retries=0, lease="call")

    stats, _ = told.of(1, raising(RateLimited(20)))

    (_, _, first), (_, _, second) = told.calls
    assert second - first >= 20.0
    assert (stats.limited, stats.success_count) == (1, 1)
    assert told.state().state == "available"  # no lease was in hand, so no key is to blame


def test_with_a_pool_the_key_cools_down_and_the_item_uses_another_at_once() -> None:
    told = Told("a", "b", retries=0)

    told.of(1, raising(RateLimited(500)))

    (_, _, first), (_, name, second) = told.calls
    assert (name, second - first < 20.0) == ("b", True)


# -- how long it asked to be left alone ---------------------------------------------------------------------------


WALL = 1.8e9


@pytest.mark.parametrize(
    ("error", "signal", "seconds"),
    [
        (ValueError(), None, 0.0),
        (ValueError(), Signal(Event.BUSY), 0.0),
        (ValueError(), Signal(Event.BUSY, 25.0), 25.0),
        (ValueError(), Signal(Event.LIMITED, 7200.0), 7200.0),
        (RateLimited(), None, 0.0),
        (RateLimited(20), None, 20.0),
        (RateLimited("1.5"), None, 1.5),
        (RateLimited(WALL + 30), None, 30.0),
        (RateLimited("soon"), None, 0.0),
        (RateLimited(-5), None, 0.0),
        (RateLimited(float("nan")), None, 0.0),
        (RateLimited(20), Signal(Event.LIMITED, 5.0), 5.0),
    ],
)
def test_what_an_error_asks_is_waited_for_and_what_it_does_not_is_not(
    error: Exception, signal: Signal | None, seconds: float
) -> None:
    assert find_requested_delay(error, signal, WALL) == seconds


# -- costs that were told too low ---------------------------------------------------------------------------------


OF_TOKENS = "Rate limit reached for a-model on tokens per min (TPM): Limit 30000, Used 29204, Requested 1821."
OF_REQUESTS = "Rate limit reached for a-model on requests per min (RPM): Limit 3, Used 3, Requested 1."


def limited_for(message: str) -> Exception:
    return client_error(429, {"code": "rate_limit_exceeded", "message": message}, retry_after="0")


def starts_of_an_item(cost: int, *messages: str) -> list[float]:
    """When one starts whose first calls are limited with these words, after all of 1000 tokens a minute was used."""
    clock = FakeClock()
    pool = CredentialCoordinator([Credential(SECRET, name="a", tpm=1000)], clock=clock, debug=True)
    with pool.acquire_nowait(cost={"tokens": 1000}):
        pass
    starts: list[float] = []
    began = clock.now()

    def worker(item: int, _key: str | None) -> int:
        starts.append(clock.now() - began)
        if len(starts) <= len(messages):
            raise limited_for(messages[len(starts) - 1])
        return item

    run = ParallelCoordinator(1, pool, retries=0, clock=clock, cost_func=lambda item: {"tokens": cost})
    call = Background(lambda: run.execute_parallel([0], worker, str))
    while call.running:
        call.wait(0.005)
        clock.advance(0.5)
    call.result()
    return starts


def test_an_item_that_is_limited_again_and_again_reserves_more_than_its_cost() -> None:
    """Three tenths more each time: what has been reserved by then has to have flowed in by then."""
    starts = starts_of_an_item(100, *[OF_TOKENS] * 4)

    reserved = [100 * 1.3**times for times in range(5)]
    assert len(starts) == 5
    assert all(at >= 0.06 * sum(reserved[: number + 1]) - 1e-6 for number, at in enumerate(starts))


@pytest.mark.parametrize(
    ("messages", "times"),
    [
        ([OF_TOKENS] * 3, {1, 2, 3}),
        (["Rate limit reached."] * 3, {1, 2, 3}),
        ([OF_REQUESTS] * 3, set()),
        ([OF_REQUESTS, OF_TOKENS, OF_REQUESTS], {1}),
    ],
)
def test_more_is_reserved_only_after_limits_that_may_have_been_of_tokens(
    monkeypatch: pytest.MonkeyPatch, messages: list[str], times: set[int]
) -> None:
    asked: list[int] = []
    padded = PoolRuntime.with_margin

    def counted(pool: PoolRuntime, ask: LeaseRequest, times: int) -> LeaseRequest:
        asked.append(times)
        return padded(pool, ask, times)

    monkeypatch.setattr(PoolRuntime, "with_margin", counted)

    assert len(starts_of_an_item(100, *messages)) == 4
    assert set(asked) == times


def test_an_item_that_is_limited_again_and_again_never_reserves_more_than_fits() -> None:
    assert len(starts_of_an_item(950, *[OF_TOKENS] * 3)) == 4
