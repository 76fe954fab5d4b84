"""A drain at the speed of the limits, beside peers: ``python bench/drain.py [--quick] [--scenario equal ...]``.

Each scenario is a simulated provider in a process of its own and a list of calls. Each contender drains the list in a
process of its own (this file again, with ``--child``), the same calls from the same provider, rested. Efficiency is the
least time in which any client could have done it by the time it took, from just before the contender begins to its last
success. Who succeeded and who was rejected is for the provider to say. A contender that is not done after four times
the least time and 30 s more has lost what is left. CPU is that of the contender's process from its first call to its
last: starting it is not measured.

Exact pacing knows the provider's plan and clock and shows what could be had: a scenario of less than 60 s is judged
beside that, or beside aiolimiter where limits are known, since what the last calls take is then a good part of it.

Rates and chance are drawn from a seed, another one each time unless told. In the restart the contender is killed at
half time; peers begin again with a list of what is done, agentos with its journal and store. Nothing here fails a
build; the last lines say which targets were missed.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import logging
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from drain_client import CLIENTS
from drain_contenders import CONTENDERS, NEEDS_LIMITS, PACKAGES, Job, Key, Tally, make_ready
from drain_scenarios import SCENARIOS, Scenario, scenario
from run import Failed

from agentos.simulator import Admitted, Provider, ProviderPlan, Statistics, in_process, lower_bound

OURS, LIMITER, EXACT = "agentos", "aiolimiter", "exact"
MOST_CPU = 1.5  # times that of the limiter
SECONDS, QUICK_SECONDS = 60.0, 12.0
LONGEST_START = 60.0  # a child that takes longer to be ready is a fault of the benchmark
LONGEST_END = 20.0  # after its time is up
CHILD = (__file__, "--child")


# -- in the child: one contender --------------------------------------------------------------------------------------


def child() -> None:
    """Be told the job, make ready, wait for the word, drain, and say how it went as the last line."""
    logging.disable(logging.CRITICAL)
    told = json.loads(sys.stdin.readline())
    contender, limit, kept = told["contender"], told["limit"], told["kept"]
    try:
        make_ready(contender)
    except ImportError as error:
        say({"missing": str(error)})
        return
    stay_on_this_machine()
    tally = Tally(None if kept is None else Path(kept))
    say({"ready": True, "cpu": _cpu()})
    tally.began = float(sys.stdin.readline())
    used = _cpu()
    once = threading.Lock()

    def answer() -> None:
        if once.acquire(blocking=False):
            say(summary(tally, _cpu() - used))

    def give_up() -> None:
        tally.words = "its time was up"
        answer()
        os._exit(0)

    timer = threading.Timer(limit, give_up)
    timer.daemon = True
    timer.start()
    threading.Thread(target=_end_with_input, daemon=True).start()
    asyncio.run(drain(contender, Job.from_dict(told["job"]), tally))
    answer()
    os._exit(0)  # whatever threads a contender leaves behind


def _end_with_input() -> None:
    """End this process when the one that waits for its answer is gone, be it killed."""
    sys.stdin.read()
    os._exit(1)


async def drain(contender: str, job: Job, tally: Tally) -> None:
    """Let the contender do the job, in this process."""
    await CONTENDERS[contender](job, tally)


def summary(tally: Tally, cpu: float) -> dict[str, Any]:
    """What a contender says at the end, or when its time is up."""
    return {
        "done": tally.all_done,
        "last_at": tally.last_at,
        "cpu": cpu,
        "words": tally.words,
        "believed": tally.believed(),
    }


def _cpu(whose: int = resource.RUSAGE_SELF) -> float:
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime


def say(told: Mapping[str, Any]) -> None:
    print(json.dumps(told), flush=True)


def stay_on_this_machine() -> None:
    """Some packages call home. Here nobody calls anybody but the simulator."""

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect" and isinstance(arguments[1], tuple):
            host = arguments[1][0]
        elif event == "socket.getaddrinfo":
            host = arguments[0]
        else:
            return
        if host not in ("127.0.0.1", "::1", "localhost", None, ""):
            raise PermissionError("a benchmark talks to this machine only")

    sys.addaudithook(watch)


# -- in the parent: one contender in one scenario ---------------------------------------------------------------------


class Child:
    """A contender in a process of its own, ready to begin. *script* is what that runs, with its arguments."""

    def __init__(
        self, contender: str, job: Job, limit: float, kept: str | None = None, script: Sequence[str] = CHILD
    ) -> None:
        # Settings meant for real runs are not what is measured here.
        settings = {name: value for name, value in os.environ.items() if not name.startswith("AGENTOS_")}
        self._starting = 0.0
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - until the child is gone
        self._process = subprocess.Popen(
            [sys.executable, *script],
            env=settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
        )
        # A pipe has no deadline: a child that says nothing is ended, and then its silence is heard.
        self._watchdog = threading.Timer(limit + LONGEST_START + LONGEST_END, self._process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()
        try:
            self._tell(json.dumps({"contender": contender, "job": asdict(job), "limit": limit, "kept": kept}))
            self._starting = self._hear_ready()
        except BaseException:
            self.kill()
            raise

    def _hear_ready(self) -> float:
        said = self._hear()
        if "missing" in said:
            raise Failed(f"not installed: {said['missing']}")
        return float(said["cpu"])

    def go(self, began: float) -> None:
        """Let it begin. The provider began at *began*, of the clock that all processes here share."""
        self._tell(str(began))

    def answer(self) -> dict[str, Any]:
        try:
            return self._hear()
        finally:
            self.kill()

    def kill(self) -> float:
        """End it, if it has not ended. Returns the CPU it has used since it was ready."""
        self._watchdog.cancel()
        before = _cpu(resource.RUSAGE_CHILDREN)
        self._process.kill()
        self._process.wait()
        used = _cpu(resource.RUSAGE_CHILDREN) - before
        for stream in (self._process.stdin, self._process.stdout):
            try:
                if stream is not None:
                    stream.close()
            except OSError:
                pass  # it was gone before it had read everything
        self._errors.close()
        return max(0.0, used - self._starting)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
        except OSError:
            raise self._failure() from None

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        while line and not line.startswith("{"):
            line = self._process.stdout.readline()  # some packages print as they please
        if not line:
            raise self._failure()
        said: dict[str, Any] = json.loads(line)
        return said

    def _failure(self) -> Failed:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines() or ["no word"]
        return Failed(f"ended with {code}: {lines[-1]}")


@dataclass(frozen=True)
class Outcome:
    """How one contender did in one scenario."""

    scenario: str
    contender: str
    seed: int
    items: int
    lost: int
    bound: float
    seconds: float  # to the last success; if something was lost, to the end
    rejected: int
    rejected_for: Mapping[str, int]
    successes: int  # as the provider counted; more than items where one was done twice
    cpu: float
    useless: Mapping[str, int]  # calls to keys that never answer
    after_restart: Mapping[str, int]  # rejected calls of each key after the restart; empty without one
    words: str
    believed: Sequence[str]  # what a pool took the limits to be at the end, by credential
    load: float  # of the machine while it ran, from the last minute

    @property
    def efficiency(self) -> float:
        """What was possible by what was taken; of an unfinished drain it is less than that."""
        return self.bound / self.seconds

    @property
    def rejected_per_success(self) -> float:
        return self.rejected / max(1, self.successes)

    @property
    def cpu_per_thousand(self) -> float:
        return self.cpu / max(1, self.items - self.lost) * 1000


def run_once(drawn: Scenario, contender: str, seed: int, script: Sequence[str] = CHILD) -> Outcome:
    """Let one contender drain one scenario, in a process that runs *script*. Raises Failed."""
    limit = 4 * bound_of(drawn) + 30
    with in_process(drawn.plan) as provider, tempfile.TemporaryDirectory(prefix="agentos-drain-") as folder:
        kept = f"{folder}/done" if drawn.restart and contender != OURS else None
        job = job_of(drawn, provider.base_url, folder if drawn.restart else None, exact=contender == EXACT)
        draining = Child(contender, job, limit, kept, script)
        cpu, at_restart = 0.0, None
        try:
            provider.reset()
            began = monotonic()
            draining.go(began)
            if drawn.restart:
                time.sleep(drawn.seconds / 2)
                cpu = draining.kill()
                at_restart = provider.statistics()
                draining = Child(contender, job, limit - (monotonic() - began), kept, script)
                draining.go(began)
            said = draining.answer()
        finally:
            draining.kill()
        said["cpu"] += cpu
        return outcome_of(drawn, contender, seed, began, said, provider.statistics(), at_restart)


def outcome_of(
    drawn: Scenario,
    contender: str,
    seed: int,
    began: float,
    said: Mapping[str, Any],
    seen: Statistics,
    at_restart: Statistics | None = None,
) -> Outcome:
    """What is to be thought of what the contender *said* and the provider has *seen*, now that it is over."""
    lost = drawn.calls - min(said["done"], seen.total.ok)
    ended = said["last_at"] if lost == 0 and said["last_at"] is not None else monotonic()
    after_restart = {}
    if at_restart is not None:
        after_restart = {name: key.refused - at_restart.keys[name].refused for name, key in seen.keys.items()}
    return Outcome(
        scenario=drawn.name,
        contender=contender,
        seed=seed,
        items=drawn.calls,
        lost=lost,
        bound=exact_bound(drawn, seen) if drawn.exclusive and lost == 0 else bound_of(drawn),
        seconds=ended - began,
        rejected=seen.total.refused,
        rejected_for=seen.total.rejected,
        successes=seen.total.ok,
        cpu=said["cpu"],
        useless={name: seen.keys[name].calls for name in drawn.useless_keys},
        after_restart=after_restart,
        words="; ".join(filter(None, [said["words"], *seen.violations])),
        believed=said["believed"],
        load=os.getloadavg()[0],
    )


def job_of(drawn: Scenario, base_url: str, folder: str | None = None, *, exact: bool = False) -> Job:
    """What a contender is told of a scenario; *folder* if it is going to be killed."""
    return Job(
        base_url=base_url,
        keys=tuple(Key(key.name, key.secret, key.quota) for key in drawn.plan.keys),
        items=drawn.calls,
        parallel=drawn.parallel,
        limits=drawn.limits if drawn.known else {},
        exclusive=drawn.exclusive,
        folder=folder,
        plan=drawn.plan.to_dict() if exact else None,
        client=drawn.client,
    )


def bound_of(drawn: Scenario) -> float:
    return lower_bound(drawn.plan, drawn.calls, parallel=drawn.parallel).seconds


def exact_bound(drawn: Scenario, seen: Statistics) -> float:
    """The bound by the latencies that the calls really had: by their mean, luck would be taken for skill."""
    latencies = [
        latency
        for key in drawn.plan.keys
        for latency in latencies_of(drawn.plan, key.secret, seen.keys[key.name].admitted)
    ]
    return lower_bound(drawn.plan, drawn.calls, parallel=drawn.parallel, latencies=latencies).seconds


def latencies_of(plan: ProviderPlan, secret: str, calls: int) -> Iterator[float]:
    """How long the first calls of a key take: the provider's chance is the same each time."""
    provider = Provider(plan)
    for number in range(calls):
        answer = provider.arrive(secret, 0, float(number))
        if isinstance(answer, Admitted):
            provider.finish(answer, float(number))
            yield answer.latency


