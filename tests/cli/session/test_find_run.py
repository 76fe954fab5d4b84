"""Finding the base folder of runs, and a run by what was typed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentos.cli.session.find_run import BaseFolder, base_folder, build_run_path, find_run, list_runs, open_folder
from agentos.cli.usage_error import UsageError
from agentos.util.private_folder import PrivateFolder, UnsafePath

NOWHERE = {"HOME": "/nonexistent"}


def refuse(_: UnsafePath) -> bool:
    return False


def made(base: Path, *names: str) -> None:
    """Runs, the last one the newest."""
    for age, name in enumerate(reversed(names)):
        folder = build_run_path(base, name)
        folder.mkdir(parents=True)
        (folder / "run.json").write_text("{}")
        os.utime(folder / "run.json", (1_000_000 - age, 1_000_000 - age))


# -- the base -------------------------------------------------------------------------------------------------------


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert base_folder(None, NOWHERE) == BaseFolder(Path(".agentos"), tmp_path)
    (tmp_path / "agentos.toml").write_text('[run]\ndir = "kept"\n')

    assert base_folder(None, NOWHERE) == BaseFolder(tmp_path / "kept", tmp_path)
    assert base_folder(None, {**NOWHERE, "AGENTOS_BASE_DIR": "b"}) == BaseFolder(Path("b"))
    assert base_folder("c", {**NOWHERE, "AGENTOS_BASE_DIR": "b"}) == BaseFolder(Path("c"))


def test_a_base_in_the_users_own_configuration_was_named_by_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "config" / "agentos" / "agentos.toml"
    own.parent.mkdir(parents=True)
    own.write_text('[run]\ndir = "/kept"\n')

    assert base_folder(None, {**NOWHERE, "XDG_CONFIG_HOME": str(tmp_path / "config")}) == BaseFolder(Path("/kept"))


def test_a_file_that_is_wrong_does_not_bar_the_way_to_old_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agentos.toml").write_text("[run\n")

    assert base_folder(None, NOWHERE).path == Path(".agentos")


@pytest.mark.parametrize("named", [True, False])
def test_a_new_base_is_private_and_hidden_from_git_and_an_old_one_left_alone(tmp_path: Path, named: bool) -> None:
    (tmp_path / "old").mkdir(mode=0o755)
    for path in (tmp_path / "deep" / "new", tmp_path / "deep" / "new", tmp_path / "old"):
        open_folder(BaseFolder(path, None if named else tmp_path), ["runs"], refuse, make=True).close()

    assert (tmp_path / "deep" / "new" / ".gitignore").read_text() == "*\n"
    assert (tmp_path / "deep" / "new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "deep" / "new" / "runs").stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "old" / ".gitignore").exists()


def test_two_runs_may_make_the_base_at_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = PrivateFolder.make

    def another_is_first(folder: PrivateFolder, name: str) -> bool:
        make(folder, name)
        return make(folder, name)

    monkeypatch.setattr(PrivateFolder, "make", another_is_first)

    open_folder(BaseFolder(tmp_path / "new"), ["runs"], refuse, make=True).close()

    assert (tmp_path / "new" / "runs").is_dir()


# -- the runs -------------------------------------------------------------------------------------------------------


def test_runs_are_listed_the_newest_first_and_nothing_else_is(tmp_path: Path) -> None:
    made(tmp_path, "old", "middle", "new")
    build_run_path(tmp_path, "no-run").mkdir()
    (tmp_path / "runs" / "file").write_text("")

    assert [folder.name for folder in list_runs(BaseFolder(tmp_path))] == ["new", "middle", "old"]
    assert list_runs(BaseFolder(tmp_path / "nothing")) == []


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("nightly", "nightly"),
        ("nightly-2", "nightly-2"),
        ("wee", "weekly"),
        (None, "weekly"),
        ("latest", "weekly"),
        ("n", None),
    ],
)
def test_a_run_is_meant_by_its_name_or_a_beginning_that_only_it_has(
    tmp_path: Path, typed: str | None, meant: str | None
) -> None:
    made(tmp_path, "nightly", "nightly-2", "weekly")

    if meant is None:
        with pytest.raises(UsageError, match="2 runs begin with 'n'"):
            find_run(BaseFolder(tmp_path), typed)
    else:
        assert find_run(BaseFolder(tmp_path), typed) == build_run_path(tmp_path, meant)


def test_a_run_may_be_meant_by_its_path_or_that_of_its_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "base", "r")
    folder = build_run_path(tmp_path / "base", "r")
    (folder / "journal.sqlite").write_text("")
    monkeypatch.chdir(folder)

    assert find_run(BaseFolder(tmp_path), str(folder)) == folder
    assert find_run(BaseFolder(tmp_path), f"{folder}/") == folder
    assert find_run(BaseFolder(tmp_path), str(folder / "journal.sqlite")) == folder
    assert find_run(BaseFolder(tmp_path), ".") == folder


def test_a_run_that_is_called_latest_is_meant_by_that(tmp_path: Path) -> None:
    made(tmp_path, "latest", "new")

    assert find_run(BaseFolder(tmp_path), "latest").name == "latest"


@pytest.mark.parametrize("typed", ["nihgtly", "", "..", "../runs/x", "a\0b", "/nowhere", "x" * 10_000])
def test_an_unknown_run_is_refused_with_names_that_are_there(tmp_path: Path, typed: str) -> None:
    made(tmp_path, "nightly", "weekly")

    with pytest.raises(UsageError) as refused:
        find_run(BaseFolder(tmp_path), typed)

    assert "nightly" in str(refused.value.hint)


def test_a_name_does_not_lead_out_of_the_folder_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, "nightly")
    (tmp_path / "stray").mkdir()
    (tmp_path / "stray" / "run.json").write_text("{}")
    monkeypatch.chdir("/")

    with pytest.raises(UsageError):
        find_run(BaseFolder(tmp_path), "../stray")


def test_without_any_run_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are no runs in"):
        find_run(BaseFolder(tmp_path), None)
    with pytest.raises(UsageError) as refused:
        find_run(BaseFolder(tmp_path), "x")
    assert refused.value.hint == "there are no runs yet"


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_base_that_is_a_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match="cannot be listed"):
        list_runs(BaseFolder(tmp_path / "file"))
