"""Whole runs in trouble: the disk is full, the folder is gone, another run has the journal, nothing is left to do."""

from __future__ import annotations

import os
import resource
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runs.core import invariants

from .checks import Record, hold, require
from .evidence import journal_of
from .expected_outcomes import SECRETS, Script
from .processes import Process, live

FINAL = {"done", "failed"}
STREAM = Script("stream", workers=6)
# Its log grows until the end: SQLite starts it anew when it has 1,000 pages, and then it may do without growing.
LARGE = Script("stream-unsized", workers=6, items=300, pause=0.003, bulk=8_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "the run"


def test_a_full_disk_stops_the_run_until_there_is_room_and_then_it_goes_on(folder: Path) -> None:
    """What is acknowledged is on disk, nothing begins that could not be recorded, and nothing piles up meanwhile."""
    script = replace(LARGE, full_after=60)
    process = Process(folder, script)
    assert process.listen(lambda p: ["event", "held"] in p.lines), process.stderr
    process.listen_for(0.1)
    memory = _memory_of(process.pid)

    process.listen_for(0.6)

    held_at = process.lines.index(["event", "held"])
    before, meanwhile = process.lines[:held_at], process.lines[held_at:]
    acknowledged = {line[1] for line in process.lines if line[0] in {"ack", "told"}}
    written = {entry["item"] for entry in journal_of(folder).of_kind(*FINAL)}
    # Each worker may have been about to begin, as after a signal (S1). How long that takes it is the machine's affair.
    begun = max(0, sum(line[0] == "began" for line in meanwhile) - script.workers)
    hold(invariants.j7_nothing_is_acknowledged_while_the_disk_is_full(len(acknowledged), len(written), begun))
    require(acknowledged <= written, f"acknowledged, and not on disk: {acknowledged - written}")
    told = {line[1] for line in before if line[0] == "told"}
    newly = [line for line in meanwhile if line[0] == "told" or (line[0] == "ack" and line[1] not in told)]
    require(not newly, f"acknowledged meanwhile: {newly}")
    assert len(written) < script.items
    assert _memory_of(process.pid) - memory < 4_000_000
    assert process.counts["full"] == 1

    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, _hard_limit(process.pid)))

    life = process.end()
    assert ["event", "going_on"] in life.lines
    record = Record(script, folder)
    record.add(life, journal_of(folder))
    record.check()
    record.check_complete()
    assert "cannot be written now" in life.stderr


def test_a_process_killed_while_its_disk_is_full_is_resumed_where_it_was(folder: Path) -> None:
    record = Record(LARGE, folder)
    process = Process(folder, replace(LARGE, full_after=60))
    assert process.listen(lambda p: ["event", "held"] in p.lines), process.stderr

    process.kill()

    record.add(process.end(), journal_of(folder))
    record.check()
    record.add(live(folder, LARGE), journal_of(folder))
    record.check()
    record.check_complete()


@pytest.mark.parametrize("way", ["stream", "execute", "coroutines", "own-loop"])
def test_a_run_whose_folder_is_removed_ends_and_says_so(folder: Path, way: str) -> None:
    process = Process(folder, Script(way, still_at=("told", 20)))
    process.await_standstill()

    shutil.rmtree(folder)

    process.go_on()
    life = process.end()
    assert life.exit_code == 1
    assert not life.is_over
    last = life.stderr.strip().splitlines()[-1]
    assert last.startswith(f"agentos.errors.JournalUnavailable: the journal {folder}/journal.sqlite ")
    assert "journal.sqlite was removed" in last
    assert not [secret for secret in SECRETS if secret in life.stderr]
    assert life.counts_of("began") < 200


def test_a_second_run_on_the_same_journal_is_refused_by_name_of_the_first_which_goes_on(folder: Path) -> None:
    first = Process(folder, replace(STREAM, still_at=("ack", 10)))
    first.await_standstill()

    second = live(folder, STREAM)

    first.go_on()
    assert second.exit_code == 1
    last = second.stderr.strip().splitlines()[-1]
    assert last.startswith("agentos.errors.JournalInUse: ")
    assert f"run 'the run' (pid {first.pid} on " in last
    assert not second.executions
    life = first.end()
    record = Record(STREAM, folder)
    record.add(life, journal_of(folder))
    record.check()
    record.check_complete()
    assert len([entry for entry in record.view.entries if entry["kind"] == "session"]) == 1


@pytest.mark.parametrize("way", ["stream", "execute", "own-loop"])
def test_a_resume_of_a_complete_run_changes_nothing_and_every_reader_agrees(folder: Path, way: str) -> None:
    script = Script(way, workers=8, slots=2)
    record = Record(script, folder)
    record.add(live(folder, script), journal_of(folder))
    record.check_complete()
    before = record.view

    for _ in range(2):
        record.add(live(folder, script), journal_of(folder))

        record.check()
        record.check_complete()
        record.check_unchanged(before)
    hold(invariants.j6_replay_gives_the_same(journal_of(folder), journal_of(folder)))


def _memory_of(pid: int) -> int:
    resident = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(resident) * os.sysconf("SC_PAGESIZE")


def _hard_limit(pid: int) -> int:
    return resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