# -- all of them, and the verdict -------------------------------------------------------------------------------------

COLUMNS = ("efficiency", "worst", "rejected/ok", "lost", "CPU s/1,000", "seconds")


class Report:
    """Prints as it goes, and remembers what was missed."""

    def __init__(self) -> None:
        self.judged = 0
        self.missed: list[str] = []
        self.outcomes: list[Outcome] = []

    def title(self, drawn: Scenario) -> None:
        head = f"{drawn.name}: {drawn.calls:,} calls, {drawn.title}, {drawn.client} client"
        print(f"\n{head}\n  {'':<14}" + "".join(f"{column:>13}" for column in (*COLUMNS, "CPU ratio")), flush=True)

    def row(self, outcomes: Sequence[Outcome], limiter: Sequence[Outcome] = ()) -> None:
        """The medians of the repeats of one contender, and the worst efficiency; CPU also beside the limiter's."""
        self.outcomes.extend(outcomes)
        lost = max(outcome.lost for outcome in outcomes)
        load = max(outcome.load for outcome in outcomes)
        efficiencies = [outcome.efficiency for outcome in outcomes]
        figures = (
            f"{'<' if lost else ''}{statistics.median(efficiencies):.3f}",
            f"{'<' if lost else ''}{min(efficiencies):.3f}",
            f"{statistics.median(outcome.rejected_per_success for outcome in outcomes):.4f}",
            f"{lost:,}",
            f"{statistics.median(outcome.cpu_per_thousand for outcome in outcomes):.2f}",
            f"{statistics.median(outcome.seconds for outcome in outcomes):.2f}",
            f"{statistics.median(_ratios(outcomes, limiter, 'cpu_per_thousand')):.2f}" if limiter else "",
        )
        words = [
            _most("calls to dead or spent keys", [outcome.useless for outcome in outcomes]),
            _most("rejected after the restart, by key", [outcome.after_restart for outcome in outcomes]),
            *{outcome.words for outcome in outcomes},
            f"(noisy: load {load:.1f})" if load > (os.cpu_count() or 1) else "",
        ]
        numbers = "".join(f"{figure:>13}" for figure in figures)
        print("  ".join([f"  {outcomes[0].contender:<14}{numbers}", *filter(None, words)]), flush=True)

    def judge(
        self,
        drawn: Scenario,
        outcomes: Sequence[Outcome],
        limiter: Sequence[Outcome] = (),
        exact: Sequence[Outcome] = (),
    ) -> None:
        """Every target of the scenario, by the worst of the repeats."""
        targets = drawn.targets
        asked: list[tuple[str, float, float, bool]] = [
            ("lost", max(outcome.lost for outcome in outcomes), 0, False),
            ("rejected/ok", max(outcome.rejected_per_success for outcome in outcomes), targets.rejected, False),
        ]
        if drawn.client == "light":
            asked.append(("CPU", max(outcome.cpu_per_thousand for outcome in outcomes), targets.cpu, False))
        if drawn.seconds >= SECONDS:
            efficiency = min(outcome.efficiency for outcome in outcomes)
            asked.append(("efficiency", efficiency, targets.efficiency, True))
        elif measure := limiter or exact:
            share = min(_ratios(outcomes, measure, "efficiency"))
            asked.append((f"efficiency by {measure[0].contender}'s", share, targets.share, True))
        if limiter:
            ratio = max(_ratios(outcomes, limiter, "cpu_per_thousand"))
            asked.append((f"CPU by {LIMITER}'s", ratio, MOST_CPU, False))
        if targets.useless is not None:
            calls = max(count for outcome in outcomes for count in outcome.useless.values())
            asked.append(("calls to a useless key", calls, targets.useless, False))
        if targets.after_restart is not None:
            calls = max(count for outcome in outcomes for count in outcome.after_restart.values())
            asked.append(("rejected after the restart", calls, targets.after_restart, False))
        said = [self.verdict_of(drawn.name, *each) for each in asked]
        print(f"  {OURS}: {'; '.join(said)}", flush=True)

    def verdict_of(self, where: str, name: str, figure: float, bound: float, least: bool) -> str:
        """Whether *figure* is at *least* *bound*, or at most; in words, and remembered."""
        kept = figure >= bound if least else figure <= bound
        verdict = f"{name} {figure:.4g}, target {'at least' if least else 'at most'} {bound:.4g}"
        self.judged += 1
        if kept:
            return f"{verdict} ok"
        verdict += f", MISSED by {abs(figure - bound):.2g}"
        self.missed.append(f"{where}: {verdict}")
        return verdict

    def verdict(self) -> str:
        if not self.judged:
            return "nothing was judged"
        if not self.missed:
            return f"none of {self.judged} targets was missed"
        return "\n  ".join([f"missed targets, {len(self.missed)} of {self.judged}:", *self.missed])


