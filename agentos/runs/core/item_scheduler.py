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

from .backoff import MAX_BACKOFF, limit_backoff, retry_backoff
from .halt import Halt
from .records import LOST, Attempt, Item
from .states import STATUS_AFTER, AttemptEnd, ItemStatus, Phase, Verdict

FOREVER = float("inf")

# An item that a limit stops so often in a row, while others succeed on the same quota, is itself too large for it.
MAX_CONSECUTIVE_LIMITS = 20


class ItemScheduler:
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
        self.retry_ready: list[tuple[int, int, Item]] = []  # heap by place in the input
        self.backing_off: list[tuple[float, int, Item]] = []  # heap by instant
        self.deferred_by_model: dict[str | None, deque[Item]] = {}  # by model
        self.deferred_count = 0  # how many that are
        self.admitted: set[Item] = set()
        self.running: dict[int, Attempt] = {}  # by token
        self.unservable: list[Item] = []  # no credential can ever serve them
        self.interrupted_items: list[Item] = []  # interrupted
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
        if self.retry_ready:
            item = heapq.heappop(self.retry_ready)[2]
        elif self.fresh:
            item = self.fresh.popleft()
        else:
            return None
        self.admitted.add(item)
        return item

    def swap_for_earlier(self, item: Item) -> Item:
        """Its lease has come: the item to use it for, which is an earlier one if that has become ready meanwhile."""
        if self.retry_ready and self.retry_ready[0][0] < item.index:
            earlier = heapq.heappop(self.retry_ready)[2]
            self.admitted.add(earlier)
            self.put_back(item)
            return earlier
        return item

    def put_back(self, item: Item) -> None:
        """It was not begun after all: it stands where it stood."""
        self.admitted.discard(item)
        self._requeue(item)

    def defer(self, item: Item, model: str | None) -> None:
        """Others of its model wait for a lease already: it goes when one of them has gone."""
        self.admitted.discard(item)
        self.deferred_count += 1
        self.deferred_by_model.setdefault(model, deque()).append(item)

    def resume_deferred(self, model: str | None, all_of_them: bool = False) -> None:
        """One of the model has gone (or none of it waits any more): let the next (or all) that stand aside go on."""
        waiting = self.deferred_by_model.get(model)
        while waiting:
            self.deferred_count -= 1
            self._requeue(waiting.popleft())
            if not all_of_them:
                break
        if not waiting:
            self.deferred_by_model.pop(model, None)

    def mark_unservable(self, item: Item) -> None:
        """No credential can ever serve it. It stays pending, and is not looked at again in this run."""
        self.admitted.discard(item)
        self.unservable.append(item)

    def _requeue(self, item: Item) -> None:
        self._tie += 1
        heapq.heappush(self.retry_ready, (item.index, self._tie, item))

    @property
    def next_due(self) -> float:
        """When the next resting item may go on."""
        return self.backing_off[0][0] if self.backing_off else FOREVER

    def release_due(self, now: float) -> int:
        """Let the items go on whose rest is over. Returns how many."""
        count = 0
        while self.backing_off and self.backing_off[0][0] <= now:
            self._requeue(heapq.heappop(self.backing_off)[2])
            count += 1
        return count

    # -- attempts ---------------------------------------------------------------------------------------------

    def begin(self, item: Item, grant: Any, now: float) -> Attempt | None:
        """Begin an attempt of an admitted item. None: nothing begins any more, and the item was put back."""
        if self.phase is not Phase.RUNNING or now >= self.deadline:
            self.put_back(item)
            return None
        self.admitted.discard(item)
        item.state = ItemStatus.RUNNING
        item.attempts = number = item.attempts + 1
        self._token = token = self._token + 1
        attempt = self.running[token] = self._attempt(item, token, number, grant, now, self._pool)
        return attempt

    def finish(
        self, attempt: Attempt, ended: AttemptEnd, quota: str | None, now: float, luck: float, rest: float = 0.0
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
        if ended is AttemptEnd.VALUE:
            if self._limited_items:
                self._count_success(item, quota)
            item.state = ItemStatus.DONE
            self.done += 1
            return Verdict.DONE
        verdict = self._classify(item, ended, quota, now, luck, rest)
        item.state = STATUS_AFTER[verdict]
        return verdict

    def _classify(
        self, item: Item, ended: AttemptEnd, quota: str | None, now: float, luck: float, rest: float
    ) -> Verdict:
        if ended is AttemptEnd.LIMIT or ended is AttemptEnd.NO_KEY:
            return self._classify_limit(item, ended, quota, now, rest)
        self._reset_limit_streak(item)
        if ended is AttemptEnd.STOPPED and self.phase is not Phase.RUNNING:
            self.interrupted += 1
            self.interrupted_items.append(item)
            return Verdict.INTERRUPTED
        if ended is AttemptEnd.TRANSIENT and item.tries < self.retries:
            item.tries += 1
            self.retried += 1
            self._back_off(item, now + max(retry_backoff(item.tries, luck), min(rest, MAX_BACKOFF)))
            return Verdict.RETRY
        self.failed += 1
        return Verdict.FAILED

    def _classify_limit(self, item: Item, ended: AttemptEnd, quota: str | None, now: float, rest: float) -> Verdict:
        if not item.limited:
            self._limited_items += 1
            item.successes_before = dict(self._successes)
        item.limited += 1
        item.no_key_waits += ended is AttemptEnd.NO_KEY
        self.limited += 1
        others = self._successes.get(quota or "", 0) > item.successes_before.get(quota or "", 0)
        # Who got no key was refused by nobody: that others got one says nothing of it.
        if item.limited - item.no_key_waits >= MAX_CONSECUTIVE_LIMITS and others:
            self._reset_limit_streak(item)
            self.failed += 1
            return Verdict.FAILED
        self._back_off(item, now + max(limit_backoff(item.limited), rest))
        return Verdict.LIMITED

    def _count_success(self, item: Item, quota: str | None) -> None:
        self._successes[quota or ""] = self._successes.get(quota or "", 0) + 1
        self._reset_limit_streak(item)

    def _reset_limit_streak(self, item: Item) -> None:
        if item.limited:
            item.limited = item.no_key_waits = item.token_shortfalls = 0
            self._limited_items -= 1
            if not self._limited_items:
                self._successes.clear()

    def _back_off(self, item: Item, until: float) -> None:
        self._tie += 1
        heapq.heappush(self.backing_off, (until, self._tie, item))

    def abandon_attempt(self, attempt: Attempt, *, failed: bool) -> bool:
        """Decide an item while its attempt still runs: failed (too long), or interrupted. False: it had come back."""
        if self.running.pop(attempt.token, None) is None:
            return False
        self._reset_limit_streak(attempt.item)
        if failed:
            self.failed += 1
            attempt.item.state = ItemStatus.FAILED
        else:
            self.interrupted += 1
            self.interrupted_items.append(attempt.item)
            attempt.item.state = ItemStatus.INTERRUPTED
        return True

    def requeue_attempt(self, attempt: Attempt) -> bool:
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
        attempt.item.state = ItemStatus.PENDING
        self._requeue(attempt.item)
        return True

    def refuse(self, item: Item) -> None:
        """An admitted item fails without having been run."""
        self.admitted.discard(item)
        self.failed += 1
        item.state = ItemStatus.FAILED

    def is_halted(self) -> bool:
        """Whether the halt clause has been reached."""
        return self.halt is not None and self.halt.reached(self.done, self.failed)

    # -- the end ----------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Nothing runs, and nothing more will."""
        if self.running:
            return False
        if self.phase is not Phase.RUNNING:
            return True
        return self.exhausted and not (
            self.fresh or self.retry_ready or self.backing_off or self.admitted or self.deferred_count
        )

    def waiting_items(self) -> Iterator[Item]:
        """The items taken and not begun, or to be begun again."""
        for _, _, item in self.retry_ready:
            yield item
        for _, _, item in self.backing_off:
            yield item
        for waiting in self.deferred_by_model.values():
            yield from waiting
        yield from self.unservable
        yield from list(self.fresh)  # whoever reads the input adds to it without asking anybody

    def park(self) -> list[Item]:
        """The run is over: the items that a limit stopped are parked. Returns them."""
        parked = [item for item in self.waiting_items() if item.limited]
        for item in parked:
            item.state = ItemStatus.PARKED
        return parked
