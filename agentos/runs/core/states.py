"""The words of a run, and the table of what may become of an item."""

from __future__ import annotations

from enum import Enum, StrEnum


class ItemStatus(Enum):
    """What an item is. Every item is exactly one of these."""

    PENDING = "pending"  # not begun, or between two attempts
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # it had begun, and the run was stopped
    PARKED = "parked"  # it waited for a limit when the run was stopped


class Verdict(Enum):
    """What the end of an attempt means for its item."""

    DONE = "done"
    FAILED = "failed"
    RETRY = "retry"  # another try, after a pause
    LIMITED = "limited"  # a limit stopped it: it waits, and spends no try
    INTERRUPTED = "interrupted"
    LATE = "late"  # the attempt was given up before it ended: evidence, not a result


# What an item becomes by a verdict on its running attempt. LATE is not in here: it changes nothing.
STATUS_AFTER: dict[Verdict, ItemStatus] = {
    Verdict.DONE: ItemStatus.DONE,
    Verdict.FAILED: ItemStatus.FAILED,
    Verdict.RETRY: ItemStatus.PENDING,
    Verdict.LIMITED: ItemStatus.PENDING,
    Verdict.INTERRUPTED: ItemStatus.INTERRUPTED,
}

FINAL = frozenset({ItemStatus.DONE, ItemStatus.FAILED})


class Cause(StrEnum):
    """Why a run ended before its input did."""

    ASKED = "asked"  # shutdown(), or whoever took the results left
    SIGNAL = "signal"
    HALT = "halt"
    DEADLINE = "deadline"
    PARKED = "parked"  # every credential rests for longer than the run may wait
    CREDENTIALS = "credentials"  # none can ever serve what is left
    FAULT = "fault"  # of the journal, the input, the workers, or agentos


class Phase(Enum):
    """How far a run has come. It only goes down this list."""

    RUNNING = 0
    DRAINING = 1  # nothing more begins; what runs may end
    FORCED = 2  # what runs is cancelled, or left behind
    OVER = 3


class AttemptEnd(Enum):
    """How an attempt ended, as far as the run's rules care."""

    VALUE = "value"
    ERROR = "error"
    TRANSIENT = "transient"  # an error that another try may cure
    LIMIT = "limit"  # too many calls; or the key, not the item, was at fault
    NO_KEY = "no key"  # it waited in vain for a credential, within its own time
    STOPPED = "stopped"  # it gave up because the run stops
