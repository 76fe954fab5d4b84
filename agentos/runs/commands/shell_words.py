"""Parse the words of a shell script: quotes, expansions and placeholders.

In the script a placeholder is the one character ``HOLE``, and one for digits is ``NUMBER``: neither can occur in an
argument. Constructs that shells read differently raise ``UnsupportedScript``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NoReturn

HOLE = "\0"
NUMBER = "\ud800"
EXPANSION = "\ud801"  # in the text of a word: a value known only at run time

_BLANKS = " \t"
_METACHARACTERS = frozenset(" \t\n;&|()<>")
NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE = re.compile(rf"\$(?:{NAME}|[0-9@*#?$!-])")
_PARAMETER = re.compile(r"\$\{(?:[^{}()<>'\"`\\\n$\0]|\$(?=[A-Za-z0-9_]))*\}")
ARITHMETIC = re.compile(r"\$?\(\((?:[^()'\"`\\#\n<\0]|<(?!<))*\)\)")
_BACKTICKS = re.compile(r"`[^`\\'\"\n<\0]*`")
_DOLLAR_QUOTES = re.compile(r"\$'[^'\\\0]*(?:\\[^'\0][^'\\\0]*)*'")  # ends at the same quote in a shell without $'...'
_AFTER_LITERAL_DOLLAR = frozenset(" \t\n;|&)/.,:%]}")


class UnsupportedScript(Exception):
    """The script cannot be parsed at *at*, or the placeholder there is refused; *what* is the reason or its position.

    *instead* shows how to write it, with ``{hole}`` for the placeholder. Where the item *is_code*, or *is_evaluated* as
    a number or a name, there is no safe way to put it there.
    """

    def __init__(
        self, at: int, what: str, instead: str | None = None, *, is_evaluated: bool = False, is_code: bool = False
    ) -> None:
        super().__init__(what)
        self.at = at
        self.what = what
        self.instead = instead
        self.is_evaluated = is_evaluated
        self.is_code = is_code


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a script. Its text is the word without quotes."""

    begin: int
    source: str
    text: str
    holes: tuple[int, ...]
    may_split: bool  # into several words or none: an unquoted expansion or pattern

    @property
    def is_literal(self) -> bool:
        return HOLE not in self.text and EXPANSION not in self.text and not self.may_split


