"""The output of items on our own streams: no line torn, nothing a terminal would obey, no traceback."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from agentos.cli.terminal.item_output import LineScreen, build_screen, failure_block
from agentos.runs.output.capture import OutputCapture
from agentos.util.terminal import is_terminal


class Reader:
    """Reads one end of a pipe or pseudo-terminal until the other is closed."""

    def __init__(self, make: Callable[[], tuple[int, int]]) -> None:
        self._end, end = make()
        self.stream: TextIO = os.fdopen(end, "w", encoding="utf-8")
        self._bytes = b""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._end, 65536)
            except OSError:  # a pseudo-terminal whose other end is closed
                break
            if not data:
                break
            self._bytes += data
        os.close(self._end)

    def text(self) -> bytes:
        if not self.stream.closed:
            self.stream.close()
        self._thread.join()
        return self._bytes


@pytest.fixture
def pipes() -> Iterator[tuple[Reader, Reader]]:
    both = Reader(os.pipe), Reader(os.pipe)
    yield both
    for each in both:
        each.text()


@pytest.fixture
def terminal() -> Iterator[Reader]:
    reader = Reader(os.openpty)
    yield reader
    reader.text()


def on(pipes: tuple[Reader, Reader], **flags: Any) -> LineScreen:
    screen = build_screen(stdout=pipes[0].stream, stderr=pipes[1].stream, **flags)
    assert screen is not None
    return screen


def seen(pipes: tuple[Reader, Reader]) -> tuple[bytes, bytes]:
    return pipes[0].text(), pipes[1].text()


# -- line by line ---------------------------------------------------------------------------------------------


def test_each_line_stands_behind_its_id_on_its_own_stream(pipes: tuple[Reader, Reader]) -> None:
    screen = on(pipes)
    screen.line("a", 0, "stdout", "one", True)
    screen.line("b", 1, "stderr", "oh", True)
    screen.line("a", 0, "stdout", "", True)

    assert seen(pipes) == (b"[a] one\n\n", b"[b] oh\n")


def test_without_tags_lines_are_as_they_came(pipes: tuple[Reader, Reader]) -> None:
    on(pipes, tag=False).line("a", 0, "stdout", "one", True)

    assert seen(pipes) == (b"one\n", b"")


def test_with_json_all_goes_to_standard_error(pipes: tuple[Reader, Reader]) -> None:
    on(pipes, json=True).line("a", 0, "stdout", "one", True)

    assert seen(pipes) == (b"", b"[a] one\n")


def test_quiet_shows_nothing() -> None:
    assert build_screen(quiet=True) is None


def test_an_id_is_harmless_and_short_even_in_a_pipe(pipes: tuple[Reader, Reader]) -> None:
    screen = on(pipes)
    screen.line("\x1b[31mred\n\tid", 0, "stdout", "x", True)
    screen.line("i" * 100, 1, "stdout", "x", True)

    assert seen(pipes)[0] == b"[red  id] x\n[" + b"i" * 37 + b"...] x\n"


def test_a_pipe_gets_the_very_bytes(pipes: tuple[Reader, Reader]) -> None:
    data = b"\x1b[31mred\r\x00\xff\xfe" + "é".encode()
    outputs = OutputCapture(None, None, on(pipes, tag=False))
    item = outputs.open("a", 0, 1)
    item.write("stdout", data + b"\r\n" + data)
    item.finish()

    assert seen(pipes)[0] == data + b"\r\n" + data + b"\n"


def test_pieces_of_a_long_line_follow_each_other(pipes: tuple[Reader, Reader]) -> None:
    screen = on(pipes)
    for text, whole in (("one ", False), ("two ", False), ("three", True), ("next", True)):
        screen.line("a", 0, "stdout", text, whole)

    assert seen(pipes)[0] == b"[a] one two three\n[a] next\n"


def test_a_line_of_another_breaks_a_long_line_and_is_not_torn(pipes: tuple[Reader, Reader]) -> None:
    screen = on(pipes)
    screen.line("a", 0, "stdout", "one ", False)
    screen.line("b", 1, "stdout", "between", True)
    screen.line("a", 0, "stdout", "two", True)
    screen.line("a", 0, "stdout", "cut off", False)
    screen.attempt_ended("a", 0, None)
    screen.line("b", 1, "stdout", "after", True)

    assert seen(pipes)[0] == b"[a] one \n[b] between\n[a] two\n[a] cut off\n[b] after\n"


def test_eight_threads_tear_no_line(pipes: tuple[Reader, Reader]) -> None:
    outputs = OutputCapture(None, None, on(pipes))

    def run(name: str) -> None:
        item = outputs.open(name, 0, 1)
        for number in range(200):
            item.write("stdout", f"{name}{number}".encode())
            item.write("stdout", f"-{'x' * number}\n".encode())
        item.finish()

    threads = [threading.Thread(target=run, args=(name,)) for name in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    lines = seen(pipes)[0].decode().splitlines()
    for name in "abcdefgh":
        mine = [line for line in lines if line.startswith(f"[{name}] ")]
        assert mine == [f"[{name}] {name}{number}-{'x' * number}" for number in range(200)]
    assert len(lines) == 8 * 200


# -- on a terminal --------------------------------------------------------------------------------------------


def test_a_terminal_gets_nothing_to_obey(terminal: Reader) -> None:
    screen = build_screen(stdout=terminal.stream, stderr=terminal.stream)
    assert screen is not None
    outputs = OutputCapture(None, None, screen)
    item = outputs.open("a", 0, 1)

    item.write("stdout", b"\x1b[31mred\x1b[0m\tand \x1b]0;title\x07\xff\n10%\r99%\r\n\x1b[K\n")
    item.finish()

    assert terminal.text().replace(b"\r\n", b"\n") == "[a] red\tand \ufffd\n[a] 99%\n\n".encode()


def test_each_stream_is_judged_for_itself(terminal: Reader, pipes: tuple[Reader, Reader]) -> None:
    screen = build_screen(stdout=pipes[0].stream, stderr=terminal.stream)
    assert screen is not None
    screen.line("a", 0, "stdout", "\x1b[31mred", True)
    screen.line("a", 0, "stderr", "\x1b[31mred", True)

    assert pipes[0].text() == b"[a] \x1b[31mred\n"
    assert terminal.text() == b"[a] red\r\n"


def test_a_piece_of_a_long_line_is_a_line_on_a_terminal(terminal: Reader) -> None:
    screen = build_screen(stdout=terminal.stream, stderr=terminal.stream)
    assert screen is not None
    screen.line("a", 0, "stdout", "one", False)
    screen.line("a", 0, "stdout", "two", True)

    assert terminal.text() == b"[a] one\r\n[a] two\r\n"


def test_a_live_display_is_handed_what_is_for_the_terminal_only(terminal: Reader, pipes: tuple[Reader, Reader]) -> None:
    above: list[tuple[str, str]] = []
    screen = build_screen(
        stdout=pipes[0].stream, stderr=terminal.stream, write=lambda stream, text: above.append((stream, text))
    )
    assert screen is not None
    screen.line("a", 0, "stdout", "one", True)
    screen.line("a", 0, "stderr", "two", True)

    assert above == [("stderr", "[a] two\n")]
    assert pipes[0].text() == b"[a] one\n"
    assert terminal.text() == b""


# -- when it cannot be shown ----------------------------------------------------------------------------------


def test_a_reader_that_leaves_silences_its_stream_alone(pipes: tuple[Reader, Reader]) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "w", encoding="utf-8") as stream:
        screen = build_screen(stdout=stream, stderr=pipes[1].stream)
        assert screen is not None

        screen.line("a", 0, "stdout", "lost", True)
        screen.line("a", 0, "stdout", "lost", True)
        screen.line("a", 0, "stderr", "shown", True)

        assert screen.stdout_is_gone
        assert screen.list_errors() == []
        stream.write("what others print there does not fail either")
    assert pipes[1].text() == b"[a] shown\n"


def test_a_reader_that_leaves_makes_no_traceback_at_the_end_of_the_program() -> None:
    script = (
        "import sys\n"
        "from agentos.cli.terminal.item_output import build_screen\n"
        "screen = build_screen()\n"
        "while not screen.stdout_is_gone: screen.line('a', 0, 'stdout', 'x' * 1000, True)\n"
        "print('more'); sys.exit(7)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read(10)
    child.stdout.close()
    child.stdout = None

    _, errors = child.communicate(timeout=150)

    assert (child.returncode, errors) == (7, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_under_standard_output_is_told(pipes: tuple[Reader, Reader]) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        screen = build_screen(stdout=full, stderr=pipes[1].stream)
        assert screen is not None
        screen.line("a", 0, "stdout", "lost", True)

    assert screen.stdout_is_gone
    assert screen.list_errors() == [
        "standard output cannot be written: No space left on device; the output is in the logs of the run"
    ]


def test_streams_that_are_closed_or_missing_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", None)
    screen = build_screen(stdout=closed)
    assert screen is not None

    screen.line("a", 0, "stdout", "lost", True)
    screen.line("a", 0, "stderr", "lost", True)

    assert screen.stdout_is_gone


def test_a_stream_that_somebody_made_non_blocking_gets_all_of_it(pipes: tuple[Reader, Reader]) -> None:
    os.set_blocking(pipes[0].stream.fileno(), False)
    screen = on(pipes)
    for _ in range(50):
        screen.line("a", 0, "stdout", "x" * 10_000, True)

    assert seen(pipes)[0] == (b"[a] " + b"x" * 10_000 + b"\n") * 50


def test_a_stream_that_is_no_file_is_written_too() -> None:
    stream, errors = io.StringIO(), io.StringIO()
    screen = build_screen(stdout=stream, stderr=errors)
    assert screen is not None

    screen.line("a", 0, "stdout", "é", True)

    assert stream.getvalue() == "[a] é\n"


def test_two_streams_into_one_pipe_share_its_lines() -> None:
    reader = Reader(os.pipe)
    with open(os.dup(reader.stream.fileno()), "w", encoding="utf-8") as other:
        screen = build_screen(stdout=reader.stream, stderr=other)
        assert screen is not None
        screen.line("a", 0, "stdout", "long", False)
        screen.line("a", 0, "stderr", "oh", True)

    assert reader.text() == b"[a] long\n[a] oh\n"


# -- groups and order -----------------------------------------------------------------------------------------


def test_a_group_is_shown_when_it_ends(pipes: tuple[Reader, Reader]) -> None:
    screen = on(pipes, group=True)
    for name in ("a", "b"):
        screen.line(name, 0, "stdout", "one", True)
        screen.line(name, 0, "stderr", "oh", True)
    screen.line("a", 0, "stdout", "two", True)
    screen.attempt_ended("b", 0, None)
    screen.attempt_ended("a", 0, None)
    screen.close()

    assert seen(pipes) == (b"[b] one\n[a] one\n[a] two\n", b"[b] oh\n[a] oh\n")


def test_a_group_that_never_ended_is_shown_at_the_close(pipes: tuple[Reader, Reader]) -> None:
    screen = on(pipes, group=True)
    screen.line("a", 0, "stdout", "cut ", False)
    screen.line("a", 0, "stdout", "off", False)
    screen.close()

    assert seen(pipes)[0] == b"[a] cut off\n"


def test_a_large_group_waits_on_disk(
    pipes: tuple[Reader, Reader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    screen = on(pipes, group=True)
    for number in range(20):
        screen.line("a", 0, "stdout", str(number) + "x" * 1_000_000, True)

    assert len(os.listdir(tmp_path)) == 1
    screen.attempt_ended("a", 0, None)
    screen.close()
    assert os.listdir(tmp_path) == []
    lines = seen(pipes)[0].splitlines()
    assert [line[:6] for line in lines] == [f"[a] {number}x"[:6].encode() for number in range(20)]


def test_a_group_that_found_no_room_says_so(
    pipes: tuple[Reader, Reader], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    screen = on(pipes, group=True)
    for _ in range(20):
        screen.line("a", 0, "stdout", "x" * 1_000_000, True)
    screen.attempt_ended("a", 0, None)
    screen.close()

    assert seen(pipes)[1] == b"[a] ... the rest of the output is missing here: No such file or directory\n"


def test_items_are_shown_in_the_order_of_the_input_with_all_their_attempts(pipes: tuple[Reader, Reader]) -> None:
    screen = on(pipes, keep_order=True)
    screen.line("c", 2, "stdout", "3", True)
    screen.attempt_ended("c", 2, None)
    screen.item_settled(2)
    screen.line("a", 0, "stdout", "first try", True)
    screen.attempt_ended("a", 0, None)
    screen.item_settled(1)  # cached: it has no output
    screen.line("a", 0, "stdout", "second try", True)
    screen.attempt_ended("a", 0, None)
    screen.item_settled(0)
    screen.line("d", 3, "stdout", "4", True)
    screen.attempt_ended("d", 3, None)
    screen.item_settled(3)

    assert seen(pipes)[0] == b"[a] first try\n[a] second try\n[c] 3\n[d] 4\n"


def test_what_was_not_settled_comes_in_order_at_the_close(pipes: tuple[Reader, Reader]) -> None:
    screen = on(pipes, keep_order=True)
    for index in (5, 3, 4):
        screen.line(f"i{index}", index, "stdout", "x", True)
        screen.item_settled(index)
    screen.close()

    assert seen(pipes)[0] == b"[i3] x\n[i4] x\n[i5] x\n"


def test_threads_that_settle_out_of_order_are_put_in_order(pipes: tuple[Reader, Reader]) -> None:
    outputs = OutputCapture(None, None, screen := on(pipes, keep_order=True))

    def run(indices: range) -> None:
        for index in indices:
            item = outputs.open(f"i{index}", index, 1)
            item.write("stdout", b"one\ntwo\n")
            item.finish()
            screen.item_settled(index)

    threads = [threading.Thread(target=run, args=(range(start, 400, 8),)) for start in reversed(range(8))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert seen(pipes)[0].decode() == "".join(f"[i{index}] one\n[i{index}] two\n" for index in range(400))


# -- failures -------------------------------------------------------------------------------------------------


def test_a_failure_block_says_why_and_shows_the_last_lines() -> None:
    block = failure_block("a\nb", "exit 3: \x1b[31mboom\nmore", ("one", "\x1b[1mtwo"), Path("/x/a.log"))

    assert block == ("[a b] failed: exit 3: boom\n[a b] | one\n[a b] | two\n[a b] all of its output: /x/a.log\n")


def test_a_failure_block_needs_neither_reason_nor_lines() -> None:
    assert failure_block("a", None, ()) == "[a] failed: no reason given\n"


def test_a_closed_stream_is_no_terminal() -> None:
    closed = io.StringIO()
    closed.close()

    assert not is_terminal(closed)
