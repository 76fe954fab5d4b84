"""The line of every value of a TOML text is found."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentos.cli.config.toml_lines import find_lines


def ways_in(value: Any, way: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    """The way to everything in a document, tables included."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {way} - {()} | {found for name, inner in pairs for found in ways_in(inner, (*way, name))}


def test_values_of_tables_and_of_arrays_of_tables_are_found() -> None:
    text = """# a comment with [brackets] and = signs

[run]
parallel = 3   # [[credentials]]
"quoted key" = 1

[[credentials]]
name = "alice"

[credentials.env]
A = "b"

[[credentials]]
name = 'bob'
rpm = 60
"""
    assert find_lines(text) == {
        ("run",): 3,
        ("run", "parallel"): 4,
        ("run", "quoted key"): 5,
        ("credentials",): 7,
        ("credentials", 0): 7,
        ("credentials", 0, "name"): 8,
        ("credentials", 0, "env"): 10,
        ("credentials", 0, "env", "A"): 11,
        ("credentials", 1): 13,
        ("credentials", 1, "name"): 14,
        ("credentials", 1, "rpm"): 15,
    }


def test_strings_and_arrays_over_several_lines_are_passed_over() -> None:
    text = '''a = """
[not.a.table]
b = 1 \\""" still inside
two quotes at the end"""""
c = \'\'\'
d = 2\'\'\'\'
list = [
  1, # one ]
  [2, 3],
  { x = 1, y = "}" },
]
run.parallel = 4
date = 2026-11-15 07:00:00
last = true'''
    lines = find_lines(text)

    assert lines[("c",)] == 5
    assert lines[("list", 1, 1)] == 9
    assert lines[("list", 2, "y")] == 10
    assert lines[("run", "parallel")] == 12
    assert lines[("last",)] == 14
    assert set(lines) == ways_in(tomllib.loads(text))


def test_escapes_in_keys_are_understood() -> None:
    assert find_lines('\n"a\\"\\u00e9]" = 1') == {('a"é]',): 2}


def test_an_empty_text_has_no_lines() -> None:
    assert find_lines("") == {}
    assert find_lines("\n# nothing\n") == {}


# -- any document -----------------------------------------------------------------------------------------------------

NAMES = st.text("abc_-1", min_size=1, max_size=3) | st.text(st.characters(codec="utf-8"), max_size=3)
SCALARS = st.booleans() | st.integers(-9, 9) | st.text(st.characters(codec="utf-8"), max_size=6) | st.just(1.5)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)


def quoted(text: str) -> str:
    escaped = "".join(c if c not in '"\\' and c.isprintable() else f"\\U{ord(c):08x}" for c in text)
    return f'"{escaped}"'


def inline(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value) if len(value) % 2 else f'""{quoted(value)}""'
    if isinstance(value, list):
        return "[\n" + "".join(f"  # ] \n {inline(each)},\n" for each in value) + "]"
    if isinstance(value, dict):
        # Before TOML 1.1 braces hold no line break of their own, but arrays in them may.
        return "{" + ", ".join(f"{quoted(name)} = {inline(each)}" for name, each in value.items()) + "}"
    return repr(value)


@given(st.dictionaries(NAMES, VALUES, max_size=4), st.lists(st.dictionaries(NAMES, VALUES, max_size=3), max_size=3))
def test_in_any_document_everything_is_found_in_the_line_where_it_is_written(
    pairs: dict[str, Any], tables: list[dict[str, Any]]
) -> None:
    pairs = {name: value for name, value in pairs.items() if name != "tables"}
    expected: dict[tuple[str | int, ...], int] = {}
    text = ""
    for name, value in pairs.items():
        expected[(name,)] = text.count("\n") + 1
        text += f"{quoted(name)} = {inline(value)} # {name!r}\n"
    for number, table in enumerate(tables):
        expected[("tables", number)] = text.count("\n") + 1
        text += "[[ tables ]]\n\n"
        for name, value in table.items():
            expected[("tables", number, name)] = text.count("\n") + 1
            text += f" {quoted(name)}={inline(value)}\n"
    document = tomllib.loads(text)

    lines = find_lines(text)

    assert {way: lines.get(way) for way in expected} == expected
    assert set(lines) == ways_in(document)
