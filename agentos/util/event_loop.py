"""Find the running event loop without importing asyncio: as long as asyncio is not imported, there is none.

The import takes as long as all of the pool's own modules, and the command line does not need it to run commands.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


def running_loop() -> AbstractEventLoop | None:
    """Return the running loop of this thread, if there is one."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()
