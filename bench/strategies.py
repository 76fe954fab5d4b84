"""What waiting and pacing are worth: the same calls, in twelve ways to use eight keys: ``python bench/strategies.py``.

Virtual time, so hours take seconds and the same seed gives the same table. Every row meets the same rules
(``agentos.simulator.rules``) and the same calls, with 128 workers. The others are small models of what their kind does,
written here; ours is the pool and the run themselves, driven by ``agentos.simulator.virtual``.

Each quota allows 200,000 tokens and 500 requests a minute, refills continuously and holds a minute's worth. A call
takes about 1,400 tokens of input and 800 of output, and about 5 s. A refusal takes 0.15 s and spends a request. In one
column each key has a quota of its own, in the other they belong to three organisations (4, 2 and 2 keys).

What is not done after twice the best possible time and ten minutes counts as failed.
"""

from __future__ import annotations

import argparse
import heapq
import math
import platform
import random
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agentos.simulator import virtual
from agentos.simulator.plan import Dialect, KeyPlan, Latency, PlanOptions, ProviderPlan, equal_keys, organisations
from agentos.simulator.rules import Admitted, Provider, Refused

WORKERS = 128
RPM, TPM = 500.0, 200_000.0
MINUTE, HOUR = 60.0, 3_600.0
CALL_TIME = Latency(median=5.0, sigma=0.5)
REFUSAL_TIME = 0.15
INPUT, INPUT_SIGMA, OUTPUT = 1_400, 0.7, 800
ORGANISATIONS = {"first": 4, "second": 2, "third": 2}
CLOSE, POOR = 0.15, 0.4  # how far off the guess of a call's cost may be
MARGIN = 1.3  # of the guess is reserved, where the guess is poor


# -- the scene --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    tokens: int
    luck: float  # of whoever guesses its cost, from -1 to 1

    def guess(self, within: float) -> float:
        """The cost as somebody guesses it who is never further off than that."""
        return self.tokens * (1 + within * self.luck)


def calls_of(count: int, seed: int) -> list[Call]:
    chance = random.Random(f"{seed}/calls")
    return [
        Call(round(INPUT * math.exp(INPUT_SIGMA * chance.gauss(0, 1))) + OUTPUT, chance.uniform(-1, 1))
        for _ in range(count)
    ]


def eight_quotas(dialect: Dialect, seed: int) -> ProviderPlan:
    return equal_keys(8, **_manners(dialect, seed))


def three_quotas(dialect: Dialect, seed: int) -> ProviderPlan:
    return organisations(ORGANISATIONS, **_manners(dialect, seed))


def _manners(dialect: Dialect, seed: int) -> PlanOptions:
    return {
        "rpm": RPM,
        "tpm": TPM,
        "latency": CALL_TIME,
        "rejection_latency": REFUSAL_TIME,
        "count_rejections": True,
        "dialect": dialect,
        "seed": seed,
    }


def best_seconds(plan: ProviderPlan, calls: Sequence[Call]) -> float:
    """What no client can beat: all quotas give all they have from the first instant on, or all workers work."""
    supply = len(plan.quotas) * TPM
    refills = sum(call.tokens for call in calls) / supply - 1  # the first minute's worth is there at the start
    return max(refills * MINUTE, len(calls) * CALL_TIME.mean / WORKERS)


@dataclass(frozen=True, slots=True)
class Outcome:
    failed: int
    rejected: int
    seconds: float  # until the last call ended


# -- a client in virtual time -----------------------------------------------------------------------------------------

# A call on its way: gives the seconds until it wants to go on, and at last whether it succeeded.
Steps = Generator[float, None, bool]

PARKED = math.inf  # instead of seconds: somebody else will see to it that this goes on


class Key:
    """A key, as a client knows it."""

    __slots__ = ("in_flight", "quota", "rests_until", "secret")

    def __init__(self, plan: KeyPlan) -> None:
        self.secret = plan.secret
        self.quota = plan.quota
        self.rests_until = 0.0
        self.in_flight = 0

    def rest(self, until: float) -> None:
        self.rests_until = max(self.rests_until, until)


