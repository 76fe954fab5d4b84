"""A dry run reports missing packages and options without effect."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agentos.cli.main import main

DASK = "dask://127.0.0.1:1"


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "AGENTOS_STORE", "AGENTOS_KEYS", "AGENTOS_CONFIG", "AGENTOS_ENGINE"):
        monkeypatch.delenv(name, raising=False)


def test_a_missing_package_for_the_cluster_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)

    assert main(["run", "-n", "--engine", DASK, "--", "true", ":::", "a"]) == 0
    said = capsys.readouterr().err
    assert main(["run", "-n", "--json", "--engine", DASK, "--", "true", ":::", "a"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])

    assert "--engine needs the package distributed, which is not installed: pip install" in said
    assert told["engine_is_installed"] is False


def test_a_store_without_keys_prints_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-n", "--store", "redis://127.0.0.1:1", "--", "true", ":::", "a"]) == 0

    assert "agentos: --store has no effect without keys" in capsys.readouterr().err


def forecast(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, dict[str, Any]]:
    """What a dry run says about the time, as text and as JSON."""
    capsys.readouterr()
    assert main(["run", "-n", *arguments]) == 0
    text = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("forecast"))
    assert main(["run", "-n", "--json", *arguments]) == 0
    return text, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_forecast_uses_the_durations_of_earlier_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("K_KEY", "sk-planted-QWERTZUIOPASDFGH")
    (tmp_path / "agentos.toml").write_text('[run]\nstore = "memory"\n[[credentials]]\nname = "k"\nenv = "K_KEY"\n')
    given = ("--keys", "k", "--", "true", ":::")

    text, told = forecast(capsys, *given, "a", "b")
    assert "if an item takes 10 s (no earlier run says how long): " in text
    assert (told["item_seconds"], told["item_seconds_of"]) == (10.0, None)

    assert main(["run", "--name", "night", *given, "a"]) == 0
    text, told = forecast(capsys, *given, "a", "b")
    assert " (as in night): done in about 1 s" in text
    assert 0 < told["item_seconds"] < 10
    assert told["item_seconds_of"] == "night"

    assert "no earlier run" in forecast(capsys, "--keys", "k", "--", "false", ":::", "a")[0]
    assert forecast(capsys, "--name", "night", *given, "a", "b")[1]["items"] == 1


def test_links_and_broken_runs_say_nothing_of_durations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("K_KEY", "sk-planted-QWERTZUIOPASDFGH")
    (tmp_path / "agentos.toml").write_text('[run]\nstore = "memory"\n[[credentials]]\nname = "k"\nenv = "K_KEY"\n')
    given = ("--keys", "k", "--", "true", ":::", "a")
    assert main(["run", "--name", "night", *given]) == 0
    runs = tmp_path / ".agentos" / "runs"
    (runs / "night").rename(tmp_path / "elsewhere")
    (runs / "linked").symlink_to(tmp_path / "elsewhere")
    (runs / "broken").mkdir()
    (runs / "broken" / "run.json").write_bytes((tmp_path / "elsewhere" / "run.json").read_bytes())
    (runs / "broken" / "journal.sqlite").write_text("no journal")

    assert "no earlier run says how long" in forecast(capsys, *given, "b")[0]
