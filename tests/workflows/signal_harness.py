"""Processes that are signalled, as a test sees them: what they noted, what they said, how they ended, and the judge.

After every process the same judgement is passed, by predicates that the product names and a reader of the journal that
shares no code with it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.runs.core.invariants import (
    j2_every_item_is_in_one_state,
    j5_sequence_is_contiguous,
    l5_results_have_the_current_token,
    one_final_entry,
    s1_nothing_begins_after_the_signal,
    s2_the_second_signal_ends_it,
    s4_everything_run_is_recorded,
)
from tests.runs.journal import independent_reader

from .signal_child import KEYS

PATIENCE = 20.0  # for what should take no time; a deadlock is seen after it
ROOT = Path(__file__).parents[2]
FINAL = {"done", "failed"}

Note = dict[str, Any]


class TooLate(AssertionError):
    """All is as it should be, and took too long."""


class Metronome:
    """Knows for how long this machine kept everybody waiting: how late a thread wakes that only sleeps.

    The bounds of a run are in real time, and a machine with ten times the work it can do does not keep them. What it
    took from us is given back (by this, or by ``Queueing``); a run that is late by itself stays late.
    """

    _BEAT = 0.005

    def __init__(self) -> None:
        self._late: list[tuple[float, float]] = []  # when, by how much
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while True:
            before = time.monotonic()
            time.sleep(self._BEAT)
            now = time.monotonic()
            if now - before > 3 * self._BEAT:
                self._late.append((now, now - before - self._BEAT))

    def lost(self, since: float, until: float) -> float:
        return sum(late for at, late in list(self._late) if at > since and at - late < until)


METRONOME = Metronome()


class Queueing:
    """Knows for how long the threads of a process were ready to run, and stood in line for a processor.

    One that only sleeps, as the metronome, is let in before those that have work to do. The kernel counts for each;
    where it does not, nothing is given back.
    """

    _LOOK_EVERY = 0.01

    def __init__(self, pid: int) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._waited: dict[str, float] = {}  # by thread, until it was last seen
        self._sums: list[tuple[float, float]] = []  # when, of all
        self._look()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while self._look():
            time.sleep(self._LOOK_EVERY)

    def _look(self) -> bool:
        try:
            for task in self._tasks.iterdir():
                self._waited[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError):
            if not self._tasks.is_dir():
                return False  # the process has ended; else only one of its threads
        self._sums.append((time.monotonic(), sum(self._waited.values())))
        return bool(self._waited)

    def lost(self, since: float, until: float) -> float:
        sums = [total for at, total in list(self._sums) if since <= at <= until]
        return sums[-1] - sums[0] if sums else 0.0


class Lines:
    """A pipe, read to its end by a thread of its own. Somebody can wait for a line."""

    def __init__(self, descriptor: int) -> None:
        self._arrived = threading.Condition()
        self._lines: list[str] = []
        self.ended_at: float | None = None
        self._descriptor = descriptor
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        rest = b""
        while more := os.read(self._descriptor, 65536):
            *lines, rest = (rest + more).split(b"\n")
            with self._arrived:
                self._lines += [line.decode() for line in lines]
                self._arrived.notify_all()
        at = time.monotonic()
        with self._arrived:
            self._lines += [rest.decode()] if rest else []
            self.ended_at = at
            self._arrived.notify_all()
        os.close(self._descriptor)

    def lines(self, since: int = 0) -> list[str]:
        with self._arrived:
            return self._lines[since:]

    def wait(self, enough: Callable[[list[str]], bool]) -> bool:
        """True once there is *enough*; False if the pipe ended, or patience did, before."""
        with self._arrived:
            return self._arrived.wait_for(
                lambda: enough(self._lines) or self.ended_at is not None, PATIENCE
            ) and enough(self._lines)

    def wait_end(self) -> float | None:
        with self._arrived:
            self._arrived.wait_for(lambda: self.ended_at is not None, PATIENCE)
            return self.ended_at


@dataclass
class Ending:
    """How a process ended, and what it left."""

    code: int
    at: float
    took: float  # from the last signal, to its end
    notes: list[Note]
    stderr: str
    stdout: str
    states: dict[str, dict[str, str]] = field(default_factory=dict)  # by journal

    def items(self, what: str) -> list[str]:
        return [note["item"] for note in self.notes if note["what"] == what]

    def noted(self, what: str, item: str | None = None) -> Note:
        found = [note for note in self.notes if note["what"] == what and item in (None, note["item"])]
        assert len(found) == 1, f"{what}: {found}\n{self.stderr}"
        return found[0]

    @property
    def report(self) -> Note:
        return self.noted("report")

    def in_state(self, state: str, journal: str = "run") -> set[str]:
        return {item for item, found in self.states[journal].items() if found == state}


class Child:
    """A process that waits to be told its story."""

    def __init__(self, *, stdout: int | None = None, stderr: int | None = None, prepare: str = "") -> None:
        notes, writer = os.pipe()
        command = [sys.executable, "-m", "tests.workflows.signal_child", str(writer)]
        if prepare:
            command = ["/bin/sh", "-c", f'{prepare}; exec "$@"', "sh", *command]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE if stderr is None else stderr,
            pass_fds=[writer],
            start_new_session=True,
        )
        os.close(writer)
        self._notes = Lines(notes)
        self._stdout = None if self._process.stdout is None else Lines(os.dup(self._process.stdout.fileno()))
        self._stderr = None if self._process.stderr is None else Lines(os.dup(self._process.stderr.fileno()))
        self.sent: list[tuple[int, float]] = []
        self._queueing: Queueing | None = None
        self.folder = Path()

    def tell(self, folder: Path, story: str, *, log: str = "stderr", level: str = "WARNING", **settings: Any) -> None:
        self.folder = folder
        told = {"story": story, "folder": str(folder), "log": log, "level": level, "settings": settings}
        self._write(json.dumps(told))

    def open(self, gate: str) -> None:
        self._write(gate)

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    # -- knowing where it is ----------------------------------------------------------------------------------

    def notes(self) -> list[Note]:
        return [json.loads(line) for line in self._notes.lines()]

    def wait_noted(self, what: str, times: int = 1, item: str | None = None) -> None:
        """Until so many notes of this kind (of this item) are there."""
        wanted = f'"what": {json.dumps(what)}' + ("" if item is None else f', "item": {json.dumps(item)}')
        if not self._notes.wait(lambda lines: sum(wanted in line for line in lines) >= times):
            raise AssertionError(f"{what} {item or ''} x{times} was never noted: {self.state_of_things()}")

    def wait_said(self, text: str, times: int = 1) -> None:
        assert self._stderr is not None
        if not self._stderr.wait(lambda lines: sum(text in line for line in lines) >= times):
            raise AssertionError(f"{text!r} was never said: {self.state_of_things()}")

    def wait_stopping(self, why: int | str) -> None:
        """Until the run has heeded the signal, and said so."""
        self.wait_said(f"Stopping because of {signal.Signals(why).name if isinstance(why, int) else why}")

    def state_of_things(self) -> str:
        said = "\n".join(self._stderr.lines()) if self._stderr else ""
        return f"exit code {self._process.poll()}\nnotes {self.notes()[-15:]}\nsaid {said[-3000:]}"

    # -- signals ----------------------------------------------------------------------------------------------

    def send(self, *signums: int) -> None:
        for signum in signums:
            self._note(signum)
            self._process.send_signal(signum)

    def send_at_once(self, *signums: int) -> None:
        """Signals of different kinds, all there before it can heed the first."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)
        self.send(*signums)
        self._process.send_signal(signal.SIGCONT)

    def send_to_group(self, signum: int) -> None:
        self._note(signum)
        os.killpg(self._process.pid, signum)

    def storm(
        self, *signums: int, seconds: float = 0.0, least: int = 0, until: str | None = None, hertz: float = 2000.0
    ) -> int:
        """Signals at this pace until the time is over, or the process is. Returns how many.

        At *least* so many, where this process is kept from sending them; or *until* something is noted.
        """
        began = time.monotonic()
        count = looked_at = 0
        while self._notes.ended_at is None:
            now = time.monotonic()
            news = self._notes.lines(looked_at) if until is not None else []
            looked_at += len(news)
            if now > began + PATIENCE or any(f'"what": "{until}"' in line for line in news):
                break
            if until is None and now > began + seconds and count >= least:
                break
            due = int((now - began) * hertz)
            for _ in range(min(due - count, 20)):
                signum = signums[count % len(signums)]
                self._note(signum)
                os.kill(self._process.pid, signum)
                count += 1
            time.sleep(0.5 / hertz)
        return count

    def _note(self, signum: int) -> None:
        if self._queueing is None:
            self._queueing = Queueing(self._process.pid)
        self.sent.append((signum, time.monotonic()))

    def lost(self, since: float, until: float) -> float:
        """What the machine took from it."""
        queueing = 0.0 if self._queueing is None else self._queueing.lost(since, until)
        return max(METRONOME.lost(since, until), queueing)

    def time_taken(self, since: float, until: float) -> float:
        return until - since - self.lost(since, until)

    # -- the end ----------------------------------------------------------------------------------------------

    def finish(
        self, *, dirty: bool = False, killed: bool = False, closed: bool = True, tracebacks: int | None = None
    ) -> Ending:
        """Wait for the end, and judge. *dirty*: signals also met Python's own handlers; *killed*: only those."""
        ended_at = self._notes.wait_end()
        if ended_at is None:
            raise AssertionError(f"it does not end: {self.state_of_things()}")
        code = self._process.wait()
        for each in (self._stdout, self._stderr):
            if each is not None:
                each.wait_end()
        stderr = "\n".join(self._stderr.lines()) if self._stderr else ""
        stdout = "\n".join(self._stdout.lines()) if self._stdout else ""
        took = self.time_taken(self.sent[-1][1], ended_at) if self.sent else 0.0
        ending = Ending(code, ended_at, took, self.notes(), stderr, stdout)
        # After a second signal the journal has 0.3 s to be closed. On a machine that stood still it is sound, no more.
        stood_still = len(self.sent) > 1 and self.lost(self.sent[1][1], ended_at) > 0.1
        closed = closed and not dirty and not stood_still
        for path in sorted(self.folder.glob("*/journal.sqlite")):
            ending.states[path.parent.name] = judge_journal(path.parent, ending.notes, closed=closed, killed=killed)
        if self.sent:
            begun = [note["at"] for note in ending.notes if note["what"] == "begun" and "run" not in note]
            first = self.sent[0][1]
            agreed(s1_nothing_begins_after_the_signal(first + self.lost(first, first + 1.0), begun))
        judge_output(ending, dirty=dirty, tracebacks=tracebacks)
        judge_secrets(self.folder, ending)
        return ending

    def finish_after_the_second(self, *, dirty: bool = False, closed: bool = True) -> Ending:
        """The same, and the second signal must have ended it within 1 s, with its exit code."""
        ending = self.finish(dirty=dirty, closed=closed)
        signum, at = self.sent[1]
        agreed(s2_the_second_signal_ends_it(0.0, ending.code, signum))
        complaint = s2_the_second_signal_ends_it(self.time_taken(at, ending.at), ending.code, signum)
        if complaint is not None:
            raise TooLate(complaint)
        return ending

    def raised_within_a_second(self) -> None:
        """The second signal has made the call raise, in a process that lives on."""
        self.wait_noted("raised")
        (raised,) = [note for note in self.notes() if note["what"] == "raised"]
        signum = {"KeyboardInterrupt": signal.SIGINT, "SystemExit": signal.SIGTERM}[raised["item"]]
        agreed(s2_the_second_signal_ends_it(self.time_taken(self.sent[1][1], raised["at"]), -signum, signum))

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass  # it had not read everything


