"""Inspect the user's worker: its kind of callable, and the name that a journal records."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .commands.command import Command

if TYPE_CHECKING:
    from .commands.attempt_access import AttemptAccess
    from .output.capture import OutputCapture

WorkerFunction = Callable[..., Any] | Command


class SendsOutput:
    """Base of a worker function that sends its output from other machines; the driver writes it to ``outputs``."""

    outputs: OutputCapture | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker function with what ``inspect_worker`` found."""

    call: Any
    is_async: bool
    wants_context: bool
    name: str
    is_command: bool = False

    @property
    def outputs(self) -> OutputCapture | None:
        """Where the output of its attempts is captured in this process, if the caller wants that."""
        from .output.capture import OutputCapture

        found = getattr(self.call, "outputs", None)
        return found if isinstance(found, OutputCapture) else None

    @property
    def access(self) -> AttemptAccess | None:
        """What gives its attempts access to the providers without a key, if anything does."""
        name = "access" if self.is_command else "__agentos_access__"
        found: AttemptAccess | None = getattr(self.call, name, None)
        return found

    @property
    def label(self) -> str:
        """A short name for people: ``fix.sh``, ``ask``."""
        if isinstance(self.call, Command):
            return self.call.label
        name = self.name.rpartition(":")[2].rpartition(".")[2]
        return "the worker" if name.startswith("<") else name  # a lambda


def inspect_worker(function: object) -> Worker:
    """Inspect a worker. Raises ValueError for an object that cannot be one, or cannot be called as one."""
    if isinstance(function, Command):
        return Worker(function, is_async=False, wants_context=False, name=function.name, is_command=True)
    if not callable(function):
        raise ValueError(f"worker_func must be a function of (item, credential), not {type(function).__name__}")
    inner: object = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    # An instance is what its __call__ is; calling a class makes an instance, so a class is neither async nor a
    # generator.
    looked_at = inner if inspect.isroutine(inner) or inspect.isclass(inner) else type(inner).__call__
    is_async = inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(looked_at)
    if inspect.isasyncgenfunction(looked_at) or inspect.isgeneratorfunction(looked_at):
        raise ValueError("worker_func must return its result, not yield: it is a generator function")
    wants_context = _wants_context(function)
    _check_signature(function, inner, wants_context=wants_context)
    return Worker(function, is_async, wants_context, _build_name(inner))


def refuse_awaitable(value: object, *, in_coroutine: bool = False) -> None:
    """Raise TypeError if a worker returned an awaitable, and so did nothing yet. A coroutine is closed."""
    if not hasattr(type(value), "__await__"):
        return
    what = f"an awaitable {type(value).__name__}"
    if isinstance(value, Coroutine):
        what = "a coroutine"
        with contextlib.suppress(Exception):  # it may be running, or refuse to end
            value.close()
    where = "" if in_coroutine else ", in a worker that is declared `async def`"
    raise TypeError(f"the worker returned {what} that was not awaited: write `await` before the call{where}")


def _wants_context(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False  # a builtin without a signature
    context = parameters.get("context")
    return context is not None and context.kind in (context.POSITIONAL_OR_KEYWORD, context.KEYWORD_ONLY)


def _check_signature(function: Callable[..., Any], inner: object, *, wants_context: bool) -> None:
    """Raise ValueError if the call of each item would fail."""
    try:
        # Not that of a wrapped function: a decorator can add and remove parameters.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return  # a builtin without a signature
    try:
        signature.bind("item", "credential", **({"context": None} if wants_context else {}))
    except TypeError as error:
        name = getattr(inner, "__name__", None) or type(inner).__name__
        # Without defaults, which may hold a secret.
        plain = [each.replace(default=each.empty, annotation=each.empty) for each in signature.parameters.values()]
        shown = f"{name}{signature.replace(parameters=plain, return_annotation=signature.empty)}"
        called = f"(item, credential{', context=...' if wants_context else ''})"
        raise ValueError(f"worker_func cannot be called with {called}: {error}; it is {shown}") from None


def _build_name(function: object) -> str:
    """Return ``module:qualname``, which identifies the worker in a journal; for an instance, of its class."""
    if not hasattr(function, "__qualname__"):
        function = type(function)
    return f"{getattr(function, '__module__', None) or '?'}:{getattr(function, '__qualname__', '?')}"