def _ratios(outcomes: Sequence[Outcome], measure: Sequence[Outcome], figure: str) -> list[float]:
    """What came out, repeat by repeat, by what it was for the *measure*."""
    return [getattr(mine, figure) / getattr(its, figure) for mine, its in zip(outcomes, measure, strict=True)]


def _most(what: str, counts: Sequence[Mapping[str, int]]) -> str:
    """The counts of the worst repeat in words; none if there are none."""
    worst = max(counts, key=lambda each: max(each.values(), default=0))
    return f"{what}: {' '.join(map(str, worst.values()))}" if worst else ""


def draw_scenario(name: str, seconds: float, client: str | None, seed: int) -> Scenario:
    """The scenario as *seed* draws it, with another client if one is named."""
    drawn = scenario(name, seed, seconds)
    return drawn if client is None else replace(drawn, client=client)


def compare(
    report: Report, draw: Callable[[int], Scenario], contenders: Sequence[str], seeds: Sequence[int]
) -> list[Outcome]:
    """Every contender once, then every contender again on another seed. One that fails is left out from then on."""
    drawn = draw(seeds[0])
    entered = [
        each
        for each in contenders
        if (drawn.known or each not in NEEDS_LIMITS) and not (drawn.restart and each == EXACT)
    ]
    found: dict[str, list[Outcome]] = {contender: [] for contender in entered}
    report.title(drawn)
    for seed in seeds:
        for contender in tuple(found):
            try:
                found[contender].append(run_once(draw(seed), contender, seed))
            except Failed as why:
                print(f"  {contender} is left out: {why}", flush=True)
                del found[contender]
    limiter, exact = found.get(LIMITER, []), found.get(EXACT, [])
    for outcomes in found.values():
        report.row(outcomes, limiter)
    if OURS in found:
        report.judge(drawn, found[OURS], limiter, exact)
    return found.get(OURS, [])


