"""Exit codes of the command."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes. Each one tells a script what to do next; counts are in the report."""

    OK = 0
    SOME_FAILED = 1  # the run is finished; some items failed
    USAGE = 2
    HALTED = 3  # by --halt, or by the deadline
    NO_CREDENTIAL = 4  # nothing could run, and waiting would not help
    INTERNAL = 70  # a fault of agentos
    OUTPUT = 74  # standard output, or a file, cannot be written
    PARKED = 75  # a limit lasts too long to wait for; the same command continues later
    INTERRUPTED = 130  # SIGINT, after everything was recorded
    TERMINATED = 143  # SIGTERM, likewise
