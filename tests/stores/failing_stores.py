"""Stores that fail where a test wants them to, and wake-ups that record which sessions they notify."""

from __future__ import annotations

import sqlite3
from typing import Any

from agentos.stores.sqlite.udp_wakeup import LocalWakeup


class Bells(LocalWakeup):
    """A bell with a number, that takes down whom it was used to ring."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port
        self.rang: list[int] = []
        self.sessions_rung: list[str] = []
        self.interrupts = False

    def notify_peers(self, port: int, session: str) -> None:
        self.rang.append(port)
        self.sessions_rung.append(session)
        if self.interrupts:
            raise KeyboardInterrupt

    def take_rings(self) -> list[int]:
        rang, self.rang = self.rang, []
        return rang


class Faults:
    """Makes connections that fail once, at the statement a test has chosen: not done, or done all the same."""

    def __init__(self) -> None:
        self._at: int | str = 0
        self._error: BaseException | None = None
        self._done = False
        self.fired_at = ""

    def arm(self, at: int | str, error: BaseException, *, done: bool) -> None:
        """The statement that comes as the *at*-th from now, or that begins so, fails, and is *done* or not."""
        self._at, self._error, self._done, self.fired_at = at, error, done, ""

    def disarm(self) -> None:
        self._error = None

    def connect(self, uri: str) -> sqlite3.Connection:
        faults = self

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
                error = faults._due(sql)
                if error is None:
                    return super().execute(sql, *parameters)
                if faults._done:
                    super().execute(sql, *parameters)
                raise error

        return sqlite3.connect(
            uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False, factory=Connection
        )

    def _due(self, sql: str) -> BaseException | None:
        error = self._error
        if error is None:
            return None
        if isinstance(self._at, int):
            self._at -= 1
            if self._at:
                return None
        elif not sql.startswith(self._at):
            return None
        self._error = None
        self.fired_at = sql
        return error


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("by a test")
    error.sqlite_errorcode = code
    return error
