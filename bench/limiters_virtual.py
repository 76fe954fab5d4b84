"""The limiters of ``bench/limiters.py`` as models, in virtual time: ``python bench/limiters_virtual.py``.

Over real HTTP a busy machine decides as much as the pool does. Here the core of the pool meets what these limiters were
seen to do, and nothing else: the same every time, in seconds.

- express-rate-limit: a window begins with a key's first call after the last one ended; headers describe the moment at
  which a call arrives, with whole seconds, rounded up.
- slowapi: the same windows; headers describe the moment of the answer, and the reset is a second late.
- nginx: ``burst + 1`` calls at once, then ``rate`` a second; no headers.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from drain_scenarios import KEYS, PARALLEL
from limiters import CASES, SECONDS, Case, case
from matrix_clients import PoolKit, describe, present_kit

WALL = 1_800_000_000.25
TRAVEL = 0.004  # seconds until a call arrives, at most
REFUSAL_TIME = 0.002
LONGEST = 10  # times the least time; who is not done then is stopped


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str


class WindowModel:
    """One key at express-rate-limit or slowapi."""

    def __init__(self, drawn: Case) -> None:
        self._plan = drawn.server
        self._ends_at = -math.inf
        self._used = 0

    def arrive(self, now: float) -> bool:
        if now >= self._ends_at:
            self._ends_at, self._used = now + self._plan.window, 0
        self._used += 1
        return self._used <= self._plan.limit

    def headers(self, now: float, *, refused: bool) -> dict[str, str]:
        limit, window = self._plan.limit, self._plan.window
        open_now = now < self._ends_at
        remaining, rest = (max(0, limit - self._used), self._ends_at - now) if open_now else (limit, 0.0)
        if self._plan.kind == "slowapi":
            return {
                "x-ratelimit-limit": f"{limit}",
                "x-ratelimit-remaining": f"{remaining}",
                "x-ratelimit-reset": f"{WALL + now + rest + 1}",
                "retry-after": f"{int(rest + 1 - 1e-6)}",
            }
        reset = math.ceil(rest - 1e-6)
        found = {"retry-after": f"{reset}"} if refused else {}
        if self._plan.style == "draft-8":
            name = f'"{limit}-in-{window:g}sec"'
            return {
                **found,
                "ratelimit": f"{name}; r={remaining}; t={reset}",
                "ratelimit-policy": f"{name}; q={limit}; w={window:g}; pk=:NDlhYTEyYmI1MDNi:",
            }
        found["ratelimit-policy"] = f"{limit};w={window:g}"
        if self._plan.style == "draft-7":
            return {**found, "ratelimit": f"limit={limit}, remaining={remaining}, reset={reset}"}
        parts = {"limit": limit, "remaining": remaining, "reset": reset}
        return {**found, **{f"ratelimit-{part}": f"{value}" for part, value in parts.items()}}


class BucketModel:
    """One key at nginx."""

    def __init__(self, drawn: Case) -> None:
        self._plan = drawn.server
        self._excess, self._last = 0.0, -math.inf

    def arrive(self, now: float) -> bool:
        excess = max(0.0, self._excess - self._plan.limit * (now - self._last) + 1.0)
        if excess > self._plan.burst:
            return False
        self._excess, self._last = excess, now
        return True

    def headers(self, now: float, *, refused: bool) -> dict[str, str]:
        return {}


class VirtualRun:
    """The core of the pool, driven through one case."""

    def __init__(self, drawn: Case, kit: PoolKit, *, shown: str | None = None) -> None:
        self._drawn, self._kit, self._shown = drawn, kit, shown
        self._pool = kit.pool(wall_offset=WALL)
        names = [f"key-{number}" for number in range(1, KEYS + 1)]
        stated = (kit.limit("requests", drawn.per_minute, burst=float(drawn.at_once)),) if drawn.known else ()
        for name in names:
            self._pool.add(kit.key_spec(name, 1, f"quota of {name}", stated, auto=True), 0.0)
        model = BucketModel if drawn.server.kind == "nginx" else WindowModel
        self._models = {name: model(drawn) for name in names}
        self._chance = random.Random(drawn.shown)
        self._latencies: Iterator[float] = iter(drawn.server.latencies)
        self._numbers = itertools.count()
        self._agenda: list[tuple[float, int, str, Any, Any]] = []
        self._waiting: set[Any] = set()
        self._begun = self._done = self.refused = 0
        self.seconds = 0.0

    def run(self) -> bool:
        """Do all calls. Returns False if it took too long."""
        now, until = 0.0, LONGEST * self._drawn.bound
        while self._done < self._drawn.calls and now <= until:
            self._start(now)
            due = self._pool.next_at
            if due <= until and (not self._agenda or due < self._agenda[0][0]):
                now = max(now, due)
                continue
            if not self._agenda:
                break
            now, _, step, grant, answer = heapq.heappop(self._agenda)
            getattr(self, f"_{step}")(grant, answer, now)
        self.seconds = now
        return self._done == self._drawn.calls

    def _start(self, now: float) -> None:
        self._granted(self._pool.tick(now), now)
        while self._begun + len(self._waiting) < min(self._drawn.calls, self._done + PARALLEL):
            ticket = self._kit.ticket(self._kit.request(), None)
            self._waiting.add(ticket)
            self._granted(self._pool.enqueue(ticket, now), now)

    def _granted(self, tickets: Sequence[Any], now: float) -> None:
        for ticket in tickets:
            if ticket in self._waiting:
                self._waiting.discard(ticket)
                self._begun += 1
                self._push(now + self._chance.uniform(0.0, TRAVEL), "arrive", ticket.grant, None)

    def _push(self, at: float, step: str, grant: Any, answer: Any) -> None:
        heapq.heappush(self._agenda, (at, next(self._numbers), step, grant, answer))

    def _arrive(self, grant: Any, _: Any, now: float) -> None:
        model = self._models[grant.key.name]
        if not model.arrive(now):
            answer = Answer(429, model.headers(now, refused=True), "Too many requests, please try again later.")
            self._push(now + REFUSAL_TIME, "end", grant, answer)
            return
        # slowapi writes its headers when the answer is sent
        headers = None if self._drawn.server.kind == "slowapi" else model.headers(now, refused=False)
        self._push(now + next(self._latencies), "end", grant, headers)

    def _end(self, grant: Any, answer: Any, now: float) -> None:
        if not isinstance(answer, Answer):
            headers = self._models[grant.key.name].headers(now, refused=False) if answer is None else answer
            answer = Answer(200, headers, "")
        if answer.status == 200:
            self._done += 1
        else:
            self.refused += 1
            self._begun -= 1
        signal = self._kit.classify(answer.status, answer.headers, answer.body or None, now=WALL + now)
        told = self._pool.report(grant, signal, now)
        if told is not None:
            self._granted(self._kit.waken(told), now)
        self._granted(self._pool.release(grant, now) or (), now)
        if grant.key.name == self._shown:
            limits = f"{grant.key.quota.learned_slots} slots; {'; '.join(map(describe, grant.key.quota.limits))}"
            said = " ".join(answer.headers.values())
            print(f"    sent {grant.granted_at:.3f} answered {now:.3f}: {answer.status} {said}  {limits}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Let the core of the pool drain models of real limiters.")
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES), metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"about the least; {SECONDS:g} unless told")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3, help="each on a seed of its own; 3 unless told")
    parser.add_argument("--show", metavar="KEY", help="print each answer of that key, such as key-1")
    arguments = parser.parse_args()
    print(f"{'':<28}{'efficiency':>12}{'rejected/ok':>13}{'least':>9}{'seconds':>9}")
    for name in arguments.case:
        for known in (False, True):
            for seed in range(arguments.seed, arguments.seed + arguments.repeats):
                drawn = case(name, seed, arguments.seconds, known=known)
                run = VirtualRun(drawn, present_kit(), shown=arguments.show)
                mark = "" if run.run() else "  STOPPED"
                efficiency, rejected = drawn.bound / run.seconds, run.refused / drawn.calls
                print(
                    f"{drawn.shown:<28}{efficiency:>12.3f}{rejected:>13.4f}{drawn.bound:>9.2f}{run.seconds:>9.2f}{mark}"
                )


if __name__ == "__main__":
    main()
