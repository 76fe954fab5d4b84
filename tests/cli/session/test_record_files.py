"""The records of a session besides the journal."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentos.cli.main import main
from agentos.cli.session import key_monitor, record_files

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


def test_a_cached_item_has_the_time_at_which_it_finished_not_that_of_the_new_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    typed = ["run", "--json", "--name", "r", "--", "test", "{}", "=", "fine", ":::", "fine", "wrong"]
    assert main(typed) == 1
    capsys.readouterr()
    assert main(["results", "r", "--json"]) == 0
    recorded = json.loads(capsys.readouterr().out)

    monkeypatch.setattr(record_files, "time", SimpleNamespace(time=lambda: 4e9))  # long after
    assert main(typed) == 1
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    again = [event for event in events if event["event"] == "item"]

    assert [(each["id"], each["outcome"], each["cached"]) for each in again] == [
        ("fine", "done", True),
        ("wrong", "failed", True),
    ]
    assert [each["finished_at"] for each in again] == [each["finished_at"] for each in recorded]
