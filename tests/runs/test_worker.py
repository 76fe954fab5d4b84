"""Inspecting the user's worker: its kind of callable, and the name that a journal records."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from agentos.runs.commands.command import Command
from agentos.runs.worker import inspect_worker

HERE = __name__


def plain(item: Any, credential: str | None) -> None: ...


async def awaited(item: Any, credential: str | None) -> None: ...


def with_context(item: Any, credential: str | None, context: Any) -> None: ...


def with_keyword_only_context(item: Any, credential: str | None, *, context: Any) -> None: ...


def with_anything(*args: Any, **kwargs: Any) -> None: ...


def with_positional_only_context(item: Any, credential: str | None, context: Any = None, /) -> None: ...


class Service:
    def method(self, item: Any, credential: str | None, context: Any = None) -> None: ...

    async def coroutine(self, item: Any, credential: str | None) -> None: ...

    @staticmethod
    def static(item: Any, credential: str | None) -> None: ...

    @classmethod
    def of_class(cls, item: Any, credential: str | None) -> None: ...


class PlainCallable:
    def __call__(self, item: Any, credential: str | None) -> None: ...


class AwaitedCallable:
    async def __call__(self, item: Any, credential: str | None, *, context: Any) -> None: ...


class Made:
    """A class is called like a function: its instance is the value."""

    def __init__(self, item: Any, credential: str | None) -> None: ...


@pytest.mark.parametrize(
    ("function", "is_async", "wants_context", "name"),
    [
        (plain, False, False, f"{HERE}:plain"),
        (awaited, True, False, f"{HERE}:awaited"),
        (with_context, False, True, f"{HERE}:with_context"),
        (with_keyword_only_context, False, True, f"{HERE}:with_keyword_only_context"),
        (with_anything, False, False, f"{HERE}:with_anything"),
        (with_positional_only_context, False, False, f"{HERE}:with_positional_only_context"),
        (Service().method, False, True, f"{HERE}:Service.method"),
        (Service().coroutine, True, False, f"{HERE}:Service.coroutine"),
        (Service.static, False, False, f"{HERE}:Service.static"),
        (Service.of_class, False, False, f"{HERE}:Service.of_class"),
        (PlainCallable(), False, False, f"{HERE}:PlainCallable"),
        (AwaitedCallable(), True, True, f"{HERE}:AwaitedCallable"),
        (Made, False, False, f"{HERE}:Made"),
        (functools.partial(plain), False, False, f"{HERE}:plain"),
        (functools.partial(functools.partial(awaited)), True, False, f"{HERE}:awaited"),
        (functools.partial(with_context), False, True, f"{HERE}:with_context"),
        (functools.partial(AwaitedCallable()), True, True, f"{HERE}:AwaitedCallable"),
        (functools.partial(Service().coroutine), True, False, f"{HERE}:Service.coroutine"),
        (print, False, False, "builtins:print"),
        (max, False, False, "builtins:max"),
        (str, False, False, "builtins:str"),
    ],
    ids=lambda value: getattr(value, "__qualname__", None) or type(value).__name__,
)
def test_a_worker_is_known_for_what_it_is(function: Any, is_async: bool, wants_context: bool, name: str) -> None:
    worker = inspect_worker(function)

    assert (worker.is_async, worker.wants_context, worker.name) == (is_async, wants_context, name)
    assert worker.call is function


def test_a_lambda_is_known_by_the_place_it_was_written_in() -> None:
    worker = inspect_worker(lambda item, credential: None)

    assert worker.name == f"{HERE}:test_a_lambda_is_known_by_the_place_it_was_written_in.<locals>.<lambda>"


@pytest.mark.parametrize(
    ("argv", "label"),
    [
        (["./fix.sh", "{}"], "fix.sh"),
        (["claude", "-p", "{}"], "claude"),
        (["bash", "tools/fix.sh", "{}"], "fix.sh"),
        (["python3.12", "fix.py", "--id", "{id}"], "fix.py"),
        (["sh", "-c", "echo {}"], "sh"),
        (["python", "{}"], "python"),
        (["python", "-m", "fix", "{}"], "python"),
    ],
)
def test_a_command_has_a_short_name_for_people(argv: list[str], label: str) -> None:
    assert inspect_worker(Command(argv)).label == label


def test_a_function_has_a_short_name_for_people() -> None:
    assert inspect_worker(with_context).label == "with_context"
    assert inspect_worker(lambda item, credential: None).label == "the worker"


def test_a_decorated_worker_is_known_as_what_it_decorates() -> None:
    @functools.wraps(with_context)
    def wrapper(*args: Any, **kwargs: Any) -> None: ...

    worker = inspect_worker(wrapper)

    assert (worker.wants_context, worker.name) == (True, f"{HERE}:with_context")


@pytest.mark.parametrize("wrong", [None, 5, "print", object()])
def test_what_cannot_be_called_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"worker_func must be a function of \(item, credential\), not"):
        inspect_worker(wrong)


def yielding(item: Any, credential: str | None) -> Iterator[int]:
    yield 1


async def yielding_async(item: Any, credential: str | None) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("wrong", [yielding, yielding_async, functools.partial(yielding)])
def test_a_generator_function_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="must return its result, not yield"):
        inspect_worker(wrong)


class YieldingCallable:
    def __call__(self, item: Any, credential: str | None) -> Iterator[int]:
        yield 1


def test_an_object_whose_call_is_a_generator_is_refused_too() -> None:
    with pytest.raises(ValueError, match="must return its result, not yield"):
        inspect_worker(YieldingCallable())


class MadeOfItem(AwaitedCallable):
    def __init__(self, item: Any, credential: str | None) -> None:
        pass


def test_a_class_is_not_a_coroutine_function_because_its_instances_are() -> None:
    assert not inspect_worker(MadeOfItem).is_async


def test_mocks_are_workers_too() -> None:
    assert inspect_worker(Mock()).is_async is False
    assert inspect_worker(AsyncMock()).is_async is True


# -- the signature ------------------------------------------------------------------------------------------------


def only_item(item: Any) -> None: ...


def needs_three(item: Any, credential: str | None, client: Any) -> None: ...


def context_second(item: Any, context: Any) -> None: ...


def keyword_only(*, item: Any, credential: str | None) -> None: ...


class OneArgument:
    def __call__(self, item: Any) -> None: ...

    def method(self, item: Any) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (only_item, "(item, credential): too many positional arguments; it is only_item(item)"),
        (needs_three, "missing a required argument: 'client'; it is needs_three(item, credential, client)"),
        (context_second, "(item, credential, context=...): multiple values for argument 'context'"),
        (keyword_only, "(item, credential): too many positional arguments; it is keyword_only(*, item, credential)"),
        (OneArgument(), "(item, credential): too many positional arguments; it is OneArgument(item)"),
        (OneArgument().method, "it is method(item)"),
        (OneArgument, "it is OneArgument()"),
        (functools.partial(needs_three, 1, "two"), "it is needs_three(client)"),
        (functools.partial(only_item, item="sk-secret"), "it is only_item(*, item)"),
        (lambda: None, "it is <lambda>()"),
        (len, "it is len(obj, /)"),
    ],
)  # fmt: skip
def test_a_worker_that_cannot_be_called_is_refused_with_both_signatures(wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r"^worker_func cannot be called with \(item, credential") as refused:
        inspect_worker(wrong)

    assert message in str(refused.value)
    assert "sk-secret" not in str(refused.value)


def any_arguments(*args: Any, **more: Any) -> None: ...


def with_default(item: Any, credential: str | None = None, *, size: int = 3) -> None: ...


@functools.wraps(needs_three)
def adds_a_client(*args: Any) -> None:
    needs_three(args[0], args[1], client=None)


@pytest.mark.parametrize(
    "right",
    [
        any_arguments,
        with_default,
        adds_a_client,  # its decorated function has another signature
        functools.partial(needs_three, client=None),
        max,  # without a signature that can be read
    ],
)
def test_a_worker_that_can_be_called_is_accepted(right: Any) -> None:
    assert inspect_worker(right).call is right
