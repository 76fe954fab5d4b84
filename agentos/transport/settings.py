"""Settings and learned state that all calls of one transport share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..pool.allowed_hosts import Origin, build_origin
from ..pool.protocols import TransportPool
from ..pool.requests import Labels, LeaseRequest
from .call_options import CallOptions, get_options
from .debug_log_redaction import redact_debug_logs
from .estimate import Estimator, RequestEstimate
from .httpx_compat import find_library
from .sdk_retry_warning import SdkRetryWarning

Affinity = str | Callable[[Any], str | None]

_MOST_ORIGINS = 1000

# An upload is kept in memory up to this length, so that it can be sent again with another key.
_LONGEST_KEPT = 32 * 1024 * 1024


class OpenCall(Protocol):
    """A call whose response is being read."""

    def finish(self, *, whole: bool) -> None: ...


class RequestAddress(NamedTuple):
    """The destination of a request."""

    size: int  # the number of credentials when *labels* was computed
    origin: Origin
    labels: Labels  # required of a credential to go there
    host: bytes  # the ``Host`` header


class TransportSettings:
    """The settings of one transport."""

    def __init__(
        self,
        pool: TransportPool,
        *,
        affinity: Affinity | None,
        labels: Labels,
        priority: int,
        requester: str | None,
        auth: str | None,
        max_wait: float | None,
        retries: int = 0,
    ) -> None:
        redact_debug_logs(pool)
        self.pool = pool
        self.clock = pool.clock
        self.requester = requester
        self.auth = auth
        self.retries = retries  # of one call, after a server error or a connection that was not made
        self.estimator = Estimator()
        self.retry_warning = SdkRetryWarning()
        self.successes: dict[str, int] = {}  # successful calls by credential
        self.open: set[OpenCall] = set()  # calls whose responses were returned and are not fully read
        self._affinity = affinity
        self._labels = labels
        self._priority = priority
        self._max_wait = max_wait
        self._origins: dict[tuple[str, bytes, int | None], RequestAddress] = {}

    def resolve_origin(self, url: Any) -> RequestAddress:
        """Return the destination of *url* and the labels it requires. Raises ForeignHost if no credential has them."""
        key = (url.scheme, url.raw_host, url.port)
        size = self.pool.credential_count()
        known = self._origins.get(key)
        if known is None or known.size != size:
            origin = build_origin(url.scheme, url.raw_host.decode("ascii"), url.port)
            if len(self._origins) >= _MOST_ORIGINS:
                self._origins.clear()
            known = self._origins[key] = RequestAddress(size, origin, self.pool.find_labels(origin), url.netloc)
        return known

    def build_request(
        self, request: Any, estimate: RequestEstimate, labels: Labels, options: CallOptions | None
    ) -> LeaseRequest:
        """Build the lease request for *request*."""
        all_labels = self._labels | labels if self._labels else labels
        if options is not None:
            if options.labels:
                all_labels |= options.labels
            return LeaseRequest(estimate.cost, estimate.model, options.affinity, options.priority, all_labels)
        return LeaseRequest(estimate.cost, estimate.model, self._find_affinity(request), self._priority, all_labels)

    def _find_affinity(self, request: Any) -> str | None:
        affinity = self._affinity
        if affinity is None:
            return None
        found = request.headers.get(affinity) if isinstance(affinity, str) else affinity(request)
        if found is None or isinstance(found, str):
            return found or None
        raise ValueError(f"affinity must give text or None for a request, not {type(found).__name__}")

    def find_wait_timeout(self, request: Any) -> float:
        """Return how many seconds a call may wait for keys: ``max_wait``, else the pool timeout of the request."""
        options = get_options(request)
        if options is not None and options.max_wait is not None:
            return options.max_wait
        if self._max_wait is not None:
            return self._max_wait
        timeout = request.extensions.get("timeout", {}).get("pool")
        return math.inf if timeout is None else float(timeout)

    def release_open_calls(self) -> None:
        """Release the leases of unfinished responses before their connections are closed.

        The resulting errors of their readers are not reported to the pool.
        """
        for call in list(self.open):
            call.finish(whole=False)


def get_replayable_body(request: Any) -> bytes | None:
    """Return the body if it can be inspected and sent again; None for a stream that can be sent only once."""
    if isinstance(request.stream, find_library(request).ByteStream):
        return bytes(request.read())
    if hasattr(request.stream, "read_all"):  # a RepeatableStream
        return bytes(request.stream.read_all())
    length = request.headers.get("content-length", "")
    if not (length.isdecimal() and int(length) <= _LONGEST_KEPT and hasattr(request.stream, "__iter__")):
        return None
    return bytes(request.read())
