"""What holders say of their calls: too many, refused, out of money. It reaches the core with its evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...credentials._core.pool import LeasePool
from ...credentials._core.records import Grant, Key, Ticket
from ...credentials.clock import Clock
from ...credentials.delays import delay_from
from ...credentials.masking import Masker
from ._shell import PoolShell, log

_LONGEST_EVIDENCE = 500


class Reports(PoolShell):
    """Believes its holders, as long as they hold."""

    RATE_LIMIT_BACKOFF_SECONDS = 60

    def __init__(self, core: LeasePool, clock: Clock | None = None) -> None:
        super().__init__(core, clock)
        self._masker = Masker()

    def limited(self, grant: Grant, retry_after: object, model: str | None) -> bool:
        """The provider said "too many" to this lease's call."""
        delay = delay_from(retry_after, wall=self._clock.wall())
        if delay is not None:
            evidence = f"rate_limited(retry_after={delay:g}) by lease {grant.token}"
        else:
            delay = float(self.RATE_LIMIT_BACKOFF_SECONDS)
            evidence = f"rate_limited() by lease {grant.token}, default of {delay:g}s"
        if not self._close_quota(grant.key, delay, model, evidence, grant):
            self._say_stale(grant, "rate limit")
            return False
        return True

    def refused(self, grant: Grant, reason: str) -> bool:
        """The provider refused the credential itself."""
        return self._put_out_of_use(grant, reason, self._core.reject, f"credential {grant.key.name} is dead")

    def out_of_money(self, grant: Grant, reason: str) -> bool:
        """The quota's money is gone."""
        return self._put_out_of_use(grant, reason, self._core.spend, f"quota {grant.key.quota.name} is spent")

    def _put_out_of_use(
        self, grant: Grant, reason: str, act: Callable[[Key, str, float], Sequence[Ticket]], what: str
    ) -> bool:
        evidence = self._evidence(grant, reason)

        def put(now: float) -> Sequence[Ticket] | None:
            return act(grant.key, evidence, now) if self._holds(grant) else None

        if self._turn(put) is None:
            self._say_stale(grant, "a refusal")
            return False
        log.error("[COORDINATOR] %s until revived: %s", what, evidence)
        return True

    def _close_quota(
        self, key: Key, delay: float, model: str | None, evidence: str, grant: Grant | None = None
    ) -> bool:
        """Leave a quota alone for *delay* seconds; if *grant* is given, only while it is held."""

        def close(now: float) -> Sequence[Ticket] | None:
            if grant is not None and not self._holds(grant):
                return None
            return self._core.close_quota(key, now + delay, model=model, evidence=evidence, now=now)

        if self._turn(close) is None:
            return False
        log.warning("[COORDINATOR] %s rate-limited for %.1fs%s", key.name, delay, f" (model {model})" if model else "")
        return True

    def masked(self, text: str) -> str:
        """*text* without any piece of a secret of this pool."""
        return self._masker.mask(text)

    def masked_long(self, text: str) -> str:
        """The same for a text that may be long: finds stretches of fifteen characters and more."""
        return self._masker.mask_long(text)

    def _evidence(self, grant: Grant, reason: object) -> str:
        return self._masker.mask(str(reason)[:_LONGEST_EVIDENCE], self.secret_of(grant.key.name).reveal())
