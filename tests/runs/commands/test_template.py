"""Commands with placeholders: syntax, substitution, and that no item is ever read as code."""

from __future__ import annotations

import json
import pickle
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.runs.commands.template import MAX_ARGUMENT, Template, TemplateError, find_passing_problem, format_item

ITEM = {"name": "ann", "n": 5, "user": {"mail": "a@b"}, "list": [1, {"x": None}], "id": "own", "a.b": "dotted"}


def filled(argv: list[str], item: Any = "item", item_id: str = "the-id", number: int = 3) -> list[str]:
    return Template(argv).fill(item, item_id, number)


def refused(argv: list[str]) -> TemplateError:
    with pytest.raises(TemplateError) as caught:
        Template(argv)
    return caught.value


# -- holes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("element", "result"),
    [
        ("{}", "item"),
        ("--in={}.txt", "--in=item.txt"),
        ("{}{}", "itemitem"),
        ("{id}", "the-id"),
        ("out-{#}.json", "out-3.json"),
        ("{id}/{#}: {}", "the-id/3: item"),
    ],
)
def test_a_hole_is_filled_wherever_it_stands_in_an_argument(element: str, result: str) -> None:
    assert filled(["cmd", element]) == ["cmd", result]


@pytest.mark.parametrize(
    ("element", "result"),
    [
        ("{name}", "ann"),
        ("{n}", "5"),
        ("{user.mail}", "a@b"),
        ("{user}", '{"mail":"a@b"}'),
        ("{list.1.x}", "null"),
        ("{a.b}", "dotted"),
        ("{id}", "the-id"),
        ("{name}-{n}", "ann-5"),
    ],
)
def test_a_field_of_an_object_is_filled_in_by_name_or_path(element: str, result: str) -> None:
    assert filled(["cmd", element], ITEM) == ["cmd", result]


@pytest.mark.parametrize(
    ("item", "text"),
    [("as is\n", "as is\n"), ({"a": "é", "b": [1]}, '{"a":"é","b":[1]}'), (5, "5"), (None, "null"), ([], "[]")],
)
def test_text_stands_for_itself_and_all_else_for_its_json(item: Any, text: str) -> None:
    assert filled(["cmd", "{}"], item) == ["cmd", text]
    assert (format_item(item), Template.format_item(item)) == (text, text)


def test_json_with_half_a_surrogate_pair_is_escaped() -> None:
    assert filled(["cmd", "{}"], ["\ud800é"]) == ["cmd", '["\\ud800\\u00e9"]']


@pytest.mark.parametrize(
    "element",
    [
        '{"a": 1}',
        '{"a": {"b": 1}}',
        "{print $1}",
        "{ }",
        "{ name }",
        "${HOME}",
        "${}",
        "{{.Names}}",
        "{{}}",
        "{{name}}",
        "{{#}}",
        "{0}",
        "{a,b}",
        "{a-b}",
        "{1..3}",
        "{",
        "}{",
        "{.}",
        "{a.}",
    ],
)
def test_other_braces_pass_through_untouched(element: str) -> None:
    for item in ("item", ITEM):
        assert filled(["cmd", element, "{#}"], item)[1] == element


@pytest.mark.parametrize("item", ["text", 5, None, ["name"]])
def test_a_name_is_no_hole_for_an_item_without_fields(item: Any) -> None:
    assert filled(["cmd", "{name}", "{}"], item)[1] == "{name}"


def test_a_name_that_an_object_does_not_have_is_an_error_of_that_item() -> None:
    template = Template(["cmd", "{nmae}"])

    with pytest.raises(TemplateError) as caught:
        template.check({"name": 1, "text": 2})

    assert str(caught.value) == "no field 'nmae' for {nmae} in this item; it has 'name', 'text'"
    assert "{ nmae }" in str(caught.value.hint)
    assert template.fill({"nmae": "x"}, "id", 1) == ["cmd", "x"]


def test_what_an_item_holds_is_not_filled_in_again() -> None:
    assert filled(["cmd", "{}", "{id}"], "{id} {#} {}", "{}") == ["cmd", "{id} {#} {}", "{}"]
    assert filled(["cmd", "{}"], "{}") == ["cmd", "{}"]


def test_a_command_without_holes_gets_the_item_last() -> None:
    assert filled(["cmd", "-x"]) == ["cmd", "-x", "item"]
    assert filled(["cmd", "{name}"]) == ["cmd", "{name}", "item"]


def test_a_command_with_any_hole_does_not() -> None:
    for hole in ("{}", "{id}", "{#}"):
        assert len(filled(["cmd", hole])) == 2
    assert filled(["cmd", "{name}"], {"name": "{name}"}) == ["cmd", "{name}"]


def test_a_shell_script_without_holes_stays_as_it_is() -> None:
    argv = ["sh", "-c", 'echo "$AGENTOS_ITEM"']

    assert filled(argv) == argv


