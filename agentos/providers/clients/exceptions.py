"""Classify exceptions and responses of clients by their structure, so that no client has to be installed.

Clients are recognised by the names of their classes and modules, and read through their documented attributes. Nothing
is imported, awaited or downloaded: a body counts only if the client has already read it. An attribute that cannot be
read counts as missing.

There are three steps: the kind of the exception (``client_table``), the answer it carries (``raised``, or ``returned``
for other values), and the meaning of that answer (:func:`~agentos.providers.classify.classify`). This module walks from
an exception to its causes and into groups.
"""

from __future__ import annotations

import time
from dataclasses import replace

from ...errors import AgentOSError
from ..classify import classify
from ..dialects import find_dialect, parse_host
from ..signal import Event, Signal
from .answer import Answer
from .client_table import find_maker
from .raised import parse_exception
from .returned import parse_result
from .untrusted import parse_count, read_attribute

_DEEPEST = 5  # causes followed
_MOST = 64  # exceptions inspected in all: groups may be nested

# Of several signals in a group the most severe counts, by the loss if it were ignored.
_SEVERITY = (
    Event.KEY_DEAD,
    Event.MONEY_GONE,
    Event.PARKED,
    Event.LIMITED,
    Event.RAMP,
    Event.NOT_ENTITLED,
    Event.BUSY,
    Event.NETWORK,
    Event.NEVER_FITS,
    Event.CALLER,
    Event.OK,
)


# The attribute of an exception raised in another process that holds its meaning there: not all that an exception
# carries (the answer, its causes) can be sent.
CARRIED = "_agentos_meaning"
# The extension of a request of httpx with the origin that it was really sent to.
SENT_TO = "agentos_sent_to"


def from_exception(exc: BaseException, *, now: float | None = None, model: str | None = None) -> Signal | None:
    """Return what *exc* means for the credential it was raised with; None if it is not about a call to a provider.

    Supported are the exceptions of openai, anthropic, google-genai, mistralai, litellm, botocore, httpx, httpx2,
    requests, aiohttp, urllib and the builtin network errors, and any exception with a response (a status and headers).
    An exception raised ``from`` one of those counts as that one, up to five levels; a group counts as its most severe
    signal. The result is None for agentos' own errors, for a connection error raised ``from`` one of them (see
    :func:`find_own_error`), and for an exception about a successful answer. *now* is the current time in epoch seconds,
    by default from the clock. Never raises.
    """
    try:
        found = _inspect(exc, time.time() if now is None else now, model, 0, set())
    except Exception:  # noqa: BLE001 - an error in here would hide the one being inspected
        return None
    return found if isinstance(found, Signal) else None


def find_own_error(exc: BaseException) -> AgentOSError | None:
    """Return the error of agentos that *exc* is, or was raised ``from``, up to five levels; None if there is none.

    A client may wrap what our transport raises; anthropic's wraps it as a connection error. A provider's answer closer
    to *exc* takes precedence, as does a signal next to it in a group. Never raises.
    """
    try:
        carried = _read_carried(exc)
        if carried is not None:
            return carried if isinstance(carried, AgentOSError) else None
        if isinstance(exc, AgentOSError):
            return exc
        if exc.__cause__ is None and not isinstance(exc, BaseExceptionGroup):
            return None  # the common case, without further inspection
        found = _inspect(exc, 0.0, None, 0, set())
    except Exception:  # noqa: BLE001 - see above
        return None
    return found if isinstance(found, AgentOSError) else None


def read_signal(thing: object, *, now: float, model: str | None = None) -> Signal | None:
    """Return the signal in *thing*, any object that a worker has; None if there is none.

    A Signal is returned as it is, an exception goes to :func:`from_exception`. A response of the same clients is
    classified by its status, its headers and its body, if that has been read: raw responses of an SDK, dicts of boto,
    and any dict with ``status``, ``headers`` and optionally ``body``. An SDK's parsed answer has no headers, but states
    its usage. Never raises.
    """
    try:
        if isinstance(thing, Signal):
            return thing
        if isinstance(thing, BaseException):
            return from_exception(thing, now=now, model=model)
        answer = parse_result(thing)
        return None if answer is None else _classify(answer, now, model)
    except Exception:  # noqa: BLE001 - a foreign object: what cannot be read is ignored
        return None


