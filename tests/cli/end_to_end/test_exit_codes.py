"""Exit codes of runs, early stops, and which items run again."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from .harness import Place, wait_until

# Fails until there is a file "fixed".
FLAKY = "echo $AGENTOS_ITEM >> tried; [ $AGENTOS_ITEM = good -o -e fixed ]"


def flaky(*flags: str, command: str = FLAKY) -> list[str]:
    return ["run", "--name", "r", "-j", "1", *flags, "--", "sh", "-c", command, ":::", "good", "bad", "worse"]


def test_failed_items_run_again_only_if_asked(place: Place) -> None:
    first, same = place.run(*flaky()), place.run(*flaky())
    assert (first.code, same.code) == (1, 1)
    assert "agentos retry r" in first.err
    assert "all 3 finished (2 failed); --fresh runs again" in same.err
    assert place.lines("tried") == ["good", "bad", "worse"]

    still = place.run(*flaky("--retry-failed"))
    assert still.code == 1
    assert place.lines("tried")[3:] == ["bad", "worse"]

    place.write("fixed", "")
    retried = place.run("retry", "r")
    assert retried.code == 0, retried.err
    assert place.lines("tried")[5:] == ["bad", "worse"]
    assert place.outcomes() == dict.fromkeys(["good", "bad", "worse"], "done")
    assert place.run("retry", "r").code == 0
    assert len(place.lines("tried")) == 7


def test_the_last_words_can_be_typed_where_the_folder_was_given(place: Place) -> None:
    place.asked_for("my runs")

    ended = place.run("run", "--dir", "my runs", "--name", "r", "--", "false", ":::", "a")

    typed = re.findall(r"agentos ((?:show|retry) .*)", ended.err)
    assert [place.run(*shlex.split(words)).code for words in typed] == [0, 1], ended.err


def test_retry_works_for_a_run_that_was_given_no_options(place: Place) -> None:
    place.asked_for("tried")
    assert place.run("run", "--", "sh", "-c", FLAKY, ":::", "bad").code == 1
    place.write("fixed", "")

    retried = place.run("retry", place.run_folder().name)

    assert retried.code == 0, retried.err
    assert place.outcomes() == {"bad": "done"}


def test_fresh_starts_over_and_keeps_what_was_there(place: Place) -> None:
    place.asked_for("tried")
    assert place.run(*flaky()).code == 1
    place.write("fixed", "")

    assert place.run(*flaky("--fresh")).code == 0

    assert place.outcomes("r") == dict.fromkeys(["good", "bad", "worse"], "done")
    assert place.outcomes("r.1") == {"good": "done", "bad": "failed", "worse": "failed"}
    names = [json.loads(line)["name"] for line in place.run("runs", "--json").out.splitlines()]
    assert names == ["r", "r.1"]


def test_another_command_under_the_same_name_is_refused_unless_meant(place: Place) -> None:
    assert place.run(*flaky()).code == 1
    other = f"true; {FLAKY}"

    refused = place.run(*flaky(command=other))
    meant = place.run(*flaky("--new-command", "--retry-failed", command=other))

    assert refused.code == 2
    assert "--new-command" in refused.err
    assert meant.code == 1
    assert place.lines("tried")[3:] == ["bad", "worse"]


def test_retries_are_counted_and_kept_apart_in_the_log(place: Place) -> None:
    script = "echo try $AGENTOS_ATTEMPT; [ $AGENTOS_ATTEMPT = 2 ]"

    ended = place.run("run", "--retries", "1", "--name", "r", "--", "sh", "-c", script, ":::", "a")

    assert ended.code == 0
    assert place.results()[0]["attempts"] == 2
    log = place.run("logs", "r", "a").lines
    assert [line for line in log if not line.startswith("---")] == ["try 1", "try 2"]
    assert [line.split(" after ")[0][:20] for line in log if line.startswith("---")] == [
        log[0][:20],
        "--- attempt 1 failed",
        log[3][:20],
        "--- attempt 2 done",
    ]


@pytest.mark.parametrize(
    ("flag", "said"), [("--timeout", "timed out after 0.2s"), ("--idle-timeout", "silent for 0.2s")]
)
def test_a_command_that_takes_too_long_is_ended_and_not_retried(place: Place, flag: str, said: str) -> None:
    ended = place.run("run", flag, "0.2s", "--", "sh", "-c", "sleep 600", ":::", "a")

    assert ended.code == 1
    (result,) = place.results()
    assert result["attempts"] == 1  # it is not retried unless --retries was given
    assert said in result["error"]
    assert result["error_type"] == "TimeoutError"


def test_a_command_that_goes_on_talking_is_not_idle(place: Place) -> None:
    script = "for i in $(seq 21); do echo $i; sleep 0.2; done"  # for longer than that, though never silent for long

    assert place.run("run", "--idle-timeout", "4s", "--", "sh", "-c", script, ":::", "a").code == 0


@pytest.mark.parametrize(
    ("flags", "failed"),
    [
        (["--halt", "soon,fail=1"], 1),
        (["--max-failures", "2"], 2),
        (["--halt", "soon,fail=50%"], 3),  # more than half of the four
        (["--halt", "now,fail=1"], 1),
    ],
)
def test_a_halted_run_ends_with_3_and_goes_on_next_time(place: Place, flags: list[str], failed: int) -> None:
    arguments = ["run", "--name", "r", "-j", "1", *flags, "--", "false", ":::", *"abcd"]

    ended = place.run(*arguments)

    assert ended.code == 3
    assert "stopped by halt at" in ended.err
    assert list(place.outcomes().values()) == ["failed"] * failed
    place.run("run", "--name", "r", "--", "false", ":::", *"abcd")
    assert place.outcomes() == dict.fromkeys("abcd", "failed")


def test_halt_now_kills_what_runs(place: Place) -> None:
    script = """
    echo $AGENTOS_ITEM >> begun
    if [ $AGENTOS_ITEM = a ]; then until [ -e b ]; do sleep 0.02; done; exit 1; fi
    touch b; sleep 600
    """
    place.asked_for("begun")
    place.asked_for("b")

    ended = place.run("run", "-j", "2", "--halt", "now,fail=1", "--", "sh", "-c", script, ":::", *"abc")

    assert ended.code == 3
    assert place.outcomes() == {"a": "failed"}
    assert "1 interrupted" in ended.err


def test_nothing_starts_after_the_deadline(place: Place) -> None:
    script = "echo $AGENTOS_ITEM >> begun; until grep -q 'deadline' said; do sleep 0.02; done"
    program = place.start("run", "-j", "1", "--deadline", "6s", "--", "sh", "-c", script, ":::", "a", "b")
    said = place.write("said", "")
    program.err.wait_for("Stopping because of")
    said.write_text("deadline")

    ended = program.ended()

    assert ended.code == 3
    assert place.lines("begun") == ["a"]
    assert place.outcomes() == {"a": "done"}
    assert "1 not begun" in ended.err


def test_a_folder_that_cannot_be_made_is_refused_with_what_to_do(place: Place) -> None:
    place.write("a-file", "")
    for folder in ("a-file", "a-file/base", "/proc/no-such"):
        refused = place.run("run", "--dir", folder, "--", "true", ":::", "a")

        assert refused.code == 2, refused
        assert "the run's folder cannot be used" in refused.err, refused
        assert "--dir" in refused.err


def test_a_typed_number_of_workers_is_taken_as_typed(place: Place) -> None:
    typed = place.run("run", "-j", "50", "--", "true", ":::", "a")
    bare = place.run("run", "--parallel", "--", "true", ":::", "c")

    assert "with 50 workers" in typed.err
    assert "above" not in typed.err
    assert "with 3 workers" in bare.err


def test_a_run_can_be_looked_at_while_it_is_on_and_after(place: Place) -> None:
    script = """
    echo hello from $AGENTOS_ITEM
    case $AGENTOS_ITEM in
        quick) ;;
        bad) echo no good >&2; exit 9 ;;
        *) until [ -e go ]; do sleep 0.02; done; echo bye ;;
    esac
    """

    def states() -> dict[str, str]:
        return {line.split("\t")[1]: line.split("\t")[0] for line in place.run("show", "night", "--items").lines}

    program = place.start(
        "run", "--name", "night", "-j", "2", "--", "sh", "-c", script, ":::", "quick", "bad", "slow", "late"
    )
    wait_until(lambda: (place.run_folder("night") / "logs" / "late.log").exists(), "the last has begun")

    during = place.run("show", "night", "--json")
    state = json.loads(during.out)
    assert during.code == 0
    assert json.dumps(state).count("night")
    wait_until(lambda: states() == {"quick": "done", "bad": "failed", "slow": "running", "late": "running"}, "all told")
    assert "on" in place.run("runs").out
    follower = place.start("logs", "-f", "night", "slow")
    follower.out.wait_for("hello from slow")
    place.write("go", "")

    assert program.ended().code == 1
    followed = follower.ended()
    assert (followed.code, followed.lines[-2]) == (0, "bye")
    assert followed.lines[-1].startswith("--- attempt 1 done after ")
    shown = place.run("show").out
    assert "3 of 4 done, 1 failed" in shown
    assert "exit 9" in shown
    assert "agentos retry night" in shown
    assert place.run("logs", "night", "bad").lines[-2] == "no good"
    assert place.run("logs", "night", "ba", "--tail", "2").lines[0] == "no good"
    assert "no good" in place.run("show", "night", "--failed").out
    nothing = place.run("logs", "night", "nobody")
    assert nothing.code == 2
    assert "nobody" in nothing.err
    unknown = place.run("show", "nigth")
    assert unknown.code == 2
    assert "night" in unknown.err
