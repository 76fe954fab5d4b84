"""RemoteLease: an item's lease for a remote worker. Its calls are sent to the driver as messages for the pool."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...costs.usage import Usage
from ...errors import LeaseLost
from ...pool.requests import MOST_USED, AbsurdUsage, is_absurd, parse_used
from ...pool.secret import Secret
from ...providers.answers.date_and_number_formats import parse_delay
from ...providers.answers.usage import parse_reported_usage
from ...providers.clients.exceptions import read_signal
from ...providers.clients.untrusted import read_attribute
from ...providers.signal import Signal
from .plain_values import to_plain


@dataclass(frozen=True, slots=True, repr=False)
class LeaseMessage:
    """One call of a lease method on a remote worker.

    ``at`` is in seconds since the attempt began there: a delay of 30 s that was reported 20 s ago has 10 s left.
    """

    verb: str  # "settle", "rate_limited", "rejected", "spent" or "report"
    at: float
    used: Mapping[str, float] | None = None
    delay: float | None = None
    model: str | None = None
    reason: str = ""
    signal: Signal | None = None
    billed: Usage | None = None


class LeaseLoss(threading.Event):
    """Set when a lease is lost to its worker, or when the instant ``until`` (monotonic) has come.

    So a worker without contact stops in time. Waiters are not woken by that instant.
    """

    def __init__(self, until: float = math.inf) -> None:
        super().__init__()
        self.until = until

    def is_set(self) -> bool:
        return super().is_set() or time.monotonic() >= self.until


class RemoteLease:
    """The methods of a lease, for a worker remote from its pool. *on_message* receives each message.

    The pool's reaction is unknown here: every report on a lease that is still held returns True. An engine sets *lost*
    when the key may have been granted to another: the driver was lost, or has itself lost the lease.
    """

    __slots__ = (
        *("_began_at", "_on_message", "_lost", "_model", "_released", "_secret"),
        *("last_report", "name", "requester", "token"),
    )

    def __init__(
        self,
        name: str,
        token: int,
        secret: str,
        on_message: Callable[[LeaseMessage], object],
        *,
        requester: str | None = None,
        model: str | None = None,
        lost: threading.Event | None = None,
    ) -> None:
        self.name = name
        self.requester = requester
        self.token = token
        self._secret = secret
        self._on_message = on_message
        self._model = model
        self._lost = lost
        self._released = False
        self._began_at = time.monotonic()
        self.last_report: object = None

    def __enter__(self) -> RemoteLease:
        return self

    def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> RemoteLease:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    # -- using it ---------------------------------------------------------------------------------------------

    @property
    def secret(self) -> Secret:
        """The secret in its wrapper. Raises ``LeaseLost`` if the key may have been granted to another."""
        self.require()
        return Secret(self._secret)

    def require(self) -> None:
        """Raise ``LeaseLost`` if the key may have been granted to another."""
        if self._lost is not None and self._lost.is_set():
            raise LeaseLost(name=self.name, token=self.token, detail="the run's driver was lost, or has lost the lease")

    def reveal(self) -> str:
        """Return the secret as text, for the code that makes the call."""
        return self.secret.reveal()

    @property
    def held(self) -> bool:
        """True if the lease is still valid, as far as is known here."""
        return not self._released and not (self._lost is not None and self._lost.is_set())

    def release(self) -> bool:
        """Stop using the lease. The run releases it at the end of the attempt."""
        held, self._released = self.held, True
        return held

    # -- reports ----------------------------------------------------------------------------------------------

    def settle(self, used: Mapping[str, float] | None = None, /, **amounts: float) -> bool:
        """Report what was really used; see ``Lease.settle``."""
        stated = parse_reported_usage(amounts if used is None else {**used, **amounts})
        return self.settle_stated(stated.counted, stated.billed)

    def settle_stated(self, counted: Mapping[str, float], billed: Usage) -> bool:
        """Report what was used as it counts against the limits, and as it is billed."""
        usage = dict(counted)
        try:
            parse_used("settle", usage)  # invalid usage raises here, in the worker
        except AbsurdUsage:
            # The pool ignores and logs it; an equally absurd float is sent, as the value may not fit a float.
            usage = {name: 2 * MOST_USED if is_absurd(amount) else amount for name, amount in usage.items()}
        figures = {name: float(amount) for name, amount in usage.items()}
        return self._send_message("settle", used=figures, billed=billed)

    def rate_limited(self, retry_after: object = None, model: str | None = None) -> bool:
        """Report that the provider rate-limited the call; see ``Lease.rate_limited``."""
        if model is not None and not (isinstance(model, str) and model):
            raise ValueError("model must be the name of a model, or left out for all of them")
        return self._send_message("rate_limited", delay=parse_delay(retry_after, wall=time.time()), model=model)

    def rejected(self, reason: str = "rejected by the provider") -> bool:
        """Report that the provider rejected the credential itself; see ``Lease.rejected``."""
        return self._send_message("rejected", reason=str(reason))

    def spent(self, reason: str = "the quota's money is gone") -> bool:
        """Report that the quota's money is gone; see ``Lease.spent``."""
        return self._send_message("spent", reason=str(reason))

    def report(self, thing: object) -> Signal | None:
        """Report a response, an exception of the client, or a ``Signal``; see ``Lease.report``."""
        try:
            found = read_signal(thing, now=time.time(), model=self._model)
            signal = None if found is None else found.sane()
        except Exception:  # noqa: BLE001 - a signal made by user code: its fields may be anything
            signal = None
        self.last_report = thing
        if signal is not None:
            self._send_message("report", signal=signal)
        return signal

    def has_reported(self, error: BaseException) -> bool:
        """True if the last report was about *error*: then it must not be counted twice."""
        last = self.last_report
        return last is not None and (last is error or last is read_attribute(error, "response"))

    def _send_message(
        self,
        verb: str,
        *,
        used: Mapping[str, float] | None = None,
        delay: float | None = None,
        model: str | None = None,
        reason: str = "",
        signal: Signal | None = None,
        billed: Usage | None = None,
    ) -> bool:
        what = (to_plain(each) for each in (used, delay, model, reason, signal, billed))
        self._on_message(LeaseMessage(verb, time.monotonic() - self._began_at, *what))
        return self.held

    def __repr__(self) -> str:
        return f"<Lease {self.token} on {self.name}{'' if self.held else ', ended'}>"
