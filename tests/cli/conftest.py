from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes what the user of this machine keeps in the state folder."""
    monkeypatch.setenv("AGENTOS_HOME", str(tmp_path_factory.mktemp("state")))
