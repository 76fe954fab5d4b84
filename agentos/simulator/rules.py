"""The rules of the provider: a call arrives and is admitted or refused, and later it ends.

Pure: the caller passes the time, in seconds since the start, and randomness comes from the plan's seed. Every key has
its own random stream, so what one key does never changes what happens to another. The same plan and the same calls give
the same answers.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .answer_facts import Facts, Headers, Reason
from .answer_styles import build_headers, find_status, overloaded_status, plain_error, refusal_body
from .audit import Audit
from .limiters import FixedWindow, Limiter, build_limiter
from .plan import DAY, MINUTE, KeyPlan, ProviderPlan, QuotaPlan, Scripted, Style
from .statistics import Statistics, TallyCounter

Fate = Literal["ok", "error", "overloaded", "drop", "stall", "cut", "hang"]


class CallUsage(NamedTuple):
    """The usage of a call, as stated in its answer."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """A call that was admitted. It ends after *latency* seconds, with *status* and *fate*.

    ``drop``: the connection ends without an answer. ``cut``: the answer ends in its middle. ``stall``: the latency is
    infinite. ``hang``: half the answer comes at the pace of the latency, and then nothing more. Call the provider's
    ``finish`` when the call has ended, or when its client has left.
    """

    call: int
    key: str
    quota: str
    tokens: int
    latency: float
    fate: Fate
    status: int
    usage: CallUsage
    facts: Facts
    scripted: Scripted | None = None

    @property
    def headers(self) -> Headers:
        """Return the answer's headers about limits and request."""
        return _with_script(build_headers(self.facts), self.scripted)

    @property
    def body(self) -> str | None:
        """Return the body if it is an error or scripted; the server builds the body of a successful answer."""
        if self.scripted is not None and self.scripted.text is not None:
            return self.scripted.text
        return None if self.status == 200 else plain_error(self.facts, self.status)


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that was refused, answered after *latency* seconds.

    ``retry_after`` is exact, whatever the dialect states: seconds until what was lacking is available. None: waiting
    alone does not help, or the time is unknown.
    """

    call: int
    key: str | None
    quota: str | None
    tokens: int
    latency: float
    reason: Reason
    status: int
    retry_after: float | None
    facts: Facts
    scripted: Scripted | None = None

    @property
    def headers(self) -> Headers:
        """Return the headers of a refusal in this dialect."""
        return _with_script(build_headers(self.facts), self.scripted)

    @property
    def body(self) -> str:
        """Return the error in the style's shape."""
        if self.scripted is not None:
            return self.scripted.text or plain_error(self.facts, self.status)
        return refusal_body(self.facts, self.reason, self.tokens)