# -- what cannot be an argument -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("a\0b", "NUL"),
        ("\ud800", "half a surrogate pair"),
        ("a\udcff", "half a surrogate pair"),
        ("x" * (MAX_ARGUMENT + 1), "131,072 bytes long"),
        ("é" * 65536, "131,072 bytes long"),
    ],
)
@pytest.mark.parametrize("argv", [["cmd", "{}"], ["cmd"], ["sh", "-c", "echo {}"]])
def test_an_item_that_no_argument_can_hold_is_an_error_of_that_item(argv: list[str], item: str, message: str) -> None:
    with pytest.raises(TemplateError) as caught:
        filled(argv, item)

    assert message.split()[-1] in str(caught.value)
    assert item not in str(caught.value)
    assert ("--stdin" in str(caught.value.hint)) is ("long" in message)


def test_the_longest_argument_is_one_that_the_system_takes() -> None:
    ended = subprocess.run([*filled(["true"], "x" * MAX_ARGUMENT)], check=False, timeout=20)

    assert ended.returncode == 0
    assert find_passing_problem("x" * 11, room=10) == "is 11 bytes long, and an argument can have 10"


@pytest.mark.parametrize("argv", [[], [""], ["cmd", "a\0b"]])
def test_what_is_no_command_is_refused(argv: list[str]) -> None:
    assert str(refused(argv))


# -- shells -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [["sh", "script.sh", "-c", "'{}'"], ["bash", "-e", "script", "'{}'"], ["bash", "-s", "'{}'"], ["sh", "+c", "'{}'"]],
)
def test_a_shell_with_a_script_file_has_ordinary_arguments(argv: list[str]) -> None:
    assert filled(argv)[-1] == "'item'"


# -- other languages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        ["python", "-c", "print('{}')"],
        ["/usr/bin/python3.12", "-W", "ignore", "-Ic", "print({id})"],
        ["python3", "-cprint('{}')"],
        ["docker", "run", "image", "python", "-c", "{}"],
        ["perl", "-Mstrict", "-ne", "print '{}'"],
        ["perl", "-I", "lib", "-e", "{}"],
        ["ruby", "-rjson", "-e", "puts '{}'"],
        ["node", "-e", "x('{}')"],
        ["node", "--require", "x", "-pe", "'{}'"],
        ["node", "--eval={}"],
        ["php", "-r", "echo '{}';"],
        ["awk", "{}"],
        ["awk", "-F", ",", "-v", "x=1", "BEGIN { print '{}' }", "file"],
        ["gawk", "-F:", "--", "/{}/"],
        ["sed", "-n", "s/x/{}/p", "file"],
        ["sed", "-e", "p", "-e", "s/x/{}/", "file"],
        ["env", "A=1", "sed", "-i.bak", "s/x/{}/"],
        ["jq", "-r", ".{}"],
        ["jq", "--arg", "a", "b", ".x == {id}"],
        ["timeout", "30", "jq", '.["{}"]'],
        ["fish", "-c", "echo {}"],
        ["pwsh", "-Command", "echo {}"],
        ["env", "-S", "echo {}"],
        ["xonsh", "-c", "echo {}"],
        ["somesh", "-c", "echo {}"],
        ["deno", "eval", "{}"],
        ["julia", "-e", "{}"],
        ["sqlite3", "db", "select '{}'"],
        ["psql", "-d", "db", "-c", "select '{}'"],
        ["vim", "-c", "{}"],
        ["make", "-j2", "X={}"],
        ["git", "-c", "alias.x={}", "x"],
        ["ssh", "-o", "ProxyCommand={}", "host"],
        ["rsync", "-e", "{}", "a", "b"],
        ["tar", "xf", "a.tar", "--to-command={}"],
        ["find", ".", "-exec", "{}", ";"],
        ["sed", "p", "file", "-e", "{}"],
        ["python", "-{}"],
        ["docker", "run", "--entrypoint", "sh", "image", "-c", "echo {}"],
        ["docker", "run", "--entrypoint=/bin/sh", "image", "-ec", "echo {}"],
    ],
    ids=" ".join,
)
def test_a_hole_in_code_of_another_language_is_refused(argv: list[str]) -> None:
    error = refused(argv)

    assert "in the code for" in str(error)
    assert "AGENTOS_ITEM" in str(error.hint)


