"""Lines of a file or stream, with number and offset, checked to be text."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

from .input_error import InputError
from .input_location import build_read_error

MAX_LINE = 64 << 20  # a longer line is a file without line ends; it must not fill the memory

Line = tuple[int, int, int, str]


class NumberedLines:
    """Number, offset, size in bytes and text (with its line end) of each line returned by *readline*.

    A byte order mark at the beginning is skipped. Raises ``InputError`` for a line that is not UTF-8 or has a NUL, and
    when reading fails. ``number`` is that of the line last read. Can be iterated once.
    """

    def __init__(self, source: str, readline: Callable[[int], bytes]) -> None:
        self.source = source
        self.number = 0
        self._readline = readline
        self._ahead: list[Line] = []
        self._rest = self._read()

    def __iter__(self) -> Iterator[Line]:
        return chain(self._ahead, self._rest)

    def first(self) -> str:
        """Return the first non-blank line without consuming it, or ""."""
        for line in self._rest:
            self._ahead.append(line)
            if not is_blank(line[3]):
                return line[3]
        return ""

    def error(self, detail: str, line: int | None = None, hint: str | None = None) -> InputError:
        """Build an error at *line* or the line last read."""
        return InputError(source=self.source, detail=detail, line=line or self.number, hint=hint)

    def _read(self) -> Iterator[Line]:
        offset = 0
        try:
            for raw in iter(partial(self._readline, MAX_LINE + 1), b""):
                self.number += 1
                line = raw
                if self.number == 1:
                    offset, line = self._after_mark(raw)
                if b"\0" in line:
                    raise self.error("has a NUL byte, so it is not text")
                if len(line) > MAX_LINE:
                    raise self.error(f"longer than {MAX_LINE >> 20} MiB; is this one item per line?")
                yield self.number, offset, len(line), self._text(line)
                offset += len(line)
        except OSError as error:
            raise build_read_error(self.source, error, self.number + 1) from None

    def _after_mark(self, raw: bytes) -> tuple[int, bytes]:
        if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise self.error("UTF-16 instead of UTF-8", hint="convert it: iconv -f UTF-16 -t UTF-8")
        if raw.startswith(codecs.BOM_UTF8):
            return 3, raw[3:]
        return 0, raw

    def _text(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"not UTF-8 (byte 0x{raw[error.start]:02x} at position {error.start + 1})") from None


def is_blank(text: str) -> bool:
    """Return True if the text is empty or whitespace."""
    return not text or text.isspace()
