"""Sources of items, refused inputs, and hostile items."""

from __future__ import annotations

import gzip
import json
import os
import subprocess

from .harness import Place


def test_bad_input_is_refused_with_one_sentence_before_anything_is_written(place: Place) -> None:
    place.write("bad.jsonl", '{"id": 1}\n\n{"id": \n')
    place.write("ragged.csv", "id,prompt\n1,a\n2,b,c\n")
    place.write("twice.jsonl", '{"id": "x", "n": 1}\n{"id": "y"}\n{"id": "x", "n": 2}\n')
    place.write("latin.txt", "").write_bytes(b"good\nb\xe4d\n")
    echo = ("--", "echo", "{}")
    expected = {
        ("bad.jsonl", *echo): "bad.jsonl, line 3",
        ("ragged.csv", *echo): "ragged.csv, line 3",
        ("twice.jsonl", *echo): "'x' (lines 1 and 3)",
        ("latin.txt", *echo): "latin.txt, line 2",
        (*echo, ":::", "a", "b", "a"): "'a'",
        ("missing.txt", *echo): "missing.txt: no such file",
        ("-", *echo): "--name",
        echo: "no items were given",
        (":::", "a"): "nothing to run",
        ("--worker", "a:b", *echo, ":::", "a"): "both given",
        ("--", "no-such-program", ":::", "a"): "command not found: no-such-program",
        ("--", "sh", "-c", "eval {}", ":::", "a"): "AGENTOS_ITEM",
        ("-j", "0", *echo, ":::", "a"): "-j must be",
        ("--deadline", "yesterday", *echo, ":::", "a"): "--deadline",
        ("--name", "../../x", *echo, ":::", "a"): "--name",
        ("--bogus", *echo, ":::", "a"): "--bogus",
    }

    ended = place.run_each([("run", *arguments) for arguments in expected])

    for (arguments, said), refused in zip(expected.items(), ended, strict=True):
        assert refused.code == 2, (arguments, refused)
        assert refused.err.startswith("agentos: "), (arguments, refused)
        assert said in refused.err, (arguments, refused)
        assert refused.out == ""
    assert not (place.cwd / ".agentos").exists()


def test_a_bad_line_on_standard_input_ends_the_run_after_what_came_before_it(place: Place) -> None:
    ended = place.run(
        *["run", "-", "--name", "r", "--format", "jsonl", "--", "echo", "{id}"],
        stdin='{"id": "a"}\n{"id": "b"}\n{bad\n',
    )

    assert ended.code == 2
    assert "line 3" in ended.err
    assert place.outcomes() == {"a": "done", "b": "done"}


def test_the_format_of_items_is_that_of_the_file_name_or_the_option(place: Place) -> None:
    place.write("rows.csv", 'name,prompt\nann,"say ""hi"""\nbob,"two\nlines"\n')
    place.write("rows.data", '{"name": "ann", "prompt": "hi"}\n')
    place.write("texts/one.md", "")
    place.write("texts/two.md", "")
    place.write("words.txt", "first line\n\nsecond\n")
    expected = {
        ("rows.csv", "--id", "name", "--", "echo", "{name}", "{#}", "{prompt}"): [
            '[ann] ann 1 say "hi"',
            "[bob] bob 2 two",
            "[bob] lines",
        ],
        ("-a", "rows.data", "--format", "jsonl", "--id", "name", "--", "echo", "{prompt}"): ["[ann] hi"],
        ("texts/*.md", "--", "echo", "{}"): ["[texts/one.md] texts/one.md", "[texts/two.md] texts/two.md"],
        ("words.txt", "--no-tag", "--", "echo", "{}"): ["first line", "second"],
        ("words.txt", "--no-tag", "--stdin", "--", "sh", "-c", "cat"): ["first line", "second"],
        (":::", "a", "--", "echo", "x{}y", "{id}"): ["[a] xay a"],
        ("--no-tag", "--", "sh", "-c", "echo {}", ":::", "$(id) 'q'"): ["$(id) 'q'"],
    }

    ended = place.run_each([("run", "-k", *arguments) for arguments in expected])

    for (arguments, lines), each in zip(expected.items(), ended, strict=True):
        assert (each.code, each.lines) == (0, lines), (arguments, each)


