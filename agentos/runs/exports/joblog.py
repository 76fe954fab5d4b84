"""``--joblog``: a line per finished item in the nine columns of GNU parallel, for the scripts that read those."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..results import WorkflowResult
from .append_file import AppendOnlyFile

_COLUMNS: Final = ("Seq", "Host", "Starttime", "JobRuntime", "Send", "Receive", "Exitval", "Signal", "Command")
_HERE: Final = ":"
_KILLED_BY_US: Final = -1
_SPACES: Final = str.maketrans({"\t": " ", "\n": " ", "\r": " ", "\0": " "})


class JobLog:
    """Appends to *path*; a run that goes on appends further, and the header is written once.

    It never raises for the disk: what cannot be written is dropped, and the log says so once.
    """

    def __init__(self, path: Path) -> None:
        self._lines = AppendOnlyFile(path, what="the joblog", header="\t".join(_COLUMNS))

    def add(self, result: WorkflowResult, *, command: str, started_at: float, received: int = 0) -> None:
        """A line for *result*: the item's number in the input from 1, and what its *command* was, without secrets.

        Its ``metadata`` has ``exit`` and ``signal`` if it was a command; None for both if it was killed by us. A
        function has 0 or 1. *received* is how many bytes it printed. A result of an earlier run is there already.
        """
        if result.cached:
            return
        exit_code, signal = _format_end(result)
        columns = (
            str(result.index + 1),
            _HERE,
            f"{started_at:.3f}",
            f"{result.duration:10.3f}",
            "0",
            str(received),
            str(exit_code),
            str(signal),
            command.translate(_SPACES),  # a line is a job: nothing in it may look like another
        )
        self._lines.add("\t".join(columns))

    def close(self) -> None:
        self._lines.close()


def _format_end(result: WorkflowResult) -> tuple[int, int]:
    facts = result.metadata
    signal = facts.get("signal") or 0
    if "exit" in facts:
        exit_code = facts["exit"]
        if exit_code is None:
            exit_code = 0 if facts.get("signal") else _KILLED_BY_US
        return int(exit_code), int(signal)
    return (0 if result.success else 1), int(signal)
