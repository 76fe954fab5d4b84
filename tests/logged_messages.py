"""What a test has logged, and nobody else."""

from __future__ import annotations

import threading

import pytest


def said_here(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The messages of agentos from this thread: one of an earlier test, or another library, may log in the midst."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.partition(".")[0] == "agentos" and record.thread == threading.get_ident()
    ]
