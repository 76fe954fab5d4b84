"""What functions print on other machines, as the output of their items: the other end of ``_sent``."""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING

from .remote_prints import PRINTED

if TYPE_CHECKING:
    from ...runs.output.capture import ItemOutput, Outputs


class Overheard(logging.Filter):
    """While it is entered, takes out of the log what was printed elsewhere, and gives it to *outputs*."""

    def __init__(self, outputs: Outputs) -> None:
        super().__init__()
        self._outputs = outputs
        self._logger = logging.getLogger("agentos.worker")
        self._lock = threading.Lock()
        self._open: dict[int, tuple[int, ItemOutput]] = {}  # by the item's place in the input, with the attempt

    def __enter__(self) -> Overheard:
        self._logger.addFilter(self)
        return self

    def __exit__(self, *exception: object) -> None:
        self._logger.removeFilter(self)
        with self._lock:
            for _, output in self._open.values():
                output.finish()
            self._open.clear()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != PRINTED:
            return True
        try:
            item_id, index, attempt, key, stream, text = json.loads(record.getMessage())
        except ValueError:
            return False  # cut off on its way: it is as good as not printed
        with self._lock:
            output = self._output(item_id, index, attempt, key)
            if stream:
                output.write(stream, text.encode("utf-8", "surrogateescape"))
            else:
                self._open.pop(index)[1].finish()
        return False

    def _output(self, item_id: str, index: int, attempt: int, key: str | None) -> ItemOutput:
        number, output = self._open.get(index, (attempt, None))
        if output is not None and number != attempt:
            output.finish()  # that attempt was lost, with the last of what it said
            output = None
        if output is None:
            output = self._outputs.open(item_id, index, attempt, key)
            self._open[index] = (attempt, output)
        return output
