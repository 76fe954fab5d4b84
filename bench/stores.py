"""What a pool shared by processes costs, beside its peers: ``python bench/stores.py [--quick] [--only pace ...]``.

Every contender is a crowd of processes of its own (this file again, with ``--child``) on a file of its own. They make
ready, then start at one instant; starting them is not measured. Contenders take turns, so that whatever else the
machine does hits all of them. What only one process can see, the pool in memory, is used by as many threads instead.
Instants are ``time.monotonic()``, which all processes of a machine share. Nothing here fails a build; the last lines
say which targets were missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import platform
import queue
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from importlib import metadata
from time import monotonic
from typing import Any

from cluster_servers import redis_server
from run import Failed, Report, Times, fsync_micros

from agentos import Credential, CredentialCoordinator, Lease

CROWDS = (1, 4, 16)  # processes, or threads where the pool is in memory
WAITING = (1, 16)
MANY_KEYS = 64
COOLING = 0.05
LONGEST_ACQUIRE = 20.0  # one that takes longer is a bug of the pool
LONGEST_WAIT = 60.0  # an answer that takes longer is one of the benchmark
LONGEST_END = 10.0
HEAD_START = 0.05  # from the word to the start: all of the crowd have heard it by then

PACE_TARGET = 0.25
WAKING_TARGET = 50.0
FAIRNESS_TARGET = 0.5

SHARED_THREADS = (2, 10, 64, 400)
SHARED_SLOTS = 50
SHARED_FOR = 0.001
SHARED_TTL = 5.0
SHARED_TARGET = 0.5  # of what 10 threads reach, with the most
LOOP_TARGET = 50.0


@dataclass(frozen=True)
class Effort:
    repeats: int
    seconds: float  # of each repeat
    fairness_seconds: float
    handoffs: int
    coolings: int


FULL = Effort(5, seconds=1.0, fairness_seconds=4.0, handoffs=1_000, coolings=200)
QUICK = Effort(2, seconds=0.3, fairness_seconds=1.0, handoffs=60, coolings=20)


# -- in the child: what is measured -----------------------------------------------------------------------------------
#
# Each is a context that imports, makes ready, and hands out the one thing to do again and again.

Act = Callable[[], object]


def pool_of(folder: str, store: str, keys: int, limited: bool = False) -> CredentialCoordinator:
    secrets = [f"bench-secret-{number:05}" for number in range(keys)]
    kept = "memory" if store == "memory" else f"sqlite:///{folder}/pool.sqlite"
    if not limited:
        return CredentialCoordinator(secrets, store=kept)
    return CredentialCoordinator([Credential(secret, rpm=1e9, tpm=1e12) for secret in secrets], store=kept)


@contextmanager
def pair(folder: str, store: str, keys: int) -> Iterator[Act]:
    with pool_of(folder, store, keys) as pool:
        yield lambda: pool.acquire(timeout=LONGEST_ACQUIRE).release()


@contextmanager
def settled(folder: str, store: str, keys: int) -> Iterator[Act]:
    with pool_of(folder, store, keys, limited=True) as pool:

        def reserve_and_settle() -> None:
            with pool.lease(timeout=LONGEST_ACQUIRE, cost={"tokens": 1000}) as lease:
                lease.settle(tokens=900)

        yield reserve_and_settle


@contextmanager
def bare(folder: str) -> Iterator[Act]:
    """The least that a shared count costs, on the pool's settings; a pair is two such transactions and the rules."""
    connection = sqlite3.connect(f"{folder}/bare.sqlite", timeout=0, isolation_level=None)
    execute = connection.execute

    def insist(*statements: str) -> None:
        while True:
            try:
                for statement in statements:
                    execute(statement)
            except sqlite3.OperationalError:
                time.sleep(random.uniform(0.000_2, 0.002))
            else:
                return

    insist("pragma journal_mode = wal", "pragma synchronous = normal")
    insist("create table if not exists counters(id integer primary key, n integer not null) strict")
    insist("insert or ignore into counters values (1, 0)")

    def count() -> None:
        insist("begin immediate")
        execute("update counters set n = n + 1")
        execute("commit")

    with closing(connection):
        yield count


