"""Which arguments of a command are code: the script of a shell, the ``-c`` of Python, the program of awk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_SHELLS = frozenset({"ash", "bash", "dash", "ksh", "mksh", "sh", "zsh"})


# What these are given is one line for a shell, here or on another machine: options with a value, words before it.
_JOINED = {"ssh": ("bcDEeFIiJLlmOopQRSWw", 1), "watch": ("nq", 0)}


@dataclass(frozen=True, slots=True)
class _Language:
    """How a program is given code. Letters are those of short options; an exact option is compared as a whole."""

    code: str = ""  # the argument is code
    exact: frozenset[str] = frozenset()  # likewise
    valued: str = ""  # the argument is something else
    glued: str = ""  # the rest of the option is its argument
    stops: str = ""  # nothing after it is for this program
    files: str = ""  # of the valued: the code is in that file
    long_valued: Mapping[str, int] = field(default_factory=dict)  # long options, and how many arguments they have
    anywhere: bool = False  # options may follow other arguments
    first: bool = False  # without code in an option, the first argument that is no option is code


_AWK = _Language("e", frozenset({"--source"}), valued="vFfi", files="f", first=True)
_NODE = _Language(
    exact=frozenset({"-e", "-p", "-pe", "--eval", "--print"}),
    valued="rC",
    long_valued={"--require": 1, "--import": 1, "--loader": 1, "--conditions": 1, "--env-file": 1},
)
_OTHER_SHELL = _Language("c", frozenset({"-Command", "-command", "--command", "--commands"}), valued="o")
_LANGUAGES = {
    "awk": _AWK,
    "gawk": _AWK,
    "mawk": _AWK,
    "nawk": _AWK,
    "bun": _NODE,
    "node": _NODE,
    "nodejs": _NODE,
    "csh": _OTHER_SHELL,
    "fish": _OTHER_SHELL,
    "nu": _OTHER_SHELL,
    "powershell": _OTHER_SHELL,
    "pwsh": _OTHER_SHELL,
    "tcsh": _OTHER_SHELL,
    "env": _Language("S", frozenset({"--split-string"}), valued="uC"),
    "jq": _Language(
        valued="fL",
        files="f",
        first=True,
        long_valued={"--arg": 2, "--argjson": 2, "--slurpfile": 2, "--rawfile": 2, "--indent": 1, "--from-file": 1},
    ),
    "flock": _Language("c", frozenset({"--command"}), valued="wE", anywhere=True),
    "lua": _Language("e", valued="l"),
    "luajit": _Language("e", valued="l"),
    "osascript": _Language("e", valued="l"),
    "perl": _Language("eE", valued="I", glued="CDFMVimx0"),
    "php": _Language("rBRE", valued="cdzfF"),
    "runuser": _Language("c", frozenset({"--command"}), valued="sgGuw", anywhere=True),
    "script": _Language("c", frozenset({"--command"}), valued="IOBTEmot", anywhere=True),
    "su": _Language("c", frozenset({"--command"}), valued="sgGw", anywhere=True),
    "python": _Language("c", valued="WX", stops="m", long_valued={"--check-hash-based-pycs": 1}),
    "Rscript": _Language("e"),
    "ruby": _Language("e", valued="IrCE", glued="FKTWix0"),
    "sed": _Language("e", frozenset({"--expression"}), valued="fl", files="f", glued="i", first=True),
}
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?")

# Programs that run the rest of their arguments: their options with an argument, and how many words come before it.
_WRAPPERS = {
    "busybox": ("", 0),
    "chronic": ("", 0),
    "command": ("", 0),
    "doas": ("uC", 0),
    "env": ("uCS", 0),
    "exec": ("a", 0),
    "ionice": ("cn", 0),
    "nice": ("n", 0),
    "nohup": ("", 0),
    "setsid": ("", 0),
    "stdbuf": ("ioe", 0),
    "sudo": ("ugCDhprtTU", 0),
    "time": ("fo", 0),
    "timeout": ("ks", 1),
}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True, slots=True)
class Code:
    """Indexes of a command's arguments that are shell scripts, and those that are code of another language: which."""

    scripts: frozenset[int]
    languages: Mapping[int, str]


