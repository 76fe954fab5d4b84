"""A changed journal is refused without being touched; with consent the run continues with its intact part."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.errors import JournalDamaged, JournalError, JournalInUse, NotAJournal
from agentos.runs.journal import RecordedState, locate_files

from .independent_reader import Broken, read
from .journal_helpers import PATIENCE, child, copy_of, fingerprints, flip_bit, opened, write


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal whose writer was killed with 60 commits in the log."""
    path = tmp_path_factory.mktemp("killed") / "run"
    with child("killed", path) as process:
        process.wait(PATIENCE)
    return path


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal that was closed cleanly: everything is in the database, and there is no log."""
    path = tmp_path_factory.mktemp("closed") / "run"
    write(path, range(60), start=True)
    return path


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder for hundreds of copies: in memory where there is one, as each sound copy is synced when it opens."""
    memory = Path("/dev/shm")
    if not (memory.is_dir() and os.access(memory, os.W_OK)):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def refusal(path: Path, kind: type[JournalError] = JournalDamaged) -> Any:
    """The error of opening *path*, having checked that not one byte was changed and no file was made but the lock."""
    files = locate_files(path)
    before, names = fingerprints(path), {file.name for file in files.db.parent.iterdir()}
    with pytest.raises(kind) as caught:
        opened(path)
    assert fingerprints(path) == before
    assert {file.name for file in files.db.parent.iterdir()} - names <= {files.lock.name, files.shm.name}
    return caught.value


def intact_or_refused(path: Path, entries: list[dict[str, Any]]) -> str:
    """How the journal's opening ended; fails if it opened and any of *entries* is not as it was."""
    try:
        journal = opened(path)
    except JournalError as error:
        return type(error).__name__
    journal.close()
    assert read(path).entries[: len(entries)] == entries
    return "intact"


def test_of_200_flipped_bits_in_the_log_none_is_a_silent_loss(killed: Path, scratch: Path) -> None:
    entries = read(killed).entries
    chance = random.Random(20)
    size = 8 * locate_files(killed).wal.stat().st_size
    ends: Counter[str] = Counter()
    for _ in range(200):
        copy = copy_of(killed, scratch / "copy")
        flip_bit(locate_files(copy).wal, chance.randrange(size))
        ends[intact_or_refused(copy, entries)] += 1

    assert ends.keys() <= {"JournalDamaged", "intact"}
    assert ends["JournalDamaged"] > 150, "the flips did no harm: this test proves nothing"


def test_of_200_flipped_bits_in_the_database_none_is_a_silent_change(closed: Path, scratch: Path) -> None:
    entries = read(closed).entries
    chance = random.Random(21)
    size = 8 * locate_files(closed).db.stat().st_size
    ends: Counter[str] = Counter()
    for _ in range(200):
        copy = copy_of(closed, scratch / "copy")
        flip_bit(locate_files(copy).db, chance.randrange(size))
        ends[intact_or_refused(copy, entries)] += 1

    assert ends["JournalDamaged"] > 50, "the flips did no harm: this test proves nothing"


def test_a_flipped_bit_in_the_databases_header_is_no_silent_change(closed: Path, scratch: Path) -> None:
    entries = read(closed).entries
    for bit in range(0, 800, 7):
        copy = copy_of(closed, scratch / "copy")
        flip_bit(locate_files(copy).db, bit)
        intact_or_refused(copy, entries)


def test_a_missing_log_is_told_with_the_number_of_entries(killed: Path, tmp_path: Path) -> None:
    copy = copy_of(killed, tmp_path / "copy")
    locate_files(copy).wal.unlink()

    error = refusal(copy)

    assert error.missing == 61
    assert "61 entries are missing at its end" in str(error)


def test_a_log_cut_short_is_told_with_the_number_of_entries(killed: Path, tmp_path: Path) -> None:
    copy = copy_of(killed, tmp_path / "copy")
    log = locate_files(copy).wal
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])

    assert 10 < refusal(copy).missing < 50


@pytest.mark.parametrize("size", [0, 1, 50, 100, 600, 4096, 6000])
def test_a_database_cut_short_is_refused(closed: Path, tmp_path: Path, size: int) -> None:
    copy = copy_of(closed, tmp_path / "copy")
    database = locate_files(copy).db
    database.write_bytes(database.read_bytes()[:size])

    refusal(copy)


def test_a_missing_database_is_damage_if_the_head_tells_of_entries(closed: Path, tmp_path: Path) -> None:
    copy = copy_of(closed, tmp_path / "copy")
    locate_files(copy).db.unlink()

    assert refusal(copy).missing == len(read(closed).entries)