def agreed(complaint: str | None) -> None:
    assert complaint is None, complaint


def judge_journal(folder: Path, notes: list[Note], *, closed: bool, killed: bool) -> dict[str, str]:
    """J2, J5, S4, L5 of one journal, by the independent reader; whatever is unfinished is said to be so."""
    view = independent_reader.read(folder)
    rows = [(entry["kind"], entry["item"], entry["token"]) for entry in view.entries]
    planned = [item for entry in view.of_kind("plan") for item in json.loads(entry["detail"])]
    given, ended = (
        {note["item"] for note in notes if note["what"] == what and is_of(note["item"], folder)}
        for what in ("given", "ended")
    )
    # An item may have its start in the journal, and be interrupted before its worker has said a word.
    agreed(j2_every_item_is_in_one_state(given.union(planned), view.states))
    agreed(j5_sequence_is_contiguous([entry["seq"] for entry in view.entries]))
    if killed:  # then whatever ended in the last moments is not written down, and runs again
        ended = {item for item in ended if view.states.get(item) in FINAL}
    agreed(s4_everything_run_is_recorded(ended, view.states))
    agreed(l5_results_have_the_current_token(rows))
    agreed(one_final_entry(rows))
    if closed:
        assert view.entries[-1]["kind"] == "closed", rows[-4:]
        assert "running" not in view.states.values(), view.states
    return view.states


