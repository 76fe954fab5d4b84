"""Convert between waiting callers and the claims and wishes that processes publish in the store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ...pool.core.candidate_index import CandidateIndex
from ...pool.core.limits.base import FOREVER, ROUNDING, LimitState
from ...pool.core.quota_codec import named_limits, pack_claim, unpack_claim
from ...pool.core.records import Key, LeaseRequest, Quota, Ticket
from ...pool.core.reservations import compute_draws
from ...pool.core.states import Life

NAMED = 100  # a process that waits for more credentials than this waits for any

# When a process ahead will start, and what it will take of which limits.
ForeignClaim = tuple[float, list[tuple[LimitState, float]]]
Numbers = Mapping[Key, tuple[int, int]]  # store numbers of the credential and of its quota


def parse_claims(number: int, quota: Quota, claims: Sequence[str], now: float) -> list[ForeignClaim]:
    """Return the claims on this quota in the core's terms."""
    found = []
    for text in claims:
        claimed, at, amounts = unpack_claim(text)
        if claimed == number and at > now:
            found.append((at, [(state, amounts[name]) for name, state in named_limits(quota) if name in amounts]))
    return found


def start_after_claims(claims: Collection[ForeignClaim], key: Key, request: LeaseRequest, now: float) -> float:
    """Return when *request* may start on *key* without delaying a process that is ahead."""
    draws = {state: amount for state, amount, _ in compute_draws(key.quota, request)}
    for until, amounts in claims:
        if until > now and any(
            state.ready_at(amount, now, draws.get(state, 0.0)) > until + ROUNDING for state, amount in amounts
        ):
            return until
    return now


def build_claim(indexes: Sequence[CandidateIndex], numbers: Numbers, now: float) -> str | None:
    """Return the refill that the first waiter here needs, encoded; processes behind it must not delay it."""
    heads = [head for index in indexes if (head := index.waiting.head()) is not None]
    head = min(heads, key=Ticket.rank)
    key = head.planned
    if key is None or not now < head.starts_at < FOREVER or key.quota.closed_for(head.request.model) > now:
        return None
    draws = {state: amount for state, amount, _ in compute_draws(key.quota, head.request)}
    if not draws or any(not state.refills and state.ready_at(need, now) > now for state, need in draws.items()):
        return None
    amounts = {name: draws[state] for name, state in named_limits(key.quota) if state in draws}
    return pack_claim(numbers[key][1], head.starts_at, amounts)


def find_idle_until(
    indexes: Sequence[CandidateIndex],
    keys: Collection[Key],
    starts_at: Callable[[Key, LeaseRequest, float], float],
    now: float,
) -> float | None:
    """Return the instant before which no waiter could start even with all slots free; None: one may start any time."""
    first = FOREVER
    for index in indexes:
        head = index.waiting.head()
        if head is None:
            continue
        for key in keys:
            if key.could_serve(head.request.labels, head.request.model):
                first = min(first, starts_at(key, head.request, now))
                if first <= now:
                    return None
    return first if first < FOREVER else None


def wanted_numbers(indexes: Sequence[CandidateIndex], numbers: Numbers) -> tuple[int, ...] | None:
    """Return the store's numbers of the credentials that would serve a waiter; None: any.

    One that only others may have more leases on is not wanted: they need not wait for this process.
    """
    if len(numbers) > NAMED:
        return None
    labels = {index.labels for index in indexes if index.waiting}
    return tuple(
        number
        for key, (number, _) in numbers.items()
        if key.life is Life.ALIVE
        and any(wanted <= key.labels for wanted in labels)
        and not (key.slots_elsewhere and key.is_full_for_us_only())
    )
