"""What an exception of a worker means for its item."""

from __future__ import annotations

import asyncio
import logging

import pytest

from agentos.errors import Interrupted, RateLimited, Transient
from agentos.runs._core.records import Attempt, Item
from agentos.runs._core.states import Ended
from agentos.runs.outcome import is_transient, judge, text_of, trace_of


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
        (RateLimited(5), Ended.LIMIT),
        (RateLimited(), Ended.LIMIT),
        (Interrupted(), Ended.STOPPED),
        (Transient(), Ended.TRANSIENT),
        (Overloaded("503"), Ended.TRANSIENT),
        (ConnectionResetError(), Ended.TRANSIENT),
        (BrokenPipeError(), Ended.TRANSIENT),
        (TimeoutError(), Ended.TRANSIENT),
        (ValueError(), Ended.ERROR),
        (OSError("disk"), Ended.ERROR),
        (SystemExit(1), Ended.ERROR),
        (KeyboardInterrupt(), Ended.ERROR),
        (asyncio.CancelledError(), Ended.ERROR),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value.value),
)
def test_the_default_rule(error: BaseException, ended: Ended) -> None:
    assert judge(attempt(), error, is_transient) is ended
    assert judge(attempt(lent=False), error, is_transient) is ended


@pytest.mark.parametrize("trouble", ["limited", "rejected", "spent"])
@pytest.mark.parametrize("error", [ValueError("429"), Transient(), Interrupted()])
def test_an_exception_after_the_lease_reported_trouble_is_the_keys_not_the_items(
    trouble: str, error: BaseException
) -> None:
    assert judge(attempt(trouble), error, is_transient) is Ended.LIMIT


def test_the_rule_is_asked_for_everything_else_and_believed() -> None:
    asked: list[BaseException] = []

    def rule(error: BaseException) -> bool:
        asked.append(error)
        return isinstance(error, ValueError)

    first, second = ValueError(), Transient()

    assert judge(attempt(), first, rule) is Ended.TRANSIENT
    assert judge(attempt(), second, rule) is Ended.ERROR
    assert judge(attempt(), RateLimited(), rule) is Ended.LIMIT
    assert asked == [first, second]


def test_a_rule_that_itself_fails_means_no_other_try_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def rule(error: BaseException) -> bool:
        raise KeyError("what it says may quote a secret")

    assert judge(attempt(), ValueError(), rule) is Ended.ERROR
    assert "retry_if itself failed (KeyError); item item is not tried again" in caplog.text
    assert "quote a secret" not in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_error_is_told_in_its_own_words_or_by_its_kind() -> None:
    assert text_of(ValueError("bad")) == "bad"
    assert text_of(ValueError()) == "ValueError"
    assert text_of(Speechless()) == "Speechless"


def test_a_trace_says_where_it_happened_and_ends_where_it_gets_long() -> None:
    def fail(depth: int) -> None:
        if depth:
            fail(depth - 1)
        raise ValueError("x" * 100)

    with pytest.raises(ValueError, match="x") as caught:
        fail(50)

    trace = trace_of(caught.value)
    assert "ValueError: xxx" in trace
    assert "in fail" in trace
    assert len(trace) <= 4_000
    assert trace_of(ValueError("never raised")).strip() == "ValueError: never raised"
    assert "Speechless" in trace_of(Speechless())