class WordReader(ABC):
    """Reads a script word by word."""

    def __init__(self, source: str) -> None:
        self.quotes: dict[int, str] = {}  # quotes around each hole read so far, or ""
        self._source = source
        self._at = 0
        self._substitutions = 0  # nesting depth of $( and <(

    @abstractmethod
    def _read_until(self, *ends: str) -> str:
        """Read commands up to and including one of *ends*; return that."""

    def _read_substitution(self) -> None:
        self._substitutions += 1
        self._read_until(")")
        self._substitutions -= 1

    def _read_word(self) -> Word:
        source, begin = self._source, self._at
        text: list[str] = []
        may_split = has_brace = False
        while self._at < len(source) and (char := source[self._at]) not in _METACHARACTERS:
            if char == "\\":
                if source.startswith("\\\n", self._at):
                    break
                text.append(self._read_escaped())
            elif char == "'":
                text.append(self._read_single_quotes())
            elif char == '"':
                may_split = self._read_double_quotes(text) or may_split
            elif char == "`":
                self._skip(_BACKTICKS, "`...`", "$(...)")
                text.append(EXPANSION)
                may_split = True
            elif char == "$":
                may_split = self._read_dollar(text, in_quotes=False) or may_split
            else:
                if char == HOLE:
                    self.quotes[self._at] = ""
                has_brace = has_brace or char in "{}"
                may_split = may_split or (char in "*?[{}" and self._bare_word() not in ("[", "]"))
                text.append(char)
                self._at += 1
        if self._at == begin:
            self._fail("a word is missing")
        word = Word(begin, source[begin : self._at], "".join(text), self._holes_since(begin), may_split)
        if word.holes and has_brace:
            self._fail("in a brace expansion", word.holes[0])
        if (
            NUMBER in word.source
            and source.startswith(("<", ">"), self._at)
            and word.source.strip("0123456789" + NUMBER) == ""
        ):
            self._fail("a number before '<' or '>' is that of an open file", begin, "a space between them")
        return word

    def _holes_since(self, begin: int) -> tuple[int, ...]:
        """Return the holes of a word, including those in a ``$(...)``, whose output may contain the item."""
        return tuple(at for at in self.quotes if at >= begin)

    def _read_escaped(self) -> str:
        char = self._source[self._at + 1 : self._at + 2]
        if char == "":
            self._fail("the script ends with a backslash")
        if char == HOLE:
            self._fail("after a backslash", self._at + 1)
        self._at += 2
        return char

    def _read_single_quotes(self) -> str:
        begin, end = self._at + 1, self._source.find("'", self._at + 1)
        if end < 0:
            self._fail("a quote that is not closed")
        for at in range(begin, end):
            if self._source[at] == HOLE:
                self.quotes[at] = "'"
        self._at = end + 1
        return self._source[begin:end]

    def _read_double_quotes(self, text: list[str]) -> bool:
        """Read double quotes into *text*; return True if they may become several words (``"$@"``)."""
        source, begin, may_split = self._source, self._at, False
        self._at += 1
        while self._at < len(source):
            char = source[self._at]
            if char == '"':
                self._at += 1
                return may_split
            if char == "\\":
                escaped = self._read_escaped()
                text.append("" if escaped == "\n" else escaped if escaped in '$`"\\' else f"\\{escaped}")
            elif char == "`":
                self._skip(_BACKTICKS, "`...`", "$(...)")
                text.append(EXPANSION)
            elif char == "$":
                may_split = self._read_dollar(text, in_quotes=True) or may_split
            else:
                if char == HOLE:
                    self.quotes[self._at] = '"'
                text.append(char)
                self._at += 1
        self._fail("a quote that is not closed", begin)

    def _read_dollar(self, text: list[str], *, in_quotes: bool) -> bool:
        """Read an expansion; return True if it may become several words or none."""
        source, begin = self._source, self._at
        following = source[begin + 1 : begin + 2]
        if self._sees("$(("):
            self._skip(ARITHMETIC, "arithmetic $((...))")
        elif following == "(":
            self._at += 2
            self._read_substitution()
        elif following == "{":
            self._skip(_PARAMETER, "${...}")
        elif following == "'" and not in_quotes:
            self._skip(_DOLLAR_QUOTES, "$'...'", "$'...'{hole}")
            text.append(EXPANSION)
            return False
        elif match := _VARIABLE.match(source, begin):
            self._at = match.end()
            if self._sees("["):
                self._fail("for zsh, '[' after a variable is a subscript", self._at, "${name}[")
        elif following in _AFTER_LITERAL_DOLLAR or following == "" or (following == '"' and in_quotes):
            text.append("$")
            self._at += 1
            return False
        else:
            self._fail(f"'${following}' is not followed".replace(HOLE, "{}"))
        text.append(EXPANSION)
        return not in_quotes or "@" in source[begin : self._at]

    # -- places -------------------------------------------------------------------------------------------------------

    def _sees(self, text: str) -> bool:
        return self._source.startswith(text, self._at)

    def _bare_word(self) -> str:
        """Return the word here if it has no quotes or expansions: only such a word can be a keyword."""
        end = self._at
        while end < len(self._source) and self._source[end] not in _METACHARACTERS:
            end += 1
        return self._source[self._at : end]

    def _expect(self, what: str) -> None:
        if self._bare_word() != what and not (what == ")" and self._sees(")")):
            self._fail(f"{what!r} is missing")
        self._at += len(what)

    def _skip(self, pattern: re.Pattern[str], name: str, instead: str | None = None) -> None:
        """Skip a construct that cannot contain a placeholder."""
        match = pattern.match(self._source, self._at)
        if match is not None:
            self._at = match.end()
            return
        hole = self._source.find(HOLE, self._at)
        closed = self._source.find(name[-1], self._at + 2)
        if 0 <= hole < (closed if closed >= 0 else len(self._source)):
            raise UnsupportedScript(hole, f"inside {name}", instead, is_evaluated=name.startswith("arithmetic"))
        self._fail(f"{name} with quotes, lines or other expansions in it is not followed")

    def _skip_blanks(self) -> None:
        source = self._source
        while self._at < len(source):
            if source[self._at] in _BLANKS:
                self._at += 1
            elif self._sees("\\\n"):
                around = source[self._at - 1 : self._at] + source[self._at + 2 : self._at + 3]
                if not set(around) & set(_BLANKS):
                    self._fail("a line that goes on in the middle of a word is not followed")
                self._at += 2
            else:
                return

    def _skip_comment(self) -> None:
        self._skip_blanks()
        if not self._sees("#"):
            return
        if self._substitutions:
            self._fail("a comment inside $(...) is not read alike by all shells")
        end = self._source.find("\n", self._at)
        end = end if end >= 0 else len(self._source)
        comment = self._source[self._at : end]
        if HOLE in comment:
            self._fail("in a comment", self._at + comment.index(HOLE))
        if comment.endswith("\\"):
            self._fail("a comment that ends with a backslash is not followed")
        self._at = end

    def _skip_lines(self) -> None:
        while True:
            self._skip_comment()
            if not self._sees("\n"):
                return
            self._at += 1

    def _fail(self, what: str, at: int | None = None, instead: str | None = None) -> NoReturn:
        raise UnsupportedScript(self._at if at is None else at, what, instead)
