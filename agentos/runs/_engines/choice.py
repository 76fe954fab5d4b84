"""Which engine runs a worker. Each is imported only when it is wanted: a command line starts faster without asyncio."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .protocol import Engine

if TYPE_CHECKING:
    from ..run import Run


def engine_for(run: Run) -> Engine:
    """The engine for a caller who waits on a thread."""
    if run.worker.is_command:
        if not hasattr(os, "posix_spawn"):
            raise ValueError("commands need a POSIX system (Linux, macOS): give this run a function instead")
        from .commands import CommandEngine

        return CommandEngine(run)
    if run.worker.is_async:
        from .aio import LoopThread

        return LoopThread(run)
    from .threads import ThreadEngine

    return ThreadEngine(run)
