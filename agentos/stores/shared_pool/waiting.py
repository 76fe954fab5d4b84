"""Waiting where other processes wait, too: what they claim of a quota, what we claim, and for what we wait."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ...pool.core.candidate_index import CandidateIndex
from ...pool.core.limits.base import FOREVER, ROUNDING, LimitState
from ...pool.core.quota_codec import named_limits, pack_claim, unpack_claim
from ...pool.core.records import Key, LeaseRequest, Quota, Ticket
from ...pool.core.reservations import compute_draws
from ...pool.core.states import Life

NAMED = 100  # a process that waits for more credentials than these just says: any

# When a process ahead will start, and what it takes of which limits then.
ForeignClaim = tuple[float, list[tuple[LimitState, float]]]
Numbers = Mapping[Key, tuple[int, int]]  # the store's numbers: of the credential, of its quota


def claims_on(number: int, quota: Quota, claims: Sequence[str], now: float) -> list[ForeignClaim]:
    """The claims on this quota, as the core can use them."""
    found = []
    for text in claims:
        claimed, at, amounts = unpack_claim(text)
        if claimed == number and at > now:
            found.append((at, [(state, amounts[name]) for name, state in named_limits(quota) if name in amounts]))
    return found


def put_off_until(claims: Collection[ForeignClaim], key: Key, ask: LeaseRequest, now: float) -> float:
    """When *ask* may start on *key*, if starting now would put off a process that is ahead; else now."""
    draws = {state: amount for state, amount, _ in compute_draws(key.quota, ask)}
    for until, amounts in claims:
        if until > now and any(
            state.ready_at(amount, now, draws.get(state, 0.0)) > until + ROUNDING for state, amount in amounts
        ):
            return until
    return now


def own_claim(lanes: Sequence[CandidateIndex], numbers: Numbers, now: float) -> str | None:
    """The refill that the first in line here waits for: others who are behind must not put it off."""
    heads = [head for lane in lanes if (head := lane.waiting.head()) is not None]
    head = min(heads, key=Ticket.rank)
    key = head.planned
    if key is None or not now < head.starts_at < FOREVER or key.quota.closed_for(head.request.model) > now:
        return None
    draws = {state: amount for state, amount, _ in compute_draws(key.quota, head.request)}
    if not draws or any(not state.refills and state.ready_at(need, now) > now for state, need in draws.items()):
        return None
    amounts = {name: draws[state] for name, state in named_limits(key.quota) if state in draws}
    return pack_claim(numbers[key][1], head.starts_at, amounts)


def idle_until(
    lanes: Sequence[CandidateIndex],
    keys: Collection[Key],
    starts_at: Callable[[Key, LeaseRequest, float], float],
    now: float,
) -> float | None:
    """The instant before which nobody here could start, were every slot free; None: somebody might, at any time."""
    first = FOREVER
    for lane in lanes:
        head = lane.waiting.head()
        if head is None:
            continue
        for key in keys:
            if key.could_serve(head.request.labels, head.request.model):
                first = min(first, starts_at(key, head.request, now))
                if first <= now:
                    return None
    return first if first < FOREVER else None


def wanted_numbers(lanes: Sequence[CandidateIndex], numbers: Numbers) -> tuple[int, ...]:
    """The credentials that would do for somebody who waits, by the store's numbers; empty: any."""
    if len(numbers) > NAMED:
        return ()
    labels = {lane.labels for lane in lanes if lane.waiting}
    return tuple(
        number
        for key, (number, _) in numbers.items()
        if key.life is Life.ALIVE and any(wanted <= key.labels for wanted in labels)
    )
