"""Output that waits is kept in a bounded memory, and in order."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from agentos.cli.terminal.spill_buffer import SpillBuffer, SpillBuffers


def all_of(spool: SpillBuffer) -> bytes:
    return b"".join(part.read() for part in spool.parts())


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_is_small_stays_in_memory(tmp_path: Path) -> None:
    spools = SpillBuffers()
    spool = spools.new()
    spool.add(b"one")
    spool.add(b"two")

    assert all_of(spool) == b"onetwo"
    assert os.listdir(tmp_path) == []
    spools.close()


def test_what_is_large_goes_to_disk_and_comes_back_in_order(tmp_path: Path) -> None:
    spools = SpillBuffers(in_memory=10_000)
    spool = spools.new()
    pieces = [bytes([number]) * 1000 for number in range(100)]

    for piece in pieces:
        spool.add(piece)

    assert all_of(spool) == b"".join(pieces)
    assert os.listdir(tmp_path) != []
    spool.close()
    spools.close()
    assert os.listdir(tmp_path) == []


def test_many_small_ones_that_wait_leave_the_memory_too(tmp_path: Path) -> None:
    spools = SpillBuffers(in_memory=1000)
    waiting = [spools.new() for _ in range(20)]
    for spool in waiting:
        spool.add(b"x" * 100)
        spool.spill()

    assert not spools.are_full
    assert {all_of(spool) for spool in waiting} == {b"x" * 100}
    spools.close()


def test_a_full_disk_is_remembered_and_what_was_written_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    spools = SpillBuffers(in_memory=0)
    spool = spools.new()
    spool.add(b"a" * 5000)
    real, calls = os.write, iter([True])

    def write(file: int, data: memoryview) -> int:
        if next(calls, False):
            return real(file, data[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        spool.add(b"b" * 5000)
    spool.add(b"c" * 5000)

    assert spool.error == "No space left on device"
    assert all_of(spool) == b"a" * 5000
    spools.close()


def test_a_temporary_folder_that_cannot_be_made_is_trouble_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent/folder")
    spools = SpillBuffers(in_memory=0)
    spool = spools.new()

    spool.add(b"a" * 5000)

    assert spool.error is not None
    assert all_of(spool) == b""
    spools.close()
