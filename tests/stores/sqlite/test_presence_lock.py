"""The presence lock with real processes, some of which are killed."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentos.errors import StoreUnavailable
from agentos.stores.sqlite.presence_lock import PresenceLock
from agentos.util.sqlite import connect as sqlite

PATIENCE = 20.0

with_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "pool.sqlite"


@contextmanager
def child(mode: str, store: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.stores.sqlite.presence_child", mode, str(store)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def could_be_alone(store: Path) -> bool:
    alive = PresenceLock(store)
    alone = alive.try_exclusive()
    alive.release()
    return alone


def must_not_adopt() -> None:
    raise AssertionError("it was adopted")


# -- being inside --------------------------------------------------------------------------------------------------


def test_a_shared_lock_excludes_exclusive_ones_but_not_shared_ones(store: Path) -> None:
    with child("inside", store) as first, child("inside", store) as second:
        assert (heard(first), heard(second)) == ("inside", "inside")

        assert not could_be_alone(store)
        alive = PresenceLock(store)
        alive.share()
        assert alive.is_held
        alive.release()
        assert not alive.is_held


def test_one_that_leaves_no_longer_counts(store: Path) -> None:
    with child("inside", store) as other:
        assert heard(other) == "inside"
        assert other.stdin is not None
        other.stdin.close()
        assert heard(other) == "left"

        assert could_be_alone(store)


def test_one_that_is_killed_no_longer_counts(store: Path) -> None:
    with child("inside", store) as other:
        assert heard(other) == "inside"
        other.kill()
        other.wait(PATIENCE)

        assert could_be_alone(store)


def test_one_of_two_that_is_killed_leaves_the_other_inside(store: Path) -> None:
    with child("inside", store) as first, child("inside", store) as second:
        assert (heard(first), heard(second)) == ("inside", "inside")
        first.kill()
        first.wait(PATIENCE)

        assert not could_be_alone(store)


def test_two_pools_of_one_process_count_as_two(store: Path) -> None:
    first, second = PresenceLock(store), PresenceLock(store)
    first.share()
    second.share()

    first.release()

    assert not could_be_alone(store)
    second.release()
    assert could_be_alone(store)


def test_the_file_is_private_and_stays_empty_and_single(store: Path) -> None:
    alive = PresenceLock(store)
    assert alive.try_exclusive()
    assert [path.name for path in store.parent.iterdir()] == ["pool.sqlite.alive"]
    alive.share()
    alive.release()

    assert [path.name for path in store.parent.iterdir()] == ["pool.sqlite.alive"]
    assert alive.path.stat().st_size == 0
    if os.name == "posix":
        assert stat.S_IMODE(alive.path.stat().st_mode) == 0o600


def test_release_and_share_are_idempotent_and_exclusive_needs_a_released_lock(store: Path) -> None:
    alive = PresenceLock(store)
    alive.release()
    alive.share()
    alive.share()

    with pytest.raises(ValueError, match="already holds the lock"):
        alive.try_exclusive()

    assert not could_be_alone(store)
    alive.release()


# -- being alone ---------------------------------------------------------------------------------------------------


def test_an_exclusive_lock_excludes_all_others(store: Path) -> None:
    with child("alone", store) as other:
        assert heard(other) == "alone"

        assert not could_be_alone(store)
        with pytest.raises(StoreUnavailable, match="has locked it for 0s"):
            PresenceLock(store).share(patience=0)


def test_one_that_is_killed_while_alone_leaves_nothing_behind(store: Path) -> None:
    with child("alone", store) as other:
        assert heard(other) == "alone"
        other.kill()
        other.wait(PATIENCE)

        assert could_be_alone(store)
        assert [path.name for path in store.parent.iterdir()] == ["pool.sqlite.alive"]


def test_a_newcomer_waits_for_one_that_is_alone(store: Path) -> None:
    attempts: list[str] = []

    with child("alone", store) as other:
        assert heard(other) == "alone"

        def connect(uri: str) -> sqlite3.Connection:
            attempts.append(uri)
            if len(attempts) == 2:
                tell(other)
            return sqlite.connect(uri)

        alive = PresenceLock(store, connect=connect)
        alive.share(patience=PATIENCE)

        assert len(attempts) >= 2
        assert heard(other) == "inside"
        alive.release()


def could_be_alone_elsewhere(store: Path) -> bool:
    """In another process, as the locks of one process are SQLite's own affair."""
    with child("alone", store) as other:
        return heard(other) == "alone"


def test_there_is_no_gap_between_being_alone_and_being_one_of_many(store: Path) -> None:
    """After each statement of the one who was alone, another process tries to be."""
    found: list[bool] = []

    class Watched(sqlite3.Connection):
        def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
            cursor = super().execute(sql)
            found.append(could_be_alone_elsewhere(store))
            return cursor

    def connect(uri: str) -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, factory=Watched)

    alive = PresenceLock(store, connect=connect)
    assert alive.try_exclusive()
    found.clear()

    alive.share()

    assert found == [False] * 4
    with child("inside", store) as other:
        assert heard(other) == "inside"
    alive.release()
    assert could_be_alone(store)


# -- forks ---------------------------------------------------------------------------------------------------------


@with_fork
def test_the_end_of_a_forked_child_does_not_end_the_lock_of_its_parent(store: Path) -> None:
    with child("forking", store) as parent:
        assert heard(parent) == "inside True 0"

        assert not could_be_alone(store)
        parent.kill()
        parent.wait(PATIENCE)
        assert could_be_alone(store)


@with_fork
def test_a_forked_child_that_comes_in_has_a_lock_of_its_own(store: Path) -> None:
    """SQLite believes that the process has its parent's locks; the system knows better."""
    with child("forking_inward", store) as parent:
        assert heard(parent).startswith("inside True ")
        parent.kill()
        parent.wait(PATIENCE)

        assert not could_be_alone(store)


# -- what may be wrong with the file -------------------------------------------------------------------------------


def test_a_file_that_is_not_empty_is_refused_and_left_alone(store: Path) -> None:
    alive = PresenceLock(store)
    alive.path.write_text("somebody's notes")

    with pytest.raises(StoreUnavailable, match="only for locking, and is not empty"):
        alive.share()

    assert alive.path.read_text() == "somebody's notes"
    assert not alive.is_held


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="No such file"):
        PresenceLock(tmp_path / "gone" / "pool.sqlite").share()


def test_an_error_of_sqlite_is_told(store: Path) -> None:
    def connect(uri: str) -> sqlite3.Connection:
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    with pytest.raises(StoreUnavailable, match="it cannot be opened"):
        PresenceLock(store, connect=connect).try_exclusive()