def test_an_empty_file_without_a_head_is_a_new_journal(tmp_path: Path) -> None:
    (tmp_path / "new.sqlite").touch()

    journal = opened(tmp_path / "new.sqlite")

    assert (journal.session, journal.entries) == (1, 0)
    journal.close()
    assert len(read(tmp_path / "new.sqlite").entries) == 2


def test_an_empty_database_beside_a_log_is_damage(killed: Path, tmp_path: Path) -> None:
    copy = copy_of(killed, tmp_path / "copy")
    locate_files(copy).db.write_bytes(b"")
    locate_files(copy).head.unlink()

    assert "journal.sqlite-wal is there" in str(refusal(copy))


def test_without_its_head_a_killed_journal_is_refused(killed: Path, tmp_path: Path) -> None:
    copy = copy_of(killed, tmp_path / "copy")
    locate_files(copy).head.unlink()

    assert "journal.sqlite.head is missing or unreadable" in str(refusal(copy))


def test_a_torn_head_is_like_none(killed: Path, closed: Path, tmp_path: Path) -> None:
    for torn in (b"", b"0000000000", locate_files(closed).head.read_bytes().replace(b"1", b"2"), b"\xff" * 80):
        copy = copy_of(killed, tmp_path / "killed")
        locate_files(copy).head.write_bytes(torn)
        assert "is missing or unreadable" in str(refusal(copy))

        copy = copy_of(closed, tmp_path / "closed")
        locate_files(copy).head.write_bytes(torn)
        assert intact_or_refused(copy, read(closed).entries) == "intact"


def test_without_its_head_a_cleanly_closed_journal_opens(closed: Path, tmp_path: Path) -> None:
    copy = copy_of(closed, tmp_path / "copy")
    locate_files(copy).head.unlink()

    assert intact_or_refused(copy, read(closed).entries) == "intact"
    assert locate_files(copy).head.exists()


def test_a_head_of_another_journal_is_noticed(closed: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", range(3))
    copy = copy_of(closed, tmp_path / "copy")
    locate_files(copy).head.write_bytes(locate_files(tmp_path / "other").head.read_bytes())

    assert "do not match its head file" in str(refusal(copy))


def edit(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(locate_files(path).db, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("update entries set value = '\"no\"' where seq = 7", "entries 6 to 7 do not match their checksum"),
        ("update entries set duration = 0.7 where seq = 7", "entries 6 to 7 do not match their checksum"),
        ("delete from entries where seq = 9", "entry 9 is missing"),
        ("update entries set chain = null where seq = 7", "entries 6 to 9 do not match their checksum"),
        ("delete from entries where seq > 101", "entries are missing at its end"),
        ("update meta set value = '7' where key = 'session'", "its session table does not match its entries"),
        ("drop view items", "its tables do not match the schema"),
        ("drop table entries", "its tables do not match the schema"),
        ("pragma user_version = 0", "its tables do not match the schema"),
    ],
)
def test_an_edited_journal_is_refused(closed: Path, tmp_path: Path, statement: str, told: str) -> None:
    copy = copy_of(closed, tmp_path / "copy")
    edit(copy, statement)

    assert told in str(refusal(copy))


def test_a_table_added_by_somebody_does_no_harm(closed: Path, tmp_path: Path) -> None:
    copy = copy_of(closed, tmp_path / "copy")
    edit(copy, "create index mine on entries(item)")

    assert intact_or_refused(copy, read(closed).entries) == "intact"


@pytest.mark.parametrize("content", [b"a text file\n", b"SQLite format 3\0 but not quite", b"\0" * 5000])
def test_a_file_that_is_no_database_is_refused_untouched(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "notes.txt").write_bytes(content)

    refusal(tmp_path / "notes.txt", NotAJournal)


def test_a_database_of_another_program_is_refused_untouched(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("create table accounts(name)")
    other.commit()
    other.close()

    assert "another program" in str(refusal(tmp_path / "other.db", NotAJournal))


def test_a_database_of_another_program_in_use_is_refused_untouched(killed: Path, tmp_path: Path) -> None:
    """Its newest rows are in a log that a careless look would have folded into the database."""
    copy = copy_of(killed, tmp_path / "copy")
    locate_files(copy).head.unlink()
    edit(copy, "pragma application_id = 7")
    live = sqlite3.connect(locate_files(copy).db, isolation_level=None)
    live.execute("delete from entries where seq > 5")

    with pytest.raises(NotAJournal):
        opened(copy)

    assert locate_files(copy).wal.stat().st_size > 0
    assert live.execute("select count(*) from entries").fetchone() == (5,)
    live.close()


def test_a_database_locked_by_another_program_is_in_use(closed: Path, tmp_path: Path) -> None:
    copy = copy_of(closed, tmp_path / "copy")
    other = sqlite3.connect(locate_files(copy).db, isolation_level=None)
    other.execute("begin immediate")

    with pytest.raises(JournalInUse, match="another program"):
        opened(copy)

    other.execute("rollback")
    other.close()
    opened(copy).close()


# -- going on with what is left ------------------------------------------------------------------------------------


def remove_log(path: Path) -> None:
    locate_files(path).wal.unlink()


def halve_log(path: Path) -> None:
    log = locate_files(path).wal
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])


