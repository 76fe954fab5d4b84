"""Parse a shell script and find the placeholders in it.

Covers the part of the language that dash, bash, zsh, ksh and mksh parse alike: simple commands, pipes and lists, groups
and subshells, ``if``, ``for``, ``while``, ``until``, ``case``, functions, quotes, ``$name``, ``$(...)``, plain
``${...}`` and arithmetic, redirections, comments. Everything else raises ``UnsupportedScript``: here-documents, nested
``${...}``, patterns with parentheses, and anything that shells parse differently. So it may refuse a script that every
shell understands, but does not misjudge one that it accepts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .shell_words import ARITHMETIC, EXPANSION, NAME, UnsupportedScript, Word, WordReader

_ASSIGNMENT = re.compile(rf"({NAME})(\[|\+?=)")
_REDIRECTION = re.compile(r"[0-9]*(&>>|&>|<<<|<<|<>|<&|>\||>>|>&|<|>)")
_NUMERIC_RANGE = re.compile(r"[0-9]*-[0-9]*>")  # in zsh, <1-9> is a pattern
_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*")
_CLOSING = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})
_USE_TEST = "[ ... ]"
_PRINTF_PIPE = "printf '%s\\n' {hole} | program"


@dataclass(slots=True)
class SimpleCommand:
    """``NAME=value program argument >file``."""

    begin: int
    assignments: list[tuple[str, Word]] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    files: list[Word] = field(default_factory=list)  # targets of redirections

    def first_hole(self) -> int | None:
        words = [*(word for _, word in self.assignments), *self.words, *self.files]
        return next((word.holes[0] for word in words if word.holes), None)


@dataclass(slots=True)
class ParsedScript:
    """The commands, loops and functions of a script, as far as placeholders are concerned."""

    quotes: dict[int, str]  # quotes around each hole, or ""
    commands: list[SimpleCommand] = field(default_factory=list)
    loops: list[tuple[str, int, bool]] = field(default_factory=list)  # variable, position, whether its list has a hole
    functions: set[str] = field(default_factory=set)


def read_script(source: str) -> ParsedScript:
    """Parse *source*, in which placeholders are ``HOLE``. Raise ``UnsupportedScript`` if it is not supported."""
    reader = _ScriptReader(source)
    reader.read_list(frozenset({""}))
    return reader.script


class _ScriptReader(WordReader):
    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.script = ParsedScript(self.quotes)

    # -- lists of commands ------------------------------------------------------------------------------------------

    def read_list(self, ends: frozenset[str]) -> None:
        """Read commands up to one of *ends*, without consuming it: a word, ``)``, ``;;`` or "" for the end."""
        needs_command = False
        while True:
            self._skip_lines()
            if self._is_at(ends):
                if needs_command:
                    self._fail("a command is missing")
                return
            self._read_command()
            self._skip_comment()
            operator = next((each for each in ("&&", "||", "|&", "|", "&", "\n") if self._sees(each)), None)
            if operator is None and self._sees(";") and not self._sees(";;") and not self._sees(";&"):
                operator = ";"
            if operator is not None:
                self._at += len(operator)
                needs_command = operator in ("&&", "||", "|&", "|")
            elif self._is_at(ends & {"", ")", ";;"}):
                return
            else:
                self._fail("something stands here that does not belong after a command")

    def _is_at(self, ends: frozenset[str]) -> bool:
        if self._at >= len(self._source):
            if "" in ends:
                return True
            self._fail("the script ends before everything is closed")
        if self._sees(")"):
            return ")" in ends
        if self._sees(";&"):
            self._fail("';&' is not read alike by all shells")
        if self._sees(";;"):
            return ";;" in ends
        word = self._bare_word()
        if word and word in ends:
            return True
        if word in _CLOSING:
            self._fail(f"{word!r} closes nothing here")
        return False

    def _read_command(self) -> None:
        while self._bare_word() == "!":
            if self._sees("!("):
                self._fail("what '!(' means differs between shells")
            self._at += 1
            self._skip_blanks()
        readers = {
            "{": self._read_group,
            "if": self._read_if,
            "while": self._read_while,
            "until": self._read_while,
            "for": self._read_for,
            "case": self._read_case,
            "function": self._read_function,
            "[[": self._read_double_brackets,
        }
        if self._sees("(("):
            self._skip(ARITHMETIC, "arithmetic ((...))")
        elif self._sees("("):
            self._at += 1
            self._read_until(")")
        elif (word := self._bare_word()) in readers:
            self._at += len(word)
            readers[word]()
        else:
            self._read_simple_command()
            return
        self._read_redirections(SimpleCommand(self._at))

    def _read_until(self, *ends: str) -> str:
        """Read commands up to and including one of *ends*; return that."""
        begin = self._at
        try:
            self.read_list(frozenset(ends))
        except RecursionError:
            raise UnsupportedScript(begin, "the script is nested too deeply") from None
        found = next(each for each in ends if self._sees(each))
        self._at += len(found)
        return found

    def _read_group(self) -> None:
        self._read_until("}")

    def _read_if(self) -> None:
        self._read_until("then")
        while (end := self._read_until("elif", "else", "fi")) != "fi":
            if end == "else":
                self._read_until("fi")
                return
            self._read_until("then")

    def _read_while(self) -> None:
        self._read_until("do")
        self._read_until("done")

    def _read_for(self) -> None:
        self._skip_blanks()
        begin = self._at
        if self._sees("(("):
            self._skip(ARITHMETIC, "arithmetic ((...))")
        else:
            variable = self._read_word()
            if not re.fullmatch(NAME, variable.source):
                self._fail("this is not the name of a variable", variable.begin)
            has_hole = False
            self._skip_lines()
            if self._bare_word() == "in":
                self._at += 2
                for word in self._words_on_line():
                    has_hole = has_hole or bool(word.holes)
            self.script.loops.append((variable.source, begin, has_hole))
        self._skip_blanks()
        if self._sees(";"):
            self._at += 1
        self._skip_lines()
        self._expect("do")
        self._read_until("done")

    def _read_case(self) -> None:
        if self._substitutions:
            self._fail("'case' inside $(...) is not read alike by all shells", self._at - 4)
        self._skip_blanks()
        self._read_word()
        self._skip_lines()
        self._expect("in")
        while True:
            self._skip_lines()
            if self._bare_word() == "esac":
                self._at += 4
                return
            if self._sees("("):
                self._at += 1
            while True:
                self._skip_blanks()
                self._read_word()
                self._skip_blanks()
                if not self._sees("|"):
                    break
                self._at += 1
            self._expect(")")
            if self._read_until(";;", "esac") == "esac":
                return
            if self._sees("&"):
                self._at += 1

    def _read_function(self) -> None:
        self._skip_blanks()
        name = self._read_word()
        self._skip_blanks()
        if self._sees("("):
            self._at += 1
            self._skip_blanks()
            self._expect(")")
        self._read_body(name)

    def _read_body(self, name: Word) -> None:
        if not _FUNCTION.fullmatch(name.source):
            self._fail("this is not the name of a function", name.begin)
        self.script.functions.add(name.source)
        self._skip_lines()
        if self._bare_word() != "{" and (not self._sees("(") or self._sees("((")):
            self._fail("a function's body begins with '{' or '('")
        self._read_command()

    def _read_double_brackets(self) -> None:
        while True:
            self._skip_blanks()
            if self._bare_word() == "]]":
                self._at += 2
                return
            operator = next((each for each in ("&&", "||", "<", ">") if self._sees(each)), None)
            if operator is not None:
                self._at += len(operator)
                continue
            word = self._read_word()
            if word.holes:
                self._fail("inside [[ ]]", word.holes[0], _USE_TEST)

    # -- simple commands ----------------------------------------------------------------------------------------------

    def _read_simple_command(self) -> None:
        command = SimpleCommand(self._at)
        ends = False  # after &>file: some shells read that as "&" and another command
        while True:
            self._skip_blanks()
            if self._at >= len(self._source) or self._source[self._at] == "#":
                break
            if self._sees_process_substitution():
                word = self._read_process_substitution()
            elif _REDIRECTION.match(self._source, self._at):
                ends = self._read_redirection(command) or ends
                continue
            elif self._source[self._at] in "\n;&|)":
                break
            elif self._sees("("):
                self._fail("'(' does not belong here")
            else:
                word = self._read_word()
            if ends:
                self._fail("shells differ in what comes after '&>file'", word.begin)
            if self._sees("(") and self._read_parenthesis(command, word):
                return
            assignment = None if command.words else _ASSIGNMENT.match(word.source)
            if assignment is None:
                if word.source in ("{", "}"):
                    self._fail(
                        f"a bare {word.source!r} among the arguments is not read alike by all shells", word.begin
                    )
                command.words.append(word)
            elif assignment[2] == "[":
                self._fail("a subscript is arithmetic, which can run commands", word.begin)
            elif assignment[2] == "+=" and word.holes:
                self._fail("in an assignment with +=", word.holes[0], f'{assignment[1]}="${assignment[1]}"{{hole}}')
            else:
                command.assignments.append((assignment[1], word))
        if not (command.words or command.assignments or command.files):
            self._fail("a command is missing")
        self.script.commands.append(command)

    def _read_parenthesis(self, command: SimpleCommand, word: Word) -> bool:
        """Read ``name()`` with its body (then the command is complete) or ``name=(words)``."""
        if command.words:
            self._fail("'(' inside a word is not followed")
        if re.fullmatch(rf"{NAME}\+?=", word.source):
            self._at += 1
            while True:
                self._skip_lines()
                if self._sees(")"):
                    self._at += 1
                    return False
                element = self._read_word()
                if element.holes:
                    self._fail("in an array", element.holes[0])
        if command.assignments or command.files:
            self._fail("'(' inside a word is not followed")
        self._at += 1
        self._skip_blanks()
        self._expect(")")
        self._read_body(word)
        return True

    def _read_redirections(self, command: SimpleCommand) -> None:
        """Read the redirections after a group or a loop."""
        self._skip_blanks()
        while _REDIRECTION.match(self._source, self._at):
            self._read_redirection(command)
            self._skip_blanks()
        if command.files:
            self.script.commands.append(command)

    def _read_redirection(self, command: SimpleCommand) -> bool:
        """Read one redirection; return True if only redirections may follow it."""
        match = _REDIRECTION.match(self._source, self._at)
        assert match is not None  # noqa: S101 - every caller has matched it
        begin, operator = self._at, match[1]
        if operator == "<<":
            self._fail("a here-document is not followed", begin, _PRINTF_PIPE)
        self._at = match.end()
        if self._at < len(self._source) and self._source[self._at] in "!#(|;&<>":
            self._fail("this redirection is not read alike by all shells", begin)
        if operator == "<" and _NUMERIC_RANGE.match(self._source, self._at):
            self._fail("this is a redirection for one shell and a pattern for another", begin)
        self._skip_blanks()
        word = self._read_process_substitution() if self._sees_process_substitution() else self._read_word()
        if word.holes and operator == "<<<":
            self._fail("in a here-string", word.holes[0], _PRINTF_PIPE)
        if word.holes and operator in (">&", "<&"):
            self._fail("as the number of an open file", word.holes[0], "> {hole} 2>&1")
        command.files.append(word)
        return operator.startswith("&")

    def _sees_process_substitution(self) -> bool:
        return self._sees("<(") or self._sees(">(")

    def _read_process_substitution(self) -> Word:
        begin = self._at
        self._at += 2
        self._read_substitution()
        return Word(begin, self._source[begin : self._at], EXPANSION, self._holes_since(begin), may_split=False)

    def _words_on_line(self) -> Iterator[Word]:
        while True:
            self._skip_blanks()
            if self._at >= len(self._source) or self._source[self._at] in "\n;#":
                return
            yield self._read_word()
