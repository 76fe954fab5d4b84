"""The item's lease as a worker elsewhere sees it: what it says of the key is noted, and told to the pool at home."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...errors import LeaseLost
from ...pool.requests import MOST_USED, AbsurdUsage, is_absurd, parse_used
from ...pool.secret import Secret
from ...providers.answers.number_formats import parse_delay
from ...providers.clients.exceptions import read_signal
from ...providers.clients.untrusted import read_attribute
from ...providers.signal import Signal
from .plain_values import to_plain


@dataclass(frozen=True, slots=True, repr=False)
class LeaseMessage:
    """One thing that a worker said of its key: a verb of the lease, what was said, and when.

    ``at`` is in seconds since the attempt began there: a rest of 30 s that was told 20 s ago has 10 s left.
    """

    verb: str  # "settle", "rate_limited", "rejected", "spent" or "report"
    at: float
    used: Mapping[str, float] | None = None
    delay: float | None = None
    model: str | None = None
    reason: str = ""
    signal: Signal | None = None


class LeaseLoss(threading.Event):
    """Whether a lease is lost to its worker: once it is ``set``, or the instant ``until`` (monotonic) has come.

    So a worker that hears nothing stops in time all the same. Nobody is woken by that instant.
    """

    def __init__(self, until: float = math.inf) -> None:
        super().__init__()
        self.until = until

    def is_set(self) -> bool:
        return super().is_set() or time.monotonic() >= self.until


class RemoteLease:
    """The verbs of a lease, for a worker that runs away from its pool. ``hear`` gets each thing as it is said.

    Whether the pool acts on it is not known here: everything that is said of a lease that is still held returns True.
    *lost* is set by an engine when the key may be somebody else's: the driver was lost, or has itself lost the lease.
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
        hear: Callable[[LeaseMessage], object],
        *,
        requester: str | None = None,
        model: str | None = None,
        lost: threading.Event | None = None,
    ) -> None:
        self.name = name
        self.requester = requester
        self.token = token
        self._secret = secret
        self._on_message = hear
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
        """The secret in its holder. Raises ``LeaseLost`` if others may have the key."""
        self.require()
        return Secret(self._secret)

    def require(self) -> None:
        """Raise ``LeaseLost`` if others may have the key."""
        if self._lost is not None and self._lost.is_set():
            raise LeaseLost(name=self.name, token=self.token, detail="the run's driver was lost, or has lost the lease")

    def reveal(self) -> str:
        """The secret as text, to hand to whoever makes the call."""
        return self.secret.reveal()

    @property
    def held(self) -> bool:
        """Whether the lease is still in force, as far as is known here."""
        return not self._released and not (self._lost is not None and self._lost.is_set())

    def release(self) -> bool:
        """Use it no more. Its run gives it back, with the end of the attempt."""
        held, self._released = self.held, True
        return held

    # -- saying what happened ---------------------------------------------------------------------------------

    def settle(self, used: Mapping[str, float] | None = None, /, **amounts: float) -> bool:
        """Say what was really used; see ``Lease.settle``."""
        told = dict(amounts if used is None else {**used, **amounts})
        try:
            parse_used("settle", told)  # what is no usage at all is the worker's to know of, now
        except AbsurdUsage:
            # The pool ignores it and says so; a figure of its kind is sent, as the real one may not even be a float.
            told = {name: 2 * MOST_USED if is_absurd(amount) else amount for name, amount in told.items()}
        return self._send_message("settle", used={name: float(amount) for name, amount in told.items()})

    def rate_limited(self, retry_after: object = None, model: str | None = None) -> bool:
        """The provider said "too many"; see ``Lease.rate_limited``."""
        if model is not None and not (isinstance(model, str) and model):
            raise ValueError("model must be the name of a model, or left out for all of them")
        return self._send_message("rate_limited", delay=parse_delay(retry_after, wall=time.time()), model=model)

    def rejected(self, reason: str = "rejected by the provider") -> bool:
        """The provider refused the credential itself; see ``Lease.rejected``."""
        return self._send_message("rejected", reason=str(reason))

    def spent(self, reason: str = "the quota's money is gone") -> bool:
        """The quota's money is gone; see ``Lease.spent``."""
        return self._send_message("spent", reason=str(reason))

    def report(self, thing: object) -> Signal | None:
        """Say what came back: a response, an exception of the client, or a ``Signal``; see ``Lease.report``."""
        try:
            found = read_signal(thing, now=time.time(), model=self._model)
            signal = None if found is None else found.sane()
        except Exception:  # noqa: BLE001 - a signal that somebody made: its fields may be anything
            signal = None
        self.last_report = thing
        if signal is not None:
            self._send_message("report", signal=signal)
        return signal

    def has_reported(self, error: BaseException) -> bool:
        """Whether the last thing reported is what *error* is about: then it must not be counted twice."""
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
    ) -> bool:
        what = (to_plain(each) for each in (used, delay, model, reason, signal))
        self._on_message(LeaseMessage(verb, time.monotonic() - self._began_at, *what))
        return self.held

    def __repr__(self) -> str:
        return f"<Lease {self.token} on {self.name}{'' if self.held else ', ended'}>"
