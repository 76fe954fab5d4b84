"""Ctrl-Z in a terminal, and ``fg``."""

from __future__ import annotations

from ...process_state import is_stopped
from .harness import Place, Terminal, wait_until

CTRL_Z = b"\x1a"
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"
# Has a second process that has left its group, as a daemon does.
WAITS = (
    "setsid sh -c 'echo $$ >> begun; while [ ! -e go ]; do sleep 0.02; done' & "
    "echo $$ >> begun; while [ ! -e go ]; do sleep 0.02; done"
)


def started(place: Place, *, as_a_job: bool) -> tuple[Terminal, list[int]]:
    terminal = place.terminal("run", "--name", "r", "--", "sh", "-c", WAITS, ":::", "a", as_a_job=as_a_job)
    pids = [int(line) for line in place.wait_for_lines("begun", 2)]
    terminal.out.wait_for("running a")
    return terminal, pids


def test_ctrl_z_stops_the_run_with_all_its_processes_and_fg_continues_them(place: Place) -> None:
    terminal, pids = started(place, as_a_job=True)

    terminal.press(CTRL_Z)
    terminal.out.wait_for("[SIGTSTP]")  # what the shell saw: a job stopped as any other is
    wait_until(lambda: all(is_stopped(pid) for pid in pids), "both processes of the command are stopped")
    shown, _, _ = terminal.out.text.partition("[SIGTSTP]")
    assert shown.rindex(SHOW_CURSOR) > shown.rindex(HIDE_CURSOR)  # the shell has the terminal as it was

    terminal.press(b"fg\n")
    wait_until(lambda: not any(is_stopped(pid) for pid in pids), "both go on")
    wait_until(lambda: HIDE_CURSOR in terminal.out.text.partition("[SIGTSTP]")[2], "the display is drawn again")
    terminal.press(CTRL_Z)  # once more: our handler is in its place again
    wait_until(lambda: terminal.out.text.count("[SIGTSTP]") == 2, "it stops again")
    terminal.press(b"fg\n")
    place.write("go", "")

    assert terminal.ended().code == 0
    assert place.outcomes("r") == {"a": "done"}


def test_ctrl_z_without_a_shell_to_continue_the_run_does_not_stop_it(place: Place) -> None:
    terminal, _ = started(place, as_a_job=False)

    terminal.press(CTRL_Z)
    wait_until(lambda: terminal.out.text.count(HIDE_CURSOR) == 2, "the display comes back")
    place.write("go", "")

    assert terminal.ended().code == 0
    assert place.outcomes("r") == {"a": "done"}
