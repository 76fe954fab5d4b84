"""Rewrite a shell script with placeholders so that it takes the items as arguments.

``sh -c 'echo {}'`` becomes ``sh -c 'agentos_1=$1; shift 1; echo "$agentos_1"' sh ITEM``: the script is the same for all
items and contains none of them. ``shell_grammar`` finds the placeholders, ``shell_rules`` decides whether each is safe.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .embedded_code import ShellScript
from .shell_grammar import read_script
from .shell_rules import check_script, check_shell_options
from .shell_words import HOLE, NUMBER, UnsupportedScript

_RESERVED = re.compile(r"agentos_[0-9]")


@dataclass(frozen=True, slots=True)
class PreparedScript:
    """A script with variables in place of the placeholders."""

    source: str  # NUMBER stands for the item's number
    holes: tuple[str, ...]  # names, in the order of the script's first arguments
    guarded: frozenset[str]  # names whose item must not begin with "-": an interpreter would take it for an option

    def text(self, number: int) -> str:
        return self.source.replace(NUMBER, str(number))


def prepare_script(source: str, names: Sequence[str]) -> PreparedScript:
    """Replace each ``HOLE`` in *source* by a variable for its name. Raise ``UnsupportedScript`` if that is unsafe."""
    if not names:
        return PreparedScript(source, (), frozenset())
    if (reserved := _RESERVED.search(source)) is not None:
        raise UnsupportedScript(reserved.start(), "variables with such names are reserved for placeholders")
    script = read_script(source)
    guarded = check_script(script)
    holes = tuple(dict.fromkeys(names))
    parts = source.split(HOLE)
    places = [at for at, char in enumerate(source) if char == HOLE]
    text = parts[0]
    for place, name, following in zip(places, names, parts[1:], strict=True):
        if place not in script.quotes:
            raise UnsupportedScript(place, "where its meaning is not clear")
        quote = script.quotes[place]
        text += f'{quote}"$agentos_{holes.index(name) + 1}"{quote}{following}'
    numbers = range(1, len(holes) + 1)
    takes = "".join(f"agentos_{each}={f'${each}' if each < 10 else f'${{{each}}}'}; " for each in numbers)
    return PreparedScript(
        f"{takes}shift {len(holes)}; {text}",
        holes,
        frozenset(name for place, name in zip(places, names, strict=True) if place in guarded),
    )


def check_shell(found: ShellScript, *, has_name: bool) -> None:
    """Raise ``UnsupportedScript`` if the shell may read the script differently, or get other arguments."""
    check_shell_options(found.options)
    if found.hidden_by is not None:
        raise UnsupportedScript(0, f"it is not known how {found.hidden_by!r} passes it on to the shell")
    if found.appended_by is not None and not has_name:
        raise UnsupportedScript(
            0, f"{found.appended_by} puts its first argument in place of $0", "a name after the script: sh"
        )
