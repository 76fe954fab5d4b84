"""Faults injected into a running driver: kills, stops, suspensions."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from .shared_keys import LEASE_TTL

Process = subprocess.Popen[bytes]


def kill(process: Process, _rng: random.Random) -> None:
    process.kill()


def kill_with_helper(process: Process, _rng: random.Random) -> None:
    """The driver and the process that spawns its commands at once: nobody is left to end the commands."""
    helpers = [pid for pid in children_of(process.pid) if b"helper" in _arguments(pid)]
    for pid in [process.pid, *helpers]:
        _signal(pid, signal.SIGKILL)


def interrupt_twice(process: Process, rng: random.Random) -> None:
    process.send_signal(signal.SIGINT)
    time.sleep(rng.uniform(0.0, 0.2))
    process.send_signal(signal.SIGINT)


def terminate(process: Process, _rng: random.Random) -> None:
    process.terminate()


def terminate_twice(process: Process, rng: random.Random) -> None:
    """Far enough apart to count as two: the command takes two within 0.3 s for one, because ``timeout`` sends two."""
    process.terminate()
    time.sleep(rng.uniform(0.5, 0.8))
    process.terminate()


def suspend(process: Process, rng: random.Random) -> None:
    """``kill -STOP`` for up to twice the time to live of its leases; then it goes on."""
    process.send_signal(signal.SIGSTOP)
    time.sleep(rng.uniform(0.05, 2 * LEASE_TTL))
    process.send_signal(signal.SIGCONT)


def suspend_politely(process: Process, rng: random.Random) -> None:
    """What Ctrl-Z sends."""
    process.send_signal(signal.SIGTSTP)
    time.sleep(rng.uniform(0.05, 2 * LEASE_TTL))
    process.send_signal(signal.SIGCONT)


def kill_while_suspended(process: Process, rng: random.Random) -> None:
    process.send_signal(signal.SIGSTOP)
    time.sleep(rng.uniform(0.05, 1.5 * LEASE_TTL))
    process.kill()


def kill_after_interrupt(process: Process, rng: random.Random) -> None:
    process.send_signal(signal.SIGINT)
    time.sleep(rng.uniform(0.0, 0.1))
    process.kill()


Fault = Callable[[Process, random.Random], None]

# How often each is chosen. All but the suspensions end the driver.
FAULTS: dict[Fault, int] = {
    kill: 34,
    kill_with_helper: 14,
    kill_after_interrupt: 8,
    kill_while_suspended: 8,
    interrupt_twice: 14,
    terminate: 6,
    terminate_twice: 6,
    suspend: 6,
    suspend_politely: 4,
}
KILLS = {kill, kill_with_helper, kill_after_interrupt, kill_while_suspended}
FORCED = {interrupt_twice, terminate_twice, terminate}
SUSPENSIONS = {suspend, suspend_politely}


def children_of(pid: int) -> list[int]:
    """The direct children of a process, from /proc."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in task.read_text().split()]
        except OSError:
            pass
    return found


def processes_with(mark: bytes) -> dict[int, str]:
    """Processes whose environment contains *mark*, with their command lines."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        try:
            environment = Path("/proc", entry, "environ").read_bytes()
        except OSError:
            continue
        if mark in environment and (arguments := _arguments(int(entry))):
            found[int(entry)] = arguments.replace(b"\0", b" ").decode("utf-8", "replace")
    return found


def _arguments(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass
