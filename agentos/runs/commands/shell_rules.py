"""Rules for placeholders in a shell script: the positions allowed for each command. All others are refused.

Each placeholder becomes a variable in double quotes, so the shell never reads the item as part of the script. These
rules judge what a command does with its arguments: which program it is, and whether it takes them as data.
"""

from __future__ import annotations

import os
import re

from .embedded_code import EmbeddedCode, find_code
from .interpreters import RUNNERS, WRAPPERS, find_language, gives_arguments_to_code, is_shell
from .shell_grammar import ParsedScript, SimpleCommand
from .shell_tables import (
    BUILTINS,
    BUILTINS_FOR_DATA,
    CHANGES_READING,
    DECLARES,
    EXPORTS,
    OPTION_LETTERS,
    OPTION_NAMES,
    RUNS_NEXT_WORD,
    is_special_variable,
)
from .shell_words import EXPANSION, HOLE, NAME, UnsupportedScript, Word

_PROGRAM = re.compile(r"(?:~/)?[A-Za-z0-9_./+@:][A-Za-z0-9_./+@:-]*|\[")
_FORMAT = re.compile(r"(?:[^%]|%%|%[-0-9.]*[bcqs])*", re.DOTALL)
_STRING_OPERATORS = frozenset({"=", "==", "!=", "<", ">", "-nt", "-ot", "-ef"})
_UNARY_OPERATORS = frozenset({f"-{letter}" for letter in "nzefdrwxsLhpSbcgukOGN"})
_LONG_SHELL_OPTIONS = frozenset({"--login", "--noediting", "--noprofile", "--norc", "--posix", "--verbose"})
_LONG_SHELL_OPTIONS_WITH_VALUE = frozenset({"--rcfile", "--init-file"})


def check_script(script: ParsedScript) -> frozenset[int]:
    """Raise ``UnsupportedScript`` for a placeholder where the item could be taken for more than data.

    Return the holes whose item must not begin with ``-``: an interpreter would take it for an option.
    """
    for variable, at, has_hole in script.loops:
        if has_hole and is_special_variable(variable):
            raise _special(variable, at)
    guarded: set[int] = set()
    for command in script.commands:
        guarded |= _check_holes(command, script.functions)
        _check_what_it_changes(command)
    return frozenset(guarded)


def check_shell_options(options: tuple[str, ...], at: int = 0) -> None:
    """Raise ``UnsupportedScript`` for an option of a shell, or of ``set``, that changes how a script is read."""
    given = iter(options)
    for option in given:
        if option in ("-", "--") or option in _LONG_SHELL_OPTIONS:
            continue
        if option in _LONG_SHELL_OPTIONS_WITH_VALUE:
            next(given, None)
            continue
        letters = option[1:]
        is_known = set(letters) <= OPTION_LETTERS | set("coO") and option[:1] in ("-", "+") and letters != ""
        if is_known and all(next(given, "") in OPTION_NAMES for each in letters if each in "oO"):
            continue
        raise UnsupportedScript(at, f"with the option {option} the shell may read the script in another way")


def _check_what_it_changes(command: SimpleCommand) -> None:
    """Refuse commands that change how the shell reads the rest of the script."""
    words = command.words
    while words and words[0].text in RUNS_NEXT_WORD:
        words = words[1:]
        while words and words[0].text.startswith("-"):
            if set(words[0].text) - set("-clpvV"):
                raise UnsupportedScript(words[0].begin, "after this option it is not certain which command runs")
            words = words[1:]
    if not words:
        return
    name, begin = words[0].text, words[0].begin
    arguments = [word.text for word in words[1:]]
    _check_standard_input(words)
    if name in CHANGES_READING:
        raise UnsupportedScript(begin, f"after {name!r} it is not certain what the rest of the script does")
    if name == "set":
        options = tuple(_options(arguments))
        check_shell_options(tuple(each for each in options if each != "--"), begin)
    elif name in ("shopt", "setopt", "unsetopt"):
        unknown = [each for each in arguments if each not in OPTION_NAMES and each not in ("-s", "-u", "-q", "-o")]
        if unknown:
            raise UnsupportedScript(
                begin, f"after {name!r} with {unknown[0]!r} the shell may read the script in another way"
            )
    elif name in DECLARES | EXPORTS:
        for word in words[1:]:
            if word.text[:1] in ("-", "+") and set(word.text[1:]) - set("gprx-"):
                raise UnsupportedScript(word.begin, f"after {name!r} with {word.text!r} an assignment can run commands")
            if name in DECLARES and word.text.startswith(EXPANSION):
                raise UnsupportedScript(word.begin, f"the arguments of {name!r} must be seen to be names")


def _check_standard_input(words: list[Word]) -> None:
    """Refuse an interpreter that reads code from its standard input: ``echo {} | sh`` would run the item."""
    code = find_code([word.text for word in words])
    name, arguments = os.path.basename(words[code.program].text), words[code.program + 1 :]
    language = find_language(name)
    if is_shell(name):
        has_code = code.program in code.interpreters or code.program in code.files
        reads_code = not has_code or any(word.text == "-s" for word in arguments)
    else:
        is_interpreter = language is not None and gives_arguments_to_code(name, language)
        reads_code = is_interpreter and all(word.text == "-" for word in arguments)
    if reads_code:
        raise UnsupportedScript(words[code.program].begin, f"{name!r} reads code from its standard input here")
    is_behind = os.path.basename(words[0].text) in RUNNERS | WRAPPERS.keys()
    end = min(code.interpreters, default=len(words))  # the rest is for that code
    for index, word in enumerate(words[:end]):  # the program may be another word than it seems
        other = os.path.basename(word.text)
        if is_behind and is_shell(other) and index not in code.files:
            raise UnsupportedScript(word.begin, f"{other!r} may read code from its standard input here")
    wrappers = [word.text for word in words[: code.program]]
    if "xargs" in map(os.path.basename, wrappers):
        replaces = any(text.startswith(("-I", "-i", "-J", "--replace")) for text in wrappers)
        if name in WRAPPERS or (replaces and (code.interpreters or code.languages or not _PROGRAM.fullmatch(name))):
            raise UnsupportedScript(words[0].begin, "xargs may run here what it reads from its standard input")


def _options(arguments: list[str]) -> list[str]:
    """Return the options of ``set``: up to the first other argument, with the names after ``-o``."""
    options: list[str] = []
    for each in arguments:
        names = options and options[-1][:1] in ("-", "+") and options[-1].endswith("o")
        if each == "--" or not (each.startswith(("-", "+")) or names):
            break
        options.append(each)
    return options


def _check_holes(command: SimpleCommand, functions: set[str]) -> frozenset[int]:
    hole = command.first_hole()
    if hole is None:
        return frozenset()
    for variable, word in command.assignments:
        if word.holes and is_special_variable(variable):
            raise _special(variable, word.holes[0])
    if not command.words:
        return frozenset()
    name, arguments = command.words[0], command.words[1:]
    if name.holes:
        raise UnsupportedScript(name.holes[0], "as the name of a command")
    if not name.is_literal or not _PROGRAM.fullmatch(name.text):
        raise UnsupportedScript(hole, "at a command whose name is not written out")
    if name.text in functions:
        raise UnsupportedScript(
            hole, f"at {name.text!r}, which is a function of the script", "the hole in the function itself"
        )
    if name.text in BUILTINS and name.text not in BUILTINS_FOR_DATA:
        instead, is_code = _instead_of_builtin(name.text), name.text in (".", "eval", "source", "trap")
        what = f"at {name.text!r}, which the shell runs itself"
        raise UnsupportedScript(hole, what, instead, is_evaluated=instead is None, is_code=is_code)
    if name.text in ("[", "test"):
        _check_test(name.text, arguments)
    elif name.text == "printf":
        _check_printf(arguments)
    elif name.text not in BUILTINS:
        return _check_program(command.words)
    return frozenset()


