"""Dask: the ``engine=`` value for a Dask cluster."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Dask:
    """A Dask cluster as ``engine=``: by the address of its scheduler (``"dask://host:port"``), or a ``Client`` of it.

    At most *seats* threads of the cluster are used at once, and never more than the run has workers. A worker without
    contact for *ttl* seconds is lost: its items run again elsewhere. The default is 10, or half of a shared pool's
    ``lease_ttl`` if that is less; more than half of it is refused. *listen*, ``"host:port"``, is where this process
    waits for the cluster's workers; the default is the address from which it reaches the scheduler.
    """

    cluster: Any
    _: KW_ONLY
    seats: int | None = None
    ttl: float | None = None
    listen: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.cluster, str):
            _check_address(self.cluster)
        elif not hasattr(self.cluster, "submit"):
            raise ValueError("a Dask cluster is given by the address of its scheduler, or by a distributed.Client")
        if self.seats is not None and (
            isinstance(self.seats, bool) or not isinstance(self.seats, int) or self.seats < 1
        ):
            raise ValueError("seats must be a whole number of at least 1, or left out")
        if self.ttl is not None and (
            isinstance(self.ttl, bool) or not isinstance(self.ttl, (int, float)) or not 1.0 <= self.ttl < math.inf
        ):
            raise ValueError("ttl must be a number of seconds of at least 1, or left out")
        if self.listen is not None and self.listening is None:
            raise ValueError("listen must be such as '10.0.0.5:9000'; port 0 means any that is free")

    @property
    def listening(self) -> tuple[str, int] | None:
        """The host and the port of ``listen``."""
        host, _, port = (self.listen or "").rpartition(":")
        return (host.strip("[]"), int(port)) if host and port.isdecimal() else None


def _check_address(address: str) -> None:
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        port = 0
    else:
        if parts.scheme not in ("dask", "tcp", "tls") or not parts.hostname:
            raise ValueError("the address of a Dask scheduler is such as 'dask://host:8786' or 'tls://host:8786'")
    if not port:
        raise ValueError("the address of a Dask scheduler ends with its port, a number from 1 to 65535; 8786 is usual")


EXTRA = "agentos-parallel[dask]"


def find_missing_package() -> str | None:
    """Return the first package that a Dask cluster needs and that is not installed; None if all are. See ``EXTRA``."""
    return next((name for name in ("distributed", "cryptography") if find_spec(name) is None), None)
