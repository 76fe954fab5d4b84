"""Decide what a worker's exception means for the pool and for its item."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Callable
from typing import Any

from ...errors import (
    ForeignHost,
    Interrupted,
    LeaseLost,
    NeverFits,
    NoCredentialAvailable,
    NoUsableCredential,
    PoolClosed,
    RateLimited,
    Transient,
    WouldBlockLoop,
)
from ...pool.protocols import RunPool
from ...providers import Signal, from_exception
from ...providers.answers.date_and_number_formats import parse_delay
from ...providers.clients.client_table import NO_ANSWER, SDKS, find_kind, get_package
from ...providers.clients.exceptions import SENT_TO, find_own_error
from ...providers.signal import GENERIC_PROVIDERS
from ..core.outcome_rules import TOO_MANY, classify_signal, classify_trouble
from ..core.records import Attempt
from ..core.states import AttemptEnd, Trouble
from .attempt import PooledAttempt

log = logging.getLogger("agentos")

RetryRule = Callable[[BaseException], bool]

_MAX_TEXT = 20_000  # an exception may quote an answer of megabytes

_DEEPEST = 5  # causes followed
_SAYS_NOTHING = "Connection error."  # the message of openai's and anthropic's SDK, whatever happened
# Functions of asyncio, anyio and socket that a timed-out connection was cancelled in.
_CONNECTS = frozenset({"create_connection", "open_connection", "sock_connect", "_sock_connect", "connect_tcp"})

_UNSERVABLE = (
    NoUsableCredential,
    NeverFits,
    ForeignHost,
    WouldBlockLoop,
    PoolClosed,
)  # a retry would end the same


def is_transient(error: BaseException) -> bool:
    """The default retry rule: retry connection errors, timeouts and ``Transient``.

    With this rule, a provider's answer that it is overloaded or broken, and a missing answer, are retried too. An error
    that was raised ``from`` an agentos error is treated as that error.
    """
    return isinstance(find_own_error(error) or error, (ConnectionError, TimeoutError, Transient))


def report_error(attempt: Attempt, error: BaseException, pool: RunPool | None, wall: float) -> Signal | None:
    """Classify an exception of an SDK or HTTP client; report it to the pool of the attempt's lease, if it has one."""
    try:
        return _report_error(attempt, error, pool, wall)
    except BaseException as failure:  # noqa: BLE001 - reading an arbitrary exception may raise; the item still ends
        log.warning(
            "[COORDINATOR] the error of %s could not be classified (%s)", attempt.item.id, type(failure).__name__
        )
        return None


def _report_error(attempt: Attempt, error: BaseException, pool: RunPool | None, wall: float) -> Signal | None:
    grant = attempt.grant
    own = find_own_error(error)
    if isinstance(own, RateLimited) and grant is not None and pool is not None:
        reporter = attempt.reporter if isinstance(attempt, PooledAttempt) else None
        pool.report_rate_limited(grant, own.retry_after, own.model, reporter)
    if own is not None or attempt.cancelled is not None:
        return None
    if not isinstance(attempt, PooledAttempt) or grant is None:
        signal = from_exception(error, now=wall)
        if signal is not None and signal.event in TOO_MANY and grant is not None and pool is not None:
            pool.report_rate_limited(grant, signal.delay, None)
        return signal
    signal = from_exception(error, now=wall, model=grant.model)
    # Any code may raise a builtin OSError, so it proves nothing about the credential.
    if signal is not None and not (isinstance(error, OSError) and type(error).__module__ == "builtins"):
        attempt.item_lease().report_exception(error, signal, sure=_is_of_its_provider(signal, grant.key.quota.provider))
    return signal


def _is_of_its_provider(signal: Signal, provider: str | None) -> bool:
    """True if the answer certainly came from the provider of the lease's credential.

    A worker may call other services: a website that asks for a password must not retire a key. *provider* is the
    provider of earlier answers to this credential, if known.
    """
    return signal.provider not in GENERIC_PROVIDERS and provider in (None, *GENERIC_PROVIDERS, signal.provider)


def find_requested_delay(error: BaseException, signal: Signal | None, wall: float) -> float:
    """Return the delay that the provider asked for, or until a credential is free, as far as the error has it."""
    delay = None
    if signal is not None:
        delay = signal.delay
    elif isinstance(own := find_own_error(error), RateLimited):
        delay = parse_delay(own.retry_after, wall=wall)
    elif isinstance(own, NoCredentialAvailable):
        delay = parse_delay(own.next_free_in, wall=wall)
    return 0.0 if delay is None else delay


