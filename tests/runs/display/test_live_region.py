"""A terminal region that is redrawn while lines scroll above it."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO, cast

import pytest

from agentos.runs.display.live_region import LiveRegion, Redirect, TerminalRegion

from ..terminal_screen import FakeTerminal


def drawn(*rows: str) -> list[tuple[str, int]]:
    return [(row, len(row)) for row in rows]


def as_stream(terminal: object) -> TextIO:
    return cast(TextIO, terminal)


# -- the region -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frames",
    [
        [("a", "b", "c"), ("d", "e", "f")],
        [("a", "b", "c"), ("d",)],
        [("a",), ("b", "c", "d")],
        [("long row", "b"), ("s", "b")],
        [(), ("a", "b")],
    ],
)
def test_each_picture_replaces_the_one_before(frames: Sequence[tuple[str, ...]]) -> None:
    terminal, region = FakeTerminal(), TerminalRegion()
    terminal.write("before\n")

    for rows in frames:
        terminal.write(region.redraw(drawn(*rows), 80))

    assert terminal.shown == ["before", *frames[-1]]


def test_lines_pass_above_in_their_order_and_the_picture_stays_below() -> None:
    terminal, region = FakeTerminal(), TerminalRegion()
    terminal.write(region.redraw(drawn("one", "two"), 80))

    terminal.write(region.redraw(None, 80, "first\n"))
    terminal.write(region.redraw(drawn("three", "four"), 80, "second\nthird\n"))

    assert terminal.shown == ["first", "second", "third", "three", "four"]


def test_tabs_of_a_line_do_not_let_the_old_picture_shine_through() -> None:
    terminal, region = FakeTerminal(), TerminalRegion()
    terminal.write(region.redraw(drawn("xxxxxxxx", "yyyyyyyy"), 80))

    terminal.write(region.redraw(None, 80, "a\tb\n"))

    assert terminal.shown[0] == "a b"


def test_a_picture_that_is_merely_replaced_is_not_cleared_first() -> None:
    region = TerminalRegion()
    region.redraw(drawn("one", "two"), 80)

    assert "\x1b[J" not in region.redraw(drawn("one", "two"), 80)


def test_what_the_terminal_echoes_is_drawn_over() -> None:
    terminal, region = FakeTerminal(), TerminalRegion()
    terminal.write(region.redraw(drawn("one", "two"), 80))

    terminal.write("^C")
    terminal.write(region.redraw(drawn("one", "two"), 80))

    assert terminal.shown == ["one", "two"]


def test_after_the_terminal_was_made_narrower_all_of_the_old_picture_goes() -> None:
    region = TerminalRegion()
    region.redraw(drawn("x" * 60, "y" * 30, "last"), 80)
    narrow = FakeTerminal(40)
    narrow.write("before\n" + "x" * 60 + "\n" + "y" * 30 + "\nlast\r")  # as the terminal has broken the rows anew

    narrow.write(region.redraw(drawn("new"), 40))

    assert narrow.shown == ["before", "new"]


# -- who paints it --------------------------------------------------------------------------------------------


class Rows:
    def __init__(self, *rows: str) -> None:
        self.rows = rows
        self.asked = 0

    def __call__(self) -> list[tuple[str, int]]:
        self.asked += 1
        return drawn(*self.rows)


@pytest.fixture
def terminal() -> FakeTerminal:
    return FakeTerminal()


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def rows() -> Rows:
    return Rows("bar", "keys")


@pytest.fixture
def painter(
    terminal: FakeTerminal, rows: Rows, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> Iterator[LiveRegion]:
    """One that paints when the test says so: its thread never gets going."""

    def no_more_threads(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_more_threads)
        painter = LiveRegion(as_stream(terminal), rows, lambda: terminal.columns, clock=lambda: now[0])
        painter.start()
    yield painter
    painter.end()


def test_the_region_is_there_at_once_and_gone_in_the_end(terminal: FakeTerminal, painter: LiveRegion) -> None:
    assert (terminal.shown, terminal.cursor_is_shown) == (["bar", "keys"], False)

    painter.write_above("a line\n")
    painter.end()
    painter.end()

    assert (terminal.shown, terminal.cursor_is_shown) == (["a line"], True)
    assert not painter.write_above("too late\n")
    painter.draw()
    assert terminal.shown == ["a line"]


def test_lines_are_written_without_drawing_anew_until_that_is_due(
    terminal: FakeTerminal, painter: LiveRegion, rows: Rows, now: list[float]
) -> None:
    for number in range(1000):
        painter.write_above(f"line {number}\n")
    before = terminal.writes
    painter.draw()

    assert (terminal.writes - before, rows.asked) == (1, 1)
    assert terminal.shown[-3:] == ["line 999", "bar", "keys"]

    now[0] += 0.25
    painter.draw()
    assert rows.asked == 2


def test_nothing_is_written_while_nothing_is_due(terminal: FakeTerminal, painter: LiveRegion) -> None:
    before = terminal.writes

    painter.draw()

    assert terminal.writes == before


def test_what_has_changed_can_be_drawn_at_once(terminal: FakeTerminal, painter: LiveRegion, rows: Rows) -> None:
    rows.rows = ("stopping",)

    painter.draw_soon()
    painter.draw()

    assert terminal.shown == ["stopping"]


def test_much_text_is_written_by_the_one_who_brings_it(terminal: FakeTerminal, painter: LiveRegion) -> None:
    """So memory is bounded, and a slow terminal slows down whoever floods it."""
    for _ in range(100):
        painter.write_above("x" * 999 + "\n")

    assert terminal.raw.count("x") > 60_000


def test_somebody_else_may_write_in_between(terminal: FakeTerminal, painter: LiveRegion, now: list[float]) -> None:
    painter.write_above("mine\n")

    terminal.write(painter.clear_for_output() + "theirs\n")
    now[0] += 0.05
    painter.draw()

    assert terminal.shown == ["mine", "theirs", "bar", "keys"]


def test_nothing_is_drawn_before_somebody_else_has_written(
    terminal: FakeTerminal, painter: LiveRegion, now: list[float]
) -> None:
    way = painter.clear_for_output()
    painter.draw()  # which may be due in this very moment
    terminal.write(way + "theirs\n")
    now[0] += 0.05
    painter.draw()

    assert terminal.shown == ["theirs", "bar", "keys"]


def test_somebody_who_writes_on_and_on_does_not_keep_the_region_away(
    terminal: FakeTerminal, painter: LiveRegion, now: list[float]
) -> None:
    terminal.raw = ""

    for _ in range(100):
        terminal.write(painter.clear_for_output() + "theirs\n")
        now[0] += 0.01
        painter.draw()

    assert terminal.raw.count("bar") >= 1


def test_a_picture_that_cannot_be_drawn_does_not_stop_the_lines(
    terminal: FakeTerminal, painter: LiveRegion, rows: Rows, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(painter, "_draw", lambda: 1 / 0)
    now[0] += 1.0

    painter.write_above("a line\n")
    painter.draw()

    assert terminal.shown == ["a line", "bar", "keys"]


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "Input/output error"), ValueError("closed")])
def test_a_terminal_that_is_gone_is_left_alone(
    terminal: FakeTerminal, painter: LiveRegion, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def fail(text: str) -> int:
        tried.append(text)
        raise error

    monkeypatch.setattr(terminal, "write", fail)

    for _ in range(3):
        painter.write_above("a line\n")
        painter.draw()
    painter.end()

    assert len(tried) == 1


def test_a_line_that_cannot_be_encoded_is_spelled_out_and_ends_nothing() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True)
    painter = LiveRegion(stream, Rows("bar"), lambda: 80)
    painter.start()

    painter.write_above("caf\u00e9 \udcff\n")
    painter.write_above("next\n")
    painter.end()

    assert isinstance(stream.buffer, io.BytesIO)
    assert b"caf\\xe9 \\udcff\nnext\n" in stream.buffer.getvalue()


def test_a_terminal_that_is_slow_just_now_gets_the_next_picture(
    terminal: FakeTerminal, painter: LiveRegion, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def would_block(text: str) -> int:
        raise BlockingIOError

    with monkeypatch.context() as patched:
        patched.setattr(terminal, "write", would_block)
        now[0] += 1.0
        painter.draw()
    now[0] += 1.0
    painter.draw()

    assert terminal.shown == ["bar", "keys"]


def test_the_thread_writes_what_has_gathered_and_ends_with_the_region(terminal: FakeTerminal, rows: Rows) -> None:
    written = threading.Event()

    class Told(FakeTerminal):
        def write(self, text: str) -> int:
            count = super().write(text)
            if "a line" in text:
                written.set()
            return count

    painter = LiveRegion(as_stream(Told()), rows, lambda: 80)
    painter.start()
    painter.write_above("a line\n")

    assert written.wait(20.0)
    painter.end()
    assert not any(thread.name == "agentos-display" for thread in threading.enumerate())


def test_lines_of_many_threads_arrive_whole(terminal: FakeTerminal, painter: LiveRegion) -> None:
    def speak(name: str) -> None:
        for number in range(200):
            painter.write_above(f"{name} {number} {name * 20}\n")

    threads = [threading.Thread(target=speak, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    painter.end()

    assert sorted(terminal.shown) == sorted(f"{name} {n} {name * 20}" for name in "abcd" for n in range(200))


# -- prints of the program ------------------------------------------------------------------------------------


@contextmanager
def redirected(passed: list[str]) -> Iterator[None]:
    """While it lasts, standard output is a terminal with a region, and standard error a file."""

    def above(text: str) -> bool:
        passed.append(text)
        return True

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stdout", FakeTerminal())
        patched.setattr(sys, "stderr", io.StringIO())
        redirect = Redirect(above)
        redirect.start()
        try:
            yield
        finally:
            redirect.end()


def test_prints_to_a_terminal_pass_above_line_by_line() -> None:
    passed: list[str] = []

    with redirected(passed):
        sys.stdout.write("one")
        sys.stdout.flush()
        sys.stdout.write(" line\ntwo\nthr")
        sys.stdout.writelines(["ee\n", "rest"])

    assert passed == ["one line\ntwo\n", "three\n", "rest\n"]


def test_prints_to_a_file_stay_there() -> None:
    passed: list[str] = []

    with redirected(passed):
        file = sys.stderr
        file.write("to a file\n")
        assert isinstance(file, io.StringIO)

    assert (file.getvalue(), passed) == ("to a file\n", [])


def test_a_stream_that_somebody_else_replaced_meanwhile_is_left_to_them() -> None:
    theirs = io.StringIO()
    redirect = Redirect(lambda text: True)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stdout", FakeTerminal())
        redirect.start()
        patched.setattr(sys, "stdout", theirs)
        redirect.end()

        assert sys.stdout is theirs


def test_a_program_sees_the_stream_it_had() -> None:
    with redirected([]):
        assert sys.stdout.isatty()
        assert sys.stdout.encoding == "utf-8"


def test_half_a_line_of_one_thread_is_not_finished_by_another() -> None:
    passed: list[str] = []

    with redirected(passed):
        sys.stdout.write("mi")
        other = threading.Thread(target=lambda: sys.stdout.write("theirs\n"))
        other.start()
        other.join()
        sys.stdout.write("ne\n")

    assert passed == ["theirs\n", "mine\n"]


def test_a_line_that_comes_after_the_region_goes_where_it_always_went() -> None:
    terminal = FakeTerminal()
    redirect = Redirect(lambda text: False)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stdout", terminal)
        redirect.start()
        sys.stdout.write("late\n")
        redirect.end()

    assert terminal.shown == ["late"]