class Client:
    """Workers that take one call after the other. A strategy says in ``call`` how one is made."""

    def __init__(self, provider: Provider, seed: int) -> None:
        self.now = 0.0
        self.keys = [Key(plan) for plan in provider.plan.keys]
        self.chance = random.Random(f"{seed}/client")
        self._done = 0
        self._provider = provider
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._running: Steps | None = None

    def call(self, call: Call) -> Steps:
        raise NotImplementedError

    def run(self, calls: Sequence[Call], until: float) -> Outcome:
        left = iter(calls)
        for _ in range(WORKERS):
            self.go_on(self._work(left))
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, act = heapq.heappop(self._agenda)
            act()
        total = self._provider.statistics().total
        return Outcome(len(calls) - self._done, total.refused, total.last_at or 0.0)

    def _work(self, left: Iterator[Call]) -> Steps:
        for call in left:
            if (yield from self.call(call)):
                self._done += 1
        return True

    def at(self, instant: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._agenda, (instant, self._number, act))

    def go_on(self, steps: Steps) -> None:
        self._running = steps
        seconds = next(steps, PARKED)
        if seconds < PARKED:
            self.at(self.now + seconds, partial(self.go_on, steps))

    def running(self) -> Steps:
        """What goes on just now, to be told to ``go_on`` by whoever it waits for."""
        assert self._running is not None
        return self._running

    def arrive(self, key: Key, call: Call) -> Admitted | Refused:
        key.in_flight += 1
        return self._provider.arrive(key.secret, call.tokens, self.now)

    def finish(self, key: Key, answer: Admitted | Refused) -> Refused | None:
        """The answer is there. Returns the refusal, if it is one."""
        key.in_flight -= 1
        if isinstance(answer, Refused):
            return answer
        self._provider.finish(answer, self.now)
        return None

    def send(self, key: Key, call: Call) -> Generator[float, None, Refused | None]:
        """Make the call with that key and wait for what comes of it."""
        answer = self.arrive(key, call)
        yield answer.latency
        return self.finish(key, answer)

    def rested(self) -> list[Key]:
        return [key for key in self.keys if key.rests_until <= self.now]


def delay_of(refused: Refused) -> float:
    """What the provider asks for, to the last digit."""
    return 0.0 if refused.retry_after is None else refused.retry_after


# -- the strategies ---------------------------------------------------------------------------------------------------


class FailFast(Client):
    """LiteLLM's router as it comes: a random key, two more tries at once, and an error if all keys are cooling."""

    TRIES = 3

    def call(self, call: Call) -> Steps:
        for _ in range(self.TRIES):
            rested = self.rested()
            if not rested:
                return False
            key = self.chance.choice(rested)
            refused = yield from self.send(key, call)
            if refused is None:
                return True
            if key.rests_until <= self.now:  # one that is cooling is not cooled for longer
                key.rests_until = self.now + max(1, math.ceil(delay_of(refused)))  # it reads whole seconds
        return False


class FailFastRetried(FailFast):
    """The same, called again up to six times, with a pause anywhere in a window that doubles from 1 s to 60."""

    RETRIES, LONGEST_PAUSE = 6, 60.0

    def call(self, call: Call) -> Steps:
        for retry in range(self.RETRIES):
            if (yield from super().call(call)):
                return True
            yield self.chance.uniform(0, min(self.LONGEST_PAUSE, 2.0**retry))
        return (yield from super().call(call))


class FixedCooldown(Client):
    """A random key that is not cooling; if all are, wait for the first. A key that refused cools for a minute."""

    def call(self, call: Call) -> Steps:
        while True:
            rested = self.rested()
            if not rested:
                yield min(key.rests_until for key in self.keys) - self.now
                continue
            key = self.chance.choice(rested)
            refused = yield from self.send(key, call)
            if refused is None:
                return True
            key.rest(self.now + self.cooldown(refused))

    def cooldown(self, refused: Refused) -> float:
        return MINUTE


