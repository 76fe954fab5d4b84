"""Secrets are redacted in what user code prints to stdout and stderr."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest

from agentos.cli.terminal.print_capture import build_redacted_streams
from agentos.cli.terminal.redacted_stream import RedactedStream
from agentos.pool.redaction import MASK, Masker
from agentos.runs.output.stream_redaction import Redaction

SECRET = "k-planted-QWERTZUIOP"


redactors = Redaction(Masker([SECRET])).stream


def test_what_is_printed_meanwhile_is_redacted_also_in_two_pieces(capsys: pytest.CaptureFixture[str]) -> None:
    with build_redacted_streams(redactors):
        sys.stdout.write(f"before {SECRET[:9]}")
        sys.stdout.write(f"{SECRET[9:]}\n")
        sys.stderr.write(f"on stderr {SECRET}\n")
    sys.stdout.write("after\n")

    out, err = capsys.readouterr()
    assert out == f"before {MASK}\nafter\n"
    assert err == f"on stderr {MASK}\n"


def test_without_secrets_nothing_is_changed(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with build_redacted_streams(None):
        assert sys.stdout is before
        sys.stdout.write(f"{SECRET}\n")

    assert capsys.readouterr().out == f"{SECRET}\n"


def test_bytes_are_redacted_too(capsys: pytest.CaptureFixture[str]) -> None:
    with build_redacted_streams(redactors):
        sys.stdout.buffer.write(f"raw {SECRET}\n".encode())

    assert capsys.readouterr().out == f"raw {MASK}\n"


@pytest.mark.parametrize("known", [None, redactors])
def test_all_of_it_may_be_had_on_standard_error(known: object, capfd: pytest.CaptureFixture[str]) -> None:
    with build_redacted_streams(known, all_to_stderr=True):  # type: ignore[arg-type]
        sys.stdout.write("text\n")
        sys.stdout.buffer.write(b"bytes\n")
        sys.stderr.write("error\n")
        assert sys.stdout.fileno() == sys.stderr.fileno()
    sys.stdout.write("after\n")

    out, err = capfd.readouterr()
    assert out == "after\n"
    assert sorted(err.splitlines()) == ["bytes", "error", "text"]


def test_the_streams_are_put_back_after_an_error() -> None:
    before = sys.stdout, sys.stderr
    with pytest.raises(KeyError), build_redacted_streams(redactors):
        raise KeyError

    assert (sys.stdout, sys.stderr) == before


def test_bytes_come_after_the_text_that_was_written_before_them() -> None:
    raw = io.BytesIO()
    real = io.TextIOWrapper(raw, encoding="utf-8", write_through=False)
    stray = RedactedStream(real, redactors)

    real.write("first ")
    stray.write_bytes(b"second \xff")
    stray.write_text("drittens ü\n")
    stray.finish()

    assert raw.getvalue() == b"first second \xffdrittens \xc3\xbc\n"
    real.detach()


def test_a_stream_that_is_closed_takes_nothing() -> None:
    RedactedStream(None, None).write_text("lost")
    RedactedStream(None, redactors).write_bytes(b"lost")


@pytest.fixture
def terminal() -> Iterator[tuple[TextIO, int]]:
    """A terminal that is written to, and the descriptor on which it is seen."""
    screen, end = os.openpty()
    with open(end, "w", encoding="utf-8") as stream:
        yield stream, screen
    os.close(screen)


@pytest.mark.parametrize("known", [None, redactors])
def test_a_terminal_gets_whole_lines_without_anything_that_it_obeys(
    known: object, terminal: tuple[TextIO, int]
) -> None:
    stream, screen = terminal
    stray = RedactedStream(stream, known)  # type: ignore[arg-type]

    stray.write_text("\x1b]0;title\x07one \x1b[2J")
    stray.flush()
    stray.write_text("line\n10%\r20%\nno end")
    stray.finish()

    shown = b""
    while not shown.endswith(b"no end\r\n"):
        shown += os.read(screen, 1000)
    assert shown == b"one line\r\n20%\r\nno end\r\n"


def test_lines_for_a_terminal_go_where_the_display_wants_them(terminal: tuple[TextIO, int]) -> None:
    stream, _ = terminal
    above: list[str] = []
    stray = RedactedStream(stream, None, above.append)

    stray.write_bytes(b"one\ntw")
    stray.write_bytes(b"o\n")

    assert above == ["one\n", "two\n"]


def test_a_secret_that_only_colours_hide_is_not_uncovered_on_a_terminal(terminal: tuple[TextIO, int]) -> None:
    stream, _ = terminal
    above: list[str] = []

    RedactedStream(stream, redactors, above.append).write_text(
        f"{SECRET[:6]}\x1b[1m{SECRET[6:12]}\x1b[0m{SECRET[12:]}\n"
    )

    assert [text.replace(MASK, "") for text in above] == ["\n"]


def test_in_a_pipe_a_flush_passes_on_a_line_that_has_no_end_but_for_what_may_begin_a_secret() -> None:
    raw = io.BytesIO()
    real = io.TextIOWrapper(raw, encoding="utf-8")
    stray = RedactedStream(real, redactors)

    stray.write_text(f"a long beginning {SECRET[:5]}")
    before = raw.getvalue()
    stray.flush()

    assert before == b""
    assert raw.getvalue().startswith(b"a long beg")
    assert SECRET[:5].encode() not in raw.getvalue()
    real.detach()
