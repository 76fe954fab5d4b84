"""Links, pipes and other unusual files are not used as a journal, and files that we create are private."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agentos.errors import JournalUnavailable
from agentos.runs.journal import locate_files
from agentos.runs.report.run_report import build_report
from agentos.runs.report.run_summary import build_summary

from ..hostile_files import a_folder, a_link, a_pipe, a_second_name
from .journal_helpers import copy_of, opened, write


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "run"
    write(path, range(20))
    return path


@pytest.fixture
def journal(sound: Path, tmp_path: Path) -> Path:
    return copy_of(sound, tmp_path / "run")


# -- what lies in the place of its files ----------------------------------------------------------------------------


@pytest.mark.parametrize("plant", [a_link, a_second_name, a_pipe, a_folder])
@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal", ".head", ".lock"])
def test_what_is_no_ordinary_file_of_its_own_is_not_used_as_one_of_a_journal(
    journal: Path, tmp_path: Path, plant: Callable[[Path, Path], None], suffix: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    path = Path(f"{locate_files(journal).db}{suffix}")
    path.unlink(missing_ok=True)
    plant(path, precious)

    with pytest.raises(JournalUnavailable, match=f"{path.name} is "):
        opened(journal)
    build_summary(journal)  # neither waits nor raises

    assert precious.read_text() == "mine"


def test_a_link_in_the_place_of_the_database_itself_is_refused(journal: Path, tmp_path: Path) -> None:
    (tmp_path / "other.sqlite").symlink_to(locate_files(journal).db)

    with pytest.raises(JournalUnavailable, match=r"other.sqlite is a link"):
        opened(tmp_path / "other.sqlite")


def test_a_rollback_journal_is_not_rolled_back(journal: Path) -> None:
    locate_files(journal).rollback.write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7")

    with pytest.raises(JournalUnavailable, match="rollback journal"):
        opened(journal)
    with pytest.raises(JournalUnavailable, match="rollback journal"):
        build_report(journal)


def test_a_draft_that_is_a_link_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal.sqlite.new").symlink_to(tmp_path / "elsewhere")

    opened(tmp_path / "run").close()

    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "run" / "journal.sqlite").is_symlink()


def test_a_copy_of_a_damaged_journal_is_not_written_through_a_link(journal: Path, tmp_path: Path) -> None:
    locate_files(journal).db.unlink()
    (journal / "journal.sqlite.damaged-1").symlink_to(tmp_path / "elsewhere")

    opened(journal, accept_loss=True).close()

    assert not (tmp_path / "elsewhere").exists()
    assert (journal / "journal.sqlite.damaged-2").is_file()


# -- who may read it ------------------------------------------------------------------------------------------------


def test_a_new_journal_is_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        journal = opened(tmp_path / "deep" / "run")
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "deep" / "run").iterdir()}
        journal.close()
    finally:
        os.umask(before)

    suffixes = ("", "-wal", "-shm", ".head", ".lock")
    assert modes == {f"journal.sqlite{suffix}": 0o600 for suffix in suffixes}
    assert [(tmp_path / each).stat().st_mode & 0o777 for each in ("deep", "deep/run")] == [0o700, 0o700]


def test_a_folder_that_the_program_made_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)

    opened(tmp_path / "run").close()

    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "run" / "journal.sqlite").stat().st_mode & 0o777 == 0o600
