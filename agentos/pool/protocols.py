"""Protocols of a pool for the other parts of the package, one for each user.

A ``CredentialCoordinator`` shows its users the public methods only. Other parts of the package get the object behind it
from ``runtime_of``.
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

    def take_now(self, request: LeaseRequest, requester: str | None) -> Grant | None: ...

    def wait(self, request: LeaseRequest, requester: str | None, timeout: float | None, instead: str) -> Grant: ...

    async def wait_async(self, request: LeaseRequest, requester: str | None, timeout: float | None) -> Grant: ...

    def give_back(self, grant: Grant) -> bool: ...

    def on_lease_dropped(self, grant: Grant) -> bool: ...

    def settle(self, grant: Grant, used: Used) -> bool: ...

    def ignore_usage(self, grant: Grant) -> bool: ...

    def report_rate_limited(
        self, grant: Grant, retry_after: object, model: str | None, reporter: str | None = None
    ) -> bool: ...

    def report_rejected(self, grant: Grant, reason: str, reporter: str | None = None) -> bool: ...

    def report_out_of_money(self, grant: Grant, reason: str, reporter: str | None = None) -> bool: ...

    def report_answer(self, grant: Grant, thing: object, *, sure: bool = True) -> tuple[Signal | None, bool]: ...

    def report_signal(self, grant: Grant, signal: Signal, *, sure: bool = True) -> tuple[Signal, bool]: ...

    def find_mismatch(self, grant: Grant, signal: Signal) -> str | None:
        """Return in words which provider refused the key of which other one; None if that is not so."""
        ...

    def mark_unknown_outcome(self, grant: Grant) -> None: ...

    def is_held(self, grant: Grant) -> bool: ...

    def find_loss_reason(self, grant: Grant) -> str | None: ...

    def get_secret(self, name: str) -> Secret: ...


class TransportPool(Protocol):
    """The pool that grants leases to the calls of a transport and receives their outcomes."""

    @property
    def clock(self) -> Clock: ...

    def current_item_lease(self) -> ItemLease | None:
        """Return the lease that the calling worker was started with, if any."""
        ...

    def on_wait(self) -> None:
        """Note that a call has to wait for a key."""
        ...

    def find_labels(self, place: Origin) -> Labels:
        """Return the labels that a credential needs to serve *place*. Raises ForeignHost if none may."""
        ...

    def credential_count(self) -> int:
        """Return the number of credentials; it only grows."""
        ...

    def unsendable(self) -> list[str]:
        """Return the names of credentials whose secret no header can carry."""
        ...

    def get_credential(self, name: str) -> Credential: ...

    def find_base_urls(self, place: Origin) -> tuple[str, ...]:
        """Return the base URLs of credentials that lead to *place*."""
        ...

    def with_margin(self, request: LeaseRequest, times: int) -> LeaseRequest: ...

    def take_now(self, request: LeaseRequest, requester: str | None) -> Grant | None: ...

    def wait(self, request: LeaseRequest, requester: str | None, timeout: float | None, instead: str) -> Grant: ...

    async def wait_async(self, request: LeaseRequest, requester: str | None, timeout: float | None) -> Grant: ...

    def give_back(self, grant: Grant) -> bool: ...

    def settle_usage(self, grant: Grant, usage: Mapping[str, float], *, whole: bool = True) -> None: ...

    def report_signal(self, grant: Grant, signal: Signal, *, sure: bool = True) -> tuple[Signal, bool]: ...

    def wants_readings(self, grant: Grant) -> bool:
        """Return True if the limits reported in a successful answer are worth reading."""
        ...

    def mark_unknown_outcome(self, grant: Grant) -> None: ...

    def find_loss_reason(self, grant: Grant) -> str | None: ...

    def plan_call(self, grant: Grant, request: LeaseRequest, after: float, within: float) -> float:
        """Return the seconds until a lease may make a call, *after* so many at least: its next one, or a refused one.

        The call takes its cost from the learned limits, unless it cannot start *within* so many seconds.
        """
        ...

    def masked(self, text: str, likely: str | None = None) -> str: ...


class GatewayPool(TransportPool, Protocol):
    """The pool that serves the requests of a gateway."""

    @property
    def masker(self) -> Masker: ...

    def find_quota(self, name: str) -> str:
        """Return the quota of the credential of that name."""
        ...

    def find_quota_labels(self, quota: str) -> Labels:
        """Return the labels that only the credentials of *quota* have."""
        ...

    def seconds_until_open(self, request: LeaseRequest) -> float:
        """Return the seconds until a key is open to *request*; 0 if one is, even in use; infinite if none."""
        ...


class RunPool(Protocol):
    """The pool that grants leases to the items of a run: ours, or an adapter of a foreign one."""

    def take_now(self, request: LeaseRequest, requester: str | None) -> Any | None: ...

    def enqueue(self, ticket: QueuedRequest) -> None: ...

    def cancel(self, ticket: QueuedRequest) -> None: ...

    def on_timer(self, queue: CompletionQueue) -> None: ...

    def give_back(self, grant: Any) -> bool: ...

    def abandon(self, grants: Sequence[Any]) -> float | None: ...

    def report_rate_limited(
        self, grant: Any, retry_after: object, model: str | None, reporter: str | None = None
    ) -> bool: ...

    def with_margin(self, request: LeaseRequest, times: int) -> LeaseRequest: ...

    def get_secret(self, name: str) -> Secret: ...

    @property
    def masker(self) -> Masker: ...

    def masked(self, text: str) -> str: ...


class MaintainedPool(Protocol):
    """The pool that a maintenance thread maintains."""

    def due_at(self) -> float: ...

    def maintain(self, called: bool) -> None: ...

    def is_finished(self) -> bool: ...


class SharedCore(Protocol):
    """The core of a pool whose state is in a store, as its maintenance uses it."""

    def maintain(self, now: float, *, called: bool) -> Sequence[Ticket]: ...

    def due_at(self, now: float) -> float: ...

    def find_pause_reason(self, now: float) -> tuple[str, ...]: ...


class StoreView(Protocol):
    """The pool that a store keeps up to date. Called during a step."""

    def apply_updates(self, credentials: Sequence[CredentialUpdate], quotas: Sequence[QuotaUpdate]) -> None:
        """Apply the changes of other processes."""
        ...

    def on_session_lost(self, why: str) -> None:
        """Mark all leases lost: the session has expired."""
        ...

    def enrol_again(self) -> None:
        """Enrol all credentials again: the store was replaced."""
        ...

    def held_tokens(self) -> Sequence[int]:
        """Return the tokens of the leases that this process holds."""
        ...

    def unreturned_tokens(self) -> Sequence[int]:
        """Return the tokens of leases that this process holds or whose release the store has not confirmed."""
        ...

    def note(self, text: str) -> None:
        """Add a warning for the user."""
        ...

    def step_done(self) -> None:
        """Commit what this step did to the view."""
        ...

    def step_failed(self) -> None:
        """Revert what this step did to the view and the store does not keep."""
        ...


class PoolInterface(LeaseIssuer, GatewayPool, RunPool, Protocol):
    """A pool of this package, as runs, engines and the command line use it."""

    is_used_by_run: bool  # a run uses this pool, and its workers may request a lease
    lease_ttl: float | None  # of a shared store; else leases last as long as this process

    def masked(self, text: str, likely: str | None = None) -> str: ...

    def select_provider(self, provider: str | None) -> Labels:
        """Return the labels of the credentials that serve a run. Raises ValueError if the choice is open."""
        ...

    def end_run(self) -> None:
        """Forget what counted for a run only: it has ended."""
        ...

    def reacquire(self, grant: Grant) -> Grant | None:
        """Return the lease if it is in force after a suspension; else another on its key. None: it is lost."""
        ...

    def delegate(self, lender: RemoteUser, out_for: float) -> None:
        """Let new leases be used on other machines, for *out_for* seconds after this process is gone."""
        ...

    def valid_for(self) -> float:
        """Return for how many seconds leases may be used without contact to the shared store."""
        ...

    def lock_lease(self, grant: Grant, mark: str) -> int | None:
        """Return a descriptor for a command with that *mark*; see ``Store.lock_lease``. The caller closes it."""
        ...

    def unlock_lease(self, grant: Grant) -> None:
        """Note that the command has ended."""
        ...


class HasRuntime(Protocol):
    """A pool of this package: a ``CredentialCoordinator``, or a subclass of it."""

    def __pool_runtime__(self) -> PoolInterface: ...


def has_runtime(pool: object) -> TypeGuard[HasRuntime]:
    """Return True if *pool* is one of this package. The class decides: a mock has any attribute."""
    return hasattr(type(pool), "__pool_runtime__")


def runtime_of(pool: HasRuntime) -> PoolInterface:
    """Return the object behind a coordinator's public methods."""
    return pool.__pool_runtime__()
