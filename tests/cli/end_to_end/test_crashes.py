"""After `kill -9` or with a damaged journal, every item is done exactly once or runs again."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing

import pytest

from .harness import Place, wait_until

# a and b are quick; from c on an item waits until it is let go.
SOME_WAIT = """
echo $AGENTOS_ITEM >> begun
case $AGENTOS_ITEM in a|b) ;; *) while [ ! -e go ]; do sleep 0.02; done ;; esac
echo "this is $AGENTOS_ITEM"
"""
RUN = ("run", "--name", "r", "-j", "2", "--", "sh", "-c", SOME_WAIT, ":::", *"abcdef")


@pytest.mark.parametrize("flag", ["--line-buffer", "--group", "-k"])
def test_a_killed_run_goes_on_where_it_was(place: Place, flag: str) -> None:
    arguments = [RUN[0], flag, "--joblog", "jobs", "--results", "all.jsonl", *RUN[1:]]
    jobs, wanted = place.asked_for("jobs"), place.asked_for("all.jsonl")
    program = place.start(*arguments)
    place.wait_for_lines("begun", 4)
    wait_until(lambda: len(place.results("r")) == 2, "two results are written")

    program.signal(signal.SIGKILL)
    assert program.ended().code == -9
    wait_until(lambda: not place.processes(), "the commands end with their driver")
    assert "r: crashed" in place.run("show", "r").out

    place.write("go", "")
    ended = place.run(*arguments)

    assert ended.code == 0
    assert place.outcomes("r") == dict.fromkeys("abcdef", "done")
    assert wanted.read_bytes() == (place.run_folder("r") / "results.jsonl").read_bytes()
    assert sorted(place.lines("begun")) == ["a", "b", "c", "c", "d", "d", "e", "f"]
    assert sorted(line.split("\t")[0] for line in jobs.read_text().splitlines()[1:]) == list("123456")
    expected = [f"[{item}] this is {item}" for item in "cdef"]
    assert (ended.lines if flag == "-k" else sorted(ended.lines)) == expected


def test_a_second_run_of_the_same_name_is_refused_and_harms_nothing(place: Place) -> None:
    first = place.start(*RUN)
    place.wait_for_lines("begun", 4)

    second = place.run(*RUN)
    fresh = place.run(*RUN[:1], "--fresh", *RUN[1:])

    for refused in (second, fresh):
        assert refused.code == 2
        assert f"pid {first.pid}" in refused.err
        assert "another --name" in refused.err
    assert len(place.lines("begun")) == 4
    place.write("go", "")
    assert first.ended().code == 0
    assert place.outcomes() == dict.fromkeys("abcdef", "done")


def test_a_journal_that_lost_entries_is_refused_until_forced_and_they_run_again(place: Place) -> None:
    place.write("go", "")
    assert place.run(*RUN).code == 0
    with closing(sqlite3.connect(place.run_folder() / "journal.sqlite")) as journal, journal:
        journal.execute("delete from entries where seq >= (select min(seq) from entries where kind = 'done')")

    refused = place.run(*RUN)

    assert refused.code == 2
    assert "--force continues with the sound part" in refused.err
    assert len(place.lines("begun")) == 6

    forced = place.run(*RUN[:1], "--force", *RUN[1:])

    assert forced.code == 0
    assert place.outcomes() == dict.fromkeys("abcdef", "done")
    assert sorted(place.lines("begun")) == sorted("abcdef" * 2)


def test_a_journal_that_is_no_database_any_more_is_refused_in_a_sentence(place: Place) -> None:
    place.write("go", "")
    assert place.run(*RUN).code == 0
    (place.run_folder() / "journal.sqlite").write_bytes(b"not a database" * 1_000)

    for command in (RUN, ("show", "r"), ("logs", "r", "a"), ("retry", "r"), ("runs",)):
        ended = place.run(*command)
        assert ended.code == (0 if command[0] in ("runs", "logs") else 2), (command, ended)  # a log needs no journal
        assert "internal error of agentos" not in ended.err, (command, ended)
    assert len(place.lines("begun")) == 6


def test_commands_that_outlived_a_crash_are_named_and_ended_before_their_items_run_again(place: Place) -> None:
    program = place.start("run", "--name", "r", "--", "sh", "-c", "echo $$ >> begun; exec sleep 600", ":::", "a")
    (pid,) = place.wait_for_lines("begun", 1)
    helper = next(number for number, words in place.processes().items() if "helper" in words)

    program.signal(signal.SIGSTOP)  # else it might notice, before its own end, that its helper is gone
    os.kill(helper, signal.SIGKILL)
    program.signal(signal.SIGKILL)
    program.ended()
    wait_until(lambda: int(pid) in place.processes(), "the command, a shell, has become what it was to become")
    again = place.run(
        *["run", "--name", "r", "--new-command", "--", "sh", "-c", "echo again >> begun", ":::", "a"],
    )

    assert f"pid {pid}" in again.err
    assert "item a" in again.err
    assert again.code == 0
    assert int(pid) not in place.processes()
    assert place.lines("begun")[1:] == ["again"]


def test_a_start_that_is_refused_leaves_the_run_as_it_was(place: Place) -> None:
    assert place.run("run", "--name", "r", "--", "sh", "-c", "[ -e f ]", ":::", "a", "b").code == 1
    folder = place.run_folder()
    before = {name: (folder / name).read_text() for name in ("results.jsonl", "run.json", "events.jsonl")}

    refused = place.run(
        "run", "--json", "--retry-failed", "--name", "r", "--", "sh", "-c", "[ -e  f ]", ":::", "a", "b"
    )

    assert (refused.code, refused.out) == (2, "")
    assert "--new-command" in refused.err
    assert {name: (folder / name).read_text() for name in before} == before
    assert (folder.stat().st_mode & 0o777) == 0o700
    place.write("f", "")
    assert place.run("retry", "r").code == 0
