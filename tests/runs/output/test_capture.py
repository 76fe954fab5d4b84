"""What items print is redacted, logged, shown and kept."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from agentos.pool.redaction import Masker
from agentos.runs.output.capture import OutputCapture
from agentos.runs.output.stream_redaction import Redaction

CANARY = "canary/q7Xw2Lp9+Zr4Vt"


class Recorder:
    """A screen that remembers."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str, bool]] = []
        self.ends: list[tuple[str, int, Path | None]] = []

    def line(self, item_id: str, index: int, stream: str, text: str, whole: bool) -> None:
        self.lines.append((item_id, stream, text, whole))

    def attempt_ended(self, item_id: str, index: int, log: Path | None) -> None:
        self.ends.append((item_id, index, log))


class Counter(Recorder):
    """A screen that only counts, for there is much."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = 0

    def line(self, item_id: str, index: int, stream: str, text: str, whole: bool) -> None:
        self.characters += len(text)


def outputs(tmp_path: Path, screen: Recorder | None = None, **options: Any) -> OutputCapture:
    return OutputCapture(tmp_path / "logs", Redaction(Masker([CANARY])).stream, screen, wall=lambda: 0.0, **options)


def log_of(tmp_path: Path, name: str = "item") -> bytes:
    """The log without its headings."""
    return re.sub(rb"--- attempt .* ---\n", b"", (tmp_path / "logs" / f"{name}.log").read_bytes())


def test_lines_go_to_screen_and_log_in_the_order_they_came(tmp_path: Path) -> None:
    screen = Recorder()
    item = outputs(tmp_path, screen).open("item", 3, 1, "alice")

    item.write("stdout", b"one\ntw")
    item.write("stderr", b"oh\n")
    item.write("stdout", b"o\n\nthree")
    captured = item.finish()

    assert screen.lines == [
        ("item", "stdout", "one", True),
        ("item", "stderr", "oh", True),
        ("item", "stdout", "two", True),
        ("item", "stdout", "", True),
        ("item", "stdout", "three", True),
    ]
    assert screen.ends == [("item", 3, tmp_path / "logs" / "item.log")]
    assert log_of(tmp_path) == b"one\noh\ntwo\n\nthree"
    assert (captured.stdout, captured.truncated) == ("one\ntwo\n\nthree", False)
    assert captured.tail == ("one", "oh", "two", "three")
    assert captured.error_tail[-1] == "oh"


def test_a_secret_in_two_writes_reaches_neither_log_nor_screen_nor_value(tmp_path: Path) -> None:
    screen = Recorder()
    item = outputs(tmp_path, screen).open("item", 0, 1)

    for byte in f"key {CANARY} refused".encode():
        item.write("stdout", bytes([byte]))
        item.write("stderr", bytes([byte]))
    captured = item.finish()

    assert captured.redacted
    assert captured.stdout == captured.error_tail[-1] == "key <secret> refused"
    assert [text for _, _, text, _ in screen.lines] == ["key <secret> refused"] * 2
    assert log_of(tmp_path) == b"key <secret> refused" * 2


@pytest.mark.parametrize("between", ["\x1b[1;36m", "\x1b]8;;http://x\x1b\\", "\x1b(B", "\0"])
def test_a_secret_is_not_hidden_by_colours_that_a_terminal_would_not_show(tmp_path: Path, between: str) -> None:
    screen = Recorder()
    item = outputs(tmp_path, screen).open("item", 0, 1)
    coloured = between.join([CANARY[:6], CANARY[6:12], CANARY[12:18], CANARY[18:]])

    item.write("stdout", f"{between}plain\nkey {coloured[:20]}".encode())
    item.write("stdout", f"{coloured[20:]} refused\n".encode())
    captured = item.finish()

    assert captured.stdout == f"{between}plain\nkey <secret> refused\n"
    assert captured.redacted
    assert captured.tail == ("plain", "key <secret> refused")
    assert [text for _, _, text, _ in screen.lines] == [f"{between}plain", "key <secret> refused"]
    assert log_of(tmp_path) == captured.stdout.encode()


def test_without_a_pool_nothing_is_taken_out(tmp_path: Path) -> None:
    item = OutputCapture(None).open("item", 0, 1)
    item.write("stdout", CANARY.encode())

    captured = item.finish()

    assert captured.stdout == CANARY
    assert captured.log is None


def test_each_attempt_has_its_heading_on_a_line_of_its_own(tmp_path: Path) -> None:
    made = outputs(tmp_path)
    for attempt, key in ((1, "alice"), (2, None)):
        item = made.open("item", 0, attempt, key)
        item.write("stdout", b"no end")
        item.finish()
        made.note_end("item", attempt, key, "retry", 1.0, "no", {})

    lines = (tmp_path / "logs" / "item.log").read_text().split("\n")
    assert re.fullmatch(r"--- attempt 1, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, key alice ---", lines[0])
    assert re.fullmatch(r"--- attempt 2, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d ---", lines[3])
    assert [lines[1], lines[4]] == ["no end", "no end"]


def test_a_log_is_private_and_an_item_that_says_nothing_has_none(tmp_path: Path) -> None:
    made = outputs(tmp_path)
    assert made.open("silent", 0, 1).finish().log is None
    item = made.open("../A b", 1, 1)
    item.write("stdout", b"x")

    path = item.finish().log

    assert path is not None
    assert path.parent == tmp_path / "logs"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path / "logs") == [path.name]


def test_binary_is_logged_as_it_is_and_can_be_had_back_from_the_screens_text(tmp_path: Path) -> None:
    screen = Recorder()
    data = bytes(range(256)) * 3
    item = outputs(tmp_path, screen).open("item", 0, 1)

    for start in range(0, len(data), 7):
        item.write("stdout", data[start : start + 7])
    captured = item.finish()

    assert log_of(tmp_path) == data
    assert b"\n".join(t.encode("utf-8", "surrogateescape") for _, _, t, _ in screen.lines) == data
    assert captured.stdout == data.decode("utf-8", "replace")


def test_the_end_of_standard_output_is_kept_and_no_character_torn(tmp_path: Path) -> None:
    item = outputs(tmp_path, keep=10).open("item", 0, 1)
    item.write("stdout", "more and énine-byte".encode())
    item.write("stderr", b"not this")

    captured = item.finish()

    assert (captured.stdout, captured.truncated) == ("nine-byte", True)
    assert captured.stdout_head == "more and énine-byte"


@pytest.mark.parametrize("piece", [7, 100_000])
def test_of_long_output_the_first_4_kib_and_the_last_64_are_kept(tmp_path: Path, piece: int) -> None:
    printed = "".join(f"line {number} é\n" for number in range(30_000)).encode()
    item = outputs(tmp_path).open("item", 0, 1)
    for start in range(0, len(printed), piece):
        item.write("stdout", printed[start : start + piece])

    captured = item.finish()

    assert captured.stdout_head is not None
    assert printed.startswith(captured.stdout_head.encode())
    assert printed.endswith(captured.stdout.encode())
    assert 4_093 <= len(captured.stdout_head.encode()) <= 4_096
    assert 65_533 <= len(captured.stdout.encode()) <= 65_536


def test_exactly_as_much_as_is_kept_is_not_truncated(tmp_path: Path) -> None:
    item = outputs(tmp_path, keep=10).open("item", 0, 1)
    item.write("stdout", b"ten bytes!")

    captured = item.finish()

    assert (captured.stdout, captured.truncated, captured.stdout_head) == ("ten bytes!", False, None)


def test_the_tail_is_the_last_twenty_lines_that_say_something(tmp_path: Path) -> None:
    item = outputs(tmp_path).open("item", 0, 1)
    for number in range(30):
        item.write("stderr" if number % 2 else "stdout", f"\x1b[1mline {number}\x1b[0m\n \n\n".encode())
    item.write("stdout", b"5%\r50%\rdone\r\n" + b"y" * 600 + b"\n\n\n")

    captured = item.finish()

    assert captured.tail[:18] == tuple(f"line {number}" for number in range(12, 30))
    assert captured.tail[18] == "done"
    assert captured.tail[19] == "y" * 497 + "..."
    assert captured.error_tail[-1] == "line 29"


def test_of_an_endless_line_the_tail_has_the_beginning_once(tmp_path: Path) -> None:
    item = outputs(tmp_path).open("item", 0, 1)
    item.write("stdout", b"begin " + b"x" * 300_000)
    item.write("stdout", b"\nnext")

    tail = item.finish().tail

    assert [line[:6] for line in tail] == ["begin ", "next"]


def test_the_last_line_of_a_running_item_can_be_asked_for(tmp_path: Path) -> None:
    made = outputs(tmp_path)
    item = made.open("item", 0, 1)
    assert made.last_line("item") is None

    item.write("stdout", b"working\nstill unfinis")

    assert made.last_line("item") == "working"
    item.finish()
    assert made.last_line("item") is None


def test_silence_is_counted_from_the_last_byte() -> None:
    times = iter([10.0, 12.5])
    item = OutputCapture(None, clock=lambda: next(times)).open("item", 0, 1)
    assert item.silent_since == 10.0

    item.write("stderr", b"x")

    assert item.finish().silent_since == 12.5


def test_what_comes_after_the_finish_is_not_taken(tmp_path: Path) -> None:
    item = outputs(tmp_path).open("item", 0, 1)
    item.write("stdout", b"in time")
    captured = item.finish()

    item.write("stdout", b"late")

    assert item.finish() is captured
    assert log_of(tmp_path) == b"in time"


def test_64_megabytes_without_a_line_end_take_little_memory(tmp_path: Path) -> None:
    screen = Counter()
    piece = b"x" * (1 << 20)
    item = OutputCapture(tmp_path / "logs", None, screen).open("item", 0, 1)
    tracemalloc.start()

    for _ in range(64):
        item.write("stdout", piece)
    item.finish()

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert screen.characters == 64 << 20
    assert (tmp_path / "logs" / "item.log").stat().st_size > 64 << 20
    assert peak < 2 << 20


def test_a_log_that_grows_too_long_says_what_it_lacks(tmp_path: Path) -> None:
    item = outputs(tmp_path, longest_log=10).open("item", 0, 1)
    for _ in range(5):
        item.write("stdout", b"12345\n")
    item.finish()

    assert log_of(tmp_path) == b"12345\n1234\n... log ends here, 20 bytes more were not kept\n"


@pytest.mark.parametrize("trouble", ["a file in the way", "full at once", "full later"])
def test_an_item_does_not_fail_of_its_log_and_it_is_said_once(
    tmp_path: Path, trouble: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trouble == "a file in the way":
        (tmp_path / "logs").write_text("")
    else:
        room = iter([100] if trouble == "full later" else [])

        def write(file: int, data: memoryview) -> int:
            if next(room, None) is None:
                raise OSError(28, "No space left on device")
            return real(file, data)

        real = os.write
        monkeypatch.setattr(os, "write", write)
    made = outputs(tmp_path)

    for number in range(3):
        item = made.open(f"item-{number}", number, 1)
        item.write("stdout", b"one\n")
        item.write("stdout", b"two\n")
        assert item.finish().stdout == "one\ntwo\n"

    said = [record for record in caplog.records if "cannot be written" in record.message]
    assert [record.levelno for record in said] == [logging.WARNING]


def count_open_logs(folder: Path) -> int:
    """Return how many descriptors of this process are of logs in *folder*. Others may come and go meanwhile."""
    logs = {log.stat().st_ino for log in (folder / "logs").iterdir()}

    def is_log(descriptor: str) -> bool:
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            return os.fstat(int(descriptor)).st_ino in logs
        return False

    return sum(map(is_log, os.listdir("/dev/fd")))


def test_many_items_at_once_keep_few_files_open(tmp_path: Path) -> None:
    made = outputs(tmp_path)
    items = [made.open(f"item-{number}", number, 1) for number in range(500)]

    for text in (b"one\n", b"two\n"):
        for item in items:
            item.write("stdout", text)

    assert 0 < count_open_logs(tmp_path) <= 64
    for item in items:
        item.finish()
    assert count_open_logs(tmp_path) == 0
    assert {log_of(tmp_path, f"item-{number}") for number in range(500)} == {b"one\ntwo\n"}


def test_a_link_in_the_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "logs" / "item.log").symlink_to(tmp_path / "precious")
    item = outputs(tmp_path).open("item", 0, 1)

    item.write("stdout", b"other\n")
    item.finish()

    assert (tmp_path / "precious").read_text() == "mine"


def test_threads_that_share_an_item_lose_nothing(tmp_path: Path) -> None:
    item = outputs(tmp_path, Recorder()).open("item", 0, 1)

    def print_lines(name: str) -> None:
        for number in range(200):
            item.write(name, f"{name} {number}\n".encode())

    threads = [threading.Thread(target=print_lines, args=(name,)) for name in ("stdout", "stderr")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    item.finish()

    expected = {f"{name} {number}" for name in ("stdout", "stderr") for number in range(200)}
    assert set(log_of(tmp_path).decode().splitlines()) == expected
