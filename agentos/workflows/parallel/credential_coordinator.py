"""The credential pool: who may use which key, and when. For threads and asyncio, on one object."""

from __future__ import annotations

import atexit
import math
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from ...errors import PoolClosed
from ...pool.core.checked_pool import AuditedPool
from ...pool.core.cost import request_cost
from ...pool.core.credential_report import report, why_waiting
from ...pool.core.forecast import outlook, survey
from ...pool.core.learning.adaptive_pool import LearningPool
from ...pool.core.limits.base import FOREVER
from ...pool.core.records import NO_LABELS, PLAIN, Ask, Grant, KeySpec, Ticket
from ...pool.credential import Credential, labels_of
from ...pool.lease import ACQUIRED, Lease
from ...pool.runtime.maintenance_thread import Housekeeper
from ...pool.runtime.scheduler import check_timeout, log
from ...pool.snapshot import CredentialState, Explanation, Forecast, state_from
from ...pool.store_protocol import CredentialNews, Lender, QuotaNews, Ringer, Store
from ...stores.factory import Opened, open_store
from ...stores.redis.url import RedisPlace
from ...stores.shared_pool.pool import SharedPool
from ...stores.sqlite.location import place_of
from ...transport.pool_binding import HttpCalls
from ...util.clock import Clock
from ...util.locks import PoliteLock

__all__ = ["CredentialCoordinator", "CredentialState", "Explanation"]

LabelsArgument = Mapping[str, object] | Iterable[str] | None


class _AuditedSharedPool(AuditedPool, SharedPool):
    """Checks its promises, on its view of the store: others may open again what was closed here."""

    def absorb(self, credentials: Sequence[CredentialNews], quotas: Sequence[QuotaNews]) -> None:
        super().absorb(credentials, quotas)
        for quota in self.quotas.values():
            self.review_closings(quota)


def _core(*, shared: bool, debug: bool, keep_free: int, max_lease: float | None) -> LearningPool:
    kinds = (_AuditedSharedPool, SharedPool) if shared else (AuditedPool, LearningPool)
    return kinds[not debug](keep_free=keep_free, max_lease=max_lease)


_MOST_NAMED = 3

_stores: weakref.WeakSet[Store] = weakref.WeakSet()


@atexit.register
def return_all_leases() -> None:
    """At the end of the process, what it holds is free at once, unless it is in use on other machines."""
    for store in list(_stores):
        store.leave()


