"""The clients of the matrix, and how one is driven in virtual time: the pool itself, AIMD, and a fixed backoff."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from matrix_provider import HOSTS, Answer, MatrixProvider
from matrix_variants import DAY, SLOTS, Scene

# Requests that wait for a lease at once, as in a run.
IN_LINE = 2


class Started(NamedTuple):
    """A call that begins: the number of its key, and what the client needs to know it again."""

    key: int
    handle: Any


class Client(Protocol):
    def start(self, wanted: int, now: float) -> Sequence[Started]:
        """Return the calls that begin now, of *wanted* that have not begun."""

    def due(self) -> float:
        """Return when ``start`` is to be called again even if nothing happens."""

    def ended(self, started: Started, answer: Answer, now: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Result:
    done: int
    rejected: int
    seconds: float  # until the last success
    stopped: bool  # given up: too late or refused too often


def drive(
    client: Client,
    scene: Scene,
    *,
    until: float = math.inf,
    most_rejected: float = math.inf,
    watch: Callable[[float, int, int, Started, Answer], None] | None = None,
) -> Result:
    """Make all calls of the scene, or stop at that instant or after that many refusals."""
    provider = MatrixProvider(scene)
    agenda: list[tuple[float, int, Started | None, Answer | None]] = []
    now = last = 0.0
    done = number = 0
    left = scene.calls  # not begun
    looks_at = math.inf
    stopped = True
    push, pop = heapq.heappush, heapq.heappop
    while now <= until and provider.refused <= most_rejected:
        for started in client.start(left, now):
            left -= 1
            number += 1
            push(agenda, (now + provider.travel(), number, started, None))
        due = client.due() if left else math.inf
        if due < looks_at or looks_at <= now:
            looks_at = due
            if due < math.inf:
                number += 1
                push(agenda, (max(due, now), number, None, None))
        if not agenda:
            break
        now, _, begun, answer = pop(agenda)
        if begun is None:
            if now >= looks_at:
                looks_at = math.inf
        elif answer is None:
            answer = provider.arrive(begun.key, now)
            number += 1
            push(agenda, (now + answer.seconds, number, begun, answer))
            continue
        else:
            client.ended(begun, answer, now)
            if watch is not None:
                watch(now, done, provider.refused, begun, answer)
            if answer.status == 200:
                done += 1
                last = now
                if done == scene.calls:
                    stopped = False
                    break
            else:
                left += 1
    return Result(done, provider.refused, last if not stopped else max(now, last), stopped)


# -- the pool ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PoolKit:
    """The names that the driver needs of a pool: an earlier one has others."""

    pool: Callable[..., Any]
    key_spec: Callable[..., Any]
    limit: Callable[..., Any]
    request: Callable[[], Any]
    ticket: Callable[..., Any]
    granted: Any
    forever: float
    classify: Callable[..., Any]
    waken: Callable[[Any], Sequence[Any]]  # of what a report returns


def present_kit() -> PoolKit:
    from agentos.pool.core.learning.adaptive_pool import AdaptivePool
    from agentos.pool.core.limits.base import FOREVER
    from agentos.pool.core.records import KeySpec, LeaseRequest, Ticket
    from agentos.pool.core.states import TicketState
    from agentos.pool.limit import Limit
    from agentos.providers import classify

    return PoolKit(
        AdaptivePool,
        KeySpec,
        Limit,
        LeaseRequest,
        Ticket,
        TicketState.GRANTED,
        FOREVER,
        classify,
        lambda result: result.to_wake,
    )


def stated_limits(scene: Scene, number: int, kit: PoolKit) -> tuple[Any, ...]:
    """Return what the user states of a quota, in the form that its kind of limiter never refuses."""
    variant, quota = scene.variant, scene.quotas[number]
    if variant.knowledge == "unknown":
        return ()
    factor = 1.2 if variant.knowledge == "too-high" else 1.0
    amount = quota.amount * factor
    if variant.algorithm in ("bucket", "gcra"):
        return (kit.limit("requests", amount, per=scene.window, burst=quota.capacity * factor),)
    if variant.algorithm == "fixed" and scene.window == DAY:
        return (kit.limit("requests", amount, per="day", resets_at=scene.resets_at()),)
    return (kit.limit("requests", amount, per=scene.window, window="sliding"),)


class PoolClient:
    """The core of the pool, with ``slots="auto"``, told of each answer as a run tells it."""

    def __init__(self, scene: Scene, kit: PoolKit) -> None:
        self.kit = kit
        self.pool = kit.pool(wall_offset=scene.wall)
        self._wall = scene.wall
        self._provider = HOSTS.get(scene.variant.headers) if scene.known_host else None
        self._request = kit.request()
        self._waiting: set[Any] = set()
        self._ready: list[Started] = []
        self._numbers: dict[str, int] = {}
        for number, quota in enumerate(scene.quotas):
            limits = stated_limits(scene, number, kit)
            for key in quota.keys:
                name = f"key-{key}"
                self._numbers[name] = key
                self.pool.add(kit.key_spec(name, 1, f"quota-{number}", limits, auto=True), 0.0)
        self._first_keys = [f"key-{quota.keys[0]}" for quota in scene.quotas]

    def start(self, wanted: int, now: float) -> Sequence[Started]:
        pool = self.pool
        if pool.next_at <= now:
            self._granted(pool.tick(now))
        wanted -= len(self._ready)
        while len(self._waiting) < min(wanted, IN_LINE):
            grant = pool.acquire(self._request, None, now)
            if grant is not None:
                self._ready.append(Started(self._numbers[grant.key.name], grant))
                wanted -= 1
                continue
            ticket = self.kit.ticket(self._request, None)
            self._waiting.add(ticket)
            before = len(self._ready)
            self._granted(pool.enqueue(ticket, now))
            wanted -= len(self._ready) - before
        ready, self._ready = self._ready, []
        return ready

    def due(self) -> float:
        at: float = self.pool.next_at
        return math.inf if at >= self.kit.forever else at

    def ended(self, started: Started, answer: Answer, now: float) -> None:
        kit, pool, grant = self.kit, self.pool, started.handle
        signal = kit.classify(answer.status, answer.headers, answer.body, now=self._wall + now, provider=self._provider)
        told = pool.report(grant, signal, now)
        if told is not None:
            self._granted(kit.waken(told))
        self._granted(pool.release(grant, now) or ())

    def _granted(self, tickets: Sequence[Any]) -> None:
        for ticket in tickets:
            if ticket not in self._waiting:
                continue
            self._waiting.discard(ticket)
            if ticket.state is self.kit.granted:
                self._ready.append(Started(self._numbers[ticket.grant.key.name], ticket.grant))

    def quota(self, number: int) -> Any:
        return self.pool.keys[self._first_keys[number]].quota

    def belief(self, number: int = 0) -> dict[str, Any]:
        """Return what the pool believes of one quota."""
        quota = self.quota(number)
        return {
            "limits": [f"{type(state).__name__}: {describe(state)}" for state in quota.limits],
            "slots": getattr(quota, "learned_slots", None),
            "history": [f"{at:.3f} {text}" for at, text in quota.history],
        }


def describe(state: Any) -> str:
    text = str(state)
    if " object at " not in text:
        return text
    limit = state.limit
    return f"{limit.amount:.6g} per {limit.per if isinstance(limit.per, str) else format(limit.per, 'g')}"


# -- peers ------------------------------------------------------------------------------------------------------------


class _PeerKey:
    __slots__ = ("in_flight", "number", "rests_until")

    def __init__(self, number: int) -> None:
        self.number = number
        self.in_flight = 0
        self.rests_until = 0.0


class FixedBackoff:
    """64 calls at once on each key. A key that refused rests as long as stated, or else a second."""

    def __init__(self, scene: Scene) -> None:
        self.keys = [_PeerKey(number) for number in range(scene.key_count)]
        self._due = math.inf

    def places(self, key: _PeerKey) -> int:
        return SLOTS

    def start(self, wanted: int, now: float) -> Sequence[Started]:
        found: list[Started] = []
        for key in sorted(self.keys, key=lambda key: key.in_flight):
            if len(found) >= wanted:
                break
            if key.rests_until <= now:
                free = min(self.places(key) - key.in_flight, wanted - len(found))
                found += [Started(key.number, key)] * max(0, free)
                key.in_flight += max(0, free)
                if free > 0:
                    self.began(key)
        self._due = min((key.rests_until for key in self.keys if key.rests_until > now), default=math.inf)
        return found

    def due(self) -> float:
        return self._due

    def began(self, key: _PeerKey) -> None:
        pass

    def ended(self, started: Started, answer: Answer, now: float) -> None:
        key: _PeerKey = started.handle
        key.in_flight -= 1
        if answer.status != 200:
            key.rests_until = max(key.rests_until, now + (1.0 if answer.retry_in is None else answer.retry_in))


class AimdClient(FixedBackoff):
    """As many calls at once on each key as it seems to bear: one more each round, a fifth less after a refusal."""

    START, CUT = 20.0, 0.8

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._places = {key.number: self.START for key in self.keys}
        self._quiet_until = dict.fromkeys(self._places, 0.0)

    def places(self, key: _PeerKey) -> int:
        return int(self._places[key.number])

    def ended(self, started: Started, answer: Answer, now: float) -> None:
        super().ended(started, answer, now)
        key: _PeerKey = started.handle
        places = self._places[key.number]
        if answer.status == 200:
            self._places[key.number] = min(SLOTS, places + 1 / places)
        elif now >= self._quiet_until[key.number]:
            self._places[key.number] = max(1.0, places * self.CUT)
            self._quiet_until[key.number] = max(key.rests_until, now + 1.0)
