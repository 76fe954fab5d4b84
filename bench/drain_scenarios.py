"""What is drained: providers, each drawn from a seed, with what a client is told of them and what is asked of us.

A scenario has as many calls as its provider can answer in about ``seconds``, so that the lower bound is about that.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agentos.simulator import KeyPlan, Latency, ProviderPlan, QuotaPlan, equal_keys, lower_bound, simulated_key
from agentos.simulator.plan import MINUTE, Dialect, QuotaOptions

KEYS = 8
PARALLEL = 512  # calls under way at most, for every contender: enough never to bind
LATENCY = Latency(median=0.3, sigma=0.3, least=0.15)
TWO_SECONDS = Latency(median=2.0, sigma=0.0)
REJECTION_LATENCY = 0.02
FAST_BURST = 2.0  # seconds' worth, where there are 800 calls a second


@dataclass(frozen=True)
class Targets:
    """What is asked of agentos; None: not in this scenario.

    A short scenario is judged by *share*, of the efficiency that aiolimiter has in the same run where limits are
    stated, else of that of exact pacing: what the last calls take is then a good part of the whole.
    """

    efficiency: float  # at least, in 60 s
    rejected: float  # per success, at most
    share: float = 0.95  # at least, in less than 60 s
    cpu: float = 1.0  # seconds per 1,000 items with the light client, at most
    useless: int | None = None  # calls to a dead or spent key, at most, each
    after_restart: int | None = None  # rejected calls of a key after the restart, at most


STATED = Targets(0.985, 0.01, share=0.99)
UNKNOWN = Targets(0.98, 0.05)
COUNTED = Targets(0.95, 0.05, share=0.88)


@dataclass(frozen=True)
class Scenario:
    """One provider, the work, and what contenders know of it.

    ``known``: the limits are stated to those who can be told. ``exclusive``: each key is for one call at a time, and
    that is known. ``restart``: the client is killed at half time and begins again.
    """

    name: str
    title: str
    plan: ProviderPlan
    calls: int
    targets: Targets
    seconds: float  # about what the lower bound is
    known: bool = False
    exclusive: bool = False
    restart: bool = False
    parallel: int = PARALLEL
    client: str = "light"  # of all contenders but LiteLLM

    @property
    def useless_keys(self) -> tuple[str, ...]:
        """The keys that never answer: dead, or of a spent quota."""
        spent = {quota.name for quota in self.plan.quotas if quota.spent}
        return tuple(key.name for key in self.plan.keys if key.dead or key.quota in spent)

    @property
    def limits(self) -> dict[str, tuple[float, float]]:
        """Requests a minute and at once, by quota, where there is a limit."""
        return {quota.name: (quota.rpm, quota.requests_at_once) for quota in self.plan.quotas if quota.rpm is not None}


def _plan(quotas: Sequence[QuotaPlan], keys: Sequence[KeyPlan], dialect: Dialect, seed: int) -> ProviderPlan:
    return ProviderPlan(
        tuple(quotas),
        tuple(keys),
        latency=LATENCY,
        dialect=dialect,
        rejection_latency=REJECTION_LATENCY,
        seed=seed,
    )


def _burst(rpm: float, seconds: float) -> float | None:
    """A minute's worth at once, as providers do; of a shorter scenario its own length, else there were only a burst."""
    return None if seconds >= MINUTE else max(1.0, rpm / MINUTE * seconds)


def _own_quotas(rates: Sequence[float], dialect: Dialect, seed: int, seconds: float) -> ProviderPlan:
    """Each key in a quota of its own, with these rates."""
    quotas = [
        QuotaPlan(f"quota-{number}", rpm=rpm, request_burst=_burst(rpm, seconds)) for number, rpm in enumerate(rates, 1)
    ]
    keys = [KeyPlan(simulated_key(f"key-{number}"), f"quota-{number}") for number in range(1, len(rates) + 1)]
    return _plan(quotas, keys, dialect, seed)


def _unequal(luck: random.Random) -> list[float]:
    """From 30 to 3,000 a minute, one rate in each eighth of that range (by ratio), in any order."""
    rates = [float(round(30 * 100 ** ((place + luck.random()) / KEYS))) for place in range(KEYS)]
    luck.shuffle(rates)
    return rates


def _equal_rate(luck: random.Random) -> float:
    return float(round(luck.uniform(300, 700)))


def equal_known(luck: random.Random, seed: int, seconds: float) -> Scenario:
    rate = _equal_rate(luck)
    plan = _own_quotas([rate] * KEYS, "retry-after", seed, seconds)
    title = f"{KEYS} equal keys of {rate:,.0f} rpm, limits known"
    return _sized("equal", title, plan, STATED, seconds, known=True)


