"""The variants of the provider matrix: eight dimensions, a pairwise cover of them, and what a seed draws."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentos.simulator.limiters import LimiterKind

DAY = 86_400.0
SLOTS = 64
# Virtual time begins some time of this day, 2026-03-02 UTC.
MIDNIGHT = 1_772_409_600.0
GEMINI_RESETS_AT = 8 * 3_600.0  # midnight in Los Angeles on that day, in UTC

WRONG = ("wrong-window", "stale-remaining", "other-reset")
CLASSES = ("exact", "too high", "unknown", "wrong headers")


@dataclass(frozen=True, slots=True)
class Variant:
    """One provider and what its user knows of it. The seed draws the amounts and phases."""

    algorithm: LimiterKind
    window: str
    headers: str
    knowledge: str
    rejections: str
    latency: str
    keys: str
    others: str
    seed: int = 0

    @property
    def name(self) -> str:
        return "/".join((*self.values.values(), str(self.seed)))

    @property
    def values(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in DIMENSIONS}

    @property
    def family(self) -> str:
        """Which targets apply."""
        return "wrong headers" if self.headers in WRONG else self.knowledge.replace("-", " ")


DIMENSIONS: dict[str, tuple[str, ...]] = {
    "algorithm": ("bucket", "fixed", "sliding", "gcra"),
    "window": ("1s", "10s", "60s", "day"),
    "headers": ("none", "retry-after", "openai", "anthropic", "gemini", "ietf", *WRONG),
    "knowledge": ("exact", "too-high", "unknown"),
    "rejections": ("free", "counted"),
    "latency": ("0.1s", "5s", "60s"),
    "keys": ("1", "8-own", "8-shared", "64-own", "64-shared"),
    "others": ("alone", "third"),
}
_SECONDS = {"1s": 1.0, "10s": 10.0, "60s": 60.0, "day": DAY, "0.1s": 0.1, "5s": 5.0}

# Forty answers of 60 s at one call a second and key are 150,000 calls: left out. Its pairs occur in other variants.
_TOO_MUCH = {"window": "1s", "latency": "60s", "keys": "64-own"}


def variant_from(name: str) -> Variant:
    values: dict[str, Any] = dict(zip((*DIMENSIONS, "seed"), name.split("/"), strict=True))
    return Variant(**{**values, "seed": int(values["seed"])})


# -- pairwise cover ---------------------------------------------------------------------------------------------------

Pair = tuple[tuple[str, str], tuple[str, str]]


def pairs_of(row: dict[str, str]) -> set[Pair]:
    return set(itertools.combinations(row.items(), 2))


def all_pairs() -> set[Pair]:
    return {
        ((one, left), (other, right))
        for one, other in itertools.combinations(DIMENSIONS, 2)
        for left in DIMENSIONS[one]
        for right in DIMENSIONS[other]
    }


def cover(seed: int, least: int = 50) -> list[Variant]:
    """Return variants in which each two values of two dimensions meet, by a greedy choice among random candidates.

    Below *least* more are drawn.
    """
    chance = random.Random(f"cover {seed}")
    missing = all_pairs()
    found: list[Variant] = []
    while missing or len(found) < least:
        fixed = dict(chance.choice(sorted(missing))) if missing else {}
        candidates = [row for row in (_draw(fixed, chance) for _ in range(40)) if not _TOO_MUCH.items() <= row.items()]
        best = max(candidates, key=lambda row: len(pairs_of(row) & missing))
        missing -= pairs_of(best)
        values: dict[str, Any] = best
        found.append(Variant(**values, seed=seed))
    return found


def _draw(fixed: dict[str, str], chance: random.Random) -> dict[str, str]:
    return {name: fixed.get(name) or chance.choice(values) for name, values in DIMENSIONS.items()}


def matrix(covers: int = 8) -> list[Variant]:
    """Return at least 400 variants: whole covers, as many with even seeds as with odd ones."""
    return [variant for seed in range(covers) for variant in cover(seed)]


def sample(count: int = 20, most_calls: int = 3_500) -> list[Variant]:
    """Return small variants of the tuning half for ``make test``: by turns of each class, with the most new pairs."""
    left = [variant for variant in matrix() if variant.seed % 2 == 0 and scene_of(variant).calls <= most_calls]
    missing = all_pairs()
    found: list[Variant] = []
    for number in range(count):
        family = CLASSES[number % len(CLASSES)]
        best = max(
            (variant for variant in left if variant.family == family),
            key=lambda variant: len(pairs_of(variant.values) & missing),
        )
        found.append(best)
        left.remove(best)
        missing -= pairs_of(best.values)
        if best.keys == "64-shared":  # one is enough: they take the longest
            left = [variant for variant in left if variant.keys != "64-shared"]
    return found


# -- what the seed draws ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QuotaScene:
    amount: int
    capacity: float
    phase: float  # seconds since the last reset of a fixed window
    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """A variant in numbers."""

    variant: Variant
    window: float
    latency: float
    quotas: tuple[QuotaScene, ...]
    calls: int
    wall: float  # epoch seconds at the instant 0
    polite: bool  # refusals in OpenAI's style carry retry-after as well
    known_host: bool  # the dialect is known by the address
    wrong_factor: float  # by how much a wrong window is wrong
    wrong_reset: float  # seconds: of the other limit; negative: it counts down a window of that length

    @property
    def key_count(self) -> int:
        return sum(len(quota.keys) for quota in self.quotas)

    def resets_at(self) -> str:
        """Return when a fixed window of a day begins, in UTC."""
        minutes = round((self.wall - self.quotas[0].phase) % DAY / 60) % 1440
        return f"{minutes // 60:02d}:{minutes % 60:02d}"


# Calls that a quota admits in all, roughly: with more quotas fewer each.
_CALLS_EACH = {"1": 1_500, "8-own": 800, "8-shared": 2_000, "64-own": 380, "64-shared": 1_500}
_MOST_CALLS = 40_000


def scene_of(variant: Variant) -> Scene:
    chance = random.Random(variant.name)
    window = _SECONDS[variant.window]
    latency = _SECONDS[variant.latency]
    # Long enough that what is lost at the start does not decide: windows, and answers one after the other.
    lasts = 2.5 * DAY if window == DAY else max(80 * window, 40 * latency)
    share = 2 / 3 if variant.others == "third" else 1.0
    count, _, sharing = variant.keys.partition("-")
    groups = _groups(int(count), own=sharing != "shared")
    step = 3 if variant.others == "third" else 1  # so that a third is a whole number
    typical = _CALLS_EACH[variant.keys] * chance.uniform(0.6, 1.6) * window / lasts
    unequal = len(groups) > 1 and chance.random() < 0.5
    # Windows admit whole numbers: of less than five, 20 % more would be the same.
    whole = variant.knowledge == "too-high" and variant.algorithm in ("fixed", "sliding")
    least = step * math.ceil((5 if whole else 2) / step)
    factors = [chance.uniform(0.5, 1.5) if unequal else 1.0 for _ in groups]
    amounts = [max(least, step * round(typical * factor / step)) for factor in factors]
    tightness = chance.choice((1.0, 0.5, 0.25, 0.1)) if variant.algorithm == "gcra" else 1.0
    wall = MIDNIGHT + 60.0 * chance.randrange(1440)
    resets_at = GEMINI_RESETS_AT if variant.headers == "gemini" else 0.0
    quotas = tuple(
        QuotaScene(
            amount,
            min(amount, max(3.0, float(round(amount * tightness)))),
            (wall - MIDNIGHT - resets_at) % DAY if window == DAY else chance.uniform(0, window),
            keys,
        )
        for amount, keys in zip(amounts, groups, strict=True)
    )
    admitted = sum(
        min(quota.amount * share * lasts / window, len(quota.keys) * SLOTS * lasts / latency) for quota in quotas
    )
    factor = 1 / 60 if window == DAY or (window == 60 and chance.random() < 0.5) else 60.0
    return Scene(
        variant,
        window,
        latency,
        quotas,
        min(_MOST_CALLS, math.ceil(admitted)),
        wall,
        polite=chance.random() < 0.5,
        known_host=chance.random() < 0.5,
        wrong_factor=factor,
        wrong_reset=chance.choice((chance.uniform(0.001, 0.05), -60 * window)),
    )


def _groups(count: int, *, own: bool) -> list[tuple[int, ...]]:
    return [(number,) for number in range(count)] if own else [tuple(range(count))]


def chosen(variants: Sequence[Variant], *, seeds: str, family: str | None, count: int | None) -> Iterator[Variant]:
    """Select by the parity of the seeds, by class, and *count* of these spread evenly."""
    kept = [
        variant
        for variant in variants
        if (seeds == "all" or variant.seed % 2 == (seeds == "odd")) and family in (None, variant.family)
    ]
    if count is None or count >= len(kept):
        yield from kept
    else:
        yield from (kept[number * len(kept) // count] for number in range(count))
