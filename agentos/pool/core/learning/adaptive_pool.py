"""A pool that reacts to provider answers; docs/limits.md has the table, ``quota_feedback`` the rules for one quota."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....providers.signal import GENERIC_PROVIDERS, GRAVE_EVENTS, PARKED_FROM, Event, Signal
from ..limits.base import FOREVER
from ..pool import NOBODY, LeasePool
from ..records import EVERY_MODEL, OUTAGE, Grant, Key, KeySpec, LeaseRequest, Quota, Ticket
from ..states import Life, LifeEvent
from . import quota_feedback
from .adaptive_concurrency import CAUTIOUS, AdaptiveConcurrency, find_survival
from .common_evidence import CommonEvidence
from .first_call import take_untried
from .outage_detector import OutageDetector
from .rate_feedback import FIRST_COOLDOWN
from .reported import ReportedLimit

# Seconds until the next attempt if a long window is used up and the answer has no delay.
_RETRY_AFTER = 3_600.0
# A reported limit is not read again for this many seconds while more than this share of it is left.
_STALE_AFTER, _MUCH = 0.1, 0.5
# If this many credentials of unrelated quotas are refused alike, all cool down for this many seconds and are retried.
_UNRELATED, _DOUBTED_FOR = 3, 10.0


@dataclass(frozen=True, slots=True)
class FeedbackResult:
    """The tickets to wake after a report, and True if the pool acted on it (so that its item may wait)."""

    to_wake: Sequence[Ticket]
    acted: bool


class _LeaseBookkeeping:
    """Per-lease bookkeeping, kept outside the pool so that attribute access on the hot path stays fast."""

    __slots__ = ("busy", "calls", "doubt_at", "doubted", "troubled", "well")

    def __init__(self) -> None:
        self.doubt_at: float | None = None  # since when refusals are attributed to the network
        self.doubted: set[Key] = set()  # keys refused then: the next refusal counts
        # By token, the failure of a lease's call; None: its outcome is unknown.
        self.troubled: dict[int, Event | None] = {}
        self.well: set[int] = set()  # tokens of leases with a reported success
        self.busy: dict[Quota, str] = {}  # the provider that its last error named
        self.calls: dict[int, Grant] = {}  # by token, a call that was planned after the lease began, as its own lease


class AdaptivePool(LeasePool):
    """The core pool with feedback: limits, slots and lives of keys follow the provider's answers."""

    def __init__(self, *, keep_free: int = 0, max_lease: float | None = None, wall_offset: float = 0.0) -> None:
        super().__init__(keep_free=keep_free, max_lease=max_lease, wall_offset=wall_offset)
        self.outages = OutageDetector()
        self._memory = _LeaseBookkeeping()
        self._common: dict[str | None, CommonEvidence] = {}  # by provider
        self._untried: dict[Quota, dict[Key, None]] = {}  # that wait until fewer calls are under way

    # -- reactions to answers ---------------------------------------------------------------------------------

    def report(
        self, grant: Grant, signal: Signal, now: float, *, sure: bool = True, elsewhere: bool = False
    ) -> FeedbackResult | None:
        """Apply an answer. None: that lease has already ended, and nothing changed.

        If it is not *sure* that the credential's own provider answered, only the third refusal in a row counts against
        it. *elsewhere*: a host answered that is not known to be the provider's; the third then counts for this run
        only, and no store keeps it.
        """
        if not self.is_in_force(grant, now):
            return None
        signal = signal.sane()
        event, key, planned = signal.event, grant.key, self._memory.calls.get(grant.token)
        if planned is not None:
            planned.draws, grant = grant.draws, planned
            if event is Event.LIMITED:
                del self._memory.calls[grant.token]
        known = event is Event.OK or not (elsewhere or signal.provider in GENERIC_PROVIDERS)
        if known and key.quota.provider != signal.provider:
            self._set_provider(key.quota, signal.provider)
        if event in _ANSWERED_EVENTS and not self.outages.has_no_failures:
            self._note_answer(key.quota, signal.provider)
        limited_before = planned is None and self._memory.troubled.get(grant.token) is Event.LIMITED
        if event not in _SUCCESS_EVENTS:
            if not limited_before:
                self._memory.troubled[grant.token] = event
            self._track_lease_ends()
        elif self.tracks_lease_ends:
            self._memory.well.add(grant.token)
        if event is Event.OK:
            self._clear_doubt()
            key.suspicions = key.refused_elsewhere = 0
            if key.auto and key.quota.concurrency is not None:
                key.quota.concurrency.note_latency(now - grant.granted_at)
        if elsewhere and event in GRAVE_EVENTS:
            return self._on_refused_elsewhere(grant, signal, now)
        if not sure and event in GRAVE_EVENTS:
            key.suspicions += 1
            if key.suspicions < _SUSPICIONS:
                return FeedbackResult(NOBODY, acted=False)
        if event is Event.PARKED and quota_feedback.is_reset_of_limit(signal):
            event = Event.LIMITED
        act = AdaptivePool._on_limited_again if event is Event.LIMITED and limited_before else _ACTS.get(event)
        if act is None:
            return FeedbackResult(self._on_readings(grant, signal, now), acted=False)
        touched = act(self, grant, signal, now)
        return FeedbackResult(NOBODY if touched is None else touched, touched is not None)

    def _set_provider(self, quota: Quota, provider: str | None) -> None:
        """Note whose a quota is: the quotas of a provider share evidence."""
        # An error may name the provider that successes do not: what these have shown is about the same one.
        nameless = quota.provider in GENERIC_PROVIDERS and list(self._common.values()).count(quota.common) == 1
        quota.common = self._common.setdefault(provider, quota.common if nameless else CommonEvidence())
        quota.provider = provider
        for state in quota.limits:
            state.share_evidence(quota.common)

    def wants_readings(self, grant: Grant, now: float) -> bool:
        """Return True if the limits reported in a successful answer are worth reading.

        They are not if they were read just now and much was left: what was taken since is known, and reading costs more
        than the whole lease. Called without the pool's lock: it must read only what is replaced as a whole.
        """
        quota = grant.key.quota
        if now - quota.reported_at > _STALE_AFTER or quota.blocks or quota.probation:
            return True
        return any(
            isinstance(state, ReportedLimit) and state.left(now) < _MUCH * state.limit.amount for state in quota.limits
        )

    def mark_unknown_outcome(self, grant: Grant) -> None:
        """Note that the outcome of this lease's call is unknown: its end proves nothing."""
        if self.tracks_lease_ends and grant.token in self.leases and grant.token not in self._memory.well:
            self._memory.troubled.setdefault(grant.token, None)

    def _on_readings(self, grant: Grant, signal: Signal, now: float) -> Sequence[Ticket]:
        """Apply the amounts left that an answer reports."""
        quota = grant.key.quota
        quota.reported_at = now
        if not signal.readings:
            if quota.limits and signal.event is Event.OK:
                # Of such an answer the core is told only while it tracks how leases end.
                quota_feedback.count_admitted(grant, now, timed=self.tracks_lease_ends)
            return NOBODY
        known, common = len(quota.limits), quota.common
        opened = common.opened

        def learn(_: float) -> None:
            quota_feedback.apply_readings(grant, signal, now)
            if signal.event is Event.OK:
                quota_feedback.count_admitted(grant, now)

        self._apply(learn, grant.key, now)
        if len(quota.limits) != known or quota.blocks or quota.probation:  # else only amounts changed
            self._refresh_quota(quota)
        if common.opened != opened:  # what was found out here concerns other keys
            for other in self.quotas.values():
                if other.common is common:
                    self.indexes.reopen(other.keys)
        return self._reopened(quota, now)

    def _on_limited(self, grant: Grant, signal: Signal, now: float) -> Sequence[Ticket]:
        speed, survived_at = self._start_rate(grant.key.quota, now), self._find_survivor(grant, now)
        return self._apply_feedback(
            lambda _: quota_feedback.apply_rate_limit(grant, signal, speed, now, survived_at), grant.key, now
        )

    def _on_limited_again(self, grant: Grant, signal: Signal, now: float) -> Sequence[Ticket]:
        """Cool down after another rate limit of the same lease, which counts once."""
        delay = 0.0 if signal.delay is None else signal.delay
        return self._cool_down(grant.key.quota, now + delay, quota_feedback.find_scope(grant, signal), signal.why, now)

    def plan_call(
        self, grant: Grant, request: LeaseRequest, now: float, *, after: float = 0.0, within: float = FOREVER
    ) -> float:
        """Return the seconds until a lease may make a call, *after* so many at least: its next one, or a refused one.

        The call takes its cost from the estimated limit on tokens, and a refused one from all learned limits: what was
        taken when the lease began was a guess, or was given back. It takes nothing if it cannot start *within* so many
        seconds.
        """
        call = Grant(grant.key, grant.token, grant.requester, now, LeaseRequest(request.cost, grant.model), grant.draws)
        call.settled, again = grant.settled, self._memory.troubled.get(grant.token) is Event.LIMITED
        least = max(after, grant.key.quota.closed_for(request.model) - now) if again else after
        if not again and not quota_feedback.estimates_tokens(grant):
            return least

        def plan(_: float) -> None:
            call.draws = list(grant.draws)
            call.granted_at = now + max(least, quota_feedback.plan_draws(call, now, within, again=again))

        self._apply(plan, grant.key, now)
        wait = call.granted_at - now
        if wait < within:
            grant.draws = call.draws
            self._memory.calls[grant.token] = call
        return wait

    def _on_parked(self, grant: Grant, signal: Signal, now: float) -> Sequence[Ticket]:
        delay = _RETRY_AFTER if signal.delay is None else max(signal.delay, FIRST_COOLDOWN)
        return self._apply_feedback(
            lambda _: quota_feedback.apply_long_limit(grant, signal, delay, now), grant.key, now
        )

    def _on_ramped(self, grant: Grant, signal: Signal, now: float) -> Sequence[Ticket]:
        speed = self._start_rate(grant.key.quota, now)
        return self._apply_feedback(lambda _: quota_feedback.slow_down(grant, signal, speed, now), grant.key, now)

    def _on_not_entitled(self, grant: Grant, signal: Signal, now: float) -> Sequence[Ticket] | None:
        if grant.model is None:
            return None  # there is no model to bar
        grant.key.barred[grant.model] = signal.why
        self.indexes.split_by_model()
        return self._after_key_loss(now)

    def _on_out_of_money(self, grant: Grant, signal: Signal, now: float) -> Sequence[Ticket]:
        if signal.delay is not None and signal.delay >= PARKED_FROM:
            why = f"money gone: {signal.why}"
            return self._cool_down(grant.key.quota, now + signal.delay, None, why, now, probe=True)
        return self.spend(grant.key, signal.why, now)

    def _note_answer(self, quota: Quota, provider: str | None) -> None:
        """Note that a provider answered. Where a success does not tell whose it is, an error of the quota did."""
        generic = provider is None or provider in GENERIC_PROVIDERS
        self.outages.on_answer(self._memory.busy.get(quota, provider) if generic else provider)

    def _on_busy(self, grant: Grant, signal: Signal, now: float) -> Sequence[Ticket] | None:
        self._memory.busy[grant.key.quota] = signal.provider
        pause = self.outages.on_busy(signal.provider, signal.delay, now)
        if pause is None:
            return NOBODY if self.outages.is_paused(signal.provider, now) else None
        mine = grant.key.quota
        quotas = [quota for quota in self.quotas.values() if quota is mine or quota.provider == signal.provider]
        return self._pause_all(quotas, now + pause, f"provider busy: {signal.why}", now)

    def _on_unreachable(self, grant: Grant, signal: Signal, now: float) -> Sequence[Ticket] | None:
        quota = grant.key.quota.name
        pause = None if signal.gave_up else self.outages.on_unreachable(quota, len(self.quotas), now)
        if pause is None:
            return NOBODY if self.outages.is_paused(None, now) else None
        why = f"no answer from several at once: {signal.why}"
        return self._pause_all(list(self.quotas.values()), now + pause, why, now)

    # -- refused credentials ----------------------------------------------------------------------------------

    def _on_rejected(self, grant: Grant, signal: Signal, now: float) -> Sequence[Ticket]:
        """Mark the credential dead, unless several unrelated ones were refused at once without a success."""
        key = grant.key
        if self._memory.doubt_at is not None and grant.granted_at <= self._memory.doubt_at:
            self._memory.doubted.add(key)
            return NOBODY  # it was in flight then
        kind = f"refused {signal.status}"
        if key in self._memory.doubted or not self.outages.has_similar_failures(kind, key.quota.name, _UNRELATED, now):
            return self.reject(key, signal.why, now)
        why = f"several unrelated credentials were refused at once ({signal.why}): the network may be to blame"
        self.notes.append(f"{why}; all cool down for {_DOUBTED_FOR:g}s and are then retried")
        self._memory.doubt_at = now
        touched = self._pause_all(list(self.quotas.values()), now + _DOUBTED_FOR, why, now)
        self._memory.doubted.add(key)
        for other in self.keys.values():
            if other.life is Life.DEAD and now - other.since <= _DOUBTED_FOR:
                self._memory.doubted.add(other)
                touched += self._undo_death(other, now)
        return touched

    def _on_refused_elsewhere(self, grant: Grant, signal: Signal, now: float) -> FeedbackResult:
        """Use the credential no more in this run after the third refusal in a row."""
        key = grant.key
        key.refused_elsewhere += 1
        scope = grant.model if signal.event is Event.NOT_ENTITLED else EVERY_MODEL
        if key.refused_elsewhere < _SUSPICIONS or scope is None:
            return FeedbackResult(NOBODY, acted=False)
        key.barred[scope] = (
            f"{signal.why}; refused three times in a row by {signal.origin}: not used in this run. If its provider is "
            "there, say so with base_url or hosts"
        )
        key.barred_for_run.add(scope)
        self.indexes.disable_fast_path()
        self.indexes.split_by_model()
        return FeedbackResult(self._after_key_loss(now), acted=True)

    def end_run_bars(self, now: float) -> Sequence[Ticket]:
        """Let the credentials be used again that were barred for a run: it has ended."""
        touched: list[Ticket] = []
        for key in [key for key in self.keys.values() if key.barred_for_run or key.refused_elsewhere]:
            for scope in key.barred_for_run:
                key.barred.pop(scope, None)
            key.barred_for_run.clear()
            key.refused_elsewhere = 0
            touched += self._reopened(key.quota, now)
        return touched

    def _undo_death(self, key: Key, now: float) -> Sequence[Ticket]:
        key.suspicions = 0
        self._apply(
            lambda at: self._change_life(key, LifeEvent.REVIVED, "", at), key, now, life=Life.ALIVE, opened=True
        )
        return self._reopened(key.quota, now)

    def _clear_doubt(self) -> None:
        """Attribute refusals to the credential again, after a success."""
        if self._memory.doubt_at is not None:
            self._memory.doubt_at = None
            self._memory.doubted.clear()

    # -- cooldowns --------------------------------------------------------------------------------------------

    def _pause_all(self, quotas: Sequence[Quota], until: float, why: str, now: float) -> list[Ticket]:
        """Pause these quotas in this process: others may reach the provider."""
        touched: list[Ticket] = []
        for quota in quotas:
            touched += self._cool_down(quota, until, OUTAGE, why, now, probe=True)
        return touched

    def _cool_down(
        self, quota: Quota, until: float, scope: str | None, why: str, now: float, probe: bool = False
    ) -> Sequence[Ticket]:
        return self._apply_feedback(
            lambda _: quota_feedback.cool_down(quota, until, scope, why, now, probe=probe), quota.keys[0], now
        )

    # -- applying what was learned ----------------------------------------------------------------------------

    def _apply_feedback(self, lesson: Callable[[float], object], key: Key, now: float) -> Sequence[Ticket]:
        self._apply(lesson, key, now)
        self._refresh_quota(key.quota)
        return self._reopened(key.quota, now)

    def _refresh_quota(self, quota: Quota) -> None:
        """Update indexes, models and slots after a change of a quota."""
        if quota.learned:
            for index in self.indexes.all:
                index.limited = True
        if quota.scoped or any(state.scope is not None for state in quota.limits):
            self.indexes.split_by_model()
        if quota.probation or any(block.probe for block in quota.blocks.values()):
            self._track_lease_ends()  # for the end of the probe
        for key in quota.keys:
            self._apply_slots(key)

    def _start_rate(self, quota: Quota, now: float) -> float:
        """Return how many leases of this quota began per second, from those in force."""
        began = [grant.granted_at for grant in self.leases.values() if grant.key.quota is quota]
        return len(began) / max(0.5, now - min(began)) if began else 0.0

    def _find_survivor(self, refused: Grant, now: float) -> float:
        """Return the last start of a call of this quota that must have been admitted: it would have been refused."""
        before = find_survival(refused.granted_at, now)
        calls, troubled = self._memory.calls, self._memory.troubled
        starts = (
            calls.get(grant.token, grant).granted_at
            for grant in self.leases.values()
            if grant.key.quota is refused.key.quota and (grant.token in calls or grant.token not in troubled)
        )
        return max((at for at in starts if at < before), default=-FOREVER)

    def _clear(self, key: Key, now: float) -> None:
        super()._clear(key, now)
        key.clear_bars()
        for other in key.quota.keys:
            self._apply_slots(other)

    def _revive(self, key: Key, now: float) -> None:
        super()._revive(key, now)
        key.clear_bars()

    # -- adaptive slots ---------------------------------------------------------------------------------------

    def _admit(self, spec: KeySpec) -> Key:
        key = super()._admit(spec)
        if key.quota.provider is None:
            self._set_provider(key.quota, None)
        if spec.auto:
            self._track_lease_ends()
            if key.quota.concurrency is None:
                key.quota.concurrency = AdaptiveConcurrency()
                key.quota.refresh_blocks()
            if key.quota in self._untried:
                self._untried[key.quota][key] = None
            elif len(key.quota.keys) > CAUTIOUS:
                self._untried[key.quota] = dict.fromkeys(key.quota.keys)
        return key

    def _slot_taken(self, grant: Grant) -> None:
        if grant.key.quota.concurrency is not None:
            grant.key.quota.concurrency.lease_started(grant.token, grant.key.name, grant.key.leases, grant.granted_at)
        if not grant.key.proven:
            if grant.key.leases <= 1 + len(grant.key.leases_elsewhere):
                grant.key.tried_at = grant.granted_at
            self._apply_slots(grant.key)

    def _expire(self, now: float) -> None:
        if self.tracks_lease_ends and self.max_lease is not None:
            for grant in self.leases.values():
                if grant.granted_at + self.max_lease > now:
                    break
                self.mark_unknown_outcome(grant)
        super()._expire(now)

    def _track_lease_ends(self) -> None:
        """Learn from the end of leases from now on, which excludes the fast path."""
        self.tracks_lease_ends = True
        self.indexes.disable_fast_path()

    def _on_lease_end(self, grant: Grant) -> None:
        key, quota = grant.key, grant.key.quota
        went_well = grant.token not in self._memory.troubled  # as far as reported
        met_with = self._memory.troubled.pop(grant.token, Event.OK)
        if went_well:
            if not self.outages.has_no_failures and grant.token not in self._memory.well:
                self._note_answer(quota, quota.provider)
            self._clear_doubt()
            quota.admitted += 1
            key.suspicions = key.refused_elsewhere = 0
            if grant.granted_at > quota.refused_at:
                quota.refusals = 0  # admitted, although nobody reported it
        self._memory.well.discard(grant.token)
        self._memory.calls.pop(grant.token, None)
        if key.auto:
            self._on_slot_freed(grant, went_well)
        if quota.probation and (tried := quota.find_probed_scopes(grant.model, grant.granted_at)):
            self._end_probe(key, tried, grant, met_with not in _NO_ANSWER)

    def _end_probe(self, key: Key, tried: list[str | None], grant: Grant, answered: bool) -> None:
        """End the probe; if it got no answer, the next request becomes the probe."""
        quota = key.quota

        def end(_: float) -> None:
            quota.end_probation(tried)
            if not answered:
                quota.begin_probation({**quota.probation, **dict.fromkeys(tried, -FOREVER)})

        self._apply(end, key, grant.granted_at, opened=True)
        self.indexes.reopen(quota.keys)

    def _discard_lease_record(self, grant: Grant) -> None:
        self._memory.troubled.pop(grant.token, None)
        self._memory.well.discard(grant.token)
        self._memory.calls.pop(grant.token, None)
        if grant.key.quota.concurrency is not None:
            grant.key.quota.concurrency.forget(grant.token)

    def _on_slot_freed(self, grant: Grant, went_well: bool) -> None:
        key, quota, concurrency = grant.key, grant.key.quota, grant.key.quota.concurrency
        assert concurrency is not None  # noqa: S101 - for the type checker
        if not went_well:
            concurrency.forget(grant.token)
        if not key.proven:
            key.proven = went_well
            self._apply_slots(key)
            self.indexes.reopen([key])
        if quota in self._untried:
            self.indexes.reopen(take_untried(self._untried[quota]))
        if not went_well:
            return
        width = quota_feedback.find_known_width(key.quota, concurrency.latency) if concurrency.latency else None
        if width is not None and concurrency.widen_to(width / len(key.quota.keys)):
            self._apply(
                lambda at: key.quota.add_history(at, f"slots {concurrency.slots}: the rate needs them", "slots"),
                key,
                grant.granted_at,
            )
            for other in key.quota.keys:
                self._apply_slots(other)
        if concurrency.lease_succeeded(grant.token, len(key.quota.keys)):

            def grow(at: float) -> None:
                concurrency.grow(len(key.quota.keys))
                key.quota.add_history(
                    at, f"slots {concurrency.slots}: all were used, and nothing was refused", instead_of="slots"
                )

            self._apply(grow, key, grant.granted_at)
            for other in key.quota.keys:
                self._apply_slots(other)

    def _apply_slots(self, key: Key) -> None:
        """Set the usable slots of a key after the inferred number has changed. ``tick`` must follow."""
        if key.target_slots() != key.slots:
            self.indexes.move(key, key.leases, key.target_slots())


_SUSPICIONS = 3
_NO_ANSWER = frozenset({None, Event.BUSY, Event.NETWORK})
_SUCCESS_EVENTS = frozenset({Event.OK, Event.CALLER, Event.NEVER_FITS})
_ANSWERED_EVENTS = frozenset({Event.OK, Event.CALLER, Event.NEVER_FITS, Event.LIMITED, Event.PARKED, Event.RAMP})

_ACTS: dict[Event, Callable[[AdaptivePool, Grant, Signal, float], Sequence[Ticket] | None]] = {
    Event.LIMITED: AdaptivePool._on_limited,
    Event.PARKED: AdaptivePool._on_parked,
    Event.NOT_ENTITLED: AdaptivePool._on_not_entitled,
    Event.MONEY_GONE: AdaptivePool._on_out_of_money,
    Event.KEY_DEAD: AdaptivePool._on_rejected,
    Event.BUSY: AdaptivePool._on_busy,
    Event.RAMP: AdaptivePool._on_ramped,
    Event.NETWORK: AdaptivePool._on_unreachable,
}
