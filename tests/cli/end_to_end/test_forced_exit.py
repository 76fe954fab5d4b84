"""A second signal ends the command within a second and frees its keys."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from .harness import Place, Program, command, wait_until

KEYS = {f"ACME_KEY_{number}": f"sk-planted-for-this-test-{number}" for number in range(1, 6)}

WORKERS = """
import asyncio, multiprocessing, os, re, subprocess, threading, time
from concurrent.futures import ThreadPoolExecutor

FOR_EVER = 100_000
forked = threading.Event()

def begun(item, pid=""):
    with open("begun", "a") as file:
        file.write(f"{item} {pid}\\n")

def in_a_thread_that_is_no_daemon():
    threading.Thread(target=time.sleep, args=(FOR_EVER,), daemon=False).start()

def work(item, key):
    if item == "quick":
        return begun(item)
    if item == "executor":
        executor = ThreadPoolExecutor(1)
        call = executor.submit(time.sleep, FOR_EVER)
        begun(item)
        call.result()
    elif item == "thread":
        in_a_thread_that_is_no_daemon()
        begun(item)
        time.sleep(FOR_EVER)
    elif item == "multiprocessing":
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(FOR_EVER,))
        child.start()
        begun(item, child.pid)
        forked.set()
        child.join()
    elif item == "subprocess":
        forked.wait()  # a fork in the middle of it would inherit the pipe by which it learns that its child has begun
        child = subprocess.Popen(["sleep", str(FOR_EVER)])
        begun(item, child.pid)
        child.wait()

async def work_in_to_thread(item, key):
    begun(item)
    await asyncio.to_thread(time.sleep, FOR_EVER)

def keep_the_interpreter(item, key):
    begun(item)
    re.match("(a+)+$", "a" * 60 + "b")

def leave_a_thread_behind(item, key):
    in_a_thread_that_is_no_daemon()
    begun(item)

def print_without_end(item, key):
    begun(item)
    while True:
        print("x" * 10_000)
"""


def start(place: Place, function: str, *items: str, flags: tuple[str, ...] = ()) -> Program:
    place.write("workers.py", WORKERS)
    return place.start(*arguments(function, *items, flags=flags), env=KEYS)


def arguments(function: str, *items: str, flags: tuple[str, ...] = ()) -> list[str]:
    keys = ["--keys", "env:ACME_KEY_*", "-j", "5"]
    return ["run", "--name", "r", *keys, *flags, "--worker", f"workers.py:{function}", ":::", *items]


def stop(program: Program, *, first: signal.Signals = signal.SIGINT) -> None:
    """One signal, and, when it was heeded, another."""
    program.signal(first)
    program.err.wait_for("Stopping because of")
    program.signal(signal.SIGINT)


def free_keys(place: Place) -> str:
    return place.run("keys", "--keys", "env:ACME_KEY_*", env=KEYS).lines[0]


def states(place: Place) -> dict[str, str]:
    shown = place.run("show", "--items", "r").lines
    return {line.split("\t")[1]: line.split("\t")[0] for line in shown}


def guards_of(pid: int) -> list[str]:
    """The processes that were started to end the command with that process id."""
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path("/proc", entry, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(pid).encode() in words and any(word.endswith(b"_exit_guard.py") for word in words):
            found.append(entry)
    return found


def test_a_second_signal_ends_it_whatever_threads_and_processes_its_workers_have_started(place: Place) -> None:
    kinds = ("executor", "thread", "multiprocessing", "subprocess")
    program = start(place, "work", "quick", *kinds)
    place.wait_for_lines("begun", 5)
    wait_until(lambda: place.outcomes() == {"quick": "done"}, "the quick one is in the results")

    stop(program)

    assert program.ended().code == 130
    assert free_keys(place) == "5 of 5 available"
    assert states(place) == {"quick": "done", **dict.fromkeys(kinds, "interrupted")}
    wait_until(lambda: not place.processes(), f"the children are gone; there is {place.processes()}")
    wait_until(lambda: not guards_of(program.pid), "the process beside it is gone")


def test_a_second_signal_ends_it_while_a_coroutine_works_in_a_thread(place: Place) -> None:
    program = start(place, "work_in_to_thread", "a")
    place.wait_for_lines("begun", 1)

    stop(program)

    assert program.ended().code == 130
    assert free_keys(place) == "5 of 5 available"
    assert states(place) == {"a": "interrupted"}


def test_it_ends_when_the_grace_of_sigterm_is_over(place: Place) -> None:
    program = start(place, "work", "executor", "multiprocessing", flags=("--grace", "0.1s"))
    place.wait_for_lines("begun", 2)

    program.signal(signal.SIGTERM)

    assert program.ended().code == 143
    assert free_keys(place) == "5 of 5 available"
    assert set(states(place).values()) == {"interrupted"}


def test_it_is_killed_if_a_worker_keeps_the_interpreter_from_heeding_signals(place: Place) -> None:
    program = start(place, "keep_the_interpreter", "a")
    place.wait_for_lines("begun", 1)

    program.signal(signal.SIGINT)
    program.signal(signal.SIGTERM)  # another: two of a kind could arrive as one

    assert program.ended().code == -signal.SIGKILL
    wait_until(lambda: not guards_of(program.pid), "the process beside it is gone")
    place.write("workers.py", "def keep_the_interpreter(item, key):\n    return 1\n")
    assert place.run(*arguments("keep_the_interpreter", "a"), env=KEYS).code == 0  # it does not wait for the lease


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_wait_for_threads_that_outlive_the_run(
    place: Place, number: signal.Signals, code: int
) -> None:
    place.asked_for("begun")
    program = start(place, "leave_a_thread_behind", "a")
    program.err.wait_for("1 of 1 done")
    wait_until(lambda: _is_exiting(program.pid), "all has ended but that thread")

    program.signal(number)

    assert program.ended().code == code
    assert place.outcomes() == {"a": "done"}


def _is_exiting(pid: int) -> bool:
    """The run's lock is released: the session is over."""
    with open("/proc/locks") as locks:
        return not any(f" {pid} " in line for line in locks)


def test_unread_output_does_not_delay_the_exit(place: Place) -> None:
    place.write("workers.py", WORKERS)
    reader, writer = os.pipe()
    err, err_end = os.pipe()
    with subprocess.Popen(
        [*command(), *arguments("print_without_end", "a", "b")],
        cwd=place.cwd,
        env={**place.environment, **KEYS},
        stdout=writer,
        stderr=err_end,
    ) as process:
        os.close(writer)
        os.close(err_end)
        place.wait_for_lines("begun", 2)

        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)

        assert process.wait() in (130, 143)  # whichever it heeded last
    os.close(reader)
    os.close(err)
    assert free_keys(place) == "5 of 5 available"


def test_a_store_that_hangs_does_not_hold_it_up(place: Place) -> None:
    program = start(place, "work", "executor", flags=("--progress", "plain"))
    place.wait_for_lines("begun", 1)
    (path,) = place.agentos_home.rglob("*.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as store:
        store.execute("begin immediate")

        stop(program)

        assert program.ended().code == 130
    assert states(place) == {"executor": "interrupted"}
