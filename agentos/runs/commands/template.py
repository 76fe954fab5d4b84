"""Commands with placeholders, and the command that they make for one item.

Placeholders, in each argument on its own:

- ``{}``: the item; a text as it is, anything else as compact JSON.
- ``{id}``: the item's id. ``{#}``: its number in the input, from 1.
- ``{name}`` and ``{user.name}``: that field of an item that is an object; a text as it is, anything else as JSON.

Everything else is left unchanged: ``{"a": 1}``, ``{print $1}``, ``{ }``, ``${HOME}``, anything in doubled braces
(``{{.Names}}``, ``{{name}}``), and ``{name}`` if the item is not an object. If the item is an object without that
field, the item fails: a typing error is more likely than intent. Without any placeholder the item becomes the last
argument, unless the command is a shell with a script.

Placeholders are filled without a shell. If the command itself is a shell with a script (``sh -c SCRIPT``), the item is
passed to the script as an argument, and a placeholder becomes a variable in double quotes; where a shell or a program
in the script could take that for more than data, the placeholder is refused (``shell_rules``). In code of other
languages (``python -c CODE``) every placeholder is refused except ``{#}``, which is digits. Arguments after the script
or code are ordinary ones. A whole argument that begins with ``-`` may be taken for an option by the program (put ``--``
before it); where that option could hold code (``python {}``), such an item is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import AgentOSError, error_fields
from ...util.sanitize import is_utf8
from ..inputs.fields import get_field
from .embedded_code import ShellScript, find_code
from .shell_quoting import PreparedScript, check_shell, prepare_script
from .shell_words import HOLE, NUMBER, UnsupportedScript

MAX_ARGUMENT = 131072 - 1  # bytes of one argument or environment variable on Linux, without the final NUL

_NAME = r"[A-Za-z_]\w*(?:\.\w+)*"
_HOLE = re.compile(rf"\{{\{{(?:#|{_NAME})?\}}\}}|(?<!\$)\{{(?P<name>#|{_NAME}|)\}}")

_IN_SCRIPT = (
    'use "$AGENTOS_ITEM" there, which is always set, or "$1" with the placeholder as an argument after the script: '
    "sh -c '... \"$1\" ...' sh %s"
)
_IN_CODE = (
    "let the code read AGENTOS_ITEM from its environment, or give the placeholder as an argument after the code; "
    "to keep braces as they are, put a space inside: { }"
)
_EVALUATED = (
    "the item would be evaluated there however it is passed; check it first, for instance with: "
    'case "$AGENTOS_ITEM" in ""|*[!0-9]*) exit 2;; esac'
)
_AS_CODE = (
    "the item would be code there however it is passed; let the code take AGENTOS_ITEM from its environment, "
    "or read the item from its standard input"
)
_TO_RUN_ITEMS = "to run each item as a command line of its own: sh -c 'eval \"$AGENTOS_ITEM\"'"
_WIDEST = 100


@error_fields(kw_only=False)
class TemplateError(AgentOSError, ValueError):
    """The command is invalid, or cannot be built for this item; ``hint`` says what to do instead."""

    message: str
    hint: str | None = None

    def describe(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class _Hole:
    name: str  # "" for the whole item
    language: str | None = None  # language of the surrounding code, in which {name} may have its own meaning
    option_of: str | None = None  # a program that would take an item that begins with "-" for an option

    def __str__(self) -> str:
        return f"{{{self.name}}}"

    @property
    def needs_object(self) -> bool:
        return self.name not in ("", "#", "id")


_Element = tuple[str | _Hole, ...]


class Template:
    """A command line with placeholders.

    The constructor raises ``TemplateError`` if the command is invalid, or has a placeholder where an item would be
    code. A command without placeholders gets the item as its last argument, unless *append* is False.
    """

    def __init__(self, argv: Sequence[str], *, append: bool = True) -> None:
        self.argv = tuple(argv)
        self._append = append
        if not self.argv or not self.argv[0]:
            raise TemplateError("no command to run", "give one after --")
        for element in self.argv:
            _check_passable(element, "the command")
        code = find_code([_HOLE.sub(_mark, each) for each in self.argv])
        self._scripts = {index: _ScriptTemplate(self.argv, index, found) for index, found in code.scripts.items()}
        self._elements = [
            ("",) if index in self._scripts else _parts(each, code.languages.get(index), code.operands.get(index))
            for index, each in enumerate(self.argv)
        ]
        self._holes = [part for element in self._elements for part in element if isinstance(part, _Hole)]
        for hole in self._holes:
            if hole.language is not None and not hole.needs_object:
                raise _in_code(hole, hole.language)

    def check(self, item: Any) -> None:
        """Raise ``TemplateError`` if the command cannot be built for *item*, such as the first of a run."""
        self.fill(item, "id", 1)

    def fill(self, item: Any, item_id: str, number: int) -> list[str]:
        """Build the command for one item. Raise ``TemplateError`` if this item does not fit."""
        command: list[str] = []
        for_script: list[str] = []  # arguments that follow $0
        for index, element in enumerate(self._elements):
            if index in self._scripts:
                script, for_script = self._scripts[index].fill(item, item_id, number)
                command.append(script)
                if for_script and index + 1 == len(self._elements):
                    command += [self._scripts[index].shell, *for_script]
                continue
            texts = [part if isinstance(part, str) else _put(part, item, item_id, number) for part in element]
            command.append("".join(texts))
            if len(element) > 1:
                _check_passable(command[-1], f"with this item, argument {index} of the command")
                _check_no_option(command[-1], element)
            if index - 1 in self._scripts:
                command += for_script
        if self._append and not self._scripts and not self._has_place_for(item):
            command.append(format_item(item))
            _check_passable(command[-1], "this item")
        return command

    def _has_place_for(self, item: Any) -> bool:
        has_fields = isinstance(item, dict)
        return any(not hole.needs_object or (has_fields and hole.language is None) for hole in self._holes)

    @staticmethod
    def format_item(item: Any) -> str:
        """Format the item as ``{}`` and ``AGENTOS_ITEM`` have it."""
        return format_item(item)


def fill_text(text: str, item: Any, item_id: str, number: int) -> str:
    """Fill the placeholders of *text*, such as a prompt. Raise ``TemplateError`` if the item does not fit."""
    parts = _parts(text, None, None)
    return "".join(part if isinstance(part, str) else _put(part, item, item_id, number) for part in parts)


def has_placeholder(text: str) -> bool:
    """True if *text* has a placeholder."""
    return any(match["name"] is not None for match in _HOLE.finditer(text))


def format_item(item: Any) -> str:
    """Return a text unchanged, anything else as compact JSON."""
    if isinstance(item, str):
        return item
    import json

    text = json.dumps(item, ensure_ascii=False, separators=(",", ":"))
    return text if is_utf8(text) else json.dumps(item, separators=(",", ":"))


def find_passing_problem(text: str, *, room: int = MAX_ARGUMENT) -> str | None:
    """Return why *text* cannot be an argument or a variable's value, or None; *room* is in bytes."""
    if "\0" in text:
        return "has a NUL character, which no argument can hold"
    if not text.isascii() and not is_utf8(text):
        return "has half a surrogate pair, which no argument can hold"
    size = len(text) if text.isascii() else len(text.encode())
    if size > room:
        return f"is {size:,} bytes long, and an argument can have {room:,}"
    return None


