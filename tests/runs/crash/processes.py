"""Real processes that live a run, and are killed at a chosen moment."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from ...process_state import is_stopped
from .evidence import Life, Line, line_of
from .expected_outcomes import Script

ROOT = Path(__file__).parents[3]
PATIENCE = 40.0


@dataclass(frozen=True)
class Moment:
    """*delay* seconds after the *count*-th line that begins with *word*; without a word, after the start.

    Without a delay the process kills itself, in the same breath as it says that line.
    """

    word: str | None
    count: int
    delay: float | None


class Hangs(AssertionError):
    """A process did nothing more for much too long."""


class Process:
    """One life of a run."""

    def __init__(self, folder: Path, script: Script) -> None:
        reading, writing = os.pipe()
        self._pipe = reading
        self._poll = select.poll()
        self._poll.register(reading, select.POLLIN)
        self._rest = b""
        self._at_end = False
        self.lines: list[Line] = []
        self.counts: Counter[str] = Counter()
        self._stderr = folder.with_name(f"{folder.name}.stderr")
        try:
            with self._stderr.open("wb") as stderr:
                self._popen = subprocess.Popen(
                    [sys.executable, "-m", "tests.runs.crash.crash_child", str(folder), script.to_text(), str(writing)],
                    stdin=subprocess.PIPE,
                    stdout=stderr,
                    stderr=stderr,
                    pass_fds=[writing],
                    cwd=ROOT,
                )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        weakref.finalize(self, _put_an_end_to, self._popen)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    def listen(self, until: Callable[[Process], object], within: float = PATIENCE) -> bool:
        """Take what it says until that is so; False if it ends before, or *within* seconds pass."""
        deadline = time.monotonic() + within
        while not until(self):
            left = deadline - time.monotonic()
            if left <= 0 or self._at_end:
                return False
            if self._poll.poll(left * 1000):
                self._take()
        return True

    def listen_for(self, seconds: float) -> None:
        """Take what it says, that long."""
        self.listen(lambda _: False, seconds)

    def _take(self) -> None:
        content = os.read(self._pipe, 65536)
        if not content:
            self._at_end = True
        *whole, self._rest = (self._rest + content).split(b"\n")
        for text in whole:
            line = line_of(text)
            self.lines.append(line)
            self.counts[line[0]] += 1

    def await_moment(self, word: str | None, count: int, delay: float) -> None:
        if word is None or self.listen(lambda self: self.counts[word] >= count):
            self.listen_for(delay)
        elif not self._at_end:
            self._hangs()

    def kill(self) -> None:
        self._popen.send_signal(signal.SIGKILL)

    def open_gate(self) -> None:
        """Let it on, if it waits for that."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()

    def await_standstill(self) -> None:
        """Until it stands where its script says. Only then is ``go_on`` not too early."""
        until = time.monotonic() + PATIENCE
        while not is_stopped(self.pid):
            if time.monotonic() > until:
                self._hangs()
            time.sleep(0.001)

    def go_on(self) -> None:
        self._popen.send_signal(signal.SIGCONT)

    def end(self) -> Life:
        """Wait until it has ended. Raises Hangs, with what its threads were doing."""
        if not self.listen(lambda self: self._at_end):
            self._hangs()
        self.open_gate()
        code = self._popen.wait(PATIENCE)
        os.close(self._pipe)
        return Life(self.lines, code, self.stderr)

    def _hangs(self) -> NoReturn:
        self._popen.send_signal(signal.SIGUSR1)
        self.listen_for(1.0)
        self.kill()
        raise Hangs(f"it hangs after {self.lines[-3:]}; its threads:\n{self.stderr}")


def _put_an_end_to(process: subprocess.Popen[bytes]) -> None:
    """Of a test that failed, or of one that is over and long dead."""
    if process.poll() is None:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()


def live(folder: Path, script: Script, moment: Moment | None = None) -> Life:
    """One life, killed at that moment if it lasts so long."""
    if moment is None:
        return Process(folder, script).end()
    if moment.delay is None:
        assert moment.word is not None
        return Process(folder, replace(script, die_at=(moment.word, moment.count))).end()
    process = Process(folder, script)
    process.await_moment(moment.word, moment.count, moment.delay)
    process.kill()
    return process.end()


def live_under_strace(folder: Path, script: Script, fault: str) -> tuple[Life, int]:
    """One life with a fault in the thread that waits at its gate. Returns how often the fault was there, too.

    Only that thread is traced, from the gate on: strace counts the calls of each thread on its own.
    """
    process = Process(folder, script)
    assert process.listen(lambda process: process.counts["gate"]), process.stderr
    (thread,) = [line[1] for line in process.lines if line[0] == "gate"]
    call = fault.partition(":")[0]
    strace = subprocess.Popen(
        ["strace", f"--attach={thread}", "--output=/dev/stdout", f"--trace={call}", f"--inject={fault}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert strace.stderr is not None
    attached = strace.stderr.readline()
    assert "attached" in attached, attached
    process.open_gate()
    life = process.end()
    trace, _ = strace.communicate(timeout=PATIENCE)
    return life, len([line for line in trace.splitlines() if "INJECTED" in line or "DELAYED" in line])
