"""A pool as the other parts of the package see it: one protocol for each user.

A ``CredentialCoordinator`` shows its users the public methods only. Other parts of the package get the object behind
it from ``runtime_of``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

if TYPE_CHECKING:
    from ..providers.signal import Signal
    from ..util.clock import Clock
    from .allowed_hosts import Origin
    from .completion_queue import CompletionQueue, QueuedRequest
    from .core.cost import Used
    from .core.records import Grant, Labels, LeaseRequest, Ticket
    from .credential import Credential
    from .lease import ItemLease
    from .redaction import Masker
    from .secret import Secret
    from .store_protocol import CredentialUpdate, QuotaUpdate, RemoteUser


class LeaseIssuer(Protocol):
    """The pool that a lease belongs to."""

    def take_now(self, ask: LeaseRequest, requester: str | None) -> Grant | None: ...

    def wait(self, ask: LeaseRequest, requester: str | None, timeout: float | None, instead: str) -> Grant: ...

    async def wait_async(self, ask: LeaseRequest, requester: str | None, timeout: float | None) -> Grant: ...

    def give_back(self, grant: Grant) -> bool: ...

    def on_lease_dropped(self, grant: Grant) -> bool: ...

    def settle(self, grant: Grant, used: Used) -> bool: ...

    def ignore_usage(self, grant: Grant) -> bool: ...

    def report_rate_limited(self, grant: Grant, retry_after: object, model: str | None) -> bool: ...

    def report_rejected(self, grant: Grant, reason: str) -> bool: ...

    def report_out_of_money(self, grant: Grant, reason: str) -> bool: ...

    def report_answer(self, grant: Grant, thing: object, *, sure: bool = True) -> tuple[Signal | None, bool]: ...

    def report_signal(self, grant: Grant, signal: Signal, *, sure: bool = True) -> tuple[Signal, bool]: ...

    def mark_unknown_outcome(self, grant: Grant) -> None: ...

    def is_held(self, grant: Grant) -> bool: ...

    def find_loss_reason(self, grant: Grant) -> str | None: ...

    def get_secret(self, name: str) -> Secret: ...


class TransportPool(Protocol):
    """The pool that grants leases to the calls of a transport, and is told how they went."""

    @property
    def clock(self) -> Clock: ...

    def current_item_lease(self) -> ItemLease | None:
        """The lease that the worker who calls was started with, if it was."""
        ...

    def on_wait(self) -> None:
        """A call has to wait for a key."""
        ...

    def find_labels(self, place: Origin) -> Labels:
        """What a credential must have to serve *place*. Raises ForeignHost if none may."""
        ...

    def credential_count(self) -> int:
        """How many credentials there are; it only grows."""
        ...

    def unsendable(self) -> list[str]:
        """The names of credentials whose secret no header can carry."""
        ...

    def get_credential(self, name: str) -> Credential: ...

    def find_base_urls(self, place: Origin) -> tuple[str, ...]:
        """The base URLs of credentials that lead to *place*."""
        ...

    def with_margin(self, ask: LeaseRequest, times: int) -> LeaseRequest: ...

    def take_now(self, ask: LeaseRequest, requester: str | None) -> Grant | None: ...

    def wait(self, ask: LeaseRequest, requester: str | None, timeout: float | None, instead: str) -> Grant: ...

    async def wait_async(self, ask: LeaseRequest, requester: str | None, timeout: float | None) -> Grant: ...

    def give_back(self, grant: Grant) -> bool: ...

    def settle_usage(self, grant: Grant, usage: Mapping[str, float], *, whole: bool = True) -> None: ...

    def report_signal(self, grant: Grant, signal: Signal, *, sure: bool = True) -> tuple[Signal, bool]: ...

    def wants_readings(self, grant: Grant) -> bool:
        """Whether it is worth reading what an answer that went well tells of the limits."""
        ...

    def mark_unknown_outcome(self, grant: Grant) -> None: ...

    def find_loss_reason(self, grant: Grant) -> str | None: ...

    def cooldown_remaining(self, grant: Grant, model: str | None) -> float:
        """Seconds until the quota of this lease is open again for *model*; infinite if no instant is known."""
        ...

    def masked(self, text: str, likely: str | None = None) -> str: ...


class RunPool(Protocol):
    """The pool that grants leases to the items of a run: ours, or an adapter of a foreign one."""

    def take_now(self, ask: LeaseRequest, requester: str | None) -> Any | None: ...

    def enqueue(self, ticket: QueuedRequest) -> None: ...

    def cancel(self, ticket: QueuedRequest) -> None: ...

    def on_timer(self, desk: CompletionQueue) -> None: ...

    def give_back(self, grant: Any) -> bool: ...

    def abandon(self, grants: Sequence[Any]) -> float | None: ...

    def report_rate_limited(self, grant: Any, retry_after: object, model: str | None) -> bool: ...

    def with_margin(self, ask: LeaseRequest, times: int) -> LeaseRequest: ...

    def get_secret(self, name: str) -> Secret: ...

    @property
    def masker(self) -> Masker: ...

    def masked(self, text: str) -> str: ...


class MaintainedPool(Protocol):
    """The pool that a maintenance thread looks after."""

    def due_at(self) -> float: ...

    def maintain(self, called: bool) -> None: ...

    def is_finished(self) -> bool: ...


class SharedCore(Protocol):
    """The core of a pool whose state is in a store, as its maintenance uses it."""

    def maintain(self, now: float, *, called: bool) -> Sequence[Ticket]: ...

    def due_at(self, now: float) -> float: ...

    def find_pause_reason(self, now: float) -> tuple[str, ...]: ...


class StoreView(Protocol):
    """The pool that a store keeps up to date. Called in the middle of a step."""

    def apply_updates(self, credentials: Sequence[CredentialUpdate], quotas: Sequence[QuotaUpdate]) -> None:
        """Take over what others did."""
        ...

    def on_session_lost(self, why: str) -> None:
        """The session has ended without us: none of its leases is ours any more."""
        ...

    def enrol_again(self) -> None:
        """The store is another one by now, and knows none of the credentials."""
        ...

    def held_tokens(self) -> Sequence[int]:
        """The leases this process holds."""
        ...

    def unreturned_tokens(self) -> Sequence[int]:
        """The leases this process holds, or has given back without the store knowing yet."""
        ...

    def note(self, text: str) -> None:
        """Something that people should be told."""
        ...

    def step_done(self) -> None:
        """What was done to the view in this step is true."""
        ...

    def step_failed(self) -> None:
        """What was done in this step is not true: what the store does not keep goes back to what it was."""
        ...


class PoolInterface(LeaseIssuer, TransportPool, RunPool, Protocol):
    """A pool of this package, as runs, engines and the command line use it."""

    is_used_by_run: bool  # a run takes leases here, and its workers may ask for one
    lease_ttl: float | None  # in a shared store; else leases last as long as this process

    def masked(self, text: str, likely: str | None = None) -> str: ...

    def reacquire(self, grant: Grant) -> Grant | None:
        """The lease, if it is in force though this process stood still; else another on its key. None: it is lost."""
        ...

    def delegate(self, lender: RemoteUser, out_for: float) -> None:
        """Leases that begin from now on may be used on other machines, for *out_for* seconds after this one is gone."""
        ...

    def valid_for(self) -> float:
        """For how many seconds leases may be used, if nothing is heard of the shared store any more."""
        ...

    def lock_lease(self, grant: Grant, mark: str) -> int | None:
        """A descriptor for a command with that *mark* to inherit; see ``Store.lock_lease``. The caller closes it."""
        ...

    def unlock_lease(self, grant: Grant) -> None:
        """The command has ended."""
        ...


class HasRuntime(Protocol):
    """A pool of this package: a ``CredentialCoordinator``, or a subclass of it."""

    def __pool_runtime__(self) -> PoolInterface: ...


def has_runtime(pool: object) -> TypeGuard[HasRuntime]:
    """Return whether *pool* is one of this package. Its class is asked: a mock answers to any name."""
    return hasattr(type(pool), "__pool_runtime__")


def runtime_of(pool: HasRuntime) -> PoolInterface:
    """Return the object behind a coordinator's public methods."""
    return pool.__pool_runtime__()
