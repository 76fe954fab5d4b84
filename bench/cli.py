"""What the command costs, beside GNU parallel and xargs: ``python bench/cli.py [--quick] [--only wall ...]``.

Every measurement is the installed command as a person types it, in a folder of its own, with the items on standard
input. Contenders take turns, so that whatever else the machine does hits all of them; the best round is shown beside
the median, as it is the one that was disturbed least. Peers that are not installed are named and left out. CPU seconds
are those of everything a command started, the items' own processes too: what xargs takes is nearly all theirs. Nothing
here fails a build; the last lines say which targets were met.

PYTHONDONTWRITEBYTECODE is unset for what is measured, and each contender runs once before the clock starts: otherwise
each start would compile the whole package again.
"""

from __future__ import annotations

import argparse
import os
import platform
import select
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

from run import Failed, Report, fsync_micros

JOBS = 8
KEYS = 4
LONGEST = 600.0  # seconds; a command that takes longer is ended and left out
LOOKED_AT_EVERY = 0.05  # seconds, for the memory in use and for a command that ends too soon
FEW = JOBS  # items of a run that is only to start

WALL_TARGET = 1.5  # times GNU parallel
START_TARGET = 0.5  # seconds
HELP_TARGET = 0.3


@dataclass(frozen=True)
class Effort:
    items: int  # of which the wall time is compared
    repeats: int
    starts: int
    sizes: Sequence[int]  # of runs of commands, the smallest first
    calls: Sequence[int]  # of runs of a function


FULL = Effort(1_000, 5, 7, (1_000, 5_000, 10_000), (1_000, 100_000))
QUICK = Effort(200, 2, 2, (200, 400), (200, 2_000))
LONG = (1_000, 10_000, 100_000)  # commands, with --long


# -- the contenders -----------------------------------------------------------------------------------------------

XARGS, PARALLEL, OURS = "xargs", "GNU parallel", "agentos"
PLAIN, WITH_KEYS = f"{OURS}, plain progress", f"{OURS}, {KEYS} keys, SQLite store"

OUR_COMMAND = Path(sys.executable).with_name("agentos")  # of this environment, not one that PATH happens to name
RUN = (str(OUR_COMMAND), "run", "-", "--name", "bench", "-j", str(JOBS))
SILENT = ("--progress", "none")
KEYS_FILE = "keys.toml"


@dataclass(frozen=True)
class Contender:
    """A program that runs a command once for each line of its input: what is typed before that command."""

    name: str
    words: Sequence[str]
    ours: bool = True

    def running(self, *command: str) -> list[str]:
        return [*self.words, *command]


CONTENDERS = (
    Contender(XARGS, ("xargs", f"-P{JOBS}", "-n1"), ours=False),
    Contender(PARALLEL, ("parallel", f"-j{JOBS}"), ours=False),
    Contender(OURS, (*RUN, *SILENT, "--")),
    Contender(PLAIN, (*RUN, "--")),
    Contender(WITH_KEYS, (*RUN, *SILENT, "--keys", KEYS_FILE, "--store", "sqlite:///keys.sqlite", "--")),
)


def fit(report: Report, names: Sequence[str]) -> list[Contender]:
    """Those of that name that can be measured here. Each has run once: what it reads from the disk is in memory."""
    found = []
    for contender in CONTENDERS:
        if contender.name not in names:
            continue
        try:
            require(contender)
            measure(contender.running("true"), FEW)
        except Failed as why:
            report.left_out(contender.name, why)
        else:
            found.append(contender)
    return found


def require(contender: Contender) -> None:
    """Raise Failed if it is not installed."""
    program = shutil.which(contender.words[0])
    if program is None:
        raise Failed(f"{contender.words[0]} is not installed")
    if contender.name == PARALLEL:  # another program of that name is in moreutils
        asked = subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if PARALLEL not in asked.stdout:
            raise Failed(f"{program} is another program")


# -- one measurement ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peaks:
    """The most megabytes that a command and the one process it starts have had, as far as they were looked at.

    Not ``ru_maxrss``: on Linux that of a child begins with what its parent had.
    """

    driver: float = 0.0
    helper: float = 0.0


@dataclass(frozen=True)
class Measured:
    """Seconds from start to end, CPU seconds of all processes, seconds to the first item, and the memory."""

    wall: float
    cpu: float
    first: float
    peaks: Peaks


