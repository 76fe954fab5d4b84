"""The state of a run collected from its events, sanitised for display."""

from __future__ import annotations

from dataclasses import dataclass

from ...util.sanitize import make_printable
from ...util.text_width import clip
from ..failures import describe_result
from ..progress import Progress
from ..results import ProgressStats

_LONGEST_ID = 40
_LONGEST_TEXT = 200
_LONGEST_NOTICE = 1_000


@dataclass(frozen=True, slots=True)
class FailedItem:
    """A failed item and its error in one line."""

    item_id: str
    why: str


class EventState:
    """Collects events. Each attribute is replaced as a whole, because the drawing thread may read it at any time."""

    def __init__(self, *, most_failures: int = 5, encoding: str = "utf-8") -> None:
        self._most_failures = most_failures
        self._encoding = encoding
        self.reset()

    def reset(self) -> None:
        """Clear the state for a new run."""
        self.stats = ProgressStats(total=None)
        self.running: dict[str, float] = {}  # id: time when it was first seen, epoch seconds
        self.failures: tuple[FailedItem, ...] = ()
        self.notice = ""
        self.stopping = False  # hides the estimated end

    def update(self, event: Progress, now: float) -> None:
        """Apply *event*, which happened at *now*."""
        self.stats = event.stats
        if event.running:
            before = self.running
            self.running = {item_id: before.get(item_id, now) for item_id in event.running}
        if event.kind == "item_finished":
            if event.item_id in self.running:
                self.running = {each: since for each, since in self.running.items() if each != event.item_id}
            self._add_failure(event)
        elif event.kind in ("stopping", "held"):
            self.notice = self.clean_whole(event.message)
            self.stopping = self.stopping or event.kind == "stopping"
        elif event.kind == "going_on":
            self.notice = ""

    def _add_failure(self, event: Progress) -> None:
        result = event.result
        if result is not None and not result.success and self._most_failures:
            failure = FailedItem(self.clean_id(result.item_id), self.clean(describe_result(result)))
            self.failures = (*self.failures, failure)[-self._most_failures :]

    def clean_id(self, item_id: str) -> str:
        return self.clean(item_id, _LONGEST_ID)

    def clean_whole(self, text: str) -> str:
        """Return *text* cleaned, but with a larger limit, for text that people must read to the end."""
        return self.clean(text, _LONGEST_NOTICE)

    def clean(self, text: str, longest: int = _LONGEST_TEXT) -> str:
        """Return *text* safe for a terminal: no control characters, encodable, and not too long."""
        text = clip(make_printable(text[: 10 * longest], tabs=False), longest)
        return text if text.isascii() else text.encode(self._encoding, "backslashreplace").decode(self._encoding)
