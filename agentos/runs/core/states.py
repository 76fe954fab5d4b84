"""The states of items, attempts and runs, and the table of item transitions."""

from __future__ import annotations

from enum import Enum, StrEnum


class ItemStatus(Enum):
    """The status of an item; every item has exactly one."""

    PENDING = "pending"  # not started, or between two attempts
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # started, and the run was stopped
    PARKED = "parked"  # waiting for a limit when the run was stopped


class Verdict(Enum):
    """The effect of an attempt's end on its item."""

    DONE = "done"
    FAILED = "failed"
    RETRY = "retry"  # another attempt, after a backoff
    LIMITED = "limited"  # stopped by a limit: it waits, and loses no retry
    INTERRUPTED = "interrupted"
    LATE = "late"  # the attempt had been abandoned: recorded, but not a result


# The status of an item after the verdict on its running attempt. LATE changes nothing.
STATUS_AFTER: dict[Verdict, ItemStatus] = {
    Verdict.DONE: ItemStatus.DONE,
    Verdict.FAILED: ItemStatus.FAILED,
    Verdict.RETRY: ItemStatus.PENDING,
    Verdict.LIMITED: ItemStatus.PENDING,
    Verdict.INTERRUPTED: ItemStatus.INTERRUPTED,
}

FINAL = frozenset({ItemStatus.DONE, ItemStatus.FAILED})


class Cause(StrEnum):
    """The reason why a run ended before its input did."""

    ASKED = "asked"  # shutdown(), or the consumer of the results left
    SIGNAL = "signal"
    HALT = "halt"
    DEADLINE = "deadline"
    PARKED = "parked"  # every credential is cooling down for longer than the run may wait
    CREDENTIALS = "credentials"  # none can ever serve the remaining items
    FAULT = "fault"  # an error of the journal, the input, the workers, or agentos


class Trouble(StrEnum):
    """The reason why an attempt got no result, where its item is not at fault."""

    LIMITED = "limited"  # by a rate limit, or by the lack of a free key
    REJECTED = "rejected"  # 401, 402, 403: its key was refused
    UNREACHABLE = "unreachable"  # no answer at all


class Phase(Enum):
    """The phase of a run. It only advances."""

    RUNNING = 0
    DRAINING = 1  # nothing starts; running attempts may end
    FORCED = 2  # running attempts are cancelled, or abandoned
    OVER = 3


class AttemptEnd(Enum):
    """The kinds of end of an attempt, for the run's rules."""

    VALUE = "value"
    ERROR = "error"
    TRANSIENT = "transient"  # an error that a retry may cure
    LIMIT = "limit"  # rate-limited; or the key, not the item, was at fault
    NO_KEY = "no key"  # no credential became free within its own timeout
    STOPPED = "stopped"  # it gave up because the run stops
