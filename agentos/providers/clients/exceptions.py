"""What a client's exception, or its answer, means: read by shape, so that no client has to be installed.

Clients are known by the names of their classes and of the modules these come from, and by the attributes they
document. Nothing is imported, awaited or downloaded: a body counts only if the client has read it already. An
attribute that cannot be read is not there.

Three steps, each with its modules: *which kind* of exception it is (``clients``), *what answer* it carries (``raised``,
or ``returned`` for what is no exception), and what that answer means, which is for
:func:`~agentos.providers.classify.classify` to say. Here is the walk: from an exception to its causes, into groups.
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

_DEEPEST = 5  # causes below the exception itself
_MOST = 64  # exceptions looked at in all: groups may hold groups

# Of several signals in one group the gravest counts, by how much would be lost if it went unheard.
_GRAVITY = (
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


# The attribute of an exception that was raised in another process, with what it was taken for there: of what it carried
# (the answer, its causes) not all can travel.
CARRIED = "_agentos_meaning"


def from_exception(exc: BaseException, *, now: float | None = None, model: str | None = None) -> Signal | None:
    """What *exc* says of the credential it was raised with; None if it is not about a call to a provider.

    Known are the exceptions of openai, anthropic, google-genai, mistralai, litellm, botocore, httpx, httpx2, requests,
    aiohttp, urllib and the builtin ones of the network, as well as any that carries a response (a status and headers).
    An exception that was raised ``from`` one of those counts as that one, up to five deep; of a group, the gravest
    signal in it. agentos' own errors are None: whoever raised them has decided already. So is a connection error that
    was raised ``from`` one of them (see :func:`find_own_error`), and an exception about an answer in which nothing was
    wrong. *now* is the hour, in epoch seconds; this moment, unless told. Never raises.
    """
    try:
        found = _inspect(exc, time.time() if now is None else now, model, 0, set())
    except Exception:  # noqa: BLE001 - an error while looking at an error would hide the one that matters
        return None
    return found if isinstance(found, Signal) else None


def find_own_error(exc: BaseException) -> AgentOSError | None:
    """The error of agentos that *exc* is, or was raised ``from``, up to five deep; None if there is none.

    A client whose transport is ours may wrap what that raises, and anthropic's calls it a connection error. An answer
    of a provider that lies before it counts instead, as does a signal beside it in a group. Never raises.
    """
    try:
        carried = _carried(exc)
        if carried is not None:
            return carried if isinstance(carried, AgentOSError) else None
        if isinstance(exc, AgentOSError):
            return exc
        if exc.__cause__ is None and not isinstance(exc, BaseExceptionGroup):
            return None  # as nearly all are: it need not be looked at any closer
        found = _inspect(exc, 0.0, None, 0, set())
    except Exception:  # noqa: BLE001 - see above
        return None
    return found if isinstance(found, AgentOSError) else None


def read_signal(thing: object, *, now: float, model: str | None = None) -> Signal | None:
    """What *thing* says, whatever a worker has in hand; None if it says nothing.

    A Signal is returned as it is, an exception goes to :func:`from_exception`. A response of the same clients is
    classified by its status, its headers and its body, the last only if it has been read: raw responses of an SDK, the
    dicts of boto, and any dict with ``status``, ``headers`` and perhaps ``body`` too. An SDK's parsed answer has no
    headers, but tells its usage. Never raises.
    """
    try:
        if isinstance(thing, Signal):
            return thing
        if isinstance(thing, BaseException):
            return from_exception(thing, now=now, model=model)
        answer = parse_result(thing)
        return None if answer is None else _classified(answer, now, model)
    except Exception:  # noqa: BLE001 - somebody else's object: what cannot be read says nothing
        return None


def _inspect(
    exc: BaseException, now: float, model: str | None, depth: int, seen: set[int]
) -> Signal | AgentOSError | None:
    """What *exc* comes down to: what a provider or the network said, or what agentos had decided."""
    if id(exc) in seen or depth > _DEEPEST or len(seen) >= _MOST:
        return None
    seen.add(id(exc))
    carried = _carried(exc)
    if carried is not None:
        return carried
    signal = None
    if isinstance(exc, BaseExceptionGroup):
        inside = _gravest([_inspect(one, now, model, depth + 1, seen) for one in exc.exceptions[:_MOST]])
        if inside is not None:
            return inside
    elif isinstance(exc, AgentOSError):
        return exc
    elif not isinstance(exc, Exception):
        return None  # a cancellation, an interrupt, an exit
    else:
        signal = _own_signal(exc, now, model)
        if signal is not None and signal.status is not None:
            return signal
    # Only what the author tied to it by ``raise ... from``. The implicit context is whatever happened to be handled
    # just then: a bug in an ``except`` clause would be taken for the rate limit it stumbled over, and tried for ever.
    cause = exc.__cause__
    if cause is None:
        return signal
    below = _inspect(cause, now, model, depth + 1, seen)
    if signal is not None:
        if signal.gave_up and isinstance(below, Signal) and not below.gave_up:
            return replace(signal, gave_up=False)  # an SDK has one timeout for all; its cause is about the connection
        return below if isinstance(below, AgentOSError) else signal
    attempts = parse_count(
        read_attribute(read_attribute(exc, "last_attempt"), "attempt_number")
    )  # tenacity's RetryError
    if isinstance(below, Signal) and attempts > below.retried + 1 and find_maker(type(exc), "tenacity"):
        return replace(below, retried=attempts - 1)
    return below


def _carried(exc: BaseException) -> Signal | AgentOSError | None:
    found = exc.__dict__.get(CARRIED)
    return found if isinstance(found, (Signal, AgentOSError)) else None


def _gravest(found: list[Signal | AgentOSError | None]) -> Signal | AgentOSError | None:
    """Of what the exceptions in a group come down to, what counts."""
    signals = [one for one in found if isinstance(one, Signal)]
    if signals:
        return min(signals, key=lambda signal: _GRAVITY.index(signal.event))
    return next((one for one in found if one is not None), None)


def _own_signal(exc: Exception, now: float, model: str | None) -> Signal | None:
    """What *exc* itself says, whatever it was raised from."""
    answer, shown = parse_exception(exc)
    if answer is None:
        return None
    signal = _classified(answer, now, model)
    if signal.event is Event.OK:
        return None
    if shown:
        signal = replace(signal, evidence=_evidence_with(signal, f"exception {shown}"))
    return signal


def _evidence_with(signal: Signal, shown: str) -> tuple[str, ...]:
    # Without an answer the exception is all there is; beside one it is the least telling.
    return (shown, *signal.evidence) if signal.status is None else (*signal.evidence, shown)


def _classified(answer: Answer, now: float, model: str | None) -> Signal:
    # The address goes before the client's name: many providers are asked with openai's client.
    there = None if answer.url is None else find_dialect(parse_host(answer.url))
    signal = classify(
        answer.status,
        answer.headers,
        answer.body,
        now=now,
        provider=answer.provider if there is None else there.name,
        url=answer.url,
        model=model or answer.model,
    )
    if not (answer.retried or answer.gave_up):
        return signal
    return replace(signal, retried=answer.retried, gave_up=answer.gave_up)
