from __future__ import annotations

from pathlib import Path

import pytest

from agentos.errors import JournalUnavailable
from agentos.runs.journal import locate_files
from agentos.runs.journal.database import require_sqlite

from .journal_helpers import opened


def test_a_path_without_a_suffix_is_a_run_folder(tmp_path: Path) -> None:
    files = locate_files(tmp_path / "run")

    assert files.db == tmp_path / "run" / "journal.sqlite"
    assert files.head == tmp_path / "run" / "journal.sqlite.head"
    assert files.lock == tmp_path / "run" / "journal.sqlite.lock"
    assert files.checkpoints == tmp_path / "run" / "checkpoints"


def test_an_existing_folder_is_a_run_folder_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "run.2").mkdir()

    assert locate_files(str(tmp_path / "run.2")).db == tmp_path / "run.2" / "journal.sqlite"


def test_a_path_with_a_suffix_is_the_database_itself(tmp_path: Path) -> None:
    files = locate_files(tmp_path / "batch.db")

    assert files.db == tmp_path / "batch.db"
    assert files.head == tmp_path / "batch.db.head"
    assert files.checkpoints == tmp_path / "batch.db.checkpoints"


def test_an_existing_file_is_the_database_itself_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "batch").touch()

    assert locate_files(tmp_path / "batch").db == tmp_path / "batch"


def test_two_names_of_one_journal_have_one_lock(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    assert locate_files(tmp_path / "link") == locate_files(tmp_path / "real")


def test_parent_folders_are_made(tmp_path: Path) -> None:
    opened(tmp_path / "a" / "b" / "c.sqlite").close()

    assert (tmp_path / "a" / "b" / "c.sqlite").exists()


def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")

    with pytest.raises(JournalUnavailable, match=r"file/run/journal.sqlite.*Not a directory") as caught:
        opened(tmp_path / "file" / "run")

    assert caught.value.__suppress_context__


def test_an_old_sqlite_is_refused_by_its_version(tmp_path: Path) -> None:
    with pytest.raises(JournalUnavailable, match=r"has SQLite 3\.37\.2, and a journal needs 3\.38\.0"):
        require_sqlite(tmp_path / "j.db", (3, 37, 2))
