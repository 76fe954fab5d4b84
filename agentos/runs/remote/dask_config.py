"""Settings of a Dask cluster as the engine of a run."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True, init=False)
class Dask:
    """A Dask cluster as ``engine=``: the address of its scheduler (``"dask://host:port"``), or a ``Client`` of it.

    At most *worker_slots* threads of the cluster are used at once, and never more than the run has workers; *seats* is
    the old name of that option and still works. A worker that is silent for *ttl* seconds is lost, and its items run
    again elsewhere; the default is 10, or half of a shared pool's ``lease_ttl`` if that is less, and more than half of
    it is refused. *listen*, ``"host:port"``, is where this process listens for the cluster's workers; the default is
    the address from which it reaches the scheduler.
    """

    cluster: Any
    _: KW_ONLY
    worker_slots: int | None
    ttl: float | None
    listen: str | None

    def __init__(
        self,
        cluster: Any,
        *,
        worker_slots: int | None = None,
        ttl: float | None = None,
        listen: str | None = None,
        seats: int | None = None,
    ) -> None:
        if seats is not None and worker_slots is not None:
            raise ValueError("give worker_slots or its old name seats, not both")
        slots = seats if worker_slots is None else worker_slots
        for name, value in (("cluster", cluster), ("worker_slots", slots), ("ttl", ttl), ("listen", listen)):
            object.__setattr__(self, name, value)
        if isinstance(cluster, str):
            _check_address(cluster)
        elif not hasattr(cluster, "submit"):
            raise ValueError("a Dask cluster is given by the address of its scheduler, or by a distributed.Client")
        if slots is not None and (isinstance(slots, bool) or not isinstance(slots, int) or slots < 1):
            option = "worker_slots" if seats is None else "seats"
            raise ValueError(f"{option} must be a whole number of at least 1, or left out")
        if ttl is not None and (
            isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not 1.0 <= ttl < math.inf
        ):
            raise ValueError("ttl must be a number of seconds of at least 1, or left out")
        if listen is not None and self.listening is None:
            raise ValueError("listen must be such as '10.0.0.5:9000'; port 0 means any that is free")

    @property
    def seats(self) -> int | None:
        """The old name of ``worker_slots``."""
        return self.worker_slots

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


PACKAGES = "distributed cryptography"  # as they are installed with pip


def find_missing_package() -> str | None:
    """Return the first package of ``PACKAGES`` that is not installed; None if all are."""
    return next((name for name in PACKAGES.split() if find_spec(name) is None), None)
