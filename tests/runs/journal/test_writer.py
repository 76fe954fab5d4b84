from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from threading import Event, Thread

import pytest

from agentos.runs.journal import JournalWriter, encode_row, locate_files
from agentos.runs.journal.commit_log import CommitLog
from agentos.runs.journal.head_file import read_head
from agentos.runs.journal.writer import MAX_ROWS

from .independent_reader import read
from .journal_helpers import PATIENCE, Faulty, Listener, done, failing_once, opened


class Attempt:
    """A start, as the run has them."""

    def __init__(self, n: int, *, ended: bool = False) -> None:
        self.n = n
        self.ended = ended

    def start_row(self) -> str:
        return encode_row(1.0, "start", f"item-{self.n}", self.n, 1)


def items_seen_by_others(path: Path) -> set[str]:
    connection = sqlite3.connect(f"{locate_files(path).db.as_uri()}?mode=ro", uri=True)
    try:
        return {item for (item,) in connection.execute("select item from entries where item is not null")}
    finally:
        connection.close()


def test_a_receipt_is_handed_on_only_when_others_can_read_the_entry(tmp_path: Path) -> None:
    """J8."""
    unseen: list[str] = []

    def look(receipts: list[str]) -> None:
        unseen.extend(set(receipts) - items_seen_by_others(tmp_path / "run"))

    heard = Listener()
    writer = opened(tmp_path / "run").writer(on_committed=look, on_trouble=heard.troubled, on_lost=heard.was_lost)
    for n in range(300):
        writer.put(done(n), f"item-{n}", urgent=n % 7 == 0)

    assert writer.close(PATIENCE)
    assert unseen == []


def test_while_the_commit_is_under_way_nothing_is_acknowledged(tmp_path: Path) -> None:
    faulty, begun, go = Faulty(), Event(), Event()
    heard = Listener()
    writer = heard.listen(opened(tmp_path / "run", connect=faulty.connect))
    before = read_head(locate_files(tmp_path / "run").head)

    def wait_in_commit() -> None:
        begun.set()
        assert go.wait(PATIENCE)

    faulty.before = wait_in_commit
    writer.put(done(1), 1, urgent=True)
    assert begun.wait(PATIENCE)

    assert heard.receipts == []
    assert not writer.flush(timeout=0)
    assert read_head(locate_files(tmp_path / "run").head) == before
    go.set()
    assert writer.flush(PATIENCE)
    assert heard.receipts == [1]
    assert writer.close(PATIENCE)


def test_a_commit_is_synced_before_it_returns(tmp_path: Path) -> None:
    faulty, heard = Faulty(), Listener()
    writer = heard.listen(opened(tmp_path / "run", connect=faulty.connect))
    faulty.before = failing_once(sqlite3.SQLITE_IOERR_WRITE)
    writer.put(done(1), 1)
    assert writer.flush(PATIENCE)

    reopened = faulty.connections[1]
    assert reopened.execute("pragma synchronous").fetchone() == (2,)  # FULL
    assert reopened.execute("pragma journal_mode").fetchone() == ("wal",)
    assert writer.close(PATIENCE)


def test_the_head_follows_each_commit(tmp_path: Path) -> None:
    heard = Listener()
    writer = heard.listen(opened(tmp_path / "run"))
    seen = []
    for n in range(5):
        writer.put(done(n), urgent=True)
        assert writer.flush(PATIENCE)
        head = read_head(locate_files(tmp_path / "run").head)
        assert head is not None
        seen.append(head.seq)

    assert seen == [2, 3, 4, 5, 6]  # after the entry of the session
    assert read(tmp_path / "run").head_seq == 6
    writer.close(PATIENCE)


