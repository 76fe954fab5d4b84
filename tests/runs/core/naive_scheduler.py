"""A naive reference of the item scheduler: one list of items, each with its place, and the whole history.

It shares only the enums (AttemptEnd, Phase, Verdict) with the scheduler. Every query is a scan. Slow on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agentos.runs.core.states import AttemptEnd, Phase, Verdict

FOREVER = float("inf")

WAITING = ("fresh", "again", "resting", "aside", "stranded")


@dataclass
class NaiveItem:
    index: int
    place: str = "fresh"  # or again, resting, aside, admitted, running, stranded, left, done, failed
    behind: tuple[str, int] = ("", 0)  # while it stands aside: its model, and when it was put there
    until: float = 0.0  # while it rests
    token: int = 0  # of its running attempt
    attempts: int = 0
    retries: int = 0
    limits: int = 0  # in a row
    row_began: int = 0  # the length of the history when the first limit of the row came


@dataclass
class NaiveBoard:
    retries: int
    deadline: float = FOREVER
    phase: Phase = Phase.RUNNING
    exhausted: bool = False
    items: list[NaiveItem] = field(default_factory=list)
    history: list[tuple[str, int, str]] = field(default_factory=list)  # what, which item, on which quota
    tokens: int = 0

    def in_place(self, *places: str) -> list[NaiveItem]:
        return [item for item in self.items if item.place in places]

    def count(self, what: str) -> int:
        return sum(1 for event, _, _ in self.history if event == what)

    def pull(self) -> NaiveItem:
        self.items.append(NaiveItem(len(self.items)))
        return self.items[-1]

    def next_item(self) -> NaiveItem | None:
        """Those to be run again before any fresh one; among either, in the order of the input."""
        ready = self.in_place("again") or self.in_place("fresh")
        if not ready:
            return None
        ready[0].place = "admitted"
        return ready[0]

    def better(self, item: NaiveItem) -> NaiveItem:
        earlier = [other for other in self.in_place("again") if other.index < item.index]
        if not earlier:
            return item
        earlier[0].place, item.place = "admitted", "again"
        return earlier[0]

    def put_aside(self, item: NaiveItem, model: str, moment: int) -> None:
        item.place, item.behind = "aside", (model, moment)

    def bring_back(self, model: str, all_of_them: bool) -> None:
        """The one that has stood aside longest for this model, or all that do."""
        found = sorted((i for i in self.in_place("aside") if i.behind[0] == model), key=lambda i: i.behind)
        for item in found if all_of_them else found[:1]:
            item.place = "again"

    def begin(self, item: NaiveItem, now: float) -> bool:
        if self.phase is not Phase.RUNNING or now >= self.deadline:
            item.place = "again"
            return False
        self.tokens += 1
        item.place, item.token, item.attempts = "running", self.tokens, item.attempts + 1
        return True

    def finish(self, item: NaiveItem, token: int, ended: AttemptEnd, quota: str, now: float, luck: float) -> Verdict:
        if item.place != "running" or item.token != token:
            self.history.append(("late", item.index, quota))
            return Verdict.LATE
        if ended is AttemptEnd.LIMIT:
            return self.limit(item, quota, now)
        item.limits = 0
        if ended is AttemptEnd.VALUE:
            return self.final(item, "done", quota, Verdict.DONE)
        if ended is AttemptEnd.STOPPED and self.phase is not Phase.RUNNING:
            return self.final(item, "left", quota, Verdict.INTERRUPTED)
        if ended is AttemptEnd.TRANSIENT and item.retries < self.retries:
            item.retries += 1
            self.history.append(("retried", item.index, quota))
            longest = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]
            item.place, item.until = "resting", now + luck * longest[min(item.retries, 7) - 1]
            return Verdict.RETRY
        return self.final(item, "failed", quota, Verdict.FAILED)

    def limit(self, item: NaiveItem, quota: str, now: float) -> Verdict:
        if not item.limits:
            item.row_began = len(self.history)
        item.limits += 1
        self.history.append(("limited", item.index, quota))
        since = self.history[item.row_began :]
        others = [event for event in since if event[0] == "done" and event[1] != item.index and event[2] == quota]
        if item.limits >= 20 and others:
            item.limits = 0
            return self.final(item, "failed", quota, Verdict.FAILED)
        pauses = [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
        pause = pauses[item.limits - 1] if item.limits <= len(pauses) else 60.0
        item.place, item.until = "resting", now + pause
        return Verdict.LIMITED

    def final(self, item: NaiveItem, place: str, quota: str, verdict: Verdict) -> Verdict:
        item.place = place
        self.history.append((place, item.index, quota))
        return verdict

    def give_up(self, item: NaiveItem, token: int, *, failed: bool) -> bool:
        if item.place != "running" or item.token != token:
            return False
        item.limits = 0
        self.final(item, "failed" if failed else "left", "", Verdict.FAILED)
        return True

    def wake_due(self, now: float) -> int:
        due = [item for item in self.in_place("resting") if item.until <= now]
        for item in due:
            item.place = "again"
        return len(due)

    @property
    def next_due(self) -> float:
        return min((item.until for item in self.in_place("resting")), default=FOREVER)

    @property
    def settled(self) -> bool:
        if self.in_place("running"):
            return False
        if self.phase is not Phase.RUNNING:
            return True
        return self.exhausted and not self.in_place("fresh", "again", "resting", "aside", "admitted")
