"""The values that ``engine=`` accepts."""

from __future__ import annotations

import sys
from typing import Any


def check_engine(wanted: Any) -> None:
    """Raises ValueError unless *wanted* is something that ``engine=`` can be."""
    if not (wanted is None or is_executor(wanted) or _is_dask(wanted)):
        raise ValueError(
            "engine must be an Executor of concurrent.futures, an address such as 'dask://host:port', a Client of "
            "distributed, or agentos.Dask(...); left out, items run on threads, a loop or as commands of this process"
        )
    if isinstance(wanted, str):
        from ..remote.dask_config import Dask

        Dask(wanted)  # an address that is none is refused now, not at night


def is_executor(wanted: Any) -> bool:
    """Tell whether *wanted* is an executor of concurrent.futures."""
    futures = sys.modules.get("concurrent.futures")  # who has an executor has imported it
    return futures is not None and isinstance(wanted, futures.Executor)


def _is_dask(wanted: Any) -> bool:
    if isinstance(wanted, str):
        return wanted.startswith(("dask://", "tcp://", "tls://"))
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(wanted).__mro__}
    return not names.isdisjoint({"distributed.Client", "agentos.Dask"})
