"""What the command's exit code says to scripts."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Counts are in the report, not here: a code tells a script what to do next."""

    OK = 0
    SOME_FAILED = 1  # the run is through; some items failed
    USAGE = 2
    HALTED = 3  # by --halt, or by the deadline
    NO_CREDENTIAL = 4  # nothing could run, and waiting would be in vain
    INTERNAL = 70  # a fault of agentos
    OUTPUT = 74  # standard output, or a file, cannot be written
    PARKED = 75  # a limit lasts too long to wait for: the same command later goes on
    INTERRUPTED = 130  # SIGINT, after everything was written down
    TERMINATED = 143  # SIGTERM, likewise