def unequal_retry_after(luck: random.Random, seed: int, seconds: float) -> Scenario:
    rates = _unequal(luck)
    plan = _own_quotas(rates, "retry-after", seed, seconds)
    return _sized("unequal", f"{_shown(rates)}, unknown, Retry-After only", plan, Targets(0.985, 0.05), seconds)


def unequal_silent(luck: random.Random, seed: int, seconds: float) -> Scenario:
    rates = _unequal(luck)
    plan = _own_quotas(rates, "none", seed, seconds)
    return _sized("silent", f"{_shown(rates)}, unknown, no headers", plan, Targets(0.985, 0.05), seconds)


def dead_and_spent(luck: random.Random, seed: int, seconds: float) -> Scenario:
    rates = [_equal_rate(luck) for _ in range(KEYS)]
    plan = _with_useless_keys(_own_quotas(rates, "full", seed, seconds), luck)
    title = f"{_shown(rates)}, unknown, full headers, one key dead, one spent"
    return _sized("dead", title, plan, Targets(0.985, 0.01, useless=2), seconds)


def _with_useless_keys(plan: ProviderPlan, luck: random.Random) -> ProviderPlan:
    """The same with one key dead and another one's quota spent."""
    dead, spent = luck.sample(range(KEYS), 2)
    keys = [replace(key, dead=place == dead) for place, key in enumerate(plan.keys)]
    quotas = [replace(quota, spent=place == spent) for place, quota in enumerate(plan.quotas)]
    return replace(plan, keys=tuple(keys), quotas=tuple(quotas))


def exclusive(luck: random.Random, seed: int, seconds: float) -> Scenario:
    plan = equal_keys(
        KEYS, concurrency=1, latency=LATENCY, dialect="none", rejection_latency=REJECTION_LATENCY, seed=seed
    )
    title = f"{KEYS} exclusive keys: one call at a time"
    return _sized("exclusive", title, plan, Targets(0.98, 0.01), seconds, exclusive=True, parallel=KEYS)


def three_organisations(luck: random.Random, seed: int, seconds: float) -> Scenario:
    sizes = {"acme": 4, "beta": 2, "gamma": 2}
    rates = {name: _equal_rate(luck) * 2 for name in sizes}
    quotas = [QuotaPlan(name, rpm=rpm, request_burst=_burst(rpm, seconds)) for name, rpm in rates.items()]
    keys = [
        KeyPlan(simulated_key(f"{name}-{number}"), name, name=f"{name}-{number}")
        for name, size in sizes.items()
        for number in range(1, size + 1)
    ]
    plan = _plan(quotas, keys, "retry-after", seed)
    title = f"{KEYS} keys in 3 organisations, {_shown(list(rates.values()))}, limits known"
    return _sized("organisations", title, plan, STATED, seconds, known=True)


def rejections_count(luck: random.Random, seed: int, seconds: float) -> Scenario:
    rates = [_equal_rate(luck) for _ in range(KEYS)]
    plan = replace(_own_quotas(rates, "retry-after", seed, seconds), count_rejections=True, error_rate=0.02)
    title = f"{_shown(rates)}, unknown, Retry-After only, rejected calls count, 2 % fail"
    return _sized("counted", title, plan, COUNTED, seconds)


def restart(luck: random.Random, seed: int, seconds: float) -> Scenario:
    rates = [_equal_rate(luck) for _ in range(KEYS)]
    plan = _own_quotas(rates, "retry-after", seed, seconds)
    title = f"{_shown(rates)}, unknown, Retry-After only, killed at half time and started again"
    return _sized("restart", title, plan, Targets(0.98, 0.05, after_restart=1), seconds, restart=True)


def fast(luck: random.Random, seed: int, seconds: float) -> Scenario:
    shares = [luck.uniform(0.8, 1.2) for _ in range(KEYS)]
    rates = [float(round(800 * MINUTE * share / sum(shares))) for share in shares]
    quotas = [
        QuotaPlan(f"quota-{number}", rpm=rpm, request_burst=rpm / MINUTE * FAST_BURST)
        for number, rpm in enumerate(rates, 1)
    ]
    keys = [KeyPlan(simulated_key(f"key-{number}"), f"quota-{number}") for number in range(1, KEYS + 1)]
    plan = _plan(quotas, keys, "retry-after", seed)
    title = f"800 calls/s over {KEYS} keys, bursts of {FAST_BURST:g} s, limits known"
    return _sized("fast", title, plan, Targets(0.97, 0.01, share=0.99, cpu=0.6), seconds, known=True)


