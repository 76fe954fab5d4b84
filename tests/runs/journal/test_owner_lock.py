from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentos.errors import JournalInUse
from agentos.runs.journal import locate_files

from .independent_reader import read
from .journal_helpers import PATIENCE, Listener, child, done, opened


def test_a_second_opening_in_one_process_is_refused_by_the_name_of_the_first(tmp_path: Path) -> None:
    first = opened(tmp_path / "run", run="nightly")

    with pytest.raises(JournalInUse, match=rf"in use by run 'nightly' \(pid {os.getpid()} on .* since \d{{4}}-"):
        opened(tmp_path / "run")

    first.close()
    opened(tmp_path / "run").close()


def test_another_process_is_refused_by_name_and_its_end_by_kill_frees_the_journal(tmp_path: Path) -> None:
    with child("holding", tmp_path / "run") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        with pytest.raises(JournalInUse, match=rf"run 'the first' \(pid {holder.pid} on "):
            opened(tmp_path / "run")
        holder.kill()

    opened(tmp_path / "run").close()


def test_a_child_left_behind_by_a_killed_run_does_not_keep_the_journal(tmp_path: Path) -> None:
    with child("forking", tmp_path / "run") as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        assert parent.wait(PATIENCE) < 0

        journal = opened(tmp_path / "run")

        assert journal.session == 2
        journal.close()


def test_a_refused_opening_changes_nothing_for_the_owner(tmp_path: Path) -> None:
    heard = Listener()
    writer = heard.listen(opened(tmp_path / "run"))
    with pytest.raises(JournalInUse):
        opened(tmp_path / "run")

    writer.put(done(1), 1)

    assert writer.close(PATIENCE)
    assert heard.receipts == [1]
    assert read(tmp_path / "run").states == {"item-1": "done"}


def test_after_a_takeover_the_old_writer_loses_and_the_new_one_is_unharmed(tmp_path: Path) -> None:
    """Somebody deleted the lock file of a run that was alive."""
    old_heard, new_heard = Listener(), Listener()
    old = old_heard.listen(opened(tmp_path / "run"))
    old.put(done(1), 1)
    assert old.flush(PATIENCE)
    locate_files(tmp_path / "run").lock.unlink()
    new = new_heard.listen(opened(tmp_path / "run"))

    old.put(done(2), 2)
    old_heard.wait(lambda heard: heard.lost)
    new.put(done(3), 3)

    assert f"taken over by session 2 (pid {os.getpid()} on" in old_heard.lost[0].detail
    assert not old.close(PATIENCE)
    assert new.close(PATIENCE)
    assert (old_heard.receipts, new_heard.receipts) == ([1], [3])
    assert read(tmp_path / "run").states == {"item-1": "done", "item-3": "done"}
