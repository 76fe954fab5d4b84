"""Output of a run in a pipe and on a terminal: item lines, progress, results, joblog."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from .harness import Place, Program, flowing, plain, wait_until

# The first item ends when it is let go, the others at once.
UNEVEN = """
echo begin $AGENTOS_ITEM
if [ $AGENTOS_ITEM = a ]; then until [ -e go ]; do sleep 0.02; done; fi
echo end $AGENTOS_ITEM
"""


def test_the_happy_path_in_a_pipe(place: Place) -> None:
    arguments = ["run", "--", "echo", "{}", ":::", "a", "b", "c"]

    first = place.run(*arguments)
    again = place.run(*arguments)

    assert (first.code, again.code) == (0, 0)
    assert sorted(first.lines) == ["[a] a", "[b] b", "[c] c"]
    assert "3 of 3 done, 0 failed" in first.err
    assert "\x1b" not in first.out + first.err
    assert again.out == ""
    assert "all 3 done; --fresh runs again" in again.err
    assert place.outcomes() == dict.fromkeys("abc", "done")
    values = {result["id"]: result["value"] for result in place.results()}
    assert values["b"] == {"exit": 0, "stdout": "b\n", "truncated": False}
    log = (place.run_folder() / "logs" / "b.log").read_text()
    assert log.startswith("--- attempt 1, ")
    assert " ---\nb\n--- attempt 1 done after " in log
    assert not list((place.run_folder()).glob("checkpoints/*"))


def test_the_happy_path_on_a_terminal(place: Place) -> None:
    terminal = place.terminal("run", "--name", "tour", "--", "echo", "hello {}", ":::", "a", "b", "c")

    ended = terminal.ended()

    assert ended.code == 0
    shown = flowing(ended.out)
    for expected in ("[a] hello a", "[b] hello b", "[c] hello c", "0/3 (0.0%)", "tour: 3 of 3 done, 0 failed"):
        assert expected in shown
    assert ended.out.count("\x1b[?25l") == ended.out.count("\x1b[?25h"), "the cursor is shown again"


def test_a_worker_in_python_is_run_and_its_prints_belong_to_its_item(place: Place) -> None:
    place.write(
        "work.py",
        "import sys\n"
        "def work(item, credential, *, context):\n"
        "    print('out of', item['id'])\n"
        "    print('err of', item['id'], file=sys.stderr)\n"
        "    context.log.warning('logged for %s', item['id'])\n"
        "    if item['id'] == 'bad':\n        raise ValueError('cannot do it')\n"
        "    return {'length': len(item['text']), 'attempt': context.attempt}\n",
    )
    place.write("items.jsonl", '{"id": "good", "text": "four"}\n{"id": "bad", "text": ""}\n')

    ended = place.run("run", "items.jsonl", "--worker", "work.py:work")

    assert ended.code == 1
    assert sorted(ended.lines) == ["[bad] out of bad", "[good] out of good"]
    assert "[good] err of good" in ended.err
    assert "[good] logged for good" in ended.err.splitlines()
    assert "cannot do it" in ended.err
    good, bad = sorted(place.results(), key=lambda result: result["outcome"])
    assert good["value"] == {"length": 4, "attempt": 1}
    assert (bad["outcome"], bad["error_type"]) == ("failed", "ValueError")
    assert place.run("logs", "work", "bad").lines[1:4] == ["out of bad", "err of bad", "logged for bad"]


def test_lines_come_at_once_groups_at_their_end_and_kept_order_in_the_end(place: Place) -> None:
    def started(*flags: str) -> Program:
        (place.cwd / "go").unlink(missing_ok=True)
        program = place.start("run", "--fresh", "--name", "r", *flags, "--", "sh", "-c", UNEVEN, ":::", "a", "b", "c")
        wait_until(lambda: "begin a" in _text_of(place.run_folder("r") / "logs" / "a.log"), "the first has begun")
        wait_until(lambda: set(place.outcomes("r")) == {"b", "c"}, "the others are done")
        return program

    def of_a(lines: list[str]) -> list[str]:
        return [line for line in lines if line.endswith("a")]

    by_line = started("--tag")
    by_line.out.wait_for("[a] begin a")
    place.write("go", "")
    assert of_a(by_line.ended().lines) == ["[a] begin a", "[a] end a"]

    grouped = started("--group")
    grouped.out.wait_for("[b] begin b [b] end b")
    grouped.out.wait_for("[c] begin c [c] end c")
    assert "begin a" not in grouped.out.text
    place.write("go", "")
    assert grouped.ended().lines[4:] == ["[a] begin a", "[a] end a"]

    in_order = started("-k", "--no-tag")
    assert in_order.out.text == ""
    place.write("go", "")
    assert in_order.ended().lines == ["begin a", "end a", "begin b", "end b", "begin c", "end c"]


def test_quiet_shows_the_end_of_what_failed_and_where_the_rest_is(place: Place) -> None:
    ended = place.run("run", "-q", "--", "sh", "-c", "echo one; echo two >&2; exit 7", ":::", "a")

    assert ended.code == 1
    assert ended.out == ""
    assert "[a] failed: exit 7: two\n[a] | two\n" in ended.err


def test_json_is_all_there_is_on_standard_output(place: Place) -> None:
    arguments = ["run", "--json", "--name", "r", "--", "sh", "-c", "echo noise; exit $AGENTOS_ITEM", ":::", "0", "3"]

    ended = place.run(*arguments)
    again = place.run(*arguments)

    assert ended.code == 1
    first, *items, last = ended.objects
    assert (first["event"], first["run"], first["total"]) == ("start", "r", 2)
    assert {(each["event"], each["id"], each["outcome"], each["cached"]) for each in items} == {
        ("item", "0", "done", False),
        ("item", "3", "failed", False),
    }
    assert (last["event"], last["exit"], last["done"], last["failed"], last["left"]) == ("done", 1, 1, 1, 0)
    assert "[0] noise" in ended.err
    assert [each["cached"] for each in again.objects[1:-1]] == [True, True]
    assert again.objects[-1]["cached"] == 2


def test_a_run_that_is_refused_with_json_says_nothing_on_standard_output(place: Place) -> None:
    refused = place.run("run", "--json", "none.txt", "--", "true")

    assert (refused.code, refused.out) == (2, "")


def test_results_and_a_job_log_are_written_where_asked(place: Place) -> None:
    results, jobs = place.asked_for("out/results.jsonl"), place.asked_for("jobs.log")
    results.parent.mkdir()
    script = "case $AGENTOS_ITEM in a) echo done;; b) exit 3;; c) kill -9 $$;; esac"
    before = time.time()

    ended = place.run(
        *[
            "run",
            "-j1",
            "--results",
            "out/results.jsonl",
            "--joblog",
            "jobs.log",
            "--",
            "sh",
            "-c",
            script,
            ":::",
            *"abc",
        ]
    )

    assert ended.code == 1
    assert [json.loads(line)["outcome"] for line in results.read_text().splitlines()] == ["done", "failed", "failed"]
    assert [result["error"] for result in place.results()] == [None, "exit 3", "killed by SIGKILL"]
    header, *rows = [line.split("\t") for line in jobs.read_text().splitlines()]
    assert header == ["Seq", "Host", "Starttime", "JobRuntime", "Send", "Receive", "Exitval", "Signal", "Command"]
    assert [(row[0], row[1], row[6], row[7]) for row in rows] == [
        ("1", ":", "0", "0"),
        ("2", ":", "3", "0"),
        ("3", ":", "0", "9"),
    ]
    assert all(before - 1 <= float(row[2]) <= time.time() and len(row) == 9 for row in rows)
    assert rows[0][5] == str(len("done\n")), "Receive is how many bytes the command printed"


def test_results_never_overwrite_a_file_that_agentos_did_not_write(place: Place) -> None:
    """The file of results is made anew at each start; whoever mistypes its name must not lose another file by it."""
    items = '{"id": "a"}\n{"id": "b"}\n'
    place.write("items.jsonl", items)
    place.write("notes.txt", "a week of work\n")
    for flags in (["--results", "items.jsonl"], ["--joblog", "items.jsonl"], ["--results", "notes.txt"]):
        refused = place.run("run", "items.jsonl", *flags, "--", "true")

        assert refused.code == 2, (flags, refused)
        assert flags[1] in refused.err
    same = place.run("run", "items.jsonl", "--results", "x", "--joblog", "x", "--", "true")
    assert same.code == 2
    assert (place.cwd / "items.jsonl").read_text() == items
    assert (place.cwd / "notes.txt").read_text() == "a week of work\n"


def test_results_on_standard_output_that_is_a_file_leave_the_rest_of_it_there(place: Place) -> None:
    place.write("all.log", "from yesterday\n")
    appended = ["sh", "-c", '"$@" >> all.log', "sh"]

    ended = place.start(
        *["run", "--no-tag", "--results", "/dev/stdout", "--", "echo", "hi {}", ":::", "a"], wrapped_in=appended
    ).ended()

    assert ended.code in (0, 2)
    assert place.lines("all.log")[0] == "from yesterday"
    assert ended.code == 2 or "hi a" in place.lines("all.log")


def test_files_that_cannot_be_written_are_refused_before_anything_runs(place: Place) -> None:
    for flags in (["--results", "no/such/folder/r"], ["--joblog", "no/such/folder/j"]):
        refused = place.run("run", *flags, "--", "touch", "ran-{}", ":::", "a")

        assert refused.code == 2, refused
        assert "no/such/folder" in refused.err, refused
    assert not (place.cwd / "ran-a").exists()


def test_progress_in_a_pipe_comes_in_the_way_asked_for(place: Place) -> None:
    flags = {"plain": ["--progress", "plain"], "bar": ["--eta"], "none": ["--progress", "none"]}

    ended = place.run_each(
        [("run", *each, "-q", "--name", name, "--", "true", ":::", "a") for name, each in flags.items()]
    )

    assert [(each.code, each.out) for each in ended] == [(0, "")] * 3
    plain_lines, no_bar, none = (each.err for each in ended)
    assert "plain: 1 of 1 done, 0 failed" in plain_lines
    assert "bar: 1 of 1 done, 0 failed" in no_bar
    assert "\x1b" not in plain_lines + no_bar
    assert none == ""


@pytest.mark.parametrize("progress", ["plain", "none", "bar"])
def test_progress_on_a_terminal_comes_in_the_way_asked_for(place: Place, progress: str) -> None:
    ended = place.terminal("run", "--progress", progress, "-q", "--name", "r", "--", "true", ":::", "a").ended()

    assert ended.code == 0
    assert ("───" in plain(ended.out)) == (progress == "bar")
    assert ("r: 1 of 1 done, 0 failed" in flowing(ended.out)) == (progress != "none")


@pytest.mark.parametrize("flags", [(), ("--progress", "bar")])
def test_on_a_terminal_a_run_that_is_piped_has_plain_lines_unless_a_bar_is_asked_for(
    place: Place, flags: tuple[str, ...]
) -> None:
    seen = place.asked_for("seen")

    ended = place.terminal("run", *flags, "--name", "r", "--", "echo", "{}", ":::", "a", piped_to="tee seen").ended()

    assert seen.read_text() == "[a] a\n"
    assert "[a] a" in plain(ended.out)
    assert "r: 1 of 1 done, 0 failed" in flowing(ended.out)
    assert ("\x1b" in ended.out) == bool(flags)


def test_progress_as_json_has_nothing_else_beside_it(place: Place) -> None:
    ended = place.run("run", "--progress", "json", "--name", "r", "--", "false", ":::", "a")

    assert [json.loads(line)["kind"] for line in ended.err.splitlines()] == [
        "run_started",
        "item_finished",
        "run_finished",
    ]


def test_colours_are_as_the_flag_the_environment_and_the_terminal_say(place: Place) -> None:
    def colourful(*flags: str, **env: str) -> bool:
        out = place.terminal("run", "--fresh", "--name", "r", *flags, "--", "true", ":::", "a", env=env).ended().out
        assert "1 of 1 done" in flowing(out)
        return re.search(r"\x1b\[[0-9;]*3[0-9][;m]", out) is not None

    assert colourful()
    assert not colourful("--color", "never")
    assert not colourful(TERM="dumb")
    assert not colourful(NO_COLOR="1", FORCE_COLOR="1")
    assert colourful("--color", "always", NO_COLOR="1")
    piped = place.run("run", "--fresh", "--name", "r", "--", "true", ":::", "a", env={"FORCE_COLOR": "1"})
    assert "\x1b[" not in piped.err.replace("\x1b[0m", ""), "a pipe has no display to draw"


def test_output_of_items_is_kept_whole_however_long_or_odd_it_is(place: Place) -> None:
    script = "printf 'no newline'; printf '\\377\\000binary\\n' >&2; head -c 3000000 /dev/zero | tr '\\0' x"

    ended = place.run("run", "--name", "r", "--no-tag", "--", "sh", "-c", script, ":::", "a")

    assert ended.code == 0
    assert ended.out.replace("\n", "") == "no newline" + "x" * 3_000_000
    (result,) = place.results()
    assert result["value"]["truncated"] is True
    assert result["value"]["stdout"] == "x" * 65_536
    assert result["value"]["stdout_head"] == "no newline" + "x" * (4_096 - len("no newline"))
    assert (place.run_folder() / "logs" / "a.log").stat().st_size > 3_000_000


def test_dry_run_shows_all_and_does_nothing(place: Place) -> None:
    place.write("items.jsonl", '{"id": "a", "n": 1}\n{"id": "b", "n": 2}\n')
    arguments = ["run", "items.jsonl", "--keys", "env:ACME_*", "-n"]
    env = {"ACME_1": "sk-planted-first-key", "ACME_2": "sk-planted-second-key"}

    ended = place.run(*arguments, "--", "echo", "n is {n}", env=env)
    objects = place.run(*arguments, "--json", "--", "echo", "n is {n}", env=env).objects

    assert ended.code == 0
    assert ended.lines == ["a\techo 'n is 1'", "b\techo 'n is 2'"]
    assert "nothing was run" in ended.err
    assert "acme-1" in ended.err
    assert "forecast" in ended.err
    assert "planted" not in ended.out + ended.err
    assert [each.get("id") for each in objects] == ["a", "b", None]
    assert objects[0]["command"] == ["echo", "n is 1"]
    assert [key["name"] for key in objects[-1]["keys"]] == ["acme-1", "acme-2"]
    assert not (place.cwd / ".agentos").exists()
    assert not place.agentos_home.exists()


def _text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""
