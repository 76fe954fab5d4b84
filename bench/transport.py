"""What a call through the pool's transport costs, beside the same client without it: ``python bench/transport.py``.

A call's cost: each client calls a simulated provider (latency 0, limits that never bind, the usual headers) from a
process of its own, which is warm and stays for a sitting. Within a sitting the contenders of a client take turns, in
one order and then in the other, so that whatever else the machine does hits all of them; CPU is that of the caller's
process. A ratio is the median of the ratios of neighbours to the bare client, which has one key and no pool. The next
sitting has new processes, because two processes of the same program differ by some percent for as long as they live.

The drain: a scenario of ``bench/drain.py``, done by agentos with its light client and by LiteLLM's Router as there, and
by plain tasks around an SDK and an HTTP client, both with the transport. Nothing here fails a build; the last lines say
which targets were missed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from time import perf_counter, process_time
from typing import NamedTuple

import drain
from drain import OURS, Outcome, run_once
from drain_contenders import CONTENDERS, PACKAGES, Job, Key, make_ready
from drain_scenarios import SCENARIOS, scenario
from run import Failed, Report
from transport_contenders import CALLERS, DRAINS, PROMPTS

from agentos.simulator import Latency, ProviderPlan, equal_keys, in_process

KEYS = 8
AT_ONCE = 8
LONGEST_SITTING = 300.0
CPU_TARGET = 1.15  # times the bare client's, at most
EFFICIENCY_TARGET = 0.85  # times the light client's, at least
SHOWN = ("httpx2", "openai", "litellm")  # with their versions
COST_CHILD = (__file__, "--child", "cost")
DRAIN_CHILD = (__file__, "--child", "drain")


@dataclass(frozen=True)
class Effort:
    sittings: int
    warm_up: int  # calls with each prompt, before the first round of a sitting
    rounds: int  # of each sitting
    calls: int  # of each round
    drain_seconds: float  # the least that a drain can take


FULL = Effort(sittings=3, warm_up=200, rounds=5, calls=400, drain_seconds=20.0)
QUICK = Effort(sittings=1, warm_up=50, rounds=2, calls=100, drain_seconds=3.0)


@dataclass(frozen=True)
class Contender:
    """A row of the table, and who of ``CALLERS`` it is."""

    name: str
    caller: str
    target: float | None = None  # of its CPU, by that of the first of its group
    share: float = 1.0  # of the calls of a round: what is slow needs fewer of them to be measured as well


BARE, POOLED = "bare, one key", f"transport, {KEYS} keys"

GROUPS: dict[str, tuple[Contender, ...]] = {
    "httpx2.Client": (
        Contender(BARE, "httpx2"),
        Contender(POOLED, "httpx2+transport", CPU_TARGET),
    ),
    "openai.OpenAI": (
        Contender(BARE, "openai", share=0.5),
        Contender(POOLED, "openai+transport", CPU_TARGET, share=0.5),
    ),
    f"httpx2.AsyncClient, {AT_ONCE} at once": (
        Contender(BARE, "async httpx2"),
        Contender(POOLED, "async httpx2+transport", CPU_TARGET),
    ),
    f"openai.AsyncOpenAI, {AT_ONCE} at once": (
        Contender(BARE, "async openai", share=0.5),
        Contender(POOLED, "async openai+transport", CPU_TARGET, share=0.5),
        Contender(f"LiteLLM Router, {KEYS} deployments", "litellm", share=0.15),
    ),
    f"openai.AsyncOpenAI, {AT_ONCE} at once, streamed": (
        Contender(BARE, "async openai, streamed", share=0.3),
        Contender(POOLED, "async openai+transport, streamed", share=0.3),
    ),
}
DRAINERS = {
    OURS: "agentos, a run with the light client",
    "openai": "openai.AsyncOpenAI, transport",
    "httpx2": "httpx2.AsyncClient, transport",
    "litellm": "LiteLLM Router",
}


# -- in the child -----------------------------------------------------------------------------------------------------


def cost_child() -> None:
    """Be told who to be, make ready, then make the calls that each line asks for, and answer with what one took."""
    logging.disable(logging.CRITICAL)
    told = json.loads(sys.stdin.readline())
    drain.stay_on_this_machine()
    try:
        make_ready(told["contender"])
        with CALLERS[told["contender"]](Job.from_dict(told["job"])) as make_calls:
            drain.say({"ready": True, "cpu": 0.0})
            for line in sys.stdin:
                size, calls = json.loads(line)
                began, used = perf_counter(), process_time()
                make_calls(size, calls)
                used, seconds = process_time() - used, perf_counter() - began
                drain.say({"micros": used / calls * 1e6, "seconds": seconds / calls})
    except ImportError as error:
        drain.say({"missing": str(error)})


def drain_child() -> None:
    """Drain, as one of the contenders of ``bench/drain.py`` or as a client with the transport."""
    CONTENDERS.update(DRAINS)
    PACKAGES.update({name: name for name in DRAINS})
    drain.child()


CHILDREN = {"cost": cost_child, "drain": drain_child}


# -- what a call costs ------------------------------------------------------------------------------------------------


class Cost(NamedTuple):
    """Of a call, by the mean of a round."""

    micros: float  # of CPU
    seconds: float


Costs = dict[str, list[Cost]]  # for each prompt, one for each round


class Caller(drain.Child):
    """A contender in a process of its own, that makes calls when it is told to. Raises Failed."""

    def __init__(self, contender: Contender, job: Job) -> None:
        super().__init__(contender.caller, job, LONGEST_SITTING, script=COST_CHILD)
        self._share = contender.share

    def measure(self, size: str, calls: int) -> Cost:
        """Make a round of calls with the prompt of that size. Raises Failed."""
        self._tell(json.dumps([size, max(AT_ONCE, int(calls * self._share))]))
        return Cost(**self._hear())


def cost(report: Report, effort: Effort) -> None:
    for title, contenders in GROUPS.items():
        report.section(title, "calls/s", "CPU us", "best", "worst", "by bare")
        found: dict[Contender, Costs] = {contender: {size: [] for size in PROMPTS} for contender in contenders}
        for _ in range(effort.sittings):
            sit(report, effort, found)
        bare = found.get(contenders[0])
        if bare is not None:
            for size in PROMPTS:
                for contender, costs in found.items():
                    show(report, contender, size, costs[size], bare[size])


def sit(report: Report, effort: Effort, found: dict[Contender, Costs]) -> None:
    """Measure all in turns and add to what was *found*, from which one that fails is taken out."""

    @contextmanager
    def out_if_it_fails(contender: Contender) -> Iterator[None]:
        try:
            yield
        except Failed as why:
            report.left_out(contender.name, why)
            del found[contender]

    with in_process(wide_open()) as provider, ExitStack() as stack:
        callers: dict[Contender, Caller] = {}
        job = job_of(provider.plan, provider.base_url)
        with ThreadPoolExecutor() as starters:
            starting = {contender: starters.submit(Caller, contender, job) for contender in found}
        for contender, started in starting.items():
            with out_if_it_fails(contender):
                callers[contender] = started.result()
                stack.callback(callers[contender].kill)
                for size in PROMPTS:
                    callers[contender].measure(size, effort.warm_up)
        for number in range(effort.rounds):
            for size in PROMPTS:
                for contender in tuple(found) if number % 2 else tuple(reversed(found)):
                    with out_if_it_fails(contender):
                        found[contender][size].append(callers[contender].measure(size, effort.calls))
        refused = provider.statistics().total.refused
        if refused:
            print(f"  ({refused:,} calls were refused, which should not be: the figures are not worth much)")


def wide_open() -> ProviderPlan:
    """A provider that answers at once and never refuses, with the headers that real ones send."""
    return equal_keys(KEYS, rpm=6e6, tpm=6e9, latency=Latency(0, 0), dialect="full")


def job_of(plan: ProviderPlan, base_url: str) -> Job:
    """The keys of the plan, each for one call at a time, which is what the pool does unless told."""
    keys = tuple(Key(key.name, key.secret, key.quota) for key in plan.keys)
    return Job(base_url, keys, items=0, parallel=AT_ONCE, limits={}, exclusive=True, folder=None)


def show(report: Report, contender: Contender, size: str, costs: Sequence[Cost], bare: Sequence[Cost]) -> None:
    """One row, with the verdict if there is a target."""
    name, words = f"{size}, {contender.name}", ""
    micros = [each.micros for each in costs]
    per_second = 1 / statistics.median(each.seconds for each in costs)
    # By its neighbour each: what slowed both down for a while is then in none of the ratios.
    ratio = statistics.median(mine.micros / theirs.micros for mine, theirs in zip(costs, bare, strict=True))
    if contender.target is not None:
        words = report.judge(f"{name}, CPU by bare", [ratio], contender.target)
    report.row(name, [per_second, statistics.median(micros), min(micros), max(micros), ratio], words)


# -- the drain --------------------------------------------------------------------------------------------------------


def drain_all(report: Report, effort: Effort, name: str, seed: int) -> None:
    drawn = scenario(name, seed, effort.drain_seconds)
    print(f"\n{drawn.name}: {drawn.calls:,} calls, {drawn.title}", end="")
    report.section(f"drain, {drawn.name}", "efficiency", "rejected", "lost", "CPU us", "seconds")
    light: Outcome | None = None
    for contender, shown in DRAINERS.items():
        try:
            outcome = run_once(drawn, contender, seed, DRAIN_CHILD)
        except Failed as why:
            report.left_out(shown, why)
            continue
        words = [outcome.words, f"(noisy: load {outcome.load:.1f})" if outcome.load > (os.cpu_count() or 1) else ""]
        if contender == OURS:
            light = outcome
        elif contender in DRAINS:
            report.judge(f"{shown}, lost", [outcome.lost], 0, " calls")
            if light is not None:
                ratio = outcome.efficiency / light.efficiency
                by = f"{shown}, efficiency by the light client's"
                words.insert(0, report.judge(by, [ratio], EFFICIENCY_TARGET, least=True))
        figures = [outcome.efficiency, outcome.rejected, outcome.lost, outcome.cpu_per_thousand * 1e3, outcome.seconds]
        report.row(shown, figures, *words)


# -- both -------------------------------------------------------------------------------------------------------------


def machine() -> str:
    versions = []
    for name in SHOWN:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(f"no {name} (`make bench` installs it)")
    return (
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}; {', '.join(versions)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the transport beside the bare clients and LiteLLM's Router.")
    parser.add_argument("--quick", action="store_true", help="less than a minute instead of five; no verdict")
    parser.add_argument("--only", nargs="+", choices=("cost", "drain"), default=["cost", "drain"], metavar="PART")
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, default=["equal"], metavar="NAME", help="to drain")
    parser.add_argument("--seed", type=int, help="of the drain; another one each time unless told")
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        CHILDREN[arguments.child]()
        return
    effort = QUICK if arguments.quick else FULL
    seed = int(time.time()) % 1_000_000 if arguments.seed is None else arguments.seed
    print(
        f"{machine()}\nmedians of {effort.sittings} x {effort.rounds} rounds of at most {effort.calls} calls, "
        f"CPU us a call\nseed {seed}, drains of {effort.drain_seconds:g} s",
        flush=True,
    )
    report = Report()
    if "cost" in arguments.only:
        cost(report, effort)
    if "drain" in arguments.only:
        for name in arguments.scenario:
            drain_all(report, effort, name, seed)
    print(f"\n{report.verdict()}")
    if arguments.quick:
        print("(quick: too few rounds and too short a drain to judge by)")


if __name__ == "__main__":
    main()
