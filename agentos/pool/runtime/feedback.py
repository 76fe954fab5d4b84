"""Feedback from holders: apply reported rate limits, refusals and usage to the core, with their evidence."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ...providers import Event, Signal, read_signal
from ...providers.answers.date_and_number_formats import parse_delay
from ...providers.signal import GENERIC_PROVIDERS, GRAVE_EVENTS
from ..allowed_hosts import AnsweredBy
from ..core.cost import DIMENSIONS, MOST_USED, AbsurdUsage, parse_used
from ..core.learning.adaptive_pool import FeedbackResult
from ..core.records import Grant, Key, Quota, Ticket
from ..redaction import Masker
from ..secret import Secret
from .scheduler import Scheduler, log, log_stale_report

_LONGEST_EVIDENCE = 500
_REFUSED = (401, 402, 403)
_PLACE = re.compile(r"\A(?:body [\w.]+: |header |rule: )")
_REMEMBERED = 1_000  # organisations and unreadable objects that were logged

# Short rate limits are normal; the others are logged for a person.
_LOG_LEVELS = {
    Event.LIMITED: logging.INFO,
    Event.PARKED: logging.WARNING,
    Event.NOT_ENTITLED: logging.WARNING,
    Event.MONEY_GONE: logging.ERROR,
    Event.KEY_DEAD: logging.ERROR,
    Event.RAMP: logging.WARNING,
    Event.BUSY: logging.INFO,
    Event.NETWORK: logging.INFO,
}


class Feedback:
    """Applies the reports of holders while their leases are in force.

    *secret_of* returns the secret of a credential by name; *find_answerer* says whose the host is that answered;
    *default_backoff* is for rate limits without a usable delay.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        masker: Masker,
        secret_of: Callable[[str], Secret],
        find_answerer: Callable[[Key, str], tuple[AnsweredBy, str]],
        default_backoff: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._core = scheduler.core
        self._masker = masker
        self._secret_of = secret_of
        self._find_answerer = find_answerer
        self.default_backoff = default_backoff
        self._warned_retries = False
        self._warned_absurd = False
        self._unknown: set[str] = set()
        self._organisations: dict[str, Key] = {}
        self._warned_shared: set[Quota] = set()

    def report_rate_limited(
        self, grant: Grant, retry_after: object, model: str | None, reporter: str | None = None
    ) -> bool:
        """Apply a rate limit of this lease's call, which *reporter* (a worker's name) reports."""
        model = model if model is None else self.masked(str(model))
        delay = parse_delay(retry_after, wall=self._scheduler.clock.wall())
        what = "a rate limit" if delay is not None else "a rate limit without a delay"
        evidence = self._evidence(grant, _describe_report(grant, what, reporter))
        if not self.close_quota(grant.key, self.default_backoff() if delay is None else delay, model, evidence, grant):
            log_stale_report(grant, "rate limit")
            return False
        return True

    def report_answer(self, grant: Grant, thing: object, *, sure: bool = True) -> tuple[Signal | None, bool]:
        """Apply an answer, or the lack of one. Return its signal, and True if the pool acts on it.

        If it is not *sure* that it comes from the provider of the lease's credential, that is disabled later.
        """
        signal = read_signal(thing, now=self._scheduler.clock.wall(), model=grant.model)
        if isinstance(thing, Signal):
            signal = _checked(thing)
        if signal is None:
            self._log_unknown(type(thing).__qualname__)
            return None, False
        return self.report_signal(grant, signal, sure=sure)

    def report_signal(self, grant: Grant, signal: Signal, *, sure: bool = True) -> tuple[Signal, bool]:
        """Apply an answer that was already read. A refusal by another provider counts against no credential."""
        elsewhere = False
        if signal.origin is not None and signal.event in GRAVE_EVENTS:
            answerer, mismatch = self._judge(grant, signal)
            if answerer is AnsweredBy.OTHER:
                self._scheduler.mark_unknown_outcome(grant)
                log.warning("[COORDINATOR] a refusal counts against no key: %s (%s)", mismatch, signal.why)
                return signal, False
            sure = sure or answerer is AnsweredBy.OWN
            elsewhere = answerer is AnsweredBy.UNKNOWN
        reason = signal
        if signal.event is not Event.OK:
            reason = replace(signal, evidence=(self._evidence(grant, describe_answer(grant, signal)),))
            signal = replace(signal, evidence=(self._evidence(grant, signal.why),))
        elif not signal.readings and not self._core.tracks_lease_ends:  # nothing new for the core
            self.settle_usage(grant, signal.usage)
            self._log_signal(grant, signal)
            return signal, False
        result: FeedbackResult | None = None

        def apply(now: float) -> Sequence[Ticket] | None:
            nonlocal result
            result = self._core.report(grant, reason, now, sure=sure, elsewhere=elsewhere)
            return None if result is None else result.to_wake

        if self._scheduler.run_report(apply) is None:
            log_stale_report(grant, f"what was taken for {signal.event.name}")
            return signal, False
        acted = result is not None and result.acted
        self.settle_usage(grant, signal.usage)
        if elsewhere and acted:
            log.error(
                "[COORDINATOR] %s: refused three times by %s: not used in this run", grant.key.name, signal.origin
            )
        else:
            self._log_signal(grant, signal, believed=acted or (sure and not elsewhere))
        return signal, acted

    def find_mismatch(self, grant: Grant, signal: Signal) -> str | None:
        """Return in words which provider refused the key of which other one; None if that is not so."""
        if signal.origin is None or not (signal.event in GRAVE_EVENTS or signal.status in _REFUSED):
            return None
        return self._judge(grant, signal)[1] or None

    def _judge(self, grant: Grant, signal: Signal) -> tuple[AnsweredBy, str]:
        try:
            return self._find_answerer(grant.key, signal.origin or "")
        except ValueError:  # not an address: the caller made the signal
            return AnsweredBy.UNKNOWN, ""

    def _log_unknown(self, kind: str) -> None:
        if kind not in self._unknown and len(self._unknown) < _REMEMBERED:
            self._unknown.add(kind)
            log.warning(
                "[COORDINATOR] lease.report() was given a %s, which is not an answer of a known client; nothing was "
                'learned. Pass a response, an exception, a Signal, or {"status": ..., "headers": ..., "body": ...}',
                kind,
            )

    def settle_usage(self, grant: Grant, usage: Mapping[str, float], *, whole: bool = True) -> None:
        """Settle the usage that an answer reports; not *whole*: the call broke off before all was reported."""
        if not usage or (not grant.key.quota.limits and usage.keys() <= {"requests"}):
            return  # nothing that a limit needs, now or later
        amounts = {name: used for name, used in usage.items() if name in DIMENSIONS}
        try:
            used = parse_used("usage", amounts, whole=whole)
        except AbsurdUsage:
            self.ignore_usage(grant)
        else:
            self._scheduler.settle(grant, used)

    def ignore_usage(self, grant: Grant) -> bool:
        """Keep the reservation of a call with impossible usage, and log that once."""
        if not self._warned_absurd:
            self._warned_absurd = True
            log.warning(
                "[COORDINATOR] lease %d on %s: ignored usage with a figure below zero, not finite or above %g; check "
                "what is passed to settle() or written as usage. This is logged once",
                grant.token,
                grant.key.name,
                MOST_USED,
            )
        return self._scheduler.is_held(grant)

    def _log_signal(self, grant: Grant, signal: Signal, *, believed: bool = True) -> None:
        level = _LOG_LEVELS.get(signal.event)
        if level is not None and (believed or signal.event not in GRAVE_EVENTS):
            log.log(level, "[COORDINATOR] %s: %s", grant.key.name, _describe_signal(signal))
        elif level is not None:
            log.info("[COORDINATOR] %s: not acted on yet: %s", grant.key.name, _describe_signal(signal))
        if signal.retried and not self._warned_retries:
            self._warned_retries = True
            log.warning(
                "[COORDINATOR] the %s client retried %d times by itself before it reported a rate limit: the pool "
                "waits better, so switch its retries off (max_retries=0)",
                signal.provider,
                signal.retried,
            )
        if signal.organisation is not None:
            self._check_organisation(grant.key, signal.organisation)

    def _check_organisation(self, key: Key, organisation: str) -> None:
        """Warn if credentials of one organisation, which share its limits, have different quotas."""
        if len(self._organisations) >= _REMEMBERED:
            return
        first = self._organisations.setdefault(organisation, key)
        if first.quota is not key.quota and key.quota not in self._warned_shared:
            self._warned_shared.add(key.quota)
            log.warning(
                "[COORDINATOR] %s and %s belong to one organisation and most likely share its limits: give them the "
                'same quota="..."',
                first.name,
                key.name,
            )

    def report_rejected(self, grant: Grant, reason: str, reporter: str | None = None) -> bool:
        """Apply that the provider refused the credential."""
        reason = reason if reporter is None else _describe_report(grant, reason, reporter)
        return self._disable_credential(grant, reason, self._core.reject, f"credential {grant.key.name} is dead")

    def report_out_of_money(self, grant: Grant, reason: str, reporter: str | None = None) -> bool:
        """Apply that the quota's money is gone."""
        reason = reason if reporter is None else _describe_report(grant, reason, reporter)
        return self._disable_credential(grant, reason, self._core.spend, f"quota {grant.key.quota.name} is spent")

    def _disable_credential(
        self, grant: Grant, reason: str, act: Callable[[Key, str, float], Sequence[Ticket]], what: str
    ) -> bool:
        evidence = self._evidence(grant, reason)

        def put(now: float) -> Sequence[Ticket] | None:
            return act(grant.key, evidence, now) if self._scheduler.holds(grant) else None

        if self._scheduler.run_report(put) is None:
            log_stale_report(grant, "a refusal")
            return False
        log.error("[COORDINATOR] %s until revived: %s", what, evidence)
        return True

    def close_quota(self, key: Key, delay: float, model: str | None, evidence: str, grant: Grant | None = None) -> bool:
        """Close a quota for *delay* seconds; if *grant* is given, only while it is held."""

        def close(now: float) -> Sequence[Ticket] | None:
            if grant is not None and not self._scheduler.holds(grant):
                return None
            return self._core.close_quota(key, now + delay, model=model, evidence=evidence, now=now)

        if self._scheduler.run_report(close) is None:
            return False
        log.warning("[COORDINATOR] %s rate-limited for %.1fs%s", key.name, delay, f" (model {model})" if model else "")
        return True

    def masked(self, text: str, likely: str | None = None) -> str:
        """Return *text* without any piece of a secret; *likely* is the name of the credential it is about."""
        return self._masker.mask(text, None if likely is None else self._secret_of(likely).reveal())

    def _evidence(self, grant: Grant, reason: object) -> str:
        return self._masker.mask(str(reason)[:_LONGEST_EVIDENCE], self._secret_of(grant.key.name).reveal())


