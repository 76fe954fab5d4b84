"""The states of a quota, a credential and a request, and the transitions of a credential's life.

Availability is derived from these, never stored. A gate needs no table: it opens at its instant, and the later instant
wins. A slot needs none either: it is leased or not.
"""

from __future__ import annotations

from enum import Enum, StrEnum


class Gate(Enum):
    """The state of a quota, or of one model family of it."""

    OPEN = "open"
    COOLING = "cooling"  # until an instant, minutes away
    PARKED = "parked"  # until an instant, hours or days away
    SPENT = "spent"  # no money left: until a person acts


class Life(Enum):
    """The life of a credential."""

    ALIVE = "alive"
    DEAD = "dead"  # refused by the provider, until a person acts
    RETIRED = "retired"  # removed by a person


class LifeEvent(Enum):
    """An event in the life of a credential."""

    REJECTED = "rejected"
    RETIRED = "retired"
    REVIVED = "revived"


LIFE: dict[Life, dict[LifeEvent, Life]] = {
    Life.ALIVE: {LifeEvent.REJECTED: Life.DEAD, LifeEvent.RETIRED: Life.RETIRED, LifeEvent.REVIVED: Life.ALIVE},
    Life.DEAD: {LifeEvent.REJECTED: Life.DEAD, LifeEvent.RETIRED: Life.RETIRED, LifeEvent.REVIVED: Life.ALIVE},
    # The refusal of a call that began before the retirement changes nothing.
    Life.RETIRED: {LifeEvent.REJECTED: Life.RETIRED, LifeEvent.RETIRED: Life.RETIRED, LifeEvent.REVIVED: Life.ALIVE},
}


class TicketState(Enum):
    """The state of a waiting request. All but WAITING are final."""

    WAITING = "waiting"
    GRANTED = "granted"
    WITHDRAWN = "withdrawn"  # the caller gave up or was cancelled, or its loop closed
    FAILED = "failed"  # no key can ever serve it


class CredentialStatus(StrEnum):
    """The status of a credential in reports, derived from its life, its quota and its slots."""

    AVAILABLE = "available"
    LEASED = "leased"  # all its slots
    COOLING = "cooling"
    LIMITED = "limited"  # a limit is used up, until it refills
    PARKED = "parked"
    SPENT = "spent"
    DEAD = "dead"
    RETIRED = "retired"

    def __repr__(self) -> str:
        return repr(self.value)  # a snapshot shows the text


UNAVAILABLE = frozenset(
    {CredentialStatus.COOLING, CredentialStatus.LIMITED, CredentialStatus.PARKED}
)  # until an instant
OUT_OF_USE = frozenset({CredentialStatus.SPENT, CredentialStatus.DEAD, CredentialStatus.RETIRED})  # until a person acts
