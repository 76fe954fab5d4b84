"""Ctrl-C, SIGTERM and a closed terminal: items finish or run again, and no process is left."""

from __future__ import annotations

import signal

import pytest

from .harness import Place, flowing, wait_until

# Says that it has begun, waits to be let go, and says that it was done.
GATED = "echo $AGENTOS_ITEM >> begun; while [ ! -e go ]; do sleep 0.02; done; echo $AGENTOS_ITEM >> ended"

PATIENT = ("--grace", "60s")  # for items that end as soon as the test says so


def gated(*items: str, flags: tuple[str, ...] = ()) -> list[str]:
    return ["run", "--name", "r", "-j", "2", *flags, "--", "sh", "-c", GATED, ":::", *items]


def test_ctrl_c_once_lets_running_items_finish_and_starts_no_other(place: Place) -> None:
    place.asked_for("ended")
    terminal = place.terminal(*gated("a", "b", "c", "d"))
    place.wait_for_lines("begun", 2)

    terminal.press(b"\x03")
    said = terminal.out.wait_for("once more to stop at once")
    place.write("go", "")
    ended = terminal.ended()

    # Whichever of them was a moment earlier.
    assert any(f"waiting for 2 running items: {both}" in said for both in ("a, b", "b, a"))
    assert ended.code == 130
    assert sorted(place.lines("ended")) == ["a", "b"], "the terminal's signal must not reach the commands"
    assert place.outcomes() == {"a": "done", "b": "done"}
    assert "resume with the same command" in flowing(ended.out)

    assert place.run(*gated("a", "b", "c", "d")).code == 0
    assert sorted(place.lines("ended")) == ["a", "b", "c", "d"]
    assert place.outcomes() == dict.fromkeys("abcd", "done")


def test_ctrl_c_twice_interrupts_running_items_which_run_again(place: Place) -> None:
    place.asked_for("ended")
    terminal = place.terminal(*gated("a", "b", "c"))
    place.wait_for_lines("begun", 2)

    terminal.press(b"\x03")
    terminal.out.wait_for("once more to stop at once")
    terminal.press(b"\x03")
    ended = terminal.ended()

    assert ended.code == 130
    assert "Traceback" not in ended.out
    assert place.results() == []
    wait_until(lambda: not place.processes(), "the commands are gone")
    shown = place.run("show", "--items", "r").out
    assert sorted(line.split("\t")[1] for line in shown.splitlines() if line.startswith("interrupted")) == ["a", "b"]

    place.write("go", "")
    assert place.run(*gated("a", "b", "c")).code == 0
    assert place.outcomes() == dict.fromkeys("abc", "done")
    assert sorted(place.lines("begun")) == ["a", "a", "b", "b", "c"]


def test_sigterm_drains_and_ends_with_143(place: Place) -> None:
    place.asked_for("ended")
    program = place.start(*gated("a", "b", "c", flags=PATIENT))
    place.wait_for_lines("begun", 2)

    program.signal(signal.SIGTERM)
    program.err.wait_for("Stopping because of SIGTERM")
    place.write("go", "")
    ended = program.ended()

    assert ended.code == 143
    assert place.outcomes() == {"a": "done", "b": "done"}
    assert "stopped by SIGTERM: 1 not begun" in ended.err


def test_sigterm_leaves_items_only_the_grace_it_was_given(place: Place) -> None:
    program = place.start(*gated("a", "b", flags=("--grace", "0.1s")))
    place.wait_for_lines("begun", 2)

    program.signal(signal.SIGTERM)
    ended = program.ended()

    assert ended.code == 143
    assert "2 interrupted" in ended.err
    assert place.results() == []


def test_a_closed_terminal_ends_the_run_as_sigterm_does(place: Place) -> None:
    place.asked_for("ended")
    terminal = place.terminal(*gated("a", "b", "c", flags=PATIENT))
    place.wait_for_lines("begun", 2)

    terminal.hang_up()
    terminal.out.wait_for("Stopping because of SIGTERM")
    place.write("go", "")

    assert terminal.ended().code == 143
    assert place.outcomes() == {"a": "done", "b": "done"}


def test_under_nohup_a_closed_terminal_is_nothing(place: Place) -> None:
    place.asked_for("ended")
    program = place.start(*gated("a", "b", "c"), wrapped_in=["sh", "-c", 'trap "" HUP; exec "$@"', "sh"])
    place.wait_for_lines("begun", 2)

    program.signal(signal.SIGHUP)
    place.write("go", "")

    assert program.ended().code == 0
    assert place.outcomes() == dict.fromkeys("abc", "done")


# The command, a child of it and one in a session of its own: none of them wants to hear of SIGTERM.
STUBBORN = """
trap '' TERM
sh -c "trap '' TERM; echo child >> begun; while :; do sleep 0.1; done" &
setsid sh -c "trap '' TERM; echo escaped >> begun; while :; do sleep 0.1; done" &
echo itself >> begun
while :; do sleep 0.1; done
"""


@pytest.mark.parametrize("ended_by", ["timeout", "idle timeout", "ctrl-c twice", "kill -9", "its parent's end"])
def test_a_process_tree_that_ignores_term_is_killed_to_the_last(place: Place, ended_by: str) -> None:
    # Long enough for all three to begin, also on a machine that stands still for a moment.
    flags = {"timeout": ["--timeout", "4s"], "idle timeout": ["--idle-timeout", "4s"]}.get(ended_by, [])
    script = STUBBORN
    if ended_by == "its parent's end":
        script = script.replace("\nwhile", "\nwhile [ $(wc -l < begun) -lt 3 ]; do sleep 0.02; done; exit 0; while")
    program = place.start(
        *["run", "--retries", "0", "--kill-after", "0.2s", *flags, "--", "sh", "-c", script, ":::", "a"]
    )
    place.wait_for_lines("begun", 3)

    if ended_by == "ctrl-c twice":
        program.signal(signal.SIGINT)
        program.err.wait_for("once more to stop at once")
        program.signal(signal.SIGINT)
    elif ended_by == "kill -9":
        program.signal(signal.SIGKILL)

    assert program.ended().code == {"ctrl-c twice": 130, "kill -9": -9, "its parent's end": 0}.get(ended_by, 1)
    wait_until(lambda: not place.processes(), f"all of them are gone; there is {place.processes()}")
