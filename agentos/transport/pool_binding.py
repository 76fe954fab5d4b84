"""Calls that an SDK makes over HTTP, each with a lease: the transports, and what they need of the pool."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..pool.allowed_hosts import Destinations, Place, is_sendable
from ..pool.core.learning.adaptive_pool import LearningPool
from ..pool.core.records import NO_LABELS, Ask, Grant, Key, Labels
from ..pool.core.reservations import padded
from ..pool.credential import Credential, labels_of
from ..pool.lease import HOLDING, ItemLease
from ..pool.runtime.legacy_verbs import StringVerbs
from ..pool.runtime.scheduler import log
from ..pool.secret import Secret
from ..util.clock import Clock

if TYPE_CHECKING:
    from . import AsyncPoolTransport, PoolTransport
    from .settings import Caller


_NOT_FOR_KEYS = frozenset(
    ("accept-encoding", "connection", "content-length", "content-type", "cookie", "host", "transfer-encoding")
)


class HttpCalls(StringVerbs):
    """Lets any SDK that is built on httpx2 or httpx use the pool."""

    def __init__(self, core: LearningPool, clock: Clock | None = None) -> None:
        super().__init__(core, clock)
        self._credentials: dict[str, Credential] = {}
        self._destinations = Destinations()
        self._said_stray = False

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
        from . import PoolTransport

        return PoolTransport(self._caller(affinity, labels, priority, requester, auth, max_wait), inner)

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
        from . import AsyncPoolTransport

        return AsyncPoolTransport(self._caller(affinity, labels, priority, requester, auth, max_wait), inner)

    def _caller(
        self,
        affinity: str | Callable[[Any], str | None] | None,
        labels: Mapping[str, object] | Iterable[str] | None,
        priority: int,
        requester: str | None,
        auth: str | None,
        max_wait: float | None,
    ) -> Caller:
        from .settings import Caller

        if affinity is not None and not (callable(affinity) or (isinstance(affinity, str) and affinity)):
            raise ValueError("affinity must be the name of a header, or a function of the request")
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise ValueError("priority must be a whole number; higher goes first")
        if auth is not None and not (isinstance(auth, str) and auth.isascii() and auth.replace("-", "").isalnum()):
            raise ValueError('auth must be "bearer" or the name of a header, such as x-api-key')
        if auth is not None and auth.lower() in _NOT_FOR_KEYS:
            raise ValueError(f"auth must not be {auth}: that header says something else")
        if max_wait is not None and (
            isinstance(max_wait, bool) or not isinstance(max_wait, (int, float)) or not max_wait >= 0
        ):
            raise ValueError(
                "max_wait must be a number of seconds of at least 0, or left out for the call's own timeout"
            )
        unsendable = [name for name, credential in self._credentials.items() if not is_sendable(credential)]
        if unsendable:
            raise ValueError(
                f"no header can carry the secret of {', '.join(unsendable)}: it has blanks, line ends or letters "
                "beyond ASCII (was it read from a file? strip() it)"
            )
        return Caller(
            self,
            affinity=affinity,
            labels=labels_of("labels", labels),
            priority=priority,
            requester=requester,
            auth=None if auth is None else auth.lower(),
            max_wait=max_wait,
        )

    # -- for the transports -----------------------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        """The pool's clock."""
        return self._clock

    def size(self) -> int:
        """How many credentials there are; it only grows."""
        return len(self._credentials)

    def on_loan(self) -> ItemLease | None:
        """The lease that the worker who asks was started with, if it was."""
        if not self.lends:
            return None
        holding = HOLDING.get()
        if holding is not None and holding.pool is self and not holding.ended:
            return holding.item_lease()
        return None

    def note_wait(self) -> None:
        """A call has to wait for a key. If items of a run hold them, it may well be one of theirs that went astray."""
        if self.lends and not self._said_stray and HOLDING.get() is None:
            self._said_stray = True
            log.warning(
                "[COORDINATOR] a call that belongs to no item waits for a key while items of a run hold keys of this "
                "pool. If a worker made it in a thread of its own, the two wait for each other: start such a thread "
                'with contextvars.copy_context().run, or use ParallelCoordinator(..., lease="call")'
            )

    def labels_for(self, place: Place) -> Labels:
        """What a credential must have to serve *place*. Raises ForeignHost if none may."""
        with self._held_still():
            names = self._destinations.serving(place, self._credentials)
            if len(names) == len(self._credentials):
                return NO_LABELS
            label = self._destinations.label_of(place)
            for name in names:
                self._core.keys[name].labels |= {label}  # no lane asks for it yet, or it has it already
            return frozenset((label,))

    def bases_at(self, place: Place) -> tuple[str, ...]:
        """The base URLs of credentials that lead to *place*."""
        with self._held_still():
            return self._destinations.bases_at(place, self._credentials)

    def wants_news(self, grant: Grant) -> bool:
        """Whether it is worth reading what an answer that went well tells of the limits."""
        return self._core.is_news(grant, self._now())

    def rest_of(self, grant: Grant, model: str | None) -> float:
        """Seconds until the quota of this lease is open again for *model*; infinite if no instant is known."""
        with self._held_still():
            return max(0.0, min(math.inf, grant.key.quota.closed_for(model) - self._now()))

    def secret_of(self, name: str) -> Secret:
        """The secret of a credential, in its holder."""
        return self._credentials[name].secret

    def padded(self, ask: Ask, times: int) -> Ask:
        """The same request, reserving more than was told, after limits have stopped it so many times in a row."""
        with self._held_still():
            return padded(ask, times, self._core.keys.values())

    def credential(self, name: str) -> Credential:
        """The credential of that name."""
        self._key(name)
        return self._credentials[name]

    def _key(self, name: str) -> Key:
        key = self._core.keys.get(name)
        if key is None:
            known = ", ".join(list(self._core.keys)[:10])
            raise ValueError(f"name: no credential of that name in this pool; it has {known or 'none'}")
        return key
