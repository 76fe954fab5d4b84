"""``--joblog``: a line per finished item in the nine columns of GNU parallel, for scripts that read them."""

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
    """Appends to *path*; a resumed run appends to the same file, and the header is written once.

    Never raises for disk errors: a line that cannot be written is dropped and logged once.
    """

    def __init__(self, path: Path) -> None:
        self._lines = AppendOnlyFile(path, what="the joblog", header="\t".join(_COLUMNS))

    def add(self, result: WorkflowResult, *, command: str, started_at: float, received: int = 0) -> None:
        """Append a line for *result*: the item's number in the input from 1, and its *command* without secrets.

        The ``metadata`` of a command has ``exit`` and ``signal``; both are None if we killed it. A function has 0 or 1.
        *received* is the number of bytes it printed. Cached results are skipped: an earlier run has written them.
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
            command.translate(_SPACES),  # one line per job: no embedded newline or tab
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
