"""A journal that cannot be written, for a while or for good, acknowledges nothing that is not durable."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from threading import Event

import pytest

from agentos.runs.journal import locate_files
from agentos.runs.journal.head_file import read_head

from .independent_reader import read
from .journal_helpers import PATIENCE, Faulty, Listener, child, done, failing_once, opened

BIG = '"' + "x" * 50_000 + '"'


def test_on_a_full_disk_nothing_is_acknowledged_and_all_of_it_once_there_is_space(tmp_path: Path) -> None:
    """J7, SQLITE_FULL."""
    faulty, heard = Faulty(), Listener()
    writer = heard.listen(opened(tmp_path / "run", connect=faulty.connect))
    writer.put(done(0), 0)
    assert writer.flush(PATIENCE)
    faulty.on_open = lambda connection: connection.execute("pragma max_page_count = 1").close()
    faulty.on_open(faulty.connections[-1])
    for n in range(1, 10):
        writer.put(done(n, BIG), n)
    heard.wait(lambda heard: heard.troubles)

    head = read_head(locate_files(tmp_path / "run").head)
    assert heard.receipts == [0]
    assert head is not None
    assert head.seq == 2
    assert "the disk is full" in str(heard.troubles[0])
    assert str(tmp_path / "run" / "journal.sqlite") in str(heard.troubles[0])
    faulty.on_open = lambda connection: None
    heard.wait(lambda heard: len(heard.receipts) == 10)
    assert writer.close(PATIENCE)
    assert heard.troubles[1:] == [None]
    assert [entry["token"] for entry in read(tmp_path / "run").of_kind("done")] == list(range(10))


def test_a_write_error_of_the_real_file_system_passes_too(tmp_path: Path) -> None:
    """J7, SQLITE_IOERR_WRITE: the kernel refuses to let the log grow."""
    with child("short-of-space", tmp_path / "run") as process:
        output, _ = process.communicate(timeout=PATIENCE)
    told = json.loads(output)

    assert told["meanwhile"] == [0]
    assert "the disk reports an error" in told["troubles"][0]
    assert told["troubles"][1:] == [None]
    assert told["receipts"] == list(range(50))
    assert told["closed"]
    assert [entry["token"] for entry in read(tmp_path / "run").of_kind("done")] == list(range(50))


def test_a_commit_that_happened_although_it_failed_is_not_written_twice(tmp_path: Path) -> None:
    """F6: the sync fails after the rows are in the log."""
    faulty, heard = Faulty(), Listener()
    writer = heard.listen(opened(tmp_path / "run", connect=faulty.connect))
    fail = failing_once(sqlite3.SQLITE_IOERR_FSYNC)
    faulty.after = lambda: fail() if heard.receipts else None
    with faulty.held_in_commit(writer):
        writer.put(done(1), 1)
        writer.put(done(2), 2)
    heard.wait(lambda heard: len(heard.receipts) > 1)

    assert heard.commits == [[0], [1, 2]]
    log = locate_files(tmp_path / "run").wal.stat().st_size
    assert log == 0, "what was doubtful in the log was not written again elsewhere"
    assert len(faulty.connections) == 2
    writer.put(done(3), 3)
    assert writer.close(PATIENCE)
    assert [entry["token"] for entry in read(tmp_path / "run").of_kind("done")] == [0, 1, 2, 3]


def test_a_commit_that_failed_before_it_happened_is_written_on_a_new_connection(tmp_path: Path) -> None:
    faulty, heard = Faulty(), Listener()
    writer = heard.listen(opened(tmp_path / "run", connect=faulty.connect))
    faulty.before = failing_once(sqlite3.SQLITE_IOERR_WRITE)
    writer.put(done(1), 1)

    assert writer.close(PATIENCE)

    assert heard.receipts == [1]
    assert len(faulty.connections) == 2
    assert [entry["token"] for entry in read(tmp_path / "run").of_kind("done")] == [1]


def test_doubtful_rows_wait_for_a_reader_who_keeps_the_log(tmp_path: Path) -> None:
    """They may not be acknowledged before a checkpoint, and a reader in the middle of reading holds that up."""
    faulty, heard = Faulty(), Listener()
    writer = heard.listen(opened(tmp_path / "run", connect=faulty.connect))
    reading = sqlite3.connect(locate_files(tmp_path / "run").db, isolation_level=None)
    reading.execute("begin")
    reading.execute("select * from entries").fetchall()
    faulty.after = failing_once(sqlite3.SQLITE_IOERR_FSYNC)
    third_try = Event()
    faulty.on_open = lambda connection: third_try.set() if len(faulty.connections) > 3 else None
    writer.put(done(1), 1)

    assert third_try.wait(PATIENCE)
    assert heard.receipts == []
    reading.execute("commit")
    reading.close()
    heard.wait(lambda heard: heard.receipts == [1])
    assert writer.close(PATIENCE)
    assert [entry["token"] for entry in read(tmp_path / "run").of_kind("done")] == [1]


def test_somebody_who_holds_the_database_locked_only_delays(tmp_path: Path) -> None:
    heard = Listener()
    writer = heard.listen(opened(tmp_path / "run"))
    other = sqlite3.connect(locate_files(tmp_path / "run").db, isolation_level=None)
    other.execute("begin immediate")
    writer.put(done(1), 1)
    heard.wait(lambda heard: heard.troubles)

    assert heard.receipts == []
    assert "another program has it locked" in str(heard.troubles[0])
    other.execute("rollback")
    other.close()
    heard.wait(lambda heard: heard.receipts == [1])
    assert writer.close(PATIENCE)
    assert heard.lost == []


@pytest.mark.parametrize("name", ["journal.sqlite", "journal.sqlite-wal"])
def test_a_journal_deleted_under_the_run_is_lost(tmp_path: Path, name: str) -> None:
    heard = Listener()
    writer = heard.listen(opened(tmp_path / "run"))
    writer.put(done(1), 1)
    assert writer.flush(PATIENCE)
    (tmp_path / "run" / name).unlink()

    writer.put(done(2), 2)
    heard.wait(lambda heard: heard.lost)

    assert heard.lost[0].detail == f"{name} was removed"
    assert heard.receipts == [1]
    assert not writer.flush(PATIENCE)
    assert not writer.close(PATIENCE)


def test_a_folder_that_vanished_is_lost(tmp_path: Path) -> None:
    heard = Listener()
    writer = heard.listen(opened(tmp_path / "run"))
    shutil.rmtree(tmp_path / "run")

    writer.put(done(1), 1)
    heard.wait(lambda heard: heard.lost)

    assert heard.receipts == []
    assert not writer.close(PATIENCE)


def test_a_journal_put_in_its_place_is_left_alone(tmp_path: Path) -> None:
    """The name of the old one's log, which goes when its last connection closes, is now the new one's."""
    heard, new_heard = Listener(), Listener()
    old = heard.listen(opened(tmp_path / "run"))
    old.put(done(1), 1)
    assert old.flush(PATIENCE)
    (tmp_path / "run").rename(tmp_path / "away")
    new = new_heard.listen(opened(tmp_path / "run"))
    new.put(done(5), 5)
    assert new.flush(PATIENCE)

    old.put(done(2), 2)
    heard.wait(lambda heard: heard.lost)
    assert not old.close(PATIENCE)

    assert heard.lost[0].detail == "journal.sqlite was replaced"
    assert locate_files(tmp_path / "run").wal.stat().st_size > 0
    assert read(tmp_path / "run").states == {"item-5": "done"}
    assert new.close(PATIENCE)
    assert read(tmp_path / "run").states == {"item-5": "done"}
    assert read(tmp_path / "away").states["item-1"] == "done"


def test_a_row_that_no_database_takes_ends_the_journal_instead_of_waiting_for_ever(tmp_path: Path) -> None:
    heard = Listener()
    writer = heard.listen(opened(tmp_path / "run"))

    writer.put("this is not a row", 1)
    heard.wait(lambda heard: heard.lost)

    assert "malformed JSON" in heard.lost[0].detail
    assert heard.receipts == []
    assert not writer.close(PATIENCE)


def test_closing_in_trouble_says_so_and_goes_on_until_it_can(tmp_path: Path) -> None:
    heard = Listener()
    writer = heard.listen(opened(tmp_path / "run"))
    other = sqlite3.connect(locate_files(tmp_path / "run").db, isolation_level=None)
    other.execute("begin immediate")
    writer.put(done(1), 1)
    heard.wait(lambda heard: heard.troubles)

    assert not writer.close(timeout=0)
    assert not writer.flush(timeout=0)
    other.execute("rollback")
    other.close()

    assert writer.close(PATIENCE)
    assert heard.receipts == [1]
    assert read(tmp_path / "run").states == {"item-1": "done"}


def test_abandoning_gives_up_what_is_not_committed_and_frees_the_journal(tmp_path: Path) -> None:
    heard = Listener()
    writer = heard.listen(opened(tmp_path / "run"))
    writer.put(done(1), 1)
    assert writer.flush(PATIENCE)
    other = sqlite3.connect(locate_files(tmp_path / "run").db, isolation_level=None)
    other.execute("begin immediate")
    writer.put(done(2), 2)
    heard.wait(lambda heard: heard.troubles)

    writer.abandon()
    assert not writer.close(PATIENCE)

    other.execute("rollback")
    other.close()
    assert heard.receipts == [1]
    journal = opened(tmp_path / "run")
    assert len(journal.known) == 1
    journal.close()


def test_a_head_that_cannot_be_written_costs_no_result(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = opened(tmp_path / "run")
    heard = Listener()
    writer = heard.listen(journal)
    writer.put(done(1), 1)
    assert writer.flush(PATIENCE)

    def fail(position: object) -> None:
        raise OSError("no")

    journal._store._head.write = fail  # type: ignore[method-assign]
    for n in (2, 3):
        writer.put(done(n), n)
        assert writer.flush(PATIENCE)

    assert heard.receipts == [1, 2, 3]
    assert caplog.text.count("journal.sqlite.head cannot be written") == 1
    assert writer.close(PATIENCE)
    opened(tmp_path / "run").close()
