"""A command with holes: what is one, what passes through, and that no item is ever read as code."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.runs.commands.template import LONGEST, Template, TemplateError, text_of, why_not_passable

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
    assert (text_of(item), Template.text_of(item)) == (text, text)


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
        ("x" * (LONGEST + 1), "131,072 bytes long"),
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
    ended = subprocess.run([*filled(["true"], "x" * LONGEST)], check=False, timeout=20)

    assert ended.returncode == 0
    assert why_not_passable("x" * 11, room=10) == "is 11 bytes long, and an argument can have 10"


@pytest.mark.parametrize("argv", [[], [""], ["cmd", "a\0b"]])
def test_what_is_no_command_is_refused(argv: list[str]) -> None:
    assert str(refused(argv))


# -- shell scripts ------------------------------------------------------------------------------------------------

SHELLS = [
    ["sh", "-c"],
    ["/bin/bash", "-c"],
    ["bash", "-lc"],
    ["bash", "-euo", "pipefail", "-c"],
    ["bash", "--norc", "-O", "extglob", "-ec"],
    ["bash", "--rcfile", "x", "-c"],
    ["bash", "-co", "pipefail"],
    ["dash", "-e", "-c", "--"],
    ["zsh", "+o", "nomatch", "-c"],
    ["env", "A=1", "-u", "B", "sh", "-c"],
    ["timeout", "-k", "5", "30", "ksh", "-c"],
    ["docker", "run", "image", "sh", "-c"],
]


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_a_bare_hole_in_a_script_becomes_one_quoted_word(shell: list[str]) -> None:
    command = filled([*shell, "echo {} x={id} {#}", "{}"], "it's $HOME")

    assert command == [*shell, "echo 'it'\"'\"'s $HOME' x='the-id' 3", "it's $HOME"]


@pytest.mark.parametrize(
    "argv",
    [["sh", "script.sh", "-c", "'{}'"], ["bash", "-e", "script", "'{}'"], ["bash", "-s", "'{}'"], ["sh", "+c", "'{}'"]],
)
def test_a_shell_with_a_script_file_has_ordinary_arguments(argv: list[str]) -> None:
    assert filled(argv)[-1] == "'item'"


@pytest.mark.parametrize(
    ("script", "where"),
    [
        ("echo '{}'", "inside single quotes"),
        ('echo "{}"', "inside double quotes"),
        ('echo "a \\" {}"', "inside double quotes"),
        ('echo "a $(date) ${x} {}"', "inside double quotes"),
        ("echo $'{}'", "$'...'"),
        ("echo $'a\\'b' {}", "$'...'"),
        ("echo `cat {}`", "backticks"),
        ("echo \\{}", "after a backslash"),
        ("cat <<E\n{}\nE", "here-document"),
        ("cat <<-'E'\n{}\nE", "here-document"),
        ("# {}\necho", "comment"),
        ("true # it's\necho {}", "comment"),
        ("echo $(( {} + 1 ))", "arithmetic"),
        ("(( {} ))", "arithmetic"),
        ("echo $[{}]", "arithmetic"),
        ("echo ${x:-{}}", "${...}"),
        ("echo {a,{}}", "brace expansion"),
        ("x[{}]=1", "brackets"),
        ("x[ {} ]=1", "brackets"),
        ("[[ {} -eq 1 ]]", "[[ ]]"),
        ("eval echo {}", "'eval'"),
        ("true; eval {}", "'eval'"),
        ("A=1 eval {}", "'eval'"),
        ("if true; then trap {} EXIT; fi", "'trap'"),
        ("let x={}", "'let'"),
        ("echo; read {} < file", "'read'"),
        ("declare {}=1", "'declare'"),
        ("[ {} -eq 1 ]", "as a number"),
        ("test 1 -lt x{}", "as a number"),
        ("test -v {}", "as a number or a name"),
        ("printf -v {} x", "as a number or a name"),
        ('echo "$(echo ")" {})"', "double quotes"),
        ('echo "$(case a in a) echo "; echo {}";; esac)"', "double quotes"),
        ("echo 'unclosed {}", "single quotes"),
        ("echo '{id}'", "single quotes"),
    ],
)
def test_a_hole_that_could_be_read_as_code_is_refused_when_the_template_is_made(script: str, where: str) -> None:
    error = refused(["sh", "-c", script])

    assert where in str(error)
    assert "$AGENTOS_ITEM" in str(error.hint)


@pytest.mark.parametrize(
    "script",
    [
        "echo {}",
        "{} x",
        "printf '%s' {}",
        "echo \"x\"{}'y'",
        "cat {} > {}.out 2>&1",
        'x={}; echo "$x"',
        'x="$(date +%s)"; echo {}',
        'echo "$x ${y} $((1 + 2)) `date`" {}',
        "echo $(basename {})",
        "if [ {} = a ]; then echo {}; fi",
        "case {} in a) echo {};; esac",
        "for i in {} b; do echo $i; done",
        "# a comment\necho {}",
        "echo a#b {}",
        "echo \\\\{}",
        "echo \\' {}",
        "{ echo {}; }",
        "(cd x && run {})",
        "cat <<< {}",
        "trap 'rm -f tmp' EXIT; echo {}",
        "python eval.py eval {}",
        "[[ -n $x ]] && echo {}",
        "echo $# {}",
        "awk '{ print $1 }' {}",
        "grep -v {} file",
        "export X={}; run",
        "./read {}; read_all {}",
    ],
)
def test_a_bare_hole_is_accepted(script: str) -> None:
    (_, _, result) = filled(["bash", "-c", script], "a b")

    assert result == script.replace("{}", "'a b'")


def test_the_number_is_harmless_anywhere() -> None:
    assert filled(["sh", "-c", "echo '{#}' \"{#}\" # {#}"])[2] == "echo '3' \"3\" # 3"


def test_a_field_inside_quotes_is_refused_for_items_that_have_it_and_else_is_just_text() -> None:
    template = Template(["sh", "-c", "echo '{name}'"])

    assert template.fill("text", "id", 1)[2] == "echo '{name}'"
    with pytest.raises(TemplateError, match="single quotes"):
        template.check({"name": "x"})
    with pytest.raises(TemplateError, match="no field 'name'"):
        template.check({"other": "x"})


def test_a_script_that_is_the_item_itself_is_refused_with_the_way_to_run_items() -> None:
    assert 'eval "$AGENTOS_ITEM"' in str(refused(["sh", "-c", "{}"]).hint)


HOSTILE = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40),
    st.lists(
        st.sampled_from(
            ["$(touch x)", "`touch x`", "';touch x;'", '";touch x;"', "\n", "\\", "'", '"', "$HOME", "#", "*", "~",
             "-n", "=", "!", "|", "&", ";", "<", ">", "(", ")", "{", "}", "é", "日本", " ", "\t", "\r"]
        ),
        max_size=8,
    ).map("".join),
)  # fmt: skip


INSTALLED = [shell for shell in ("sh", "bash", "dash", "zsh", "ksh") if shutil.which(shell)]


@pytest.mark.parametrize("shell", INSTALLED)
def test_a_real_shell_sees_exactly_the_item(shell: str, tmp_path: Path) -> None:
    @settings(max_examples=40, deadline=None)
    @given(HOSTILE, HOSTILE)
    def check(item: str, other: str) -> None:
        scripts = {
            "printf '%s\\0' {a}": [item],
            "x={a}; printf '%s\\0' pre{a}post\"$x\" {b}": [f"pre{item}post{item}", other],
            "# note\nprintf '%s\\0' \"it's\"{a}'\"' $(printf %s x){b}": [f"it's{item}\"", f"x{other}"],
        }
        for script, expected in scripts.items():
            argv = Template([shell, "-c", script]).fill({"a": item, "b": other}, "id", 1)
            ended = subprocess.run(argv, capture_output=True, cwd=tmp_path, check=True, timeout=20)
            assert ended.stdout == "".join(f"{word}\0" for word in expected).encode()
        assert list(tmp_path.iterdir()) == []

    check()


PIECES = ["{}", " ", "'", '"', "`", "$(", ")", "${x}", "${x:-", "}", "$'", "\\", "\n", ";", " # it's\n", "<<E\n",
          "echo ", "[", "a", "case a in a) ", ";; esac", "eval ", "$(( ", " ))", "(("]  # fmt: skip


def test_no_script_that_is_accepted_lets_an_item_run(tmp_path: Path) -> None:
    """Scripts thrown together: most are refused or no scripts at all, and none runs what is in the item."""
    item = "$(touch x)`touch x`';touch x;'\";touch x;\"\ntouch x\n"

    @settings(max_examples=150, deadline=None)
    @given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=12).map("".join), st.sampled_from(["sh", "bash"]))
    def check(script: str, shell: str) -> None:
        try:
            argv = Template([shell, "-c", "echo " + script]).fill(item, "id", 1)
        except TemplateError:
            return
        subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, cwd=tmp_path, check=False, timeout=20)
        assert list(tmp_path.iterdir()) == []

    check()


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
    if why_not_passable(text_of(item)) is None:
        assert json.loads(filled(["cmd", "{}"], item)[1]) == item


def test_a_template_error_travels() -> None:
    error = pickle.loads(pickle.dumps(refused(["sh", "-c", "'{}'"])))

    assert isinstance(error, TemplateError)
    assert "single quotes" in str(error)
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


@pytest.mark.parametrize("argv", [["ssh", "{}", "uptime"], ["su", "{}"], ["flock", "{}", "true"]])
def test_an_item_may_be_an_ordinary_argument_of_such_a_program(argv: list[str]) -> None:
    assert Template(argv).fill("x", "x", 1) == [each.replace("{}", "x") for each in argv]


def test_an_item_that_comes_otherwise_is_not_put_at_the_end() -> None:
    assert Template(["cat"], append=False).fill("x", "x", 1) == ["cat"]
    assert Template(["cat"]).fill("x", "x", 1) == ["cat", "x"]
