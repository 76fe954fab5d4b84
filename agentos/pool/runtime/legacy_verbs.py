"""The original verbs: plain strings go in and come out. The same pool, the same leases underneath."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import MutableMapping

from ...errors import NeverFits, NoCredentialAvailable, NoUsableCredential
from ...providers.answers.number_formats import delay_from
from ...util.clock import Clock
from ..core.learning.adaptive_pool import LearningPool
from ..core.records import PLAIN, Grant
from ..lease import Lease
from .feedback import Reports
from .scheduler import check_timeout

log = logging.getLogger("agentos")


class StringVerbs(Reports):
    """Reservations by secret. A reservation is a lease that the pool keeps for the thread that asked."""

    def __init__(self, core: LearningPool, clock: Clock | None = None) -> None:
        super().__init__(core, clock)
        self._names: dict[str, str] = {}  # secret -> name
        self._reserved: dict[str, OrderedDict[int, Grant]] = {}  # name -> reservations by token, oldest first
        self._mine = threading.local()  # .by_name: name -> this thread's reservations; an empty list: it had some

    def reserve(self, timeout: float | None = None) -> str | None:
        """Reserve a credential, waiting for one as long as *timeout* (None: as long as it takes).

        Returns the secret, or None if the time is up or no credential can ever serve.
        """
        if timeout is not None:
            check_timeout(timeout)
        return self._reserve(threading.current_thread().name, timeout)

    def reserve_credential(self, requester_id: str) -> str | None:
        """Reserve a credential at once, or return None."""
        return self._reserve(str(requester_id), 0)

    def acquire_credential(self) -> str | None:
        """Reserve a credential at once, or return None."""
        return self._reserve(threading.current_thread().name, 0)

    def _reserve(self, requester: str, timeout: float | None) -> str | None:
        self._simulate_rate_limit(os.environ)
        try:
            grant = self.take(PLAIN, requester, timeout, "await pool.acquire_async()")
        except (NoCredentialAvailable, NoUsableCredential, NeverFits):
            return None
        name = grant.key.name
        mine = self._own().setdefault(name, [])
        with self._held_still():
            reserved = self._reserved.setdefault(name, OrderedDict())
            for old in [old for old in reserved.values() if not self._holds(old)]:
                del reserved[old.token]  # ended by max_lease
            mine[:] = [old for old in mine if self._holds(old)]  # given back by another thread
            mine.append(grant)
            reserved[grant.token] = grant
        return self.secret_of(name).reveal()

    def release(self, credential: str | Lease) -> None:
        """Give a reserved credential back: this thread's own reservation, or, if it never had one, the oldest.

        If this thread's own has already ended, nothing changes: the key may be somebody else's by now.
        """
        if isinstance(credential, Lease):
            credential.release()
            return
        name = self._known(credential)
        if name is not None:
            grant = self._reservation(name)
            if grant is not None:
                self.give_back(grant)
            else:
                log.warning("[COORDINATOR] no reservation of %s to end here; nothing changed", name)

    def release_credential(self, credential_key: str) -> None:
        """Give a reserved credential back, as ``release`` does."""
        self.release(credential_key)

    def mark_rate_limited(
        self,
        credential: str | None = None,
        backoff_seconds: float | None = None,
        *,
        credential_key: str | None = None,
    ) -> None:
        """Leave the credential's quota alone for *backoff_seconds*, and end the reservation ``release`` would end.

        A ``Lease`` is never ended by this.
        """
        name = self._known(credential if credential_key is None else credential_key)
        if name is None:
            return
        delay = delay_from(backoff_seconds, wall=self._clock.wall())
        if delay is None:
            delay = float(self.RATE_LIMIT_BACKOFF_SECONDS)
        # First the cooling: were the slot given back before, a waiter would get it.
        self._close_quota(self._core.keys[name], delay, None, f"mark_rate_limited for {delay:g}s")
        grant = self._reservation(name)
        if grant is not None:
            self.give_back(grant)  # no reservation to end is nothing to speak of: the quota rests

    # -- whose reservation ------------------------------------------------------------------------------------

    def _own(self) -> dict[str, list[Grant]]:
        by_name: dict[str, list[Grant]] | None = getattr(self._mine, "by_name", None)
        if by_name is None:
            by_name = self._mine.by_name = {}
        return by_name

    def _reservation(self, name: str) -> Grant | None:
        """Take the reservation to be ended off the books."""
        mine = self._own().get(name)
        with self._held_still():
            reserved = self._reserved.get(name)
            if mine is not None:
                while mine:
                    grant = mine.pop(0)
                    if reserved and reserved.pop(grant.token, None) is not None and self._holds(grant):
                        return grant
            else:
                while reserved:
                    _, grant = reserved.popitem(last=False)
                    if self._holds(grant):
                        return grant
        return None

    def _known(self, credential: object) -> str | None:
        name = self._names.get(credential) if isinstance(credential, str) else None
        if name is None:
            log.warning("[COORDINATOR] that credential is not in this pool; nothing changed")
        return name

    def _simulate_rate_limit(self, environ: MutableMapping[str, str]) -> None:
        """``AGENTOS_SIMULATE_429=true`` limits the first key once, to see what a run does then."""
        if environ.get("AGENTOS_SIMULATE_429") != "true" or not self._core.keys:
            return
        try:
            del environ["AGENTOS_SIMULATE_429"]
        except KeyError:
            return  # another thread was first
        first = next(iter(self._core.keys.values()))
        self._close_quota(first, float(self.RATE_LIMIT_BACKOFF_SECONDS), None, "AGENTOS_SIMULATE_429")
