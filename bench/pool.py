"""What the pool costs, beside its peers in the same run: ``python bench/pool.py [--quick]``.

Times are microseconds. A target is a bound on a ratio to the peer, never on a time: machines differ. Peer and pool
take turns, so that whatever else the machine does hits both. Nothing here fails a build; the last lines say which
targets were missed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import platform
import statistics
import threading
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from agentos import Credential, CredentialCoordinator, Lease

SLOTS = 8
SIZES = (10, 1_000, 100_000)
COOLING = 0.02
BATCH = 20  # operations between two looks at the clock
LONGEST_WAIT = 60.0  # a hand-off that takes longer is a bug of the benchmark or of the pool


@dataclass(frozen=True)
class Effort:
    repeats: int
    pairs: int  # in each repeat, of one thread
    seconds: float  # of each repeat with many threads
    handoffs: int
    coolings: int
    blocks: int  # so many turns of peer and pool
    measured_keys: int  # for the memory of one


FULL = Effort(9, pairs=40_000, seconds=1.0, handoffs=2_000, coolings=400, blocks=10, measured_keys=100_000)
QUICK = Effort(3, pairs=10_000, seconds=0.3, handoffs=200, coolings=40, blocks=2, measured_keys=10_000)


@dataclass
class Table:
    """Prints as it goes, and remembers what was missed."""

    missed: list[str] = field(default_factory=list)
    _section: str = ""

    def section(self, title: str, *columns: str) -> None:
        self._section = title
        print(f"\n{title:<48}" + "".join(f"{column:>10}" for column in columns) + "  ratios", flush=True)

    def row(
        self,
        name: str,
        figures: Sequence[float],
        peer: Sequence[float] = (),
        target: float | None = None,
        judged: Sequence[int] = (0,),
        note: str = "",
    ) -> None:
        """Figures, and each over the peer's if there is one; the target is for the ratios that are *judged*."""
        ratios = [mine / theirs for mine, theirs in zip(figures, peer, strict=False)]
        words = [" / ".join(f"{ratio:.2f}" for ratio in ratios)] if ratios else []
        if target is not None:
            missed = max(ratios[i] for i in judged) > target
            if missed:
                self.missed.append(f"{self._section}: {name}: {words[0]}, target {target:.1f}")
            words.append(f"target {target:.1f} {'MISSED' if missed else 'ok'}")
        if note:
            words.append(f"({note})")
        numbers = "".join(f"{figure:>10.2f}" for figure in figures)
        print("  ".join([f"  {name:<46}{numbers}", *words]), flush=True)


# -- what is measured -------------------------------------------------------------------------------------------


def pool_of(count: int, *, limited: bool = False) -> CredentialCoordinator:
    secrets = (f"bench-secret-{number:05}" for number in range(count))
    if not limited:
        return CredentialCoordinator(secrets)
    return CredentialCoordinator(Credential(secret, rpm=1e9, tpm=1e12) for secret in secrets)


class StubConnection:
    """As much of a connection as psycopg_pool looks at: always idle, never closed, and no server behind it."""

    transaction_status = 0  # psycopg.pq.TransactionStatus.IDLE
    closed = False

    def __init__(self) -> None:
        self.pgconn = self

    @classmethod
    def connect(cls, *_: object, **__: object) -> StubConnection:
        return cls()

    def close(self) -> None: ...


@cache
def psycopg_pool_class() -> Any | None:
    try:
        from psycopg_pool import ConnectionPool
    except ImportError as error:
        print(f"  psycopg_pool is left out: {str(error).splitlines()[0]}")
        return None
    return ConnectionPool


def psycopg_pool_of(count: int) -> Any | None:
    kind = psycopg_pool_class()
    return kind and kind("", connection_class=StubConnection, min_size=count, open=True)


def loop_of(statement: str, **names: Any) -> Callable[[int], float]:
    """A function that does *statement* so many times and returns the seconds of each.

    The loop is written around the statement, because a call for each would be a good part of the time.
    """
    waits = "await " in statement or "async " in statement
    source = f"""
{"async " if waits else ""}def run(times):
    began = clock()
    for _ in range(times):
        {statement}
    return (clock() - began) / times
"""
    names["clock"] = perf_counter
    exec(source, names)
    run = names["run"]
    return (lambda times: asyncio.run(run(times))) if waits else run


