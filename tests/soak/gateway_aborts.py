"""Clients that leave at random moments: nothing of them may be left in the gateway. Run by ``make soak``."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from random import Random
from typing import Any

import pytest

from agentos import Credential, CredentialCoordinator
from agentos.simulator import Latency, Simulator, equal_keys

ABORTS = int(os.environ.get("AGENTOS_SOAK_ABORTS", "2000"))
AT_ONCE = 64


async def abort_one(random: Random, url: str, token: str) -> None:
    """Send a request, or a part of it, and leave: at once, after a while, in mid-answer, or after all of it."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps(
        {"model": "gpt-4o", "stream": random.random() < 0.6, "messages": [], "n": random.random()}
    ).encode()
    head = f"host: {host}\r\nauthorization: Bearer {token}\r\ncontent-length: {len(body)}\r\n"
    data = f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + body
    reader, writer = await asyncio.open_connection(host, int(port))
    how = random.randrange(4)
    writer.write(data[: random.randrange(len(data))] if how == 0 else data)
    if how >= 2:
        try:
            async with asyncio.timeout(random.random() * 0.05):
                await reader.read(10 if how == 2 else -1)
        except TimeoutError:
            pass
    elif random.random() < 0.5:
        await asyncio.sleep(random.random() * 0.02)
    if random.random() < 0.5:
        writer.transport.abort()
    else:
        writer.close()


async def abort_many(pool: CredentialCoordinator, random: Random) -> dict[str, Any]:
    async with pool.gateway() as gateway:
        before: dict[str, int] = {}
        left = ABORTS

        async def client() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await abort_one(random, gateway.url, gateway.token)

        for count in (min(ABORTS, 500), ABORTS):  # what the first of them leave open stays open: connections upstream
            left = count
            await asyncio.gather(*(client() for _ in range(AT_ONCE)))
            while gateway.open_requests:
                await asyncio.sleep(0.01)
            for _ in range(50):
                await asyncio.sleep(0.01)
            found = {
                "descriptors": len(os.listdir("/proc/self/fd")),
                "tasks": len(asyncio.all_tasks()),
                "threads": threading.active_count(),
            }
            before = before or found
        return {"before": before, "after": found}


def test_clients_that_leave_at_random_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    plan = equal_keys(3, rpm=60_000, latency=Latency(0.01, 0.5))
    with Simulator(plan) as simulator:
        keys = [
            Credential(key.secret, name=f"key-{number}", provider="openai", base_url=simulator.url, slots=8)
            for number, key in enumerate(plan.keys)
        ]
        with CredentialCoordinator(keys) as pool:
            found = asyncio.run(abort_many(pool, Random(21)))
            assert all(state.leases == 0 for state in pool.snapshot())
    after, before = found["after"], found["before"]
    print(f"{ABORTS:,} clients left: {after}")  # noqa: T201 - the figure of the soak
    assert caplog.text == ""  # asyncio logs what a task or a callback raises
    assert after["tasks"] == before["tasks"]
    assert after["threads"] == before["threads"]
    assert after["descriptors"] <= before["descriptors"] + 24  # connections that are kept, as many as are used at once
