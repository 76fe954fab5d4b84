"""Open SQLite connections with the same settings, and check the version of the library."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

# JSON operators (->>) came with 3.38, STRICT tables with 3.37.
OLDEST_SQLITE: Final = (3, 38, 0)

# Opens the database at a URI. Tests pass their own, to inject failures.
Connect = Callable[[str], sqlite3.Connection]


def connect(uri: str) -> sqlite3.Connection:
    """Return a connection in autocommit mode that never waits for a lock: SQLite's own wait can starve a process.

    The schema of the file is not trusted: it may not call functions with side effects.
    """
    connection = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
    connection.execute("pragma trusted_schema = off")
    return connection


def why_too_old(what: str, version: tuple[int, ...] = sqlite3.sqlite_version_info) -> str | None:
    """Return why this SQLite library cannot store *what* ("a journal"); None if it can."""
    if version >= OLDEST_SQLITE:
        return None
    have, need = (".".join(map(str, parts)) for parts in (version, OLDEST_SQLITE))
    return f"this Python has SQLite {have}, and {what} needs {need}"


def sync_folder(folder: Path) -> None:
    """Make a rename in *folder* durable (Windows does so by itself)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