def _check_program(words: list[Word]) -> frozenset[int]:
    code = find_code([word.text for word in words])
    guarded: set[int] = set()
    if (first := next((word.holes[0] for word in words if word.holes), None)) is not None:
        _check_wrappers(words, code, first)
    names = {code.program: os.path.basename(words[code.program].text)}
    names.update({index: os.path.basename(words[index].text) for index in code.interpreters})
    for index, word in enumerate(words):
        if not word.holes:
            continue
        hole = word.holes[0]
        if index == code.program:
            raise UnsupportedScript(hole, "as the name of a command")
        for interpreter in code.interpreters:
            if index > interpreter:
                raise UnsupportedScript(
                    hole, f"among the arguments of {names[interpreter]!r}, which is given code", is_code=True
                )
        if index in code.languages:
            raise UnsupportedScript(hole, f"in the code for {code.languages[index]!r}", is_code=True)
        name = names[code.program]
        if is_shell(name) or find_language(name) is not None:
            for before in words[code.program + 1 : index]:
                if EXPANSION in before.text and not set("/.") & set(before.text):
                    raise UnsupportedScript(
                        hole, f"at {name!r} after an argument that is known only when the script runs"
                    )
        if index in code.operands and is_shell(name):
            raise UnsupportedScript(hole, f"as the file that {name!r} runs")
        if index in code.operands and word.text.startswith(EXPANSION):
            raise UnsupportedScript(hole, f"at {name!r}, which may take it for an option", "a -- before it")
        if index in code.operands and word.text.startswith(HOLE):
            guarded.add(hole)
        if index < code.program:
            _check_variable(word)
    return frozenset(guarded)


def _check_variable(word: Word) -> None:
    """Refuse a hole in ``NAME=VALUE`` before a program if it might be the name, or that of a special variable."""
    variable, assigns, _ = word.text.partition("=")
    if not assigns or variable.startswith("--"):
        return
    if not re.fullmatch(NAME, variable):
        raise UnsupportedScript(word.holes[0], "in an assignment to a variable whose name is not written out")
    if is_special_variable(variable):
        raise _special(variable, word.holes[0])


def _check_wrappers(words: list[Word], code: EmbeddedCode, hole: int) -> None:
    """Refuse a hole behind ``env``, ``timeout`` and the like if it is not certain which word is the program."""
    if code.unclear is not None:
        raise UnsupportedScript(
            hole, f"at {code.unclear!r} with an option after which it is not certain which program runs"
        )
    for word in words[1 : code.program + 1]:
        if word.may_split:
            raise UnsupportedScript(word.begin, f"after {words[0].text!r} this needs double quotes", '"$name"')
    program = words[code.program]
    if not program.holes and not (program.is_literal and _PROGRAM.fullmatch(program.text)):
        raise UnsupportedScript(hole, "at a command whose name is not written out")


def _check_test(name: str, arguments: list[Word]) -> None:
    """Allow only ``[ -f FILE ]``, ``[ A = B ]`` and the like: some shells evaluate numbers, which can run commands."""
    hole = next((word.holes[0] for word in arguments if word.holes), None)
    if hole is None:
        return
    if name == "[":
        if not arguments or arguments[-1].source != "]":
            raise UnsupportedScript(hole, "in a [ that has no ]")
        arguments = arguments[:-1]
    for word in arguments:
        if word.may_split:
            raise UnsupportedScript(word.begin, f"in the same {name!r} as a hole, this needs double quotes", '"$name"')
    if arguments and arguments[0].source == "!":
        arguments = arguments[1:]
    match arguments:
        case [_]:
            return
        case [operator, _] if operator.is_literal and operator.text in _UNARY_OPERATORS:
            return
        case [_, operator, _] if operator.is_literal and operator.text in _STRING_OPERATORS:
            return
    raise UnsupportedScript(
        hole,
        f"in a {name!r} that is more than one comparison of texts or question about a file",
        "[ -f {hole} ] && [ {hole} != x ]",
        is_evaluated=True,
    )


def _check_printf(arguments: list[Word]) -> None:
    hole = next((word.holes[0] for word in arguments if word.holes), None)
    if hole is None:
        return
    text = arguments[1:] if arguments[0].text == "--" else arguments
    if not text or not text[0].is_literal or text[0].text.startswith("-") or not _FORMAT.fullmatch(text[0].text):
        raise UnsupportedScript(hole, "at a printf whose format is more than text and %s", "printf '%s\\n' {hole}")


def _instead_of_builtin(name: str) -> str | None:
    if name in EXPORTS | DECLARES:
        return "name={hole}; export name"
    if name in ("false", "kill", "pwd", "time", "true", "which"):
        return f"the program by its path, such as /usr/bin/{name}"
    if name in RUNS_NEXT_WORD:
        return f"the command without {name!r}"
    return None


def _special(variable: str, at: int) -> UnsupportedScript:
    return UnsupportedScript(at, f"as the value of {variable}, which means something to a shell or the system")
