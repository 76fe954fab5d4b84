"""What is wrong with an input, and where."""

from __future__ import annotations

from ...errors import AgentOSError, error_fields


@error_fields()
class InputError(AgentOSError, ValueError):
    """Items cannot be had from *source*; ``line`` is where, if it is one line's fault.

    ``str()`` says what and where; ``hint``, if there is one, says what to do.
    """

    source: str
    detail: str
    line: int | None = None
    hint: str | None = None

    def describe(self) -> str:
        where = self.source if self.line is None else f"{self.source}, line {self.line}"
        return f"{where}: {self.detail}"
