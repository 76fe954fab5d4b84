"""What a run costs, beside its peers in the same run: ``python bench/run.py [--quick] [--only items ...]``.

Times are microseconds an item, median and worst of the repeats. A target is a bound on a ratio to a peer, or on one of
our own figures to another; only memory and resuming have bounds of their own. Every measurement is a process of its
own (this file again, with ``--child``), because memory that one has used cannot be told from what the next one uses;
contenders take turns, so that whatever else the machine does hits all of them. Nothing here fails a build; the last
lines say which targets were missed.

Short runs lie. A convoy of threads on a lock forms after a while or never, and then stays: the rows to judge by have
200,000 items and more, and the worst repeat counts as well.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import os
import platform
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any

from agentos import Credential, CredentialCoordinator, ParallelCoordinator

WORKERS = 8
MANY_WORKERS = 64
IN_FLIGHT = 2_000
LONG_ENOUGH = 200_000  # items, for a verdict
LONGEST_CHILD = 900.0  # seconds; one that takes longer is left out
PEERS = ("joblib", "aiometer", "distributed", "dbos")  # not in the standard library


@dataclass(frozen=True)
class Effort:
    sizes: Sequence[int]  # the smallest first
    repeats: int  # two less of a million items, which take their time
    slow_repeats: int  # of Dask and DBOS
    dask_items: int
    dbos_items: int
    coroutines: int
    journaled: int
    publish_seconds: float


FULL = Effort((10_000, 200_000, 1_000_000), 5, 3, 10_000, 1_000, 200_000, 100_000, publish_seconds=5.0)
QUICK = Effort((2_000, 20_000), 2, 1, 500, 100, 10_000, 10_000, publish_seconds=0.5)


# -- in the child: what is measured -----------------------------------------------------------------------------------
#
# Each is a context that imports, makes ready, and hands out the function to time; that returns how many items it did.

Round = Callable[[], int]


def no_op(item: int) -> int:
    return item


async def async_no_op(item: int) -> int:
    return item


async def brief(item: int) -> int:
    await asyncio.sleep(0)
    return item


def worker(item: int, credential: str) -> int:
    return item


@contextmanager
def executor(items: int, workers: int = WORKERS, in_order: bool = False) -> Iterator[Round]:
    inputs = list(range(items))

    def run() -> int:
        with ThreadPoolExecutor(workers) as threads:
            futures = [threads.submit(no_op, item) for item in inputs]
            return len([future.result() for future in (futures if in_order else as_completed(futures))])

    yield run


@contextmanager
def joblib_threads(items: int) -> Iterator[Round]:
    from joblib import Parallel, delayed

    inputs = list(range(items))
    yield lambda: len(Parallel(n_jobs=WORKERS, backend="threading")(delayed(no_op)(item) for item in inputs))


@contextmanager
def aiometer_tasks(items: int) -> Iterator[Round]:
    import aiometer

    inputs = list(range(items))

    async def run() -> int:
        async with aiometer.amap(async_no_op, inputs, max_at_once=WORKERS) as results:
            return len([result async for result in results])

    yield lambda: asyncio.run(run())


@contextmanager
def bare_tasks(items: int) -> Iterator[Round]:
    """Eight tasks and one iterator: the least that can be called a run. They wait, or the first would do all."""
    inputs = list(range(items))

    async def run() -> int:
        left = iter(inputs)
        results: list[int] = []

        async def fetch() -> None:
            results.extend([await brief(item) for item in left])

        await asyncio.gather(*(fetch() for _ in range(WORKERS)))
        return len(results)

    yield lambda: asyncio.run(run())


@contextmanager
def dask_threads(items: int) -> Iterator[Round]:
    from distributed import Client, LocalCluster

    inputs = list(range(items))
    with (
        LocalCluster(processes=False, n_workers=1, threads_per_worker=WORKERS, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.submit(no_op, -1).result()
        yield lambda: len(client.gather(client.map(no_op, inputs, pure=False)))


@contextmanager
def dbos_queue(items: int) -> Iterator[Round]:
    """Polled every 10 ms instead of every second, and launched before the clock starts: as fast as it goes here."""
    from dbos import DBOS

    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/dbos.sqlite"
        DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
        flow = DBOS.workflow()(no_op)
        DBOS.launch()
        DBOS.register_queue("bench", worker_concurrency=WORKERS, polling_interval_sec=0.01)

        def run() -> int:
            handles = [DBOS.enqueue_workflow("bench", flow, item) for item in range(items)]
            return len([handle.get_result(polling_interval_sec=0.01) for handle in handles])

        DBOS.enqueue_workflow("bench", flow, -1).get_result(polling_interval_sec=0.01)
        yield run
        DBOS.destroy()


@contextmanager
def journals(kept: bool) -> Iterator[Callable[[], Path | None]]:
    """A function that names a new journal each time, or none."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = itertools.count()
        yield lambda: Path(folder, f"{next(numbers)}.journal") if kept else None