def classify_error(
    attempt: Attempt, error: BaseException, retry_if: RetryRule, signal: Signal | None = None
) -> AttemptEnd:
    """Return the kind of end of the attempt. *signal* is the result of ``report_error``.

    *retry_if* is not called where agentos has decided already, even if its error was wrapped since: a timed-out wait
    for a credential is not a failed try, and where no credential fits, a retry cannot help.
    """
    own = find_own_error(error)
    if isinstance(own, (NoCredentialAvailable, LeaseLost)):
        return AttemptEnd.NO_KEY
    if find_mismatch(attempt) is not None:
        return AttemptEnd.ERROR  # another key of the run would be refused there, too
    if isinstance(own, RateLimited) or (attempt.lease is not None and attempt.lease.trouble is not None):
        return AttemptEnd.LIMIT
    if isinstance(own, Interrupted):
        return AttemptEnd.STOPPED
    if isinstance(own, _UNSERVABLE):
        return AttemptEnd.ERROR
    ended = None if signal is None else classify_signal(signal.event, acted=False)
    if ended is AttemptEnd.LIMIT or (ended is not None and retry_if is is_transient):
        return ended
    try:
        transient = retry_if(error)
    except BaseException as failure:  # noqa: BLE001 - a user function; its text may quote a secret: log only its type
        log.warning(
            "[COORDINATOR] retry_if itself failed (%s); item %s is not retried",
            type(failure).__name__,
            attempt.item.id,
        )
        return AttemptEnd.ERROR
    return AttemptEnd.TRANSIENT if transient else AttemptEnd.ERROR


def find_trouble(
    attempt: Attempt, error: BaseException, ended: AttemptEnd, signal: Signal | None = None
) -> Trouble | None:
    """Return why the attempt got no result, if its item is not at fault. *signal* and *ended* are those of *error*."""
    lease = attempt.lease
    if signal is None and lease is not None and lease.trouble is not None:
        if lease.trouble in ("rejected", "spent"):
            return Trouble.REJECTED
        signal = lease.signal
    found = None if signal is None else classify_trouble(signal.event)
    if found is Trouble.UNREACHABLE and signal is not None and _is_own_timeout(error, signal):
        found = None
    if found is None and ended in (AttemptEnd.LIMIT, AttemptEnd.NO_KEY):
        return Trouble.LIMITED
    return found


def _is_own_timeout(error: BaseException, signal: Signal) -> bool:
    """True if a plain TimeoutError says nothing about the network: it did not end a connection that was being made."""
    if not signal.gave_up or "exception TimeoutError" not in signal.evidence:
        return False
    chain: list[BaseException | None] = [error]
    for _ in range(_DEEPEST):
        last = chain[-1]
        chain.append(None if last is None else last.__cause__ or last.__context__)
    return not any(
        frame.f_code.co_name in _CONNECTS
        for each in chain
        if each is not None
        for frame, _ in traceback.walk_tb(each.__traceback__)
    )


def find_mismatch(attempt: Attempt) -> str | None:
    """Return in words which provider refused the attempt's key, which is of another one; None if that is not so."""
    found: str | None = getattr(attempt.lease, "mismatch", None)
    return found


def format_error(error: BaseException) -> str:
    """Return the error's message, or its type if that is empty.

    If it was raised ``from`` an agentos error, that message follows. If an SDK wrapped it, that message stands alone:
    the SDK adds only "Connection error.", which is followed by its cause if the network was at fault. The address that
    did not answer is added.
    """
    text, own = _join_messages(error), find_own_error(error)
    if own is error:
        return text
    if own is None:
        if text == _SAYS_NOTHING and error.__cause__ is not None:
            text = f"{text} {type(error.__cause__).__name__}: {_join_messages(error.__cause__)}"[:_MAX_TEXT]
        address = _find_silent_address(error)
        return text if not address or address in text else f"{text} (no answer from {address})"
    cause = _join_messages(own)
    if get_package(type(error)) in SDKS:
        return cause
    return text if cause in text else f"{text}: {cause}"[:_MAX_TEXT]


def _find_silent_address(error: BaseException) -> str:
    """Return ``http://127.0.0.1:9`` for a request of httpx that got no answer from there; else an empty text."""
    cause: BaseException | None = error
    for _ in range(_DEEPEST):
        if cause is None:
            break
        if find_kind(type(cause))[1] in NO_ANSWER:
            with contextlib.suppress(Exception):  # it has no request, or that of another client
                request: Any = cause.request  # type: ignore[attr-defined]
                if SENT_TO in request.extensions:
                    return str(request.extensions[SENT_TO])
                url = request.url
                return f"{url.scheme}://{url.netloc.decode()}" if url.host else ""  # without user and password
        cause = cause.__cause__
    return ""


def _join_messages(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - an exception without readable text still fails its item
        text = ""
    return text[:_MAX_TEXT] or type(error).__name__