def in_turns(contenders: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Every contender once, then every contender again, so that a busy moment is nobody's alone. Sorted times."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, contender in contenders.items():
            times[name].append(contender() * 1e6)
    return {name: sorted(found) for name, found in times.items()}


# -- without waiting --------------------------------------------------------------------------------------------


def one_thread(table: Table, effort: Effort) -> None:
    table.section("acquire and release, one thread", "best", "worst")
    plain, limited, psycopg = pool_of(10), pool_of(10, limited=True), psycopg_pool_of(SLOTS)
    settled = "with pool.lease(cost={'tokens': 1000}) as lease: lease.settle(tokens=900)"
    loops = {
        "threading.Semaphore": loop_of("s.acquire(); s.release()", s=threading.Semaphore(SLOTS)),
        "with threading.Semaphore": loop_of("with s: pass", s=threading.Semaphore(SLOTS)),
        "asyncio.Semaphore": loop_of("await s.acquire(); s.release()", s=asyncio.Semaphore(SLOTS)),
        "with pool.lease()": loop_of("with pool.lease(): pass", pool=plain),
        "pool.acquire().release()": loop_of("pool.acquire().release()", pool=plain),
        "async with pool.lease()": loop_of("async with pool.lease(): pass", pool=plain),
        "with two limits, cost and settle": loop_of(settled, pool=limited),
        "async with two limits, cost and settle": loop_of(f"async {settled}", pool=limited),
    }
    targets = dict(zip(list(loops)[3:], (2.0, 2.0, 2.0, 4.0, 4.0), strict=True))
    if psycopg is not None:
        loops["psycopg_pool"] = loop_of("pool.putconn(pool.getconn())", pool=psycopg)
    times = in_turns({name: partial(loop, effort.pairs) for name, loop in loops.items()}, effort.repeats)
    peer, async_peer = times["threading.Semaphore"], times["asyncio.Semaphore"]
    for name, found in times.items():
        note = f"{found[0] / async_peer[0]:.2f} of asyncio.Semaphore" if name.startswith("async ") else ""
        table.row(name, (found[0], found[-1]), () if found is peer else peer[:1], targets.get(name), note=note)
    if psycopg is not None:
        psycopg.close()


def sizes(table: Table, effort: Effort) -> None:
    table.section("with pool.lease(), by number of keys, best", *(f"{size:,}" for size in SIZES))
    pools = [pool_of(size) for size in SIZES]
    size_row(table, "all free", pools, effort)
    leases = [[pool.acquire() for _ in range(size)] for pool, size in zip(pools, SIZES, strict=True)]
    for place, where in (("first", 0.0), ("middle", 0.5), ("last", 1.0)):
        at = [round(where * (size - 1)) for size in SIZES]
        for held, i in zip(leases, at, strict=True):
            held[i].release()
        size_row(table, f"only the {place} free, others leased", pools, effort)
        for pool, held, i in zip(pools, leases, at, strict=True):
            held[i] = pool.acquire()
    for held in leases:
        for lease in held[:-1]:
            lease.rate_limited(3600)
        for lease in held:
            lease.release()
    # Closed keys are looked at by the next request, all of them at once: a pause rather than a pace, so shown apart.
    first = [loop_of("pool.acquire().release()", pool=pool)(1) * 1e6 for pool in pools]
    table.row("the first pair after others began to cool", first)
    size_row(table, "only the last free, others cooling", pools, effort)
    for limited in (False, True):
        size = bytes_per_key(effort.measured_keys, limited=limited)
        print(f"  {size:,.0f} bytes per credential {'with rpm and tpm' if limited else 'without limits'}")


def size_row(table: Table, name: str, pools: Sequence[CredentialCoordinator], effort: Effort) -> None:
    loops = {str(i): partial(loop_of("with pool.lease(): pass", pool=p), effort.pairs) for i, p in enumerate(pools)}
    times = list(in_turns(loops, effort.repeats).values())
    best = [found[0] for found in times]
    worst = " ".join(f"{found[-1]:.2f}" for found in times)
    table.row(name, best, [best[0]] * len(best), 1.3, judged=(2,), note=f"worst {worst}")


def bytes_per_key(count: int, *, limited: bool) -> float:
    """Everything that is there because of one more credential, its secret included."""
    tracemalloc.start()
    pool = pool_of(count, limited=limited)
    traced, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return traced / pool.get_available_count()


# -- many threads -----------------------------------------------------------------------------------------------


def hammer(threads: int, seconds: float, loop: Callable[[int], object]) -> float:
    """Wall time per operation, when so many threads do nothing else.

    For a while, not for a number of times: what one thread can finish before the interpreter first switches to
    another was never contended.
    """
    go = threading.Event()
    done: list[int] = []

    def work() -> None:
        go.wait()
        ops = 0
        while perf_counter() < until:
            loop(BATCH)
            ops += BATCH
        done.append(ops)

    crowd = [threading.Thread(target=work) for _ in range(threads)]
    for thread in crowd:
        thread.start()
    began = perf_counter()
    until = began + seconds
    go.set()
    for thread in crowd:
        thread.join()
    return (perf_counter() - began) / sum(done)


def contention(table: Table, effort: Effort) -> None:
    table.section("8 slots, empty bodies, wall time per pair", "best", "median", "worst")
    for threads in (8, 64):
        psycopg = psycopg_pool_of(SLOTS)
        loops = {
            "threading.Semaphore": loop_of("with s: pass", s=threading.Semaphore(SLOTS)),
            "with pool.lease()": loop_of("with pool.lease(): pass", pool=pool_of(SLOTS)),
        }
        if psycopg is not None:
            loops["psycopg_pool"] = loop_of("pool.putconn(pool.getconn())", pool=psycopg)
        hammers = {name: partial(hammer, threads, effort.seconds, loop) for name, loop in loops.items()}
        times = in_turns(hammers, effort.repeats)
        peer = spread(times["threading.Semaphore"])
        for name, found in times.items():
            # A convoy of threads, once it has formed, stays: one repeat may cost many times another, for the peer as
            # well. So all are shown, and best, median and worst must each hold: no one of them tells the truth alone.
            note = " ".join(f"{each:.1f}" for each in found)
            versus = () if name == "threading.Semaphore" else peer
            target = 1.0 if name == "with pool.lease()" else None
            table.row(f"{threads} threads, {name}", spread(found), versus, target, (0, 1, 2), note)
        if psycopg is not None:
            psycopg.close()


def spread(times: Sequence[float]) -> tuple[float, float, float]:
    return min(times), statistics.median(times), max(times)


# -- waking up --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Baton:
    """Something one at a time holds, while the others wait for it."""

    take: Callable[[], Any]  # a coroutine function, if tasks wait
    give: Callable[[Any], float]  # returns the instant from which on another could have it
    waiting: Callable[[], int]
    close: Callable[[], object]  # ends all that wait, by an error


class Relay:
    """This thread gives the baton, one of a waiting crowd gets it and hands it back, and stands in line again."""

    def __init__(self, baton: Baton, crowd: int, *, tasks: bool) -> None:
        self._baton = baton
        self._crowd = crowd
        self._got: SimpleQueue[tuple[float, Any]] = SimpleQueue()
        members = [self._run_tasks] if tasks else [self._member] * crowd
        self._threads = [threading.Thread(target=member, daemon=True) for member in members]
        for thread in self._threads:
            thread.start()
        _, self._held = self._got.get(timeout=LONGEST_WAIT)  # it was free when they came

    def _member(self) -> None:
        try:
            while True:
                held = self._baton.take()
                self._got.put((perf_counter(), held))
        except Exception:
            return  # closed; anything else would show as a hand-off that never ends

    async def _task(self) -> None:
        try:
            while True:
                held = await self._baton.take()
                self._got.put((perf_counter(), held))
        except Exception:
            return

    def _run_tasks(self) -> None:
        async def all_of_them() -> None:
            await asyncio.gather(*(self._task() for _ in range(self._crowd)))

        asyncio.run(all_of_them())

    def lateness(self, rounds: int) -> list[float]:
        """From the instant the baton could be had to the first line of whoever got it."""
        found = []
        for _ in range(rounds):
            self._wait_for_the_crowd()
            due_at = self._baton.give(self._held)
            got_at, self._held = self._got.get(timeout=LONGEST_WAIT)
            found.append((got_at - due_at) * 1e6)
        return found

    def _wait_for_the_crowd(self) -> None:
        while self._baton.waiting() < self._crowd:
            time.sleep(0.0002)
        time.sleep(0.001)  # in line is not yet asleep

    def end(self) -> None:
        self._wait_for_the_crowd()
        self._baton.close()
        for thread in self._threads:
            thread.join()


class ConditionBaton:
    """The least that hands something on: one Condition, and a variable that says from when on it may be taken."""

    def __init__(self, delay: float) -> None:
        self._changed = threading.Condition()
        self._due_at: float | None = 0.0
        self._delay = delay
        self._waiting = 0
        self._closed = False

    def take(self) -> None:
        with self._changed:
            self._waiting += 1
            while self._due_at is None:
                self._changed.wait()
                if self._closed:
                    raise RuntimeError("closed")
            due_at, self._due_at = self._due_at, None
            # One sleeps until the instant, the others go on waiting without one.
            while self._delay and (left := due_at - perf_counter()) > 0:
                self._changed.wait(left)
            self._waiting -= 1

    def give(self, _: object) -> float:
        due_at = perf_counter() + self._delay
        with self._changed:
            self._due_at = due_at
            self._changed.notify(1)
        return due_at

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def bare_condition(delay: float = 0.0) -> Baton:
    bare = ConditionBaton(delay)
    return Baton(bare.take, bare.give, lambda: bare._waiting, bare.close)


def bare_future() -> Baton:
    """The least that wakes a task from another thread."""
    line: deque[asyncio.Future[None]] = deque()
    free = True

    async def take() -> None:
        nonlocal free
        if free:
            free = False
            return
        future = asyncio.get_running_loop().create_future()
        line.append(future)
        await future

    def give(_: object) -> float:
        due_at = perf_counter()
        future = line.popleft()
        future.get_loop().call_soon_threadsafe(future.set_result, None)
        return due_at

    def close() -> None:
        for future in line:
            future.get_loop().call_soon_threadsafe(future.set_exception, RuntimeError("closed"))

    return Baton(take, give, lambda: len(line), close)


def psycopg_baton(pool: Any) -> Baton:
    def give(connection: Any) -> float:
        due_at = perf_counter()
        pool.putconn(connection)
        return due_at

    return Baton(partial(pool.getconn, LONGEST_WAIT), give, lambda: len(pool._waiting), pool.close)


def pool_baton(delay: float = 0.0, *, tasks: bool = False) -> Baton:
    pool = pool_of(1)

    def give(lease: Lease) -> float:
        # Read before the call, so a little early if there is a delay: the pool looks later than it is, not earlier.
        due_at = perf_counter() + delay
        if delay:
            lease.rate_limited(delay)
        lease.release()
        return due_at

    return Baton(pool.acquire_async if tasks else pool.acquire, give, lambda: pool._runtime.core.waiting, pool.close)


def compare(table: Table, label: str, relays: Mapping[str, Relay], rounds: int, effort: Effort, target: float) -> None:
    """Rows of p50 and p99. The first relay is the peer, the last is the pool's."""
    times: dict[str, list[float]] = {name: [] for name in relays}
    for _ in range(effort.blocks):
        for name, relay in relays.items():
            times[name].extend(relay.lateness(rounds // effort.blocks))
    first, *_, last = relays
    for name, relay in relays.items():
        versus = () if name == first else percentiles(times[first])
        goal = target if name == last else None
        table.row(f"{label}, {name}", percentiles(times[name]), versus, goal, judged=(0, 1))
        relay.end()


def percentiles(times: Sequence[float]) -> tuple[float, float]:
    ranked = sorted(times)
    return ranked[len(ranked) // 2], ranked[len(ranked) * 99 // 100]


def thread_to_thread(table: Table, effort: Effort) -> None:
    table.section("from a release to the waiting thread", "p50", "p99")
    for crowd in (1, 64):
        batons = {"bare Condition": bare_condition()}
        psycopg = psycopg_pool_of(1)
        if psycopg is not None:
            batons["psycopg_pool"] = psycopg_baton(psycopg)
        batons["pool.acquire()"] = pool_baton()
        relays = {name: Relay(baton, crowd, tasks=False) for name, baton in batons.items()}
        compare(table, f"{crowd} waiting", relays, effort.handoffs, effort, target=1.3)


def thread_to_task(table: Table, effort: Effort) -> None:
    table.section("from a thread's release to the waiting task", "p50", "p99")
    for crowd in (1, 64):
        batons = {"bare call_soon_threadsafe": bare_future(), "pool.acquire_async()": pool_baton(tasks=True)}
        relays = {name: Relay(baton, crowd, tasks=True) for name, baton in batons.items()}
        compare(table, f"{crowd} waiting", relays, effort.handoffs, effort, target=1.5)


def end_of_cooling(table: Table, effort: Effort) -> None:
    table.section("from the end of a cooling to the waiting thread", "p50", "p99")
    for crowd in (1, 64):
        batons = {"Condition.wait(timeout)": bare_condition(COOLING), "pool.acquire()": pool_baton(COOLING)}
        relays = {name: Relay(baton, crowd, tasks=False) for name, baton in batons.items()}
        compare(table, f"{crowd} waiting", relays, effort.coolings, effort, target=1.5)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the credential pool beside its peers.")
    parser.add_argument("--quick", action="store_true", help="about twenty seconds instead of minutes")
    effort = QUICK if parser.parse_args().quick else FULL
    # Settings meant for real runs, and lines on a terminal, are not what is measured here.
    for setting in [name for name in os.environ if name.startswith("AGENTOS_")]:
        del os.environ[setting]
    logging.getLogger("agentos").setLevel(logging.CRITICAL)
    print(f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores; microseconds")
    table = Table()
    for section in (one_thread, sizes, contention, thread_to_thread, thread_to_task, end_of_cooling):
        section(table, effort)
    print("\nmissed targets:" if table.missed else "\nno target was missed")
    for missed in table.missed:
        print(f"  {missed}")


if __name__ == "__main__":
    main()