def coordinator(workers: int, keys: int, journal: Path | None) -> ParallelCoordinator:
    pool = CredentialCoordinator(f"bench-secret-{number:05}" for number in range(keys))
    return ParallelCoordinator(workers, pool, max_parallelism=workers, journal=journal, worker_version="bench")


@contextmanager
def ours(items: int, workers: int = WORKERS, keys: int = WORKERS, journal: bool = False) -> Iterator[Round]:
    inputs = list(range(items))
    with journals(journal) as new_journal:

        def run() -> int:
            stats, results = coordinator(workers, keys, new_journal()).execute_parallel(inputs, worker, str)
            return min(stats.success_count, len(results))

        yield run


@contextmanager
def ours_streamed(items: int, workers: int = WORKERS, keys: int = WORKERS, journal: bool = False) -> Iterator[Round]:
    with journals(journal) as new_journal:

        def run() -> int:
            inputs = (number for number in range(items))
            return sum(
                result.success for result in coordinator(workers, keys, new_journal()).stream(inputs, worker, str)
            )

        yield run


@contextmanager
def bare_gather(items: int, seconds: float) -> Iterator[Round]:
    async def run() -> int:
        room = asyncio.Semaphore(IN_FLIGHT)

        async def one(item: int) -> int:
            async with room:
                await asyncio.sleep(seconds)
                return item

        return len(await asyncio.gather(*(one(item) for item in range(items))))

    yield lambda: asyncio.run(run())


