from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentos.errors import JournalMismatch, JournalUnavailable
from agentos.runs.journal import Journal, RecordedState, encode_row, locate_files
from agentos.runs.journal.head_file import HeadFile
from agentos.util.private_folder import PrivateFolder

from .independent_reader import read
from .journal_helpers import PATIENCE, WORKER, Listener, child, done, fingerprints, opened, write


def test_a_new_journal_knows_nothing(tmp_path: Path) -> None:
    journal = opened(tmp_path / "run", total=7)

    assert (journal.session, journal.entries, journal.last_token, len(journal.known)) == (1, 0, 0, 0)
    journal.close()
    first, last = read(tmp_path / "run").entries
    card = json.loads(first["detail"])
    assert (card["session"], card["worker"], card["total"]) == (1, WORKER, 7)
    assert last["kind"] == "closed"


def test_what_was_written_is_known_and_can_be_fetched(tmp_path: Path) -> None:
    """J6."""
    write(tmp_path / "run", range(1, 4), start=True)

    journal = opened(tmp_path / "run")

    (found,) = journal.known.find(["item-2"], journal.ids_at)
    assert found is not None
    seq, state, _ = found
    (row,) = journal.fetch([seq])
    assert (state, row.state, row.item, row.value) == (RecordedState.DONE, RecordedState.DONE, "item-2", '"yes"')
    assert (row.token, row.attempt, row.credential, row.duration, row.at) == (2, 1, "key-a", 0.5, 1_790_000_002.25)
    assert journal.last_token == 3
    assert journal.known.counts()[RecordedState.DONE] == 3
    journal.close()


def test_fetched_entries_come_in_the_order_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "run", range(1, 6))
    journal = opened(tmp_path / "run")

    assert [row.seq for row in journal.fetch([5, 2, 999, 3, 2])] == [5, 2, 3, 2]
    assert journal.fetch([]) == []

    journal.close()
    with pytest.raises(JournalUnavailable, match="it is closed"):
        journal.fetch([1])


def test_entries_of_this_session_can_be_fetched_too(tmp_path: Path) -> None:
    journal = opened(tmp_path / "run")
    writer = Listener().listen(journal)
    writer.put(done(9))
    assert writer.flush(PATIENCE)

    assert journal.fetch([2])[0].item == "item-9"
    writer.close(PATIENCE)


def test_opening_twice_more_adds_nothing_but_session_entries(tmp_path: Path) -> None:
    """J4."""
    write(tmp_path / "run", range(5))
    before = read(tmp_path / "run")

    for session in (2, 3):
        journal = opened(tmp_path / "run")
        assert journal.session == session
        assert journal.known.counts()[RecordedState.DONE] == 5
        journal.close()

    after = read(tmp_path / "run")
    assert after.entries[: len(before.entries)] == before.entries
    assert [entry["kind"] for entry in after.entries[len(before.entries) :]] == ["session", "closed"] * 2
    assert after.states == before.states


def test_after_a_kill_everything_acknowledged_is_there(tmp_path: Path) -> None:
    with child("killed", tmp_path / "run") as process:
        process.wait(PATIENCE)
    before = read(tmp_path / "run")
    assert before.states == {f"item-{n}": "done" for n in range(60)}

    journal = opened(tmp_path / "run")

    assert journal.known.counts()[RecordedState.DONE] == 60
    journal.close()
    assert read(tmp_path / "run").entries[:61] == before.entries


def test_a_crash_right_after_the_first_commit_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry of the session is there, and the head has not heard of it."""

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(
            "agentos.runs.journal.head_file.HeadFile.sync", lambda head: patch.setattr(HeadFile, "write", crash)
        )
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path / "run")

    journal = opened(tmp_path / "run")

    assert (journal.session, journal.entries) == (2, 1)
    journal.close()


def test_a_crash_while_the_database_is_made_leaves_no_half_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PrivateFolder, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path / "run")
    assert not locate_files(tmp_path / "run").db.exists()

    opened(tmp_path / "run").close()

    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == [
        "journal.sqlite",
        "journal.sqlite.head",
        "journal.sqlite.lock",
    ]


def test_another_worker_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    write(tmp_path / "run", range(2))
    before = fingerprints(tmp_path / "run")

    with pytest.raises(JournalMismatch) as caught:
        Journal.open(tmp_path / "run", worker="other:work")

    assert (caught.value.what, caught.value.recorded, caught.value.given) == ("worker", WORKER, "other:work")
    assert fingerprints(tmp_path / "run") == before
    assert not list((tmp_path / "run").glob("*-wal"))


def test_the_states_of_items_follow_the_table(tmp_path: Path) -> None:
    journal = opened(tmp_path / "run")
    writer = Listener().listen(journal)
    for item, kinds in {
        "a": ["start", "retry"],
        "b": ["start", "interrupted", "note"],
        "c": ["start", "failed", "late"],
        "d": ["parked"],
        "e": ["start"],
    }.items():
        for kind in kinds:
            writer.put(encode_row(1.0, kind, item))
    assert writer.close(PATIENCE)

    again = opened(tmp_path / "run")
    states = dict(zip("abcde", again.known.find("abcde", again.ids_at), strict=True))
    again.close()

    assert {item: found.state for item, found in states.items() if found} == {
        "a": "pending",
        "b": "interrupted",
        "c": "failed",
        "d": "parked",
        "e": "running",
    }
    assert read(tmp_path / "run").states == {item: found.state for item, found in states.items() if found}
