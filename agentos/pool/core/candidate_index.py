"""Indexes of the keys for each kind of request: which keys are ready, and when others may be.

A kind of request is its labels and model. Each key that may serve it is in one place of the kind's index:

- *ready*: it has a free slot, and its quota was open at the last check. Ordered by leases, then by how long it has
  been unused, without sorting: a key goes to the end of its level whenever it is granted or released.

- *later*: it has a free slot but cannot start anything before a known instant. A heap on that lower bound; the key is
  checked again at that instant.

- in neither: every slot is leased, or the key is dead or retired.

Closing a quota changes no index: the key moves to *later* when it is next checked. Opening one must call ``reopen``,
since the key would not be checked before the old instant.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import attrgetter

from .limits.base import FOREVER
from .records import NO_LABELS, Key, Labels, Ticket
from .states import Life
from .wait_queue import WaitQueue

_INDEXES_REMEMBERED = 64

_by_use = attrgetter("used")


class LoadLevel:
    """Ready keys with the same number of leases, the longest unused first.

    Keys that come back from *later* do not belong at the end. They stay in a heap beside the queue and are merged into
    it when they outnumber it, which keeps each step cheap when many come back at once.
    """

    __slots__ = ("_heap", "queue", "returned")

    def __init__(self) -> None:
        self.queue: OrderedDict[Key, None] = OrderedDict()
        self.returned: dict[Key, int] = {}
        self._heap: list[tuple[int, int, Key]] = []

    def __bool__(self) -> bool:
        return bool(self.queue) or bool(self.returned)

    def put_back(self, key: Key) -> None:
        """Add a key at the position that its last use gives it."""
        self.returned[key] = key.used
        heapq.heappush(self._heap, (key.used, key.number, key))
        if len(self.returned) > len(self.queue):
            ranked = sorted([*self.queue, *self.returned], key=_by_use)
            self.queue = OrderedDict.fromkeys(ranked)
            self.returned = {}
            self._heap = []
        elif len(self._heap) > 2 * len(self.returned) + 16:  # the other entries are of removed keys
            self._heap = [(used, key.number, key) for key, used in self.returned.items()]
            heapq.heapify(self._heap)

    def discard(self, key: Key) -> None:
        if key in self.queue:
            del self.queue[key]
        elif self.returned:
            self.returned.pop(key, None)

    def first(self) -> Key:
        if not self.returned:
            return next(iter(self.queue))
        heap = self._heap
        while self.returned.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        other = heap[0][2]
        if self.queue:
            key = next(iter(self.queue))
            if key.used < other.used:
                return key
        return other

    def in_order(self) -> Iterator[Key]:
        if not self.returned:
            yield from self.queue
            return
        first = self.first()
        yield first  # nearly always the only one needed
        for key in heapq.merge(self.queue, sorted(self.returned, key=_by_use), key=_by_use):
            if key is not first:
                yield key

    def __contains__(self, key: Key) -> bool:
        return key in self.queue or key in self.returned


class CandidateIndex:
    """The keys that may serve one kind of request, and the waiting tickets of that kind."""

    __slots__ = ("bounds", "filled", "labels", "later", "levels", "limited", "model", "waiting")

    def __init__(self, labels: Labels, model: str | None) -> None:
        self.labels = labels
        self.model = model
        self.levels: list[LoadLevel] = [LoadLevel()]
        self.filled = 0  # bit n: level n is not empty
        self.later: list[tuple[float, int, Key]] = []
        self.bounds: dict[Key, float] = {}  # of the keys in `later`; a heap entry with another bound is void
        self.limited = False  # some key has limits, so that cost matters
        self.waiting = WaitQueue()

    # -- positions of keys ------------------------------------------------------------------------------------

    def insert(self, key: Key) -> None:
        """Add a key with a free slot at the end of its level."""
        n = key.leases
        while n >= len(self.levels):
            self.levels.append(LoadLevel())
        self.levels[n].queue[key] = None
        self.filled |= 1 << n

    def slot_taken(self, key: Key, n: int) -> None:
        """Update a key of which one more slot is leased; *n* were before."""
        if key in self.bounds:
            return  # it cannot start such a request yet, even with free slots
        level = self.levels[n]
        queue = level.queue
        try:
            del queue[key]
        except KeyError:
            level.returned.pop(key, None)
        if not queue and not level.returned:
            self.filled &= ~(1 << n)
        if n + 1 < key.slots:
            self.insert(key)

    def slot_freed(self, key: Key, n: int) -> None:
        """Update a key of which one slot came free; *n* are still leased."""
        if key in self.bounds or n >= key.slots:
            return  # not yet open to such requests; or its slots were reduced while leased
        if n + 1 < key.slots:
            level = self.levels[n + 1]
            level.discard(key)
            if not level:
                self.filled &= ~(2 << n)
        if key.quota.closed:
            # Most likely it is still closed. If not, it comes back at the next check; but one request must not find a
            # thousand keys closed that were refused at once.
            self.postpone(key, key.quota.closed_until)
        elif n:
            self.insert(key)
        else:
            self.levels[0].queue[key] = None
            self.filled |= 1

    def remove(self, key: Key) -> None:
        """Remove a key that cannot be used any more."""
        self.bounds.pop(key, None)
        if key.leases < len(self.levels):
            level = self.levels[key.leases]
            level.discard(key)
            if not level:
                self.filled &= ~(1 << key.leases)

    def postpone(self, key: Key, until: float) -> None:
        """Move a ready key that cannot start anything before *until* to *later*."""
        self.remove(key)
        self.bounds[key] = until
        if until < FOREVER:  # one that waits for a person comes back only by ``reopen``
            heapq.heappush(self.later, (until, key.number, key))

    def reopen(self, key: Key) -> None:
        """Make a key ready that may be open earlier than its bound."""
        if self.bounds.pop(key, None) is not None:
            self.put_back(key)

    def promote_due(self, now: float) -> None:
        """Make the keys ready whose instant has come."""
        later = self.later
        while later and later[0][0] <= now:
            until, _, key = heapq.heappop(later)
            if self.bounds.get(key) == until:
                del self.bounds[key]
                self.put_back(key)

    def put_back(self, key: Key) -> None:
        """Add a key with a free slot at the position that its last use gives it."""
        n = key.leases
        if n >= key.slots:
            return
        while n >= len(self.levels):
            self.levels.append(LoadLevel())
        self.levels[n].put_back(key)
        self.filled |= 1 << n

    def next_bound(self) -> float:
        """Return the earliest instant at which a key in *later* may be ready."""
        later = self.later
        while later and self.bounds.get(later[0][2]) != later[0][0]:
            heapq.heappop(later)
        return later[0][0] if later else FOREVER

    def take_next(self) -> Key:
        """Remove and return the key of ``next_bound``; the caller postpones it again."""
        _, _, key = heapq.heappop(self.later)
        del self.bounds[key]
        return key

    # -- iteration --------------------------------------------------------------------------------------------

    def first(self) -> Key:
        """Return the first ready key; there must be one."""
        filled = self.filled
        return self.levels[(filled & -filled).bit_length() - 1].first()

    def ready(self) -> Iterator[Key]:
        """Yield the ready keys: fewest leases first, then the longest unused."""
        filled = self.filled
        while filled:
            lowest = filled & -filled
            yield from self.levels[lowest.bit_length() - 1].in_order()
            filled ^= lowest

    def has_ready(self, key: Key) -> bool:
        return key.leases < len(self.levels) and key in self.levels[key.leases]


class CandidateIndexes:
    """The index of each kind of request over all keys of a pool, and their bookkeeping.

    ``fast_path`` holds while there is one kind of request and no rule restricts it: the pool may then skip the search.
    """

    __slots__ = ("_by_kind", "_keys", "_may_be_fast", "all", "by_model", "fast_path", "plain")

    def __init__(self, keys: Mapping[str, Key], fast_path: bool) -> None:
        self._keys = keys
        self.plain = CandidateIndex(NO_LABELS, None)
        self._by_kind: dict[tuple[Labels, str | None], CandidateIndex] = {(NO_LABELS, None): self.plain}
        self.all = [self.plain]
        self.fast_path = self._may_be_fast = fast_path
        self.by_model = False  # some limit or cooldown applies to one model only

    def get(self, labels: Labels, model: str | None) -> CandidateIndex:
        """Return the index for such requests; build it if there is none."""
        kind = (labels, model if self.by_model else None)
        index = self._by_kind.get(kind)
        if index is None:
            if len(self._by_kind) >= _INDEXES_REMEMBERED:
                self._drop_idle()
            index = self._by_kind[kind] = _build_index(*kind, self._keys.values())
            self.all.append(index)
            self.fast_path = False
        return index

    def _drop_idle(self) -> None:
        """Drop the indexes without waiting requests; they are built again when needed."""
        self._by_kind = {kind: index for kind, index in self._by_kind.items() if index is self.plain or index.waiting}
        self.all = list(self._by_kind.values())
        self.fast_path = self._may_be_fast and len(self.all) == 1

    def disable_fast_path(self) -> None:
        """Search on every request from now on."""
        self.fast_path = self._may_be_fast = False

    def split_by_model(self) -> None:
        """Index requests by model too, from now on; those that wait move to their index."""
        if self.by_model:
            return
        self.by_model = True
        for ticket in self.tickets():
            if ticket.request.model is not None:
                ticket.index.waiting.remove(ticket)
                ticket.index = self.get(ticket.request.labels, ticket.request.model)
                ticket.index.waiting.add(ticket)

    def tickets(self) -> list[Ticket]:
        """Return all waiting requests in the order in which they are served."""
        return sorted((ticket for index in self.all for ticket in index.waiting), key=Ticket.rank)

    def first_ticket(self) -> Ticket | None:
        """Return the waiting request that is served first."""
        heads = [head for index in self.all if (head := index.waiting.head()) is not None]
        return min(heads, key=Ticket.rank, default=None)

    # -- changes of a key -------------------------------------------------------------------------------------

    def insert(self, key: Key) -> None:
        """Add a new key."""
        for index in self.all:
            if index.labels <= key.labels:
                index.insert(key)
                index.limited = index.limited or bool(key.quota.limits)

    def move(self, key: Key, leases: int, slots: int) -> None:
        """Set how many of how many slots of a key are leased."""
        indexes = [index for index in self.all if index.labels <= key.labels and key not in index.bounds]
        for index in indexes:
            index.remove(key)
        key.leases, key.slots = leases, slots
        if key.life is Life.ALIVE:
            for index in indexes:
                index.put_back(key)

    def update_life(self, key: Key) -> None:
        """Add or remove a key whose life has changed."""
        for index in self.all:
            if key.life is not Life.ALIVE:
                index.remove(key)
            elif index.labels <= key.labels:
                index.put_back(key)

    def reopen(self, keys: Iterable[Key]) -> None:
        """Check *keys* again at the next request: their quota may be open earlier than it was."""
        for index in self.all:
            if index.bounds:
                for key in keys:
                    index.reopen(key)


def _build_index(labels: Labels, model: str | None, keys: Collection[Key]) -> CandidateIndex:
    """Index the keys for one kind of request."""
    index = CandidateIndex(labels, model)
    for key in sorted(keys, key=_by_use):
        if labels <= key.labels:
            index.limited = index.limited or bool(key.quota.limits)
            if key.life is Life.ALIVE and key.leases < key.slots:
                index.insert(key)
    return index
