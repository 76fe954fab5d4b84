"""What all calls of one transport share: how it was set up, and what it has learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..pool.allowed_hosts import Place, place_of
from ..pool.core.records import Ask, Labels
from ..pool.protocols import TransportPool
from .debug_log_redaction import mask_wire_logs
from .estimate import Asked, Estimator
from .httpx_compat import library_of
from .sdk_retry_warning import OwnRetries

Affinity = str | Callable[[Any], str | None]

_MOST_PLACES = 1000

# A body that is an upload is kept up to this length, so that another key can be tried with it.
_LONGEST_KEPT = 32 * 1024 * 1024


class OpenCall(Protocol):
    """A call whose answer is being read."""

    def finished(self, *, whole: bool) -> None: ...


class Addressed(NamedTuple):
    """Where a request is meant to go."""

    size: int  # how many credentials were asked whether they may
    place: Place
    labels: Labels  # what a credential must have to go there
    host: bytes  # the place, as the ``Host`` header has it


class Caller:
    """How a transport makes its calls."""

    def __init__(
        self,
        keeper: TransportPool,
        *,
        affinity: Affinity | None,
        labels: Labels,
        priority: int,
        requester: str | None,
        auth: str | None,
        max_wait: float | None,
    ) -> None:
        mask_wire_logs(keeper)
        self.keeper = keeper
        self.clock = keeper.clock
        self.requester = requester
        self.auth = auth
        self.estimator = Estimator()
        self.own_retries = OwnRetries()
        self.went_well: dict[str, int] = {}  # calls, by credential
        self.open: set[OpenCall] = set()  # calls whose answers were handed up and are not at their end
        self._affinity = affinity
        self._labels = labels
        self._priority = priority
        self._max_wait = max_wait
        self._places: dict[tuple[str, bytes, int | None], Addressed] = {}

    def place_of(self, url: Any) -> Addressed:
        """Where *url* leads, and what a credential must have to go there. Raises ForeignHost if none may."""
        key = (url.scheme, url.raw_host, url.port)
        size = self.keeper.size()
        known = self._places.get(key)
        if known is None or known.size != size:
            place = place_of(url.scheme, url.raw_host.decode("ascii"), url.port)
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            known = self._places[key] = Addressed(size, place, self.keeper.labels_for(place), url.netloc)
        return known

    def ask_for(self, request: Any, asked: Asked, labels: Labels) -> Ask:
        """What to ask the pool for."""
        wanted = self._labels | labels if self._labels else labels
        return Ask(asked.cost, asked.model, self._affinity_of(request), self._priority, wanted)

    def _affinity_of(self, request: Any) -> str | None:
        affinity = self._affinity
        if affinity is None:
            return None
        found = request.headers.get(affinity) if isinstance(affinity, str) else affinity(request)
        if found is None or isinstance(found, str):
            return found or None
        raise ValueError(f"affinity must give text or None for a request, not {type(found).__name__}")

    def patience(self, request: Any) -> float:
        """How many seconds a call may wait for keys: as this transport was told, else as its own timeout says."""
        if self._max_wait is not None:
            return self._max_wait
        told = request.extensions.get("timeout", {}).get("pool")
        return math.inf if told is None else float(told)

    def let_go(self) -> None:
        """The connections are about to be closed: give back the leases of answers that are still open.

        What becomes of whoever reads them is no news.
        """
        for call in list(self.open):
            call.finished(whole=False)


def body_of(request: Any) -> bytes | None:
    """The body, if it is here to be looked at and can be sent again; None for one that goes out as it comes."""
    if isinstance(request.stream, library_of(request).ByteStream):
        return bytes(request.read())
    length = request.headers.get("content-length", "")
    if not (length.isdecimal() and int(length) <= _LONGEST_KEPT and hasattr(request.stream, "__iter__")):
        return None
    return bytes(request.read())
