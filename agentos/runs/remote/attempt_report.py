"""AttemptReport: the value or error of a remote attempt, with its messages and log lines."""

from __future__ import annotations

import inspect
import logging
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ... import errors
from ...errors import AgentOSError, NotPicklable, RemoteError
from ...providers.clients.exceptions import CARRIED, find_own_error, from_exception
from ...providers.signal import Signal
from ..execution.error_policy import format_error
from ..execution.tracebacks import REMOTE_TRACE, find_place, format_traceback
from .pickled import PickledObject, pack, unpack
from .plain_values import to_plain
from .worker_lease import LeaseMessage

log = logging.getLogger("agentos")

# The builtin errors that a retry rule may test for, subclasses before their bases.
_BUILTIN: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        *(ConnectionError, TimeoutError, OSError, ValueError, TypeError, LookupError, ArithmeticError),
        *(AssertionError, RuntimeError),
    )
}


@dataclass(frozen=True, slots=True, repr=False)
class LogLine:
    """A line that the worker logged with ``context.log``."""

    level: int
    text: str


@dataclass(frozen=True, slots=True, repr=False)
class Printed:
    """Bytes that the worker printed, and to which stream: ``"stdout"`` or ``"stderr"``."""

    stream: str
    data: bytes


@dataclass(frozen=True, slots=True, repr=False)
class RemoteFailure:
    """A worker's error in a form that can be sent. ``build_error`` makes it an exception again."""

    pickled_error: PickledObject | None  # the exception itself, if it survives pickling
    kind: str
    module: str
    base: str  # the builtin error that it derives from; "" if it is not in _BUILTIN
    text: str
    meaning: PickledObject | None  # what it means: an agentos error, or a Signal
    trace: str
    reported: bool  # the worker has reported it to its lease already
    place: str | None = None  # where it was raised, in the user's code


@dataclass(frozen=True, slots=True, repr=False)
class AttemptReport:
    """The end of a remote attempt.

    ``unready`` says why the worker was not called: a key or a module is missing there, and the item is not at fault.
    """

    token: int
    value: PickledObject | None = None
    failure: RemoteFailure | None = None
    unready: str | None = None
    cancelled: bool = False  # its coroutine was cancelled, and ended by that
    lease_messages: tuple[LeaseMessage, ...] = ()
    log_lines: tuple[LogLine, ...] = ()
    duration: float = 0.0

    def __repr__(self) -> str:
        return f"<report on attempt token {self.token}>"


def build_failure(
    error: BaseException, *, model: str | None = None, reported: bool = False, same_main: bool = False
) -> RemoteFailure:
    """Convert an error so that it can be sent. It is classified here: an SDK's exception may lose data in pickling.

    Never raises: of an error that cannot be read, its name is sent.
    """
    kind, module = type(error).__qualname__, type(error).__module__
    try:
        own = find_own_error(error)
        meaning = from_exception(error, now=time.time(), model=model) if own is None else _convert_to_plain(own)
        return RemoteFailure(
            pickled_error=_pickle_error(error, same_main),
            kind=kind,
            module=module,
            base=_find_base(error),
            text=format_error(error),
            meaning=None if meaning is None else _pack_meaning(meaning),
            trace=format_traceback(error),
            reported=reported,
            place=find_place(error),
        )
    except BaseException:  # noqa: BLE001 - reading an arbitrary exception may raise anything
        return RemoteFailure(None, kind, module, _find_base(error), kind, None, kind, reported)


def build_error(failure: RemoteFailure) -> BaseException:
    """Rebuild the exception, or a ``RemoteError`` of its name, with the place and the traceback it had there."""
    error = None if failure.pickled_error is None else _unpack(failure.pickled_error)
    if not isinstance(error, BaseException):
        error = _remote_error(failure.kind, failure.module, failure.base, failure.text)
    meaning = None if failure.meaning is None else _unpack(failure.meaning)
    is_own_error = isinstance(error, AgentOSError) and not isinstance(error, RemoteError)
    if isinstance(meaning, (Signal, AgentOSError)) and not is_own_error:
        error.__dict__[CARRIED] = meaning
    error.__dict__[REMOTE_TRACE] = failure.place, failure.trace
    return error


# -- on the worker --------------------------------------------------------------------------------------------------


def _pickle_error(error: BaseException, same_main: bool) -> PickledObject | None:
    """Pickle the exception; return None if it would not survive unchanged."""
    try:
        pickled = pack(error, "the error", same_main=same_main)
        again = unpack(pickled, "the error")
        return pickled if type(again) is type(error) and str(again) == str(error) else None
    except Exception:  # noqa: BLE001 - an arbitrary exception: its name and text must do
        return None


def _find_base(error: BaseException) -> str:
    return next((name for name, kind in _BUILTIN.items() if issubclass(type(error), kind)), "")


def _convert_to_plain(own: AgentOSError) -> AgentOSError:
    """Rebuild it as an agentos error of plain values: the driver may not have the user's classes."""
    kind: type[AgentOSError] = next(kind for kind in type(own).__mro__ if kind.__module__ == errors.__name__)
    if kind is not AgentOSError:  # the base class has no meaning
        wanted = inspect.signature(kind).parameters
        facts = {name: fact for name, fact in vars(own).items() if name in wanted}
        try:
            return kind(**{name: to_plain(fact) if isinstance(fact, str) else fact for name, fact in facts.items()})
        except Exception:  # noqa: BLE001 - a subclass that lacks the facts of its base
            log.debug("a %s cannot be made of %s", kind.__name__, ", ".join(facts) or "nothing")
    return _remote_error(type(own).__qualname__, type(own).__module__, _find_base(own), format_error(own))


def _pack_meaning(meaning: Signal | AgentOSError) -> PickledObject | None:
    try:
        return pack(meaning, "what the error means")
    except NotPicklable:
        return None


# -- in the driver --------------------------------------------------------------------------------------------------


def _unpack(pickled: PickledObject) -> Any:
    try:
        return unpack(pickled, "the error")
    except NotPicklable:
        return None


def _remote_error(kind: str, module: str, base: str, text: str) -> RemoteError:
    return _build_class(kind, module, base)(kind=kind, text=text)


@lru_cache(maxsize=256)
def _build_class(kind: str, module: str, base: str) -> type[RemoteError]:
    """Build a class of that name, so that reports and retry rules see the original error."""
    bases = (RemoteError, _BUILTIN[base]) if base in _BUILTIN else (RemoteError,)

    def reduce(self: RemoteError) -> tuple[Any, ...]:
        return _remote_error, (kind, module, base, self.text)

    return type(kind.rpartition(".")[2], bases, {"__module__": module, "__qualname__": kind, "__reduce__": reduce})