class ExactCooldown(FixedCooldown):
    """The same, but a key cools for exactly as long as the provider says; then all who wait go at once."""

    def cooldown(self, refused: Refused) -> float:
        return delay_of(refused)


class InLine(Client):
    """Who waits is served in order of arrival, one at a time. What differs is which key is due first, and when."""

    def __init__(self, provider: Provider, seed: int) -> None:
        super().__init__(provider, seed)
        self._line: deque[tuple[Call, Callable[[Key, Admitted | Refused], None]]] = deque()
        self._looks_at = math.inf

    def earliest(self, call: Call) -> tuple[Key | None, float]:
        """On which key the call could start first, and when. None: only when another has ended."""
        raise NotImplementedError

    def began(self, key: Key, call: Call, answer: Admitted | Refused) -> None:
        """The call is on its way. The answer, which nobody has read yet, is for those who may know too much."""

    def ended(self, key: Key, call: Call, refused: Refused | None) -> None:
        """The answer is there."""

    def call(self, call: Call) -> Steps:
        sent: list[tuple[Key, Admitted | Refused]] = []
        steps = self.running()

        def send(key: Key, answer: Admitted | Refused) -> None:
            sent.append((key, answer))
            self.at(self.now + answer.latency, partial(self.go_on, steps))

        self._line.append((call, send))
        while True:
            self._serve()
            yield PARKED
            key, answer = sent.pop()
            refused = self.finish(key, answer)
            self.ended(key, call, refused)
            if refused is None:
                self._serve()
                return True
            self._line.appendleft((call, send))

    def _serve(self) -> None:
        while self._line:
            call, send = self._line[0]
            key, at = self.earliest(call)
            if key is None:
                return
            if at > self.now:
                if not self.now < self._looks_at <= at:
                    self._looks_at = at
                    self.at(at, self._serve)
                return
            self._line.popleft()
            answer = self.arrive(key, call)
            self.began(key, call, answer)
            send(key, answer)


class Aimd:
    """How many calls at once one key is given: inspect_ai's rule and constants, but for the floor, which is 10 there.

    Doubles each round until the first refusal, then grows by a twentieth; a round is as many successes as there are
    places, and counts if most of them were used. A refusal takes a fifth, and for a while none does so again.
    """

    START, FLOOR, CEILING = 20, 1, 100
    CUT, GROWTH, USED_ENOUGH, QUIET = 0.8, 0.05, 0.8, 15.0

    def __init__(self) -> None:
        self.places = self.START
        self.refused_before = False
        self.quiet_until = 0.0
        self.successes = self.peak = 0

    def began(self, in_flight: int) -> None:
        self.peak = max(self.peak, in_flight)

    def succeeded(self, now: float) -> None:
        if now < self.quiet_until:
            return
        self.successes += 1
        if self.successes < self.places:
            return
        if self.peak >= self.USED_ENOUGH * self.places:
            more = max(1, round(self.places * self.GROWTH)) if self.refused_before else self.places
            self.places = min(self.CEILING, self.places + more)
        self.successes = self.peak = 0

    def refused(self, delay: float, now: float) -> None:
        if now < self.quiet_until:
            return
        self.refused_before = True
        self.places = max(self.FLOOR, int(self.places * self.CUT))
        self.quiet_until = now + max(self.QUIET, delay)
        self.successes = self.peak = 0


class AimdInLine(InLine):
    """As many calls at once on each key as it seems to bear. A key that refused rests exactly as long as asked."""

    def __init__(self, provider: Provider, seed: int) -> None:
        super().__init__(provider, seed)
        self.limits = {key: Aimd() for key in self.keys}

    def earliest(self, call: Call) -> tuple[Key | None, float]:
        with_room = [key for key in self.keys if key.in_flight < self.limits[key].places]
        if not with_room:
            return None, math.inf
        key = min(with_room, key=lambda key: (max(key.rests_until, self.now), key.in_flight))
        return key, key.rests_until

    def began(self, key: Key, call: Call, answer: Admitted | Refused) -> None:
        self.limits[key].began(key.in_flight)

    def ended(self, key: Key, call: Call, refused: Refused | None) -> None:
        if refused is None:
            self.limits[key].succeeded(self.now)
            return
        key.rest(self.now + delay_of(refused))
        self.limits[key].refused(delay_of(refused), self.now)