def is_of(item: str, journal: Path) -> bool:
    """Where there are several journals, ids begin with the name of theirs."""
    return ":" not in item or item.split(":")[0] == journal.name


def judge_output(ending: Ending, *, dirty: bool, tracebacks: int | None) -> None:
    text = ending.stderr + ending.stdout
    for bad in ("reentrant call", "Fatal Python error", "InvariantViolated", "agentos itself failed", "Deadlock"):
        assert bad not in text, text
    if dirty:
        return
    expected = tracebacks if tracebacks is not None else int(ending.code == -signal.SIGINT)
    assert text.count("Traceback (most recent call last)") == expected, text
    assert "Exception ignored" not in text, text
    assert "During handling" not in text, text


def judge_secrets(folder: Path, ending: Ending) -> None:
    artefacts = {"output": (ending.stderr + ending.stdout).encode()}
    artefacts |= {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    pieces = [key[at : at + 12].encode() for key in KEYS for at in range(len(key) - 11) if at > len("sk-planted-")]
    for name, content in artefacts.items():
        for piece in pieces:
            assert piece not in content, f"a secret in {name}: {re.findall(b'.{0,40}' + piece, content)[:1]!r}"


class Nursery:
    """Children that are ready before they are needed, so that a test does not wait for interpreters to start."""

    def __init__(self, ready: int = 4) -> None:
        self._ready = [Child() for _ in range(ready)]
        self._taken: list[Child] = []

    def take(self) -> Child:
        child = self._ready.pop(0)
        self._ready.append(Child())
        self._taken.append(child)
        return child

    def cold(self, **how: Any) -> Child:
        child = Child(**how)
        self._taken.append(child)
        return child

    def clear(self) -> None:
        while self._taken:
            self._taken.pop().kill()

    def close(self) -> None:
        self.clear()
        for child in self._ready:
            child.kill()


def nursery() -> Iterator[Nursery]:
    made = Nursery()
    try:
        yield made
    finally:
        made.close()
