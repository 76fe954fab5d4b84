"""What many machines cost, beside their peers: ``python bench/cluster.py [--quick] [--only pace waking items]``.

One Redis, one Dask scheduler and three Dask workers, all on this machine: what the network would add is the same for
all. *pace*: every contender is a crowd of processes of its own (this file again, with ``--child``), each with its own
pool or client, which start at one instant; starting them is not measured. *waking*: one process gives back, another
waits; instants are ``time.monotonic()``, which all processes of a machine share. *items*: every contender is a driver
that stays, and does a whole batch when it is its turn. Contenders take turns, so that whatever else the machine does
hits all of them. Nothing here fails a build; the last lines say which targets were missed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import platform
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from time import monotonic
from typing import NamedTuple, TypeVar

import stores
from cluster_children import child
from cluster_servers import KEYS, THREADS, WORKERS, Cluster, Servers
from run import Failed, Report, Times
from stores import HEAD_START, WAITING, Contender, Line, ratios

MANY_KEYS, FEW_KEYS = 64, 4
PAIR_TARGET = 4.0  # times an INCR, with one process
WAKING_TARGET = 5.0  # ms, p99
ITEM_TARGET = 1.3  # times client.map
SHOWN = ("redis", "pyrate-limiter", "distributed")  # with their versions

T = TypeVar("T")
_numbers = itertools.count()


@dataclass(frozen=True)
class Effort:
    crowds: tuple[int, ...]  # processes
    repeats: int
    seconds: float  # of each repeat of the pace
    handoffs: int  # of each repeat
    items: int


FULL = Effort((1, 4, 16), 5, seconds=1.0, handoffs=200, items=5_000)
QUICK = Effort((1, 4, 16), 2, seconds=0.3, handoffs=150, items=500)


class Crowd(stores.Crowd):
    script = __file__


def in_turns(report: Report, measures: Mapping[str, Callable[[], T]], repeats: int) -> dict[str, list[T]]:
    """Every contender once, then every contender again. One that fails is left out."""
    found: dict[str, list[T]] = {name: [] for name in measures}
    for _ in range(repeats):
        for name in tuple(found):
            try:
                found[name].append(measures[name]())
            except Failed as why:
                report.left_out(name, why)
                del found[name]
    return found


# -- how many ---------------------------------------------------------------------------------------------------------

INCR, PYRATE = "INCR, redis-py", "PyrateLimiter, Redis bucket"


def ours_on(keys: int) -> str:
    return f"agentos, Redis, {keys} keys"


def semaphore_of(leases: int) -> str:
    return f"distributed.Semaphore({leases})"


def contenders_for(crowd: int, keys: int) -> list[Contender]:
    """The bare round trip, the peers, and the pool."""
    alone = crowd == 1
    peers = {INCR: PAIR_TARGET if alone else None, PYRATE: None, semaphore_of(keys): None}
    found = [
        Contender(INCR, "incr"),
        Contender(PYRATE, "pyrate"),
        Contender(semaphore_of(keys), "semaphore", {"leases": keys}),
        Contender(ours_on(keys), "pair", {"keys": keys}, peers),
    ]
    if alone:
        limited = f"{ours_on(keys)}, two limits, settled"
        found.append(Contender(limited, "settled", {"keys": keys}, {INCR: None, ours_on(keys): None}))
    return found


def counts_of(servers: Servers, contender: Contender, crowd: int, seconds: float) -> list[int]:
    """How often each process of a crowd did it. Each crowd has a pool or a semaphore of its own."""
    name = f"bench-{next(_numbers)}"
    if contender.case == "semaphore":
        where = {"address": servers.scheduler.address, "name": name}
    else:
        where = {"url": servers.redis.url(name if contender.case in ("pair", "settled") else None)}
    options = {**contender.options, **where}
    task = {"case": contender.case, "threads": 1, "batch": 1, "seconds": seconds, "options": options}
    with Crowd(crowd, "hammer", **task) as children:
        start_at = monotonic() + HEAD_START
        for number in range(crowd):
            children.order(number, repr(start_at))
        return [count for _ in range(crowd) for count in children.answer()[1]["counts"]]


def pace(report: Report, effort: Effort, servers: Servers) -> None:
    contended = [(max(effort.crowds), FEW_KEYS)] if max(effort.crowds) > FEW_KEYS else []
    for crowd, keys in [*((crowd, MANY_KEYS) for crowd in effort.crowds), *contended]:
        title = "one process" if crowd == 1 else f"{crowd} processes"
        title += ", wall time per pair" if keys >= crowd else f" for {keys} keys, wall time per pair"
        report.section(title, "pairs/s", "us", "worst us", "fairness")
        contenders = contenders_for(crowd, keys)
        measures = {each.name: partial(counts_of, servers, each, crowd, effort.seconds) for each in contenders}
        turns = in_turns(report, measures, effort.repeats)
        times = {
            name: Times([effort.seconds / max(sum(counts), 1) * 1e6 for counts in found])
            for name, found in turns.items()
        }
        for contender in contenders:
            if (found := times.get(contender.name)) is not None:
                fairness = min(min(counts) * crowd / max(sum(counts), 1) for counts in turns[contender.name])
                figures = (1e6 / found.median, found.median, found.worst, fairness)
                report.row(contender.name, figures, *ratios(report, contender, times))


# -- waking up --------------------------------------------------------------------------------------------------------


@contextmanager
def pool_line(servers: Servers, size: int) -> Iterator[Line]:
    pool = f"bench-{next(_numbers)}"
    task = {"kind": "pool_line", "url": servers.redis.url(pool)}
    with closing(servers.redis.client()) as client, Crowd(size, "stand_in_line", **task) as crowd:

        def waiting() -> int:
            records = client.hgetall(f"agentos:{{{pool}}}:records")
            return sum(json.loads(text)[5] is not None for name, text in records.items() if name[:1] == "s")

        yield Line(size, crowd.order, crowd.answer, waiting)


@contextmanager
def semaphore_line(servers: Servers, size: int) -> Iterator[Line]:
    scheduler, name = servers.scheduler, f"bench-{next(_numbers)}"
    task = {"kind": "semaphore_line", "address": scheduler.address, "name": name}
    with Crowd(size, "stand_in_line", **task) as crowd:
        yield Line(size, crowd.order, crowd.answer, lambda: scheduler.waiting(name))


def heard_after(servers: Servers, rounds: int) -> list[float]:
    """Milliseconds from a bare publish to the process that listens."""
    task = {"url": servers.redis.url(), "channel": f"bench-{next(_numbers)}"}
    late = []
    with Crowd(1, "listen", **task) as listener, Crowd(1, "publish", **task) as publisher:
        for _ in range(rounds):
            time.sleep(random.uniform(0.001, 0.01))
            publisher.order(0, "news")
            due_at, got_at = publisher.answer()[1]["due_at"], listener.answer()[1]["got_at"]
            late.append((got_at - due_at) * 1e3)
        publisher.order(0, "end")
    return late


PUBLISH, OURS = "publish, one listening", "agentos, Redis"


def waking(report: Report, effort: Effort, servers: Servers) -> None:
    def taken_after(line: Callable[[Servers, int], AbstractContextManager[Line]], waiting: int) -> list[float]:
        with line(servers, waiting + 1) as ready:
            return list(ready.lateness(effort.handoffs, "give"))

    measures: dict[str, Callable[[], list[float]]] = {PUBLISH: partial(heard_after, servers, effort.handoffs)}
    for waiting in WAITING:
        measures[f"distributed.Semaphore, {waiting} waiting"] = partial(taken_after, semaphore_line, waiting)
        measures[f"{OURS}, {waiting} waiting"] = partial(taken_after, pool_line, waiting)
    report.section("from a release to the return of who waits, ms", "p50", "p99", "longest")
    turns = in_turns(report, measures, effort.repeats)
    figures = {name: percentiles(late for found in turn for late in found) for name, turn in turns.items()}
    base = figures.get(PUBLISH)
    for name, (p50, p99, longest) in figures.items():
        words = []
        if name.startswith(OURS):
            words.append(f"p99: {report.judge(name, [p99], WAKING_TARGET, ' ms')}")
        if base is not None and name != PUBLISH:
            words.append(f"by publish: {p50 / base[0]:.2f}x / {p99 / base[1]:.2f}x")
        report.row(name, (p50, p99, longest), *words)


def percentiles(late: Iterable[float]) -> tuple[float, float, float]:
    """Half of them, 99 of 100, and all are no later than that."""
    found = sorted(late)
    return found[len(found) // 2], found[len(found) * 99 // 100], found[-1]


# -- items through Dask -----------------------------------------------------------------------------------------------

MAPPED = "client.map and gather"
JUDGED: dict[str, float | None] = {MAPPED: ITEM_TARGET}
DRIVERS = (
    Contender(MAPPED, "mapped"),
    Contender("client.submit one by one, gather", "submitted", {}, {MAPPED: None}),
    Contender("agentos, keys by name", "ours", {"journal": False, "ship_secrets": False}, JUDGED),
    Contender("agentos, keys by name, journal", "ours", {"journal": True, "ship_secrets": False}, JUDGED),
    Contender("agentos, keys shipped", "ours", {"journal": False, "ship_secrets": True}, JUDGED),
)


class Turn(NamedTuple):
    """What a batch took, and how much later the threads of the cluster were free again: in seconds."""

    seconds: float
    left_behind: float


def turn(driver: stores.Crowd, cluster: Cluster, size: int) -> Turn:
    driver.order(0, str(size))
    seconds = float(driver.answer()[1]["seconds"])
    return Turn(seconds, cluster.wait_idle())


def items(report: Report, effort: Effort, servers: Servers) -> None:
    cluster = servers.cluster
    with ExitStack() as stack:
        drivers: dict[str, stores.Crowd] = {}
        for each in DRIVERS:
            try:
                task = {"case": each.case, "address": cluster.address, "options": each.options}
                drivers[each.name] = stack.enter_context(Crowd(1, "drive", **task))
                cluster.wait_idle()
            except Failed as why:
                report.left_out(each.name, why)
        where = f"{WORKERS} Dask workers of {THREADS} threads"
        for size in (effort.items, len(KEYS)):
            turns = in_turns(
                report, {name: partial(turn, drivers[name], cluster, size) for name in drivers}, effort.repeats
            )
            drivers = {name: drivers[name] for name in turns}  # whoever has failed is gone
            report.section(f"{size:,} no-op items, {where}", "items/s", "us", "worst us", "free, ms")
            show(report, size, turns, judged=size == effort.items)


def show(report: Report, size: int, turns: Mapping[str, list[Turn]], *, judged: bool) -> None:
    """A row for each driver. So few items that a run is mostly its beginning are not judged."""
    times = {name: Times([each.seconds / size * 1e6 for each in found]) for name, found in turns.items()}
    for each in DRIVERS:
        if (found := times.get(each.name)) is not None:
            left_behind = max(turn.left_behind for turn in turns[each.name])
            figures = (1e6 / found.median, found.median, found.worst, left_behind * 1e3)
            contender = each if judged else replace(each, peers=dict.fromkeys(each.peers))
            report.row(each.name, figures, *ratios(report, contender, times))


SECTIONS: dict[str, Callable[[Report, Effort, Servers], None]] = {"pace": pace, "waking": waking, "items": items}


def machine() -> str:
    versions = []
    for name in SHOWN:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(f"no {name} (`make bench` installs it)")
    return (
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}; {', '.join(versions)}\n"
        "a pair of INCR and of PyrateLimiter is one call; ratios of medians / of the worst repeats"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what many machines share, beside its peers.")
    parser.add_argument("--quick", action="store_true", help="about two minutes instead of ten; no verdict")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="NAME")
    parser.add_argument("--crowds", nargs="+", type=int, metavar="PROCESSES", help="of the pace; 1 4 16 unless told")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    effort = QUICK if arguments.quick else FULL
    crowds = tuple(arguments.crowds or effort.crowds)
    effort = replace(effort, crowds=crowds, repeats=arguments.repeats or effort.repeats)
    for setting in [name for name in os.environ if name.startswith("AGENTOS_")]:
        del os.environ[setting]
    logging.getLogger("agentos").setLevel(logging.CRITICAL)
    print(machine(), flush=True)
    report = Report()
    with Servers() as servers:
        for name in arguments.only:
            try:
                SECTIONS[name](report, effort, servers)
            except Failed as why:
                report.left_out(name, why)
    print(f"\n{report.verdict()}")
    if arguments.quick:
        print("(quick: too short to judge by)")


if __name__ == "__main__":
    main()