class Provider:
    """A provider that follows its plan. Not thread-safe.

    ``now`` is in seconds since the provider's start; an instant before an earlier one counts as that one. *epoch* is
    the wall-clock instant of the start, for headers with dates. Events are appended to *log*, if given, as tuples:
    ``(now, "admitted", call, key, fate, latency)``, ``(now, "refused", call, key, reason, status)`` and ``(now,
    "finished", call, key, how)``.
    """

    def __init__(self, plan: ProviderPlan, *, epoch: float = 0.0, log: list[tuple[Any, ...]] | None = None) -> None:
        self.plan = plan
        self._epoch = epoch
        self._log = log
        self._now = 0.0
        self._quotas = {quota.name: _Quota(quota, plan) for quota in plan.quotas}
        self._keys = {key.secret: _Key(key, self._quotas[key.quota], plan.seed) for key in plan.keys}
        self._script = _Script(plan.script)
        self._total = TallyCounter()
        self._in_flight: dict[int, _Key] = {}

    @property
    def in_flight(self) -> int:
        """Return the number of admitted calls that have not ended."""
        return len(self._in_flight)

    def arrive(
        self,
        secret: str | None,
        tokens: int,
        now: float,
        *,
        max_output: int | None = None,
        model: str | None = None,
        stream: bool = False,
        style: Style | None = None,
    ) -> Admitted | Refused:
        """Admit or refuse a call with this secret that may use *tokens*, of which *max_output* are for the answer.

        *stream* has no effect here but is part of a call; *style* defaults to the plan's. Checked in this order: key,
        script, money, day, concurrency, requests, tokens. The first that refuses gives the answer, and nothing is
        spent.
        """
        self._now = now = max(now, self._now)
        self._total.arrived(now)
        call = _Call(self._total.calls, now, tokens, max_output, model, style or self.plan.style)
        key = self._keys.get(secret) if secret is not None else None
        if key is None:
            return self._refuse(call, None, "unknown_key")
        key.count.arrived(now)
        key.quota.count.arrived(now)
        if key.dead:
            return self._refuse(call, key, "dead_key")
        scripted = self._script.take(call.number, key, now)
        if scripted is not None and isinstance(scripted.status, int) and 200 < scripted.status < 500:
            return self._refuse(call, key, "scripted", scripted=scripted)
        reason, wait = key.refusal(tokens, now)
        if reason is not None:
            return self._refuse(call, key, reason, wait)
        return self._admit(call, key, scripted)

    def find_organisation(self, secret: str | None) -> str | None:
        """Return the quota of the key with this secret; None if there is none."""
        key = None if secret is None else self._keys.get(secret)
        return None if key is None else key.quota.plan.name

    def is_valid(self, secret: str | None) -> bool:
        """Return whether a living key has this secret. Spends nothing."""
        key = None if secret is None else self._keys.get(secret)
        return key is not None and not key.dead

    def finish(self, admitted: Admitted, now: float, *, left: bool = False) -> None:
        """End a call and free its slot. *left*: its client left before the end.

        Raises ValueError if the call is not in flight.
        """
        key = self._in_flight.pop(admitted.call, None)
        if key is None:
            raise ValueError(f"call {admitted.call} is not in flight: it has ended, or is another provider's")
        self._now = now = max(now, self._now)
        for count in (self._total, key.quota.count, key.count):
            count.ended(now, ok=admitted.fate == "ok", left=left)
        unused = admitted.tokens - sum(admitted.usage)
        if self.plan.refund_tokens and unused > 0 and key.quota.tokens is not None:
            key.quota.tokens.give_back(unused, now)
        if self._log is not None:
            self._log.append((now, "finished", admitted.call, key.plan.name, "left" if left else admitted.fate))

    def ready_in(self, secret: str, tokens: int, now: float) -> float:
        """Return the seconds until the limits would admit such a call: 0 if they would now. Spends nothing.

        Infinite where waiting does not help: an unknown or dead key, no money, too large, or too many calls in flight.
        For an omniscient client, against which others are measured.
        """
        key = self._keys.get(secret)
        return math.inf if key is None else key.ready_in(tokens, max(now, self._now))

    def statistics(self) -> Statistics:
        """Return the statistics so far."""
        return Statistics(
            total=self._total.tally(),
            keys={key.plan.name: key.count.tally() for key in self._keys.values()},
            quotas={name: quota.count.tally() for name, quota in self._quotas.items()},
            violations=tuple(each for quota in self._quotas.values() for each in quota.audit.violations),
        )

    def _refuse(
        self,
        call: _Call,
        key: _Key | None,
        reason: Reason,
        wait: float | None = None,
        scripted: Scripted | None = None,
    ) -> Refused:
        facts = self._facts(call, None if reason == "dead_key" else key, wait)
        status = find_status(reason, call.style)
        if scripted is not None and isinstance(scripted.status, int):
            status = scripted.status
        name = quota = None
        self._total.was_rejected(reason)
        if key is not None:
            name, quota = key.plan.name, key.quota.plan.name
            key.count.was_rejected(reason)
            key.quota.count.was_rejected(reason)
            if self.plan.count_rejections and key.quota.requests is not None and reason in _RATE_REASONS:
                key.quota.requests.spill(call.now, whole=self.plan.count_rejections == "whole")
        if self._log is not None:
            self._log.append((call.now, "refused", call.number, name, reason, status))
        latency = self.plan.rejection_latency
        return Refused(call.number, name, quota, call.tokens, latency, reason, status, wait, facts, scripted)

    def _admit(self, call: _Call, key: _Key, scripted: Scripted | None) -> Admitted:
        number, now, tokens, max_output, _, style = call
        quota = key.quota
        key.admit(tokens, now)
        self._in_flight[number] = key
        for count in (self._total, quota.count, key.count):
            count.was_admitted(tokens)
        quota.audit.admitted(tokens, quota.count.in_flight, now)
        latency, fate, status = self._end_of(key, style, scripted)
        usage = self._usage(tokens, max_output)
        name = key.plan.name
        if self._log is not None:
            self._log.append((now, "admitted", number, name, fate, latency))
        facts = self._facts(call, key, None)
        return Admitted(number, name, quota.plan.name, tokens, latency, fate, status, usage, facts, scripted)

    def _facts(self, call: _Call, key: _Key | None, wait: float | None) -> Facts:
        plan = self.plan
        wall = self._epoch + call.now
        exact = plan.retry_after == "exact"
        if key is None or plan.dialect in ("retry-after", "none"):
            return Facts(call.style, plan.dialect, exact, call.number, wall, model=call.model, retry_in=wait)
        quota = key.quota
        stated = (*quota.levels(call.now), quota.plan.window)
        return Facts(call.style, plan.dialect, exact, call.number, wall, quota.plan.name, call.model, *stated, wait)

    def _end_of(self, key: _Key, style: Style, scripted: Scripted | None) -> tuple[float, Fate, int]:
        # Both draws are always made, so that another error rate, or a script, does not change the later latencies.
        latency = self.plan.latency.of(key.chance.gauss(0.0, 1.0)) * key.plan.slowness
        luck = key.chance.random()
        outcome = scripted.status if scripted is not None else None
        if outcome == "drop" or outcome == "cut" or outcome == "hang":
            return latency, outcome, 200
        if outcome == "stall":
            return math.inf, outcome, 200
        if outcome is None and luck < self.plan.error_rate:
            outcome = 500
        elif outcome is None and luck < self.plan.failure_rate:
            outcome = overloaded_status(style)
        if outcome is None or outcome == 200:
            return latency, "ok", 200
        return latency, "overloaded" if outcome in (503, 529) else "error", outcome

    def _usage(self, tokens: int, max_output: int | None) -> CallUsage:
        output = self.plan.output_tokens
        if max_output is None:
            return CallUsage(tokens, output)
        return CallUsage(max(0, tokens - max_output), min(output, max_output))


