"""A crafted journal with triggers or endless pages is refused, and reading it ends."""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path

import pytest

from agentos.errors import JournalDamaged, JournalError, JournalUnavailable
from agentos.runs.journal import locate_files
from agentos.runs.report.item_states import list_items
from agentos.runs.report.run_report import build_report
from agentos.runs.report.run_summary import build_summary
from agentos.util.sqlite.connect import connect

from .independent_reader import read
from .journal_helpers import copy_of, opened, write

ENDLESS = "with recursive n(i) as (select 1 union all select i + 1 from n) select i from n"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "run"
    write(path, range(20))
    return path


@pytest.fixture
def journal(sound: Path, tmp_path: Path) -> Path:
    return copy_of(sound, tmp_path / "run")


def edit(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(locate_files(path).db, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


# -- what it defines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statements", "told"),
    [
        (["create trigger t after insert on entries begin delete from entries; end"], "trigger 't'"),
        ([f"create view other as {ENDLESS}"], "view 'other'"),
        (["drop table entries", f"create view entries as {ENDLESS}"], "view 'entries'"),
        (["drop table meta", f"create view meta as select i as key, i as value from ({ENDLESS})"], "view 'meta'"),
        (["create virtual table v using fts5(a)"], "virtual table 'v'"),
        (["create table json_each(value, key)"], "table 'json_each'"),
        (["create table g(a, b generated always as (a + 1))"], "table 'g'"),
        (["create index i on entries(length(value))"], "index 'i'"),
        (["create index i on entries(item) where kind = 'done'"], "index 'i'"),
    ],
)
def test_definitions_that_could_act_or_stand_in_for_ours_are_refused(
    journal: Path, statements: list[str], told: str
) -> None:
    edit(journal, *statements)

    # The first thing that is wrong is told; a view in the place of a table is also not the table that was made.
    with pytest.raises(JournalDamaged, match=f"{told}, which agentos did not make|its tables do not match"):
        opened(journal)
    with pytest.raises(JournalUnavailable, match=f"{told}, which agentos did not make"):
        list(list_items(locate_files(journal)))
    brief = build_summary(journal)
    assert (brief.state.word, told in str(brief.problem)) == ("unreadable", True)


def test_plain_tables_and_indexes_of_the_users_own_do_no_harm(journal: Path) -> None:
    edit(journal, "create table notes(text)", "create index mine on entries(item)", "analyze")

    opened(journal).close()

    assert len(list(list_items(locate_files(journal)))) == 20


def test_with_consent_the_entries_go_on_without_the_trigger(journal: Path, sound: Path) -> None:
    edit(journal, "create trigger t after insert on entries begin delete from entries; end")

    opened(journal, accept_loss=True).close()

    entries = read(sound).entries
    assert read(journal).entries[: len(entries)] == entries
    opened(journal).close()


def test_a_files_own_definitions_may_call_no_function_that_acts(journal: Path) -> None:
    connection = connect(f"{locate_files(journal).db.as_uri()}?mode=ro")

    assert connection.execute("pragma trusted_schema").fetchone() == (0,)
    connection.close()


# -- how long it takes ----------------------------------------------------------------------------------------------


def make_endless(path: Path) -> None:
    """Let the table of entries begin with pages of hundreds of references each, all of them to the next such page."""
    db = locate_files(path).db
    connection = sqlite3.connect(db)
    (root,) = connection.execute("select rootpage from sqlite_schema where name = 'entries'").fetchone()
    connection.close()
    content = bytearray(db.read_bytes())
    size = struct.unpack(">H", content[16:18])[0]
    first, leaf = len(content) // size + 1, bytes(content[(root - 1) * size : root * size])
    pages = [*range(first, first + 6)]  # the last of them is the leaf, with all the entries
    content += bytes(size * len(pages))
    for page, following in zip([root, *pages], pages, strict=False):
        cells = 400
        start = size - 5 * cells
        header = struct.pack(">BHHHBI", 5, 0, cells, start, 0, following)
        pointers = b"".join(struct.pack(">H", start + 5 * cell) for cell in range(cells))
        body = struct.pack(">IB", following, 1) * cells
        content[(page - 1) * size : page * size] = (header + pointers).ljust(start, b"\0") + body
    content[(pages[-1] - 1) * size :] = leaf
    content[28:32] = struct.pack(">I", len(content) // size)
    db.write_bytes(content)


def test_reading_a_small_file_whose_pages_never_end_comes_to_an_end(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_endless(journal)
    monkeypatch.setattr("agentos.util.sqlite.untrusted_file._STEPS_AT_LEAST", 1_000_000)

    with pytest.raises(JournalError):
        opened(journal)
    brief = build_summary(journal)
    assert "takes more steps than an intact file of its size needs" in str(brief.problem)
    with pytest.raises(JournalUnavailable, match="more steps"):
        list(list_items(locate_files(journal)))


def test_the_bound_grows_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "run", range(200))
    monkeypatch.setattr("agentos.util.sqlite.untrusted_file._STEPS_AT_LEAST", 0)

    assert build_report(tmp_path / "run").counts["done"] == 200
    assert len(list(list_items(locate_files(tmp_path / "run")))) == 200