class _ScriptTemplate:
    """The script of ``sh -c SCRIPT`` with its placeholders. For items without fields, ``{name}`` is plain text."""

    def __init__(self, argv: Sequence[str], index: int, found: ShellScript) -> None:
        self.shell = argv[found.shell]
        self._script = argv[index]
        self._found = found
        self._has_name = index + 1 < len(argv)
        self._for_text = self._prepare(is_object=False)
        if isinstance(self._for_text, TemplateError):
            raise self._for_text
        self._for_objects = self._prepare(is_object=True)

    def fill(self, item: Any, item_id: str, number: int) -> tuple[str, list[str]]:
        """Return the script for one item, and the arguments that it takes after ``$0``."""
        prepared = self._for_objects if isinstance(item, dict) else self._for_text
        if isinstance(prepared, TemplateError):
            for match in _HOLE.finditer(self._script):
                if match["name"]:
                    _put(_Hole(match["name"]), item, item_id, number)  # report a missing field first
            raise prepared
        arguments: list[str] = []
        for name in prepared.holes:
            hole = _Hole(name, option_of="an interpreter in the script" if name in prepared.guarded else None)
            arguments.append(_put(hole, item, item_id, number))
            _check_passable(arguments[-1], f"with this item, {hole} in the script")
            _check_no_option(arguments[-1], ("", hole))
        script = prepared.text(number)
        _check_passable(script, "the script")
        return script, arguments

    def _prepare(self, *, is_object: bool) -> PreparedScript | TemplateError:
        """Prepare the script for items that are objects, or that are not; return the error if it cannot be used."""
        holes: list[str] = []

        def mark(match: re.Match[str]) -> str:
            hole = None if match["name"] is None else _Hole(match["name"])
            if hole is None or (hole.needs_object and not is_object):
                return match[0]
            if hole.name == "#":
                return NUMBER  # digits are safe anywhere
            holes.append(hole.name)
            return HOLE

        marked = _HOLE.sub(mark, self._script)
        if marked.strip() == HOLE:
            hole = _Hole(holes[0])
            return TemplateError(f"the whole script is {hole}, so the item would be a program's name", _TO_RUN_ITEMS)
        try:
            if holes:
                check_shell(self._found, has_name=self._has_name)
            return prepare_script(marked, holes)
        except UnsupportedScript as refusal:
            return _misplaced(marked, [f"{{{name}}}" for name in holes], refusal)


