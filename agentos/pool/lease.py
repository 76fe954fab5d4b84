"""A lease as its holder sees it: the right to use one credential until it is released."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from types import TracebackType
from typing import Protocol
from weakref import WeakSet

from ..costs.usage import Usage
from ..costs.usage_log import UsageLog
from ..errors import LeaseLost
from ..providers.answers.usage import StatedUsage, parse_reported_usage
from ..providers.clients.untrusted import read_attribute
from ..providers.signal import Signal
from .core.cost import AbsurdUsage, is_absurd, parse_used
from .core.records import Grant, LeaseRequest
from .protocols import LeaseIssuer
from .secret import Secret


class _AlreadyStarted(LeaseRequest):
    """A placeholder for the request of a lease that has begun."""

    __slots__ = ()


ACQUIRED = _AlreadyStarted()  # and may be entered once, so that a block releases it
_ENTERED = _AlreadyStarted()


class Lease:
    """The right to use one credential. Single use: ``with pool.lease() as lease: ... lease.reveal() ...``.

    Methods that change something return True if they did: on a lease that has ended (released, or ended by the pool)
    nothing changes, and the log notes it. A lease that is dropped without being released is released when it is
    collected, with a ``ResourceWarning``: keep it for as long as its secret is in use.
    """

    __slots__ = ("_grant", "_pool", "_request", "_requester", "_timeout")
    _reporter: str | None = None  # the worker that reports; the item is the lease's requester

    def __init__(
        self,
        pool: LeaseIssuer,
        grant: Grant | None,
        request: LeaseRequest | None = None,
        requester: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self._pool = pool
        self._grant = grant
        self._request = request
        self._requester = requester
        self._timeout = timeout

    # -- acquiring and releasing ------------------------------------------------------------------------------

    def __enter__(self) -> Lease:
        request = self._request
        self._request = _ENTERED
        if request.__class__ is not LeaseRequest:
            return self._check_reentry(request)
        pool = self._pool
        take_now = pool.take_now  # an attribute of the pool: Python 3.11 calls it faster in two steps
        grant = take_now(request, self._requester)
        if grant is None:
            grant = pool.wait(request, self._requester, self._timeout, "async with pool.lease()")
        self._grant = grant
        return self

    def __exit__(self, kind: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None) -> None:
        if self._grant is not None:
            if kind is not None:
                self._pool.mark_unknown_outcome(self._grant)
            give_back = self._pool.give_back
            give_back(self._grant)
            self._request = None

    async def __aenter__(self) -> Lease:
        request = self._request
        self._request = _ENTERED
        if request.__class__ is not LeaseRequest:
            return self._check_reentry(request)
        pool = self._pool
        grant = pool.take_now(request, self._requester)
        if grant is None:
            grant = await pool.wait_async(request, self._requester, self._timeout)
        self._grant = grant
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        if self._grant is not None:
            if kind is not None:
                self._pool.mark_unknown_outcome(self._grant)
            self._pool.give_back(self._grant)
            self._request = None

    def __del__(self, is_at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        if (
            self._request is not None
            and self._grant is not None
            and not is_at_exit()
            and self._pool.on_lease_dropped(self._grant)
        ):
            whose = "" if self.requester is None else f" of {self.requester!r}"
            warnings.warn(f"a lease{whose} was dropped without being released", ResourceWarning, 1, self)

    def _check_reentry(self, request: LeaseRequest | None) -> Lease:
        if request is not ACQUIRED or not self.held:
            raise RuntimeError("a lease is for one use: request a new one from the pool")
        return self

    def release(self) -> bool:
        """Release the credential. False: the lease had already ended, and nothing changed."""
        give_back = self._pool.give_back
        ended = give_back(self._grant or self._held())
        self._request = None
        return ended

    # -- using ------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The credential's name, which may be shown."""
        return self._held().key.name

    @property
    def token(self) -> int:
        """The number of this lease. Later leases have larger ones."""
        return self._held().token

    @property
    def requester(self) -> str | None:
        """The name under which the lease was requested."""
        return self._requester if self._grant is None else self._grant.requester

    @property
    def secret(self) -> Secret:
        """The secret in its holder object, which never shows it; ``reveal()`` returns the text.

        Raises ``LeaseLost`` if the lease is lost: another process may have the credential.
        """
        self.require()
        return self._pool.get_secret(self.name)

    def reveal(self) -> str:
        """Return the secret as text, for the code that makes the call."""
        return self.secret.reveal()

    def require(self) -> None:
        """Raise ``LeaseLost`` if another process may have the credential."""
        grant = self._held()
        why = self._pool.find_loss_reason(grant)
        if why is not None:
            raise LeaseLost(name=grant.key.name, token=grant.token, detail=why)

    @property
    def held(self) -> bool:
        """Return True if the lease is still in force."""
        return self._grant is not None and self._pool.is_held(self._grant)

    # -- reporting --------------------------------------------------------------------------------------------

    def settle(self, used: Mapping[str, float] | None = None, /, **amounts: float) -> bool:
        """Report what was really used: ``settle(input_tokens=900, output_tokens=120)``. The last report counts.

        *used* may also be the ``usage`` object of an answer, as a mapping. Usage with a figure that no call can have
        (below zero, not finite, above 1e9) is ignored; the log notes it once.
        """
        stated = parse_reported_usage(amounts if used is None else {**used, **amounts})
        return self.settle_stated(stated.counted, stated.billed)

    def settle_stated(self, counted: Mapping[str, float], billed: Usage) -> bool:
        """Report what was used as it counts against the limits, and as it is billed."""
        settled = self._settle(counted)
        log, grant = self._usage_log(), self._held()
        if log is not None and not any(map(is_absurd, counted.values())):
            log.set_total(grant.token, grant.key.name, billed)
        return settled

    def _usage_log(self) -> UsageLog | None:
        """Return where the usage of the attempt is collected that uses this lease."""
        attempt = CURRENT_ATTEMPT.get()
        return None if attempt is None else attempt.usage_log

    def _add_usage(self, signal: Signal | None) -> None:
        """Add the usage that an answer states to that of the attempt."""
        log, grant = self._usage_log(), self._held()
        if log is not None and signal is not None:
            log.add_call(grant.token, grant.key.name, signal.billed or StatedUsage(signal.usage).billed)

    def _settle(self, amounts: Mapping[str, float], *, whole: bool = True) -> bool:
        grant = self._grant or self._held()
        try:
            used = parse_used("settle", amounts, whole=whole)
        except AbsurdUsage:
            return self._pool.ignore_usage(grant)
        return self._pool.settle(grant, used)

    def rate_limited(self, retry_after: object = None, model: str | None = None) -> bool:
        """Report a rate limit: the quota (for *model* only, if given) cools down for *retry_after*.

        Seconds, text or an HTTP date; anything unusable counts as the default. The lease stays in force.
        """
        if model is not None and not (isinstance(model, str) and model):
            raise ValueError("model must be the name of a model, or left out for all of them")
        return self._pool.report_rate_limited(self._held(), retry_after, model, self._reporter)

    def rejected(self, reason: str = "rejected by the provider") -> bool:
        """Report that the provider refused the credential: it is not used until a person revives it."""
        return self._pool.report_rejected(self._held(), reason, self._reporter)

    def spent(self, reason: str = "the quota's money is gone") -> bool:
        """Report that the quota's money is gone: none of its credentials is used until a person revives one."""
        return self._pool.report_out_of_money(self._held(), reason, self._reporter)

    def report(self, thing: object) -> Signal | None:
        """Report what came back: a response, an exception of the client, or a ``Signal``.

        The pool reads from it how much is left, how long to wait, if the credential is good, and the usage, for all the
        clients and providers in docs/limits.md. Returns the signal it was read as; None if a provider's client does not
        make such an object. The lease stays in force.
        """
        signal = self._pool.report_answer(self._held(), thing)[0]
        self._add_usage(signal)
        return signal

    def _held(self) -> Grant:
        if self._grant is None:
            raise RuntimeError("this lease has not begun: enter it with `with` or `async with` first")
        return self._grant

    def __repr__(self) -> str:
        if self._grant is None:
            return "<Lease not begun>"
        return f"<Lease {self._grant.token} on {self._grant.key.name}{'' if self.held else ', ended'}>"


