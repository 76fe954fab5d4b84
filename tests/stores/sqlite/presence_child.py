"""Real processes for the tests of `Alive`: ``python -m tests.stores.sqlite.presence_child MODE STORE``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from agentos.stores.sqlite.presence_lock import Alive


def inside(store: Path) -> None:
    """Be one of many until standard input ends."""
    alive = Alive(store)
    alive.join()
    say("inside")
    sys.stdin.read()
    alive.leave()
    say("left")


def alone(store: Path) -> None:
    """Be alone, then, on a line of input, one of many, until standard input ends."""
    alive = Alive(store)
    say("alone" if alive.try_alone() else "not alone")
    sys.stdin.readline()
    alive.join()
    say("inside")
    sys.stdin.read()


def forking(store: Path) -> None:
    """Be inside, and have a child that was inherited all of it and ends in the usual way."""
    alive = Alive(store)
    alive.join()
    child = os.fork()
    if child == 0:
        assert not alive.inside
        alive.leave()
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    say(f"inside {alive.inside} {os.waitstatus_to_exitcode(status)}")
    sys.stdin.read()


def forking_inward(store: Path) -> None:
    """Be inside, fork a child that comes in for itself, and die; the child stays until standard input ends."""
    alive = Alive(store)
    alive.join()
    if os.fork() == 0:
        own = Alive(store)
        own.join()
        say(f"inside {own.inside} {os.getpid()}")
        sys.stdin.read()
        os._exit(0)
    signal.pause()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    modes = {each.__name__: each for each in (inside, alone, forking, forking_inward)}
    modes[sys.argv[1]](Path(sys.argv[2]))
