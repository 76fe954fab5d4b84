"""A drain through limiters that others wrote, beside peers: ``python bench/limiters.py [--quick] [--case nginx ...]``.

nginx's ``limit_req``, ``express-rate-limit`` and ``slowapi``, each with a small upstream behind it, on loopback. Each
case is drained twice: by clients that know nothing of the limits, and by clients that are told the rate and the burst.
Each contender drains in a process of its own, from a server that was just started. Who was rejected is for the server
to say.

Efficiency is the least time in which any client could have done it by the time it took. The least time: nginx admits
``burst + 1`` calls of a key at once and then ``rate`` a second, whatever the client does. Both others count in windows
that begin with a key's first call after the last window ended, so the best client sends all that a window admits at
once, the moment it opens: the n-th call of a key, from 0, at ``n // limit * window``. The last window is used by half,
so that a call too late for a window does not cost a whole one more. Each call then takes the latency that the upstream
has for it, from the same list for all contenders.

Nothing here fails a build; the last lines say which targets were missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

import drain
import limiters_programs
from drain import COLUMNS, OURS
from drain_contenders import CONTENDERS, NEEDS_LIMITS, Job, Key
from drain_scenarios import KEYS, LATENCY, PARALLEL
from limiters_servers import LimiterServer, ServerPlan
from run import Failed

from agentos.simulator import simulated_key

SECONDS, QUICK_SECONDS = 12.0, 5.0
PEERS = ("aiolimiter", "litellm")
BY_STATED = "aiolimiter"  # the peer that is told the limits
LEAST_STATED = 0.99  # of its efficiency
MOST_REJECTED = {True: 0.01, False: 0.05}  # per success, where the limits are stated, and where they are not
MOST_CPU = 1.5  # times that of the same peer


@dataclass(frozen=True)
class Case:
    """One limiter, the work, and what clients are told of it."""

    name: str
    title: str
    server: ServerPlan
    calls: int
    bound: float  # seconds
    at_once: int  # calls of a key that are admitted at the start
    per_minute: float
    known: bool = False

    @property
    def shown(self) -> str:
        return f"{self.name}, {'stated' if self.known else 'unknown'}"


def nginx(luck: random.Random, seconds: float) -> Case:
    rate, burst = luck.randint(8, 14), luck.randint(10, 30)
    plan = ServerPlan("nginx", limit=rate, burst=burst)
    times = [max(0.0, (number - burst) / rate) for number in range(burst + 1 + round(rate * seconds))]
    title = f"limit_req rate={rate}r/s burst={burst} nodelay, no headers"
    return _case("nginx", title, plan, times, burst + 1, rate * 60.0, luck)


def _windows(name: str, plan: ServerPlan, title: str, luck: random.Random, seconds: float) -> Case:
    limit, window = luck.randint(32, 56), 4
    plan = replace(plan, limit=limit, window=window)
    calls = limit * max(1, round(seconds / window)) + limit // 2
    times = [float(number // limit * window) for number in range(calls)]
    return _case(name, f"{limit} in windows of {window} s, {title}", plan, times, limit, limit / window * 60.0, luck)


def _express(style: str) -> Callable[[random.Random, float], Case]:
    return lambda luck, seconds: _windows(
        f"express-{style}", ServerPlan("express", 0, style=style), f"express-rate-limit with {style}", luck, seconds
    )


def slowapi(luck: random.Random, seconds: float) -> Case:
    return _windows("slowapi", ServerPlan("slowapi", 0), "slowapi with its headers", luck, seconds)


CASES: dict[str, Callable[[random.Random, float], Case]] = {
    "nginx": nginx,
    "express-draft-6": _express("draft-6"),
    "express-draft-7": _express("draft-7"),
    "express-draft-8": _express("draft-8"),
    "slowapi": slowapi,
}


def _case(
    name: str,
    title: str,
    plan: ServerPlan,
    times: Sequence[float],
    at_once: int,
    per_minute: float,
    luck: random.Random,
) -> Case:
    """The case in which each key can be called at *times* at the earliest."""
    admitted = sorted(at for at in times for _ in range(KEYS))
    latencies = tuple(_latency(luck) for _ in admitted)
    bound = max(at + latency for at, latency in zip(admitted, latencies, strict=True))
    server = replace(plan, latencies=latencies)
    return Case(name, f"{KEYS} keys, each {title}", server, len(admitted), bound, at_once, per_minute)


def _latency(luck: random.Random) -> float:
    return round(max(LATENCY.least, LATENCY.median * luck.lognormvariate(0.0, LATENCY.sigma)), 4)


def case(name: str, seed: int, seconds: float, *, known: bool) -> Case:
    """The case of that name as *seed* draws it."""
    return replace(CASES[name](random.Random(f"{seed}/{name}"), seconds), known=known)


# -- one contender in one case ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How one contender did in one case."""

    case: str
    contender: str
    seed: int
    items: int
    lost: int
    bound: float
    seconds: float  # to the last success; if something was lost, to the end
    rejected: int
    cpu: float
    words: str
    believed: Sequence[str]
    load: float  # of the machine, from the last minute

    @property
    def efficiency(self) -> float:
        return self.bound / self.seconds

    @property
    def rejected_per_success(self) -> float:
        return self.rejected / max(1, self.items - self.lost)

    @property
    def cpu_per_thousand(self) -> float:
        return self.cpu / max(1, self.items - self.lost) * 1000