def measure(words: Sequence[str], items: int = 0, *, first: bool = False, memory: bool = False) -> Measured:
    """Run it in a new folder with the numbers from 1 to *items* as its input. Raises Failed if it does not end well.

    With *first*, what it runs for each item has to be ``./note``.
    """
    with tempfile.TemporaryDirectory(prefix="agentos-bench-") as name:
        folder = Path(name)
        prepare(folder, items)
        notes = os.open(folder / "notes", os.O_RDWR | os.O_NONBLOCK)  # for both, or the first writer would wait
        try:
            with open(folder / "items") as lines, open(folder / "errors", "w") as errors, at_most(LONGEST):
                began = perf_counter()
                process = subprocess.Popen(
                    words, cwd=folder, env=surroundings(folder), stdin=lines, stdout=subprocess.DEVNULL, stderr=errors
                )
                watched = Watched(process)
                try:
                    started_at = first_note(notes, watched) if first else began
                    peaks = peaks_of(watched) if memory else Peaks()
                    watched.wait()
                except BaseException:
                    process.kill()
                    process.wait()
                    raise
        finally:
            os.close(notes)
        check(process, folder, words, items)
        return Measured(watched.ended_at - began, watched.cpu, started_at - began, peaks)


def prepare(folder: Path, items: int) -> None:
    (folder / "items").write_text("".join(f"{number}\n" for number in range(1, items + 1)))
    os.mkfifo(folder / "notes")
    note = folder / "note"
    note.write_text("#!/bin/sh\necho > notes\n")
    note.chmod(0o700)
    (folder / "work.py").write_text("def same(item, credential):\n    return item\n")
    stated = []
    for number in range(1, KEYS + 1):
        secret = folder / f"secret-{number}"
        secret.touch(mode=0o600)
        secret.write_text(f"bench-secret-{number:05}\n")
        stated.append(f'[[credentials]]\nname = "key-{number}"\nfile = "{secret.name}"\nslots = {JOBS // KEYS}\n')
    (folder / KEYS_FILE).write_text("".join(stated))


def surroundings(folder: Path) -> dict[str, str]:
    """The environment without what is set for this machine or for real runs."""
    unwanted = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
    kept = {name: os.environ[name] for name in os.environ if name not in unwanted and not name.startswith("AGENTOS_")}
    return kept | {"XDG_CONFIG_HOME": str(folder), "XDG_STATE_HOME": str(folder)}


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise Failed in the midst of what takes longer."""

    def too_long(*_: object) -> None:
        raise Failed(f"not done in {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Watched:
    """A command that runs: when it ended, and the CPU seconds of it and of all that it started."""

    process: subprocess.Popen[bytes]
    ended_at: float = 0.0
    cpu: float = 0.0

    def has_ended(self, flags: int = os.WNOHANG) -> bool:
        if self.process.returncode is None:
            pid, status, usage = os.wait4(self.process.pid, flags)
            if pid:
                self.ended_at = perf_counter()
                self.process.returncode = os.waitstatus_to_exitcode(status)
                self.cpu += usage.ru_utime + usage.ru_stime
        return self.process.returncode is not None

    def wait(self) -> None:
        """Until it has ended; then for those that outlive it for a moment, if they are ours to wait for."""
        self.has_ended(flags=0)
        while True:
            try:
                _, _, usage = os.wait4(-1, 0)
            except ChildProcessError:
                return
            self.cpu += usage.ru_utime + usage.ru_stime


def first_note(notes: int, watched: Watched) -> float:
    """The instant at which the first item wrote its note."""
    while not select.select([notes], [], [], LOOKED_AT_EVERY)[0]:
        if watched.has_ended():
            return watched.ended_at  # and not well
    return perf_counter()


def check(process: subprocess.Popen[bytes], folder: Path, words: Sequence[str], items: int) -> None:
    if process.returncode != 0:
        said = (folder / "errors").read_text(errors="replace").split("\n")
        last = "; ".join([line.strip() for line in said if line.strip()][-2:])  # what is wrong, and what to do
        raise Failed(f"ended with {process.returncode}: {last or 'no word'}")
    if tuple(words[: len(RUN)]) == RUN:
        done = (folder / ".agentos/runs/bench/results.jsonl").read_bytes().count(b'"outcome":"done"')
        if done != items:
            raise Failed(f"{done} of {items} items were done")


def adopt_orphans() -> bool:
    """Have the processes that a command leaves behind become ours, and their CPU seconds counted. False: not here."""
    if sys.platform != "linux":
        return False
    import ctypes

    return bool(ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0)  # 36: PR_SET_CHILD_SUBREAPER


def peaks_of(watched: Watched) -> Peaks:
    """Watch it to its end."""
    driver = helper = 0.0
    pid = watched.process.pid
    while not watched.has_ended():
        driver = max(driver, megabytes(pid))
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                found = children.read_text().split()
            except OSError:
                continue  # the thread has ended
            helper = max([helper, *(megabytes(int(child)) for child in found)])
        time.sleep(LOOKED_AT_EVERY)
    return Peaks(driver, helper)


def megabytes(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0  # it has ended, or the system has no such file
    found = dict(line.split(":", 1) for line in lines)
    return int(found["VmHWM"].split()[0]) / 2**10 if "VmHWM" in found else 0.0


# -- comparing ----------------------------------------------------------------------------------------------------


@dataclass
class Rounds:
    """The rounds of one contender."""

    each: list[Measured] = field(default_factory=list)

    def figures(self, of: Callable[[Measured], float]) -> tuple[float, float]:
        """The median, and the best."""
        found = [of(one) for one in self.each]
        return statistics.median(found), min(found)


def wall_of(one: Measured) -> float:
    return one.wall


def cpu_of(one: Measured) -> float:
    return one.cpu


def first_of(one: Measured) -> float:
    return one.first


def in_turns(report: Report, acts: Mapping[str, Callable[[], Measured]], repeats: int) -> dict[str, Rounds]:
    """Each once, then each again. One that fails is left out from then on."""
    rounds = {name: Rounds() for name in acts}
    for _ in range(repeats):
        for name, act in acts.items():
            if name in rounds:
                try:
                    rounds[name].each.append(act())
                except Failed as why:
                    report.left_out(name, why)
                    del rounds[name]
    return rounds


class Targets:
    """What was aimed at, and what came of it; said at the end."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def at_most(self, what: str, figure: float, bound: float, unit: str) -> None:
        over = figure - bound
        verdict = "met" if over <= 0 else f"MISSED by {over:.2f}{unit} ({over / bound:.0%})"
        self.lines.append(f"{what}: {figure:.2f}{unit}, target at most {bound:g}{unit}: {verdict}")

    def unknown(self, what: str, why: str) -> None:
        self.lines.append(f"{what}: not known, {why}")