def test_several_files_arrays_and_compressed_files_are_one_input(place: Place) -> None:
    place.write("a.jsonl", '{"id": "x"}\n')
    place.write("b.json", '[{"name": "Ann"}, {"name": "Bob"}]')
    place.write("c.txt.gz", "").write_bytes(gzip.compress(b"one\ntwo\n"))
    place.write("d.py", "print(1)\n")
    several = ("run", "a.jsonl", "b.json", "c.txt.gz", "-k", "--", "echo", "{#}")

    ended, paths, dry, twice, repeated, same = place.run_each(
        [
            several,
            ("run", "d.py", "d.py", "--", "echo", "{}"),
            ("run", "-n", "--repeat", "2", "c.txt.gz", "--", "echo", "{id}"),
            ("run", "a.jsonl", "a.jsonl", "--", "echo", "{id}"),
            ("run", "--repeat", "2", "--allow-duplicates", "-k", "--no-tag", "--", "echo", "{id}", ":::", "a", "a"),
            ("run", "a.jsonl", "b.json", "--results", "b.json", "--", "echo", "{id}"),
        ]
    )

    assert ended.code == 0, ended
    assert [line.partition("-")[0] for line in ended.lines] == ["[x] 1", "[ann", "[bob", "[one] 4", "[two] 5"]
    assert "all 5 done" in place.run(*several).err
    assert (paths.code, "'src/*.py'" in paths.err) == (2, True)
    assert [line.partition("\t")[0] for line in dry.lines] == ["one#1", "one#2", "two#1", "two#2"]
    assert (twice.code, "'x' (a.jsonl, line 1 and a.jsonl, line 1)" in twice.err) == (2, True)
    assert (repeated.code, repeated.lines) == (0, ["a#1", "a#2", "a#2#1", "a#2#2"])
    assert (same.code, "is the file of the items" in same.err) == (2, True)


def test_a_command_gets_its_item_in_environment_variables(place: Place) -> None:
    variables = ["RUN_ID", "ITEM_ID", "ITEM", "ATTEMPT", "SLOT", "CREDENTIAL_NAME"]
    script = f'echo "{"|".join(f"$AGENTOS_{name}" for name in variables)}|$(basename $AGENTOS_WORKFLOW_DB)"'
    place.write("items.jsonl", '{"id": "a", "n": 1}\n')

    ended = place.run("run", "items.jsonl", "--no-tag", "--name", "r", "--", "sh", "-c", script)

    assert ended.lines == ['r|a|{"id":"a","n":1}|1|1||a']


def test_hostile_ids_become_safe_names_and_harmless_prefixes(place: Place) -> None:
    ids = [
        "../../etc/passwd",
        "a\nb",
        "x" * 5_000,
        "\x1b[31mred\x1b]0;title\x07",
        "日本語",
        "a\0b",
        "/abs",
        "..",
        ".",
        "-rf",
        "A",
        "a",
    ]
    place.write("items.jsonl", "".join(json.dumps({"id": each}) + "\n" for each in ids))
    arguments = ["run", "items.jsonl", "--name", "r", "--", "printf", "hi\\n%.0s"]

    ended = place.run(*arguments)

    assert ended.code == 0
    assert len(ended.lines) == len(ids)
    assert all(line.startswith("[") and line.endswith("] hi") and len(line) < 60 for line in ended.lines)
    assert "\x1b" not in ended.out + ended.err
    logs = os.listdir(place.run_folder() / "logs")
    assert len({name.lower() for name in logs}) == len(ids)
    assert all(name.endswith(".log") and len(name) < 120 and "/" not in name and name.isascii() for name in logs)
    assert len(place.outcomes()) == len(ids)
    for item_id in ("../../etc/passwd", "..", "-rf", "日本語"):
        shown = place.run("logs", "r", "--", item_id)
        assert (shown.code, shown.lines[1]) == (0, "hi")

    terminal = place.terminal(
        "run", "items.jsonl", "--name", "t", "--", "printf", "\\033[2J\\033]0;pwned\\007hi%.0s\\n"
    )
    shown = terminal.ended()
    assert shown.code == 0
    assert "\x1b[2J" not in shown.out
    assert "\x1b]0;" not in shown.out


