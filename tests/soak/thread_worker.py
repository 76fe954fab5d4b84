"""Worker function for ``agentos run --worker`` that works in its own threads, which cannot be stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from agentos import Context
from tests.soak.use_key import EVERY, is_stubborn, record_use, seconds_of

_STUCK = 20.0


def use_in_threads(item: str, secret: str, context: Context) -> str:
    """Use the key in a thread of an executor; with some items a second thread, and a subprocess, outlast a stop."""
    uses = os.open(os.environ["SOAK_USES"], os.O_WRONLY | os.O_APPEND)
    with ThreadPoolExecutor(2) as threads:
        work = threads.submit(_use, uses, item, context)
        if seconds_of(item) > 1.0 and is_stubborn(item):
            threads.submit(time.sleep, _STUCK)
            subprocess.run([sys.executable, "-I", "-S", "-c", "import time; time.sleep(9)"], check=False)
        work.result()
    return f"answer to {item}"


def _use(uses: int, item: str, context: Context) -> None:
    until = time.monotonic() + seconds_of(item)
    while time.monotonic() < until:
        assert context.lease is not None
        record_use(uses, "function", item, context.lease.reveal())
        time.sleep(EVERY)