@contextmanager
def pyrate(folder: str, file_lock: bool) -> Iterator[Act]:
    """One acquire; there is nothing to give back.

    Only with the file lock may several processes use the file; then it has a write-ahead log that is not synced at each
    commit, as the pool's has. By default it is synced. Either way it counts what is in the window, so a long one is
    slower: this is the shortest that has a name there.
    """
    from pyrate_limiter import Duration, Limiter, Rate, SQLiteBucket

    rates = [Rate(10**9, Duration.SECOND)]
    bucket = SQLiteBucket.init_from_file(rates, db_path=f"{folder}/pyrate.sqlite", use_file_lock=file_lock)
    with Limiter(bucket) as limiter:

        def acquire() -> None:
            if limiter.try_acquire("bench") is not True:
                raise RuntimeError("it would have waited")

        yield acquire


CASES: dict[str, Callable[..., AbstractContextManager[Act]]] = {
    case.__name__: case for case in (pair, settled, bare, pyrate)
}

Say = Callable[[dict[str, Any]], None]


def hammer(
    say: Say, orders: Iterator[str], case: str, threads: int, batch: int, seconds: float, options: dict[str, Any]
) -> None:
    """Do nothing else for so long, looking at the clock after each *batch*: how often each thread did it."""
    with CASES[case](**options) as act:
        act()
        say({"ready": True})
        start_at = float(next(orders))
        until = start_at + seconds
        counts = [0] * threads

        def work(mine: int) -> None:
            time.sleep(max(0.0, start_at - monotonic()))
            done = 0
            while monotonic() < until:
                counts[mine] = done  # what was not done in time does not count
                for _ in range(batch):
                    act()
                done += batch

        crowd = [threading.Thread(target=work, args=(mine,)) for mine in range(1, threads)]
        for thread in crowd:
            thread.start()
        work(0)
        for thread in crowd:
            thread.join()
        say({"counts": counts})
        next(orders, "")  # whoever is done first must not disturb the others by leaving


def stand_in_line(say: Say, orders: Iterator[str], folder: str) -> None:
    """One of those who wait for the only key, in a process of its own."""
    with pool_of(folder, "sqlite", keys=1) as pool:
        pool.snapshot()
        say({"ready": True})
        obey(pool, say, orders)


def obey(pool: CredentialCoordinator, say: Say, orders: Iterable[str]) -> None:
    """Take the key or give it back, as ordered, and say from when on another could have it or when we had it."""
    lease: Lease | None = None
    for order in orders:
        if order == "take":
            lease = pool.acquire(timeout=LONGEST_ACQUIRE)
            say({"got_at": monotonic()})
        elif lease is not None:
            # Read before the call, so a little early if it cools: the pool looks later than it is, not earlier.
            due_at = monotonic()
            if order == "cool":
                due_at += COOLING
                lease.rate_limited(COOLING)
            lease.release()
            lease = None
            say({"due_at": due_at})
    if lease is not None:
        lease.release()


def share_threads(say: Say, orders: Iterator[str], store: str, threads: int, seconds: float) -> None:
    """Threads take leases for a millisecond each, and so does a task: how many, and how late its event loop was."""
    credential = Credential("bench-secret-00000", slots=SHARED_SLOTS)
    with CredentialCoordinator([credential], store=store, lease_ttl=SHARED_TTL) as pool:
        with pool.lease(timeout=LONGEST_ACQUIRE):
            say({"ready": True})
        next(orders)
        until = monotonic() + seconds
        counts, late = [0] * threads, [0.0]

        def work(mine: int) -> None:
            while monotonic() < until:
                with pool.lease(timeout=LONGEST_ACQUIRE):
                    time.sleep(SHARED_FOR)
                counts[mine] += 1

        async def lease_now_and_then() -> None:
            while monotonic() < until:
                async with pool.lease(timeout=LONGEST_ACQUIRE):
                    await asyncio.sleep(SHARED_FOR)

        async def measure() -> None:
            user = asyncio.create_task(lease_now_and_then())
            while monotonic() < until:
                began = monotonic()
                await asyncio.sleep(SHARED_FOR)
                late.append(monotonic() - began - SHARED_FOR)
            await user

        crowd = [threading.Thread(target=work, args=(mine,)) for mine in range(threads)]
        for thread in crowd:
            thread.start()
        asyncio.run(measure())
        for thread in crowd:
            thread.join()
        say({"counts": counts, "late": sorted(late)})
        next(orders, "")


