"""A program that uses agentos as a library: ``python -m tests.soak.driver FOLDER RUN KIND ITEMS``.

It runs ITEMS items with workers of one KIND over the keys that all drivers of FOLDER share, and appends a line to
``RUN.acknowledged`` for every result it receives. With KIND ``forks`` its workers fork, and the child asks the pool of
its parent for a key: it must be refused, and soon.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentos import Command, Context, Credential, CredentialCoordinator, ParallelCoordinator, StoreUnavailable

from .shared_keys import LEASE_TTL, SECRETS, SLOTS
from .use_key import EVERY, record_use, seconds_of


def main(folder: str, run: str, kind: str, items: str) -> None:
    root = Path(folder)
    logging.basicConfig(level=logging.WARNING)
    uses = os.open(root / f"{run}.uses", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    acknowledged = os.open(root / f"{run}.acknowledged", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    forked = os.open(root / "forked.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    pool = CredentialCoordinator(
        [Credential(secret, name=name, slots=SLOTS[name]) for name, secret in SECRETS.items()],
        store=f"sqlite:///{root / 'pool.sqlite'}",
        lease_ttl=LEASE_TTL,
    )

    def use_for_a_while(item: str, context: Context) -> None:
        until = time.monotonic() + seconds_of(item)
        while time.monotonic() < until:
            assert context.lease is not None
            record_use(uses, "function", item, context.lease.reveal())  # raises LeaseLost: others may have the key
            time.sleep(EVERY)

    def function(item: str, secret: str, context: Context) -> str:
        use_for_a_while(item, context)
        return f"answer to {item}"

    def forking(item: str, secret: str, context: Context) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which are the point here
            child = os.fork()
        if child == 0:
            ask_in_a_forked_child(pool, forked)
        result = function(item, secret, context)
        os.waitpid(child, 0)
        return result

    async def coroutine(item: str, secret: str, context: Context) -> str:
        await asyncio.to_thread(use_for_a_while, item, context)
        return f"answer to {item}"

    use_key = str(Path(__file__).with_name("use_key.py"))
    command = Command([sys.executable, "-I", "-S", use_key, f"{root}/{run}.uses", "{}"], kill_after=1.0, run_id=run)
    workers: dict[str, Command | Callable[..., Any]] = {
        "commands": command,
        "functions": function,
        "coroutines": coroutine,
        "forks": forking,
    }
    coordinator = ParallelCoordinator(4, pool, journal=root / run, grace=0.5)
    with pool:
        for result in coordinator.stream([f"{run}-{n}" for n in range(int(items))], workers[kind], str):
            os.write(acknowledged, f"{result.item_id} {result.outcome} {int(result.cached)}\n".encode())


def ask_in_a_forked_child(pool: CredentialCoordinator, report: int) -> None:
    """Ask for a lease, record what came of it, and end. The alarm ends a child that hangs; its silence is counted."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.write(report, b"asked\n")
    signal.setitimer(signal.ITIMER_REAL, 15.0)
    outcome = b"granted\n"
    try:
        contextvars.Context().run(pool.acquire, timeout=1.0)  # without its parent's item, whose lease it might be lent
    except StoreUnavailable as error:
        outcome = b"refused\n" if "forked" in str(error) else b"unclear\n"
    except BaseException:
        outcome = b"unclear\n"
    os.write(report, outcome)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
