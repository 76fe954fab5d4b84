"""The access of one attempt to a gateway: a token, and what a program needs to use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from ..providers.wire_verdict import WireVerdict
from .tokens import TokenHolder

if TYPE_CHECKING:
    from .program_access import ProgramAccess


class TokenIssuer(Protocol):
    """A gateway of a run, wherever it serves: on a thread, or in another process."""

    programs: ProgramAccess

    def issue(self, holder: TokenHolder) -> str: ...

    def longest_wait(self, holder: TokenHolder) -> float: ...

    def revoke(self, token: str, holder: TokenHolder) -> None: ...


class TokenAccess:
    """The access of one attempt: a token that is valid until the attempt ends."""

    def __init__(self, issuer: TokenIssuer, holder: TokenHolder, program: str) -> None:
        self._issuer = issuer
        self._holder = holder
        self._program = program
        self.token = issuer.issue(holder)

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables for the attempt's processes."""
        return self._issuer.programs.build_environment(self._program, self.token)

    def add_arguments(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command with the arguments that its program needs."""
        return self._issuer.programs.build_arguments(argv, self.token)

    def waited(self) -> float:
        """Return the seconds in which requests of the attempt have waited for keys so far, those of now included."""
        return self._holder.wire.waited + self._issuer.longest_wait(self._holder)

    def close(self) -> WireVerdict | None:
        """Refuse the token from now on. Return what the providers' answers say of the attempt."""
        self._issuer.revoke(self.token, self._holder)
        return self._holder.wire.verdict()