TASKS: dict[str, Callable[..., None]] = {task.__name__: task for task in (hammer, stand_in_line, share_threads)}


def child(request: str) -> None:
    """Do one task. Orders are lines of standard input, and when it ends so do we; answers are lines of the output."""
    logging.getLogger("agentos").setLevel(logging.CRITICAL)
    task = json.loads(request)

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), flush=True)

    try:
        TASKS[task.pop("task")](say, map(str.strip, iter(sys.stdin.readline, "")), **task)
    except ImportError as error:
        say({"failed": f"{error}; `make bench` installs it"})
    except Exception as error:
        say({"failed": f"{type(error).__name__}: {error}"})


# -- in the parent: crowds --------------------------------------------------------------------------------------------


class Crowd:
    """Children that do the same task, ready for orders. At the end they go by themselves, or are killed."""

    script = __file__  # what a child runs

    def __init__(self, size: int, task: str, **arguments: Any) -> None:
        request = json.dumps({"task": task, **arguments})
        # Settings meant for real runs are not what is measured here.
        settings = {name: value for name, value in os.environ.items() if not name.startswith("AGENTOS_")}
        self._answers: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
        self._children: list[subprocess.Popen[str]] = []
        try:
            for number in range(size):
                process = subprocess.Popen(
                    [sys.executable, self.script, "--child", request],
                    env=settings,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    bufsize=1,
                )
                self._children.append(process)
                threading.Thread(target=self._listen, args=(number, process), daemon=True).start()
                if number == 0:
                    self.answer()  # it makes the file: opening a new one all at once is not what is measured
            for _ in range(1, size):
                self.answer()
        except BaseException:
            self._kill()
            raise

    def _listen(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._answers.put((number, json.loads(line)))
        self._answers.put((number, {"failed": "it ended without an answer"}))

    def order(self, number: int, order: str) -> None:
        stdin = self._children[number].stdin
        assert stdin is not None
        stdin.write(f"{order}\n")

    def answer(self) -> tuple[int, dict[str, Any]]:
        """The next answer, and whose it is."""
        try:
            number, answer = self._answers.get(timeout=LONGEST_WAIT)
        except queue.Empty:
            raise Failed(f"no answer in {LONGEST_WAIT:.0f} s") from None
        if "failed" in answer:
            raise Failed(answer["failed"])
        return number, answer

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        deadline = monotonic() + LONGEST_END
        try:
            for process in self._children:
                assert process.stdin is not None
                process.stdin.close()
            for process in self._children:
                process.wait(max(0.0, deadline - monotonic()))
        except (OSError, subprocess.TimeoutExpired):
            pass  # then they are killed
        finally:
            self._kill()

    def _kill(self) -> None:
        for process in self._children:
            process.kill()
            process.wait()


# -- how many -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contender:
    name: str
    case: str
    options: dict[str, Any] = field(default_factory=dict)
    peers: dict[str, float | None] = field(default_factory=dict)  # names it is measured by, and the target if there is

    @property
    def in_threads(self) -> bool:
        return self.options.get("store") == "memory"


def counts_of(contender: Contender, crowd: int, seconds: float) -> list[int]:
    """How often each process or thread of a crowd did it."""
    processes, threads = (1, crowd) if contender.in_threads else (crowd, 1)
    with tempfile.TemporaryDirectory(prefix="agentos-bench-") as folder:
        options = {**contender.options, "folder": folder}
        batch = 20 if contender.in_threads else 1
        task = {"case": contender.case, "threads": threads, "batch": batch, "seconds": seconds, "options": options}
        with Crowd(processes, "hammer", **task) as children:
            start_at = monotonic() + HEAD_START
            for number in range(processes):
                children.order(number, repr(start_at))
            return [count for _ in range(processes) for count in children.answer()[1]["counts"]]


def in_turns(
    report: Report, contenders: Sequence[Contender], crowd: int, repeats: int, seconds: float
) -> dict[str, list[list[int]]]:
    """Every contender once, then every contender again: the counts of each turn. One that fails is left out."""
    turns: dict[str, list[list[int]]] = {contender.name: [] for contender in contenders}
    for _ in range(repeats):
        for contender in contenders:
            if contender.name in turns:
                try:
                    turns[contender.name].append(counts_of(contender, crowd, seconds))
                except Failed as why:
                    report.left_out(contender.name, why)
                    del turns[contender.name]
    return turns


BARE = "bare transaction"
DEFAULTS, FILE_LOCK = "PyrateLimiter, defaults", "PyrateLimiter, file lock"
MEMORY, SQLITE = "agentos, memory, 1 key", "agentos, SQLite, 1 key"
LIMITED = "agentos, memory, two limits, reserve and settle"
MEMORY_PAIR, SQLITE_PAIR = {"store": "memory", "keys": 1}, {"store": "sqlite", "keys": 1}


def contenders_for(crowd: int) -> list[Contender]:
    alone = crowd == 1
    target = PACE_TARGET if alone else None
    peers = {BARE: None, FILE_LOCK: target} | ({DEFAULTS: target} if alone else {})
    found = [
        Contender(BARE, "bare"),
        Contender(FILE_LOCK, "pyrate", {"file_lock": True}),
        Contender(MEMORY, "pair", MEMORY_PAIR),
        Contender(f"agentos, memory, {MANY_KEYS} keys", "pair", {**MEMORY_PAIR, "keys": MANY_KEYS}),
        Contender(SQLITE, "pair", SQLITE_PAIR, peers),
        Contender(f"agentos, SQLite, {MANY_KEYS} keys", "pair", {**SQLITE_PAIR, "keys": MANY_KEYS}, peers),
    ]
    if alone:
        found[1:1] = [Contender(DEFAULTS, "pyrate", {"file_lock": False})]
        found += [
            Contender(LIMITED, "settled", MEMORY_PAIR),
            Contender(LIMITED.replace("memory", "SQLite"), "settled", SQLITE_PAIR, {BARE: None, SQLITE: None}),
        ]
    return found


def pace(report: Report, effort: Effort) -> None:
    for crowd in CROWDS:
        title = "one process" if crowd == 1 else f"{crowd} processes (in memory: threads)"
        report.section(f"{title}, wall time per pair", "pairs/s", "us", "worst us")
        contenders = contenders_for(crowd)
        turns = in_turns(report, contenders, crowd, effort.repeats, effort.seconds)
        times = {
            name: Times([effort.seconds / max(sum(counts), 1) * 1e6 for counts in found])
            for name, found in turns.items()
        }
        for contender in contenders:
            if contender.name in times:
                found = times[contender.name]
                figures = (1e6 / found.median, found.median, found.worst)
                report.row(contender.name, figures, *ratios(report, contender, times))


def ratios(report: Report, contender: Contender, times: dict[str, Times]) -> Iterator[str]:
    """By each peer that could be measured: the medians, and the worst."""
    for peer, target in contender.peers.items():
        if peer in times:
            found = times[contender.name].over(times[peer])
            said = " / ".join(f"{ratio:.2f}x" for ratio in found)
            if target is not None:
                said = report.judge(f"{contender.name}, by {peer}", found, target)
            yield f"by {peer}: {said}"


def fairness(report: Report, effort: Effort) -> None:
    crowd = max(CROWDS)
    report.section(f"{crowd} processes (in memory: threads), how often each", "slowest", "mean", "fastest")
    contenders = [
        Contender(BARE, "bare"),
        Contender(FILE_LOCK, "pyrate", {"file_lock": True}),
        Contender(MEMORY, "pair", MEMORY_PAIR),
        Contender(SQLITE, "pair", SQLITE_PAIR),
    ]
    turns = in_turns(report, contenders, crowd, min(effort.repeats, 3), effort.fairness_seconds)
    for name, found in turns.items():
        shares = [min(counts) * len(counts) / max(sum(counts), 1) for counts in found]
        worst = found[shares.index(min(shares))]
        figures = (min(worst), sum(worst) / len(worst), max(worst))
        said = f"{min(shares):.2f}"
        if name == SQLITE:
            said = report.judge(name, [min(shares)], FAIRNESS_TARGET, "", least=True)
        report.row(name, figures, f"slowest by mean: {said}", f"({' '.join(f'{share:.2f}' for share in shares)})")


# -- waking up ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One that has the key and others that wait for it, each of them doing what ``obey`` does."""

    size: int
    order: Callable[[int, str], None]
    answer: Callable[[], tuple[int, dict[str, Any]]]
    waiting: Callable[[], int]

    def lateness(self, rounds: int, order: str) -> Iterator[float]:
        """Milliseconds from the instant the key could be had to the return of whoever got it."""
        for number in range(self.size):
            self.order(number, "take")
        holder, _ = self.answer()
        for _ in range(rounds):
            self._wait_for_the_others()
            self.order(holder, order)
            giver, due_at, got_at = holder, 0.0, 0.0
            for _ in range(2):  # in either order: the giver may be the last to say so
                number, answer = self.answer()
                due_at = answer.get("due_at", due_at)
                if "got_at" in answer:
                    holder, got_at = number, answer["got_at"]
            self.order(giver, "take")
            yield (got_at - due_at) * 1e3
        self._wait_for_the_others()

    def _wait_for_the_others(self) -> None:
        deadline = monotonic() + LONGEST_WAIT
        while self.waiting() < self.size - 1:
            if monotonic() > deadline:
                raise Failed(f"only {self.waiting()} of {self.size - 1} wait")
            time.sleep(0.001)
        time.sleep(random.uniform(0.001, 0.01))  # in line is not yet asleep; and at no moment in particular


@contextmanager
def line_of_processes(size: int) -> Iterator[Line]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="agentos-bench-"))
        crowd = stack.enter_context(Crowd(size, "stand_in_line", folder=folder))
        looking = sqlite3.connect(f"file:{folder}/pool.sqlite?mode=ro", uri=True, isolation_level=None)
        stack.enter_context(closing(looking))

        def waiting() -> int:
            (count,) = looking.execute("select count(*) from sessions where waiting_since is not null").fetchone()
            return int(count)

        yield Line(size, crowd.order, crowd.answer, waiting)