@contextmanager
def our_coroutines(items: int, seconds: float, journal: bool = False) -> Iterator[Round]:
    async def sleeper(item: int, credential: str) -> int:
        await asyncio.sleep(seconds)
        return item

    async def run(path: Path | None) -> int:
        credentials = [Credential(f"bench-secret-{number}", slots=IN_FLIGHT // 8) for number in range(8)]
        pool = CredentialCoordinator(credentials)
        run = ParallelCoordinator(max_parallelism=IN_FLIGHT, credential_coordinator=pool, journal=path)
        stats, results = await run.execute_async(range(items), sleeper, str)
        return min(stats.success_count, len(results))

    with journals(journal) as new_journal:
        yield lambda: asyncio.run(run(new_journal()))


CASES: dict[str, Callable[..., AbstractContextManager[Round]]] = {
    case.__name__: case
    for case in (
        executor,
        joblib_threads,
        aiometer_tasks,
        bare_tasks,
        dask_threads,
        dbos_queue,
        ours,
        ours_streamed,
        bare_gather,
        our_coroutines,
    )
}


def measure_rounds(case: str, items: int, rounds: int, options: dict[str, Any]) -> dict[str, Any]:
    """Microseconds an item, and the megabytes that memory grew over what it was when all was ready."""
    with CASES[case](items=items, **options) as run:
        ready = memory("VmRSS")
        micros = []
        for _ in range(rounds):
            began = perf_counter()
            done = run()
            micros.append((perf_counter() - began) / items * 1e6)
            if done != items:
                raise RuntimeError(f"{done} of {items} items were done")
        return {"micros": statistics.median(micros), "grown": memory("VmHWM") - ready}


def memory(kind: str) -> float:
    """Megabytes: what is in use (VmRSS) or was at most (VmHWM); where the system tells only the latter, that.

    On Linux ``ru_maxrss`` of a child begins with what its parent had, so it is no good for children of this process.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
    found = dict(line.split(":", 1) for line in lines)
    return int(found[kind].split()[0]) / 2**10


def write_journal(path: str, items: int, crash: bool) -> dict[str, Any]:
    """Do the items; if there is to be a crash, it is in the last one, when all others are on disk."""

    def last_one_crashes(item: int, credential: str) -> int:
        if crash and item == items - 1:
            time.sleep(0.5)
            os._exit(0)
        return item

    coordinator(WORKERS, WORKERS, Path(path)).execute_parallel(range(items), last_one_crashes, str)
    return {}


def resume(path: str, items: int, born_at: float, expected: int) -> dict[str, Any]:
    """Seconds to the first call of the worker, from the birth of the process and from the call; and to the end."""
    starts: list[tuple[float, float]] = []

    def note_start(item: int, credential: str) -> int:
        starts.append((time.time(), perf_counter()))
        return item

    run = coordinator(WORKERS, WORKERS, Path(path))
    began = perf_counter()
    stats, _ = run.execute_parallel(range(items), note_start, str)
    ended = perf_counter()
    if len(starts) != expected or stats.success_count != items:
        raise RuntimeError(f"{len(starts)} items ran again, not {expected}; {stats.success_count} of {items} are done")
    first_at, first = min(starts)
    return {"from_birth": first_at - born_at, "from_call": first - began, "to_the_end": ended - began}


def publish(items: int, workers: int, nap: float, how: str) -> dict[str, Any]:
    """Milliseconds from the last line of a worker to the one who waits for results, and the pace of them."""

    def sleeper(item: int, credential: str = "") -> float:
        time.sleep(nap)
        return perf_counter()

    def of_executor() -> Iterator[float]:
        with ThreadPoolExecutor(workers) as threads:
            for future in as_completed([threads.submit(sleeper, item) for item in range(items)]):
                yield future.result()

    def of_ours() -> Iterator[float]:
        with journals(how == "journal on") as new_journal:
            for result in coordinator(workers, workers, new_journal()).stream(iter(range(items)), sleeper, str):
                yield result.value

    began = perf_counter()
    late = sorted((perf_counter() - returned) * 1e3 for returned in (of_executor() if how == "executor" else of_ours()))
    pace = items * nap / workers / (perf_counter() - began)
    return {"late": [late[len(late) // 2], late[len(late) * 99 // 100], late[-1]], "pace": pace}


TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    task.__name__: task for task in (measure_rounds, write_journal, resume, publish)
}


def child(request: str) -> None:
    """Do one task and say the answer as the last line of standard output."""
    logging.getLogger("agentos").setLevel(logging.CRITICAL)
    task = json.loads(request)
    try:
        answer = TASKS[task.pop("task")](**task)
    except ImportError as error:
        answer = {"missing": str(error)}
    print(json.dumps(answer), flush=True)


# -- in the parent: asking and comparing ------------------------------------------------------------------------------


class Failed(Exception):
    """A child that gave no answer; the text says why in one line."""


def ask(task: str, **arguments: Any) -> dict[str, Any]:
    request = json.dumps({"task": task, **arguments})
    # Settings meant for real runs are not what is measured here.
    settings = {name: value for name, value in os.environ.items() if not name.startswith("AGENTOS_")}
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--child", request],
            env=settings,
            capture_output=True,
            text=True,
            timeout=LONGEST_CHILD,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"no answer in {LONGEST_CHILD:.0f} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no word"]
        raise Failed(f"ended with {done.returncode}: {lines[-1]}")
    answer: dict[str, Any] = json.loads((done.stdout.strip().splitlines() or ["{}"])[-1])
    if "missing" in answer:
        raise Failed(f"not installed: {answer['missing']}")
    return answer


@dataclass
class Times:
    """What the repeats of one contender took, in microseconds an item, and the most that memory grew, in megabytes."""

    micros: list[float] = field(default_factory=list)
    grown: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.micros)

    @property
    def worst(self) -> float:
        return max(self.micros)

    def over(self, peer: Times) -> tuple[float, float]:
        return self.median / peer.median, self.worst / peer.worst


@dataclass(frozen=True)
class Contender:
    name: str
    case: str
    options: dict[str, Any] = field(default_factory=dict)
    peer: str = ""  # the name of the contender it is measured by
    target: float | None = None
    package: str = ""  # that it needs, if it is not ours nor in the standard library


class Report:
    """Prints as it goes, and remembers what was missed."""

    def __init__(self) -> None:
        self.judged = 0
        self.missed: list[str] = []
        self._section = ""

    def section(self, title: str, *columns: str) -> None:
        self._section = title
        print(f"\n{title:<52}" + "".join(f"{column:>11}" for column in columns), flush=True)

    def row(self, name: str, figures: Sequence[float], *words: str) -> None:
        numbers = "".join(f"{figure:>11,.2f}" for figure in figures)
        print("  ".join([f"  {name:<50}{numbers}", *filter(None, words)]), flush=True)

    def judge(self, name: str, figures: Sequence[float], bound: float, unit: str = "x", *, least: bool = False) -> str:
        """The figures in words, with the bound that every one of them is to keep: the most it may be, or the least."""
        said = " / ".join(f"{figure:.2f}{unit}" for figure in figures)
        target = f"target {'at least ' if least else ''}{bound:g}{unit}"
        kept = min(figures) >= bound if least else max(figures) <= bound
        self.judged += 1
        if not kept:
            self.missed.append(f"{self._section}: {name}: {said}, {target}")
        return f"{said}  {target} {'ok' if kept else 'MISSED'}"

    def left_out(self, name: str, why: Failed) -> None:
        print(f"  {name} is left out: {why}", flush=True)

    def verdict(self) -> str:
        if not self.judged:
            return "nothing was judged"
        if not self.missed:
            return f"none of {self.judged} targets was missed"
        return "\n  ".join([f"missed targets, {len(self.missed)} of {self.judged}:", *self.missed])


def in_turns(report: Report, contenders: Sequence[Contender], items: int, repeats: int) -> dict[str, Times]:
    """Every contender once, then every contender again. One that fails is left out from then on."""
    # A small run takes less than the time slices of the machine: several in each process, then.
    rounds = max(1, min(5, 50_000 // items)) if repeats > 1 else 1
    times: dict[str, Times] = {}
    failed: set[str] = set()
    for _ in range(repeats):
        for contender in contenders:
            if contender.name in failed:
                continue
            try:
                answer = ask(
                    "measure_rounds", case=contender.case, items=items, rounds=rounds, options=contender.options
                )
            except Failed as why:
                report.left_out(contender.name, why)
                failed.add(contender.name)
                times.pop(contender.name, None)
                continue
            found = times.setdefault(contender.name, Times())
            found.micros.append(answer["micros"])
            found.grown = max(found.grown, answer["grown"])
    return times


def compare(
    report: Report,
    contenders: Sequence[Contender],
    times: dict[str, Times],
    *,
    judged: bool = True,
) -> None:
    """A row for each, and each by its peer, if both could be measured: the medians, and the worst."""
    for contender in contenders:
        found = times.get(contender.name)
        if found is None:
            continue
        words = ""
        if (peer := times.get(contender.peer)) is not None:
            ratios = found.over(peer)
            if contender.target is None or not judged:
                words = " / ".join(f"{ratio:.2f}x" for ratio in ratios)
            else:
                words = report.judge(contender.name, ratios, contender.target)
        all_of_them = " ".join(f"{each:.1f}" for each in sorted(found.micros))
        report.row(contender.name, (found.median, found.worst, found.grown), words, f"({all_of_them})")


EIGHT, MANY = "ThreadPoolExecutor(8)", "ThreadPoolExecutor(64)"
OFF, ON, STREAMED = "agentos", "agentos, journal", "agentos, streamed"
ITEMS = (
    Contender(EIGHT, "executor"),
    Contender(f"{EIGHT}, results in order", "executor", {"in_order": True}, EIGHT),
    Contender(MANY, "executor", {"workers": MANY_WORKERS}, EIGHT),
    Contender("joblib, threading", "joblib_threads", {}, EIGHT, package="joblib"),
    Contender("aiometer", "aiometer_tasks", {}, EIGHT, package="aiometer"),
    Contender("eight bare asyncio workers", "bare_tasks", {}, EIGHT),
    Contender(OFF, "ours", {}, EIGHT, 0.6),
    Contender(STREAMED, "ours_streamed", {}, EIGHT, 0.6),
    Contender(ON, "ours", {"journal": True}, EIGHT, 2.0),
    Contender("agentos, journal, streamed", "ours_streamed", {"journal": True}, EIGHT, 2.0),
    Contender("agentos, 64 workers, 64 keys", "ours", {"workers": MANY_WORKERS, "keys": MANY_WORKERS}, EIGHT),
    Contender("agentos, journal, 64 workers", "ours", {"workers": MANY_WORKERS, "journal": True}, EIGHT, 2.5),
    Contender(
        "agentos, journal, 64 workers, 64 keys",
        "ours",
        {"workers": MANY_WORKERS, "keys": MANY_WORKERS, "journal": True},
        EIGHT,
        2.5,
    ),
)


def items(report: Report, effort: Effort, peers: bool) -> None:
    contenders = [contender for contender in ITEMS if peers or not contender.package]
    by_size: dict[int, dict[str, Times]] = {}
    for size in effort.sizes:
        report.section(f"{size:,} no-op items, 8 workers, 8 keys", "median", "worst", "MB more")
        repeats = max(effort.repeats - 2, 1) if size >= 1_000_000 else effort.repeats
        steady = [each for each in contenders if size < 1_000_000 or not each.package]
        once = [each for each in contenders if each not in steady]  # slow, and nothing is judged by them
        by_size[size] = in_turns(report, steady, size, repeats) | in_turns(report, once, size, 1)
        compare(report, contenders, by_size[size], judged=size >= min(LONG_ENOUGH, max(effort.sizes)))
    growth(report, by_size)
    if peers:
        heavy(report, effort, by_size[max(by_size)].get(ON))


def growth(report: Report, by_size: dict[int, dict[str, Times]]) -> None:
    """What an item costs in the largest run, by what it costs in the smallest."""
    report.section("an item's cost by number of items, medians", *(f"{size:,}" for size in by_size))
    for contender in ITEMS:
        if not all(contender.name in times for times in by_size.values()):
            continue
        medians = [times[contender.name].median for times in by_size.values()]
        ratio = medians[-1] / medians[0]
        ours = contender.case.startswith("ours")
        words = report.judge(contender.name, [ratio], 1.3) if ours else f"{ratio:.2f}x"
        report.row(contender.name, medians, words)
    largest = max(by_size)
    for name in (STREAMED, "agentos, journal, streamed"):
        if (found := by_size[largest].get(name)) is not None:
            words = report.judge(f"memory of {name}", [found.grown], 40.0, " MB")
            print(f"  {name}, {largest:,} items, memory: {words}")


def heavy(report: Report, effort: Effort, long_run: Times | None) -> None:
    """Peers that do more for an item than a pool of threads; of ours, the durable one is beside them."""
    journaled = Contender(ON, "ours", {"journal": True})
    dask = Contender("Dask distributed, 8 threads", "dask_threads", {}, ON)
    dbos = Contender("DBOS, SQLite queue, 8 workers", "dbos_queue", {}, ON)
    for contender, size in ((dask, effort.dask_items), (dbos, effort.dbos_items)):
        report.section(f"{size:,} no-op items", "median", "worst", "MB more")
        pair = [contender, journaled]
        times = in_turns(report, pair, size, effort.slow_repeats)
        compare(report, pair, times)
        if contender is dbos and long_run is not None and dbos.name in times:
            # It was ready when the clock started, ours was not: so few items pay for the making of a journal.
            name = f"{dbos.name}, by a long run of {ON}"
            print(f"  {name}: {report.judge(name, times[dbos.name].over(long_run), 200.0, least=True)}")


def coroutines(report: Report, effort: Effort, peers: bool) -> None:
    for seconds in (0.0, 0.001):
        nap = {"seconds": seconds}
        peer = f"gather under Semaphore({IN_FLIGHT})"
        contenders = [
            Contender(peer, "bare_gather", nap),
            Contender("agentos", "our_coroutines", nap, peer, 1.25),
            Contender("agentos, journal", "our_coroutines", {**nap, "journal": True}, peer),
        ]
        title = f"{effort.coroutines:,} coroutines, sleep({seconds:g}), {IN_FLIGHT:,} in flight"
        report.section(title, "median", "worst", "MB more")
        compare(report, contenders, in_turns(report, contenders, effort.coroutines, effort.repeats))


def resuming(report: Report, effort: Effort, peers: bool) -> None:
    size = effort.journaled
    report.section(f"resume of {size:,} journaled items, seconds", "call", "process", "to the end")
    variants = {"all done, 100 new after them": (False, size + 100, 100), "all done but the last": (True, size, 1)}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, (crash, total, expected)) in enumerate(variants.items()):
            written = Path(folder, f"written-{number}")
            written.mkdir()
            found = []
            try:
                ask("write_journal", path=str(written / "run.journal"), items=size, crash=crash)
                for repeat in range(effort.repeats):
                    copy = Path(folder, f"copy-{number}-{repeat}")
                    shutil.copytree(written, copy)
                    path = str(copy / "run.journal")
                    found.append(ask("resume", path=path, items=total, born_at=time.time(), expected=expected))
                    shutil.rmtree(copy)
            except Failed as why:
                report.left_out(name, why)
                continue
            figures = {what: [each[what] for each in found] for what in found[0]}
            worst = max(figures["from_birth"])
            words = report.judge(name, [statistics.median(figures["from_birth"]), worst], 2.0, " s")
            medians = [statistics.median(figures[what]) for what in ("from_call", "from_birth", "to_the_end")]
            report.row(name, medians, f"process, median / worst: {words}")


def publishing(report: Report, effort: Effort, peers: bool) -> None:
    nap = 0.005
    report.section("from a worker's return to who waits for it, ms", "p50", "p99", "longest")
    for workers, how in itertools.product((WORKERS, MANY_WORKERS), ("executor", "journal off", "journal on")):
        name = f"{workers} workers of {nap * 1e3:g} ms, {how}"
        count = int(workers / nap * effort.publish_seconds)
        try:
            answer = ask("publish", items=count, workers=workers, nap=nap, how=how)
        except Failed as why:
            report.left_out(name, why)
            continue
        report.row(name, answer["late"], f"{answer['pace']:.0%} of the ideal pace")


SECTIONS: dict[str, Callable[[Report, Effort, bool], None]] = {
    "items": items,
    "coroutines": coroutines,
    "resume": resuming,
    "publish": publishing,
}


def machine() -> str:
    versions = []
    for name in PEERS:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(f"no {name}")
    load = os.getloadavg()[0]
    return (
        f"{platform.python_implementation()} {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"{os.cpu_count()} cores, load {load:.1f}, fsync {fsync_micros():.0f} us in {tempfile.gettempdir()}\n"
        f"{', '.join(versions)}; microseconds an item; ratios of medians / of the worst repeats; (all repeats)"
    )


def fsync_micros() -> float:
    """A durable journal waits for the disk: half of what it can cost is known from this figure."""
    times = []
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(50):
            file.write(b"x" * 4096)
            began = perf_counter()
            os.fsync(file.fileno())
            times.append((perf_counter() - began) * 1e6)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the run beside its peers.")
    parser.add_argument("--quick", action="store_true", help="less than a minute instead of half an hour; no verdict")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="NAME")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help=f"{', '.join(PEERS)}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--sizes", nargs="+", type=int, metavar="ITEMS", help="of the items section")
    parser.add_argument("--repeats", type=int)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    effort = QUICK if arguments.quick else FULL
    effort = replace(effort, sizes=arguments.sizes or effort.sizes, repeats=arguments.repeats or effort.repeats)
    print(machine(), flush=True)
    report = Report()
    for name in arguments.only:
        SECTIONS[name](report, effort, arguments.peers)
    print(f"\n{report.verdict()}")
    if arguments.quick:
        print("(quick: the sizes are too small to judge by)")


if __name__ == "__main__":
    main()
