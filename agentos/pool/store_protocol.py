"""What a pool asks of the place where its state is kept, so that other processes share it and the next one knows it.

The rules stay in ``_core``. The pool chooses on a *view* of the records; the store then does one atomic step at its own
time, in which the rules are applied to what is true at that moment. It may refuse; by then it has told the view what
others did, and the pool chooses again. A process is a *session*: its leases live as long as the session is renewed.

Instants are those of the pool's clock, which for a store on the same machine is the store's own. A store that has
another clock translates at its border.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..util.clock import Sleeper
from .core.limits.base import FOREVER
from .core.quota_codec import Record


class StoreBusy(Exception):
    """Another process is in the middle of a step. Nothing was done; try again in a moment."""


class TransientStoreError(Exception):
    """The store cannot be reached or written now (a full disk), and may be later. Nothing was done."""


@dataclass(frozen=True, slots=True)
class CredentialUpdate:
    """What the store has on a credential: whether it lives, and who else has leased it."""

    number: int
    life: str
    evidence: str
    since: float
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QuotaUpdate:
    """What the store has on a quota."""

    number: int
    record: Record


@dataclass(frozen=True, slots=True)
class CredentialIdentity:
    """A credential as it is made known to the store: never its secret."""

    fingerprint: str
    name: str
    quota: str


@dataclass(frozen=True, slots=True)
class EnrolledCredential:
    """What the store knows of a credential and its quota, and by which numbers."""

    credential: CredentialUpdate
    quota: QuotaUpdate


@dataclass(frozen=True, slots=True)
class QuotaReservation:
    """What a grant takes from its quota: the new record (None: as it was), and the limits whose cost is a guess."""

    record: Record | None
    guessed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """A request for one slot of one credential. The same *request* gets the same grant, however often it is sent."""

    request: str
    credential: int
    slots: int
    quota: int
    requester: str | None
    # Applies the rules to the view, at the store's time, with the claims of those who are ahead. None: not now.
    reserve: Callable[[float, Sequence[str]], QuotaReservation | None]
    # How many slots could start something now, of credentials that are wanted: as many of those ahead need not wait.
    free: Callable[[Callable[[int], bool]], int]
    still_waiting: bool  # others of this process wait besides
    sees_all: bool = False  # the rules ask for more than this credential and this quota
    since: float = FOREVER  # what the store has said then or later is new enough for a refusal


@dataclass(frozen=True, slots=True)
class SlotGranted:
    """The slot is the session's."""

    token: int
    at: float


@dataclass(frozen=True, slots=True)
class SlotRefused:
    """Not now. The view has what is true of the credential and its quota; not before that instant, if there is one.

    *why* is for people, where the reason is the store's own.
    """

    not_before: float | None = None
    why: str = ""


class RemoteUser(Protocol):
    """Who has leases of the pool used on other machines, by workers that stop when they hear no more of this one."""

    def disconnect_workers(self) -> None:
        """Let those workers hear nothing more. From any thread; must not wait."""
        ...


class Step(Protocol):
    """One atomic step. What was read in it is the truth, and can be changed."""

    @property
    def now(self) -> float:
        """The store's time."""
        ...

    def read(self, credential: int | None = None, quota: int | None = None) -> None:
        """Let the view see what is true of these, before the rules are applied to it."""
        ...

    def end(self, credential: int, token: int) -> bool:
        """End a lease of this session. False: it is not in force."""
        ...

    def write_quota(self, number: int, record: Record, *, opened: bool = False, eased: bool = False) -> None:
        """Keep what is known of a quota now. *opened*: every process that waits is told; *eased*: the first is."""
        ...

    def write_life(self, number: int, life: str, evidence: str, since: float) -> None:
        """Keep whether a credential lives."""
        ...

    def settle(self, credential: int, token: int) -> bool:
        """The cost of a lease is no guess any more. False: it is not in force."""
        ...

    def wait(self, wanted: Sequence[int] | None, idle_until: float | None, claim: str | None, *, passed: bool) -> None:
        """Say that this process waits for one of these credentials (None: for any): it is called at its turn.

        Before *idle_until* nothing that comes free would do; *claim* is the refill it has a right to before those
        behind it. *passed*: it was called, and there was nothing for it.
        """
        ...

    def stop_waiting(self) -> None:
        """Nobody in this process waits."""
        ...


