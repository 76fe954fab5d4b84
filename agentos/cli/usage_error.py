"""UsageError: a message and a hint for invalid command-line input."""

from __future__ import annotations

from .exit_codes import ExitCode


class UsageError(Exception):
    """Ends the command. *message* says what is wrong and where, *hint* what to do; both go to standard error."""

    def __init__(self, message: str, hint: str | None = None, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
