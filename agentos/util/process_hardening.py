"""Keep the memory of this process from other processes of the same user, and from core dumps."""

from __future__ import annotations

import sys

_PR_SET_DUMPABLE = 4


def harden_process() -> None:
    """Refuse debuggers and core dumps, where the system can; for processes of the command, which hold keys.

    On Linux other processes of the user cannot read this one's memory, environment or descriptors any more. Programs
    that it starts are ordinary ones again. Elsewhere only core dumps are turned off.
    """
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0:
            return  # no core is dumped of such a process; the limit would be inherited by the items' commands
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    except (ImportError, OSError, ValueError):
        pass
