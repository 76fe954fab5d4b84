"""The verbs of the original coordinators: strings in and out, with leases of the same pool underneath."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, MutableMapping

from ...errors import NeverFits, NoCredentialAvailable, NoUsableCredential
from ...providers.answers.date_and_number_formats import parse_delay
from ..core.records import PLAIN, Grant
from ..secret import Secret
from .feedback import Feedback
from .scheduler import Scheduler

log = logging.getLogger("agentos")


class LegacyVerbs:
    """Reservations by secret. A reservation is a lease that the pool keeps for the requesting thread.

    *names* has the name of each credential by its secret; *secret_of* returns a secret by that name.
    """

    def __init__(
        self, scheduler: Scheduler, feedback: Feedback, names: Mapping[str, str], secret_of: Callable[[str], Secret]
    ) -> None:
        self._scheduler = scheduler
        self._core = scheduler.core
        self._close_quota = feedback.close_quota
        self._default_backoff = feedback.default_backoff
        self._names = names
        self._secret_of = secret_of
        self._reserved: dict[str, OrderedDict[int, Grant]] = {}  # name -> reservations by token, oldest first
        self._mine = threading.local()  # .by_name: name -> this thread's reservations; an empty list: it had some

    def reserve(self, requester: str, timeout: float | None) -> str | None:
        """Reserve a credential within *timeout* seconds; return its secret, or None."""
        self.simulate_rate_limit(os.environ)
        try:
            grant = self._scheduler.take(PLAIN, requester, timeout, "await pool.acquire_async()")
        except (NoCredentialAvailable, NoUsableCredential, NeverFits):
            return None
        name = grant.key.name
        mine = self._own().setdefault(name, [])
        with self._scheduler.locked():
            reserved = self._reserved.setdefault(name, OrderedDict())
            for old in [old for old in reserved.values() if not self._scheduler.holds(old)]:
                del reserved[old.token]  # ended by max_lease
            mine[:] = [old for old in mine if self._scheduler.holds(old)]  # released by another thread
            mine.append(grant)
            reserved[grant.token] = grant
        return self._secret_of(name).reveal()

    def release(self, credential: str) -> None:
        """End this thread's own reservation, or, if it never had one, the oldest."""
        name = self._known(credential)
        if name is not None:
            grant = self._reservation(name)
            if grant is not None:
                self._scheduler.give_back(grant)
            else:
                log.warning("[COORDINATOR] no reservation of %s to end here; nothing changed", name)

    def mark_rate_limited(self, credential: str | None, backoff_seconds: float | None) -> None:
        """Close the credential's quota for *backoff_seconds*, and end the reservation ``release`` would end."""
        name = self._known(credential)
        if name is None:
            return
        delay = parse_delay(backoff_seconds, wall=self._scheduler.clock.wall())
        if delay is None:
            delay = self._default_backoff()
        # First the cooldown: if the slot were released before, a waiter would get it.
        self._close_quota(self._core.keys[name], delay, None, "a rate limit was reported with mark_rate_limited()")
        grant = self._reservation(name)
        if grant is not None:
            self._scheduler.give_back(grant)  # it is fine if there is no reservation to end: the quota cools down

    # -- selecting a reservation ------------------------------------------------------------------------------

    def _own(self) -> dict[str, list[Grant]]:
        by_name: dict[str, list[Grant]] | None = getattr(self._mine, "by_name", None)
        if by_name is None:
            by_name = self._mine.by_name = {}
        return by_name

    def _reservation(self, name: str) -> Grant | None:
        """Remove and return the reservation to be ended."""
        mine = self._own().get(name)
        with self._scheduler.locked():
            reserved = self._reserved.get(name)
            if mine is not None:
                while mine:
                    grant = mine.pop(0)
                    if reserved and reserved.pop(grant.token, None) is not None and self._scheduler.holds(grant):
                        return grant
            else:
                while reserved:
                    _, grant = reserved.popitem(last=False)
                    if self._scheduler.holds(grant):
                        return grant
        return None

    def _known(self, credential: object) -> str | None:
        name = self._names.get(credential) if isinstance(credential, str) else None
        if name is None:
            log.warning("[COORDINATOR] that credential is not in this pool; nothing changed")
        return name

    def simulate_rate_limit(self, environ: MutableMapping[str, str]) -> None:
        """Rate-limit the first key once if ``AGENTOS_SIMULATE_429=true``, to try out a run."""
        if environ.get("AGENTOS_SIMULATE_429") != "true" or not self._core.keys:
            return
        try:
            del environ["AGENTOS_SIMULATE_429"]
        except KeyError:
            return  # another thread was first
        first = next(iter(self._core.keys.values()))
        self._close_quota(first, self._default_backoff(), None, "AGENTOS_SIMULATE_429")
