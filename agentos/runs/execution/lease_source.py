"""Select the source of a run's leases: an agentos pool, another pool object, or none.

A run calls ``take_now``, else it enqueues a request that is answered in the run's completion queue; ``give_back``
releases a lease. The runtime of the agentos pool has these methods itself.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import NoUsableCredential
from ...pool.completion_queue import CompletionQueue, QueuedRequest
from ...pool.protocols import RunPool, has_runtime, runtime_of
from ...pool.redaction import Masker
from ...pool.requests import NO_LABELS, Labels, LeaseRequest, TicketState
from ...pool.secret import Secret
from ...providers.key_owner import ANY_PROVIDER
from ...util.clock import Clock

log = logging.getLogger("agentos")


def build_run_pool(pool: Any, clock: Clock, *, on_loop: bool = False) -> RunPool | None:
    """Return *pool* as a run uses it. With *on_loop* its threads may not block. Raises ValueError for other objects."""
    if pool is None:
        return None
    if has_runtime(pool):
        return runtime_of(pool)
    return ForeignPool(pool, clock, on_loop=on_loop)


def is_empty(pool: RunPool) -> bool:
    """Return whether an agentos pool has no credentials. What another pool object has is unknown."""
    count = getattr(pool, "credential_count", None)
    return count is not None and count() == 0


def select_labels(pool: RunPool | None, lease: str, provider: str | None) -> Labels:
    """Return the labels of the credentials that serve the items. Raises ValueError if the provider is open."""
    if lease != "item":
        return NO_LABELS
    select = getattr(pool, "select_provider", None)
    if select is not None:
        labels: Labels = select(provider)
        return labels
    if provider not in (None, ANY_PROVIDER):
        raise ValueError("provider is for a CredentialCoordinator, which knows whose keys it has")
    return NO_LABELS


class ForeignKey:
    """A credential of a pool that only has secrets. Its name is made up here, so that the secret is never shown."""

    __slots__ = ("name", "quota", "secret")

    def __init__(self, name: str, secret: str) -> None:
        self.name = name
        self.secret = Secret(secret)
        self.quota = self


class ForeignGrant:
    """A reservation in such a pool."""

    __slots__ = ("held", "key", "raw", "requester")

    def __init__(self, key: ForeignKey, raw: object) -> None:
        self.key = key
        self.requester: str | None = None
        self.raw = raw  # what the pool returned, and gets back
        self.held = True


# Pauses between two calls of a method that returned None: short at first, then doubled.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5

_VERBS = (("acquire_credential", "release_credential"), ("reserve", "release"), ("acquire", "release"))


class ForeignPool:
    """Any object with one of the pairs of ``_VERBS``; a method may block, or return None when no key is free.

    A worker's thread calls the method itself. After None, and always with *on_loop*, the request is queued, and one
    helper thread calls the method for the queue: after None it pauses until a key is released or some time has passed.
    """

    def __init__(self, pool: Any, clock: Clock, *, on_loop: bool = False) -> None:
        for take, give in _VERBS:
            if callable(getattr(pool, take, None)) and callable(getattr(pool, give, None)):
                break
        else:
            wanted = ", ".join("/".join(pair) for pair in _VERBS)
            raise ValueError(f"credential_coordinator must have one of these pairs of methods: {wanted}")
        self._pool = pool
        self._clock = clock
        self._on_loop = on_loop
        self._take: Callable[[], object] = getattr(pool, take)
        self._release: Callable[[Any], object] = getattr(pool, give)
        self._keys: dict[str, ForeignKey] = {}
        self._masker = Masker()
        self._lock = threading.Lock()
        self._queue: deque[QueuedRequest] = deque()
        self._has_helper = False
        self._helper_sleeps = threading.Lock()  # released to wake the helper
        self._helper_sleeps.acquire()

    # -- taking -----------------------------------------------------------------------------------------------

    def take_now(self, _ask: LeaseRequest, _requester: str | None) -> ForeignGrant | None:
        if self._queue or self._on_loop:
            return None
        try:
            return self._grant(self._take())
        except Exception:  # noqa: BLE001 - the request that is queued next fails with it, unless the pool recovered
            return None

    def _grant(self, raw: object) -> ForeignGrant | None:
        if raw is None:
            return None
        try:
            secret = raw if isinstance(raw, str) else _reveal(raw)
        except Exception:
            self._release(raw)
            raise
        with self._lock:
            key = self._keys.get(secret)
            if key is None:
                name = getattr(raw, "name", None)
                key = self._keys[secret] = ForeignKey(str(name or f"key-{len(self._keys) + 1}"), secret)
                self._masker.add(secret)
        return ForeignGrant(key, raw)

    def enqueue(self, ticket: QueuedRequest) -> None:
        with self._lock:
            if ticket.is_withdrawn:
                return  # its run has withdrawn it meanwhile
            self._queue.append(ticket)
            if self._has_helper:
                return
            self._has_helper = True
        threading.Thread(target=self._serve_queue, name="agentos-foreign-pool", daemon=True).start()

    def on_timer(self, _desk: CompletionQueue) -> None:
        """Do nothing: no timer is set, the helper thread keeps its own time."""

    def cancel(self, ticket: QueuedRequest) -> None:
        with self._lock:
            if ticket in self._queue:
                self._queue.remove(ticket)
                ticket.state = TicketState.WITHDRAWN
        if ticket.grant is not None:
            self.give_back(ticket.grant)  # type: ignore[arg-type] # ours, put there by _answer
        self._wake_helper()

    def _serve_queue(self) -> None:
        """Call the pool until the queue is empty (the helper thread)."""
        pause = _FIRST_PAUSE
        while self._has_queued():
            try:
                grant = self._grant(self._take())
            except Exception as error:  # noqa: BLE001 - after any error the pool cannot serve
                self._fail(error)
                continue
            if grant is not None:
                self._answer(grant)
                pause = _FIRST_PAUSE
            else:
                self._clock.wait(self._helper_sleeps, self._clock.now() + pause)
                pause = min(_LONGEST_PAUSE, pause * 2)

    def _has_queued(self) -> bool:
        with self._lock:
            self._has_helper = bool(self._queue)  # the helper ends with the queue; the next request starts another
            return self._has_helper

    def _wake_helper(self) -> None:
        try:
            self._helper_sleeps.release()
        except RuntimeError:
            pass  # it is awake

    def _answer(self, grant: ForeignGrant) -> None:
        with self._lock:
            ticket = self._queue.popleft() if self._queue else None
            if ticket is not None:
                ticket.grant, ticket.state = grant, TicketState.GRANTED  # type: ignore[assignment]
                ticket.owner.completed.append(ticket)
        if ticket is None:
            self.give_back(grant)  # no request is waiting any more
        else:
            ticket.owner.wake()

    def _fail(self, error: Exception) -> None:
        """Fail all queued requests after an error of the pool."""
        reason = f"the pool failed: {type(error).__name__}: {self._masker.mask(str(error))}"
        with self._lock:
            waiting, self._queue = list(self._queue), deque()
            for ticket in waiting:
                ticket.error, ticket.state = NoUsableCredential(reason=reason), TicketState.FAILED
                ticket.owner.completed.append(ticket)
        for ticket in waiting:
            ticket.owner.wake()

    # -- releasing --------------------------------------------------------------------------------------------

    def give_back(self, grant: ForeignGrant) -> bool:
        with self._lock:
            if not grant.held:
                return False
            grant.held = False
        try:
            self._release(grant.raw)
        except Exception as error:  # noqa: BLE001 - the item is done all the same
            log.warning("[COORDINATOR] the pool failed to release %s: %s", grant.key.name, type(error).__name__)
        self._wake_helper()
        return True

    def abandon(self, _grants: Sequence[ForeignGrant]) -> None:
        """Do nothing: the holders still run, and release the grants themselves."""

    def report_rate_limited(
        self, grant: ForeignGrant, retry_after: object, _model: str | None, _reporter: str | None = None
    ) -> bool:
        """Report the limit to the pool, if it supports that. Some pools release the reservation then."""
        mark = getattr(self._pool, "mark_rate_limited", None)
        if mark is None or not grant.held:
            return False
        try:
            if isinstance(retry_after, (int, float)):
                mark(grant.raw, retry_after)
            else:
                mark(grant.raw)
        except Exception as error:  # noqa: BLE001 - the key is released then, as after any other call
            log.warning("[COORDINATOR] the pool failed to handle a rate limit: %s", type(error).__name__)
            return False
        grant.held = False
        return True

    def with_margin(self, ask: LeaseRequest, _times: int) -> LeaseRequest:
        return ask  # such a pool does not support costs

    # -- for the run ------------------------------------------------------------------------------------------

    def get_secret(self, name: str) -> Secret:
        return next(key.secret for key in self._keys.values() if key.name == name)

    @property
    def masker(self) -> Masker:
        return self._masker

    def masked(self, text: str) -> str:
        return self._masker.mask(text)


def _reveal(raw: object) -> str:
    for way in ("reveal", "key", "secret", "value"):
        found = getattr(raw, way, None)
        found = found() if callable(found) else found
        if isinstance(found, str):
            return found
        if isinstance(found, Secret):
            return found.reveal()
    raise TypeError(
        f"credential_coordinator returned a {type(raw).__name__}; it must be a str, or have reveal() or .secret"
    )
