r"""Where in a shell script a word may be put in, so that the shell can read it as nothing but that word.

The scan knows quotes, comments, expansions and here-documents well enough to be sure where a place is bare. What it
cannot follow for sure (an expansion with quotes inside double quotes, or what ``sh`` and ``bash`` read differently) it
does not follow: from there to the end no place counts as bare. So it may refuse a place that would be safe, never the
other way round.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_BACKTICKS = re.compile(r"`[^`\\'\"\n]*`")
_ARITHMETIC = re.compile(r"\$?\(\([^()'\"`\\<#]*\)\)|\$\[[^\[\]'\"`\\]*\]")
_PARAMETER = re.compile(r"\$\{[^{}'\"`\\$\n]*\}")
_SUBSTITUTION = re.compile(r"\$\((?![^)]*\bcase\b)[^()'\"`\\#<{}\n]*\)")  # the ")" of a case pattern ends nothing
_ENDS_WORD = frozenset(" \t\n;&|()<>")
_ENDS_COMMAND = frozenset("\n;&|()")
_AMBIGUOUS_IN_COMMENT = frozenset("'\"`\\$<")  # some shells, told so, have no comments
# Commands that read their words once more, as code or as a name or number: the name "a[$(date)]" runs date.
_EVALUATES = re.compile(
    r"(?:declare|eval|getopts|integer|let|mapfile|read|readarray|shift|trap|typeset|ulimit|unset)(?=\s)"
)
_COMPARES = r"-(?:eq|ne|lt|le|gt|ge)"
_AFTER_NUMBER = re.compile(rf"(?:\s{_COMPARES}|(?:\[|\btest|\bprintf)\s+-v)\s+\S*\Z")
_BEFORE_NUMBER = re.compile(rf"\S*\s+{_COMPARES}\s")
_BEFORE_COMMAND = re.compile(
    r"(?:^|[\n;&|(){!]|(?<!\S)(?:then|do|else|elif|if|while|until|time|builtin|command|exec|\w+=\S*)\s)\s*\Z"
)


class Trouble(NamedTuple):
    """Why a word must not be put in at a place; if it is evaluated there, not even a variable is safe."""

    where: str
    is_evaluated: bool = False


_IN_ARITHMETIC = Trouble("inside arithmetic", is_evaluated=True)


def quoted(text: str) -> str:
    """*text* as one word of a shell. Always in quotes: bare, ``if``, ``A=1`` or ``2`` before ``>`` are more."""
    return "'" + text.replace("'", "'\"'\"'") + "'"


def troubles(script: str, places: Sequence[tuple[int, int]]) -> list[Trouble | None]:
    """For each place (begin, end) of *script*, in order: None where a quoted word is safe, else why it is not."""
    scan = _Scan(script, places)
    scan.bare()
    lost = Trouble("where it is not clear what it would be")
    return [scan.found.get(begin, lost) for begin, _ in places]


class _Scan:
    """One way through a script, from its beginning."""

    def __init__(self, script: str, places: Sequence[tuple[int, int]]) -> None:
        self.found: dict[int, Trouble | None] = {}
        self._script = script
        self._ends = dict(places)
        self._at = 0
        self._braces = 0  # open in this word
        self._brackets = 0
        self._inside_test = False  # [[ ... ]]
        self._evaluates = ""  # the command whose words these are

    def bare(self) -> None:
        """Outside all quotes, to the end."""
        script = self._script
        while self._at < len(script):
            at, char = self._at, script[self._at]
            if at in self._ends:
                self._at = self._ends[at]
                self.found[at] = self._trouble(at, self._at)
            elif char == "\\":
                self._pass(at + 2, Trouble("after a backslash"))
            elif char == "'":
                self._pass(script.find("'", at + 1) + 1, Trouble("inside single quotes"))
            elif char == '"':
                self._at += 1
                self._double_quotes()
            elif char == "`":
                self._pass_simple(_BACKTICKS, Trouble("inside backticks"))
            elif char == "$":
                self._dollar()
            elif script.startswith("((", at):
                self._pass_simple(_ARITHMETIC, _IN_ARITHMETIC)
            elif script.startswith("<<", at) and not script.startswith("<<<", at):
                self._pass(0, Trouble("at or after a here-document"))
            elif char == "#" and self._starts_word():
                self._comment()
            else:
                self._plain(char)

    def _trouble(self, begin: int, end: int) -> Trouble | None:
        if self._braces:
            return Trouble("inside a brace expansion")
        if self._brackets:
            return Trouble("inside brackets", is_evaluated=True)
        if self._inside_test:
            return Trouble("inside [[ ]]", is_evaluated=True)
        if _AFTER_NUMBER.search(self._script, 0, begin) or _BEFORE_NUMBER.match(self._script, end):
            return Trouble("where some shells evaluate it as a number or a name", is_evaluated=True)
        if self._evaluates:
            return Trouble(f"among the words of {self._evaluates!r}, which evaluates them", is_evaluated=True)
        return None

    def _plain(self, char: str) -> None:
        script, at = self._script, self._at
        self._at += 1
        before_space = script[at + 1 : at + 2].isspace()
        if char in _ENDS_WORD:
            self._braces = 0
            if char in _ENDS_COMMAND:
                self._evaluates = ""
            if script.startswith("<<<", at):
                self._at += 2
        elif char == "{" and not before_space:
            self._braces += 1
        elif char == "}":
            self._braces = max(0, self._braces - 1)
        elif script.startswith("[[", at) and self._starts_word(at):
            self._inside_test = True
            self._at += 1
        elif script.startswith("]]", at) and self._inside_test and self._starts_word(at):
            self._inside_test = False
            self._at += 1
        elif char == "[" and not (before_space and self._starts_word(at)):
            self._brackets += 1  # a subscript may have spaces in it, and is arithmetic: only "]" ends it
        elif char == "]":
            self._brackets = max(0, self._brackets - 1)
        elif (word := _EVALUATES.match(script, at)) and _BEFORE_COMMAND.search(script[:at]):
            self._evaluates = word[0]

    def _dollar(self) -> None:
        script, at = self._script, self._at
        if script.startswith("$'", at):
            end = script.find("'", at + 2)
            before = script[at + 2 : end]
            escaped = (len(before) - len(before.rstrip("\\"))) % 2  # for bash the quotes go on there, for sh they end
            self._pass(0 if escaped else end + 1, Trouble("inside or after $'...'"))
        elif script.startswith(("$((", "$["), at):
            self._pass_simple(_ARITHMETIC, _IN_ARITHMETIC)
        elif script.startswith("${", at):
            self._pass_simple(_PARAMETER, Trouble("inside or after ${...}"))
        else:
            self._at += 1

    def _double_quotes(self) -> None:
        script, why = self._script, Trouble("inside double quotes")
        while self._at < len(script):
            at, char = self._at, script[self._at]
            if char == '"':
                self._at += 1
                return
            if char == "\\":
                self._pass(at + 2, why)
            elif char == "`":
                self._pass_simple(_BACKTICKS, why)
            elif script.startswith(("$((", "$["), at):
                self._pass_simple(_ARITHMETIC, why)
            elif script.startswith("$(", at):
                self._pass_simple(_SUBSTITUTION, Trouble("inside or after double quotes with $(...) in them"))
            elif script.startswith("${", at):
                self._pass_simple(_PARAMETER, Trouble("inside or after double quotes with ${...} in them"))
            else:
                self._pass(at + 1, why)

    def _comment(self) -> None:
        end = self._script.find("\n", self._at)
        comment = self._script[self._at : end if end >= 0 else None]
        self._pass(0 if _AMBIGUOUS_IN_COMMENT & set(comment) else end, Trouble("inside or after a comment"))

    def _starts_word(self, at: int | None = None) -> bool:
        at = self._at if at is None else at
        return at == 0 or self._script[at - 1] in _ENDS_WORD

    def _pass_simple(self, pattern: re.Pattern[str], why: Trouble) -> None:
        match = pattern.match(self._script, self._at)
        self._pass(match.end() if match else 0, why)

    def _pass(self, end: int, why: Trouble) -> None:
        """Go on at *end*; no place until there is bare. With no end (0 or less), none is in all the rest."""
        end = end if end > 0 else len(self._script)
        for begin in self._ends:
            if self._at <= begin < end:
                self.found[begin] = why
        self._at = end
