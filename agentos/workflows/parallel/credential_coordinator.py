"""The credential pool: who may use which key, and when. For threads and asyncio, on one object."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...pool.credential import Credential, parse_labels
from ...pool.lease import ACQUIRED, Lease
from ...pool.redaction import Masker
from ...pool.requests import NO_LABELS, PLAIN, LeaseRequest, request_cost
from ...pool.runtime.pool_runtime import PoolRuntime, make_core
from ...pool.runtime.scheduler import check_timeout, log
from ...pool.snapshot import CredentialState, Explanation, Forecast
from ...stores.open_pool import make_shared_core, share_pool
from ...stores.redis.url import RedisLocation
from ...stores.sqlite.location import parse_location
from ...util.clock import Clock, SystemClock

if TYPE_CHECKING:
    from ...transport import AsyncPoolTransport, PoolTransport

__all__ = ["CredentialCoordinator", "CredentialState", "Explanation"]

LabelsArgument = Mapping[str, object] | Iterable[str] | None


def _require_positive(argument: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{argument} must be a number above zero")


class CredentialCoordinator:
    """A pool of credentials, each leased to one user at a time, or to as many as it has slots.

    ``credentials`` are ``Credential`` objects or plain secrets. ``store`` is where the pool's state is kept: in
    ``"memory"``, or in a file that every process of this machine shares and the next one finds, ``"sqlite"`` for the
    user's own (``AGENTOS_HOME`` moves it) or ``"sqlite:///path"``, or on a server that many machines share,
    ``"redis://host:port/db?pool=name"``. ``keep_free=N`` always leaves N slots unused for
    others. ``max_lease`` ends a lease after so many seconds, if its holder forgot it. ``lease_ttl`` is how long the
    leases of a process last in a shared store when it dies or stands still; ``weight`` is its share when several
    processes wait. ``debug`` checks the pool's promises after every step (also by ``AGENTOS_DEBUG=1``); it is slow.
    """

    RATE_LIMIT_BACKOFF_SECONDS = 60
    lease_ttl: float | None = None  # in a shared store; else leases last as long as this process

    def __init__(
        self,
        credentials: Iterable[str | Credential] = (),
        *,
        store: str | os.PathLike[str] = "memory",
        keep_free: int = 0,
        max_lease: float | None = None,
        lease_ttl: float = 30.0,
        weight: float = 1.0,
        clock: Clock | None = None,
        debug: bool | None = None,
    ) -> None:
        if isinstance(credentials, (str, bytes, Credential)):
            raise ValueError("credentials must be a list of credentials, not a single one")
        if isinstance(credentials, Mapping):  # whose names would be taken for secrets
            raise ValueError(
                "credentials must be a list of credentials, not a mapping; give each its name with "
                "Credential(secret, name=...)"
            )
        all_given = list(credentials)
        given = _apply_credential_limit(all_given, os.environ.get("AGENTOS_CREDENTIAL_LIMIT"))
        if isinstance(keep_free, bool) or not isinstance(keep_free, int) or keep_free < 0:
            raise ValueError("keep_free must be a whole number of at least 0")
        if max_lease is not None and (not isinstance(max_lease, (int, float)) or not 0 < max_lease < math.inf):
            raise ValueError("max_lease must be a number of seconds above zero")
        if debug is None:
            debug = os.environ.get("AGENTOS_DEBUG", "") not in ("", "0")
        _require_positive("lease_ttl", lease_ttl)
        _require_positive("weight", weight)
        place = parse_location(store, os.environ)
        clock = SystemClock() if clock is None else clock
        backoff = partial(_default_backoff, type(self), weakref.ref(self))
        if place is None:
            core = make_core(debug=debug, keep_free=keep_free, max_lease=max_lease)
            self._runtime = runtime = PoolRuntime(core, clock, backoff)
        else:
            shared = make_shared_core(debug=debug, keep_free=keep_free, max_lease=max_lease)
            self._runtime = runtime = PoolRuntime(shared, clock, backoff, shared)
        if isinstance(place, RedisLocation):
            _mask_passwords(runtime.masker, place.passwords)
        for unused in all_given[len(given) :]:  # not to be used, and not to be shown
            runtime.masker.add(unused.secret.reveal() if isinstance(unused, Credential) else str(unused))
        if place is None:
            self._admit(given, keep_free)
            return
        self.lease_ttl = lease_ttl
        share_pool(runtime, shared, place, lease_ttl, weight)
        try:
            self._admit(given, keep_free)
        except BaseException:
            runtime.discard_store()
            raise
        runtime.start_maintenance()

    def _admit(self, given: Sequence[str | Credential], keep_free: int) -> None:
        registry = self._runtime.registry
        registry.admit_all(given)
        slots = registry.slots()
        if keep_free and keep_free >= slots:
            raise ValueError(f"keep_free must be below the number of slots ({slots}), or nothing could be leased")
        self._runtime.verbs.simulate_rate_limit(os.environ)

    def __pool_runtime__(self) -> PoolRuntime:
        """The inside of this pool, for the other parts of the package: see ``credentials.protocols.runtime_of``."""
        return self._runtime

    # -- leases -----------------------------------------------------------------------------------------------

    def lease(
        self,
        requester: str | None = None,
        *,
        timeout: float | None = None,
        cost: Mapping[str, float] | None = None,
        model: str | None = None,
        affinity: str | None = None,
        priority: int = 0,
        labels: LabelsArgument = None,
    ) -> Lease:
        """A lease for one ``with`` or ``async with`` block, which waits for a credential and gives it back.

        ``cost`` is the estimate to reserve, such as ``{"input_tokens": 900, "output_tokens": 400}``; ``model``
        makes limits and coolings of that model family count; requests of one ``affinity`` get the same credential
        while it is free; a higher ``priority`` goes first; ``labels`` restrict which credentials will do.
        Raises ``NoCredentialAvailable`` after *timeout* seconds, and at once ``NoUsableCredential`` or
        ``NeverFits`` when waiting would be in vain. Inside a worker that a run started with a lease of this pool, it
        is that lease, on loan: a second one could be waited for by everybody at once.
        """
        # What _request does, written out: one call less where a lease costs two microseconds.
        if timeout is not None:
            check_timeout(timeout)
        if model is None and affinity is None and labels is None and not priority:
            ask = PLAIN if cost is None else LeaseRequest(request_cost(cost))
        else:
            ask = _parse_lease_request(cost, model, affinity, priority, labels)
        runtime = self._runtime
        if runtime.is_used_by_run and (lent := runtime.current_item_lease()) is not None:
            return lent
        return Lease(runtime, None, ask, requester, timeout)

    def acquire(
        self,
        requester: str | None = None,
        *,
        timeout: float | None = None,
        cost: Mapping[str, float] | None = None,
        model: str | None = None,
        affinity: str | None = None,
        priority: int = 0,
        labels: LabelsArgument = None,
    ) -> Lease:
        """A lease to release oneself; the arguments are those of ``lease``, and so is what a worker gets."""
        ask = _build_lease_request(timeout, cost, model, affinity, priority, labels)
        runtime = self._runtime
        if runtime.is_used_by_run and (lent := runtime.current_item_lease()) is not None:
            return lent
        take = runtime.take
        return Lease(runtime, take(ask, requester, timeout, "await pool.acquire_async()"), ACQUIRED)

    def acquire_nowait(
        self,
        requester: str | None = None,
        *,
        cost: Mapping[str, float] | None = None,
        model: str | None = None,
        affinity: str | None = None,
        priority: int = 0,
        labels: LabelsArgument = None,
    ) -> Lease:
        """A lease at once, or ``NoCredentialAvailable``. It does not pass those who wait."""
        return self.acquire(
            requester, timeout=0, cost=cost, model=model, affinity=affinity, priority=priority, labels=labels
        )

    async def acquire_async(
        self,
        requester: str | None = None,
        *,
        timeout: float | None = None,
        cost: Mapping[str, float] | None = None,
        model: str | None = None,
        affinity: str | None = None,
        priority: int = 0,
        labels: LabelsArgument = None,
    ) -> Lease:
        """A lease to release oneself, without blocking the running loop; the arguments are those of ``lease``."""
        ask = _build_lease_request(timeout, cost, model, affinity, priority, labels)
        runtime = self._runtime
        if runtime.is_used_by_run and (lent := runtime.current_item_lease()) is not None:
            return lent
        grant = runtime.take_now(ask, requester)
        return Lease(runtime, grant or await runtime.wait_async(ask, requester, timeout), ACQUIRED)

    # -- the original verbs: plain strings in and out ---------------------------------------------------------

    def reserve(self, timeout: float | None = None) -> str | None:
        """Reserve a credential, waiting for one as long as *timeout* (None: as long as it takes).

        Returns the secret, or None if the time is up or no credential can ever serve.
        """
        if timeout is not None:
            check_timeout(timeout)
        return self._runtime.verbs.reserve(threading.current_thread().name, timeout)

    def reserve_credential(self, requester_id: str) -> str | None:
        """Reserve a credential at once, or return None."""
        return self._runtime.verbs.reserve(str(requester_id), 0)

    def acquire_credential(self) -> str | None:
        """Reserve a credential at once, or return None."""
        return self._runtime.verbs.reserve(threading.current_thread().name, 0)

    def release(self, credential: str | Lease) -> None:
        """Give a reserved credential back: this thread's own reservation, or, if it never had one, the oldest.

        If this thread's own has already ended, nothing changes: the key may be somebody else's by now.
        """
        if isinstance(credential, Lease):
            credential.release()
            return
        self._runtime.verbs.release(credential)

    def release_credential(self, credential_key: str) -> None:
        """Give a reserved credential back, as ``release`` does."""
        self.release(credential_key)

    def mark_rate_limited(
        self,
        credential: str | None = None,
        backoff_seconds: float | None = None,
        *,
        credential_key: str | None = None,
    ) -> None:
        """Leave the credential's quota alone for *backoff_seconds*, and end the reservation ``release`` would end.

        A ``Lease`` is never ended by this.
        """
        self._runtime.verbs.mark_rate_limited(credential if credential_key is None else credential_key, backoff_seconds)

    # -- calls that an SDK makes over HTTP --------------------------------------------------------------------

    def transport(
        self,
        inner: Any = None,
        *,
        affinity: str | Callable[[Any], str | None] | None = None,
        labels: Mapping[str, object] | Iterable[str] | None = None,
        priority: int = 0,
        requester: str | None = "http",
        auth: str | None = None,
        max_wait: float | None = None,
    ) -> PoolTransport:
        """A transport for ``httpx2.Client`` (or ``httpx.Client``) that leases a credential for each call.

        ``OpenAI(api_key="pool", http_client=httpx2.Client(transport=pool.transport()), max_retries=0)``: the secret
        goes into the header where the SDK put its placeholder, and only to the credential's provider, its own ``hosts``
        or its ``base_url``; else ``ForeignHost`` is raised. When a call is limited, or its key is refused, it goes on
        with another key or waits; if there is none, the provider's answer goes up as it came. Server errors and network
        errors go up at once. docs/http.md has the rest.

        ``inner`` is the transport that sends, for proxies or TLS of your own. ``affinity`` is the name of a header, or
        a function of the request: calls with the same text get the same key while it is free. ``labels``, ``priority``
        and ``requester`` are those of ``lease``. ``auth`` is ``"bearer"`` or the name of the header for the secret,
        where neither the SDK nor the provider tells it. ``max_wait`` is how many seconds one call may wait for keys;
        unless told, as long as its own timeout says (the ``pool`` part of it).
        """
        from ...transport import PoolTransport
        from ...transport.pool_binding import settings_for

        settings = settings_for(self._runtime, affinity, labels, priority, requester, auth, max_wait)
        return PoolTransport(settings, inner)

    def async_transport(
        self,
        inner: Any = None,
        *,
        affinity: str | Callable[[Any], str | None] | None = None,
        labels: Mapping[str, object] | Iterable[str] | None = None,
        priority: int = 0,
        requester: str | None = "http",
        auth: str | None = None,
        max_wait: float | None = None,
    ) -> AsyncPoolTransport:
        """The same for ``httpx2.AsyncClient``; the arguments are those of ``transport``."""
        from ...transport import AsyncPoolTransport
        from ...transport.pool_binding import settings_for

        settings = settings_for(self._runtime, affinity, labels, priority, requester, auth, max_wait)
        return AsyncPoolTransport(settings, inner)

    # -- who is in the pool -----------------------------------------------------------------------------------

    def add(self, credential: str | Credential) -> str:
        """Let a credential join, also while others wait. Returns its name."""
        return self._runtime.registry.admit(credential)

    def retire(self, name: str) -> None:
        """Take a credential out: leases on it run on, nothing new starts. Those who could use no other are told."""
        key, core = self._runtime.registry.key(name), self._runtime.core
        self._runtime.scheduler.run_step(lambda now: core.retire(key, now))
        log.info("[COORDINATOR] credential %s retired", name)

    def revive(self, name: str) -> None:
        """Put a retired, dead or spent credential back into use; a cooling of its quota stays."""
        key, core = self._runtime.registry.key(name), self._runtime.core
        self._runtime.scheduler.run_step(lambda now: core.revive(key, now))
        log.info("[COORDINATOR] credential %s revived", name)

    def clear(self, name: str) -> None:
        """Forget all that is known of a credential and its quota: death, money gone, coolings, what was used.

        For when a person knows better. In a shared store it is forgotten for everybody. Leases in force stay.
        """
        key, core = self._runtime.registry.key(name), self._runtime.core
        self._runtime.scheduler.run_step(lambda now: core.clear(key, now))
        log.info("[COORDINATOR] credential %s cleared", name)

    def close(self) -> None:
        """Grant nothing more. Every waiter gets ``PoolClosed`` at once; leases in force may still be given back."""
        self._runtime.close()

    def __enter__(self) -> CredentialCoordinator:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.close()

    # -- looking at it ----------------------------------------------------------------------------------------

    def snapshot(self) -> list[CredentialState]:
        """Every credential, what it is, until when, and why."""
        return self._runtime.inspector.snapshot()

    def explain(self, requester: str) -> Explanation:
        """Why *requester* waits, and when it will likely start."""
        return self._runtime.inspector.explain(requester)

    def get_available_count(self) -> int:
        """How many credentials could be leased right now."""
        return self.get_stats()["available"]

    def get_stats(self) -> dict[str, int]:
        """How many credentials are what; each is counted once, under what matters most about it.

        A retired credential counts only while somebody still holds it; one whose money is gone counts as dead; one
        that ``keep_free`` keeps for others counts as reserved.
        """
        return self._runtime.inspector.get_stats()

    def forecast(
        self,
        n_items: int,
        cost: Mapping[str, float] | None = None,
        duration: float = 1.0,
        *,
        parallel: int | None = None,
        model: str | None = None,
        labels: LabelsArgument = None,
    ) -> Forecast:
        """When *n_items* calls will be through, by what is known of the limits now, what holds them up, and what helps.

        ``cost`` is what each reserves, ``duration`` how many seconds it takes, ``parallel`` how many the caller has
        under way at most. Nobody else is reckoned with.
        """
        if isinstance(n_items, bool) or not isinstance(n_items, int) or n_items < 0:
            raise ValueError(f"n_items must be a whole number of at least 0, not {n_items!r}")
        if isinstance(duration, bool) or not isinstance(duration, (int, float)) or not 0 <= duration < math.inf:
            raise ValueError(f"duration must be a number of seconds, not {duration!r}")
        if parallel is not None and (isinstance(parallel, bool) or not isinstance(parallel, int) or parallel < 1):
            raise ValueError(f"parallel must be a whole number of at least 1, or left out, not {parallel!r}")
        ask = _parse_lease_request(cost, model, None, 0, labels)
        return self._runtime.inspector.forecast(n_items, ask, duration, parallel)


def _default_backoff(kind: type[CredentialCoordinator], pool: weakref.ref[CredentialCoordinator]) -> float:
    """A class or an instance may have its own. By a weak reference: the runtime must not keep its coordinator."""
    instance = pool()
    return float((kind if instance is None else instance).RATE_LIMIT_BACKOFF_SECONDS)


def _mask_passwords(masker: Masker, passwords: Sequence[str]) -> None:
    too_short = [password for password in passwords if not masker.add_password(password)]
    if too_short:
        log.warning("[COORDINATOR] the password of the store is shorter than 8 characters: too short to be masked")


def _build_lease_request(
    timeout: float | None,
    cost: Mapping[str, float] | None,
    model: str | None,
    affinity: str | None,
    priority: int,
    labels: LabelsArgument,
) -> LeaseRequest:
    """Check the arguments of a request; what it asks for."""
    if timeout is not None:
        check_timeout(timeout)
    if cost is None and model is None and affinity is None and labels is None and not priority:
        return PLAIN
    return _parse_lease_request(cost, model, affinity, priority, labels)


def _parse_lease_request(
    cost: Mapping[str, float] | None,
    model: str | None,
    affinity: str | None,
    priority: int,
    labels: LabelsArgument,
) -> LeaseRequest:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise ValueError("priority must be a whole number; higher goes first")
    for argument, value in (("model", model), ("affinity", affinity)):
        if value is not None and not (isinstance(value, str) and value):
            raise ValueError(f"{argument} must be text, or left out")
    wanted = NO_LABELS if labels is None else parse_labels("labels", labels)
    return LeaseRequest(request_cost(cost), model, affinity, priority, wanted)


def _apply_credential_limit(given: Sequence[str | Credential], limit: str | None) -> Sequence[str | Credential]:
    """``AGENTOS_CREDENTIAL_LIMIT=N`` uses the first N credentials only."""
    if limit is None or not limit.strip():
        return given
    if not limit.strip().isdecimal() or len(limit) > 9 or int(limit) < 1:
        raise ValueError(f"AGENTOS_CREDENTIAL_LIMIT must be a whole number of at least 1, not {limit[:20]!r}")
    return given[: int(limit)]
