"""`agentos logs` prints the log of an item, without control sequences on a terminal."""

from __future__ import annotations

import os
import pty
import re
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.cli.commands import logs as logs_module
from agentos.cli.commands.logs import logs
from agentos.cli.terminal.follow import GrowingFile, SanitizedLines
from agentos.cli.usage_error import UsageError
from agentos.runs.context import build_file_name

from ...runs.sample_runs import Child, crashed, run, stop_after
from ..invoke import call


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTOS_BASE_DIR", str(tmp_path / ".agentos"))
    return tmp_path / ".agentos" / "runs" / "r"


def write_log(folder: Path, item_id: str, content: bytes) -> Path:
    path = folder / "logs" / f"{build_file_name(item_id)}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_log_comes_out_as_it_is(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    run(folder, ["a"])
    content = b"--- attempt 1 ---\n\xff\x00 binary \x1b[31m\r\nno end"
    write_log(folder, "a", content)

    assert call(logs, "r", "a") == 0

    assert capfdbinary.readouterr().out == content


def test_an_item_is_meant_by_its_id_or_a_beginning_that_only_it_has(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    run(folder, ["Task one/../x", "other-1", "other-2"])
    write_log(folder, "Task one/../x", b"found\n")

    call(logs, "r", "Task")

    assert capfdbinary.readouterr().out == b"found\n"
    with pytest.raises(UsageError, match="several items of r begin with 'other'"):
        call(logs, "r", "other")
    with pytest.raises(UsageError, match="no item 'z'"):
        call(logs, "r", "z")


def test_without_a_log_the_recorded_error_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(folder, ["odd-1"])

    assert call(logs, "r", "odd-1") == 0

    told = capsys.readouterr()
    assert "odd-1 is failed; it printed nothing" in told.err
    lines = told.out.splitlines()
    assert re.fullmatch(r"--- attempt 1, \S+ \S+ ---", lines[0])
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-2] == "KeyError: 'weather'"
    assert re.fullmatch(r"--- attempt 1 failed after .*: KeyError: 'weather' \(.* in by_fate\) ---", lines[-1])


def test_without_a_log_an_attempt_that_was_killed_with_its_run_reads_interrupted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crashed(folder)

    call(logs, "r", "slow")

    assert capsys.readouterr().out.splitlines()[1:] == ["--- attempt 1 interrupted: the run was killed ---"]


def test_a_log_that_ends_because_its_run_was_killed_is_explained(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    crashed(folder)
    write_log(folder, "slow", b"half a line")

    call(logs, "r", "slow")

    assert b"slow was running when the run was killed" in capfdbinary.readouterr().err


def test_without_a_log_it_says_why(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stop_after(folder, ["a", "later"], 1)
    write_log(folder, "a", b"")

    call(logs, "r", "a")
    call(logs, "r", "later")

    told = capsys.readouterr()
    assert [line.partition(",")[0].partition(" after")[0] for line in told.out.splitlines()] == [
        "--- attempt 1",
        "--- attempt 1 done",
    ]
    assert [line.split(": ")[1] for line in told.err.splitlines() if line.startswith("agentos")] == [
        "a is done; its log is empty",
        "later has not started; agentos show r tells how the run stands",
    ]


def test_a_run_that_has_not_begun_has_no_logs(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")

    with pytest.raises(UsageError, match="has not begun"):
        call(logs, "r", "a")


@pytest.mark.parametrize(
    ("content", "count", "shown"),
    [
        (b"1\n2\n3\n", "2", b"2\n3\n"),
        (b"1\n2\n3", "2", b"2\n3"),
        (b"1\n2\n3\n", "9", b"1\n2\n3\n"),
        (b"1\n2\n3\n", "0", b""),
        (b"\n\n\n", "2", b"\n\n"),
        (b"x" * 200_000 + b"\n" + b"y" * 100_000 + b"\n", "1", b"y" * 100_000 + b"\n"),
    ],
)
def test_the_last_lines_alone(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes], content: bytes, count: str, shown: bytes
) -> None:
    run(folder, ["a"])
    write_log(folder, "a", content)

    call(logs, "r", "a", "--tail", count)

    assert capfdbinary.readouterr().out == shown


def test_a_log_is_followed_until_its_item_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with Child(folder) as child:
        path = write_log(folder, "slow", b"one\n")
        pauses = []

        def pause() -> None:
            pauses.append(path)
            if len(pauses) == 1:
                path.write_bytes(b"one\ntwo\n")
            elif len(pauses) == 2:
                path.write_bytes(b"one\ntwo\nthree\n")
                child.let_go()

        monkeypatch.setattr(logs_module, "_pause", pause)
        assert call(logs, "r", "slow", "-f") == 0

    assert capfdbinary.readouterr().out == b"one\ntwo\nthree\n"
    assert len(pauses) == 3  # the last for the line that says how it ended


def test_following_an_item_that_has_ended_ends_though_the_run_goes_on(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with Child(folder):
        write_log(folder, "a", b"all there is\n")

        assert call(logs, "r", "a", "--follow") == 0

        assert capfdbinary.readouterr().out == b"all there is\n"


def test_following_ends_at_once_when_no_process_runs_the_item(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    stop_after(folder, ["a", "later"], 1)
    write_log(folder, "a", b"one\n")

    call(logs, "r", "a", "-f")
    call(logs, "r", "later", "-f")

    told = capfdbinary.readouterr()
    assert told.out == b"one\n"
    assert b"later has not started" in told.err


def test_on_a_terminal_nothing_can_steer_it_unless_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(folder, ["a"])
    write_log(folder, "a", b"\x1b[31mred\x1b[0m \xc3\xa4\n\x1b]0;title\x07end")

    assert on_a_terminal("r", "a", monkeypatch=monkeypatch) == "red ä\r\nend\r\n"
    assert on_a_terminal("r", "a", "--raw", monkeypatch=monkeypatch) == "\x1b[31mred\x1b[0m ä\r\n\x1b]0;title\x07end"


def on_a_terminal(*typed: str, monkeypatch: pytest.MonkeyPatch) -> str:
    ours, theirs = pty.openpty()
    read = b""

    def drain() -> None:
        nonlocal read
        try:
            while block := os.read(ours, 4096):
                read += block
        except OSError:
            pass  # the other side is closed

    reader = threading.Thread(target=drain)
    reader.start()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", terminal)
        call(logs, *typed)
    reader.join(10)
    os.close(ours)
    return read.decode()


@given(st.lists(st.binary(max_size=30), max_size=8), st.integers(min_value=0, max_value=9))
def test_the_last_lines_are_those_that_splitting_would_give(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], lines: int
) -> None:
    path = tmp_path_factory.mktemp("tail") / "log"
    content = b"\n".join(parts)
    path.write_bytes(content)
    got: list[bytes] = []
    growing = GrowingFile(path, got.append, lines=lines)
    growing.write_new()
    growing.close()

    assert b"".join(got) == b"".join(split(content, lines))


def split(content: bytes, lines: int) -> list[bytes]:
    whole = [line + b"\n" for line in content.split(b"\n")]
    whole[-1] = whole[-1][:-1]
    whole = [line for line in whole if line]
    return whole[-lines:] if lines else []


def test_a_line_without_end_is_shown_in_pieces_and_memory_stays_bounded() -> None:
    shown: list[str] = []
    neutralised = SanitizedLines(shown.append, str)
    for _ in range(100):
        neutralised.feed(b"x" * 10_000)
    neutralised.flush()

    assert "".join(shown) == "x" * 1_000_000 + "\n"
    assert max(map(len, shown)) < 100_000
