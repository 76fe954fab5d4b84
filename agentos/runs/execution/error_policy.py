"""What an exception of a worker means: for the pool, and for its item."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

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
from ...providers.answers.number_formats import parse_delay
from ...providers.clients.client_table import SDKS, get_package
from ...providers.clients.exceptions import find_own_error
from ...providers.signal import GENERIC_PROVIDERS
from ..core.outcome_rules import TOO_MANY, classify_signal
from ..core.records import Attempt
from ..core.states import AttemptEnd
from .attempt import PooledAttempt

log = logging.getLogger("agentos")

RetryRule = Callable[[BaseException], bool]

_MAX_TEXT = 20_000  # an answer of ten megabytes in an exception is of no use to anybody

_UNSERVABLE = (
    NoUsableCredential,
    NeverFits,
    ForeignHost,
    WouldBlockLoop,
    PoolClosed,
)  # the next try would end the same


def is_transient(error: BaseException) -> bool:
    """The default rule: connection errors, timeouts and ``Transient`` are worth another try, nothing else is.

    Besides, with this rule, an answer of a provider that it is overloaded or broken, and no answer at all. An error
    that was raised ``from`` one of agentos' own is worth what that one is.
    """
    return isinstance(find_own_error(error) or error, (ConnectionError, TimeoutError, Transient))


def report_error(attempt: Attempt, error: BaseException, lessor: RunPool | None, wall: float) -> Signal | None:
    """What an exception of an SDK or an HTTP client means, told to the pool of the attempt's lease, if it has one."""
    try:
        return _report_error(attempt, error, lessor, wall)
    except BaseException as failure:  # noqa: BLE001 - an exception may be any object; its item ends by it all the same
        log.warning("[COORDINATOR] what %s means could not be found out (%s)", attempt.item.id, type(failure).__name__)
        return None


def _report_error(attempt: Attempt, error: BaseException, lessor: RunPool | None, wall: float) -> Signal | None:
    grant = attempt.grant
    own = find_own_error(error)
    if isinstance(own, RateLimited) and grant is not None and lessor is not None:
        lessor.report_rate_limited(grant, own.retry_after, own.model)
    if own is not None or attempt.cancelled is not None:
        return None
    if not isinstance(attempt, PooledAttempt) or grant is None:
        signal = from_exception(error, now=wall)
        if signal is not None and signal.event in TOO_MANY and grant is not None and lessor is not None:
            lessor.report_rate_limited(grant, signal.delay, None)
        return signal
    signal = from_exception(error, now=wall, model=grant.model)
    # An error that any code may raise, not only a provider's client, says nothing of the credential.
    if signal is not None and not (isinstance(error, OSError) and type(error).__module__ == "builtins"):
        attempt.item_lease().report_exception(error, signal, sure=_is_of_its_provider(signal, grant.key.quota.provider))
    return signal


def _is_of_its_provider(signal: Signal, provider: str | None) -> bool:
    """Whether it was surely the provider of the lease's credential that answered.

    A worker may well ask others: a website that wants a password must not cost a key its life. *provider* is whose
    answers were reported before, if any were.
    """
    return signal.provider not in GENERIC_PROVIDERS and provider in (None, *GENERIC_PROVIDERS, signal.provider)


def find_requested_delay(error: BaseException, signal: Signal | None, wall: float) -> float:
    """How long the provider asked to be left alone, or no credential will be free, as far as the error tells."""
    told = None
    if signal is not None:
        told = signal.delay
    elif isinstance(own := find_own_error(error), RateLimited):
        told = parse_delay(own.retry_after, wall=wall)
    elif isinstance(own, NoCredentialAvailable):
        told = parse_delay(own.next_free_in, wall=wall)
    return 0.0 if told is None else told


def classify_error(
    attempt: Attempt, error: BaseException, retry_if: RetryRule, signal: Signal | None = None
) -> AttemptEnd:
    """How the attempt ended, for the run's rules. *signal* is what ``report_error`` made of the error.

    *retry_if* is not asked where agentos has decided already, whatever its error was wrapped in since: a wait for a
    credential that ran out is no failed try, and where no credential will do, no other try helps.
    """
    own = find_own_error(error)
    if isinstance(own, (NoCredentialAvailable, LeaseLost)):
        return AttemptEnd.NO_KEY
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
    except BaseException as failure:  # noqa: BLE001 - the user's function; its text may quote a secret, so only its kind
        log.warning(
            "[COORDINATOR] retry_if itself failed (%s); item %s is not tried again",
            type(failure).__name__,
            attempt.item.id,
        )
        return AttemptEnd.ERROR
    return AttemptEnd.TRANSIENT if transient else AttemptEnd.ERROR


def format_error(error: BaseException) -> str:
    """The error as a person reads it: its own words, or its kind if it has none.

    If it was raised ``from`` an error of agentos, that one's words follow. Where an SDK wrapped it they stand alone:
    "Connection error." is all that it would say.
    """
    text, own = _join_messages(error), find_own_error(error)
    if own is None or own is error:
        return text
    cause = _join_messages(own)
    if get_package(type(error)) in SDKS:
        return cause
    return text if cause in text else f"{text}: {cause}"[:_MAX_TEXT]


def _join_messages(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - an exception whose text cannot be had is still a failure of its item
        text = ""
    return text[:_MAX_TEXT] or type(error).__name__


def format_traceback(error: BaseException) -> str:
    """Where it happened; the end of it, if it is long."""
    try:
        text = "".join(traceback.format_exception(error, limit=-20))
    except BaseException:  # noqa: BLE001 - see above
        return type(error).__name__
    return text[-_MAX_TEXT:]