StepAction = Callable[[Step], Any]


class Store(Protocol):
    """Where the pool's state is kept. Every method but the last three is one atomic step, or nothing happened.

    An act may be run again if its step failed: it leaves no trace but in the view, which is then read anew.
    """

    where: str  # as people are told; never a password
    valid_until: float  # when our leases must count as lost, if nothing is heard of the store until then
    next_refresh_at: float  # when somebody else's leases run out, as far as is known

    def fingerprint(self, secret: str) -> str:
        """By what the store knows a secret, which is never kept itself."""
        ...

    def enrol(self, card: CredentialIdentity) -> EnrolledCredential:
        """Make a credential known; what is known of it already. Insists for some seconds, then StoreUnavailable."""
        ...

    def try_grant(self, bid: SlotRequest) -> SlotGranted | SlotRefused:
        """Lease one slot, if the rules allow it at this moment."""
        ...

    def confirm_grant(self) -> None:
        """The lease that was just granted is in the caller's books: were it not, the next step would end it."""
        ...

    def submit(self, act: StepAction) -> None:
        """Do *act*, now or, if the store is busy or in trouble, at the beginning of the next step."""
        ...

    def maintain(self) -> bool:
        """Renew the session if that is due, do what was put off, end what has run out. False: nothing was due."""
        ...

    def refresh(self, since: float = FOREVER) -> bool:
        """Tell the view what others did since the last look. Cheap when that is nothing: then False.

        What the store has said at the instant *since* or later is new enough, and need not be asked for again.
        """
        ...

    def next_renewal_at(self) -> float:
        """When ``maintain`` is due, even if nobody waits."""
        ...

    def busy_delay(self) -> float:
        """How long to leave a store alone that was busy: longer each time."""
        ...

    def wake_maintenance(self) -> None:
        """Wake whoever calls ``maintain``: it may be due earlier than was thought."""
        ...

    def is_expired(self) -> bool:
        """Whether our leases must count as lost already."""
        ...

    def delegate(self, lender: RemoteUser, out_for: float) -> None:
        """Leases that begin from now on may be used on other machines, and so do not end with this process.

        The workers there stop *out_for* seconds after they last heard of it. What is still in use when it leaves, or
        is gone without leaving, ends by its time: so many seconds later, or when the session was not renewed.
        """
        ...

    def abandon(self, tokens: Collection[int]) -> None:
        """Renew these leases no more: their holders were given up and still run. Others are renewed as before.

        The store frees them when their time to live is over, unless they are ended before. Raises nothing.
        """
        ...

    def lock_lease(self, token: int, mark: str) -> int | None:
        """A descriptor for a command with that *mark* to inherit. None: leases end by their time to live.

        If this process is killed, the lease is not freed while any process has it open. Raises OSError.
        """
        ...

    def unlock_lease(self, token: int) -> None:
        """The command has ended."""
        ...

    def on_lease_replaced(self, token: int, to: int) -> None:
        """The lease was lost, and taken again with another token: its command goes on."""
        ...

    def leave(self) -> None:
        """End the session and all its leases at once, but for those that others may be using on other machines.

        Abandoned leases end, too: this is for the end of the process. From any thread, at any time; again does nothing.
        """
        ...

    def close(self) -> None:
        """Leave, and let go of the store. Abandoned leases end by their time: the process goes on."""
        ...


class StoreWakeup(Sleeper, Protocol):
    """What the housekeeper of a shared pool waits on: rung from this process, or by others through the store."""

    was_notified: bool  # by another process, since whoever waits on it has looked

    def close(self) -> None: ...
