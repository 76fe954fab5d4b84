"""The board: which items wait, which run, what becomes of each. A pure state machine; it never asks for the time.

An item is in exactly one of these places: ``fresh`` (taken from the input, in order), ``again`` (to be run again,
before any fresh one), ``resting`` (not before an instant), ``aside`` (behind others of its model, which wait for a
lease), ``admitted`` (about to get a lease, or a request for it is out), ``running``, ``stranded`` or ``left``; or it is
final and only counted.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Any

from .backoff import LONGEST_PAUSE, after_failure, after_limit
from .halt import Halt
from .records import LOST, Attempt, Item
from .states import AFTER, Ended, Phase, State, Verdict

FOREVER = float("inf")

# An item that a limit stops so often in a row, while others succeed on the same quota, is itself too large for it.
MOST_LIMITS_IN_A_ROW = 20


class Board:
    """Items in, verdicts out."""

    def __init__(
        self,
        *,
        retries: int = 2,
        halt: Halt | None = None,
        last_token: int = 0,
        pool: Any = None,
        attempt: type[Attempt] = Attempt,
    ) -> None:
        self._pool = pool
        self._attempt = attempt
        self.deadline = FOREVER  # after it nothing begins
        self.phase = Phase.RUNNING
        self.retries = retries
        self.halt = halt
        self.fresh: deque[Item] = deque()
        self.again: list[tuple[int, int, Item]] = []  # heap by place in the input
        self.resting: list[tuple[float, int, Item]] = []  # heap by instant
        self.aside: dict[str | None, deque[Item]] = {}  # by model
        self.set_aside = 0  # how many that are
        self.admitted: set[Item] = set()
        self.running: dict[int, Attempt] = {}  # by token
        self.stranded: list[Item] = []  # no credential can ever serve them
        self.left: list[Item] = []  # interrupted
        self.exhausted = False  # the input has no more
        self.taken = 0  # from the input
        self.done = self.failed = self.interrupted = self.retried = self.limited = self.late = 0
        self._token = last_token
        self._tie = 0
        self._limited_items = 0
        self._successes: dict[str, int] = {}  # by quota, counted while some item is limited

    # -- what runs next ---------------------------------------------------------------------------------------

    def next_item(self) -> Item | None:
        """The next item to find a lease for; None if none is ready."""
        if self.again:
            item = heapq.heappop(self.again)[2]
        elif self.fresh:
            item = self.fresh.popleft()
        else:
            return None
        self.admitted.add(item)
        return item

    def better(self, item: Item) -> Item:
        """Its lease has come: the item to use it for, which is an earlier one if that has become ready meanwhile."""
        if self.again and self.again[0][0] < item.index:
            earlier = heapq.heappop(self.again)[2]
            self.admitted.add(earlier)
            self.put_back(item)
            return earlier
        return item

    def put_back(self, item: Item) -> None:
        """It was not begun after all: it stands where it stood."""
        self.admitted.discard(item)
        self._queue_again(item)

    def put_aside(self, item: Item, model: str | None) -> None:
        """Others of its model wait for a lease already: it goes when one of them has gone."""
        self.admitted.discard(item)
        self.set_aside += 1
        self.aside.setdefault(model, deque()).append(item)

    def bring_back(self, model: str | None, all_of_them: bool = False) -> None:
        """One of the model has gone (or none of it waits any more): let the next (or all) that stand aside go on."""
        waiting = self.aside.get(model)
        while waiting:
            self.set_aside -= 1
            self._queue_again(waiting.popleft())
            if not all_of_them:
                break
        if not waiting:
            self.aside.pop(model, None)

    def strand(self, item: Item) -> None:
        """No credential can ever serve it. It stays pending, and is not looked at again in this run."""
        self.admitted.discard(item)
        self.stranded.append(item)

    def _queue_again(self, item: Item) -> None:
        self._tie += 1
        heapq.heappush(self.again, (item.index, self._tie, item))

    @property
    def next_due(self) -> float:
        """When the next resting item may go on."""
        return self.resting[0][0] if self.resting else FOREVER

    def wake_due(self, now: float) -> int:
        """Let the items go on whose rest is over. Returns how many."""
        count = 0
        while self.resting and self.resting[0][0] <= now:
            self._queue_again(heapq.heappop(self.resting)[2])
            count += 1
        return count

    # -- attempts ---------------------------------------------------------------------------------------------

    def begin(self, item: Item, grant: Any, now: float) -> Attempt | None:
        """Begin an attempt of an admitted item. None: nothing begins any more, and the item was put back."""
        if self.phase is not Phase.RUNNING or now >= self.deadline:
            self.put_back(item)
            return None
        self.admitted.discard(item)
        item.state = State.RUNNING
        item.attempts = number = item.attempts + 1
        self._token = token = self._token + 1
        attempt = self.running[token] = self._attempt(item, token, number, grant, now, self._pool)
        return attempt

    def finish(
        self, attempt: Attempt, ended: Ended, quota: str | None, now: float, luck: float, rest: float = 0.0
    ) -> Verdict:
        """An attempt came back. Whether it counts, and what it means for its item.

        *rest* is how long the provider asked to be left alone: after a limit that is heeded, before another try up to a
        minute of it.
        """
        attempt.ended = True
        if self.running.pop(attempt.token, None) is None:
            self.late += 1
            return Verdict.LATE
        item = attempt.item
        if ended is Ended.VALUE:
            if self._limited_items:
                self._succeeded(item, quota)
            item.state = State.DONE
            self.done += 1
            return Verdict.DONE
        verdict = self._judge(item, ended, quota, now, luck, rest)
        item.state = AFTER[verdict]
        return verdict

    def _judge(self, item: Item, ended: Ended, quota: str | None, now: float, luck: float, rest: float) -> Verdict:
        if ended is Ended.LIMIT or ended is Ended.NO_KEY:
            return self._judge_limit(item, ended, quota, now, rest)
        self._row_ends(item)
        if ended is Ended.STOPPED and self.phase is not Phase.RUNNING:
            self.interrupted += 1
            self.left.append(item)
            return Verdict.INTERRUPTED
        if ended is Ended.TRANSIENT and item.tries < self.retries:
            item.tries += 1
            self.retried += 1
            self._rest(item, now + max(after_failure(item.tries, luck), min(rest, LONGEST_PAUSE)))
            return Verdict.RETRY
        self.failed += 1
        return Verdict.FAILED

    def _judge_limit(self, item: Item, ended: Ended, quota: str | None, now: float, rest: float) -> Verdict:
        if not item.limited:
            self._limited_items += 1
            item.mark = dict(self._successes)
        item.limited += 1
        item.waited += ended is Ended.NO_KEY
        self.limited += 1
        others = self._successes.get(quota or "", 0) > item.mark.get(quota or "", 0)
        # Who got no key was refused by nobody: that others got one says nothing of it.
        if item.limited - item.waited >= MOST_LIMITS_IN_A_ROW and others:
            self._row_ends(item)
            self.failed += 1
            return Verdict.FAILED
        self._rest(item, now + max(after_limit(item.limited), rest))
        return Verdict.LIMITED

    def _succeeded(self, item: Item, quota: str | None) -> None:
        self._successes[quota or ""] = self._successes.get(quota or "", 0) + 1
        self._row_ends(item)

    def _row_ends(self, item: Item) -> None:
        if item.limited:
            item.limited = item.waited = item.short = 0
            self._limited_items -= 1
            if not self._limited_items:
                self._successes.clear()

    def _rest(self, item: Item, until: float) -> None:
        self._tie += 1
        heapq.heappush(self.resting, (until, self._tie, item))

    def give_up(self, attempt: Attempt, *, failed: bool) -> bool:
        """Decide an item while its attempt still runs: failed (too long), or interrupted. False: it had come back."""
        if self.running.pop(attempt.token, None) is None:
            return False
        self._row_ends(attempt.item)
        if failed:
            self.failed += 1
            attempt.item.state = State.FAILED
        else:
            self.interrupted += 1
            self.left.append(attempt.item)
            attempt.item.state = State.INTERRUPTED
        return True

    def take_back(self, attempt: Attempt) -> bool:
        """It could not go on, through no fault of its own, and is the next to run. False: it is to be finished.

        One that had no place to run in counts as not begun. One that lost its key goes again in this run, or never.
        """
        lost = attempt.cancelled == LOST
        if lost and self.phase is not Phase.RUNNING:
            return False
        if self.running.pop(attempt.token, None) is None:
            return False
        attempt.ended = True
        if not lost:
            attempt.item.attempts -= 1
        attempt.item.state = State.PENDING
        self._queue_again(attempt.item)
        return True

    def refuse(self, item: Item) -> None:
        """An admitted item fails without having been run."""
        self.admitted.discard(item)
        self.failed += 1
        item.state = State.FAILED

    def halted(self) -> bool:
        """Whether the halt clause has been reached."""
        return self.halt is not None and self.halt.reached(self.done, self.failed)

    # -- the end ----------------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Nothing runs, and nothing more will."""
        if self.running:
            return False
        if self.phase is not Phase.RUNNING:
            return True
        return self.exhausted and not (self.fresh or self.again or self.resting or self.admitted or self.set_aside)

    def waiting(self) -> Iterator[Item]:
        """The items taken and not begun, or to be begun again."""
        for _, _, item in self.again:
            yield item
        for _, _, item in self.resting:
            yield item
        for waiting in self.aside.values():
            yield from waiting
        yield from self.stranded
        yield from list(self.fresh)  # whoever reads the input adds to it without asking anybody

    def park(self) -> list[Item]:
        """The run is over: the items that a limit stopped are parked. Returns them."""
        parked = [item for item in self.waiting() if item.limited]
        for item in parked:
            item.state = State.PARKED
        return parked