def _inspect(
    exc: BaseException, now: float, model: str | None, depth: int, seen: set[int]
) -> Signal | AgentOSError | None:
    """Return the signal of a provider or the network behind *exc*, or the error of agentos."""
    if id(exc) in seen or depth > _DEEPEST or len(seen) >= _MOST:
        return None
    seen.add(id(exc))
    carried = _read_carried(exc)
    if carried is not None:
        return carried
    signal = None
    if isinstance(exc, BaseExceptionGroup):
        most_severe = _most_severe([_inspect(one, now, model, depth + 1, seen) for one in exc.exceptions[:_MOST]])
        if most_severe is not None:
            return most_severe
    elif isinstance(exc, AgentOSError):
        return exc
    elif not isinstance(exc, Exception):
        return None  # a cancellation, an interrupt, an exit
    else:
        signal = _classify_own(exc, now, model)
        if signal is not None and signal.status is not None:
            return signal
    # Only the explicit cause of ``raise ... from``. The implicit context is whatever was being handled: a bug in an
    # ``except`` clause would look like the rate limit being handled, and be retried forever.
    cause = exc.__cause__
    if cause is None:
        return signal
    cause_result = _inspect(cause, now, model, depth + 1, seen)
    if signal is not None:
        if signal.gave_up and isinstance(cause_result, Signal) and not cause_result.gave_up:
            # an SDK has a single timeout class; the cause is about the connection
            return replace(signal, gave_up=False)
        return cause_result if isinstance(cause_result, AgentOSError) else signal
    attempts = parse_count(
        read_attribute(read_attribute(exc, "last_attempt"), "attempt_number")
    )  # tenacity's RetryError
    if isinstance(cause_result, Signal) and attempts > cause_result.retried + 1 and find_maker(type(exc), "tenacity"):
        return replace(cause_result, retried=attempts - 1)
    return cause_result


def _read_carried(exc: BaseException) -> Signal | AgentOSError | None:
    found = exc.__dict__.get(CARRIED)
    return found if isinstance(found, (Signal, AgentOSError)) else None


def _most_severe(found: list[Signal | AgentOSError | None]) -> Signal | AgentOSError | None:
    """Return the most severe result of the exceptions in a group."""
    signals = [one for one in found if isinstance(one, Signal)]
    if signals:
        return min(signals, key=lambda signal: _SEVERITY.index(signal.event))
    return next((one for one in found if one is not None), None)


def _classify_own(exc: Exception, now: float, model: str | None) -> Signal | None:
    """Return the signal of *exc* itself, without its causes."""
    answer, shown = parse_exception(exc)
    if answer is None:
        return None
    signal = _classify(answer, now, model)
    if signal.event is Event.OK:
        return None
    if shown:
        signal = replace(signal, evidence=_add_evidence(signal, f"exception {shown}"))
    return signal


def _add_evidence(signal: Signal, shown: str) -> tuple[str, ...]:
    # Without an answer the exception is the only evidence; with one it is the least relevant.
    return (shown, *signal.evidence) if signal.status is None else (*signal.evidence, shown)


def _classify(answer: Answer, now: float, model: str | None) -> Signal:
    # The URL takes precedence over the client's name: many providers are called with openai's client.
    dialect = None if answer.url is None else find_dialect(parse_host(answer.url))
    signal = classify(
        answer.status,
        answer.headers,
        answer.body,
        now=now,
        provider=answer.provider if dialect is None else dialect.name,
        url=answer.url,
        model=model or answer.model,
    )
    if not (answer.retried or answer.gave_up):
        return signal
    return replace(signal, retried=answer.retried, gave_up=answer.gave_up)