@contextmanager
def line_of_threads(size: int) -> Iterator[Line]:
    answers: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
    orders: list[queue.SimpleQueue[str]] = [queue.SimpleQueue() for _ in range(size)]
    pool = pool_of("", "memory", keys=1)

    def member(number: int) -> None:
        obey(pool, lambda answer: answers.put((number, answer)), iter(orders[number].get, ""))

    threads = [threading.Thread(target=member, args=(number,), daemon=True) for number in range(size)]
    for thread in threads:
        thread.start()
    try:
        yield Line(
            size,
            lambda number, order: orders[number].put(order),
            lambda: answers.get(timeout=LONGEST_WAIT),
            lambda: pool._runtime.core.waiting,
        )
    finally:
        for each in orders:
            each.put("")  # whoever has the key gives it back, and so on until all have had it
        for thread in threads:
            thread.join(LONGEST_END)


def waking(report: Report, effort: Effort) -> None:
    given = "from a release to the return of who waits, ms"
    cooled = f"from the end of a cooling of {COOLING * 1e3:g} ms, ms"
    for title, order, rounds in ((given, "give", effort.handoffs), (cooled, "cool", effort.coolings)):
        report.section(title, "p50", "p99", "longest")
        for waiting in WAITING:
            lines = {f"memory, threads, {waiting} waiting": line_of_threads(waiting + 1)}
            lines[f"SQLite, processes, {waiting} waiting"] = line_of_processes(waiting + 1)
            for name, line in lines.items():
                try:
                    with line as ready:
                        late = sorted(ready.lateness(rounds, order))
                except Failed as why:
                    report.left_out(name, why)
                    continue
                figures = (late[len(late) // 2], late[len(late) * 99 // 100], late[-1])
                words = report.judge(name, figures[1:2], WAKING_TARGET, " ms") if "SQLite" in name else ""
                report.row(name, figures, words and f"p99: {words}")


# -- many threads in one process ------------------------------------------------------------------------------------


def crowded(report: Report, effort: Effort) -> None:
    """How a pool holds up when many threads of a process want leases of a shared store at once."""
    title = f"threads, {SHARED_SLOTS} slots, leases of {SHARED_FOR * 1e3:g} ms, and how late a loop is, ms"
    report.section(title, "leases/s", "late p99", "longest")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="agentos-bench-"))
        stores = {"SQLite": f"sqlite:///{folder}/pool.sqlite"}
        try:
            stores["Redis"] = stack.enter_context(redis_server()).url()
        except Failed as why:
            report.left_out("Redis", why)
        for name, store in stores.items():
            few: float | None = None
            for threads in SHARED_THREADS:
                found = [share_once(store, threads, effort.seconds) for _ in range(effort.repeats)]
                rates = sorted(sum(counts) / effort.seconds for counts, _ in found)
                late = sorted(each for _, lateness in found for each in lateness)
                figures = (rates[len(rates) // 2], late[len(late) * 99 // 100] * 1e3, late[-1] * 1e3)
                said = []
                if few is not None and threads == max(SHARED_THREADS):
                    by = figures[0] / few
                    said.append("by 10: " + report.judge(f"{name}, {threads}", [by], SHARED_TARGET, "x", least=True))
                    said.append("longest: " + report.judge(f"{name}, loop", [figures[2]], LOOP_TARGET, " ms"))
                few = figures[0] if threads == 10 else few
                report.row(f"{name}, {threads} threads", figures, *said)


def share_once(store: str, threads: int, seconds: float) -> tuple[list[int], list[float]]:
    with Crowd(1, "share_threads", store=store, threads=threads, seconds=seconds) as child:
        child.order(0, "go")
        answer = child.answer()[1]
        return answer["counts"], answer["late"]


SECTIONS: dict[str, Callable[[Report, Effort], None]] = {
    "pace": pace,
    "fairness": fairness,
    "waking": waking,
    "crowded": crowded,
}


def machine() -> str:
    try:
        peer = f"PyrateLimiter {metadata.version('pyrate-limiter')}"
    except metadata.PackageNotFoundError:
        peer = "no PyrateLimiter (`make bench` installs it)"
    return (
        f"{platform.python_implementation()} {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"fsync {fsync_micros():.0f} us in {tempfile.gettempdir()}\n"
        f"{peer}, whose pair is one acquire; ratios of medians / of the worst repeats"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the pool that processes share, beside its peers.")
    parser.add_argument("--quick", action="store_true", help="about two minutes instead of ten; no verdict")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="NAME")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    effort = QUICK if arguments.quick else FULL
    effort = replace(effort, repeats=arguments.repeats or effort.repeats)
    for setting in [name for name in os.environ if name.startswith("AGENTOS_")]:
        del os.environ[setting]
    logging.getLogger("agentos").setLevel(logging.CRITICAL)
    print(machine(), flush=True)
    report = Report()
    for name in arguments.only:
        SECTIONS[name](report, effort)
    print(f"\n{report.verdict()}")
    if arguments.quick:
        print("(quick: too short to judge by)")


if __name__ == "__main__":
    main()