class _Call(NamedTuple):
    """A call while the rules are checked."""

    number: int
    now: float
    tokens: int
    max_output: int | None
    model: str | None
    style: Style


_RATE_REASONS = frozenset(("day", "concurrency", "requests", "tokens", "too_large"))


class _Quota:
    """One organisation: what is left of its limits."""

    __slots__ = ("_changes_at", "audit", "count", "day", "money", "plan", "requests", "tokens")

    def __init__(self, plan: QuotaPlan, provider: ProviderPlan) -> None:
        self.plan = plan
        self._changes_at = math.inf if plan.changes_at is None else plan.changes_at
        self.requests = self._limiter(plan.rpm, plan.requests_at_once)
        self.tokens = self._limiter(plan.tpm, plan.tokens_at_once)
        self.day = None if plan.daily_requests is None else FixedWindow(plan.daily_requests, DAY)
        self.money = 0 if plan.spent else math.inf if plan.money is None else plan.money
        self.count = TallyCounter()
        self.audit = Audit(plan, tokens=not provider.refund_tokens)

    def _limiter(self, per_minute: float | None, at_once: float) -> Limiter | None:
        if per_minute is None:
            return None
        kind = "bucket" if self.plan.refill == "continuous" else self.plan.refill
        window = self.plan.window
        return build_limiter(kind, per_minute * (window / MINUTE), window, capacity=at_once)

    def refresh(self, now: float) -> None:
        """Change the limits once their time has come."""
        if now >= self._changes_at:
            for limit in (self.requests, self.tokens):
                if limit is not None:
                    limit.change(self.plan.changes_to, self._changes_at)
            self._changes_at = math.inf

    def levels(self, now: float) -> tuple[Any, Any, Any]:
        """Return what is left of requests, tokens and the day, for the headers."""
        return (
            None if self.requests is None else self.requests.level(now),
            None if self.tokens is None else self.tokens.level(now),
            None if self.day is None else self.day.level(now),
        )