class Purse:
    """What is thought to be left of one quota whose limits are known: a minute's worth at most, refilling."""

    ROUNDING = 1e-7  # tokens and requests: less than the provider overlooks

    def __init__(self) -> None:
        self.requests, self.tokens = RPM, TPM
        self._at = 0.0

    def fill(self, now: float) -> None:
        minutes = (now - self._at) / MINUTE
        self.requests = min(RPM, self.requests + minutes * RPM)
        self.tokens = min(TPM, self.tokens + minutes * TPM)
        self._at = now

    def ready_at(self, tokens: float, now: float) -> float:
        """When one request of so many tokens can start; one that is too large, when all is there."""
        self.fill(now)
        short = max((1 - self.requests) / RPM, (min(tokens, TPM) - self.tokens) / TPM)
        return now if short <= self.ROUNDING / TPM else now + short * MINUTE

    def learn(self, refused: Refused, tokens: float, now: float) -> None:
        """Where so many tokens were thought to be there, they are after the delay that was named, and not before."""
        minutes = delay_of(refused) / MINUTE
        if refused.reason == "requests":
            self.requests = min(self.requests, 1 - minutes * RPM)
        else:
            self.tokens = min(self.tokens, tokens - minutes * TPM)


class Paced(InLine):
    """The key whose quota can carry the call first, and not before. What it costs is guessed, and taken in advance."""

    def __init__(self, provider: Provider, seed: int, *, by_quota: bool, late: bool) -> None:
        super().__init__(provider, seed)
        purses: dict[str, Purse] = {}
        self.purses = {key: purses.setdefault(key.quota if by_quota else key.secret, Purse()) for key in self.keys}
        self.late = late  # what a call really costs is known when it has ended, not as soon as it is let in

    def reserve(self, call: Call) -> float:
        return MARGIN * call.guess(POOR) if self.late else call.guess(CLOSE)

    def earliest(self, call: Call) -> tuple[Key | None, float]:
        tokens, now = self.reserve(call), self.now
        due = {key: self.purses[key].ready_at(tokens, now) for key in self.keys}
        key = min(due, key=lambda key: (due[key], key.in_flight))
        return key, due[key]

    def began(self, key: Key, call: Call, answer: Admitted | Refused) -> None:
        purse = self.purses[key]
        purse.requests -= 1
        purse.tokens -= self.reserve(call)
        if isinstance(answer, Admitted) and not self.late:
            purse.tokens += self.reserve(call) - call.tokens

    def ended(self, key: Key, call: Call, refused: Refused | None) -> None:
        purse = self.purses[key]
        purse.fill(self.now)
        if refused is not None:
            purse.tokens += self.reserve(call)
            purse.learn(refused, self.reserve(call), self.now)
        elif self.late:
            purse.tokens += self.reserve(call) - call.tokens


def ours(provider: Provider, calls: Sequence[Call], seed: int, until: float, *, known: bool) -> Outcome:
    """The pool and the run themselves. A call's cost is told as the last of the others would reserve it."""
    work = [virtual.Work(call.tokens, (("tokens", MARGIN * call.guess(POOR)),)) for call in calls]
    plan = provider.plan
    specs = virtual.build_key_specs(plan, known=known)
    run = virtual.VirtualRun(plan, work, specs=specs, parallel=WORKERS, seed=seed, provider=provider)
    finished = run.run(until)
    return Outcome(finished.failed + finished.unfinished, finished.rejected, finished.seconds)


# -- the table --------------------------------------------------------------------------------------------------------

Play = Callable[[Provider, Sequence[Call], int, float], Outcome]
Scene = Callable[[Dialect, int], ProviderPlan]


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    play: Play
    dialect: Dialect = "retry-after"  # how much the provider tells