def _mark(match: re.Match[str]) -> str:
    """Return the stand-in for a placeholder during the search for code."""
    return match[0] if match["name"] is None else "1" if match["name"] == "#" else HOLE


def _parts(element: str, language: str | None, option_of: str | None) -> _Element:
    parts: list[str | _Hole] = []
    end = 0
    for match in _HOLE.finditer(element):
        if match["name"] is not None:
            is_number = match["name"] == "#"
            hole = _Hole(match["name"], None if is_number else language, option_of)
            parts += [element[end : match.start()], hole]
            end = match.end()
    return (*parts, element[end:])


def _put(hole: _Hole, item: Any, item_id: str, number: int) -> str:
    """Return the text for *hole*; its own spelling if it is not a placeholder for this item."""
    if hole.name == "":
        return format_item(item)
    if hole.name == "#":
        return str(number)
    if hole.name == "id":
        return item_id
    if not isinstance(item, dict):
        return str(hole)
    try:
        text = format_item(get_field(item, hole.name))
    except KeyError:
        if hole.language is not None:
            return str(hole)
        raise _unknown(hole, item) from None
    if hole.language is not None:
        raise _in_code(hole, hole.language)
    return text


def _check_no_option(text: str, element: _Element) -> None:
    """Refuse an item that begins with "-" where an interpreter would take it for an option, which may be code."""
    hole = element[1]
    if isinstance(hole, _Hole) and element[0] == "" and hole.option_of is not None and text.startswith("-"):
        raise TemplateError(
            f"with this item, {hole} begins with '-', and {hole.option_of} would take it for an option",
            f"put -- before {hole}, if the program knows that, or ./ if it is a file",
        )


def _in_code(hole: _Hole, language: str) -> TemplateError:
    return TemplateError(f"{hole} stands in the code for {language}, where an item would be read as code", _IN_CODE)


def _misplaced(marked: str, holes: list[str], refusal: UnsupportedScript) -> TemplateError:
    """Build the error for a refused script, with the position and a suggestion."""
    at = min(refusal.at, max(len(marked) - 1, 0))
    is_hole = marked[at : at + 1] == HOLE
    hole = holes[marked.count(HOLE, 0, at)] if is_hole else holes[0]
    if is_hole:
        message = f"in the shell script {hole} stands {refusal.what}: it cannot be put in safely"
    else:
        message = f"{hole} cannot be put into the shell script safely: {refusal.what}"
    advice = [] if refusal.instead is None else [f"write {refusal.instead.replace('{hole}', hole)}"]
    advice.append(_AS_CODE if refusal.is_code else _EVALUATED if refusal.is_evaluated else _IN_SCRIPT % hole)
    return TemplateError(message, "\n".join([*_format_position(marked, holes, at), *advice]))


def _format_position(marked: str, holes: list[str], at: int) -> tuple[str, str]:
    """Return the script's line at that position, and a caret below it."""
    spelled = iter(holes)
    texts = [next(spelled) if char == HOLE else "{#}" if char == NUMBER else char for char in marked]
    begin = marked.rfind("\n", 0, at) + 1
    end = marked.find("\n", at)
    before = "".join(texts[begin:at])
    line = before + "".join(texts[at : end if end >= 0 else None])
    cut = max(0, len(before) - _WIDEST // 2)
    shown = ("... " if cut else "") + line[cut:][:_WIDEST]
    caret = " " * (len(before) - cut + (4 if cut else 0)) + "^" * max(1, len(texts[at]) if at < len(texts) else 1)
    return shown.replace("\t", " "), caret


def _unknown(hole: _Hole, item: dict[str, Any]) -> TemplateError:
    names = [_shown(str(name)) for name in list(item)[:10]]
    more = ", ..." if len(item) > len(names) else ""
    return TemplateError(
        f"no field {hole.name!r} for {hole} in this item; it has {', '.join(names) or 'none'}{more}",
        f"to keep braces as they are, put a space inside: {{ {hole.name} }}",
    )


def _check_passable(text: str, what: str) -> None:
    why = find_passing_problem(text)
    if why is not None:
        hint = "give the item on standard input: --stdin" if "bytes long" in why else None
        raise TemplateError(f"{what} {why}", hint)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
