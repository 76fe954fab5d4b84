"""A pure state machine: which items wait, which run, and what follows from the end of an attempt.

An item is in exactly one of these places: ``fresh`` (taken from the input, in order), ``retry_ready`` (to be run again,
before any fresh one), ``backing_off`` (not before an instant), ``deferred_by_model`` (behind others of its model that
wait for a lease), ``admitted`` (about to get a lease, or one is requested), ``running``, ``unservable`` or
``interrupted_items``; or it is final and only counted.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from .backoff import MAX_BACKOFF, limit_backoff, retry_backoff
from .halt import Halt
from .records import LOST, Attempt, Item
from .states import STATUS_AFTER, AttemptEnd, ItemStatus, Phase, Verdict

FOREVER = float("inf")

# An item limited so often in a row, while others succeed on the same quota, is too large for that quota.
MAX_CONSECUTIVE_LIMITS = 20


class ItemScheduler:
    """Schedules the items of one run and decides the outcome of each attempt."""

    def __init__(
        self,
        *,
        retries: int = 2,
        halt: Halt | None = None,
        total: int | None = None,
        last_token: int = 0,
        pool: Any = None,
        attempt: Callable[..., Attempt] = Attempt,
    ) -> None:
        self._pool = pool
        self._attempt = attempt
        self.deadline = FOREVER  # nothing starts after it
        self.phase = Phase.RUNNING
        self.retries = retries
        self.halt = halt
        self._total = total  # the number of items, if known before the input has ended
        self.fresh: deque[Item] = deque()
        self.retry_ready: list[tuple[int, int, Item]] = []  # heap by position in the input
        self.backing_off: list[tuple[float, int, Item]] = []  # heap by instant
        self.deferred_by_model: dict[str | None, deque[Item]] = {}
        self.deferred_count = 0  # items in deferred_by_model
        self.admitted: set[Item] = set()
        self.running: dict[int, Attempt] = {}  # by token
        self.unservable: list[Item] = []  # no credential can ever serve them
        self.interrupted_items: list[Item] = []
        self.exhausted = False  # the input has ended
        self.taken = 0  # from the input
        self.done = self.failed = self.interrupted = self.retried = self.limited = self.late = 0
        self._token = last_token
        self._tie = 0
        self._limited_items = 0
        self._successes: dict[str, int] = {}  # by quota, counted while some item is limited

    # -- what runs next ---------------------------------------------------------------------------------------

    def next_item(self) -> Item | None:
        """Return the next item that needs a lease; None if none is ready."""
        if self.retry_ready:
            item = heapq.heappop(self.retry_ready)[2]
        elif self.fresh:
            item = self.fresh.popleft()
        else:
            return None
        self.admitted.add(item)
        return item

    def swap_for_earlier(self, item: Item) -> Item:
        """Return the item to use the lease of *item* for: an earlier one, if that has become ready meanwhile."""
        if self.retry_ready and self.retry_ready[0][0] < item.index:
            earlier = heapq.heappop(self.retry_ready)[2]
            self.admitted.add(earlier)
            self.put_back(item)
            return earlier
        return item

    def put_back(self, item: Item) -> None:
        """Return an admitted item that did not start to its place in the order."""
        self.admitted.discard(item)
        self._requeue(item)

    def defer(self, item: Item, model: str | None) -> None:
        """Put the item behind others of its model that wait for a lease."""
        self.admitted.discard(item)
        self.deferred_count += 1
        self.deferred_by_model.setdefault(model, deque()).append(item)

    def resume_deferred(self, model: str | None, all_of_them: bool = False) -> None:
        """Make the next deferred item of the model (or all of them) ready again."""
        waiting = self.deferred_by_model.get(model)
        while waiting:
            self.deferred_count -= 1
            self._requeue(waiting.popleft())
            if not all_of_them:
                break
        if not waiting:
            self.deferred_by_model.pop(model, None)

    def mark_unservable(self, item: Item) -> None:
        """Set an item aside that no credential can ever serve. It stays pending for the rest of the run."""
        self.admitted.discard(item)
        self.unservable.append(item)

    def _requeue(self, item: Item) -> None:
        self._tie += 1
        heapq.heappush(self.retry_ready, (item.index, self._tie, item))

    @property
    def next_due(self) -> float:
        """The instant at which the first item that is backing off becomes ready."""
        return self.backing_off[0][0] if self.backing_off else FOREVER

    def release_due(self, now: float) -> int:
        """Make items ready after their backoff. Returns their number."""
        count = 0
        while self.backing_off and self.backing_off[0][0] <= now:
            self._requeue(heapq.heappop(self.backing_off)[2])
            count += 1
        return count

    # -- attempts ---------------------------------------------------------------------------------------------

    def begin(self, item: Item, grant: Any, now: float) -> Attempt | None:
        """Begin an attempt of an admitted item. Return None, and put the item back, if nothing may start any more."""
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
        self, attempt: Attempt, ended: AttemptEnd, quota: str | None, now: float, jitter: float, delay: float = 0.0
    ) -> Verdict:
        """Record the end of an attempt and return what follows for its item.

        *delay* is the delay that the provider asked for: honoured in full after a limit, up to a minute before a retry.
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
        verdict = self._classify(item, ended, quota, now, jitter, delay)
        item.state = STATUS_AFTER[verdict]
        return verdict

    def _classify(
        self, item: Item, ended: AttemptEnd, quota: str | None, now: float, jitter: float, delay: float
    ) -> Verdict:
        if ended is AttemptEnd.LIMIT or ended is AttemptEnd.NO_KEY:
            return self._classify_limit(item, ended, quota, now, delay)
        self._reset_limit_streak(item)
        if ended is AttemptEnd.STOPPED and self.phase is not Phase.RUNNING:
            self.interrupted += 1
            self.interrupted_items.append(item)
            return Verdict.INTERRUPTED
        if ended is AttemptEnd.TRANSIENT and item.tries < self.retries:
            item.tries += 1
            self.retried += 1
            self._back_off(item, now + max(retry_backoff(item.tries, jitter), min(delay, MAX_BACKOFF)))
            return Verdict.RETRY
        self.failed += 1
        return Verdict.FAILED

    def _classify_limit(self, item: Item, ended: AttemptEnd, quota: str | None, now: float, delay: float) -> Verdict:
        if not item.limited:
            self._limited_items += 1
            item.successes_before = dict(self._successes)
        item.limited += 1
        item.no_key_waits += ended is AttemptEnd.NO_KEY
        self.limited += 1
        others = self._successes.get(quota or "", 0) > item.successes_before.get(quota or "", 0)
        # An attempt that got no key was not refused by the provider: the success of others proves nothing about it.
        if item.limited - item.no_key_waits >= MAX_CONSECUTIVE_LIMITS and others:
            self._reset_limit_streak(item)
            self.failed += 1
            return Verdict.FAILED
        self._back_off(item, now + max(limit_backoff(item.limited), delay))
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
        """Decide an item while its attempt runs: failed (timed out) or interrupted. False: it had ended."""
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
        """Make the item of an attempt that could not continue the next to run. False: finish the attempt instead.

        An attempt that found no place to run counts as not started. One that lost its key is requeued only while the
        run is running.
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
        """Fail an admitted item that was not run."""
        self.admitted.discard(item)
        self.failed += 1
        item.state = ItemStatus.FAILED

    def is_halted(self) -> bool:
        """True if the halt clause has been reached. Results of earlier starts do not count."""
        if self.halt is None:
            return False
        total = self.taken if self._total is None and self.exhausted else self._total
        return self.halt.reached(self.done, self.failed, total)

    # -- the end ----------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """True if nothing runs and nothing more will start."""
        if self.running:
            return False
        if self.phase is not Phase.RUNNING:
            return True
        return self.exhausted and not (
            self.fresh or self.retry_ready or self.backing_off or self.admitted or self.deferred_count
        )

    def waiting_items(self) -> Iterator[Item]:
        """Yield the items that wait for their first or next attempt."""
        for _, _, item in self.retry_ready:
            yield item
        for _, _, item in self.backing_off:
            yield item
        for waiting in self.deferred_by_model.values():
            yield from waiting
        yield from self.unservable
        yield from list(self.fresh)  # a copy: the input's reader appends without the lock

    def park(self) -> list[Item]:
        """Park the items that were last limited, at the end of the run. Returns them."""
        parked = [item for item in self.waiting_items() if item.limited]
        for item in parked:
            item.state = ItemStatus.PARKED
        return parked