class Believer(Protocol):
    """An outcome of a contender that has a pool."""

    @property
    def seed(self) -> int: ...

    @property
    def believed(self) -> Sequence[str]: ...


def show_beliefs(outcomes: Sequence[Believer]) -> None:
    """Print what the pool took the limits to be, repeat by repeat."""
    for outcome in outcomes:
        lines = [f"    believed at the end, seed {outcome.seed}:", *(f"      {each}" for each in outcome.believed)]
        print("\n".join(lines), flush=True)


def machine() -> str:
    versions = []
    for name in PACKAGES.values():
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(f"no {name} (`make bench` installs it)")
    return (
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}; {', '.join(versions)}"
    )


def json_of(outcome: Outcome) -> dict[str, Any]:
    figures = {
        "efficiency": outcome.efficiency,
        "rejected_per_success": outcome.rejected_per_success,
        "cpu_per_thousand": outcome.cpu_per_thousand,
    }
    return {**asdict(outcome), **{name: round(figure, 6) for name, figure in figures.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description="Drain simulated providers, beside peers.")
    parser.add_argument("--quick", action="store_true", help="scenarios of 12 s, judged beside peers")
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--contender", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="NAME")
    parser.add_argument("--client", choices=CLIENTS, help="of all but LiteLLM; unless told, that of the scenario")
    parser.add_argument("--seconds", type=float, help="the least a scenario can take; 60 unless told")
    parser.add_argument("--repeats", type=int, help="each on a seed of its own; 1 unless told")
    parser.add_argument("--seed", type=int, help="another one each time unless told")
    parser.add_argument("--believed", action="store_true", help="show what the pool took the limits to be at the end")
    parser.add_argument("--json", metavar="FILE", help="write every outcome there")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child()
        return
    seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS)
    repeats = arguments.repeats or 1
    seed = int(time.time()) % 1_000_000 if arguments.seed is None else arguments.seed
    seeds = range(seed, seed + repeats)
    print(f"{machine()}\nseed {seed}, scenarios of {seconds:g} s, each {repeats}x", flush=True)
    report = Report()
    for name in arguments.scenario:
        draw = functools.partial(draw_scenario, name, seconds, arguments.client)
        ours = compare(report, draw, arguments.contender, seeds)
        if arguments.believed:
            show_beliefs(ours)
    print(f"\n{report.verdict()}")
    if arguments.json:
        told = {"machine": machine(), "seed": seed, "seconds": seconds, "repeats": repeats}
        told_all = {**told, "missed": report.missed, "outcomes": [json_of(each) for each in report.outcomes]}
        Path(arguments.json).write_text(json.dumps(told_all, indent=1) + "\n")


if __name__ == "__main__":
    main()
