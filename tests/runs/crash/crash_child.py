"""The process that is killed: ``python -m tests.runs.crash.crash_child FOLDER SCRIPT FD`` does one life of a run.

It writes a line to FD for each thing that happens, in one system call, so that the line is there whatever comes next:
``up`` (about to call the coordinator), ``began ID ATTEMPT``, ``ended ID``, ``told ID OUTCOME CACHED VALUE REPR`` (to
on_progress), ``ack ...`` (the result came out of the iterator, or of the list at the end), ``event KIND``, ``over
STATS``. With a gate in its script it says ``gate THREAD``, the one that will write to the journal, and waits until
standard input is closed.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import resource
import signal
import sys
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from agentos import (
    Context,
    Credential,
    CredentialCoordinator,
    ParallelCoordinator,
    ProgressStats,
    RateLimited,
    Transient,
    WorkflowResult,
)
from agentos.runs.progress import Progress
from agentos.util.clock import Alarm, Sleeper, SystemClock

from .expected_outcomes import SECRETS, Kind, Script, id_of, kind_of, value_of

FASTER = 50.0

Item = dict[str, Any]


class FastClock(SystemClock):
    """The machine's clock, but faster: the rests of a second and more, between attempts, then fit into a short life."""

    @staticmethod
    def now() -> float:
        return time.monotonic() * FASTER

    def wait(self, sleeper: Sleeper, until: float) -> None:
        super().wait(sleeper, until / FASTER)

    def call_at(self, loop: AbstractEventLoop, when: float, callback: Callable[[], object]) -> Alarm:
        return super().call_at(loop, when / FASTER, callback)


class Life:
    """One life of a run: its coordinator, its workers, and the line to the one who watches."""

    def __init__(self, folder: Path, script: Script, line: int) -> None:
        self.script = script
        self._folder = folder
        self._line = line
        self._ended = count(1)
        self._fate = signal.SIGSTOP if script.die_at is None else signal.SIGKILL
        self._last_word, self._last_count = script.die_at or script.still_at or ("", 0)
        self._said = count(1)  # of that word
        clock = FastClock()
        keys = [Credential(secret=secret, slots=script.slots) for secret in SECRETS[: script.keys]]
        self.coordinator = ParallelCoordinator(
            script.workers,
            CredentialCoordinator(keys, clock=clock),
            journal=folder,
            start=script.start,
            on_progress=self.hear,
            clock=clock,
        )

    def say(self, *words: object) -> None:
        os.write(self._line, (json.dumps(words) + "\n").encode())
        if words[0] == self._last_word and next(self._said) == self._last_count:
            os.kill(os.getpid(), self._fate)

    def wait_at_gate(self, thread_name: str) -> None:
        (thread,) = [thread.native_id for thread in threading.enumerate() if thread.name == thread_name]
        self.say("gate", thread)
        os.read(0, 1)

    # -- the work ---------------------------------------------------------------------------------------------

    def work(self, item: Item, credential: str, context: Context) -> Any:
        self.say("began", context.item_id, context.attempt)
        time.sleep(self.script.pause)
        return self._end(item, credential, context)

    async def work_async(self, item: Item, credential: str, context: Context) -> Any:
        self.say("began", context.item_id, context.attempt)
        await asyncio.sleep(self.script.pause)
        return self._end(item, credential, context)

    def _end(self, item: Item, credential: str, context: Context) -> Any:
        self.say("ended", context.item_id)
        if next(self._ended) == self.script.full_after:
            self.fill_the_disk()
        n, first = item["n"], context.attempt == 1
        match kind_of(n):
            case Kind.FAILS:
                raise ValueError(f"{credential} is of no use for {n}")
            case Kind.TRANSIENT if first:
                raise Transient(f"{credential} was cut off")
            case Kind.LIMITED if first:
                raise RateLimited(0.01)
        value = value_of(n)
        return value | {"bulk": "x" * self.script.bulk} if self.script.bulk and isinstance(value, dict) else value

    # -- what came of it --------------------------------------------------------------------------------------

    def acknowledge(self, result: WorkflowResult) -> None:
        self.show("ack", result)

    def show(self, word: str, result: WorkflowResult) -> None:
        value = None if self.script.bulk else result.value
        text = None if value is None else json.dumps(value, separators=(",", ":"))
        self.say(word, result.item_id, result.outcome, result.cached, text, result.value_repr)

    def hear(self, event: Progress) -> None:
        if event.result is None:
            self.say("event", event.kind)
        else:
            self.show("told", event.result)

    def fill_the_disk(self) -> None:
        """From now on no file of this process may be longer than the journal's log is now."""
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        length = (self._folder / "journal.sqlite-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (length, hard))
        self.say("full")

    # -- the ways to run it -----------------------------------------------------------------------------------

    def listed(self) -> list[Item]:
        return [{"n": n} for n in self.script.numbers]

    def one_by_one(self) -> Iterator[Item]:
        if self.script.gate == "item":
            self.wait_at_gate("agentos-journal")
        yield from self.listed()

    async def arriving(self) -> AsyncIterator[Item]:
        for item in self.listed():
            yield item

    def execute(self) -> ProgressStats:
        stats, results = self.coordinator.execute_parallel(self.listed(), self.work, id_of_item)
        for result in results:
            self.acknowledge(result)
        return stats

    def stream(self) -> None:
        for result in self.coordinator.stream(self.listed(), self.work, id_of_item):
            self.acknowledge(result)

    def stream_unsized(self) -> None:
        for result in self.coordinator.stream(self.one_by_one(), self.work, id_of_item):
            self.acknowledge(result)

    def coroutines(self) -> None:
        for result in self.coordinator.stream(self.listed(), self.work_async, id_of_item):
            self.acknowledge(result)

    def own_loop(self) -> None:
        async def follow() -> None:
            async for result in self.coordinator.stream_async(self.arriving(), self.work_async, id_of_item):
                self.acknowledge(result)

        asyncio.run(follow())


WAYS: dict[str, Callable[[Life], object]] = {
    "execute": Life.execute,
    "stream": Life.stream,
    "stream-unsized": Life.stream_unsized,
    "coroutines": Life.coroutines,
    "own-loop": Life.own_loop,
}


def id_of_item(item: Item) -> str:
    return id_of(item["n"])


def main(folder: str, script: str, line: str) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # for one that hangs
    life = Life(Path(folder), Script.from_text(script), int(line))
    life.say("up")
    if life.script.gate == "opening":
        life.wait_at_gate("MainThread")
    WAYS[life.script.way](life)
    stats = life.coordinator.stats
    assert stats is not None
    life.say(
        "over", {name: getattr(stats, name) for name in ("total", "completed", "success_count", "failed", "cached")}
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