@dataclass(frozen=True)
class Windowed:
    """Equal keys whose limit is counted, and stated in headers, in a window of seconds; known if the targets say so."""

    title: str
    targets: Targets
    limits: QuotaOptions
    dialect: Dialect = "compatible"
    latency: Latency = LATENCY
    useless: bool = False  # one key is dead, and one quota spent
    halved: bool = False  # the limits are, at half time
    counted: bool = False  # rejected calls count, and 2 % fail
    client: str = "httpx2"  # its jitter is what the edge of a small bucket meets with; too slow for many calls at once

    def draw(self, name: str, luck: random.Random, seed: int, seconds: float) -> Scenario:
        limits = self.limits
        if self.halved:
            limits = QuotaOptions(**limits, changes_at=seconds / 2)
        plan = equal_keys(KEYS, dialect=self.dialect, rejection_latency=REJECTION_LATENCY, seed=seed, **limits)
        plan = replace(plan, latency=self.latency)
        if self.counted:
            plan = replace(plan, count_rejections=True, error_rate=0.02)
        if self.useless:
            plan = _with_useless_keys(plan, luck)
        title = f"{KEYS} keys of {self.title}"
        found = _sized(name, title, plan, self.targets, seconds, known=self.targets == STATED)
        return replace(found, client=self.client)


WINDOWED = {
    "second": Windowed("600 rpm, 10 at once, known, OpenAI's header names", STATED, {"rpm": 600, "window": 1}),
    "second-dead": Windowed(
        "600 rpm, 10 at once, known, OpenAI's header names, one key dead, one spent",
        STATED,
        {"rpm": 600, "window": 1},
        useless=True,
    ),
    "second-fast": Windowed(
        "6,000 rpm, 100 at once, known, OpenAI's header names", STATED, {"rpm": 6_000, "window": 1}, client="light"
    ),
    "second-slow": Windowed(
        "60 rpm, 5 at once, known, OpenAI's header names, answers of 2 s",
        STATED,
        {"rpm": 60, "window": 5},
        latency=TWO_SECONDS,
    ),
    "second-silent": Windowed("600 rpm, 10 at once, known, no headers", STATED, {"rpm": 600, "window": 1}, "none"),
    "second-counted": Windowed(
        "600 rpm, 10 at once, unknown, Retry-After only, rejected calls count, 2 % fail",
        COUNTED,
        {"rpm": 600, "window": 1},
        "retry-after",
        counted=True,
    ),
    "halved": Windowed(
        "600 rpm, 10 at once, unknown, Retry-After only, halved at half time",
        UNKNOWN,
        {"rpm": 600, "window": 1},
        "retry-after",
        halved=True,
    ),
    "fixed": Windowed(
        "25 in each 5 s, unknown, OpenAI's headers",
        UNKNOWN,
        {"rpm": 300, "window": 5, "refill": "fixed"},
        "full",
        client="light",
    ),
    "fixed-plain": Windowed(
        "25 in each 5 s, unknown, X-RateLimit headers",
        UNKNOWN,
        {"rpm": 300, "window": 5, "refill": "fixed"},
        "x-ratelimit",
        client="light",
    ),
    "fixed-ietf": Windowed(
        "40 in each 4 s, unknown, RateLimit fields",
        UNKNOWN,
        {"rpm": 600, "window": 4, "refill": "fixed"},
        "ietf",
        client="light",
    ),
}


def _shown(rates: Sequence[float]) -> str:
    return f"{len(rates)} of {min(rates):,.0f} to {max(rates):,.0f} rpm"


def _sized(
    name: str,
    title: str,
    plan: ProviderPlan,
    targets: Targets,
    seconds: float,
    *,
    known: bool = False,
    exclusive: bool = False,
    restart: bool = False,
    parallel: int = PARALLEL,
) -> Scenario:
    """The scenario with as many calls as can be answered in *seconds*, by the bound itself."""
    low, high = 1, 2
    while lower_bound(plan, high, parallel=parallel).seconds <= seconds:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if lower_bound(plan, middle, parallel=parallel).seconds <= seconds:
            low = middle
        else:
            high = middle
    found = Scenario(name, title, plan, low, targets, seconds, known, exclusive, restart, parallel)
    bound = lower_bound(plan, low, parallel=parallel)
    # Of exclusive keys there are as many as calls at once, so that either may be said to bind.
    if not math.isfinite(bound.seconds) or (bound.binding == "parallelism" and not exclusive):
        raise ValueError(f"{name}: bound by {bound.binding}, which is not what it is about")
    return found


SCENARIOS: dict[str, Callable[[random.Random, int, float], Scenario]] = {
    "equal": equal_known,
    "unequal": unequal_retry_after,
    "silent": unequal_silent,
    "dead": dead_and_spent,
    "exclusive": exclusive,
    "organisations": three_organisations,
    "counted": rejections_count,
    "restart": restart,
    "fast": fast,
    **{name: functools.partial(each.draw, name) for name, each in WINDOWED.items()},
}


def scenario(name: str, seed: int, seconds: float) -> Scenario:
    """The scenario of that name as *seed* draws it. Another scenario of the same seed has other rates."""
    return SCENARIOS[name](random.Random(f"{seed}/{name}"), seed, seconds)
