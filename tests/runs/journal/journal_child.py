"""Real processes for the journal's tests: `python -m tests.runs.journal.journal_child MODE PATH`."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

from agentos.runs.journal import locate_files

from .journal_helpers import PATIENCE, Listener, done, opened


def killed(path: Path) -> None:
    """Write 60 commits, then die of SIGKILL with all of them in the log."""
    writer = Listener().listen(opened(path))
    for n in range(60):
        writer.put(done(n), urgent=True)
        assert writer.flush(PATIENCE)
    os.kill(os.getpid(), signal.SIGKILL)


def holding(path: Path) -> None:
    """Own the journal until standard input ends."""
    journal = opened(path, run="the first")
    say("ready")
    sys.stdin.read()
    journal.close()


def forking(path: Path) -> None:
    """Own the journal, and have a child that lives on when this process is killed."""
    journal = opened(path)
    if os.fork() == 0:
        say("ready")
        sys.stdin.read()
        os._exit(0)
    signal.pause()
    journal.close()


def short_of_space(path: Path) -> None:
    """Let the log grow no further, see that nothing is acknowledged, then let it grow again."""
    journal = opened(path)
    listener = Listener()
    writer = listener.listen(journal)
    writer.put(done(0), 0)
    assert writer.flush(PATIENCE)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (locate_files(path).wal.stat().st_size, hard))
    for n in range(1, 50):
        writer.put(done(n), n)
    listener.wait(lambda heard: heard.troubles)
    meanwhile = list(listener.receipts)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
    listener.wait(lambda heard: len(heard.receipts) == 50)
    closed = writer.close(PATIENCE)
    say(
        json.dumps(
            {"troubles": listener.troubles, "meanwhile": meanwhile, "receipts": listener.receipts, "closed": closed}
        )
    )


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    modes = {"killed": killed, "holding": holding, "forking": forking, "short-of-space": short_of_space}
    modes[sys.argv[1]](Path(sys.argv[2]))
