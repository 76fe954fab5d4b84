"""The run, `show`, `runs`, the results, the joblog and a dry run report the same."""

from __future__ import annotations

import pytest

from .harness import Place, plain

FAILS = ("--", "sh", "-c", "exit 3")


def test_a_retry_that_stops_early_goes_on_as_a_retry_and_its_results_are_whole(place: Place) -> None:
    words = (":::", "a", "b", "c")
    assert place.run("run", "-j", "1", *FAILS, *words).code == 1

    ended = place.run("run", "-j", "1", "--retry-failed", "--max-failures", "1", *FAILS, *words)

    assert ended.code == 3
    again = "agentos run -j 1 --max-failures 1 --retry-failed -- sh -c 'exit 3' ::: a b c"
    assert f"2 items left; resume with the same command:  {again}" in ended.err
    assert place.outcomes() == {"a": "failed", "b": "failed", "c": "failed"}


def test_an_id_that_comes_twice_on_standard_input_is_counted_alike_by_all(place: Place) -> None:
    for _ in range(2):
        ended = place.run("run", "-", "--name", "r", "--json", "--", "true", stdin="a\nb\na\n")

        assert ended.code == 1
        told = ended.objects[-1]
        report = place.run("show", "r", "--json").objects[0]
        (brief,) = place.run("runs", "--json").objects
        outcomes = sorted((result["id"], result["outcome"]) for result in place.results())
        assert (told["done"], told["failed"], told["total"]) == (2, 1, 3)
        assert (report["counts"]["done"], report["counts"]["failed"], report["total"]) == (2, 1, 3)
        assert (brief["done"], brief["failed"], brief["total"]) == (2, 1, 3)
        assert outcomes == [("a", "done"), ("a", "failed"), ("b", "done")]


def test_a_dry_run_leaves_out_what_has_its_result(place: Place) -> None:
    place.write("items.txt", "1\n0\n3\n")
    arguments = ["run", "items.txt", "--keys", "env:ACME_*"]
    command = ["--", "sh", "-c", 'exit "$AGENTOS_ITEM"']
    env = {"ACME_1": "sk-planted-first-key"}
    place.run(*arguments, *command, env=env)
    place.write("items.txt", "1\n0\n3\n4\n")

    again = place.run(*arguments, "-n", *command, env=env)
    retried = place.run(*arguments, "-n", "--retry-failed", *command, env=env)
    fresh = place.run(*arguments, "-n", "--fresh", *command, env=env)
    objects = place.run(*arguments, "-n", "--json", *command, env=env).objects

    assert [line.split("\t")[0] for line in again.lines] == ["4"]
    assert "dry run: 1 items" in again.err
    assert "1 of 4 are done already, 2 of 4 failed, and run again with --retry-failed" in again.err
    assert [line.split("\t")[0] for line in retried.lines] == ["1", "3", "4"]
    assert "1 of 4 are done already\n" in retried.err
    assert len(fresh.lines) == 4
    assert "already" not in fresh.err
    assert [each.get("id") for each in objects] == ["4", None]
    assert {name: objects[-1][name] for name in ("items", "done", "failed", "item_seconds_of")} == {
        "items": 1,
        "done": 1,
        "failed": 2,
        "item_seconds_of": place.run_folder().name,
    }


@pytest.mark.parametrize("limit", ["--timeout", "--idle-timeout"])
def test_a_command_that_was_ended_for_its_time_has_the_exit_value_that_says_so(place: Place, limit: str) -> None:
    joblog = place.asked_for("jobs.log")

    ended = place.run(
        *["run", "--retries", "0", limit, "0.2", "--kill-after", "0.2", "--joblog", "jobs.log"],
        *["--", "sleep", "{}", ":::", "60"],
    )

    assert ended.code == 1
    (_, job) = joblog.read_text().splitlines()
    assert job.split("\t")[6:] == ["-1", "0", "sleep 60"]


def test_all_reports_agree_on_the_duration_of_several_sessions(place: Place) -> None:
    for more in ((), ("--retry-failed",)):
        place.run("run", *more, *FAILS, ":::", "a")

    (report,), (brief,) = (place.run(command, "--json").objects for command in ("show", "runs"))

    assert len(report["sessions"]) == 2
    assert brief["seconds"] == pytest.approx(report["wall"])
    assert brief["state"] == report["state"]


def test_on_a_narrow_terminal_no_table_is_broken(place: Place) -> None:
    place.write("agentos.toml", '[[credentials]]\nname = "a-key-with-a-long-name"\nenv = "K_KEY"\nrpm = 120\n')
    env = {"K_KEY": "sk-planted-QWERTZUIOPASDFGH"}
    begun = place.run(
        "run", "--name", "a-run-with-a-long-name", "--keys", "a-key-with-a-long-name", "--", "true", ":::", "a", env=env
    )
    assert begun.code == 0, begun.err

    for typed in ("runs", "show", "keys"):
        shown = plain(place.terminal(typed, columns=60, env=env).ended().out).splitlines()

        assert any("a-key-with-a-long-name" in line or "a-run-with-a-long-name" in line for line in shown)
        # A command and a path are printed whole, to be copied.
        assert [line for line in shown if len(line) > 60 and "agentos" not in line] == []
