"""What all calls of one transport share: how it was set up, and what it has learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..pool.allowed_hosts import Origin, build_origin
from ..pool.protocols import TransportPool
from ..pool.requests import Labels, LeaseRequest
from .debug_log_redaction import redact_debug_logs
from .estimate import Estimator, RequestEstimate
from .httpx_compat import find_library
from .sdk_retry_warning import SdkRetryWarning

Affinity = str | Callable[[Any], str | None]

_MOST_ORIGINS = 1000

# A body that is an upload is kept up to this length, so that another key can be tried with it.
_LONGEST_KEPT = 32 * 1024 * 1024


class OpenCall(Protocol):
    """A call whose answer is being read."""

    def finish(self, *, whole: bool) -> None: ...


class RequestAddress(NamedTuple):
    """Where a request is meant to go."""

    size: int  # how many credentials were asked whether they may
    origin: Origin
    labels: Labels  # what a credential must have to go there
    host: bytes  # the place, as the ``Host`` header has it


class TransportSettings:
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
        redact_debug_logs(keeper)
        self.pool = keeper
        self.clock = keeper.clock
        self.requester = requester
        self.auth = auth
        self.estimator = Estimator()
        self.retry_warning = SdkRetryWarning()
        self.went_well: dict[str, int] = {}  # calls, by credential
        self.open: set[OpenCall] = set()  # calls whose answers were handed up and are not at their end
        self._affinity = affinity
        self._labels = labels
        self._priority = priority
        self._max_wait = max_wait
        self._origins: dict[tuple[str, bytes, int | None], RequestAddress] = {}

    def resolve_origin(self, url: Any) -> RequestAddress:
        """Where *url* leads, and what a credential must have to go there. Raises ForeignHost if none may."""
        key = (url.scheme, url.raw_host, url.port)
        size = self.pool.credential_count()
        known = self._origins.get(key)
        if known is None or known.size != size:
            place = build_origin(url.scheme, url.raw_host.decode("ascii"), url.port)
            if len(self._origins) >= _MOST_ORIGINS:
                self._origins.clear()
            known = self._origins[key] = RequestAddress(size, place, self.pool.find_labels(place), url.netloc)
        return known

    def build_request(self, request: Any, asked: RequestEstimate, labels: Labels) -> LeaseRequest:
        """What to ask the pool for."""
        wanted = self._labels | labels if self._labels else labels
        return LeaseRequest(asked.cost, asked.model, self._find_affinity(request), self._priority, wanted)

    def _find_affinity(self, request: Any) -> str | None:
        affinity = self._affinity
        if affinity is None:
            return None
        found = request.headers.get(affinity) if isinstance(affinity, str) else affinity(request)
        if found is None or isinstance(found, str):
            return found or None
        raise ValueError(f"affinity must give text or None for a request, not {type(found).__name__}")

    def find_wait_timeout(self, request: Any) -> float:
        """How many seconds a call may wait for keys: as this transport was told, else as its own timeout says."""
        if self._max_wait is not None:
            return self._max_wait
        told = request.extensions.get("timeout", {}).get("pool")
        return math.inf if told is None else float(told)

    def release_open_calls(self) -> None:
        """The connections are about to be closed: give back the leases of answers that are still open.

        What becomes of whoever reads them is no news.
        """
        for call in list(self.open):
            call.finish(whole=False)


def get_replayable_body(request: Any) -> bytes | None:
    """The body, if it is here to be looked at and can be sent again; None for one that goes out as it comes."""
    if isinstance(request.stream, find_library(request).ByteStream):
        return bytes(request.read())
    length = request.headers.get("content-length", "")
    if not (length.isdecimal() and int(length) <= _LONGEST_KEPT and hasattr(request.stream, "__iter__")):
        return None
    return bytes(request.read())
