"""The pool, as far as calls need it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..pool.allowed_hosts import Place
from ..pool.core.records import Ask, Grant, Labels
from ..pool.credential import Credential
from ..pool.lease import ItemLease
from ..providers.signal import Signal
from ..util.clock import Clock


class CallKeeper(Protocol):
    """A pool that grants leases to calls and is told how they went."""

    @property
    def clock(self) -> Clock: ...

    def on_loan(self) -> ItemLease | None:
        """The lease that the worker who calls was started with, if it was."""
        ...

    def note_wait(self) -> None:
        """A call has to wait for a key."""
        ...

    def labels_for(self, place: Place) -> Labels:
        """What a credential must have to serve *place*. Raises ForeignHost if none may."""
        ...

    def size(self) -> int:
        """How many credentials there are; it only grows."""
        ...

    def credential(self, name: str) -> Credential: ...

    def bases_at(self, place: Place) -> tuple[str, ...]:
        """The base URLs of credentials that lead to *place*."""
        ...

    def padded(self, ask: Ask, times: int) -> Ask: ...

    def take_now(self, ask: Ask, requester: str | None) -> Grant | None: ...

    def wait(self, ask: Ask, requester: str | None, timeout: float | None, instead: str) -> Grant: ...

    async def wait_async(self, ask: Ask, requester: str | None, timeout: float | None) -> Grant: ...

    def give_back(self, grant: Grant) -> bool: ...

    def settle_usage(self, grant: Grant, usage: Mapping[str, float], *, whole: bool = True) -> None: ...

    def hear(self, grant: Grant, signal: Signal, *, sure: bool = True) -> tuple[Signal, bool]: ...

    def wants_news(self, grant: Grant) -> bool:
        """Whether it is worth reading what an answer that went well tells of the limits."""
        ...

    def in_doubt(self, grant: Grant) -> None: ...

    def loss_of(self, grant: Grant) -> str | None: ...

    def rest_of(self, grant: Grant, model: str | None) -> float:
        """Seconds until the quota of this lease is open again for *model*; infinite if no instant is known."""
        ...

    def masked(self, text: str, likely: str | None = None) -> str: ...
