"""`agentos rm` removes what agentos made in a run folder of this user, and nothing else."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from agentos.cli.config.trusted_runs import TrustedRuns
from agentos.cli.main import main
from agentos.runs.journal.owner_lock import OwnerLock

from ...runs.journal.journal_helpers import write
from ..invoke import remember


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGENTOS_BASE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    (tmp_path / "work.py").write_text("def work(item, credential):\n    print('hello', item)\n    return item\n")
    return tmp_path / ".agentos" / "runs"


@pytest.fixture
def night(runs: Path) -> Path:
    """The folder of a run of this user."""
    return make(runs / "night")


def make(folder: Path) -> Path:
    """A folder with the files of a run, as this user's."""
    (folder / "logs").mkdir(parents=True, mode=0o700)
    write(folder, range(2))
    for name in ("a", "b-c~0123456789abcdef"):
        (folder / "logs" / f"{name}.log").write_text("--- attempt 1, 2026-11-16 18:53:39 ---\nhello\n")
    for name in ("run.json", "results.jsonl", "events.jsonl", "run.lock"):
        (folder / name).write_text("{}\n")
    remember(folder)
    return folder


def start(name: str) -> None:
    words = ["--name", name, "--progress", "none", "-q"]
    assert main(["run", "--worker", "work.py:work", *words, ":::", "a", "b/c"]) == 0


def remove(capfd: pytest.CaptureFixture[str], *typed: str) -> tuple[int, str]:
    """The exit code, and what was printed."""
    capfd.readouterr()
    code = main(["rm", *typed])
    printed = capfd.readouterr()
    return code, printed.out + printed.err


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_is_removed_with_all_that_agentos_made(
    night: Path, runs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in (
        "journal.sqlite.damaged-1",
        "journal.sqlite.damaged-1-wal",
        ".results.jsonl.new",
        "journal.sqlite-wal",
    ):
        (night / name).touch()
    attempts = night / "checkpoints" / ".attempts-0123456789abcdef"
    attempts.mkdir(parents=True)
    (attempts / "outcome").touch()
    (night / "checkpoints" / "item-1").touch()
    (night / "checkpoints" / "item-1-wal").touch()
    assert (night / "logs" / "a.log").exists()

    code, printed = remove(capfd, "night", "--yes")

    assert (code, printed[:15]) == (0, "removed night: ")
    assert not night.exists()
    assert runs.exists()
    assert TrustedRuns().find(night) is None


def test_a_path_names_a_run_too(night: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.chdir("/")

    assert remove(capfd, str(night), "--yes")[0] == 0
    assert not night.exists()


def test_what_agentos_did_not_make_stays_and_is_named(
    night: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "precious").write_text("--- attempt 1")
    mine = {"notes.txt": b"mine", "logs/mine.log": b"mine", "logs/mine.txt": b"mine", "checkpoints/mine": b"mine"}
    for name, text in mine.items():
        (night / name).parent.mkdir(exist_ok=True)
        (night / name).write_bytes(text)
    (night / "results.jsonl").unlink()
    (night / "results.jsonl").symlink_to(outside / "precious")
    (night / "logs" / "link.log").symlink_to(outside / "precious")
    (night / "checkpoints" / ".attempts-0123456789abcdef").symlink_to(outside)
    os.mkfifo(night / "events.jsonl.new")

    code, printed = remove(capfd, "night", "--yes")

    assert code == 0
    assert "because agentos did not make it: checkpoints, events.jsonl.new, logs, notes.txt, results.jsonl" in printed
    links = {"results.jsonl": b"--- attempt 1", "logs/link.log": b"--- attempt 1"}
    assert content(night) == {**mine, **links}
    assert (outside / "precious").read_text() == "--- attempt 1"
    assert (outside / "deep").is_dir()


@pytest.mark.parametrize("name", ["logs", "checkpoints"])
def test_a_link_in_the_place_of_a_folder_is_not_followed(
    night: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.log").write_text("--- attempt 1")
    (outside / "a").touch()
    for old in (night / name).glob("*"):
        old.unlink()
    if (night / name).exists():
        (night / name).rmdir()
    (night / name).symlink_to(outside)

    remove(capfd, "night", "--yes")

    assert sorted(path.name for path in outside.iterdir()) == ["a", "a.log"]


def test_a_link_to_a_run_is_refused(night: Path, runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (runs / "alias").symlink_to(night)

    code, printed = remove(capfd, "alias", "--yes")

    assert (code, "is a link to" in printed) == (2, True)
    assert (night / "journal.sqlite").exists()
    assert (runs / "alias").is_symlink()


@pytest.mark.parametrize("typed", ["nigh", "latest", "", ".", "..", "night/", "none", "night\0"])
def test_only_whole_names_and_paths_are_taken(night: Path, capfd: pytest.CaptureFixture[str], typed: str) -> None:
    before = content(night)

    code, printed = remove(capfd, typed, "--yes")

    assert code == 2
    assert "no run is called exactly" in printed or "may not be yours" in printed
    assert content(night) == before


def test_a_folder_that_this_user_has_not_started_is_left_alone(
    night: Path, runs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    night.rename(runs / "moved")
    before = content(runs / "moved")

    code, printed = remove(capfd, "moved", "--yes")

    assert (code, "may not be yours: this user has not started it" in printed) == (2, True)
    assert content(runs / "moved") == before


def test_a_folder_that_was_changed_since_is_left_alone(night: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (night / "run.json").write_text("[]")

    code, printed = remove(capfd, "night", "--yes")

    assert (code, "its run.json, which has the command to run" in printed) == (2, True)
    assert (night / "journal.sqlite").exists()


@pytest.mark.parametrize("lock", ["run.lock", "journal.sqlite.lock"])
def test_a_run_that_is_on_is_left_alone(night: Path, capfd: pytest.CaptureFixture[str], lock: str) -> None:
    held = OwnerLock(night / lock, journal=night, run="night")
    try:
        code, printed = remove(capfd, "night", "--yes")
    finally:
        held.release()

    assert (code, "night is in use" in printed) == (2, True)
    assert (night / "journal.sqlite").exists()


def test_of_several_runs_all_or_none_are_removed(night: Path, runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make(runs / "day")

    assert remove(capfd, "day", "nobody", "night", "--yes")[0] == 2
    assert (runs / "day").exists()
    assert night.exists()
    assert remove(capfd, "day", "night", "day", "--yes")[0] == 0
    assert list(runs.iterdir()) == []


def test_without_a_terminal_it_has_to_be_told_yes(night: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, printed = remove(capfd, "night")

    assert (code, "no terminal to ask on" in printed) == (2, True)
    assert (night / "journal.sqlite").exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("YES\n", 0), ("n\n", 1), ("\n", 1), ("", 1), ("yep\n", 1)])
def test_on_a_terminal_it_asks(night: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int) -> None:
    stderr = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", stderr)

    assert main(["rm", "night"]) == code

    assert f"{night}  " in stderr.getvalue()
    assert "remove this run? [y/N] " in stderr.getvalue()
    assert night.exists() == bool(code)


def test_the_name_of_a_real_run_is_free_again(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    start("night")
    night = runs / "night"

    remove(capfd, "night", "--yes")
    assert not night.exists()
    start("night")

    assert (night / "results.jsonl").read_text().count("\n") == 2


def test_a_run_of_which_no_folder_can_be_entered_is_refused(
    night: Path, runs: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.rename(runs.parent / "elsewhere")
    runs.symlink_to("elsewhere")

    code, printed = remove(capfd, "night", "--yes")

    assert (code, "is a link to" in printed) == (2, True)
    assert (runs / "night" / "journal.sqlite").exists()