class Abandonable(Protocol):
    """A reader that uses a lease and can be told to stop."""

    def abandon(self) -> None: ...


class ItemLease(Lease):
    """The lease an item was started with: its run releases it. A ``with`` block of the worker does not.

    It keeps what its holder reported, because an attempt that then raises failed because of that, not of its item.
    """

    __slots__ = ("_log", "_open", "_reporter", "_used", "last_report", "mismatch", "signal", "trouble")

    def __init__(
        self, pool: LeaseIssuer, grant: Grant, log: UsageLog | None = None, reporter: str | None = None
    ) -> None:
        super().__init__(pool, grant)
        self._log = log
        self._reporter = reporter  # the name of the worker
        self._used: dict[str, float] = {"requests": 0}  # of the calls made through a transport
        self._open: WeakSet[Abandonable] = WeakSet()  # streams that those calls may still read
        self.trouble: str | None = None  # the report acted on: "limited", "rejected", "spent", or a signal's name
        self.mismatch: str | None = None  # the last report is of another provider than the key's: which two
        self.last_report: object = None
        self.signal: Signal | None = None  # the signal of that report

    @property
    def grant(self) -> Grant:
        """The pool's grant."""
        return self._held()

    def __enter__(self) -> ItemLease:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    async def __aenter__(self) -> ItemLease:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def rate_limited(self, retry_after: object = None, model: str | None = None) -> bool:
        self.trouble = "limited"
        return super().rate_limited(retry_after, model)

    def report(self, thing: object) -> Signal | None:
        return self._report(thing, sure=True)

    def report_exception(self, error: BaseException, signal: Signal, *, sure: bool) -> None:
        """Report that the attempt ended with *error*, read as *signal*; not *sure*: it may concern another service."""
        last = self.last_report
        if last is None or (last is not error and last is not read_attribute(error, "response")):
            self._report(signal, sure=sure)

    def _usage_log(self) -> UsageLog | None:
        return self._log

    def _report(self, thing: object, *, sure: bool) -> Signal | None:
        self.signal, acted = self._pool.report_answer(self._held(), thing, sure=sure)
        if not self._used["requests"] and thing is not self.last_report:  # else a transport has read the answers
            self._add_usage(self.signal)
        self.last_report = thing
        self.mismatch = None if self.signal is None else self._pool.find_mismatch(self._held(), self.signal)
        if acted and self.signal is not None:
            self.trouble = self.signal.event.name.lower()
        return self.signal

    def track_stream(self, stream: Abandonable) -> None:
        """Note that a call made with this lease reads *stream*."""
        self._open.add(stream)

    def end_attempt(self) -> None:
        """End all reading: the attempt is over, and the credential goes to others."""
        for stream in list(self._open):
            stream.abandon()

    def record_answer(self, signal: Signal, answer: object, *, calls: int = 1) -> bool:
        """Report the *answer* to a call through a transport of the pool. Return True if the pool acts on it.

        A worker makes many calls with its one lease: their usage adds up. A rate limit that was followed by a success
        is cleared. *calls* is 0 for more information on a call that was already reported.
        """
        self._used["requests"] += calls
        _, acted = self._pool.report_signal(self._held(), replace(signal, usage=self._add_to_total(signal.usage)))
        self.signal, self.last_report = signal, answer
        self.trouble = signal.event.name.lower() if acted else None
        return acted

    def add_usage(self, usage: Mapping[str, float], *, whole: bool = True) -> None:
        """Add what a call used of the limits; not *whole*: it ended before all was reported."""
        self._settle(self._add_to_total(usage), whole=whole)

    def _add_to_total(self, usage: Mapping[str, float]) -> Mapping[str, float]:
        if any(map(is_absurd, usage.values())):
            self._pool.ignore_usage(self._held())
            return self._used
        for name, amount in usage.items():
            self._used[name] = self._used.get(name, 0.0) + amount
        return self._used

    def rejected(self, reason: str = "rejected by the provider") -> bool:
        self.trouble = "rejected"
        return super().rejected(reason)

    def spent(self, reason: str = "the quota's money is gone") -> bool:
        self.trouble = "spent"
        return super().spent(reason)


class CurrentAttempt(Protocol):
    """The attempt that runs in this thread or task, and the pool of its lease."""

    @property
    def pool(self) -> object: ...

    @property
    def ended(self) -> bool: ...

    @property
    def usage_log(self) -> UsageLog: ...

    def item_lease(self) -> ItemLease | None: ...


# A worker that requests a second lease while it holds one would deadlock if all do. So the pool looks here first and
# returns the one that is held.
CURRENT_ATTEMPT: ContextVar[CurrentAttempt | None] = ContextVar("agentos_holding", default=None)
