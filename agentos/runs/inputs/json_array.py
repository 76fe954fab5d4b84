"""One JSON array of items, read element by element: never as a whole, and never as one line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .input_error import InputError
from .json_values import DECODER, decode_json
from .text_lines import MAX_LINE, NumberedLines, Record

_SPACE = re.compile(r"[ \t\n\r]*")
_RETRY_ALWAYS = 4_096  # an element up to this size is tried again with every piece of text
# An error so near to the end of the text may be a literal, a number or an escape that goes on in the next piece.
_MAY_CONTINUE = 16


class JsonArray:
    """The elements of one JSON array, with any white space between them."""

    def records(self, lines: NumberedLines) -> Iterator[Record]:
        return _ArrayReader(lines).records()

    def parse(self, raw: bytes) -> Any:
        return decode_json(raw.decode())


class _ArrayReader:
    """Reads an array in pieces; keeps only the text of the current element and the rest of the last piece."""

    def __init__(self, lines: NumberedLines) -> None:
        self._lines = lines
        self._text = ""
        self._at = 0  # position in _text
        self._offset = lines.skip_mark()  # of that position in the input, in bytes
        self._line = 1
        self._line_begins = 0  # in _text; below 0 if before it
        self._ended = False

    def records(self) -> Iterator[Record]:
        if self._next_character() != "[":
            raise self._error("not a JSON array", "for one JSON value per line: --format jsonl")
        self._skip(1)
        if self._next_character() == "]":
            self._skip(1)
        else:
            yield from self._elements()
        if self._next_character():
            hint = "if each line is a JSON value of its own: --format jsonl"
            raise self._error("there is more text after the end of the array", hint)

    def _elements(self) -> Iterator[Record]:
        following = ","
        while following == ",":
            self._next_character()
            item, end = self._read_element()
            number, offset = self._line, self._offset
            self._skip(end - self._at)
            yield number, offset, self._offset - offset, item
            following = self._next_character()
            if following not in (",", "]"):
                raise self._error("not JSON (expecting ',' or ']' after an element of the array)")
            self._skip(1)

    def _read_element(self) -> tuple[Any, int]:
        """Return the element at the current position, and where it ends in the text."""
        while True:
            try:
                item, end = DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                goes_on = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _MAY_CONTINUE
                if not goes_on or not self._read_more():
                    raise self._syntax_error(error) from None
            except (ValueError, RecursionError) as error:
                why = "nested too deeply" if isinstance(error, RecursionError) else error
                raise self._error(f"not JSON that can be read ({why})") from None
            else:
                if end < len(self._text) - _MAY_CONTINUE or not self._read_more():  # else a number may go on
                    return item, end

    def _next_character(self) -> str:
        """Move to the next character that is not white space and return it; "" at the end of the input."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None  # noqa: S101 - for the type checker: it matches an empty text
            self._skip(match.end() - self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read_more():
                return ""

    def _skip(self, count: int) -> None:
        end = self._at + count
        passed = self._text[self._at : end]
        self._offset += len(passed) if passed.isascii() else len(passed.encode())
        breaks = passed.count("\n")
        if breaks:
            self._line += breaks
            self._line_begins = self._text.rindex("\n", self._at, end) + 1
        self._at = end

    def _read_more(self) -> bool:
        """Read on: at least half as much again as a large element has, so that it is not tried too often."""
        if self._ended:
            return False
        pending = len(self._text) - self._at
        if pending > MAX_LINE:
            raise self._error(f"an element longer than {MAX_LINE >> 20} MiB")
        wanted = 1 if pending <= _RETRY_ALWAYS else pending // 2
        more = self._lines.read_text(wanted)
        self._ended = not more
        if self._ended:
            return False
        self._text = self._text[self._at :] + more
        self._line_begins -= self._at
        self._at = 0
        return True

    def _error(self, detail: str, hint: str | None = None) -> InputError:
        return self._lines.error(detail, line=self._line, hint=hint)

    def _syntax_error(self, error: json.JSONDecodeError) -> InputError:
        self._skip(error.pos - self._at)
        column = self._at - self._line_begins + 1
        return self._error(f"not JSON ({error.msg} at column {column})")
