"""Settings for the transports through which SDK calls lease keys of the pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..pool.credential import parse_labels
from ..pool.protocols import TransportPool

if TYPE_CHECKING:
    from .settings import TransportSettings

_NOT_FOR_KEYS = frozenset(
    ("accept-encoding", "connection", "content-length", "content-type", "cookie", "host", "transfer-encoding")
)

_MOST_RETRIES = 100


def settings_for(
    pool: TransportPool,
    affinity: str | Callable[[Any], str | None] | None,
    labels: Mapping[str, object] | Iterable[str] | None,
    priority: int,
    requester: str | None,
    auth: str | None,
    max_wait: float | None,
    retries: int,
) -> TransportSettings:
    """Check the arguments of ``transport`` and return the settings for its calls. Raises ValueError."""
    from .settings import TransportSettings

    if affinity is not None and not (callable(affinity) or (isinstance(affinity, str) and affinity)):
        raise ValueError("affinity must be the name of a header, or a function of the request")
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise ValueError("priority must be a whole number; higher goes first")
    if auth is not None and not (isinstance(auth, str) and auth.isascii() and auth.replace("-", "").isalnum()):
        raise ValueError('auth must be "bearer" or the name of a header, such as x-api-key')
    if auth is not None and auth.lower() in _NOT_FOR_KEYS:
        raise ValueError(f"auth must not be {auth}: that header has another purpose")
    if max_wait is not None and (
        isinstance(max_wait, bool) or not isinstance(max_wait, (int, float)) or not max_wait >= 0
    ):
        raise ValueError("max_wait must be a number of seconds of at least 0, or left out for the call's own timeout")
    if isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries <= _MOST_RETRIES:
        raise ValueError(f"retries must be a whole number from 0 to {_MOST_RETRIES}, not {retries!r}")
    unsendable = pool.unsendable()
    if unsendable:
        raise ValueError(
            f"no header can carry the secret of {', '.join(unsendable)}: it has blanks, line ends or letters "
            "beyond ASCII (was it read from a file? strip() it)"
        )
    return TransportSettings(
        pool,
        affinity=affinity,
        labels=parse_labels("labels", labels),
        priority=priority,
        requester=requester,
        auth=None if auth is None else auth.lower(),
        max_wait=max_wait,
        retries=retries,
    )