def run_once(drawn: Case, contender: str, seed: int) -> Outcome:
    """Let one contender drain one case. Raises Failed."""
    limit = 4 * drawn.bound + 30
    with LimiterServer(drawn.server) as server:
        draining = drain.Child(contender, job_of(drawn, server.base_url), limit)
        try:
            began = monotonic()
            draining.go(began)
            said = draining.answer()
        finally:
            draining.kill()
        return _outcome(drawn, contender, seed, began, said, server.counts())


def job_of(drawn: Case, base_url: str) -> Job:
    keys = tuple(Key(f"key-{n}", simulated_key(f"key-{n}"), f"quota-{n}") for n in range(1, KEYS + 1))
    limits = {key.quota: (drawn.per_minute, float(drawn.at_once)) for key in keys} if drawn.known else {}
    return Job(base_url, keys, drawn.calls, PARALLEL, limits, exclusive=False, folder=None)


def _outcome(
    drawn: Case, contender: str, seed: int, began: float, said: Mapping[str, Any], counts: Mapping[str, int]
) -> Outcome:
    lost = drawn.calls - min(said["done"], counts["ok"])
    return Outcome(
        case=drawn.shown,
        contender=contender,
        seed=seed,
        items=drawn.calls,
        lost=lost,
        bound=drawn.bound,
        seconds=(said["last_at"] if lost == 0 and said["last_at"] is not None else monotonic()) - began,
        rejected=counts["rejected"],
        cpu=said["cpu"],
        words=said["words"],
        believed=said.get("believed", []),
        load=os.getloadavg()[0],
    )


# -- all of them, and the verdict -------------------------------------------------------------------------------------


def compare(
    report: drain.Report, name: str, contenders: Sequence[str], seeds: Sequence[int], seconds: float, *, known: bool
) -> dict[str, list[Outcome]]:
    """Every contender once, then every contender again on another seed. One that fails is left out from then on."""
    drawn = case(name, seeds[0], seconds, known=known)
    found: dict[str, list[Outcome]] = {each: [] for each in contenders if known or each not in NEEDS_LIMITS}
    head = f"{drawn.shown}: {drawn.calls:,} calls, {drawn.title}"
    print(f"\n{head}\n  {'':<14}" + "".join(f"{column:>13}" for column in COLUMNS), flush=True)
    for seed in seeds:
        for contender in tuple(found):
            try:
                found[contender].append(run_once(case(name, seed, seconds, known=known), contender, seed))
            except Failed as why:
                print(f"  {contender} is left out: {why}", flush=True)
                del found[contender]
    for contender, outcomes in found.items():
        figures = [
            *(_median(outcomes, "efficiency"), min(outcome.efficiency for outcome in outcomes)),
            *(_median(outcomes, "rejected_per_success"), max(outcome.lost for outcome in outcomes)),
            *(_median(outcomes, "cpu_per_thousand"), _median(outcomes, "seconds")),
        ]
        load = max(outcome.load for outcome in outcomes)
        words = {outcome.words for outcome in outcomes} | {f"(noisy: load {load:.1f})" if load > _cores() else ""}
        row(contender, figures, *sorted(words))
    if OURS in found:
        judge(report, drawn.shown, found, known=known)
    return found


