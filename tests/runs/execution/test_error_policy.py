"""The effect of a worker's exception on its item."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from importlib import import_module

import httpx2
import pytest

from agentos.errors import (
    AgentOSError,
    ForeignHost,
    Interrupted,
    InvariantViolated,
    LeaseLost,
    NeverFits,
    NoCredentialAvailable,
    NoUsableCredential,
    PoolClosed,
    RateLimited,
    Transient,
    WouldBlockLoop,
)
from agentos.runs.core.records import Attempt, Item
from agentos.runs.core.states import AttemptEnd
from agentos.runs.execution.error_policy import (
    classify_error,
    find_requested_delay,
    format_error,
    is_transient,
    report_error,
)


class Lent:
    """A lease whose holder reported something, or nothing."""

    def __init__(self, trouble: str | None) -> None:
        self.trouble = trouble


def attempt(trouble: str | None = None, *, lent: bool = True) -> Attempt:
    made = Attempt(Item(0, "item", 0), 1, 1, None, 0.0)
    made.lease = Lent(trouble) if lent else None
    return made


class Overloaded(Transient):
    pass


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (RateLimited(5), AttemptEnd.LIMIT),
        (RateLimited(), AttemptEnd.LIMIT),
        (Interrupted(), AttemptEnd.STOPPED),
        (Transient(), AttemptEnd.TRANSIENT),
        (Overloaded("503"), AttemptEnd.TRANSIENT),
        (ConnectionResetError(), AttemptEnd.TRANSIENT),
        (BrokenPipeError(), AttemptEnd.TRANSIENT),
        (TimeoutError(), AttemptEnd.TRANSIENT),
        (ValueError(), AttemptEnd.ERROR),
        (OSError("disk"), AttemptEnd.ERROR),
        (SystemExit(1), AttemptEnd.ERROR),
        (KeyboardInterrupt(), AttemptEnd.ERROR),
        (asyncio.CancelledError(), AttemptEnd.ERROR),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value.value),
)
def test_the_default_rule(error: BaseException, ended: AttemptEnd) -> None:
    assert classify_error(attempt(), error, is_transient) is ended
    assert classify_error(attempt(lent=False), error, is_transient) is ended


@pytest.mark.parametrize("trouble", ["limited", "rejected", "spent"])
@pytest.mark.parametrize("error", [ValueError("429"), Transient(), Interrupted()])
def test_an_exception_after_the_lease_reported_trouble_is_the_keys_not_the_items(
    trouble: str, error: BaseException
) -> None:
    assert classify_error(attempt(trouble), error, is_transient) is AttemptEnd.LIMIT


def test_the_rule_is_asked_for_everything_else_and_believed() -> None:
    asked: list[BaseException] = []

    def rule(error: BaseException) -> bool:
        asked.append(error)
        return isinstance(error, ValueError)

    first, second = ValueError(), Transient()

    assert classify_error(attempt(), first, rule) is AttemptEnd.TRANSIENT
    assert classify_error(attempt(), second, rule) is AttemptEnd.ERROR
    assert classify_error(attempt(), RateLimited(), rule) is AttemptEnd.LIMIT
    assert asked == [first, second]


def test_a_rule_that_itself_fails_means_no_other_try_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def rule(error: BaseException) -> bool:
        raise KeyError("what it says may quote a secret")

    assert classify_error(attempt(), ValueError(), rule) is AttemptEnd.ERROR
    assert "retry_if itself failed (KeyError); item item is not retried" in caplog.text
    assert "quote a secret" not in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


# -- agentos' own errors, as they are and as others pass them on ---------------------------------------------------


class MyError(Exception):
    pass


def plain(own: AgentOSError) -> Exception:
    return own


def wrapped(own: AgentOSError) -> Exception:
    """As anthropic's client passes on whatever its transport raises."""
    base = type("APIError", (Exception,), {"__module__": "anthropic"})
    error: Exception = type("APIConnectionError", (base,), {"__module__": "anthropic"})("Connection error.")
    error.__cause__ = own
    return error


def retold(own: AgentOSError) -> Exception:
    """As a person does."""
    error = MyError("chapter 3 was not translated")
    error.__cause__ = wrapped(own)
    return error


def as_a_connection_error(own: AgentOSError) -> Exception:
    error = ConnectionError("no way to the provider")
    error.__cause__ = own
    return error


def in_a_group(own: AgentOSError) -> Exception:
    """As a worker's task group does."""
    return ExceptionGroup("unhandled errors in a TaskGroup", [wrapped(own)])


Telling = Callable[[AgentOSError], Exception]
in_any_way = pytest.mark.parametrize("told", [plain, wrapped, retold, as_a_connection_error, in_a_group])

NO_CREDENTIAL_YET = NoCredentialAvailable(waited=5.0, next_free_in=30.0)
HOPELESS = [
    NoUsableCredential(reason="all are dead"),
    NeverFits(dimension="tokens", cost=9_000.0, largest=1_000.0),
    ForeignHost(host="elsewhere.example", credentials=("a",), detail="it is not a host of a"),
    WouldBlockLoop(instead="pool.async_transport()"),
    PoolClosed(),
]


def never_asked(error: BaseException) -> bool:
    raise AssertionError("the rule was asked about it")


def always(_error: BaseException) -> bool:
    return True


@in_any_way
def test_a_wait_for_a_credential_that_ran_out_is_no_failed_try_and_no_rule_is_asked(told: Telling) -> None:
    error = told(NO_CREDENTIAL_YET)

    assert classify_error(attempt(), error, is_transient) is AttemptEnd.NO_KEY
    assert classify_error(attempt(lent=False), error, is_transient) is AttemptEnd.NO_KEY
    assert classify_error(attempt(), error, never_asked) is AttemptEnd.NO_KEY


