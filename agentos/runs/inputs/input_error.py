"""InputError: a problem of an input, with its position and a hint."""

from __future__ import annotations

from ...errors import AgentOSError, error_fields


@error_fields()
class InputError(AgentOSError, ValueError):
    """Items cannot be read from *source*; ``line`` is the number of the invalid line, if there is one.

    ``str()`` gives the problem and the position; ``hint``, if there is one, says what to do.
    """

    source: str
    detail: str
    line: int | None = None
    hint: str | None = None

    def describe(self) -> str:
        where = self.source if self.line is None else f"{self.source}, line {self.line}"
        return f"{where}: {self.detail}"
