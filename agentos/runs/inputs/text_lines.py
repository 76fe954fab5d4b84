"""Lines of a file or stream, with number and offset, checked to be text."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

from .input_error import InputError
from .input_location import build_read_error

MAX_LINE = 64 << 20  # a longer line is a file without line ends; it must not fill the memory
_PIECE = 64 << 10
_MARK_SIZE = 3
_GZIP = b"\x1f\x8b"

Line = tuple[int, int, int, str]
Record = tuple[int, int, int, Any]  # number of its first line, offset and size in bytes, item


class NumberedLines:
    """Number, offset, size in bytes and text (with its line end) of each line returned by *readline*.

    A byte order mark at the beginning is skipped. Raises ``InputError`` for a line that is not UTF-8 or has a NUL, and
    when reading fails. ``number`` is that of the line last read. Can be iterated once; or ``skip_mark`` and then
    ``read_text`` read it without regard to lines.
    """

    def __init__(self, source: str, readline: Callable[[int], bytes]) -> None:
        self.source = source
        self.number = 0
        self._readline = readline
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._first_piece = ""
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

    def skip_mark(self) -> int:
        """Read the beginning and return the size of its byte order mark. Call it once, before ``read_text``."""
        raw = self._read_piece()
        while 0 < len(raw) < _MARK_SIZE and (more := self._read_piece()):
            raw += more
        self.number = 1
        offset, rest = self._after_mark(raw)
        self._first_piece = self._decode_piece(rest, final=not raw)
        return offset

    def read_text(self, least: int) -> str:
        """Return the following text: at least *least* characters, or what is left, or "" at the end."""
        pieces, self._first_piece = [self._first_piece], ""
        size = len(pieces[0])
        while size < least:
            raw = self._read_piece()
            pieces.append(self._decode_piece(raw, final=not raw))
            size += len(pieces[-1])
            if not raw:
                break
        return "".join(pieces)

    def _read_piece(self) -> bytes:
        try:
            return self._readline(_PIECE)
        except OSError as error:
            raise build_read_error(self.source, error, self.number or 1) from None

    def _decode_piece(self, raw: bytes, *, final: bool) -> str:
        try:
            text = self._decoder.decode(raw, final)
        except UnicodeDecodeError as error:
            self.number += error.object.count(b"\n", 0, error.start)
            raise self.error(f"not UTF-8 (byte 0x{error.object[error.start]:02x})") from None
        self.number += text.count("\n")
        return text

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
        if raw.startswith(_GZIP):
            raise self.error("compressed with gzip", hint="the name of such a file ends in .gz; else: gunzip -c")
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