@dataclass(frozen=True)
class Bench:
    effort: Effort
    report: Report
    targets: Targets
    contenders: Sequence[Contender]  # those that are installed


def wall(bench: Bench) -> None:
    """The same items by all: the time until the command has ended, and the CPU seconds that went into it."""
    report, items = bench.report, bench.effort.items
    report.section(f"{items:,} times true, -j {JOBS}, seconds", "median", "best", "items/s", "CPU")

    def act(contender: Contender) -> Callable[[], Measured]:
        return lambda: measure(contender.running("true"), items)

    rounds = in_turns(report, {each.name: act(each) for each in bench.contenders}, bench.effort.repeats)
    peer = rounds.get(PARALLEL)
    for contender in bench.contenders:
        if contender.name not in rounds:
            continue
        found = rounds[contender.name]
        median, best = found.figures(wall_of)
        words = ""
        if peer is not None and contender.name != PARALLEL:
            ratios = [mine / theirs for mine, theirs in zip((median, best), peer.figures(wall_of), strict=True)]
            words = f"{ratios[0]:.2f}x / {ratios[1]:.2f}x of {PARALLEL}"
            if contender.ours:
                what = f"{contender.name}, wall time by {PARALLEL}"
                bench.targets.at_most(what, ratios[0], WALL_TARGET, "x")
        all_of_them = " ".join(f"{one.wall:.2f}" for one in sorted(found.each, key=wall_of))
        report.row(contender.name, (median, best, items / median, found.figures(cpu_of)[0]), words, f"({all_of_them})")
    if peer is None:
        bench.targets.unknown(f"wall time by {PARALLEL}", f"{PARALLEL} could not be measured")


