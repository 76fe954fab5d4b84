"""The records of a session besides the journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentos.cli.main import main
from agentos.cli.session import key_monitor

from ...runs.sample_runs import lines


def test_time_lost_is_noted_while_the_run_is_on_so_that_a_crash_does_not_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACME_1", "sk-planted-first-key")
    monkeypatch.setattr(key_monitor, "_TICK_INTERVAL", 0.0)  # at every look, of which the first comes before any item

    assert main(["run", "--name", "r", "--keys", "env:ACME_1", "--store", "memory", "--", "true", ":::", "a"]) == 0

    events = lines(tmp_path / ".agentos" / "runs" / "r" / "events.jsonl")
    assert [event["kind"] for event in events][:2] == ["session", "waiting"]
    assert len({event["session"] for event in events if event["kind"] == "waiting"}) == 1
