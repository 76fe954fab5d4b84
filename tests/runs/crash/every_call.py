"""A fault at every system call by which a small run writes, syncs or moves a file; ``make crash`` runs this.

strace stands between the run and the kernel. Not named like a test, because a machine without strace must not skip it
silently: here it fails.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Lock

import pytest

from .checks import Record, Violation, require
from .evidence import Life, journal_of
from .expected_outcomes import Script
from .processes import Moment, live, live_under_strace

pytestmark = pytest.mark.timeout(3600)

SCRIPT = Script("stream-unsized", workers=2, keys=2, items=20, pause=0.002)
CALLS = [
    *("pwrite64", "write", "fdatasync", "fsync", "ftruncate"),
    *("renameat", "unlink", "unlinkat", "mkdir", "flock", "close"),
]
FAULTS = [
    *(("fdatasync", "EIO"), ("pwrite64", "EIO"), ("pwrite64", "ENOSPC"), ("fsync", "EIO"), ("ftruncate", "EIO")),
    *(("renameat", "EIO"), ("unlinkat", "EIO"), ("unlink", "EIO"), ("flock", "ENOLCK")),
]


@pytest.fixture(autouse=True, scope="module")
def strace() -> str:
    found = shutil.which("strace")
    if found is None:
        pytest.fail("strace is needed to fail every system call of a run, and is not installed", pytrace=False)
    return found


class Start:
    """A run that is new, or one that was killed and is to be resumed: the same for every fault."""

    def __init__(self, folder: Path, *, resumed: bool) -> None:
        self._folder = folder
        self.is_new = not resumed
        self._life = live(folder, SCRIPT, Moment("told", 8, None)) if resumed else None

    def make(self, folder: Path) -> Record:
        record = Record(SCRIPT, folder)
        if self._life is not None:
            shutil.copytree(self._folder, folder)
            record.add(Life(self._life.lines, self._life.exit_code, self._life.stderr), journal_of(folder))
            record.check()
        return record


@pytest.fixture(params=["new", "resumed"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    return Start(tmp_path / "start", resumed=request.param == "resumed")


@pytest.fixture(params=["opening", "item"])
def script(request: pytest.FixtureRequest) -> Script:
    """Faults hit the thread that opens the journal, from its first call; or the one that writes it, from there on."""
    return replace(SCRIPT, gate=request.param)


@pytest.mark.parametrize("call", CALLS)
def test_a_run_killed_at_any_call_is_resumed_and_completed(
    start: Start, script: Script, call: str, tmp_path: Path
) -> None:
    def hit(record: Record, number: int) -> bool:
        life, _ = _suffer(record, script, f"{call}:signal=SIGKILL:when={number}")
        require(life.was_killed or life.is_over, f"it ended with {life.exit_code}: {life.stderr[-2000:]}")
        if life.was_killed:
            _complete(record)
        else:
            record.check_complete()
        return life.was_killed

    points = _at_every(start, tmp_path, hit)

    print(f"\n  killed at {points} calls of {call}", end="")  # noqa: T201 - the count is the result
    assert points or not start.is_new or script.gate != "opening", "a new journal is not made without it"


@pytest.mark.parametrize(("call", "error"), FAULTS)
def test_a_run_survives_an_error_of_any_call(
    start: Start, script: Script, call: str, error: str, tmp_path: Path
) -> None:
    """It goes on by itself, or, when the journal could not even be opened, says so and can be started again."""
    held: list[object] = []

    def hit(record: Record, number: int) -> bool:
        life, times = _suffer(record, script, f"{call}:error={error}:when={number}")
        held.extend(line for line in life.lines if line == ["event", "held"])
        if life.is_over:
            record.check_complete()
        else:
            last = life.stderr.strip().splitlines()[-1]
            require(last.startswith("agentos.errors.Journal"), f"it ended with {life.stderr[-3000:]}")
            require(not life.executions, f"a run that was on was ended: {life.stderr[-3000:]}")
            _complete(record)
        return times > 0

    points = _at_every(start, tmp_path, hit)

    print(f"\n  {error} at {points} calls of {call}, held {len(held)} times", end="")  # noqa: T201
    assert held or script.gate == "opening" or call not in {"fdatasync", "pwrite64"}, "no commit was ever hit"


def test_a_run_on_a_disk_that_takes_100_ms_to_sync_is_completed(start: Start, script: Script, tmp_path: Path) -> None:
    record = start.make(tmp_path / "run")

    life, times = _suffer(record, script, "fdatasync:delay_enter=100000")

    assert life.is_over
    assert times
    record.check_complete()


def _at_every(start: Start, root: Path, hit: Callable[[Record, int], bool]) -> int:
    """Let *hit* have its first, second, third ... call, until two in a row find no such call. Two at a time."""
    numbers, missed, lock = count(1), set[int](), Lock()
    hits: list[int] = []

    def following() -> Iterator[int]:
        while True:
            with lock:
                if any(number + 1 in missed for number in missed):
                    return
                number = next(numbers)
            yield number

    def lane() -> None:
        for number in following():
            record = start.make(root / f"call-{number}")
            try:
                (hits.append if hit(record, number) else missed.add)(number)
            except AssertionError as error:
                missed.update({number, number + 1})
                raise Violation(f"{error}\ncall {number} in {record.folder}") from error
            shutil.rmtree(record.folder)

    with ThreadPoolExecutor(2) as pool:
        for ended in [pool.submit(lane), pool.submit(lane)]:
            ended.result()
    return len(hits)


def _suffer(record: Record, script: Script, fault: str) -> tuple[Life, int]:
    life, times = live_under_strace(record.folder, script, fault)
    record.add(life, journal_of(record.folder))
    if life.was_killed or life.is_over:
        record.check()
    return life, times


def _complete(record: Record) -> None:
    record.add(live(record.folder, SCRIPT), journal_of(record.folder))
    record.check()
    record.check_complete()