def start(bench: Bench) -> None:
    """From the start of the command to the first line of what it runs for the first item; and what prints at once."""
    report, targets = bench.report, bench.targets
    report.section("from the start to the first item, ms", "median", "best", "worst")

    def act(contender: Contender) -> Callable[[], Measured]:
        return lambda: measure(contender.running("./note"), FEW, first=True)

    rounds = in_turns(report, {each.name: act(each) for each in bench.contenders}, bench.effort.starts)
    for contender in bench.contenders:
        if contender.name in rounds:
            median = print_millis(report, contender.name, rounds[contender.name], first_of)
            if contender.ours:
                targets.at_most(f"{contender.name}, start to first item", median, START_TARGET, " s")
    report.section("from the start to the end, ms", "median", "best", "worst")
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "agentos --version": [str(OUR_COMMAND), "--version"],
        "agentos --help": [str(OUR_COMMAND), "--help"],
        "agentos run --help": [str(OUR_COMMAND), "run", "--help"],
    }

    def ending(words: Sequence[str]) -> Callable[[], Measured]:
        return lambda: measure(words)

    rounds = in_turns(report, {name: ending(words) for name, words in commands.items()}, bench.effort.starts)
    for name, found in rounds.items():
        median = print_millis(report, name, found, wall_of)
        if name == "agentos --help":
            targets.at_most(name, median, HELP_TARGET, " s")


def print_millis(report: Report, name: str, found: Rounds, of: Callable[[Measured], float]) -> float:
    """A row in milliseconds; the median, in seconds."""
    median, best = found.figures(of)
    report.row(name, [seconds * 1e3 for seconds in (median, best, max(map(of, found.each)))])
    return median


def growth(bench: Bench) -> None:
    """Longer and longer runs: milliseconds for each more item than in the run before, and the memory at most."""
    title = f"longer runs, -j {JOBS}, once each"
    bench.report.section(title, "seconds", "ms more", "CPU s/1k", "driver MB", "helper MB")
    commands = [*RUN, *SILENT, "--", "true"]
    function = [*RUN, *SILENT, "--worker", "work.py:same"]
    for what, words, sizes in (("true", commands, bench.effort.sizes), ("a function", function, bench.effort.calls)):
        before: tuple[int, float] | None = None
        for size in sizes:
            name = f"{size:,} items, {what}"
            try:
                found = measure(words, size, memory=True)
            except Failed as why:
                bench.report.left_out(name, why)
                continue
            # Against the run before it, so that the start is in neither.
            further = (0, 0.0) if before is None else before
            each = (found.wall - further[1]) / (size - further[0]) * 1e3
            figures = (found.wall, each, found.cpu / size * 1e3, found.peaks.driver, found.peaks.helper)
            bench.report.row(name, figures, "" if before is not None else "(with the start)")
            before = (size, found.wall)


SECTIONS: dict[str, Callable[[Bench], None]] = {"wall": wall, "start": start, "growth": growth}


def machine(all_cpu: bool) -> str:
    lines = [
        f"{platform.python_implementation()} {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"fsync {fsync_micros():.0f} us in {tempfile.gettempdir()}",
        "compiled files are in use (PYTHONDONTWRITEBYTECODE is unset for what is measured), each ran once before",
    ]
    if not all_cpu:
        lines.append("CPU without that of processes which outlive the command: this system does not tell")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the agentos command beside GNU parallel and xargs.")
    parser.add_argument("--quick", action="store_true", help="twenty seconds instead of ninety; no verdict")
    parser.add_argument("--long", action="store_true", help=f"up to {max(LONG):,} commands: minutes more")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="NAME")
    names = [contender.name for contender in CONTENDERS]
    parser.add_argument("--contender", nargs="+", choices=names, default=names, metavar="NAME", help="; ".join(names))
    parser.add_argument("--items", type=int, help="how many, where the wall time is compared")
    parser.add_argument("--repeats", type=int)
    arguments = parser.parse_args()
    effort = QUICK if arguments.quick else FULL
    repeats = arguments.repeats
    effort = replace(
        effort,
        items=arguments.items or effort.items,
        repeats=repeats or effort.repeats,
        starts=repeats or effort.starts,
        sizes=LONG if arguments.long else effort.sizes,
    )
    if not OUR_COMMAND.exists():
        parser.error(f"there is no {OUR_COMMAND}: `make bench` installs it")
    load = os.getloadavg()[0]
    print(machine(adopt_orphans()), flush=True)
    report = Report()
    bench = Bench(effort, report, Targets(), fit(report, arguments.contender))
    for name in arguments.only:
        SECTIONS[name](bench)
    print("\ntargets, by the medians:", *bench.targets.lines or ["none was judged"], sep="\n  ")
    if load > (os.cpu_count() or 1):
        print(f"(noisy: the load was {load:.1f} before; the best rounds say more than the medians)")
    if arguments.quick:
        print("(quick: too short to judge by)")


if __name__ == "__main__":
    main()
