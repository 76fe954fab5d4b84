"""The event loop that is running here, asked for without importing asyncio: where nobody has imported it, none is.

That import takes as long as all of the pool's own modules; a command line that runs commands never needs it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


def running_loop() -> AbstractEventLoop | None:
    """The running loop of this thread, if there is one."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()
