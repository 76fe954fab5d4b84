"""Find the arguments of a command that are code: a shell's script, Python's ``-c``, awk's program.

Arguments may contain placeholders, as ``shell_words.HOLE``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .interpreters import (
    JOINED,
    RUNNERS,
    UNKNOWN_SHELL,
    WRAPPERS,
    Language,
    find_language,
    gives_arguments_to_code,
    is_shell,
    may_be_shell,
)
from .shell_words import HOLE

_MAKE_ASSIGNMENT = re.compile(r"[^\s=:]+\s*[:+?!]*=")
_SCRIPT_OPTION = re.compile(r"-[A-Za-z]*c[A-Za-z]*")
_LONG_SHELL_OPTIONS_WITH_VALUE = ("--rcfile", "--init-file", "--emulate")


@dataclass(frozen=True, slots=True)
class ShellScript:
    """The script of ``sh -c SCRIPT``."""

    shell: int  # index of the shell's name
    options: tuple[str, ...]
    appended_by: str | None = None  # a program that appends arguments of its own
    hidden_by: str | None = None  # a program that may change arguments before it passes them on


@dataclass(frozen=True, slots=True)
class EmbeddedCode:
    """The arguments of a command that are code, by index."""

    program: int  # the actual program, after ``env A=1``, ``timeout 30``, ``nice -n 5`` and the like
    scripts: Mapping[int, ShellScript]
    languages: Mapping[int, str]  # code in another language: the program that takes it
    operands: Mapping[int, str]  # not code, unless it begins with "-" and so is an option of that program
    interpreters: Mapping[int, int]  # programs whose arguments go to their code, and the index of that code
    files: Mapping[int, int]  # shells without a script, and the index of the file each runs
    unclear: str | None  # a wrapper with an unknown option: another argument may be the program


def find_code(argv: Sequence[str]) -> EmbeddedCode:
    """Find the code in a command, behind ``env`` or ``docker run image`` too."""
    main, operands, unclear = _follow_wrappers(argv)
    scripts: dict[int, ShellScript] = {}
    languages: dict[int, str] = {}
    interpreters: dict[int, int] = {}
    files: dict[int, int] = {}
    for index, element in enumerate(argv):
        name = os.path.basename(element)
        if is_shell(name):
            script, operand = _find_script(argv, index)
            if script is not None:
                scripts[script] = _shell_script(argv, main, index, script)
                interpreters[index] = script
            elif operand is not None:
                files[index] = operand
                if index == main:
                    operands[operand] = name
            continue
        language = find_language(name, argv[index + 1] if index + 1 < len(argv) else "")
        if language is None and index == main and may_be_shell(name) and any(map(_SCRIPT_OPTION.fullmatch, argv)):
            language = UNKNOWN_SHELL
        # Code known only by its position counts for the command itself: elsewhere the name could be another's argument.
        if language is None or (index != main and (language.operand is not None or language.sets_variables)):
            continue
        code, plain = _find_code_arguments(language, argv, index)
        languages.update(dict.fromkeys(code, name))
        if code and gives_arguments_to_code(name, language):
            interpreters[index] = code[0]
        if index == main:
            operands.update(dict.fromkeys(plain, name))
    if main < len(argv) and (joined := JOINED.get(name := os.path.basename(argv[main]))) is not None:
        first, rest = _find_joined(argv, main, *joined)
        operands.update(dict.fromkeys(first, name))
        languages.update(dict.fromkeys(rest, name))
    if any(element.partition("=")[0] == "--entrypoint" for element in argv):
        # docker run --entrypoint sh image -c SCRIPT
        options = (at for at, element in enumerate(argv[:-1], start=1) if _SCRIPT_OPTION.fullmatch(element))
        languages.update(dict.fromkeys((at for at in options if HOLE in argv[at] and at not in scripts), "a shell"))
    languages = {place: name for place, name in languages.items() if place not in scripts}
    return EmbeddedCode(main, scripts, languages, operands, interpreters, files, unclear)


def find_program(argv: Sequence[str]) -> int:
    """Return the index of the actual program, after ``env A=1``, ``timeout 30``, ``nice -n 5`` and the like."""
    return _follow_wrappers(argv)[0]


def _follow_wrappers(argv: Sequence[str]) -> tuple[int, dict[int, str], str | None]:
    """Return the program's index, and the wrappers' arguments that would be options if they began with "-".

    The third value is the first wrapper with an unknown option, after which the program's index is a guess.
    """
    at = 0
    operands: dict[int, str] = {}
    unclear: str | None = None
    while at < len(argv) - 1 and (wrapper := WRAPPERS.get(name := os.path.basename(argv[at]))) is not None:
        inner = at + 1
        takes_options = True
        while inner < len(argv):
            element = argv[inner]
            if takes_options and element.startswith("-"):
                takes_options = element != "--"
                length = wrapper.option_length(element)
                if length is None and takes_options:
                    unclear = unclear or name
                inner += length or 1
            elif wrapper.assigns and "=" in element:
                if not takes_options:  # env -- A=1 sets a variable, sudo -- A=1 runs that
                    unclear = unclear or name
                operands[inner] = name
                inner += 1
            else:
                break
        program = inner + wrapper.words
        operands.update(dict.fromkeys(range(inner, min(program + 1, len(argv))), name))
        if program >= len(argv) or (unclear == name and name in RUNNERS):
            break
        at = program
    return at, operands, unclear


def _shell_script(argv: Sequence[str], main: int, shell: int, script: int) -> ShellScript:
    appended_by = next((name for each in argv[:shell] if (name := os.path.basename(each)) == "xargs"), None)
    is_known = shell == main or os.path.basename(argv[main]) in RUNNERS
    return ShellScript(shell, tuple(argv[shell + 1 : script]), appended_by, None if is_known else argv[main])


def _find_script(argv: Sequence[str], shell: int) -> tuple[int | None, int | None]:
    """Return the index of the script of ``sh [options] -c SCRIPT``, or of the file of ``sh [options] FILE``."""
    has_script = False
    at = shell + 1
    while at < len(argv):
        option = argv[at]
        if option in ("-", "--"):
            at += 1
            break
        if option[:1] not in ("-", "+") or not option:
            break
        if option.startswith("--"):
            at += 2 if option in _LONG_SHELL_OPTIONS_WITH_VALUE else 1
            continue
        has_script = has_script or (option[0] == "-" and "c" in option)
        at += 1 + option.count("o") + option.count("O")
    if at >= len(argv):
        return None, None
    return (at, None) if has_script else (None, at)


def _find_joined(argv: Sequence[str], at: int, valued: str, words: int) -> tuple[range, range]:
    """Return the first *words* arguments of a program, and the rest, which it joins and passes to a shell."""
    at += 1
    while at < len(argv) and argv[at].startswith("-") and len(argv[at]) > 1:
        at += 2 if argv[at][1] != "-" and argv[at][-1] in valued else 1
    return range(at, min(at + words, len(argv))), range(at + words, len(argv))


def _find_code_arguments(language: Language, argv: Sequence[str], program: int) -> tuple[list[int], list[int]]:
    """Return the arguments that are code, and those that would be options if they began with "-"."""
    code: list[int] = []
    operands: list[int] = []
    guarded: list[int] = []
    has_code_option = False
    at = program + 1
    while at < len(argv):
        option = argv[at]
        if option == "--":
            operands += range(at + 1, len(argv))
            break
        if not option.startswith("-") or option == "-":
            if language.sets_variables and _MAKE_ASSIGNMENT.match(option):
                code.append(at)
            operands.append(at)
            guarded.append(at)
            at += 1
            if language.anywhere:
                continue
            operands += range(at, len(argv))
            break
        name, glued, _ = option.partition("=")
        if name in language.exact:
            has_code_option = True
            code.append(at if glued else at + 1)
            at += 1 if glued else 2
        elif option.startswith("--") or option in language.long_valued:
            has_code_option = has_code_option or name in ("--from-file", "--file")
            at += 1 if glued else 1 + language.long_valued.get(name, 0)
        else:
            letter, rest = _find_significant_letter(language, option)
            if letter and letter in language.stops:
                break
            if letter == HOLE or (letter and letter in language.code):
                code.append(at if rest or letter == HOLE else at + 1)
                if language.code_ends_options:
                    break
            has_code_option = has_code_option or bool(letter and letter in language.code + language.files)
            at += 2 if letter and letter in language.code + language.valued and not rest else 1
    if language.operand is not None and not has_code_option:
        last = None if language.last_operand is None else language.last_operand + 1
        code += operands[language.operand : last]
    return [each for each in code if each < len(argv)], [] if language.has_harmless_options else guarded


def _find_significant_letter(language: Language, option: str) -> tuple[str, str]:
    """Return the first letter of ``-ne`` that takes an argument, ends the options or is a placeholder; and its tail."""
    for place, letter in enumerate(option[1:], start=2):
        if letter in language.code + language.valued + language.glued + language.stops + HOLE:
            return letter, option[place:]
    return "", ""