def test_entries_of_all_threads_are_committed_in_the_order_each_put_them(tmp_path: Path) -> None:
    heard = Listener()
    writer = heard.listen(opened(tmp_path / "run"))

    def work(worker: int) -> None:
        for n in range(worker * 1000, worker * 1000 + 500):
            writer.put(done(n), n)

    threads = [Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.close(PATIENCE)

    written = [entry["token"] for entry in read(tmp_path / "run").of_kind("done")]
    assert written == heard.receipts
    assert sorted(written) == [worker * 1000 + n for worker in range(8) for n in range(500)]
    for worker in range(8):
        own = [n for n in written if n // 1000 == worker]
        assert own == sorted(own)


def test_many_entries_share_a_commit_but_not_without_bound(tmp_path: Path) -> None:
    faulty, heard = Faulty(), Listener()
    writer = heard.listen(opened(tmp_path / "run", connect=faulty.connect))
    with faulty.held_in_commit(writer):
        for n in range(1, 2 * MAX_ROWS + 11):
            writer.put(done(n), n)
        big = '"' + "x" * 3_000_000 + '"'
        for n in range(3):
            writer.put(done(n, big), -n)

    assert writer.close(PATIENCE)

    assert [len(commit) for commit in heard.commits] == [1, MAX_ROWS, MAX_ROWS, 12, 1]


def test_entries_without_a_receipt_are_not_announced(tmp_path: Path) -> None:
    heard = Listener()
    writer = heard.listen(opened(tmp_path / "run"))
    writer.put(done(1))
    writer.put(done(2), "two")
    assert writer.flush(PATIENCE)
    writer.put(done(3))
    assert writer.close(PATIENCE)

    assert heard.commits == [["two"]]
    assert len(read(tmp_path / "run").of_kind("done")) == 3


def test_a_start_that_has_ended_is_left_out(tmp_path: Path) -> None:
    faulty = Faulty()
    writer = Listener().listen(opened(tmp_path / "run", connect=faulty.connect))
    running, ended = Attempt(1), Attempt(2)
    with faulty.held_in_commit(writer):
        writer.put_start(running)
        writer.put_start(ended)
        ended.ended = True
        writer.put(done(2))

    assert writer.close(PATIENCE)

    assert [(entry["kind"], entry["item"]) for entry in read(tmp_path / "run").of_kind("start", "done")] == [
        ("done", "item-0"),
        ("start", "item-1"),
        ("done", "item-2"),
    ]


def test_a_start_that_cannot_tell_itself_costs_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Mute(Attempt):
        def start_row(self) -> str:
            raise LookupError("no row")

    writer = Listener().listen(opened(tmp_path / "run"))
    writer.put_start(Mute(1))
    writer.put(done(2))

    assert writer.close(PATIENCE)

    assert read(tmp_path / "run").states == {"item-2": "done"}
    assert "the start of an attempt could not be recorded" in caplog.text


def test_a_listener_that_raises_does_not_stop_the_writer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heard = Listener()

    def fail_then_hear(receipts: list[int]) -> None:
        if 1 in receipts:
            raise SystemExit("a listener's own fault")
        heard.committed(receipts)

    journal = opened(tmp_path / "run")
    writer = journal.writer(on_committed=fail_then_hear, on_trouble=heard.troubled, on_lost=heard.was_lost)
    with caplog.at_level(logging.ERROR, "agentos"):
        writer.put(done(1), 1)
        assert writer.flush(PATIENCE)
        writer.put(done(2), 2)
        assert writer.close(PATIENCE)

    assert heard.receipts == [2]
    assert "a callback of the journal failed" in caplog.text


def test_a_listener_may_put_more(tmp_path: Path) -> None:
    heard = Listener()
    writers: list[JournalWriter] = []

    def hear(receipts: list[int]) -> None:
        for n in receipts:
            if n < 5:
                writers[0].put(done(n + 1), n + 1)
        heard.committed(receipts)

    journal = opened(tmp_path / "run")
    writers.append(journal.writer(on_committed=hear, on_trouble=heard.troubled, on_lost=heard.was_lost))
    writers[0].put(done(1), 1)
    heard.wait(lambda heard: 5 in heard.receipts)

    assert writers[0].close(PATIENCE)
    assert heard.receipts == [1, 2, 3, 4, 5]


def test_closing_commits_what_is_queued_and_marks_the_clean_end(tmp_path: Path) -> None:
    heard = Listener()
    writer = heard.listen(opened(tmp_path / "run"), nap=PATIENCE)
    for n in range(10):
        writer.put(done(n), n)

    assert writer.close(PATIENCE)

    assert heard.receipts == list(range(10))
    assert read(tmp_path / "run").entries[-1]["kind"] == "closed"
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == [
        "journal.sqlite",
        "journal.sqlite.head",
        "journal.sqlite.lock",
    ]
    writer.put(done(11), 11)
    assert not writer.flush(PATIENCE)
    assert writer.close(PATIENCE)


def test_an_urgent_entry_ends_the_nap(tmp_path: Path) -> None:
    heard = Listener()
    writer = heard.listen(opened(tmp_path / "run"), nap=10 * PATIENCE)
    writer.put(done(1), 1)

    writer.put(done(2), 2, urgent=True)

    heard.wait(lambda heard: heard.receipts == [1, 2])
    assert writer.close(PATIENCE)


def test_a_journal_is_closed_only_when_the_next_run_can_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk: the end is written down, and the files take their time to close."""
    closing, go = Event(), Event()
    really_close = CommitLog.close

    def close_slowly(store: CommitLog) -> None:
        closing.set()
        assert go.wait(PATIENCE)
        really_close(store)

    monkeypatch.setattr(CommitLog, "close", close_slowly)
    writer = Listener().listen(opened(tmp_path / "run"))
    writer.close(timeout=0)
    assert closing.wait(PATIENCE)

    assert not writer.close(timeout=0)

    go.set()
    assert writer.close(PATIENCE)
    assert opened(tmp_path / "run").close(PATIENCE)


def test_waiting_for_itself_is_refused_on_the_writers_thread(tmp_path: Path) -> None:
    heard = Listener()
    refused: list[BaseException] = []
    writers: list[JournalWriter] = []

    def hear(receipts: list[int]) -> None:
        try:
            writers[0].flush()
        except RuntimeError as error:
            refused.append(error)
        heard.committed(receipts)

    journal = opened(tmp_path / "run")
    writers.append(journal.writer(on_committed=hear, on_trouble=heard.troubled, on_lost=heard.was_lost))
    writers[0].put(done(1), 1)

    assert writers[0].close(PATIENCE)
    assert len(refused) == 1


def test_whoever_waits_for_an_entry_that_comes_too_late_is_let_go(tmp_path: Path) -> None:
    writer = Listener().listen(opened(tmp_path / "run"))
    writer.abandon()
    writer.close(PATIENCE)
    let_go = Event()

    writer.put(done(1), let_go.set, urgent=True)

    assert let_go.is_set()
