"""A dry run reports missing packages and options without effect."""

from __future__ import annotations

import json
import sys
from pathlib import Path

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
