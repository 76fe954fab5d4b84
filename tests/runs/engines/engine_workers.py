"""Workers that other processes can import by name. Imports little: it is imported there."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

from agentos import RateLimited


class Picky(Exception):
    """Cannot be made again from its text."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{code}: {why}")


def double(item: int, credential: str | None) -> int:
    return item * 2


async def double_later(item: int, credential: str | None) -> int:
    await asyncio.sleep(0)
    return item * 2


def give_all(item: Any, credential: str | None) -> Any:
    return item, credential


def three_fails(item: int, credential: str | None) -> int:
    if item == 3:
        raise Picky(3, "no threes")
    return os.getpid()


def say_much(item: int, credential: str | None, context: Any) -> Any:
    """The first attempt is limited; the second finds what the first has left."""
    context.log.warning("attempt %d", context.attempt)
    context.settle(input_tokens=10, output_tokens=5)
    if context.attempt == 1:
        context.checkpoint.write_text("half")
        raise RateLimited(0.01)
    return context.checkpoint.read_text(), context.lease.name, context.lease.reveal() == credential


def give_a_lock(item: int, credential: str | None) -> Any:
    return threading.Lock() if item == 1 else item


def kill_process(item: int, credential: str | None) -> int:
    if item == 1:
        os._exit(1)
    return item


def task_of_dask(item: Any, credential: str | None) -> str:
    """The name of the task of Dask in which it runs."""
    from distributed import get_worker

    return str(get_worker().get_current_task())
