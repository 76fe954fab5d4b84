"""Options of one call, for a caller inside the package that knows more about it than its headers say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..pool.requests import NO_LABELS, Labels, LeaseRequest

EXTENSION = "agentos_call"


@dataclass(slots=True)
class CallOptions:
    """``request.extensions["agentos_call"]``: the terms of this call's lease, and what became of it.

    ``lease_request`` is set by the transport: the request for a lease as it stands. ``on_sent`` is called with the
    name of the credential each time the request is about to leave.
    """

    affinity: str | None = None
    labels: Labels = NO_LABELS
    priority: float = 0
    requester: str | None = None
    max_wait: float | None = None
    headers: Callable[[str], dict[str, str]] | None = None  # for a credential, by name: headers to set
    on_sent: Callable[[str], None] | None = None
    lease_request: LeaseRequest | None = field(default=None, init=False)


class RepeatableStream(Protocol):
    """A body that is kept elsewhere and can be sent any number of times."""

    def read_all(self) -> bytes: ...


def get_options(request: Any) -> CallOptions | None:
    """Return the options of *request*, if it has any."""
    found = request.extensions.get(EXTENSION)
    return found if isinstance(found, CallOptions) else None
