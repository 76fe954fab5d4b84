"""The protocol of a store: it keeps a pool's state for other processes and for later ones.

The rules stay in ``core``. The pool selects a key on a *view* of the records; the store then executes one atomic step
at its own time, in which the rules are applied to the current records. It may refuse; the view then has the changes of
other processes, and the pool selects again. A process is a *session*: its leases live as long as the session is
renewed.

Instants are those of the pool's clock, which a store on the same machine shares. A store with another clock converts
them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..util.clock import Sleeper
from .core.limits.base import FOREVER
from .core.quota_codec import Record


class StoreBusy(Exception):
    """Another process executes a step. Nothing was done; try again in a moment."""


class TransientStoreError(Exception):
    """The store cannot be reached or written at present (a full disk). Nothing was done."""


@dataclass(frozen=True, slots=True)
class CredentialUpdate:
    """The store's state of a credential: its life, and its holders in other processes with their slots."""

    number: int
    life: str
    evidence: str
    since: float
    holders: tuple[str, ...]
    slots: tuple[int, ...]  # that each holder's process states, or AUTO


@dataclass(frozen=True, slots=True)
class QuotaUpdate:
    """The store's record of a quota."""

    number: int
    record: Record


@dataclass(frozen=True, slots=True)
class CredentialIdentity:
    """The identity of a credential in the store, without its secret."""

    fingerprint: str
    name: str
    quota: str


@dataclass(frozen=True, slots=True)
class EnrolledCredential:
    """The store's state and numbers of a credential and its quota."""

    credential: CredentialUpdate
    quota: QuotaUpdate


@dataclass(frozen=True, slots=True)
class QuotaReservation:
    """The new record of a quota after a grant (None: unchanged), and the limits with an estimated cost."""

    record: Record | None
    guessed: tuple[str, ...] = ()


def name_request(process: str, number: int, stated: int) -> str:
    """Return the unique name of a request. It ends with the slots that its process states, or AUTO.

    The name is all that a store keeps of a request, so that every process can read them where the lease is.
    """
    return f"{process}.{number}.{stated}"


def read_stated_slots(request: str) -> int:
    """Return the slots with which a lease was requested; 1 if the process was of a version that did not write them."""
    parts = request.split(".")
    return int(parts[2]) if len(parts) == 3 else 1


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """A request for one slot of one credential. The same *request* gets the same grant however often it is sent."""

    request: str  # made by ``name_request``
    credential: int
    slots: int  # how many leases this process may hold
    quota: int
    requester: str | None
    # Applies the rules to the view, at the store's time, with the claims of the processes ahead. None: not now.
    reserve: Callable[[float, Sequence[str]], QuotaReservation | None]
    # Returns how many slots of wanted credentials could start something now: as many processes ahead need not wait.
    free: Callable[[Callable[[int], bool]], int]
    still_waiting: bool  # other requests of this process wait
    sees_all: bool = False  # the rules need more than this credential and this quota
    since: float = FOREVER  # updates from this instant on are recent enough for a refusal
    learned: int = 1  # the slots of processes that infer their number


@dataclass(frozen=True, slots=True)
class SlotGranted:
    """The slot was granted."""

    token: int
    at: float


@dataclass(frozen=True, slots=True)
class SlotRefused:
    """The slot was refused; the view is current. Do not retry before *not_before*, if set.

    *why* is for people, if the store itself is the reason.
    """

    not_before: float | None = None
    why: str = ""


class RemoteUser(Protocol):
    """A component that lets remote workers use this pool's leases; they stop when they lose contact."""

    def disconnect_workers(self) -> None:
        """Cut the contact to those workers. Callable from any thread; must not block."""
        ...


