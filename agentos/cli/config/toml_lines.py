"""Find the line of each value in a TOML text, which ``tomllib`` does not report.

The text is valid, because ``tomllib`` has parsed it before; so this parser reports no errors.
"""

from __future__ import annotations

import re
from typing import Final

Path = tuple[str | int, ...]

_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR: Final = re.compile(r"[^,\]}\n#]+")
# Such a string may end with up to two quotes of its own.
_LONG_BASIC: Final = re.compile(r'"""(?:[^\\]|\\.)*?"""(?!")', re.DOTALL)
_LONG_LITERAL: Final = re.compile(r"'''.*?'''(?!')", re.DOTALL)
_BASIC: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL: Final = re.compile(r"'[^'\n]*'")


def find_lines(text: str) -> dict[Path, int]:
    """Return the line (from 1) of every table, key and element, by its path: ``("credentials", 1, "rpm")``."""
    finder = _Finder(text)
    finder.document()
    return finder.lines


class _Finder:
    def __init__(self, text: str) -> None:
        self.lines: dict[Path, int] = {}
        self._text = text
        self._at = 0
        self._counted_to = 0
        self._line = 1
        self._elements: dict[Path, int] = {}  # the last index of each array of tables

    # -- the grammar ------------------------------------------------------------------------------------------

    def document(self) -> None:
        table: Path = ()
        self._skip()
        while self._at < len(self._text):
            table = self._header() if self._peek() == "[" else self._pair_in(table)
            self._skip()

    def _header(self) -> Path:
        many = self._text.startswith("[[", self._at)
        line = self._here()
        self._at += 2 if many else 1
        way = self._key()
        self._at += 2 if many else 1  # the closing brackets
        parent: Path = ()
        for word in way[:-1]:
            parent = self._inside((*parent, word))
        table = (*parent, way[-1])
        if many:
            self.lines.setdefault(table, line)
            self._elements[table] = self._elements.get(table, -1) + 1
            table = self._inside(table)
        self.lines.setdefault(table, line)
        return table

    def _inside(self, way: Path) -> Path:
        """Return the path that *way* refers to: of an array of tables, its last element."""
        return (*way, self._elements[way]) if way in self._elements else way

    def _pair_in(self, table: Path) -> Path:
        self._pair(table)
        return table

    def _pair(self, table: Path) -> None:
        line = self._here()
        way = table
        for word in self._key():
            way = (*way, word)
            self.lines.setdefault(way, line)
        self._at += 1  # the equals sign
        self._skip()
        self._value(way)

    def _key(self) -> list[str]:
        words = []
        while True:
            self._skip()
            words.append(self._word())
            self._skip()
            if self._peek() != ".":
                return words
            self._at += 1

    def _word(self) -> str:
        quote = self._peek()
        if quote == '"':
            import tomllib

            found: dict[str, str] = tomllib.loads(f"word = {self._take(_BASIC)}")
            return found["word"]
        return self._take(_LITERAL)[1:-1] if quote == "'" else self._take(_BARE)

    def _value(self, way: Path) -> None:
        first = self._peek()
        if first == "[":
            self._several(way, "]")
        elif first == "{":
            self._several(way, "}")
        elif first in "\"'":
            long = self._text.startswith(first * 3, self._at)
            kinds = (_LONG_BASIC if long else _BASIC) if first == '"' else (_LONG_LITERAL if long else _LITERAL)
            self._take(kinds)
        else:
            self._take(_SCALAR)

    def _several(self, way: Path, closing: str) -> None:
        """Read the elements of an array, or the pairs of an inline table."""
        self._at += 1
        number = 0
        self._skip()
        while self._peek() != closing:
            if closing == "}":
                self._pair(way)
            else:
                self.lines[(*way, number)] = self._here()
                self._value((*way, number))
            number += 1
            self._skip()
            if self._peek() == ",":
                self._at += 1
                self._skip()
        self._at += 1

    # -- the text ---------------------------------------------------------------------------------------------

    def _peek(self) -> str:
        return self._text[self._at]

    def _skip(self) -> None:
        self._take(_BLANK)

    def _take(self, what: re.Pattern[str]) -> str:
        match = what.match(self._text, self._at)
        if match is None:
            raise ValueError(f"line {self._here()} cannot be followed")
        self._at = match.end()
        return match[0]

    def _here(self) -> int:
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        return self._line