def test_a_hundred_thousand_items_from_standard_input_take_bounded_memory(place: Place) -> None:
    place.write(
        "measuring.py",
        "import resource\n\ndef used(item, credential):\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if item.endswith('000') else None\n",
    )
    items = subprocess.Popen(["seq", "100000"], stdout=subprocess.PIPE)
    assert items.stdout is not None
    program = place.start(
        *["run", "-", "--name", "r", "--progress", "none", "--worker", "measuring.py:used"], stdin=items.stdout.fileno()
    )
    items.stdout.close()

    ended = program.ended()

    assert items.wait() == 0
    assert ended.code == 0, ended.err
    lines = (place.run_folder() / "results.jsonl").read_text().splitlines()
    assert len(lines) == 100_000
    measured = [json.loads(line) for line in lines if '"value":null' not in line]
    used = {int(result["id"]): result["value"] / 1024 for result in measured}
    assert used[100_000] < used[10_000] + 40, (
        f"MiB after 10,000 items and after 100,000: {used[10_000]}, {used[100_000]}"
    )


def test_a_dry_run_refuses_what_could_not_be_run_and_is_harmless_on_a_terminal(place: Place) -> None:
    place.write("odd.jsonl", '{"id": "a\\nb", "text": "\\u001b]0;evil\\u0007x"}\n')
    for command in (["--worker", "no_such:f"], ["--", "no-such-program", "{}"]):
        assert place.run("run", "odd.jsonl", "-n", *command).code == 2, command

    piped = place.run("run", "odd.jsonl", "-n", "--", "echo", "{text}")
    terminal = place.terminal("run", "odd.jsonl", "-n", "--", "echo", "{text}").ended()

    assert len(piped.lines) == 1
    assert "]0;evil" not in terminal.out


def test_no_items_on_standard_input_are_as_wrong_as_an_empty_file(place: Place) -> None:
    empty = place.run("run", "-", "--name", "r", "--", "true", stdin="")

    assert empty.code == 2
    assert "no items came on standard input" in empty.err


def test_items_may_be_typed_as_a_list(place: Place) -> None:
    listed = place.run("run", "--items", "a,b c", "-k", "--no-tag", "--", "echo", "{}")
    again = place.run("run", "--items", "a,b c", "-k", "--no-tag", "--", "echo", "{}")

    assert (listed.code, listed.lines) == (0, ["a", "b", "c"])
    assert "all 3 done" in again.err
    for twice in (["items.txt"], [":::", "d"]):
        refused = place.run("run", "--items", "a", *twice, "--", "echo")
        assert refused.code == 2, refused


def test_ids_that_python_hashes_alike_are_different_items(place: Place) -> None:
    """CPython's hash of "no" is that of "潮": it hashes the raw buffer of a text."""
    place.write("items.txt", "no\n潮\nof\n景\n")
    for _ in range(2):
        streamed = place.run("run", "-", "--name", "r", "--", "echo", "{}", stdin="no\n潮\n")
        listed = place.run("run", "items.txt", "--name", "s", "--", "echo", "{}")

        assert (streamed.code, listed.code) == (0, 0), (streamed, listed)
        assert place.outcomes("r") == {"no": "done", "潮": "done"}
        assert {line["id"]: line["index"] for line in place.results("s")} == {"no": 0, "潮": 1, "of": 2, "景": 3}
    shown = place.run("show", "s", "--json").objects[0]
    assert (shown["total"], shown["counts"]["done"], shown["attempts"]) == (4, 4, 4)
    dry = place.run("run", "items.txt", "--name", "s", "--dry-run", "--", "echo", "{}")
    assert "4 of 4 are done already" in dry.out + dry.err, dry
