"""The settings folder that gemini needs is made from the user's own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agentos.agents.program import SettingsFolder
from agentos.agents.programs import PROGRAMS
from agentos.agents.settings import write_settings

_FOUND = PROGRAMS["gemini"].settings
assert _FOUND is not None
SETTINGS: SettingsFolder = _FOUND


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home" / ".gemini"
    folder.mkdir(parents=True)
    return folder.parent


def written(folder: Path) -> dict[str, object]:
    found = json.loads((folder / ".gemini" / "settings.json").read_text())
    assert isinstance(found, dict)
    return found


def test_the_users_settings_are_kept_but_for_the_auth_type(home: Path, tmp_path: Path) -> None:
    auth = {"selectedType": "oauth-personal", "enforcedType": None}
    theirs = {"ui": {"theme": "Ayu"}, "security": {"auth": auth, "other": 1}}
    (home / ".gemini" / "settings.json").write_text(json.dumps(theirs))

    variables = write_settings(SETTINGS, tmp_path / "ours", {"HOME": str(home)})

    assert variables == {"GEMINI_CLI_HOME": str(tmp_path / "ours")}
    kept = {"auth": {**auth, "selectedType": "gemini-api-key"}, "other": 1}
    assert written(tmp_path / "ours") == {"ui": {"theme": "Ayu"}, "security": kept}
    assert json.loads((home / ".gemini" / "settings.json").read_text()) == theirs


def test_logins_stay_behind_and_other_files_are_found(home: Path, tmp_path: Path) -> None:
    for name in ("oauth_creds.json", "GEMINI.md"):
        (home / ".gemini" / name).write_text("{}")
    (home / ".gemini" / "tmp").mkdir()

    for _ in range(2):  # a second session of a run
        write_settings(SETTINGS, tmp_path / "ours", {"HOME": str(home)})

    assert sorted(os.listdir(tmp_path / "ours" / ".gemini")) == ["GEMINI.md", "settings.json"]
    assert (tmp_path / "ours" / ".gemini" / "GEMINI.md").resolve() == home / ".gemini" / "GEMINI.md"


@pytest.mark.parametrize("text", ["", "// comment\n{}", "[]", "{"])
def test_settings_that_are_no_json_object_are_not_copied(home: Path, tmp_path: Path, text: str) -> None:
    (home / ".gemini" / "settings.json").write_text(text)

    write_settings(SETTINGS, tmp_path / "ours", {"HOME": str(home)})

    assert written(tmp_path / "ours") == SETTINGS.values


def test_the_file_is_private_to_the_user(home: Path, tmp_path: Path) -> None:
    write_settings(SETTINGS, tmp_path / "ours", {"HOME": str(home)})

    assert (tmp_path / "ours" / ".gemini" / "settings.json").stat().st_mode & 0o077 == 0