def row_of(name: str, client: Callable[[Provider, int], Client]) -> Row:
    return Row(name, lambda provider, calls, seed, until: client(provider, seed).run(calls, until))


OTHERS = (
    row_of("LiteLLM defaults: random key, 2 instant retries, raise if all cool", FailFast),
    row_of("the same inside 6 outer exponential retries (cap 60 s)", FailFastRetried),
    row_of("wait, fixed 60 s cooldown", FixedCooldown),
    row_of("wait, exact Retry-After, every waiter wakes at once", ExactCooldown),
    row_of("wait, FIFO, per-key AIMD concurrency (inspect_ai constants, floor 1)", AimdInLine),
    row_of("wait, reserve and pace per key", partial(Paced, by_quota=False, late=False)),
    row_of("wait, reserve and pace per quota", partial(Paced, by_quota=True, late=False)),
    row_of("the same, cost within 40%, reserve 1.3x, settled at the end", partial(Paced, by_quota=True, late=True)),
)
OURS = (
    Row("agentos, limits stated", partial(ours, known=True)),
    Row("agentos, nothing stated, told by headers", partial(ours, known=False), "full"),
    Row("agentos, nothing stated, Retry-After alone", partial(ours, known=False)),
    Row("agentos, nothing stated, nothing told", partial(ours, known=False), "none"),
)
SCENES: tuple[Scene, ...] = (eight_quotas, three_quotas)
COLUMNS = ("8 quotas: failed / rejected / hours", "3 quotas: failed / rejected / hours")


def play(
    row: Row,
    scene: Scene,
    calls: Sequence[Call],
    seed: int,
    *,
    strict: bool = False,
    log: list[tuple[Any, ...]] | None = None,
) -> Outcome:
    """One cell of the table. *log* gets what the provider saw, event by event."""
    # Where a refusal takes a part of a request as well (--strict), whoever asks more often than requests flow in never
    # gets any: where keys share a quota, one of the strategies then takes far longer and one never comes to its end.
    plan = replace(scene(row.dialect, seed), count_rejections=True if strict else "whole")
    until = 2 * best_seconds(plan, calls) + 10 * MINUTE
    return row.play(Provider(plan, log=log), calls, seed, until)


def words(outcome: Outcome) -> str:
    return f"{outcome.failed:,} / {outcome.rejected:,} / {outcome.seconds / HOUR:.2f}"


class Table:
    """Prints each row as it comes, for a terminal or for a page."""

    def __init__(self, markdown: bool) -> None:
        self._markdown = markdown

    def head(self) -> None:
        self.row("Strategy", *COLUMNS)
        if self._markdown:
            print("|---|---:|---:|")

    def row(self, name: str, *cells: str) -> None:
        if self._markdown:
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
        else:
            print(f"{name:<70}" + "".join(f"{cell:>38}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare ways to use eight rate-limited keys, in virtual time.")
    parser.add_argument("--calls", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", action="store_true", help="a table for the docs")
    parser.add_argument("--strict", action="store_true", help="who hammers an empty quota keeps it empty; takes longer")
    arguments = parser.parse_args()
    calls = calls_of(arguments.calls, arguments.seed)
    table = Table(arguments.markdown)
    began = time.perf_counter()
    table.head()
    for row in (*OTHERS, *OURS):
        cells = [play(row, scene, calls, arguments.seed, strict=arguments.strict) for scene in SCENES]
        table.row(row.name, *map(words, cells))
    best = [best_seconds(scene("none", arguments.seed), calls) / HOUR for scene in SCENES]
    table.row("best possible", *(f"{hours:.2f}" for hours in best))
    took = time.perf_counter() - began
    made = f"{len(calls):,} calls, 8 keys, {WORKERS} workers, seed {arguments.seed}{', strict' * arguments.strict}"
    print(f"\n{made}" if arguments.markdown else f"\n{made}; {took:.0f} s with Python {platform.python_version()}")


if __name__ == "__main__":
    main()