def remove_head(path: Path) -> None:
    locate_files(path).head.unlink()


def break_the_middle(path: Path) -> None:
    edit(path, "update entries set value = 'x' where seq = 30")


def empty_database(path: Path) -> None:
    locate_files(path).db.write_bytes(b"")


def remove_database(path: Path) -> None:
    locate_files(path).db.unlink()


def drop_entries(path: Path) -> None:
    edit(path, "drop table entries")


def scramble_the_end(path: Path) -> None:
    connection = sqlite3.connect(locate_files(path).db)
    connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()
    content = locate_files(path).db.read_bytes()
    locate_files(path).db.write_bytes(content[:-4096] + b"\xa5" * 4096)


@pytest.mark.parametrize(
    ("harm", "at_least", "at_most"),
    [
        (remove_log, 0, 0),
        (halve_log, 15, 45),
        (remove_head, 61, 61),
        (break_the_middle, 29, 29),
        (empty_database, 0, 0),
        (remove_database, 0, 0),
        (drop_entries, 0, 0),
        (scramble_the_end, 1, 60),
    ],
)
def test_with_consent_the_sound_beginning_goes_on(
    killed: Path, tmp_path: Path, harm: Callable[[Path], None], at_least: int, at_most: int
) -> None:
    entries = read(killed).entries
    copy = copy_of(killed, tmp_path / "copy")
    harm(copy)
    damage = refusal(copy)
    damaged_files = fingerprints(copy)

    journal = opened(copy, accept_loss=True)
    journal.close()

    view = read(copy)
    left = next(n for n, entry in enumerate(view.entries) if entry["kind"] == "note")
    assert at_least <= left <= at_most
    assert view.entries[:left] == entries[:left]
    assert [entry["kind"] for entry in view.entries[left:]] == ["note", "session", "closed"]
    note = json.loads(view.entries[left]["detail"])
    assert note == {"accepted_loss": damage.detail, "missing": damage.missing, "kept": "journal.sqlite.damaged-1"}
    assert journal.known.counts()[RecordedState.DONE] == max(0, left - 1)
    kept = {name.replace(".damaged-1", ""): print_ for name, print_ in fingerprints(copy / note["kept"]).items()}
    assert {name: kept[name] for name in damaged_files} == damaged_files
    opened(copy).close()  # and from now on without asking


def test_consent_does_nothing_to_a_sound_journal(closed: Path, tmp_path: Path) -> None:
    copy = copy_of(closed, tmp_path / "copy")

    opened(copy, accept_loss=True).close()

    assert not list(copy.glob("*damaged*"))
    assert not read(copy).of_kind("note")


def test_each_loss_keeps_its_own_copy(killed: Path, tmp_path: Path) -> None:
    copy = copy_of(killed, tmp_path / "copy")
    for harm in (remove_log, break_the_first):
        harm(copy)
        opened(copy, accept_loss=True).close()

    assert {file.name for file in copy.glob("*damaged-?")} == {"journal.sqlite.damaged-1", "journal.sqlite.damaged-2"}


def break_the_first(path: Path) -> None:
    edit(path, "update entries set at = 5.0 where seq = 1")


def test_consent_is_no_leave_to_write_over_what_is_no_journal(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"precious")

    with pytest.raises(NotAJournal):
        opened(tmp_path / "notes.txt", accept_loss=True)

    assert (tmp_path / "notes.txt").read_bytes() == b"precious"


def test_the_independent_reader_refuses_damage_too(killed: Path, tmp_path: Path) -> None:
    for harm in (remove_log, halve_log, remove_head, break_the_middle, drop_entries):
        copy = copy_of(killed, tmp_path / "copy")
        harm(copy)
        with pytest.raises(Broken):
            read(copy)


def test_the_independent_reader_changes_nothing(killed: Path, closed: Path) -> None:
    for path in (killed, closed):
        before = fingerprints(path)
        read(path)
        assert fingerprints(path) == before
    assert not locate_files(closed).wal.exists()
