"""Print log records of the package while a run is running."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from .print_capture import write_for_item

# Logged by a pool for each rate limit: there may be thousands, and `agentos show` counts them.
_EVERYDAY = ("rate-limited for", "Credential pool exhausted")


@contextlib.contextmanager
def showing_log(
    say: Callable[[str], None], masked: Callable[[str], str], *, without_display: bool, verbose: bool
) -> Iterator[None]:
    """While active, pass redacted log messages to *say* and to no other handler; an item's own are its output.

    Messages that a display shows anyway are skipped; *without_display*, the message that the run stops is not.
    """
    logger = logging.getLogger("agentos")
    handler = _LogHandler(say, masked, without_display=without_display, verbose=verbose)
    propagate, level = logger.propagate, logger.level
    logger.addHandler(handler)
    logger.propagate = False
    if verbose:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
        logger.setLevel(level)


class _LogHandler(logging.Handler):
    def __init__(
        self, say: Callable[[str], None], masked: Callable[[str], str], *, without_display: bool, verbose: bool
    ) -> None:
        super().__init__()
        self._print = say
        self._masked = masked
        self._without_display = without_display
        self._verbose = verbose

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
            if record.module == "progress" and not (self._without_display and "Stopping" in message):
                return
            item_id = getattr(record, "item_id", None)  # of a worker's context.log: the output of an item has its tag
            if item_id is not None and write_for_item(message.removeprefix(f"[{item_id}] ") + "\n"):
                return
            if self._verbose or not any(words in message for words in _EVERYDAY):
                self._print(self._masked(message) + "\n")
        except Exception:  # noqa: BLE001 - whatever is wrong with a message, the run goes on
            self.handleError(record)
