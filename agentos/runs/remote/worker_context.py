"""The ``context`` of a remote worker: the same attributes, most of them fixed at the start."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..context import ItemLogger, read_usage
from .assignment import Assignment
from .attempt_report import LogLine
from .worker_lease import LeaseMessage, RemoteLease

_MOST_LINES = 1_000
_LONGEST_LINE = 10_000

SendOutput = Callable[[str, bytes], object]  # of a stream, "stdout" or "stderr", to the driver


class RemoteContext:
    """One attempt, as its remote worker sees it; see ``Context``.

    ``stopping`` is set only by an engine with a connection to the driver; an executor has none. Lines of ``log`` go to
    the driver's log.
    """

    __slots__ = (
        "_checkpoint",
        "_on_message",
        "_send_output",
        "attempt",
        "index",
        "item_id",
        "lease",
        "log",
        "stopping",
    )

    def __init__(
        self,
        assignment: Assignment,
        lease: RemoteLease | None,
        stopping: threading.Event,
        on_log_line: Callable[[LogLine], object],
        on_message: Callable[[LeaseMessage], object],
        send_output: SendOutput | None = None,
    ) -> None:
        self.item_id = assignment.item_id
        self.index = assignment.index
        self.attempt = assignment.attempt
        self.lease = lease
        self.stopping = stopping
        logger = logging.Logger("agentos.worker", assignment.log_level)
        logger.addHandler(_ForwardingHandler(on_log_line))
        self.log = ItemLogger(logger, {"item_id": assignment.item_id})
        self._checkpoint = assignment.checkpoint
        self._on_message = on_message
        self._send_output = send_output

    @property
    def checkpoint(self) -> Path:
        """The item's own path, in a folder of the driver. Raises FileNotFoundError if it does not exist here."""
        if self.lease is not None:
            self.lease.require()
        path = self._checkpoint
        if path is None or not os.path.isdir(os.path.dirname(path)):
            folder = "the run's checkpoint folder" if path is None else os.path.dirname(path)
            raise FileNotFoundError(
                f"{folder} is on the machine that the run was started on, and not on {socket.gethostname()}: put the "
                "run's journal on a disk that both have, or keep checkpoints in a place of your own"
            )
        return Path(path)

    @property
    def http(self) -> Any:
        """Raise RuntimeError: the pool is in another process."""
        raise RuntimeError(
            "context.http works only in the process that started the run, on threads or in coroutines. In a worker "
            "process, give your SDK the key that the worker gets, and report with context.lease.report(answer) or "
            "context.settle(answer.usage.to_dict())"
        )

    def settle(self, used: Mapping[str, float] | None = None, /, **amounts: float) -> bool:
        """Report what the call really used; see ``Context.settle``."""
        if self.lease is None:
            self._on_message(LeaseMessage("settle", 0.0, billed=read_usage(used, amounts)))
            return False
        self.lease.require()
        return self.lease.settle(used, **amounts)


def output_channel(context: object) -> SendOutput | None:
    """Return the attempt's output channel to the driver; None on its own machine, and without a connection."""
    return context._send_output if isinstance(context, RemoteContext) else None


class _ForwardingHandler(logging.Handler):
    """Sends log lines to the driver, up to a limit per attempt."""

    def __init__(self, on_log_line: Callable[[LogLine], object]) -> None:
        super().__init__()
        self._forward = on_log_line
        self._remaining = _MOST_LINES

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._remaining > 0:
                self._remaining -= 1
                self._forward(LogLine(int(record.levelno), self.format(record)[:_LONGEST_LINE]))
            elif self._remaining == 0:
                self._remaining = -1
                self._forward(
                    LogLine(logging.WARNING, f"it logged more than {_MOST_LINES} lines; the rest is left out")
                )
        except Exception:  # noqa: BLE001 - a log call with wrong arguments must not fail the item
            self.handleError(record)
