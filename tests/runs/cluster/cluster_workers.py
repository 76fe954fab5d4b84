"""Worker functions that can be found by name in any process. ``GATES`` are for those that run in this very one."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import threading
from pathlib import Path
from typing import Any

from agentos import RateLimited

WAIT = 20.0


class Gates:
    """Where a worker and its test meet. A worker looks for them once: when it ends, another test may have others."""

    def __init__(self) -> None:
        self.arrived = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.seen: list[Any] = []


GATES = Gates()


def new_gates() -> Gates:
    """For one test."""
    global GATES
    GATES = Gates()
    return GATES


def doubled(item: int, _credential: str | None) -> int:
    return item * 2


def with_secret(item: Any, credential: str | None) -> list[Any]:
    return [item, credential]


def broken(item: Any, _credential: str | None) -> None:
    raise LookupError(f"nothing for {item}")


def told_all(item: Any, _credential: str | None, context: Any) -> list[Any]:
    context.log.warning("begun with %s", item)
    context.settle(input_tokens=3, output_tokens=4)
    return [context.item_id, context.index, context.attempt, context.lease.name, context.lease.held]


def limited_once(item: Any, _credential: str | None, context: Any) -> int:
    if context.attempt == 1:
        raise RateLimited(0.05)
    return int(context.attempt)


def waits_for_gate(item: Any, _credential: str | None, context: Any) -> list[Any]:
    gates = GATES
    gates.arrived.release()
    assert gates.go_on.wait(WAIT)
    lease = context.lease
    gates.seen.append((context.attempt, context.stopping.is_set(), None if lease is None else lease.held))
    return [item, context.attempt]


def waits_for_stop(item: Any, _credential: str | None, context: Any) -> Any:
    GATES.arrived.release()
    assert context.stopping.wait(WAIT)
    return item


def first_waits(item: Any, _credential: str | None, context: Any) -> list[Any]:
    """The first attempt waits at the gate, others do not."""
    return waits_for_gate(item, _credential, context) if context.attempt == 1 else [item, context.attempt]


def logs_then_first_waits(item: Any, credential: str | None, context: Any) -> list[Any]:
    context.log.warning("begun")
    return first_waits(item, credential, context)


def says_limited_then_waits(item: Any, _credential: str | None, context: Any) -> Any:
    gates = GATES
    context.lease.rate_limited(30)
    gates.arrived.release()
    assert gates.go_on.wait(WAIT)
    return item


def too_large(_item: Any, _credential: str | None) -> bytes:
    return b"x" * 10_000


def process_at_the_meeting(item: tuple[str, int, int], _credential: str | None) -> int:
    """Where it runs; it goes on only when as many are in the folder as are to meet there."""
    folder, count, number = item
    (Path(folder) / str(number)).touch()
    for _ in range(int(WAIT / 0.01)):
        if len(os.listdir(folder)) >= count:
            return os.getpid()
        threading.Event().wait(0.01)
    raise RuntimeError("the others did not come")


def touches_then_waits_for_stop(item: str, _credential: str | None, context: Any) -> str:
    Path(item).touch()
    return "stopped" if context.stopping.wait(WAIT) else "not stopped"


def fails_with_its_secret_when_let_go(item: list[str], credential: str | None, context: Any) -> None:
    """Says that it has begun, waits until a file is gone, and then shows its secret wherever it can."""
    begun, hold = map(Path, item)
    begun.with_suffix(".new").write_text(str(len(credential or "")))
    begun.with_suffix(".new").rename(begun)
    for _ in range(int(WAIT / 0.01)):
        if not hold.exists():
            break
        threading.Event().wait(0.01)
    context.log.error("the key is %s", credential)
    raise ValueError(f"no entry for {credential}")


async def meet_in_folder(item: tuple[str, int, int], _credential: str | None) -> int:
    """Goes on only when as many are in the folder as are to meet there."""
    folder, count, number = item
    (Path(folder) / str(number)).touch()
    while len(os.listdir(folder)) < count:
        await asyncio.sleep(0.02)
    return number


async def doubled_later(item: int, _credential: str | None) -> int:
    await asyncio.sleep(0)
    return item * 2


async def all_at_once(item: int, _credential: str | None) -> int:
    """Goes on only when as many are there as the item says."""
    gates = GATES
    gates.seen.append(item)
    while len(gates.seen) < item:
        await asyncio.sleep(0.001)
    return item


async def never_ends(item: Any, _credential: str | None) -> None:
    gates = GATES
    gates.arrived.release()
    try:
        await asyncio.Event().wait()
    finally:
        gates.seen.append("cancelled")
        gates.go_on.set()


async def touches_and_never_ends(item: str, _credential: str | None) -> None:
    Path(item).touch()
    await asyncio.Event().wait()


def call_of_provider(item: list[Any], credential: str | None) -> int:
    """One real HTTP call with the key."""
    host, number = item
    connection = http.client.HTTPConnection(host, timeout=WAIT)
    try:
        connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps({"model": "any", "messages": [{"role": "user", "content": str(number)}]}),
            {"authorization": f"Bearer {credential}", "content-type": "application/json"},
        )
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {text[:200]!r}")
    return int(number)


def stays_with_its_key(item: Any, _credential: str | None, context: Any) -> Any:
    """Whoever comes later can see whether it still holds its key."""
    gates = GATES
    gates.seen.append(context)
    gates.arrived.release()
    assert gates.go_on.wait(WAIT)
    return item


def others_hold_a_key(_item: Any, _credential: str | None) -> list[bool]:
    """Whether those before it still do, now that it has one."""
    return [other.lease.held for other in GATES.seen]
