"""The words for what a quota, a credential and a request can be, and how a credential's life goes on.

Availability is derived from these, never stored. A gate needs no table: it opens at its instant, and a later instant
wins. A slot needs none either: it is leased or it is not, and the lease's token says by whom.
"""

from __future__ import annotations

from enum import Enum, StrEnum


class Gate(Enum):
    """Whether a quota (or one model family of it) lets requests through."""

    OPEN = "open"
    COOLING = "cooling"  # until an instant, minutes away
    PARKED = "parked"  # until an instant, hours or days away
    SPENT = "spent"  # money gone: until a person acts


class Life(Enum):
    """Whether a credential can be used at all."""

    ALIVE = "alive"
    DEAD = "dead"  # refused by the provider: until a person acts
    RETIRED = "retired"  # taken out by a person


class LifeEvent(Enum):
    """What can happen to a credential's life."""

    REJECTED = "rejected"
    RETIRED = "retired"
    REVIVED = "revived"


LIFE: dict[Life, dict[LifeEvent, Life]] = {
    Life.ALIVE: {LifeEvent.REJECTED: Life.DEAD, LifeEvent.RETIRED: Life.RETIRED, LifeEvent.REVIVED: Life.ALIVE},
    Life.DEAD: {LifeEvent.REJECTED: Life.DEAD, LifeEvent.RETIRED: Life.RETIRED, LifeEvent.REVIVED: Life.ALIVE},
    # A late refusal of a call begun before retirement brings nothing back.
    Life.RETIRED: {LifeEvent.REJECTED: Life.RETIRED, LifeEvent.RETIRED: Life.RETIRED, LifeEvent.REVIVED: Life.ALIVE},
}


class TicketState(Enum):
    """Where a ticket stands. Only WAITING has a way on; the other three are final."""

    WAITING = "waiting"
    GRANTED = "granted"
    WITHDRAWN = "withdrawn"  # gave up, was cancelled, or its loop closed
    FAILED = "failed"  # nothing can ever serve it


class CredentialStatus(StrEnum):
    """The one word for a credential in reports, derived from its life, its quota and its slots."""

    AVAILABLE = "available"
    LEASED = "leased"  # every slot of it
    COOLING = "cooling"
    LIMITED = "limited"  # a limit is used up, until it refills
    PARKED = "parked"
    SPENT = "spent"
    DEAD = "dead"
    RETIRED = "retired"

    def __repr__(self) -> str:
        return repr(self.value)  # in a snapshot it reads as the text it is


UNAVAILABLE = frozenset(
    {CredentialStatus.COOLING, CredentialStatus.LIMITED, CredentialStatus.PARKED}
)  # until an instant
OUT_OF_USE = frozenset({CredentialStatus.SPENT, CredentialStatus.DEAD, CredentialStatus.RETIRED})  # until a person acts
