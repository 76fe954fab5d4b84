"""What an exception of a worker means for its item."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

from ..errors import Interrupted, RateLimited, Transient
from ._core.records import Attempt
from ._core.states import Ended

log = logging.getLogger("agentos")

RetryRule = Callable[[BaseException], bool]

_LONGEST_TEXT = 20_000  # an answer of ten megabytes in an exception is of no use to anybody


def is_transient(error: BaseException) -> bool:
    """The default rule: connection errors, timeouts and ``Transient`` are worth another try, nothing else is."""
    return isinstance(error, (ConnectionError, TimeoutError, Transient))


def judge(attempt: Attempt, error: BaseException, retry_if: RetryRule) -> Ended:
    """How the attempt ended, for the run's rules."""
    if isinstance(error, RateLimited) or (attempt.lease is not None and attempt.lease.trouble is not None):
        return Ended.LIMIT
    if isinstance(error, Interrupted):
        return Ended.STOPPED
    try:
        transient = retry_if(error)
    except Exception as failure:  # noqa: BLE001 - the user's function; its text may quote a secret, so only its kind
        log.warning(
            "[COORDINATOR] retry_if itself failed (%s); item %s is not tried again",
            type(failure).__name__,
            attempt.item.id,
        )
        return Ended.ERROR
    return Ended.TRANSIENT if transient else Ended.ERROR


def text_of(error: BaseException) -> str:
    """The error as a person reads it: its own words, or its kind if it has none."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an exception whose text cannot be had is still a failure of its item
        text = ""
    return text[:_LONGEST_TEXT] or type(error).__name__


def trace_of(error: BaseException) -> str:
    """Where it happened; the end of it, if it is long."""
    try:
        text = "".join(traceback.format_exception(error, limit=-20))
    except Exception:  # noqa: BLE001 - see above
        return type(error).__name__
    return text[-_LONGEST_TEXT:]
