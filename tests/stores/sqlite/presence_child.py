"""Real processes for the tests of `PresenceLock`: ``python -m tests.stores.sqlite.presence_child MODE STORE``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from agentos.stores.sqlite.presence_lock import PresenceLock


def inside(store: Path) -> None:
    """Be one of many until standard input ends."""
    alive = PresenceLock(store)
    alive.share()
    say("inside")
    sys.stdin.read()
    alive.release()
    say("left")


def alone(store: Path) -> None:
    """Be alone, then, on a line of input, one of many, until standard input ends."""
    alive = PresenceLock(store)
    say("alone" if alive.try_exclusive() else "not alone")
    sys.stdin.readline()
    alive.share()
    say("inside")
    sys.stdin.read()


def forking(store: Path) -> None:
    """Be inside, and have a child that was inherited all of it and ends in the usual way."""
    alive = PresenceLock(store)
    alive.share()
    child = os.fork()
    if child == 0:
        assert not alive.is_held
        alive.release()
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    say(f"inside {alive.is_held} {os.waitstatus_to_exitcode(status)}")
    sys.stdin.read()


def forking_inward(store: Path) -> None:
    """Be inside, fork a child that comes in for itself, and die; the child stays until standard input ends."""
    alive = PresenceLock(store)
    alive.share()
    if os.fork() == 0:
        own = PresenceLock(store)
        own.share()
        say(f"inside {own.is_held} {os.getpid()}")
        sys.stdin.read()
        os._exit(0)
    signal.pause()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    modes = {each.__name__: each for each in (inside, alone, forking, forking_inward)}
    modes[sys.argv[1]](Path(sys.argv[2]))
