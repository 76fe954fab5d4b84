"""Errors a caller of agentos can act on: one class per decision, with the facts as fields."""

from __future__ import annotations

from typing import Any


class AgentOSError(Exception):
    """Base of every error agentos raises on purpose (bad arguments are plain ``ValueError``)."""

    def __init__(self, **facts: Any) -> None:
        self.__dict__.update(facts)
        super().__init__(self.describe())

    def describe(self) -> str:
        """Say what happened, to which thing, and what to do about it."""
        return self.__class__.__name__

    def __reduce__(self) -> tuple[Any, ...]:
        # Built from keywords, so that the default (re-calling with ``args``) would lose the facts.
        return _rebuild, (self.__class__, dict(self.__dict__))


def _rebuild(cls: type[AgentOSError], facts: dict[str, Any]) -> AgentOSError:
    return cls(**facts)


class NoCredentialAvailable(AgentOSError, TimeoutError):
    """No credential became free within the time the caller gave; waiting longer would help."""

    waited: float
    next_free_in: float | None

    def __init__(self, *, waited: float, next_free_in: float | None = None) -> None:
        super().__init__(waited=waited, next_free_in=next_free_in)

    def describe(self) -> str:
        if self.next_free_in is None:
            due = "the next comes when a holder gives one back"
        else:
            due = f"the next is due in {self.next_free_in:.1f}s"
        return f"no credential became free in {self.waited:.1f}s; {due}"


class NoUsableCredential(AgentOSError):
    """No credential of the pool can ever serve this request as things stand: waiting would not help."""

    reason: str

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason=reason)

    def describe(self) -> str:
        return f"no usable credential: {self.reason}"


class NeverFits(AgentOSError):
    """The request costs more than any credential's limit allows at once, however long it waits."""

    dimension: str
    cost: float
    largest: float

    def __init__(self, *, dimension: str, cost: float, largest: float) -> None:
        super().__init__(dimension=dimension, cost=cost, largest=largest)

    def describe(self) -> str:
        return (
            f"a request of {self.cost:g} {self.dimension} never fits: the largest limit in the pool "
            f"admits {self.largest:g} at once; split the request or add a credential with a larger limit"
        )


class PoolClosed(AgentOSError):
    """The pool was closed: it grants nothing more."""

    def describe(self) -> str:
        return "the credential pool is closed; it grants nothing more"


class WouldBlockLoop(AgentOSError, RuntimeError):
    """A blocking wait was asked for inside a running event loop, which it would have stopped."""

    instead: str

    def __init__(self, *, instead: str) -> None:
        super().__init__(instead=instead)

    def describe(self) -> str:
        return f"waiting for a credential here would block the running event loop; use `{self.instead}`"


class InvariantViolated(AgentOSError, AssertionError):
    """A promise of the pool did not hold (only checked with the debug switch on): a fault in agentos."""

    name: str
    detail: str

    def __init__(self, *, name: str, detail: str) -> None:
        super().__init__(name=name, detail=detail)

    def describe(self) -> str:
        return f"invariant {self.name} does not hold: {self.detail}; please report this"
