"""A command with holes in it, and the command that one item makes of it.

What is a hole, in each argument on its own:

- ``{}``: the item; a text as it is, anything else as compact JSON.
- ``{id}``: the item's id. ``{#}``: its number in the input, from 1.
- ``{name}`` and ``{user.name}``: that field of an item that is an object; a text as it is, anything else as JSON.

Everything else passes through untouched: ``{"a": 1}``, ``{print $1}``, ``{ }``, ``${HOME}``, whatever stands in doubled
braces (``{{.Names}}``, ``{{name}}``), and ``{name}`` if the item is no object. If the item is an object without that
field, it is an error of this item: more likely a slip than meant. Without any hole the item becomes the last argument,
unless the command is a shell with a script.

No shell is ever started to fill a hole. Where the command itself is a shell with a script (``sh -c SCRIPT``), a hole in
the script becomes exactly one quoted word, and one that stands where no quoting could keep the item from being read as
code is refused. In the code of other languages (``python -c CODE``) every hole is refused but ``{#}``, which is digits.
The arguments after script or code are ordinary, and so is what a program does with its arguments: a whole argument that
begins with ``-`` may be taken for an option (put ``--`` before it), and ``ssh`` gives its arguments to another shell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import AgentOSError
from ..inputs.fields import field_of
from .code import code_in
from .shell import Trouble, quoted, troubles

LONGEST = 131072 - 1  # bytes of one argument or environment variable on Linux, without the NUL that ends it

_NAME = r"[A-Za-z_]\w*(?:\.\w+)*"
_HOLE = re.compile(rf"\{{\{{(?:#|{_NAME})?\}}\}}|(?<!\$)\{{(?P<name>#|{_NAME}|)\}}")

_IN_SCRIPT = (
    'use "$AGENTOS_ITEM" there, which is always set, or "$1" with the placeholder as an argument after the script: '
    "sh -c '... \"$1\" ...' sh %s"
)
_IN_CODE = (
    "let the code read AGENTOS_ITEM from its environment, or give the placeholder as an argument after the code; "
    "braces that are meant as they are want a space inside: { }"
)
_EVALUATED = (
    "the shell would evaluate there what the item says, quoted or not; look at it first, for instance with: "
    'case "$AGENTOS_ITEM" in *[!0-9]*) exit 2;; esac'
)
_TO_RUN_ITEMS = "to run each item as a command line of its own: sh -c 'eval \"$AGENTOS_ITEM\"'"


class TemplateError(AgentOSError, ValueError):
    """The command cannot be used like that, or not for this item; ``hint`` says what to do instead."""

    message: str
    hint: str | None

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message=message, hint=hint)

    def describe(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class _Hole:
    name: str  # "" for the whole item
    is_word: bool = False  # of a shell script
    trouble: Trouble | None = None  # why nothing may be put here
    is_code: bool = False  # of another language, where {name} has a meaning of its own

    def __str__(self) -> str:
        return f"{{{self.name}}}"


_Element = tuple[str | _Hole, ...]


class Template:
    """A command line with holes. Raises ``TemplateError`` if it is none, or has a hole where an item would be code.

    Where a plain command has none, the item becomes its last argument, if *append* is left as it is.
    """

    def __init__(self, argv: Sequence[str], *, append: bool = True) -> None:
        self.argv = tuple(argv)
        self._append = append
        if not self.argv or not self.argv[0]:
            raise TemplateError("no command to run", "give one after --")
        for element in self.argv:
            _check_passable(element, "the command")
        code = code_in(self.argv)
        self._has_script = bool(code.scripts)
        self._elements: list[_Element] = []
        for index, element in enumerate(self.argv):
            if index in code.scripts:
                self._elements.append(_script_parts(element))
            else:
                self._elements.append(_parts(element, code.languages.get(index)))
        self._holes = [part for element in self._elements for part in element if isinstance(part, _Hole)]
        for hole in self._holes:
            if hole.trouble is not None and hole.name in ("", "id"):
                raise _misplaced(hole, hole.trouble)

    def check(self, item: Any) -> None:
        """Raise ``TemplateError`` if the command cannot be made for *item*: of a run, look at the first."""
        self.fill(item, "id", 1)

    def fill(self, item: Any, item_id: str, number: int) -> list[str]:
        """The command for one item. Raises ``TemplateError``, which concerns this item only."""
        command = list(self.argv)
        for index, element in enumerate(self._elements):
            if len(element) > 1:
                texts = (part if isinstance(part, str) else _put(part, item, item_id, number) for part in element)
                command[index] = "".join(texts)
                _check_passable(command[index], f"with this item, argument {index} of the command")
        if self._append and not self._has_script and not self._has_place_for(item):
            command.append(text_of(item))
            _check_passable(command[-1], "this item")
        return command

    def _has_place_for(self, item: Any) -> bool:
        has_fields = isinstance(item, dict)
        return any(hole.name in ("", "#", "id") or (has_fields and not hole.is_code) for hole in self._holes)

    @staticmethod
    def text_of(item: Any) -> str:
        """What ``{}`` and ``AGENTOS_ITEM`` stand for."""
        return text_of(item)


def text_of(item: Any) -> str:
    """A text as it is, anything else as compact JSON."""
    if isinstance(item, str):
        return item
    import json

    text = json.dumps(item, ensure_ascii=False, separators=(",", ":"))
    return text if _is_utf8(text) else json.dumps(item, separators=(",", ":"))


def why_not_passable(text: str, *, room: int = LONGEST) -> str | None:
    """Why *text* cannot be an argument or the value of a variable, or None if it can; *room* is in bytes."""
    if "\0" in text:
        return "has a NUL character, which no argument can hold"
    if not text.isascii() and not _is_utf8(text):
        return "has half a surrogate pair, which no argument can hold"
    size = len(text) if text.isascii() else len(text.encode())
    if size > room:
        return f"is {size:,} bytes long, and an argument can have {room:,}"
    return None


def _parts(element: str, language: str | None) -> _Element:
    def hole(name: str) -> _Hole:
        if language is None or name == "#":
            return _Hole(name)
        return _Hole(name, trouble=Trouble(f"in the code for {language}"), is_code=True)

    parts: list[str | _Hole] = []
    end = 0
    for match in _HOLE.finditer(element):
        if match["name"] is not None:
            parts += [element[end : match.start()], hole(match["name"])]
            end = match.end()
    return (*parts, element[end:])


def _script_parts(script: str) -> _Element:
    matches = [match for match in _HOLE.finditer(script) if match["name"] is not None]
    if len(matches) == 1 and matches[0][0] == script.strip() and matches[0]["name"] != "#":
        raise TemplateError(
            f"the whole script is {script.strip()}, so the item would be a program's name", _TO_RUN_ITEMS
        )
    parts: list[str | _Hole] = []
    end = 0
    for match, trouble in zip(matches, troubles(script, [match.span() for match in matches]), strict=True):
        is_number = match["name"] == "#"  # digits, which are harmless anywhere
        parts += [
            script[end : match.start()],
            _Hole(match["name"], is_word=not is_number, trouble=None if is_number else trouble),
        ]
        end = match.end()
    return (*parts, script[end:])


def _put(hole: _Hole, item: Any, item_id: str, number: int) -> str:
    """What goes into *hole*; if it is none for this item, its own spelling."""
    if hole.name == "":
        text = text_of(item)
    elif hole.name == "#":
        text = str(number)
    elif hole.name == "id":
        text = item_id
    elif not isinstance(item, dict):
        return str(hole)
    else:
        try:
            text = text_of(field_of(item, hole.name))
        except KeyError:
            if hole.is_code:
                return str(hole)
            raise _unknown(hole, item) from None
        if hole.trouble is not None:
            raise _misplaced(hole, hole.trouble)
    return quoted(text) if hole.is_word else text


def _misplaced(hole: _Hole, trouble: Trouble) -> TemplateError:
    if hole.is_code:
        return TemplateError(f"{hole} stands {trouble.where}, where an item would be read as code", _IN_CODE)
    hint = _EVALUATED if trouble.is_evaluated else _IN_SCRIPT % hole
    return TemplateError(f"in the shell script {hole} stands {trouble.where}: it cannot be quoted safely", hint)


def _unknown(hole: _Hole, item: dict[str, Any]) -> TemplateError:
    names = [_shown(str(name)) for name in list(item)[:10]]
    more = ", ..." if len(item) > len(names) else ""
    return TemplateError(
        f"no field {hole.name!r} for {hole} in this item; it has {', '.join(names) or 'none'}{more}",
        f"braces that are meant as they are want a space inside: {{ {hole.name} }}",
    )


def _check_passable(text: str, what: str) -> None:
    why = why_not_passable(text)
    if why is not None:
        hint = "give the item on standard input: --stdin" if "bytes long" in why else None
        raise TemplateError(f"{what} {why}", hint)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
