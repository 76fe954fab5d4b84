"""Check the value of ``engine=``."""

from __future__ import annotations

import sys
from typing import Any


def check_engine(wanted: Any) -> None:
    """Raise ValueError unless *wanted* is a valid value of ``engine=``."""
    if not (wanted is None or is_executor(wanted) or _is_dask(wanted)):
        raise ValueError(
            "engine must be an Executor of concurrent.futures, an address such as 'dask://host:port', a Client of "
            "distributed, or agentos.Dask(...); left out, items run on threads, a loop or as commands of this process"
        )
    if isinstance(wanted, str):
        from ..remote.dask_config import Dask

        Dask(wanted)  # reject an invalid address now


def is_executor(wanted: Any) -> bool:
    """Return True if *wanted* is an executor of concurrent.futures."""
    futures = sys.modules.get("concurrent.futures")  # an executor's owner has imported it
    return futures is not None and isinstance(wanted, futures.Executor)


def _is_dask(wanted: Any) -> bool:
    if isinstance(wanted, str):
        return wanted.startswith(("dask://", "tcp://", "tls://"))
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(wanted).__mro__}
    return not names.isdisjoint({"distributed.Client", "agentos.Dask"})