def _checked(signal: Signal) -> Signal | None:
    """Validate a signal that a caller made; None if no answer could have produced it."""
    try:
        return signal.sane()
    except Exception:  # noqa: BLE001 - its fields may be anything
        return None


def _describe_report(grant: Grant, what: str, reporter: str | None) -> str:
    """Return ``fix.sh reported a rate limit (ISSUE-07)``: the worker and its item, or the holder of the lease."""
    if reporter is None:
        return f"{grant.requester or 'the caller'} reported {what}"
    item = f" ({grant.requester})" if grant.requester else ""
    return f"{reporter} reported {str(what)[: _LONGEST_EVIDENCE - 100]}{item}"


def describe_answer(grant: Grant, signal: Signal) -> str:
    """Return ``openai answered 429: rate_limit_exceeded (ISSUE-07)``, or the evidence if there was no answer."""
    why = signal.why
    if signal.status is not None:
        known = (f"status {signal.status}", str(signal.status))
        details = [each for each in signal.evidence if each not in known and not each.startswith("exception ")]
        who = "the provider" if signal.provider in GENERIC_PROVIDERS else signal.provider
        why = ": ".join([f"{who} answered {signal.status}", *filter(None, ["; ".join(map(_strip_place, details))])])
    return f"{why[: _LONGEST_EVIDENCE - 100]} ({grant.requester})" if grant.requester and why else why


def _strip_place(detail: str) -> str:
    """Return the detail without where in the answer it was."""
    return _PLACE.sub("", detail)


def _describe_signal(signal: Signal) -> str:
    wait = "" if signal.delay is None else f", for {signal.delay:.1f}s"
    return f"{signal.event.name.lower().replace('_', ' ')}{wait} ({signal.why})"