def row(name: str, figures: Sequence[float], *words: str) -> None:
    shown = (".3f", ".3f", ".4f", ",.0f", ".2f", ".2f")
    numbers = "".join(f"{figure:>13{form}}" for figure, form in zip(figures, shown, strict=True))
    print("  ".join([f"  {name:<14}{numbers}", *filter(None, words)]), flush=True)


def judge(report: drain.Report, case: str, found: Mapping[str, Sequence[Outcome]], *, known: bool) -> None:
    """What is asked of agentos, by the medians."""
    ours = found[OURS]
    rejected = _median(ours, "rejected_per_success")
    asked = [
        ("lost", float(max(outcome.lost for outcome in ours)), 0.0, False),
        ("rejected/ok", rejected, MOST_REJECTED[known], False),
    ]
    for peer in found:
        if peer == OURS or (known and peer != BY_STATED):
            continue
        ratio = _median(ours, "efficiency") / _median(found[peer], "efficiency")
        asked.append((f"efficiency by {peer}'s", ratio, LEAST_STATED if known else 1.0, True))
        if known:
            cpu = _median(ours, "cpu_per_thousand") / _median(found[peer], "cpu_per_thousand")
            asked.append((f"CPU by {peer}'s", cpu, MOST_CPU, False))
        else:
            asked.append(
                (f"rejected/ok beside {peer}'s", rejected, _median(found[peer], "rejected_per_success"), False)
            )
    said = [report.verdict_of(case, *each) for each in asked]
    print(f"  {OURS}: {'; '.join(said)}", flush=True)


def _median(outcomes: Sequence[Outcome], figure: str) -> float:
    return statistics.median(float(getattr(outcome, figure)) for outcome in outcomes)


def _cores() -> int:
    return os.cpu_count() or 1


def _leave(number: int, frame: FrameType | None) -> None:
    """End as on Ctrl-C: what was started is ended on the way out."""
    sys.exit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(description="Drain through nginx, express-rate-limit and slowapi, beside peers.")
    parser.add_argument("--quick", action="store_true", help=f"drains of {QUICK_SECONDS:g} s; no verdict")
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES), metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--limits", nargs="+", choices=("unknown", "stated"), default=["unknown", "stated"])
    parser.add_argument("--contender", nargs="+", choices=CONTENDERS, default=[OURS, *PEERS], metavar="NAME")
    parser.add_argument("--seconds", type=float, help=f"about the least a drain can take; {SECONDS:g} unless told")
    parser.add_argument("--repeats", type=int, default=1, help="each on a seed of its own; 1 unless told")
    parser.add_argument("--seed", type=int, help="another one each time unless told")
    parser.add_argument("--believed", action="store_true", help="show what the pool took the limits to be at the end")
    parser.add_argument("--json", metavar="FILE", help="write every outcome there")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS)
    seed = int(time.time()) % 1_000_000 if arguments.seed is None else arguments.seed
    seeds = range(seed, seed + arguments.repeats)
    print(
        f"{drain.machine()}\n{limiters_programs.versions()}\n"
        f"seed {seed}, about {seconds:g} s each, each {arguments.repeats}x",
        flush=True,
    )
    report = drain.Report()
    outcomes: list[Outcome] = []
    for name in arguments.case:
        for limits in arguments.limits:
            found = compare(report, name, arguments.contender, seeds, seconds, known=limits == "stated")
            outcomes += [outcome for each in found.values() for outcome in each]
            if arguments.believed:
                drain.show_beliefs(found.get(OURS, []))
    print(f"\n{report.verdict()}")
    if seconds < SECONDS:
        print(f"(drains of {seconds:g} s are too short to judge by)")
    if arguments.json:
        told = {"machine": drain.machine(), "limiters": limiters_programs.versions(), "missed": report.missed}
        rows = [{**asdict(each), "efficiency": each.efficiency} for each in outcomes]
        Path(arguments.json).write_text(json.dumps({**told, "outcomes": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
