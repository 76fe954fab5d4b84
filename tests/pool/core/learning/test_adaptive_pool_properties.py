"""Random answers break no invariant, leave no request waiting for ever, and records keep the whole state."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentos import Limit
from agentos.pool.core.checked_pool import CheckedPool
from agentos.pool.core.cost import parse_used
from agentos.pool.core.learning.adaptive_concurrency import AdaptiveConcurrency
from agentos.pool.core.learning.adaptive_pool import AdaptivePool
from agentos.pool.core.learning.adaptive_rate import AdaptiveRate
from agentos.pool.core.learning.reported import ReportedLimit
from agentos.pool.core.limits.base import FOREVER
from agentos.pool.core.limits.calendar import WallTime
from agentos.pool.core.quota_codec import pack_quota, shift_record_epoch, unpack_quota
from agentos.pool.core.records import OUTAGE, Grant, KeySpec, Quota, Ticket
from agentos.pool.core.reservations import opens_at, reserve, starts_at
from agentos.pool.core.states import TicketState
from agentos.providers.signal import Event, Reading, Signal

from ..signals_for_pool import ask

MODELS = (None, "small", "large", "large-2024-08-06")
TOKENS = (None, 1.0, 8.0, 64.0)
LIMITS: tuple[tuple[Limit, ...], ...] = (
    (),
    (),
    (Limit("requests", 4, per=8),),
    (Limit("tokens", 64, per=16), Limit("requests", 8, per=4)),
    (Limit("requests", 4, per=8, model="small"),),
    (Limit("requests", 3, per=4, window="sliding"),),
)

readings = st.builds(
    Reading,
    st.sampled_from(["requests", "requests", "tokens", "output_tokens", "images"]),
    st.sampled_from([None, 0.0, 1.0, 4.0, 10.0, 60.0, 600.0]),
    st.sampled_from([None, 0.0, 0.0, 1.0, 3.0, 100.0]),
    st.sampled_from([None, 0.0, 0.5, 30.0, 3600.0]),
    st.sampled_from([None, None, 1.0, 60.0, 3600.0]),
    st.just("header"),
)
signals = st.builds(
    Signal,
    st.sampled_from([*Event, *[Event.LIMITED] * 8]),
    st.sampled_from([None, None, 0.0, 0.5, 2.0, 30.0, 61.0, 700.0]),
    readings=st.lists(readings, max_size=2).map(tuple),
    evidence=st.just(("because",)),
    provider=st.sampled_from("xy"),
    status=st.sampled_from([401, 403]),
    scoped=st.booleans(),
)
specs = st.tuples(
    st.sampled_from([1, 2, 5]), st.sampled_from([None, None, "q", "r"]), st.integers(0, len(LIMITS) - 1), st.booleans()
)
asks = st.builds(
    lambda tokens, model: ask(tokens=tokens, model=model), st.sampled_from(TOKENS), st.sampled_from(MODELS)
)
which = st.integers(0, 1000)

steps = st.one_of(
    st.tuples(st.just("take"), asks),
    st.tuples(st.just("wait"), asks),
    st.tuples(st.just("give_back"), which),
    st.tuples(st.just("give_back"), which),
    st.tuples(st.just("report"), which, st.booleans(), signals, st.booleans()),
    st.tuples(st.just("report"), which, st.just(True), signals, st.just(True)),
    st.tuples(st.just("doubt"), which),
    # Always the same: an estimate is made anew only now and then, and by whoever takes a record over at once.
    st.tuples(st.just("settle"), which, st.just(50.0)),
    st.tuples(st.just("withdraw"), which),
    st.tuples(st.just("clear"), which),
    st.tuples(st.just("revive"), which),
    st.tuples(st.just("retire"), which),
    st.tuples(st.just("add"), specs),
    st.tuples(st.just("pass_time"), st.sampled_from([0.25, 1.0, 5.0, 60.0, 3600.0])),
    st.tuples(st.just("pass_time"), st.sampled_from([0.25, 1.0, 5.0, 60.0])),
)


class Story:
    """A pool, and what happens to it. Holders and waiters are chosen by number."""

    def __init__(self, pool: AdaptivePool) -> None:
        self.pool = pool
        self.now = 0.0
        self.grants: list[Grant] = []
        self.tickets: list[Ticket] = []
        self.settled: set[int] = set()
        self.limits: dict[str, tuple[Limit, ...]] = {}

    def tell(self, step: tuple[Any, ...]) -> None:
        getattr(self, step[0])(*step[1:])
        self.grants += [ticket.grant for ticket in self.tickets if ticket.grant and ticket.grant not in self.grants]

    def _held(self) -> list[Grant]:
        return [grant for grant in self.grants if self.pool.leases.get(grant.token) is grant]

    def add(self, spec: tuple[int, str | None, int, bool]) -> None:
        slots, quota, limits, auto = spec
        if len(self.pool.keys) < 6:
            name = f"key-{len(self.pool.keys)}"
            stated = LIMITS[limits] if quota is None else self.limits.setdefault(quota, LIMITS[limits])
            self.pool.add(KeySpec(name, 1 if auto else slots, quota, stated, auto=auto), self.now)

    def take(self, wanted: Any) -> None:
        grant = self.pool.acquire(wanted, None, self.now)
        if grant is not None:
            self.grants.append(grant)

    def wait(self, wanted: Any) -> None:
        self.tickets.append(Ticket(wanted, f"waiter-{len(self.tickets)}"))
        self.pool.enqueue(self.tickets[-1], self.now)

    def give_back(self, number: int) -> None:
        self._with_one(self._held(), number, lambda grant: self.pool.release(grant, self.now))

    def report(self, number: int, held: bool, signal: Signal, sure: bool) -> None:
        """Of a lease in force; or of any, most of which have ended."""
        self._with_one(
            self._held() if held else self.grants,
            number,
            lambda grant: self.pool.report(grant, signal, self.now, sure=sure),
        )

    def doubt(self, number: int) -> None:
        self._with_one(self.grants, number, self.pool.mark_unknown_outcome)

    def settle(self, number: int, tokens: float) -> None:
        def settle(grant: Grant) -> None:
            self.settled.add(grant.token)
            self.pool.settle(grant, parse_used("used", {"tokens": tokens}), self.now)

        self._with_one([grant for grant in self._held() if grant.token not in self.settled], number, settle)

    def withdraw(self, number: int) -> None:
        self._with_one(self.tickets, number, lambda ticket: self.pool.withdraw(ticket, self.now))

    def clear(self, number: int) -> None:
        self._with_one(list(self.pool.keys.values()), number, lambda key: self.pool.clear(key, self.now))

    def revive(self, number: int) -> None:
        self._with_one(list(self.pool.keys.values()), number, lambda key: self.pool.revive(key, self.now))

    def retire(self, number: int) -> None:
        self._with_one(list(self.pool.keys.values()), number, lambda key: self.pool.retire(key, self.now))

    def pass_time(self, seconds: float) -> None:
        """Look whenever the pool wants to be asked, as its shell does."""
        target = self.now + seconds
        while self.pool.next_at <= target:
            self.now = max(self.now, self.pool.next_at)
            self.pool.tick(self.now)
            assert self.pool.next_at > self.now, "it wants to look again at once"
        self.now = target
        self.pool.tick(self.now)

    def end(self) -> None:
        """Everybody gives back what they get at once: then nobody waits for ever."""
        for _ in range(3000):
            for grant in list(self.pool.leases.values()):
                self.pool.release(grant, self.now)
            if self.pool.leases:
                continue
            if not any(ticket.state is TicketState.WAITING for ticket in self.tickets):
                return
            assert self.pool.next_at < FOREVER, "somebody waits for nothing"
            self.now = max(self.now, self.pool.next_at)
            self.pool.tick(self.now)
        raise AssertionError("somebody is never served")

    @staticmethod
    def _with_one(those: Sequence[Any], number: int, act: Callable[[Any], object]) -> None:
        if those:
            act(those[number % len(those)])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(specs, min_size=1, max_size=5), st.lists(steps, max_size=60), st.sampled_from([None, None, 32.0]))
def test_no_promise_is_broken_and_nobody_is_lost(
    credentials: list[Any], happenings: list[Any], max_lease: float | None
) -> None:
    story = Story(CheckedPool(max_lease=max_lease))
    for spec in credentials:
        story.add(spec)

    for step in happenings:
        story.tell(step)
    story.end()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(steps, steps), max_size=40))
def test_slots_are_never_below_one_or_above_sixty_four(happenings: list[Any]) -> None:
    story = Story(AdaptivePool())
    story.add((1, "q", 0, True))
    story.add((1, "q", 0, True))

    for step in happenings:
        story.tell(step)
        assert all(1 <= key.slots <= 64 for key in story.pool.keys.values())


# -- what a record holds ------------------------------------------------------------------------------------------


def kept(record: object) -> Any:
    """A record, as it comes back from a file."""
    return json.loads(json.dumps(record, allow_nan=False))


def decisions(quota: Quota, now: float) -> list[Any]:
    """All that the pool asks of a quota."""
    found: list[Any] = [
        quota.closed_until,
        quota.probation,
        quota.history,
        quota.concurrency and quota.concurrency.pack(),
    ]
    for model in MODELS:
        found.append(opens_at(quota, model, now))
        found += [starts_at(quota, ask(tokens=tokens, model=model), now) for tokens in TOKENS]
    found += [(state.limit, state.scope, state.left(now), state.learned) for state in quota.limits]
    return found


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, len(LIMITS) - 1), st.lists(steps, max_size=50), st.floats(0.5, 500.0))
def test_a_quota_taken_over_from_a_record_decides_as_the_original(
    limits: int, happenings: list[Any], later: float
) -> None:
    story = Story(AdaptivePool())
    story.now = 1000.0
    story.add((1, "q", limits, True))
    for step in happenings:
        story.tell(step)
    (original,) = [quota for (_, name), quota in story.pool.quotas.items() if name == "q"]
    original.blocks.pop(OUTAGE, None)  # no store keeps a pause for an outage
    original.end_probation([OUTAGE])
    copy = Quota("q", tuple(state.limit for state in original.stated), WallTime())
    copy.concurrency = AdaptiveConcurrency()

    record = kept(pack_quota(original))
    unpack_quota(copy, record)

    assert kept(pack_quota(copy)) == record
    for now in (story.now, story.now + later):
        assert decisions(copy, now) == decisions(original, now)
    for tokens, model in ((8.0, "small"), (None, None), (64.0, "large")):
        wanted, now = ask(tokens=tokens, model=model), story.now + later
        ours, theirs = reserve(original, wanted, now), reserve(copy, wanted, now)
        assert (ours is None) == (theirs is None)
        assert [draw[1:] for draw in ours or ()] == [draw[1:] for draw in theirs or ()]
    assert kept(pack_quota(copy)) == kept(pack_quota(original))


def test_a_record_keeps_since_when_one_tries_whether_a_long_rest_is_over() -> None:
    cases: list[dict[str | None, float]] = [
        {},
        {None: -FOREVER},
        {None: 0.0},
        {"large": 0.5},
        {None: 100.0, "large": -FOREVER, "small": 7.0},
    ]
    for probation in cases:
        quota, copy = Quota("q", (), WallTime()), Quota("q", (), WallTime())
        quota.begin_probation(probation)

        unpack_quota(copy, kept(pack_quota(quota)))

        assert copy.probation == probation
        assert copy.open_wide == (not probation)


def test_who_tried_whether_a_long_rest_is_over_on_another_clock_is_gone() -> None:
    quota, copy = Quota("q", (), WallTime()), Quota("q", (), WallTime())
    quota.begin_probation({None: 100.0, "large": -FOREVER})

    unpack_quota(copy, shift_record_epoch(kept(pack_quota(quota)), 50.0))

    assert copy.probation == {None: -FOREVER, "large": -FOREVER}


def test_an_answer_to_a_call_of_before_is_still_an_older_one_on_another_clock() -> None:
    quota, copy = Quota("q", (), WallTime()), Quota("q", (), WallTime())
    told = ReportedLimit("requests", None, 8.0, 64.0)
    told.apply_reading(8.0, remaining=4.0, resets_in=32.0, hint=None, started_at=100.0, stamp=None)
    quota.learn("told", told)

    unpack_quota(copy, shift_record_epoch(kept(pack_quota(quota)), 50.0))

    other = copy.learned["told"]
    assert isinstance(other, ReportedLimit)
    assert (other.heard_at, other.empty_at) == (150.0, told.empty_at + 50.0)


@pytest.mark.parametrize(("at", "overflowed"), [(109.0, False), (109.5, True)])
def test_since_when_nobody_asked_is_the_same_on_another_clock(at: float, overflowed: bool) -> None:
    quota, copy = Quota("q", (), WallTime()), Quota("q", (), WallTime())
    pace = AdaptiveRate(None, 100.0, lag=0.25)
    quota.learn("pace", pace)
    pace.take(1.0, 101.0)
    pace.hold_until(104.0)

    unpack_quota(copy, shift_record_epoch(kept(pack_quota(quota)), 50.0))
    other = copy.learned["pace"]
    assert isinstance(other, AdaptiveRate)
    pace.take(1.0, at)
    other.take(1.0, at + 50.0)

    assert (other.took_at, other.resting_until, other.lag) == (at + 50.0, 154.0, 0.25)
    assert other.overflowed is pace.overflowed is overflowed


def test_that_some_was_lost_is_known_on_another_clock() -> None:
    quota, copy = Quota("q", (), WallTime()), Quota("q", (), WallTime())
    pace = AdaptiveRate(None, 100.0)
    quota.learn("pace", pace)
    pace.take(1.0, 200.0)

    unpack_quota(copy, shift_record_epoch(kept(pack_quota(quota)), 50.0))

    other = copy.learned["pace"]
    assert isinstance(other, AdaptiveRate)
    assert other.overflowed


def test_the_last_start_is_as_long_ago_on_another_clock() -> None:
    quota, copy = Quota("q", (), WallTime()), Quota("q", (), WallTime())
    pace = AdaptiveRate(None, 100.0)
    quota.learn("pace", pace)
    pace.take(1.0, 101.0)

    unpack_quota(copy, shift_record_epoch(kept(pack_quota(quota)), -50.0))

    other = copy.learned["pace"]
    assert isinstance(other, AdaptiveRate)
    assert other.took_at == 51.0


def test_what_was_learned_and_forgotten_since_does_not_come_back_from_the_record() -> None:
    quota, fresh = Quota("q", (), WallTime()), Quota("q", (), WallTime())
    quota.learn("told", ReportedLimit("requests", None, 8.0, 64.0))
    quota.add_history(1.0, "a lesson")
    record = kept(pack_quota(quota))

    assert pack_quota(fresh, record) == {}
    unpack_quota(quota, kept(pack_quota(fresh, record)))
    assert (quota.learned, quota.limits, quota.history) == ({}, (), [])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=40), st.sampled_from([-512.0, 4096.0]))
def test_a_record_of_another_clock_says_the_same_at_the_same_moment(happenings: list[Any], by: float) -> None:
    story = Story(AdaptivePool())
    story.now = 1024.0
    story.add((1, "q", 0, True))
    for step in happenings:
        story.tell(step)
    (original,) = [quota for (_, name), quota in story.pool.quotas.items() if name == "q"]
    copy = Quota("q", (), WallTime())
    copy.concurrency = AdaptiveConcurrency()

    unpack_quota(copy, shift_record_epoch(kept(pack_quota(original)), by))

    assert [(at - by, what) for at, what in copy.history] == original.history
    for state, other in zip(original.limits, copy.limits, strict=True):
        assert abs(other.left(story.now + by) - state.left(story.now)) < 1e-6
    for scope, block in original.blocks.items():
        assert copy.blocks[scope].until == block.until + by
        assert copy.blocks[scope].probe == block.probe
    assert set(copy.probation) == set(original.probation)
