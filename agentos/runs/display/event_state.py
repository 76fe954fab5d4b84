"""What a display has seen of a run so far, made harmless to show."""

from __future__ import annotations

from dataclasses import dataclass

from ...util.sanitize import make_printable
from ...util.text_width import clip
from ..progress import Progress
from ..results import ProgressStats

_LONGEST_ID = 40
_LONGEST_TEXT = 200
_LONGEST_NOTICE = 1_000


@dataclass(frozen=True, slots=True)
class FailedItem:
    """An item that failed, and why, in one line."""

    item_id: str
    why: str


class EventState:
    """Notes what each event tells. Each fact is a whole new value: the thread that draws may look at any moment."""

    def __init__(self, *, most_failures: int = 5, encoding: str = "utf-8") -> None:
        self._most_failures = most_failures
        self._encoding = encoding
        self.reset()

    def reset(self) -> None:
        """A new run begins."""
        self.stats = ProgressStats(total=None)
        self.running: dict[str, float] = {}  # id, and when it was first seen, epoch seconds
        self.failures: tuple[FailedItem, ...] = ()
        self.notice = ""
        self.stopping = False  # when it would have been through is no longer of interest

    def update(self, event: Progress, now: float) -> None:
        """See what happened, at *now*."""
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
            failure = FailedItem(self.clean_id(result.item_id), self.clean(_first_line(result.error)))
            self.failures = (*self.failures, failure)[-self._most_failures :]

    def clean_id(self, item_id: str) -> str:
        return self.clean(item_id, _LONGEST_ID)

    def clean_whole(self, text: str) -> str:
        """The same for what a person has to read to its end."""
        return self.clean(text, _LONGEST_NOTICE)

    def clean(self, text: str, longest: int = _LONGEST_TEXT) -> str:
        """What a terminal can be trusted with: no control characters, nothing it cannot encode, not too long."""
        text = clip(make_printable(text[: 10 * longest], tabs=False), longest)
        return text if text.isascii() else text.encode(self._encoding, "backslashreplace").decode(self._encoding)


def _first_line(text: str | None) -> str:
    return next((line for line in (text or "").splitlines() if line.strip()), "")
