"""Access of each attempt to the providers by a token of its own, in place of a key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ...costs.usage import Usage
from ...costs.usage_log import UsageLog
from ...providers.wire_verdict import WireVerdict


class RequestRecord(Protocol):
    """One request that an attempt made."""

    @property
    def at(self) -> float: ...

    @property
    def item(self) -> str | None: ...

    @property
    def attempt(self) -> int | None: ...

    @property
    def key(self) -> str | None: ...

    @property
    def seconds(self) -> float: ...

    @property
    def usage(self) -> Usage: ...

    def to_json(self) -> dict[str, Any]: ...


class OpenAccess(Protocol):
    """The access of one attempt, until it is closed."""

    @property
    def token(self) -> str:
        """What the attempt presents instead of a key."""
        ...

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables for the attempt's processes."""
        ...

    def add_arguments(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command with the arguments that its program needs."""
        ...

    def waited(self) -> float:
        """Return the seconds in which requests of the attempt have waited for keys so far, those of now included."""
        ...

    def close(self) -> WireVerdict | None:
        """End the access: its token is refused from now on, and its requests are ended and recorded. Idempotent.

        Return what the providers' answers say of the attempt.
        """
        ...


class AttemptAccess(Protocol):
    """Gives each attempt its access."""

    def bind(self, record: Callable[[RequestRecord], None]) -> None:
        """Pass a record of each request to *record*, from now on."""
        ...

    def open(self, item_id: str, attempt: int, usage_log: UsageLog, program: str) -> OpenAccess:
        """Return the access of one attempt, whose command begins with *program*; "" if it is a function."""
        ...