def _require_positive(argument: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{argument} must be a number above zero")


class CredentialCoordinator(HttpCalls):
    """A pool of credentials, each leased to one user at a time, or to as many as it has slots.

    ``credentials`` are ``Credential`` objects or plain secrets. ``store`` is where the pool's state is kept: in
    ``"memory"``, or in a file that every process of this machine shares and the next one finds, ``"sqlite"`` for the
    user's own (``AGENTOS_HOME`` moves it) or ``"sqlite:///path"``, or on a server that many machines share,
    ``"redis://host:port/db?pool=name"``. ``keep_free=N`` always leaves N slots unused for
    others. ``max_lease`` ends a lease after so many seconds, if its holder forgot it. ``lease_ttl`` is how long the
    leases of a process last in a shared store when it dies or stands still; ``weight`` is its share when several
    processes wait. ``debug`` checks the pool's promises after every step (also by ``AGENTOS_DEBUG=1``); it is slow.
    """

    lease_ttl: float | None = None  # in a shared store; else leases last as long as this process
    _store: Store | None = None  # only where it is shared
    _bell: Ringer

    def __init__(
        self,
        credentials: Iterable[str | Credential] = (),
        *,
        store: str | os.PathLike[str] = "memory",
        keep_free: int = 0,
        max_lease: float | None = None,
        lease_ttl: float = 30.0,
        weight: float = 1.0,
        clock: Clock | None = None,
        debug: bool | None = None,
    ) -> None:
        if isinstance(credentials, (str, bytes, Credential)):
            raise ValueError("credentials must be a list of credentials, not a single one")
        if isinstance(credentials, Mapping):  # whose names would be taken for secrets
            raise ValueError(
                "credentials must be a list of credentials, not a mapping; give each its name with "
                "Credential(secret, name=...)"
            )
        all_given = list(credentials)
        given = _first(all_given, os.environ.get("AGENTOS_CREDENTIAL_LIMIT"))
        if isinstance(keep_free, bool) or not isinstance(keep_free, int) or keep_free < 0:
            raise ValueError("keep_free must be a whole number of at least 0")
        if max_lease is not None and (not isinstance(max_lease, (int, float)) or not 0 < max_lease < math.inf):
            raise ValueError("max_lease must be a number of seconds above zero")
        if debug is None:
            debug = os.environ.get("AGENTOS_DEBUG", "") not in ("", "0")
        _require_positive("lease_ttl", lease_ttl)
        _require_positive("weight", weight)
        place = place_of(store, os.environ)
        core = _core(shared=place is not None, debug=debug, keep_free=keep_free, max_lease=max_lease)
        super().__init__(core, clock)
        if isinstance(place, RedisPlace):
            self._mask_passwords(place.passwords)
        for unused in all_given[len(given) :]:  # not to be used, and not to be shown
            self._masker.add(unused.secret.reveal() if isinstance(unused, Credential) else str(unused))
        if place is None:
            self._take_in(given, keep_free)
            return
        self._lock = PoliteLock()
        self.lease_ttl = lease_ttl
        opened = self._open(place, lease_ttl, weight)
        self._store, self._bell = opened.store, opened.bell
        try:
            self._take_in(given, keep_free)
        except BaseException:
            self._store.close()
            self._bell.close()
            raise
        weakref.finalize(self, self._bell.release).atexit = False  # so that its housekeeper sees that it is gone
        Housekeeper(self, self._clock, self._bell, self._store.close)

    def _mask_passwords(self, passwords: Sequence[str]) -> None:
        too_short = [password for password in passwords if not self._masker.add_password(password)]
        if too_short:
            log.warning("[COORDINATOR] the password of the store is shorter than 8 characters: too short to be masked")

    def _take_in(self, given: Sequence[str | Credential], keep_free: int) -> None:
        taken = {c.name for c in given if isinstance(c, Credential) and c.name is not None}
        admitted = [self._admit(credential, taken, f"credentials[{index}]") for index, credential in enumerate(given)]
        _warn_of_short_secrets([name for name, can_be_masked in admitted if not can_be_masked])
        slots = sum(1 if known.slots == "auto" else known.slots for known in self._credentials.values())
        if keep_free and keep_free >= slots:
            raise ValueError(f"keep_free must be below the number of slots ({slots}), or nothing could be leased")
        self._simulate_rate_limit(os.environ)

    def _open(self, place: Path | RedisPlace, ttl: float, weight: float) -> Opened:
        """Share the pool's state with whoever else has opened it there."""
        core = self._core
        assert isinstance(core, SharedPool)  # noqa: S101 - for the type checker
        core.mask = self._masker.mask
        opened = open_store(place, self._clock, ttl=ttl, weight=weight, view=core)
        store, credentials = opened.store, self._credentials
        core.attach(store)
        core.fingerprint_of = lambda name: store.fingerprint(credentials[name].secret.reveal())
        _stores.add(store)
        return opened

    def _do_soon(self) -> None:
        if self._store is None:
            super()._do_soon()
        else:
            self._store.nudge()  # for its housekeeper: a finalizer must not wait for a store

    def _store_in_parent(self) -> str | None:
        return None if self._store is None else self._store.where

    # -- for the housekeeper of a shared pool -----------------------------------------------------------------

    def keep_up(self, called: bool) -> None:
        """Renew what is held, and see what others did. *called*: they say that it is our turn."""
        core = self._core
        assert isinstance(core, SharedPool)  # noqa: S101 - for the type checker
        self._turn(lambda now: core.keep_up(now, called=called))

    def due_at(self) -> float:
        """When ``keep_up`` should be called."""
        core = self._core
        assert isinstance(core, SharedPool)  # noqa: S101 - for the type checker
        with self._held_still():
            return core.due_at(self._now())

    def is_over(self) -> bool:
        """Closed, and nothing left to give back."""
        return self._core.closed and not self._core.leases

    # -- for runs that do not wait for a worker ----------------------------------------------------------------

    def abandon(self, grants: Sequence[Grant]) -> float | None:
        """Renew these leases no more: their run was stopped, and their workers still run.

        Returns within how many seconds a shared store frees them; None: they last until they are given back.
        """
        abandoned = False

        def abandon(_now: float) -> Sequence[Ticket]:
            nonlocal abandoned
            abandoned = self._core.abandon(grants)
            return ()

        self._turn(abandon)
        return self.lease_ttl if abandoned else None

    # -- for engines whose workers are on other machines ------------------------------------------------------

    def lend(self, lender: Lender, out_for: float) -> None:
        """Leases that begin from now on may be used on other machines, for *out_for* seconds after this one is gone.

        In a shared store they then end by their time, and not with this process; see ``Store.lend``.
        """
        if self._store is not None:
            self._store.lend(lender, out_for)

    def good_for(self) -> float:
        """For how many seconds leases may be used, if nothing is heard of the shared store any more."""
        return FOREVER if self._store is None else self._store.valid_until - self._now()

    # -- for engines whose commands may outlive this process ----------------------------------------------------

    def lock_lease(self, grant: Grant, mark: str) -> int | None:
        """A descriptor for a command with that *mark* to inherit; see ``Store.lock_lease``. The caller closes it."""
        if self._store is None:
            return None
        try:
            return self._store.lock_lease(grant.token, mark)
        except OSError as error:
            log.warning(
                "[COORDINATOR] no lock file for a command on %s (%s): should this process be killed, the next one may "
                "use the key while that command still runs",
                grant.key.name,
                error.strerror or error,
            )
            return None

    def unlock_lease(self, grant: Grant) -> None:
        """The command has ended."""
        if self._store is not None:
            self._store.unlock_lease(grant.token)

    # -- leases -----------------------------------------------------------------------------------------------

    def lease(
        self,
        requester: str | None = None,
        *,
        timeout: float | None = None,
        cost: Mapping[str, float] | None = None,
        model: str | None = None,
        affinity: str | None = None,
        priority: int = 0,
        labels: LabelsArgument = None,
    ) -> Lease:
        """A lease for one ``with`` or ``async with`` block, which waits for a credential and gives it back.

        ``cost`` is the estimate to reserve, such as ``{"input_tokens": 900, "output_tokens": 400}``; ``model``
        makes limits and coolings of that model family count; requests of one ``affinity`` get the same credential
        while it is free; a higher ``priority`` goes first; ``labels`` restrict which credentials will do.
        Raises ``NoCredentialAvailable`` after *timeout* seconds, and at once ``NoUsableCredential`` or
        ``NeverFits`` when waiting would be in vain. Inside a worker that a run started with a lease of this pool, it
        is that lease, on loan: a second one could be waited for by everybody at once.
        """
        # What _request does, written out: one call less where a lease costs two microseconds.
        if timeout is not None:
            check_timeout(timeout)
        if model is None and affinity is None and labels is None and not priority:
            ask = PLAIN if cost is None else Ask(request_cost(cost))
        else:
            ask = _ask(cost, model, affinity, priority, labels)
        if self.lends and (lent := self.on_loan()) is not None:
            return lent
        return Lease(self, None, ask, requester, timeout)

    def acquire(
        self,
        requester: str | None = None,
        *,
        timeout: float | None = None,
        cost: Mapping[str, float] | None = None,
        model: str | None = None,
        affinity: str | None = None,
        priority: int = 0,
        labels: LabelsArgument = None,
    ) -> Lease:
        """A lease to release oneself; the arguments are those of ``lease``, and so is what a worker gets."""
        ask = _request(timeout, cost, model, affinity, priority, labels)
        if self.lends and (lent := self.on_loan()) is not None:
            return lent
        return Lease(self, self.take(ask, requester, timeout, "await pool.acquire_async()"), ACQUIRED)

    def acquire_nowait(
        self,
        requester: str | None = None,
        *,
        cost: Mapping[str, float] | None = None,
        model: str | None = None,
        affinity: str | None = None,
        priority: int = 0,
        labels: LabelsArgument = None,
    ) -> Lease:
        """A lease at once, or ``NoCredentialAvailable``. It does not pass those who wait."""
        return self.acquire(
            requester, timeout=0, cost=cost, model=model, affinity=affinity, priority=priority, labels=labels
        )

    async def acquire_async(
        self,
        requester: str | None = None,
        *,
        timeout: float | None = None,
        cost: Mapping[str, float] | None = None,
        model: str | None = None,
        affinity: str | None = None,
        priority: int = 0,
        labels: LabelsArgument = None,
    ) -> Lease:
        """A lease to release oneself, without blocking the running loop; the arguments are those of ``lease``."""
        ask = _request(timeout, cost, model, affinity, priority, labels)
        if self.lends and (lent := self.on_loan()) is not None:
            return lent
        grant = self.take_now(ask, requester)
        return Lease(self, grant or await self.wait_async(ask, requester, timeout), ACQUIRED)

    # -- who is in the pool -----------------------------------------------------------------------------------

    def add(self, credential: str | Credential) -> str:
        """Let a credential join, also while others wait. Returns its name."""
        name, can_be_masked = self._admit(credential, set(self._credentials), "credential")
        if not can_be_masked:
            _warn_of_short_secrets([name])
        return name

    def retire(self, name: str) -> None:
        """Take a credential out: leases on it run on, nothing new starts. Those who could use no other are told."""
        key = self._key(name)
        self._turn(lambda now: self._core.retire(key, now))
        log.info("[COORDINATOR] credential %s retired", name)

    def revive(self, name: str) -> None:
        """Put a retired, dead or spent credential back into use; a cooling of its quota stays."""
        key = self._key(name)
        self._turn(lambda now: self._core.revive(key, now))
        log.info("[COORDINATOR] credential %s revived", name)

    def clear(self, name: str) -> None:
        """Forget all that is known of a credential and its quota: death, money gone, coolings, what was used.

        For when a person knows better. In a shared store it is forgotten for everybody. Leases in force stay.
        """
        key = self._key(name)
        self._turn(lambda now: self._core.clear(key, now))
        log.info("[COORDINATOR] credential %s cleared", name)

    def close(self) -> None:
        """Grant nothing more. Every waiter gets ``PoolClosed`` at once; leases in force may still be given back."""
        if self._refusal is not None:
            return  # it is the parent's
        self._turn(lambda _now: self._core.close())
        if self._store is not None:
            self._bell.release()  # so that its housekeeper sees

    def __enter__(self) -> CredentialCoordinator:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.close()

    # -- looking at it ----------------------------------------------------------------------------------------

    def snapshot(self) -> list[CredentialState]:
        """Every credential, what it is, until when, and why."""
        self._bring_up_to_date()
        with self._held_still():
            now = self._now()
            rows = report(self._core, now)
        offset = self._clock.wall() - now
        return [state_from(row, now, offset) for row in rows]

    def explain(self, requester: str) -> Explanation:
        """Why *requester* waits, and when it will likely start."""
        self._bring_up_to_date()
        with self._held_still():
            now = self._now()
            for position, ticket in enumerate(self._core.tickets(), start=1):
                if str(ticket.requester) == str(requester):
                    return self._explain(requester, ticket, position, now)
            held = tuple(g.key.name for g in self._core.leases.values() if str(g.requester) == str(requester))
        return Explanation(requester, "holding" if held else "unknown", why=held)

    def _explain(self, requester: str, ticket: Ticket, position: int, now: float) -> Explanation:
        at = self._core.earliest(ticket.ask, now)
        if now < ticket.starts_at < FOREVER:
            at = max(at, ticket.starts_at)  # behind others
        return Explanation(
            requester,
            "waiting",
            position=position,
            waited=now - ticket.queued_at,
            starts_in=None if at == FOREVER else at - now,
            why=(*self._why_nothing_starts(now), *why_waiting(self._core, ticket, now)),
        )

    def _why_nothing_starts(self, now: float) -> tuple[str, ...]:
        return self._core.why_it_rests(now) if isinstance(self._core, SharedPool) else ()

    def get_available_count(self) -> int:
        """How many credentials could be leased right now."""
        return self.get_stats()["available"]

    def get_stats(self) -> dict[str, int]:
        """How many credentials are what; each is counted once, under what matters most about it.

        A retired credential counts only while somebody still holds it; one whose money is gone counts as dead; one
        that ``keep_free`` keeps for others counts as reserved.
        """
        self._bring_up_to_date()
        with self._held_still():
            rows = report(self._core, self._now())
        counts = {"total": 0, "available": 0, "reserved": 0, "rate_limited": 0, "parked": 0, "dead": 0}
        for row in rows:
            word = _COUNTED_AS[row.state] if row.state != "retired" or not row.holders else "reserved"
            if word is not None:
                counts[word] += 1
                counts["total"] += 1
        if self._core.keep_free:
            free = sum(row.slots - len(row.holders) for row in rows if row.state == "available")
            kept = max(0, counts["available"] - max(0, free - self._core.keep_free))
            counts["available"] -= kept
            counts["reserved"] += kept  # for others
        return counts

    def forecast(
        self,
        n_items: int,
        cost: Mapping[str, float] | None = None,
        duration: float = 1.0,
        *,
        parallel: int | None = None,
        model: str | None = None,
        labels: LabelsArgument = None,
    ) -> Forecast:
        """When *n_items* calls will be through, by what is known of the limits now, what holds them up, and what helps.

        ``cost`` is what each reserves, ``duration`` how many seconds it takes, ``parallel`` how many the caller has
        under way at most. Nobody else is reckoned with.
        """
        if isinstance(n_items, bool) or not isinstance(n_items, int) or n_items < 0:
            raise ValueError(f"n_items must be a whole number of at least 0, not {n_items!r}")
        if isinstance(duration, bool) or not isinstance(duration, (int, float)) or not 0 <= duration < math.inf:
            raise ValueError(f"duration must be a number of seconds, not {duration!r}")
        if parallel is not None and (isinstance(parallel, bool) or not isinstance(parallel, int) or parallel < 1):
            raise ValueError(f"parallel must be a whole number of at least 1, or left out, not {parallel!r}")
        ask = _ask(cost, model, None, 0, labels)
        self._bring_up_to_date()
        with self._held_still():
            now, wall = self._now(), self._clock.wall()
            surveyed = survey(self._core.keys.values(), ask, duration=duration, now=now, wall=wall)
        found = outlook(surveyed, n_items, parallel)
        return Forecast(found.seconds, wall + found.seconds, found.binding, found.moves)

    def _admit(self, given: str | Credential, taken: set[str], argument: str) -> tuple[str, bool]:
        """Take a credential in. Returns its name, and whether its secret is long enough to be masked."""
        credential = _as_credential(given, argument)
        secret = credential.secret.reveal()
        name = ""

        def admit(now: float) -> Sequence[Ticket]:
            nonlocal name
            if self._core.closed:
                raise PoolClosed
            self._look_at_wall()  # it may be the first with a limit per day
            if secret in self._names:
                raise ValueError(f"{argument}: this secret is already in the pool as {self._names[secret]}")
            name = credential.name if credential.name is not None else self._default_name(taken)
            if name in self._credentials:
                raise ValueError(f"{argument}: the name {name!r} is taken; each credential needs its own")
            self._check_quota(credential, argument)
            auto = credential.slots == "auto"
            slots = 1 if credential.slots == "auto" else credential.slots
            labels = credential.labels | self._destinations.labels_of(credential)
            spec = KeySpec(name, slots, credential.quota, credential.limits, labels, auto)
            self._credentials[name] = credential
            try:
                touched = self._core.add(spec, now)
            except BaseException:
                del self._credentials[name]
                raise
            self._names[secret] = name
            return touched

        can_be_masked = self._masker.add(secret)  # first: whoever waits may have it the moment it is in
        self._turn(admit)
        return name, can_be_masked

    def _default_name(self, taken: set[str]) -> str:
        number = len(self._credentials) + 1
        while f"key-{number}" in self._credentials or f"key-{number}" in taken:
            number += 1
        return f"key-{number}"

    def _check_quota(self, credential: Credential, argument: str) -> None:
        quota = self._core.quotas.get((True, credential.quota or ""))
        if quota is not None and {state.limit for state in quota.stated} != set(credential.limits):
            raise ValueError(
                f"{argument}: limits differ from those of {quota.keys[0].name}, which shares the quota "
                f"{credential.quota!r}; limits belong to the quota, so state the same for both"
            )


def _warn_of_short_secrets(names: Sequence[str]) -> None:
    """One line, however many there are."""
    if len(names) == 1:
        log.warning("[COORDINATOR] the secret of %s is shorter than 8 characters: too short to be masked", names[0])
    elif names:
        log.warning(
            "[COORDINATOR] the secrets of %d credentials are shorter than 8 characters: too short to be masked (%s%s)",
            len(names),
            ", ".join(names[:_MOST_NAMED]),
            ", ..." if len(names) > _MOST_NAMED else "",
        )


_COUNTED_AS: dict[str, str | None] = {
    "available": "available",
    "leased": "reserved",
    "cooling": "rate_limited",
    "limited": "rate_limited",
    "parked": "parked",
    "spent": "dead",
    "dead": "dead",
    "retired": None,
}


def _request(
    timeout: float | None,
    cost: Mapping[str, float] | None,
    model: str | None,
    affinity: str | None,
    priority: int,
    labels: LabelsArgument,
) -> Ask:
    """Check the arguments of a request; what it asks for."""
    if timeout is not None:
        check_timeout(timeout)
    if cost is None and model is None and affinity is None and labels is None and not priority:
        return PLAIN
    return _ask(cost, model, affinity, priority, labels)


def _ask(
    cost: Mapping[str, float] | None,
    model: str | None,
    affinity: str | None,
    priority: int,
    labels: LabelsArgument,
) -> Ask:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise ValueError("priority must be a whole number; higher goes first")
    for argument, value in (("model", model), ("affinity", affinity)):
        if value is not None and not (isinstance(value, str) and value):
            raise ValueError(f"{argument} must be text, or left out")
    wanted = NO_LABELS if labels is None else labels_of("labels", labels)
    return Ask(request_cost(cost), model, affinity, priority, wanted)


def _as_credential(given: str | Credential, argument: str) -> Credential:
    if isinstance(given, Credential):
        return given
    try:
        return Credential(given)
    except ValueError as error:
        raise ValueError(f"{argument}: {error}") from None


def _first(given: Sequence[str | Credential], limit: str | None) -> Sequence[str | Credential]:
    """``AGENTOS_CREDENTIAL_LIMIT=N`` uses the first N credentials only."""
    if limit is None or not limit.strip():
        return given
    if not limit.strip().isdecimal() or len(limit) > 9 or int(limit) < 1:
        raise ValueError(f"AGENTOS_CREDENTIAL_LIMIT must be a whole number of at least 1, not {limit[:20]!r}")
    return given[: int(limit)]
