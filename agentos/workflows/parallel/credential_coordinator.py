"""The credential pool, for threads and asyncio: it leases credentials within their limits."""

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
from ...pool.default_backoff import DEFAULT_BACKOFF_SECONDS, read_backoff
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
    from ...gateway import Gateway, GatewayRequest
    from ...transport import AsyncPoolTransport, PoolTransport

__all__ = ["CredentialCoordinator", "CredentialState", "Explanation"]

LabelsArgument = Mapping[str, object] | Iterable[str] | None


_MOST_NAMES = 5  # in the repr of a pool


def _require_positive(argument: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{argument} must be a number above zero")


class CredentialCoordinator:
    """A pool of credentials, each leased to one holder at a time, or to as many as it has slots.

    ``credentials`` are ``Credential`` objects or plain secrets. ``store`` is where the pool's state is kept: in
    ``"memory"``; in a file that all processes of this machine share and that outlives them, ``"sqlite"`` for the user's
    own (``AGENTOS_HOME`` moves it) or ``"sqlite:///path"``; or on a server that many machines share,
    ``"redis://host:port/db?pool=name"``. ``keep_free=N`` always leaves N slots unused for others. ``max_lease`` ends a
    lease after that many seconds, if its holder did not release it. ``lease_ttl`` is how long the leases of a process
    last in a shared store after it dies or is suspended; ``weight`` is its share when several processes wait. ``debug``
    checks the pool's invariants after every step (also by ``AGENTOS_DEBUG=1``); it is slow.
    """

    RATE_LIMIT_BACKOFF_SECONDS = DEFAULT_BACKOFF_SECONDS
    lease_ttl: float | None = None  # in a shared store; otherwise leases last as long as this process

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
        if isinstance(credentials, Mapping):  # its names would be taken for secrets
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
        location = parse_location(store, os.environ)
        clock = SystemClock() if clock is None else clock
        backoff = partial(read_backoff, type(self), weakref.ref(self))
        if location is None:
            core = make_core(debug=debug, keep_free=keep_free, max_lease=max_lease)
            self._runtime = runtime = PoolRuntime(core, clock, backoff)
        else:
            shared = make_shared_core(debug=debug, keep_free=keep_free, max_lease=max_lease)
            self._runtime = runtime = PoolRuntime(shared, clock, backoff, shared)
        if isinstance(location, RedisLocation):
            _mask_passwords(runtime.masker, location.passwords)
        for unused in all_given[len(given) :]:  # not used, but masked
            runtime.masker.add(unused.secret.reveal() if isinstance(unused, Credential) else str(unused))
        if location is None:
            self._admit(given, keep_free)
            return
        self.lease_ttl = lease_ttl
        share_pool(runtime, shared, location, lease_ttl, weight)
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

    def __repr__(self) -> str:
        names = list(self._runtime.registry.credentials)
        shown = ", ".join(names[:_MOST_NAMES]) + (
            f" and {len(names) - _MOST_NAMES} more" if names[_MOST_NAMES:] else ""
        )
        count = f"{len(names)} credential{'' if len(names) == 1 else 's'}"
        return f"<{type(self).__name__} of {count}{': ' if shown else ''}{shown}>"

    def __pool_runtime__(self) -> PoolRuntime:
        """Return the runtime of this pool for other parts of the package: see ``pool.protocols.runtime_of``."""
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
        """Return a lease for one ``with`` or ``async with`` block, which waits for a credential and releases it.

        ``cost`` is the estimate to reserve, such as ``{"input_tokens": 900, "output_tokens": 400}``; with ``model``,
        limits and cooldowns of that model family apply; requests of one ``affinity`` get the same credential while it
        is free; a higher ``priority`` goes first; ``labels`` restrict the credentials.

        Raises ``NoCredentialAvailable`` after *timeout* seconds, and ``NoUsableCredential`` or ``NeverFits`` at once if
        waiting cannot help. Inside a worker that a run started with a lease of this pool, it returns that lease: if
        every worker waited for a second one, they could deadlock.
        """
        # The body of _build_lease_request, inlined: one call less where a lease takes two microseconds.
        if timeout is not None:
            check_timeout(timeout)
        if model is None and affinity is None and labels is None and not priority:
            request = PLAIN if cost is None else LeaseRequest(request_cost(cost))
        else:
            request = _parse_lease_request(cost, model, affinity, priority, labels)
        runtime = self._runtime
        if runtime.is_used_by_run and (item_lease := runtime.current_item_lease()) is not None:
            return item_lease
        return Lease(runtime, None, request, requester, timeout)

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
        """Return a lease that the caller releases; arguments and behaviour in a worker are those of ``lease``."""
        request = _build_lease_request(timeout, cost, model, affinity, priority, labels)
        runtime = self._runtime
        if runtime.is_used_by_run and (item_lease := runtime.current_item_lease()) is not None:
            return item_lease
        take = runtime.take
        return Lease(runtime, take(request, requester, timeout, "await pool.acquire_async()"), ACQUIRED)

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
        """Return a lease at once or raise ``NoCredentialAvailable``. It does not overtake waiters."""
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
        """Return a lease that the caller releases, without blocking the loop; the arguments are those of ``lease``."""
        request = _build_lease_request(timeout, cost, model, affinity, priority, labels)
        runtime = self._runtime
        if runtime.is_used_by_run and (item_lease := runtime.current_item_lease()) is not None:
            return item_lease
        grant = runtime.take_now(request, requester)
        return Lease(runtime, grant or await runtime.wait_async(request, requester, timeout), ACQUIRED)

    # -- the original verbs: plain strings in and out ---------------------------------------------------------

    def reserve(self, timeout: float | None = None) -> str | None:
        """Reserve a credential, waiting for at most *timeout* seconds (None: without limit).

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
        """Release a reserved credential: the reservation of this thread, or the oldest one if it never had one.

        If this thread's reservation has already ended, nothing changes: the key may have another holder now.
        """
        if isinstance(credential, Lease):
            credential.release()
            return
        self._runtime.verbs.release(credential)

    def release_credential(self, credential_key: str) -> None:
        """Release a reserved credential, as ``release`` does."""
        self.release(credential_key)

    def mark_rate_limited(
        self,
        credential: str | None = None,
        backoff_seconds: float | None = None,
        *,
        credential_key: str | None = None,
    ) -> None:
        """Let the credential's quota cool down for *backoff_seconds*, and end the reservation ``release`` would end.

        A ``Lease`` is never ended by this.
        """
        self._runtime.verbs.mark_rate_limited(credential if credential_key is None else credential_key, backoff_seconds)

    # -- HTTP transports for SDKs -----------------------------------------------------------------------------

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
        retries: int = 0,
    ) -> PoolTransport:
        """Return a transport for ``httpx2.Client`` (or ``httpx.Client``) that leases a credential for each call.

        ``OpenAI(api_key="pool", http_client=httpx2.Client(transport=pool.transport()), max_retries=0)``: the secret
        replaces the SDK's placeholder in the header, and is sent only to the credential's provider, its own ``hosts``
        or its ``base_url``; otherwise ``ForeignHost`` is raised. When a call is rate-limited, or its key is rejected,
        it continues with another key or waits; if there is none, the provider's answer is returned unchanged. Server
        errors and network errors are passed on at once, unless ``retries`` is given. docs/http.md has the details.

        ``inner`` is the transport that sends, for your own proxies or TLS. ``affinity`` is the name of a header, or a
        function of the request: calls with the same value get the same key while it is free. ``labels``, ``priority``
        and ``requester`` are those of ``lease``. ``auth`` is ``"bearer"`` or the name of the header for the secret, if
        neither the SDK nor the provider determines it. ``max_wait`` is how many seconds one call may wait for keys; by
        default the ``pool`` part of its own timeout. ``retries`` is how often a call is repeated after a server error
        (5xx) or a connection that was not made; inside an item of a run it is not, because the run retries items.
        """
        from ...transport import PoolTransport
        from ...transport.pool_binding import settings_for

        settings = settings_for(self._runtime, affinity, labels, priority, requester, auth, max_wait, retries)
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
        retries: int = 0,
    ) -> AsyncPoolTransport:
        """Return a transport for ``httpx2.AsyncClient``; the arguments are those of ``transport``."""
        from ...transport import AsyncPoolTransport
        from ...transport.pool_binding import settings_for

        settings = settings_for(self._runtime, affinity, labels, priority, requester, auth, max_wait, retries)
        return AsyncPoolTransport(settings, inner)

    def gateway(
        self,
        *,
        port: int = 0,
        token: str | None = None,
        max_wait: float | None = None,
        park_after: float | None = None,
        on_request: Callable[[GatewayRequest], None] | None = None,
    ) -> Gateway:
        """Return an HTTP server on this machine whose clients share the pool's keys: ``async with pool.gateway()``.

        A program gets ``gateway.url`` as its base URL and ``gateway.token`` as its key. Each request waits, in order,
        for a key; ``max_wait`` limits that to so many seconds. A request whose key opens only after ``park_after``
        seconds is refused. ``on_request`` is called with a record of each request. docs/gateway.md has the details.
        """
        from ...gateway import Gateway, GatewaySettings

        settings = GatewaySettings(max_wait=max_wait, park_after=park_after)
        make = partial(self.async_transport, requester="gateway")
        return Gateway(self._runtime, make, port=port, token=token, settings=settings, on_request=on_request)

    # -- membership -------------------------------------------------------------------------------------------

    def add(self, credential: str | Credential) -> str:
        """Add a credential, also while callers wait. Returns its name."""
        return self._runtime.registry.admit(credential)

    def retire(self, name: str) -> None:
        """Retire a credential: its leases continue, no new ones start. Waiters that can use no other get an error."""
        key, core = self._runtime.registry.key(name), self._runtime.core
        self._runtime.scheduler.run_step(lambda now: core.retire(key, now))
        log.info("[COORDINATOR] credential %s retired", name)

    def revive(self, name: str) -> None:
        """Put a retired, dead or spent credential back into use; a cooldown of its quota stays."""
        key, core = self._runtime.registry.key(name), self._runtime.core
        self._runtime.scheduler.run_step(lambda now: core.revive(key, now))
        log.info("[COORDINATOR] credential %s revived", name)

    def clear(self, name: str) -> None:
        """Reset all knowledge about a credential and its quota: death, spent money, cooldowns, usage.

        For a person who knows better. In a shared store it applies to all processes. Leases stay valid.
        """
        key, core = self._runtime.registry.key(name), self._runtime.core
        self._runtime.scheduler.run_step(lambda now: core.clear(key, now))
        log.info("[COORDINATOR] credential %s cleared", name)

    def close(self) -> None:
        """Stop granting leases. Every waiter gets ``PoolClosed`` at once; existing leases can still be released."""
        self._runtime.close()

    def __enter__(self) -> CredentialCoordinator:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.close()

    # -- inspection -------------------------------------------------------------------------------------------

    def snapshot(self) -> list[CredentialState]:
        """Return the state of every credential, until when it lasts, and why."""
        return self._runtime.inspector.snapshot()

    def explain(self, requester: str) -> Explanation:
        """Return why *requester* waits, and when it will probably start."""
        return self._runtime.inspector.explain(requester)

    def get_available_count(self) -> int:
        """Return how many credentials could be leased now."""
        return self.get_stats()["available"]

    def get_stats(self) -> dict[str, int]:
        """Return the number of credentials by state; each is counted once, under its most important state.

        A retired credential counts only while it is leased; one without money counts as dead; one that ``keep_free``
        keeps for others counts as reserved.
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
        """Estimate when *n_items* calls will be finished with the limits known now, the bottleneck, and what helps.

        ``cost`` is what each reserves, ``duration`` how many seconds it takes, ``parallel`` how many calls the caller
        makes at once at most. Other users of the pool are not considered.
        """
        if isinstance(n_items, bool) or not isinstance(n_items, int) or n_items < 0:
            raise ValueError(f"n_items must be a whole number of at least 0, not {n_items!r}")
        if isinstance(duration, bool) or not isinstance(duration, (int, float)) or not 0 <= duration < math.inf:
            raise ValueError(f"duration must be a number of seconds, not {duration!r}")
        if parallel is not None and (isinstance(parallel, bool) or not isinstance(parallel, int) or parallel < 1):
            raise ValueError(f"parallel must be a whole number of at least 1, or left out, not {parallel!r}")
        request = _parse_lease_request(cost, model, None, 0, labels)
        return self._runtime.inspector.forecast(n_items, request, duration, parallel)


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
    """Check the arguments of a request and build it."""
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
    """Return the first N credentials if ``AGENTOS_CREDENTIAL_LIMIT=N`` is set."""
    if limit is None or not limit.strip():
        return given
    if not limit.strip().isdecimal() or len(limit) > 9 or int(limit) < 1:
        raise ValueError(f"AGENTOS_CREDENTIAL_LIMIT must be a whole number of at least 1, not {limit[:20]!r}")
    return given[: int(limit)]
