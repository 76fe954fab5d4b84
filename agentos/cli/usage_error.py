"""What a person is told who typed something that cannot be done."""

from __future__ import annotations

from .exit_codes import ExitCode


class UsageError(Exception):
    """Ends the command: *message* says what and where, *hint* what to do; both are shown on standard error."""

    def __init__(self, message: str, hint: str | None = None, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
