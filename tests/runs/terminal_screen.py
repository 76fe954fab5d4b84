"""A terminal emulator for tests: its screen after everything was written."""

from __future__ import annotations

import re

_PIECES = re.compile(r"\x1b\[(\??\d*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")


class FakeTerminal:
    """Rows of text and a cursor, of those things that a live region relies on. It wraps, and does not scroll away."""

    encoding = "utf-8"

    def __init__(self, columns: int = 80) -> None:
        self.columns = columns
        self.rows = [""]
        self.row = self.column = 0
        self.cursor_is_shown = True
        self.writes = 0
        self.raw = ""

    def isatty(self) -> bool:
        return True

    def flush(self) -> None: ...

    def write(self, text: str) -> int:
        self.writes += 1
        self.raw += text
        for number, letter, back, newline, plain in _PIECES.findall(text):
            if back:
                self.column = 0
            elif newline:
                self._down()
            elif plain:
                for character in plain:
                    self._put(character)
            else:
                self._obey(number, letter)
        return len(text)

    @property
    def shown(self) -> list[str]:
        """The rows, without blanks at their ends, and without empty ones at the end."""
        return "\n".join(row.rstrip() for row in self.rows).rstrip("\n").split("\n")

    def _down(self) -> None:
        self.row, self.column = self.row + 1, 0
        if self.row == len(self.rows):
            self.rows.append("")

    def _put(self, character: str) -> None:
        if self.column == self.columns:
            self._down()
        row = self.rows[self.row].ljust(self.column)
        if character != "\t":
            self.rows[self.row] = row[: self.column] + character + row[self.column + 1 :]
        self.column += 1

    def _obey(self, number: str, letter: str) -> None:
        if letter == "A":
            self.row = max(0, self.row - int(number or 1))
        elif letter == "K":
            self.rows[self.row] = self.rows[self.row][: self.column]
        elif letter == "J":
            self.rows[self.row :] = [self.rows[self.row][: self.column]]
        elif number == "?25":
            self.cursor_is_shown = letter == "h"
        elif letter != "m":
            raise AssertionError(f"the region wrote an escape that this terminal does not know: {number}{letter}")