@pytest.mark.parametrize(
    "argv",
    [
        ["python", "-c", "import sys; print({ }, sys.argv)", "{}"],
        ["python", "train.py", "-c", "{}"],
        ["python", "-m", "tool", "-c", "{}"],
        ["python", "{}"],
        ["perl", "script.pl", "-e", "{}"],
        ["awk", "-v", "x={}", "{ print x }"],
        ["awk", "-f", "prog.awk", "{}"],
        ["awk", "{print $1}", "{}"],
        ["sed", "-e", "p", "{}"],
        ["sed", "-n", "p", "{}"],
        ["jq", "--arg", "x", "{}", ".[$x]", "file"],
        ["jq", "-f", "filter.jq", "{}"],
        ["grep", "-n", "awk", "{}"],
        ["node", "app.js", "-e", "{}"],
        ["python", "-c", "print({#})"],
        ["deno", "run", "x.ts", "{}"],
        ["git", "commit", "-c", "HEAD", "-m", "{}"],
        ["make", "{}"],
        ["sqlite3", "{}", ".tables"],
        ["find", "{}", "-name", "x", "-exec", "cat", "y", ";"],
        ["nice", "-n", "{}", "true"],
    ],
    ids=" ".join,
)
def test_what_is_no_code_is_filled(argv: list[str]) -> None:
    assert filled(argv) == [each.replace("{}", "item").replace("{#}", "3") for each in argv]


def test_a_name_in_code_is_code_unless_the_item_has_that_field() -> None:
    template = Template(["python", "-c", 'print(f"{name}")', "{#}"])

    assert template.fill({"other": 1}, "id", 1)[2] == 'print(f"{name}")'
    with pytest.raises(TemplateError, match=r"\{name\} stands in the code for python"):
        template.check({"name": 1})


# -- the whole ----------------------------------------------------------------------------------------------------


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=4), st.text())
def test_any_command_is_filled_or_refused(argv: list[str], item: str) -> None:
    try:
        command = Template(["cmd", *argv]).fill(item, "id", 1)
    except TemplateError as error:
        assert str(error)  # noqa: PT017 - either is fine
        return
    assert len(command) in (len(argv) + 1, len(argv) + 2)


@given(st.dictionaries(st.text(), st.integers()))
def test_an_object_comes_out_as_the_json_it_was(item: dict[str, int]) -> None:
    if find_passing_problem(format_item(item)) is None:
        assert json.loads(filled(["cmd", "{}"], item)[1]) == item


def test_a_template_error_travels() -> None:
    error = pickle.loads(pickle.dumps(refused(["sh", "-c", "echo `{}`"])))

    assert isinstance(error, TemplateError)
    assert "inside `...`" in str(error)
    assert "$AGENTOS_ITEM" in str(error.hint)


@pytest.mark.parametrize(
    "argv",
    [
        ["su", "ann", "-c", 'echo "{}"'],
        ["script", "-c", "echo {}"],
        ["flock", "lock", "-c", "echo {}"],
        ["watch", "-n", "2", "echo {}"],
        ["ssh", "-p", "22", "host", "cat {}"],
        ["ssh", "host", "cat", "{}"],
        ["timeout", "5", "ssh", "host", "cat", "{}"],
    ],
)
def test_what_another_program_gives_to_a_shell_is_code_too(argv: list[str]) -> None:
    with pytest.raises(TemplateError, match="read as code"):
        Template(argv)


@pytest.mark.parametrize(
    ("argv", "item"),
    [
        (["python", "{}"], "-cimport os"),
        (["perl", "-w", "{}"], "-e1"),
        (["sed", "-n", "p", "{}"], "-e1e touch x"),
        (["node", "{}"], "--eval=1"),
        (["ssh", "{}", "uptime"], "-oProxyCommand=touch x"),
        (["env", "{}", "true"], "-Stouch x"),
        (["timeout", "{}"], "-s"),
        (["sh", "{}", "{}"], "-c"),
    ],
)
def test_an_item_that_would_be_an_option_with_code_is_an_error_of_that_item(argv: list[str], item: str) -> None:
    template = Template(argv)

    assert template.fill("plain", "id", 1)
    with pytest.raises(TemplateError, match="would take it for an option"):
        template.fill(item, "id", 1)


@pytest.mark.parametrize(
    "argv", [["python", "x.py", "{}"], ["python", "-c", "pass", "{}"], ["sed", "-n", "p", "--", "{}"]]
)
def test_an_item_that_begins_with_a_dash_is_data_where_no_option_can_stand(argv: list[str]) -> None:
    assert Template(argv).fill("-e1", "id", 1)[-1] == "-e1"


@pytest.mark.parametrize("argv", [["ssh", "{}", "uptime"], ["su", "{}"], ["flock", "{}", "true"]])
def test_an_item_may_be_an_ordinary_argument_of_such_a_program(argv: list[str]) -> None:
    assert Template(argv).fill("x", "x", 1) == [each.replace("{}", "x") for each in argv]


def test_an_item_that_comes_otherwise_is_not_put_at_the_end() -> None:
    assert Template(["cat"], append=False).fill("x", "x", 1) == ["cat"]
    assert Template(["cat"]).fill("x", "x", 1) == ["cat", "x"]
