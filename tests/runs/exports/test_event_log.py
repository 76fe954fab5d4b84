"""Events are appended line by line, whatever happens to the disk, and read back without the torn ones."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from agentos.runs.exports.append_file import AppendOnlyFile
from agentos.runs.exports.event_log import EventLog, read_events


def test_events_come_back_in_order_with_when_and_what(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "run" / "events.jsonl", wall=iter([1.23456, 2.0]).__next__)
    log.write("session")
    log.write("key", name="alice", state="cooling", until=99.5, why="429 on\nrequests ü")
    log.close()

    assert list(read_events(tmp_path / "run" / "events.jsonl")) == [
        {"at": 1.2346, "kind": "session"},
        {"at": 2.0, "kind": "key", "name": "alice", "state": "cooling", "until": 99.5, "why": "429 on\nrequests ü"},
    ]


def test_each_event_is_on_disk_at_once(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.write("held")

    assert [event["kind"] for event in read_events(tmp_path / "events.jsonl")] == ["held"]
    log.close()


def test_no_file_has_no_events_and_a_log_that_is_not_used_makes_none(tmp_path: Path) -> None:
    EventLog(tmp_path / "events.jsonl").close()

    assert list(tmp_path.iterdir()) == []
    assert list(read_events(tmp_path / "events.jsonl")) == []


def test_a_torn_end_costs_no_later_event(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"at": 1, "kind": "session"}\n{"at": 2, "ki')
    log = EventLog(path)
    log.write("finished")
    log.close()

    assert [event["kind"] for event in read_events(path)] == ["session", "finished"]


@pytest.mark.parametrize("line", [b"", b"[]", b"7", b"\xff\xfe", b"{}", b'{"kind": 3}', b"[" * 100_000, b"\0" * 4096])
def test_what_is_no_event_is_skipped(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(line + b'\n{"kind": "held"}\n')

    assert [event["kind"] for event in read_events(path)] == ["held"]


def test_a_line_of_megabytes_is_skipped_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"kind": "' + b"x" * 3_000_000 + b'"}\n{"kind": "held"}\n')

    assert [event["kind"] for event in read_events(path)] == ["held"]


def test_the_end_of_a_line_too_long_is_not_taken_for_an_event(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"x" * 1024 * 1024 + b'{"kind": "waiting"}\n{"kind": "held"}\n')

    assert [event["kind"] for event in read_events(path)] == ["held"]


def test_a_last_line_without_its_end_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"kind": "held"}\n{"kind": "waiting"}')

    assert [event["kind"] for event in read_events(path)] == ["held"]


def test_many_threads_never_mix_their_lines(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")

    def write(number: int) -> None:
        for n in range(200):
            log.write("key", name=f"{number}-{n}", why="x" * (n % 97))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()

    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert len({json.loads(line)["name"] for line in lines}) == len(lines) == 1_200


def test_what_is_not_json_is_dropped_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.write("key", until=float("nan"))
    log.write("key", until=object())
    log.write("held")
    log.close()

    assert [event["kind"] for event in read_events(tmp_path / "events.jsonl")] == ["held"]
    assert len(caplog.records) == 1


def test_a_place_that_cannot_be_written_is_said_once_and_raises_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    log = EventLog(tmp_path / "file" / "events.jsonl")
    for _ in range(3):
        log.write("held")
    log.close()

    assert [record.getMessage().split("(")[0] for record in caplog.records][:1] == [
        f"the event log {tmp_path}/file/events.jsonl cannot be written "
    ]
    assert caplog.records[1].getMessage().endswith("lacks 3 lines")


def test_after_a_full_disk_the_next_line_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines = AppendOnlyFile(tmp_path / "lines", what="a test")
    assert lines.add("one")
    write = os.write
    monkeypatch.setattr(os, "write", half_then_full(write))
    assert not lines.add("two and more")
    monkeypatch.setattr(os, "write", write)
    assert lines.add("three")
    lines.close()

    assert (tmp_path / "lines").read_text() == "one\ntwo an\nthree\n"
    assert "No space left" in caplog.text


def test_a_closed_log_drops_quietly(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.close()
    log.write("held")
    log.close()

    assert not (tmp_path / "events.jsonl").exists()


def half_then_full(write: object) -> object:
    """The disk takes six bytes, and then nothing more."""
    calls = []

    def failing(file: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) == 1:
            return write(file, data[:6])  # type: ignore[operator, no-any-return]
        raise OSError(28, "No space left on device")

    return failing