@in_any_way
def test_after_a_wait_that_ran_out_the_item_waits_until_a_credential_is_due(told: Telling) -> None:
    assert find_requested_delay(told(NO_CREDENTIAL_YET), None, 1.8e9) == 30.0


@pytest.mark.parametrize("unusable", [None, float("inf"), float("nan"), -1.0])
def test_without_a_known_instant_no_delay_is_requested(unusable: float | None) -> None:
    assert find_requested_delay(NoCredentialAvailable(waited=5.0, next_free_in=unusable), None, 1.8e9) == 0.0


@in_any_way
@pytest.mark.parametrize("own", HOPELESS, ids=lambda own: type(own).__name__)
def test_where_no_credential_will_do_the_item_fails_whatever_the_rule(own: AgentOSError, told: Telling) -> None:
    assert classify_error(attempt(), told(own), is_transient) is AttemptEnd.ERROR
    assert classify_error(attempt(), told(own), always) is AttemptEnd.ERROR


@in_any_way
def test_what_agentos_decided_says_nothing_of_the_provider(told: Telling) -> None:
    for own in (NO_CREDENTIAL_YET, *HOPELESS):
        assert report_error(attempt(), told(own), None, 1.8e9) is None


@in_any_way
@pytest.mark.parametrize(
    ("own", "ended"),
    [
        (LeaseLost(name="a", token=1, detail="it expired"), AttemptEnd.NO_KEY),
        (RateLimited(20), AttemptEnd.LIMIT),
        (Transient("flaky"), AttemptEnd.TRANSIENT),
        (Interrupted(), AttemptEnd.STOPPED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value.value),
)
def test_any_other_of_our_errors_means_the_same_however_it_is_passed_on(
    own: AgentOSError, ended: AttemptEnd, told: Telling
) -> None:
    assert classify_error(attempt(), told(own), is_transient) is ended


@in_any_way
def test_a_reported_limit_delays_the_item_however_the_error_is_wrapped(told: Telling) -> None:
    assert find_requested_delay(told(RateLimited(20)), None, 1.8e9) == 20.0


class Pool:
    """A lessor that only listens."""

    def __init__(self) -> None:
        self.limits: list[tuple[object, object, str | None]] = []

    def report_rate_limited(
        self, grant: object, retry_after: object, model: str | None, reporter: str | None = None
    ) -> None:
        self.limits.append((grant, retry_after, model))


@in_any_way
def test_a_raised_limit_is_reported_to_the_pool_however_it_is_wrapped(told: Telling) -> None:
    pool, holding = Pool(), attempt()
    holding.grant = "the grant"

    report_error(holding, told(RateLimited(20, model="large")), pool, 1.8e9)  # type: ignore[arg-type]

    assert pool.limits == [("the grant", 20, "large")]


def test_a_rule_of_ones_own_is_asked_about_what_the_worker_raised() -> None:
    asked: list[BaseException] = []

    def rule(error: BaseException) -> bool:
        asked.append(error)
        return True

    error = retold(InvariantViolated(name="I1", detail="broken"))

    assert classify_error(attempt(), error, rule) is AttemptEnd.TRANSIENT
    assert asked == [error]


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (plain, "no usable credential: all are dead"),
        (wrapped, "no usable credential: all are dead"),
        (retold, "chapter 3 was not translated: no usable credential: all are dead"),
        (as_a_connection_error, "no way to the provider: no usable credential: all are dead"),
    ],
)
def test_our_message_replaces_an_sdks_and_follows_a_users(told: Telling, text: str) -> None:
    assert format_error(told(NoUsableCredential(reason="all are dead"))) == text


def test_our_words_are_not_told_twice() -> None:
    own = PoolClosed()
    error = MyError(f"not translated, {own}")
    error.__cause__ = own

    assert format_error(error) == f"not translated, {own}"


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_error_is_formatted_as_its_message_or_its_type() -> None:
    assert format_error(ValueError("bad")) == "bad"
    assert format_error(ValueError()) == "ValueError"
    assert format_error(Speechless()) == "Speechless"


def test_a_connection_error_of_an_sdk_says_what_went_wrong() -> None:
    error = RuntimeError("Connection error.")
    error.__cause__ = OSError("[Errno -2] Name or service not known")

    assert format_error(error) == "Connection error. OSError: [Errno -2] Name or service not known"


REQUEST = httpx2.Request("POST", "http://user:password@127.0.0.1:9/v1/chat")


def test_an_error_without_an_answer_names_the_address() -> None:
    refused = httpx2.ConnectError("Connection refused", request=REQUEST)
    wrapped = MyError("no luck")
    wrapped.__cause__ = refused

    assert format_error(refused) == "Connection refused (no answer from http://127.0.0.1:9)"
    assert format_error(wrapped) == "no luck (no answer from http://127.0.0.1:9)"


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
def test_a_connection_error_of_an_sdk_names_the_address_too(sdk: str) -> None:
    error = import_module(sdk).APIConnectionError(request=REQUEST)
    error.__cause__ = OSError("Connection refused")

    told = "Connection error. OSError: Connection refused (no answer from http://127.0.0.1:9)"
    assert format_error(error) == told


@pytest.mark.parametrize(
    "error",
    [
        httpx2.ConnectError("no"),
        httpx2.LocalProtocolError("no", request=REQUEST),
        httpx2.ConnectError("no", request=httpx2.Request("GET", "/relative")),
    ],
    ids=["no request", "not sent", "no host"],
)
def test_an_error_without_a_silent_address_names_none(error: Exception) -> None:
    assert format_error(error) == "no"