def code_in(argv: Sequence[str]) -> Code:
    """Find the code in a command, behind ``env`` or ``docker run image`` too."""
    scripts: set[int] = set()
    languages: dict[int, str] = {}
    main = program_at(argv)
    for index, element in enumerate(argv):
        name = os.path.basename(element)
        if name in _SHELLS:
            script = _script_at(argv, index)
            if script is not None:
                scripts.add(script)
            continue
        language = _LANGUAGES.get("python" if _PYTHON.fullmatch(name) else name)
        # A program known by its first argument could be any word of another's: only the command itself counts.
        if language is not None and (index == main or not language.first):
            for place in _code_at(language, argv, index):
                languages[place] = name
    if main < len(argv) and (found := _JOINED.get(os.path.basename(argv[main]))) is not None:
        languages.update(dict.fromkeys(_joined_at(argv, main, *found), os.path.basename(argv[main])))
    return Code(frozenset(scripts), {place: name for place, name in languages.items() if place not in scripts})


def _joined_at(argv: Sequence[str], at: int, valued: str, words: int) -> Iterator[int]:
    """The arguments that a program joins and gives to a shell: those after its options and its first *words*."""
    at += 1
    while at < len(argv) and argv[at].startswith("-") and len(argv[at]) > 1:
        at += 2 if argv[at][1] != "-" and argv[at][-1] in valued else 1
    yield from range(at + words, len(argv))


def program_at(argv: Sequence[str]) -> int:
    """The index of the program that does the work: after ``env A=1``, ``timeout 30``, ``nice -n 5`` and the like."""
    at = 0
    while at < len(argv) - 1 and (found := _WRAPPERS.get(os.path.basename(argv[at]))) is not None:
        valued, words = found
        inner = at + 1
        while inner < len(argv):
            element = argv[inner]
            if element.startswith("-") and len(element) > 1:
                inner += 2 if element[1] != "-" and element[-1] in valued else 1
            elif _ASSIGNMENT.match(element):
                inner += 1
            elif words:
                words -= 1
                inner += 1
            else:
                break
        if inner >= len(argv):
            break
        at = inner
    return at


def _script_at(argv: Sequence[str], shell: int) -> int | None:
    """The index of the script of ``sh [options] -c SCRIPT``, if it is that."""
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
            at += 2 if option in ("--rcfile", "--init-file") else 1
            continue
        has_script = has_script or (option[0] == "-" and "c" in option)
        at += 1 + option.count("o") + option.count("O")
    return at if has_script and at < len(argv) else None


def _code_at(language: _Language, argv: Sequence[str], program: int) -> list[int]:
    found: list[int] = []
    first = language.first
    at = program + 1
    while at < len(argv):
        option = argv[at]
        if language.anywhere and not option.startswith("--") and (option == "-" or not option.startswith("-")):
            at += 1
            continue
        if not option.startswith("-") or option in ("-", "--"):
            at += option == "--"
            return [*found, at] if first and at < len(argv) else found
        name, glued, _ = option.partition("=")
        if name in language.exact:
            found.append(at if glued else at + 1)
            first = False
            at += 1 if glued else 2
        elif option.startswith("--"):
            first = first and name != "--from-file" and name != "--file"
            at += 1 if glued else 1 + language.long_valued.get(name, 0)
        else:
            letter, rest = _telling_letter(language, option)
            if letter and letter in language.stops:
                return found
            if letter and letter in language.code:
                found.append(at if rest else at + 1)
            first = first and not (letter and letter in language.code + language.files)
            takes_next = letter and letter in language.code + language.valued and not rest
            at += 2 if takes_next else 1
    return [place for place in found if place < len(argv)]


def _telling_letter(language: _Language, option: str) -> tuple[str, str]:
    """The first letter of a cluster (``-ne``) that has an argument or ends the options, and what follows it."""
    for place, letter in enumerate(option[1:], start=2):
        if letter in language.code + language.valued + language.glued + language.stops:
            return letter, option[place:]
    return "", ""
