"""Several drivers that share keys, and are killed, stopped and suspended at random until every run is complete.

Checked after every life of a driver and at the end: nothing acknowledged is lost or run again, every item ends done,
no key has more users than slots, a forced stop is over soon, forked children are refused, no process is left.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from .faults import FAULTS, FORCED, KILLS, SUSPENSIONS, Fault, Process, processes_with, terminate
from .key_uses import find_overuse
from .shared_keys import SECRETS, SLOTS

ITEMS = 14
_PATIENCE = 300.0  # a life that takes longer hangs; keys of killed commands are leased for up to 30 s
_GRACE = 8.0  # what one SIGTERM leaves running items
_SOON = 5.0  # a forced stop takes a second on an idle machine; this one is loaded on purpose
_KINDS = ("commands", "functions", "coroutines", "forks", "cli commands", "cli functions")


class Violation(AssertionError):
    """A promise that was not kept."""


@dataclass
class Tally:
    """What happened in a trial. One that never hit anything proves nothing."""

    faults: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    slowest_stop: float = 0.0
    abandoned_records: int = 0
    forked: Counter[str] = field(default_factory=Counter)
    kills: int = 0

    def report(self) -> str:
        return (
            f"{self.kills} kills; faults {dict(self.faults)}; complete runs {dict(self.runs)}; slowest forced stop "
            f"{self.slowest_stop:.2f} s; forked children {dict(self.forked)}; {self.abandoned_records} uses by "
            f"abandoned threads, counted apart"
        )


class Trial:
    """Drivers in several lanes, one store for all of them."""

    def __init__(self, root: Path, *, seed: int, kills: int) -> None:
        self.tally = Tally()
        self._root = root
        self._seed = seed
        self._kills = kills
        self._lock = threading.Lock()
        self._abandoned: dict[int, float] = {}
        self._failed = False
        (root / "home").mkdir()
        (root / "forked.log").touch()

    def run(self, lanes: int = 3) -> Tally:
        """Go on until enough drivers were killed. Raises Violation at the first promise not kept."""
        with ThreadPoolExecutor(lanes) as pool:
            for lane in [pool.submit(self._lane, number) for number in range(lanes)]:
                lane.result()
        overuse, self.tally.abandoned_records = find_overuse(self._root, self._abandoned)
        if overuse:
            raise Violation(f"seed {self._seed}: {len(overuse)} moments of overuse, such as {overuse[:3]}")
        self._check_forks()
        return self.tally

    def _lane(self, number: int) -> None:
        rng = random.Random(f"{self._seed}/{number}")
        turn = 0
        while self.tally.kills < self._kills and not self._failed:
            turn += 1
            kind = rng.choice(_KINDS)
            run = _Run(self._root, f"lane{number}-{turn}-{kind.replace(' ', '-')}", kind)
            try:
                self._one_run(run, rng)
            except BaseException:
                self._failed = True
                raise
            with self._lock:
                self.tally.runs[kind] += 1

    def _one_run(self, run: _Run, rng: random.Random) -> None:
        """Lives of one run, until it is complete."""
        for life in range(12):
            last = life == 11 or self.tally.kills >= self._kills
            fault = None if last else rng.choices(list(FAULTS), list(FAULTS.values()))[0]
            self._one_life(run, rng, fault)
            run.check(f"seed {self._seed}, {run.name}, life {life + 1}, {getattr(fault, '__name__', 'no fault')}")
            if run.is_complete:
                break
        if not run.is_complete:
            raise Violation(f"{run.name} is not complete: {run.last_words()}")
        self._wait_for_no_process(run)

    def _one_life(self, run: _Run, rng: random.Random, fault: Fault | None) -> None:
        with run.start() as process:
            if rng.random() < 0.8:  # else while it starts
                run.wait_for_use(process)
            try:
                process.wait(rng.choice([rng.uniform(0.0, 0.3), rng.uniform(0.0, 3.0)]))
            except subprocess.TimeoutExpired:
                self._apply(fault, process, rng, run)
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                raise Violation(f"{run.name} hangs after {fault}: {run.last_words()}") from None

    def _apply(self, fault: Fault | None, process: Process, rng: random.Random, run: _Run) -> None:
        if fault is None:
            return
        with self._lock:
            self.tally.faults[fault.__name__] += 1
            if fault in KILLS:
                self.tally.kills += 1
        begun = time.monotonic()
        if fault in FORCED:
            self._abandoned[process.pid] = begun
        fault(process, rng)
        if fault in SUSPENSIONS and rng.random() < 0.5:
            time.sleep(rng.uniform(0.0, 0.5))
            process.kill()
            self.tally.kills += 1
        elif fault in FORCED and run.kind != "forks":
            process.wait(_PATIENCE)
            took = time.monotonic() - begun
            if run.by_command:
                if fault is not terminate:
                    with self._lock:
                        self.tally.slowest_stop = max(self.tally.slowest_stop, took)
                if took > _SOON + (_GRACE if fault is terminate else 0.0):
                    raise Violation(f"{run.name}: {fault.__name__} took {took:.1f} s: {run.last_words()}")

    def _wait_for_no_process(self, run: _Run) -> None:
        until = time.monotonic() + _PATIENCE
        while left := processes_with(run.mark.encode()):
            if time.monotonic() > until:
                raise Violation(f"processes are left of {run.name}: {left}")
            time.sleep(0.05)

    def _check_forks(self) -> None:
        words = Counter((self._root / "forked.log").read_text().split())
        self.tally.forked = words
        answered = words["refused"] + words["granted"] + words["unclear"]
        # A child whose parent's group was killed in that moment says nothing either; a child that hangs lives 15 s.
        if words["granted"] or words["unclear"]:
            raise Violation(f"forked children were not refused: {words}")
        if answered < words["asked"] * 0.8:
            raise Violation(f"forked children that asked hung: {words}")


class _Run:
    """One run, by the library or by the command, with what is known of it from outside."""

    def __init__(self, root: Path, name: str, kind: str) -> None:
        self.name = name
        self.kind = kind
        self.by_command = kind.startswith("cli")
        self.mark = f"SOAK_RUN={name}"
        self._root = root
        self._uses = root / f"{name}.uses"
        self._words = root / f"{name}.output"
        self._items = [f"{name}-{n}" for n in range(ITEMS)]
        self._done_before: set[str] = set()
        self._seen = 0
        self._uses.touch()
        if self.by_command:
            (root / f"{name}.txt").write_text("".join(f"{item}\n" for item in self._items))
            credentials = "".join(
                f'[[credentials]]\nenv = "SOAK_{key.upper()}"\nname = "{key}"\nslots = {SLOTS[key]}\n'
                for key in SECRETS
            )
            (root / "agentos.toml").write_text(credentials)

    def start(self) -> Process:
        words = self._words.open("ab")
        name, mark = self.mark.split("=")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._root / "home"),
            "AGENTOS_HOME": str(self._root / "home"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            name: mark,
            "SOAK_USES": str(self._uses),
            **{f"SOAK_{key.upper()}": secret for key, secret in SECRETS.items()},
        }
        with words:
            return subprocess.Popen(
                self._argv(), cwd=self._root, env=environment, stdin=subprocess.DEVNULL, stdout=words, stderr=words
            )

    def _argv(self) -> list[str]:
        if not self.by_command:
            return [sys.executable, "-m", "tests.soak.driver", str(self._root), self.name, self.kind, str(ITEMS)]
        use = str(Path(__file__).with_name("use_key.py"))
        run = [
            *(sys.executable, "-m", "agentos.cli", "run", f"{self.name}.txt", "--name", self.name, "-j", "4"),
            *("--config", "agentos.toml", "--store", f"sqlite:///{self._root / 'pool.sqlite'}"),
        ]
        if self.kind == "cli functions":
            return [*run, "--worker", str(Path(__file__).with_name("worker.py")) + ":use_in_threads"]
        command = [sys.executable, "-I", "-S", use, str(self._uses), "{}"]
        return [*run, "--env-key", "AGENTOS_CREDENTIAL", "--kill-after", "1", "--", *command]

    # -- what is known from outside ----------------------------------------------------------------------------

    def done(self) -> set[str]:
        """Items whose results somebody received."""
        if self.by_command:
            path = self._root / ".agentos" / "runs" / self.name / "results.jsonl"
            lines = path.read_text().splitlines() if path.exists() else []
            results = [json.loads(line) for line in lines if line.endswith("}")]
            return {result["id"] for result in results if result["outcome"] == "done"}
        path = self._root / f"{self.name}.acknowledged"
        lines = path.read_text().splitlines() if path.exists() else []
        return {line.split()[0] for line in lines if line.split()[1] == "done"}

    @property
    def is_complete(self) -> bool:
        return self.done() >= set(self._items)

    def check(self, where: str) -> None:
        """Of the life that has just ended: nothing acknowledged before it is gone, or was executed in it."""
        done = self.done()
        if lost := self._done_before - done:
            raise Violation(f"{where}: lost {sorted(lost)}")
        if again := self._executed_since() & self._done_before:
            raise Violation(f"{where}: acknowledged and executed again {sorted(again)}")
        self._done_before = done

    def _executed_since(self) -> set[str]:
        """Items that were executed in the last life: each item's first use is a record of it."""
        text = self._uses.read_text()
        new, self._seen = text[self._seen :], len(text)
        return {line.split(" ")[2].partition("/")[2] for line in new.splitlines()}

    def wait_for_use(self, process: Process) -> None:
        """Until a key is used in this life, or the driver has ended."""
        while self._uses.stat().st_size <= self._seen and process.poll() is None:
            time.sleep(0.005)

    def last_words(self) -> str:
        return self._words.read_text(errors="replace")[-1500:]