class Step(Protocol):
    """One atomic step. What is read in it is current and can be changed."""

    @property
    def now(self) -> float:
        """The store's time."""
        ...

    def read(self, credential: int | None = None, quota: int | None = None) -> None:
        """Load these records into the view before the rules are applied."""
        ...

    def end(self, credential: int, token: int) -> bool:
        """End a lease of this session. False: it is not in force."""
        ...

    def write_quota(self, number: int, record: Record, *, opened: bool = False, eased: bool = False) -> None:
        """Write the record of a quota. *opened*: notify every waiting process; *eased*: notify the first."""
        ...

    def write_life(self, number: int, life: str, evidence: str, since: float) -> None:
        """Write the life of a credential."""
        ...

    def settle(self, credential: int, token: int) -> bool:
        """Note that the cost of a lease is known. False: it is not in force."""
        ...

    def wait(self, wanted: Sequence[int] | None, idle_until: float | None, claim: str | None, *, passed: bool) -> None:
        """Record that this process waits for one of these credentials (None: any); it is notified in its turn.

        Nothing can start before *idle_until*; *claim* is the refill it has a right to before the processes behind it.
        *passed*: it was notified, and nothing was usable.
        """
        ...

    def stop_waiting(self) -> None:
        """Record that no request of this process waits."""
        ...


StepAction = Callable[[Step], Any]


class Store(Protocol):
    """Keeps the pool's state. Every method but the last three is one atomic step, or does nothing.

    An act may run again if its step failed: its only effect is on the view, which is then read again.
    """

    where: str  # for display, without a password
    valid_until: float  # when this session's leases are lost without contact to the store
    next_refresh_at: float  # when leases of another session expire, as far as known

    def fingerprint(self, secret: str) -> str:
        """Return the fingerprint under which the store knows a secret; the secret is never stored."""
        ...

    def enrol(self, card: CredentialIdentity) -> EnrolledCredential:
        """Register a credential and return its state. Retries for some seconds, then raises StoreUnavailable."""
        ...

    def try_grant(self, bid: SlotRequest) -> SlotGranted | SlotRefused:
        """Lease one slot if the rules allow it now."""
        ...

    def confirm_grant(self) -> None:
        """Confirm that the caller has recorded the lease just granted: else the next step would end it."""
        ...

    def submit(self, act: StepAction) -> None:
        """Execute *act* now or, if the store is busy or unavailable, at the start of the next step."""
        ...

    def maintain(self) -> bool:
        """Renew the session if due, execute deferred acts, end what has expired. False: nothing was due."""
        ...

    def refresh(self, since: float = FOREVER) -> bool:
        """Load the changes of other processes into the view. False, and cheap: there are none.

        What the store sent at the instant *since* or later is recent enough and is not requested again.
        """
        ...

    def next_renewal_at(self) -> float:
        """Return when ``maintain`` is due even if no request waits."""
        ...

    def busy_delay(self) -> float:
        """Return how long to wait after the store was busy: longer each time."""
        ...

    def wake_maintenance(self) -> None:
        """Wake the thread that calls ``maintain``: it may be due earlier."""
        ...

    def is_expired(self) -> bool:
        """Return True if this session's leases are already lost."""
        ...

    def delegate(self, lender: RemoteUser, out_for: float) -> None:
        """Let new leases be used on other machines, so that they do not end with this process.

        The workers there stop *out_for* seconds after they lost contact. Leases still in use when this process leaves,
        or is gone without leaving, end that many seconds later, or when the session expires.
        """
        ...

    def abandon(self, tokens: Collection[int]) -> None:
        """Stop renewing these leases: their holders were given up and still run. Others are renewed as before.

        The store frees them when their time to live is over, unless they end before. Raises nothing.
        """
        ...

    def lock_lease(self, token: int, mark: str) -> int | None:
        """Return a descriptor for a command with that *mark* to inherit. None: leases end by their time to live.

        If this process is killed, the lease is not freed while any process has the descriptor open. Raises OSError.
        """
        ...

    def unlock_lease(self, token: int) -> None:
        """Note that the command has ended."""
        ...

    def on_lease_replaced(self, token: int, to: int) -> None:
        """Note that a lost lease was taken again under another token: its command continues."""
        ...

    def leave(self) -> None:
        """End the session and its leases at once, except those that may be in use on other machines.

        Abandoned leases end too: this is for the end of the process. Callable from any thread and more than once.
        """
        ...

    def close(self) -> None:
        """Leave and close the store. Abandoned leases end by their time to live: the process continues."""
        ...


class StoreWakeup(Sleeper, Protocol):
    """The wake-up of a shared pool's maintenance thread, from this process or from others through the store."""

    was_notified: bool  # by another process, since the waiting thread last checked

    def close(self) -> None: ...