class _Key:
    """One key: its state, and the order in which its calls are checked."""

    __slots__ = ("chance", "count", "plan", "quota")

    def __init__(self, plan: KeyPlan, quota: _Quota, seed: int) -> None:
        self.plan = plan
        self.quota = quota
        self.chance = random.Random(f"{seed}/{plan.name}")  # noqa: S311 - chance that can be had again, not secrecy
        self.count = TallyCounter()

    @property
    def dead(self) -> bool:
        dies_after = self.plan.dies_after
        return self.plan.dead or (dies_after is not None and self.count.admitted >= dies_after)

    @property
    def crowded(self) -> bool:
        cap, own = self.quota.plan.concurrency, self.plan.concurrency
        return (cap is not None and self.quota.count.in_flight >= cap) or (
            own is not None and self.count.in_flight >= own
        )

    def refusal(self, tokens: int, now: float) -> tuple[Reason | None, float | None]:
        """Return why the quota refuses such a call now, and for how long if that is known; None if it admits it."""
        quota = self.quota
        quota.refresh(now)
        if quota.count.admitted >= quota.money:
            return "money", None
        if quota.day is not None and (wait := quota.day.wait(1, now)):
            return "day", wait
        if self.crowded:
            return "concurrency", None
        if quota.requests is not None and (wait := quota.requests.wait(1, now)):
            return "requests", wait
        if quota.tokens is not None and (wait := quota.tokens.wait(tokens, now)):
            return ("too_large", None) if wait == math.inf else ("tokens", wait)
        return None, None

    def admit(self, tokens: int, now: float) -> None:
        quota = self.quota
        if quota.day is not None:
            quota.day.take(1, now)
        if quota.requests is not None:
            quota.requests.take(1, now)
        if quota.tokens is not None:
            quota.tokens.take(tokens, now)

    def ready_in(self, tokens: int, now: float) -> float:
        quota = self.quota
        quota.refresh(now)
        if self.dead or self.crowded or quota.count.admitted >= quota.money:
            return math.inf
        needs = ((quota.day, 1), (quota.requests, 1), (quota.tokens, tokens))
        return max((limit.wait(need, now) for limit, need in needs if limit is not None), default=0.0)


class _Script:
    """The entries of a script, by call and by instant."""

    __slots__ = ("_by_call", "_once", "_spans")

    def __init__(self, script: tuple[Scripted, ...]) -> None:
        self._by_call = {(entry.key, entry.call): entry for entry in reversed(script) if entry.call is not None}
        self._once = [entry for entry in script if entry.at is not None and entry.until is None]
        self._spans = [entry for entry in script if entry.until is not None]

    def take(self, number: int, key: _Key, now: float) -> Scripted | None:
        """Return the script's entry for this call. An entry for one call is used up; the first match counts."""
        name = key.plan.name
        found = self._by_call.get((None, number)) or self._by_call.get((name, key.count.calls))
        if found is not None:
            return found
        for entry in self._once:
            if now >= (entry.at or 0.0) and entry.key in (None, name):
                self._once.remove(entry)
                return entry
        for entry in self._spans:
            if (entry.at or 0.0) <= now < (entry.until or 0.0) and entry.key in (None, name):
                return entry
        return None


def _with_script(headers: Headers, scripted: Scripted | None) -> Headers:
    if scripted is None or not scripted.pairs:
        return headers
    names = {name.lower() for name, _ in scripted.pairs}
    return tuple(pair for pair in headers if pair[0] not in names) + scripted.pairs
