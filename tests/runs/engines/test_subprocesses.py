"""Commands as workers: real processes, their ends, process trees and keys."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentos import (
    Command,
    Credential,
    CredentialCoordinator,
    ParallelCoordinator,
    Progress,
    ProgressStats,
    WorkflowResult,
)
from agentos.runs.engines.subprocess_results import CommandAttempts
from agentos.runs.output.capture import OutputCapture
from agentos.testing import FakeClock

from ...background_threads import PATIENCE, Background

SECRET = "sk-planted-QWERTZUIOPASDFGH"


def run(
    items: Iterable[Any],
    argv: list[str],
    *,
    pool: CredentialCoordinator | None = None,
    workers: int = 2,
    **options: Any,
) -> tuple[ProgressStats, dict[str, WorkflowResult]]:
    command = {
        name: options.pop(name)
        for name in ("env_key", "idle_timeout", "kill_after", "stdin", "env", "run_id", "without")
        if name in options
    }
    options.setdefault("retries", 0)
    coordinator = ParallelCoordinator(workers, pool, **options)
    stats, results = coordinator.execute_parallel(items, Command(argv, **command), str)
    return stats, {result.item_id: result for result in results}


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- how it went ----------------------------------------------------------------------------------------------------


def test_a_command_that_ends_well_is_done_and_its_output_is_the_value() -> None:
    stats, results = run(["a", "b c"], ["printf", "%s!", "{}"])

    assert (stats.success_count, stats.failed) == (2, 0)
    assert results["b c"].value == {"exit": 0, "stdout": "b c!", "truncated": False}


@pytest.mark.parametrize(
    ("script", "error", "exit_code", "number"),
    [
        ("echo fine; echo broken >&2; exit 3", "exit 3: broken", 3, None),
        ("exit 1", "exit 1", 1, None),
        ("kill -SEGV $$", "killed by SIGSEGV", None, signal.SIGSEGV),
    ],
)
def test_a_command_that_ends_badly_has_failed(script: str, error: str, exit_code: int, number: int) -> None:
    _, results = run(["x"], shell(script))

    assert results["x"].error == error
    assert results["x"].metadata["error_type"] == "CommandFailed"
    assert (results["x"].metadata["exit"], results["x"].metadata["signal"]) == (exit_code, number)


def test_a_program_that_is_not_there_fails_its_items(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")

    _, missing = run(["x"], ["no-such-program-anywhere"])
    _, forbidden = run(["x"], [str(plain)])

    assert missing["x"].error == "command not found: no-such-program-anywhere"
    assert missing["x"].metadata["exit"] == 127
    assert "permission denied" in str(forbidden["x"].error).lower()


def test_an_item_is_also_in_the_environment_and_on_standard_input(tmp_path: Path) -> None:
    _, results = run(
        ["it's $HOME"],
        shell('printf "%s|" "$AGENTOS_ITEM" "$AGENTOS_ITEM_ID" "$AGENTOS_ATTEMPT" "$AGENTOS_RUN_ID"; cat'),
        stdin=True,
        run_id="nightly",
    )

    assert results["it's $HOME"].value["stdout"] == "it's $HOME|it's $HOME|1|nightly|it's $HOME"


def test_without_standard_input_a_command_finds_nothing_there() -> None:
    _, results = run(["x"], shell("cat"))

    assert results["x"].value["stdout"] == ""


def test_slots_are_numbered_from_one_and_never_held_by_two(tmp_path: Path) -> None:
    script = 'mkdir "$0/$AGENTOS_SLOT" || exit 9; rmdir "$0/$AGENTOS_SLOT"; echo $AGENTOS_SLOT'

    stats, results = run([str(n) for n in range(30)], [*shell(script), str(tmp_path)], workers=3)

    assert stats.success_count == 30
    assert {result.value["stdout"].strip() for result in results.values()} <= {"1", "2", "3"}


def test_a_checkpoint_is_kept_after_a_failure_found_by_the_next_attempt_and_removed_on_success(tmp_path: Path) -> None:
    script = 'cat "$AGENTOS_WORKFLOW_DB" 2>/dev/null || { echo half >"$AGENTOS_WORKFLOW_DB"; exit 1; }'
    folder = tmp_path / "run"

    run(["x"], shell(script), journal=folder)
    kept = [path.name for path in (folder / "checkpoints").iterdir()]
    _, results = run(["x"], shell(script), journal=folder, retry_failed=True)

    assert kept == ["x"]
    assert results["x"].value["stdout"] == "half\n"
    assert not (folder / "checkpoints").exists()


# -- keys -----------------------------------------------------------------------------------------------------------


def test_the_credential_comes_by_environment_only_and_no_other_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELSEWHERE", SECRET)
    monkeypatch.setenv("OTHER_KEY", "sk-other-QWERTZUIOPASDFGH")
    pool = CredentialCoordinator(
        [
            Credential(SECRET, name="alice", env={"REGION": "eu"}, base_url="https://api.example.com/v1"),
            Credential("sk-other-QWERTZUIOPASDFGH", name="bob", slots=1),
        ]
    )
    script = 'env | grep -c planted; env | grep -c sk-other; echo "$REGION $AGENTOS_BASE_URL"; test -n "$MY_KEY"'

    _, results = run(["x"], shell(script), pool=pool, env_key="MY_KEY")

    (result,) = results.values()
    assert (
        result.value["stdout"]
        == {
            "alice": "1\n0\neu https://api.example.com/v1\n",
            "bob": "0\n1\n \n",
        }[str(result.credential)]
    )


def test_a_secret_that_a_command_prints_is_blotted_out_everywhere(tmp_path: Path) -> None:
    pool = CredentialCoordinator([Credential(SECRET, name="alice")])
    script = 'printf "%s" "$K" | head -c 12; sleep 0; printf "%s\\n" "$K" | tail -c +13; echo "bad $K" >&2; exit 1'

    _, results = run(["x"], shell(script), pool=pool, env_key="K", journal=tmp_path / "run")

    assert "planted" not in repr(results["x"])
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or b"QWERTZUI" not in path.read_bytes()


@pytest.mark.parametrize(
    ("said", "state", "why"),
    [
        ('{"rate_limited": 3600}', "parked", "sh reported a rate limit (x)"),
        ('{"rejected": "401 invalid key"}', "dead", "sh reported 401 invalid key (x)"),
        ('{"spent": "no money"}', "spent", "sh reported no money (x)"),
    ],
)
def test_a_key_reported_in_the_outcome_file_is_replaced_for_the_item(
    said: str, state: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool = CredentialCoordinator(
        [Credential(SECRET, name="alice"), Credential("sk-other-QWERTZUIOPASDFGH", name="bob")]
    )
    script = 'if [ "$AGENTOS_CREDENTIAL_NAME" = alice ]; then printf "%s" "$0" >"$AGENTOS_OUTCOME"; exit 1; fi; echo ok'

    stats, results = run(["x", "y"], [*shell(script), said], pool=pool, workers=1)

    assert stats.success_count == 2
    assert {result.credential for result in results.values()} == {"bob"}
    assert {row.name: (row.state, row.why) for row in pool.snapshot()} == {
        "alice": (state, why),
        "bob": ("available", ""),
    }
    assert caplog.text.count("alice") == 1, "said once"


def test_usage_that_a_command_reports_is_settled_and_in_its_value() -> None:
    pool = CredentialCoordinator([Credential(SECRET, name="alice", tpm=1000)])

    _, results = run(["x"], shell("""echo '{"usage": {"tokens": 400}}' >"$AGENTOS_OUTCOME" """), pool=pool)

    assert results["x"].value["usage"] == {"tokens": 400.0}
    (row,) = pool.snapshot()
    assert row.limits[0].left < 700


def test_a_command_may_say_why_its_item_failed() -> None:
    _, results = run(["x"], shell("""echo '{"failed": "no such repository"}' >"$AGENTOS_OUTCOME" """))

    assert results["x"].error == "no such repository"


def test_an_invalid_outcome_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    _, results = run(["x"], shell("""echo '{"rate_limit": 3}' >"$AGENTOS_OUTCOME" """))

    assert results["x"].success
    assert "'rate_limit'" in caplog.text


# -- commands that do not end by themselves -------------------------------------------------------------------------

STUBBORN = """
trap '' TERM; (trap '' TERM; setsid sh -c 'trap "" TERM; echo $$ >"$0/escaped"; while :; do sleep 1; done' "$0" &
while :; do sleep 1; done) &
echo $! >"$0/child"; echo $$ >"$0/parent"; while :; do sleep 1; done
"""


def stubborn_pids(folder: Path) -> list[int]:
    names = ("parent", "child", "escaped")
    until(lambda: all((folder / name).exists() and (folder / name).read_text().strip() for name in names))
    return [int((folder / name).read_text()) for name in names]


def overrunning(argv: list[str], folder: Path, *, kill_after: float) -> tuple[WorkflowResult, list[int]]:
    """Run one item whose time is over as soon as its stubborn processes are all there. The result, and they."""
    clock = FakeClock()

    def let_time_pass() -> list[int]:
        try:
            return stubborn_pids(folder)
        finally:
            clock.advance(60.0)

    with ThreadPoolExecutor(1) as aside:
        pids = aside.submit(let_time_pass)
        _, results = run(["x"], argv, clock=clock, timeout=60.0, kill_after=kill_after)
    return results["x"], pids.result()


def test_a_command_that_overruns_its_timeout_is_killed_with_its_whole_tree(tmp_path: Path) -> None:
    result, pids = overrunning([*shell(STUBBORN), str(tmp_path)], tmp_path, kill_after=0.2)

    assert result.error == "timed out after 60s"
    until(lambda: not any(map(is_alive, pids)))


def test_a_command_that_falls_silent_is_stopped_and_one_that_talks_is_not() -> None:
    _, results = run(["silent"], shell("echo hello; sleep 60"), idle_timeout=0.3)
    _, talking = run(["talks"], shell("for i in 1 2 3 4 5 6; do echo $i; sleep 0.1; done"), idle_timeout=5)

    assert results["silent"].error == "silent for 0.3s, and stopped"
    assert talking["talks"].success


def test_what_a_command_leaves_in_the_background_holds_up_nothing_and_is_ended(tmp_path: Path) -> None:
    _, results = run(["x"], [*shell('sleep 60 & echo $! >"$0/pid"; echo done'), str(tmp_path)])

    assert results["x"].value["stdout"] == "done\n"
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not is_alive(pid))


def test_what_is_left_in_the_background_and_ignores_that_it_is_to_end_is_killed(tmp_path: Path) -> None:
    left = '(trap "" TERM; echo $(exec sh -c "echo \\$PPID") >"$0/pid"; while :; do sleep 1; done) &'
    script = left + ' until [ -s "$0/pid" ]; do :; done'

    run(["x"], [*shell(script), str(tmp_path)], journal=tmp_path / "run")

    pid = int((tmp_path / "pid").read_text())
    until(lambda: not is_alive(pid))


def test_a_forced_stop_kills_what_runs(tmp_path: Path) -> None:
    coordinator = ParallelCoordinator(1, journal=tmp_path / "run")
    command = Command([*shell(STUBBORN), str(tmp_path)])

    def stop() -> None:
        stubborn_pids(tmp_path)
        coordinator.shutdown(force=True)

    stopping = threading.Thread(target=stop)
    stopping.start()

    stats, results = coordinator.execute_parallel(["x", "y"], command, str)
    stopping.join()

    assert (results, stats.interrupted) == ([], 1)
    until(lambda: not any(map(is_alive, stubborn_pids(tmp_path))))


# -- processes that are killed --------------------------------------------------------------------------------------

DRIVER = """
import sys
from agentos import Command, ParallelCoordinator
folder = sys.argv[1]
command = Command(["sh", "-c", sys.argv[2], folder])
ParallelCoordinator(1, journal=folder + "/run").execute_parallel(["x"], command, str)
"""


def start_driver(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", DRIVER, str(folder), STUBBORN])


def test_when_the_driver_is_killed_every_process_of_its_items_is_gone_soon(tmp_path: Path) -> None:
    with start_driver(tmp_path) as driver:
        pids = stubborn_pids(tmp_path)
        driver.kill()

    until(lambda: not any(map(is_alive, pids)))


def test_what_outlived_driver_and_helper_is_found_named_and_ended_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start_driver(tmp_path) as driver:
        pids = stubborn_pids(tmp_path)
        helper = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
        driver.send_signal(signal.SIGSTOP)  # or it sees that its helper is gone, and ends the processes itself
        os.kill(helper, signal.SIGKILL)
        driver.kill()
    assert is_alive(pids[0])

    run(["x"], shell("echo now"), journal=tmp_path / "run", accept_worker=True)

    assert "of an earlier session of this run" in caplog.text
    assert f"pid {pids[0]}, item x" in caplog.text
    until(lambda: not any(map(is_alive, pids)))


def test_a_helper_that_dies_is_replaced_and_its_items_run_again(tmp_path: Path) -> None:
    script = 'if [ -e "$0/pid" ]; then echo ok; else echo $$ >"$0/pid"; kill -KILL $PPID; exec sleep 60; fi'

    stats, results = run(["x"], [*shell(script), str(tmp_path)], retries=2)

    assert results["x"].value["stdout"] == "ok\n"
    assert stats.retried == 1
    assert not is_alive(int((tmp_path / "pid").read_text())), "ended before the item ran again"


def test_three_hundred_commands_at_once_need_no_more_of_their_user_than_a_number(tmp_path: Path) -> None:
    """Each has three pipes, and a process is often allowed a thousand descriptors or fewer."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        script = 'echo $$ >"$0/$AGENTOS_ITEM"; while [ ! -e "$0/go" ]; do sleep 0.2; done'
        command = Command([*shell(script), str(tmp_path)])
        coordinator = ParallelCoordinator(300, max_parallelism=300)

        def let_them_go() -> None:
            until(lambda: len(list(tmp_path.iterdir())) == 300, 40)
            (tmp_path / "go").touch()

        waiting = threading.Thread(target=let_them_go)
        waiting.start()

        stats, _ = coordinator.execute_parallel([str(n) for n in range(300)], command, str)
        waiting.join()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert (stats.success_count, stats.retried) == (300, 0)


# -- ends that concern nobody else -----------------------------------------------------------------------------------


def test_ending_one_attempt_ends_neither_the_next_one_nor_an_item_whose_id_begins_like_it(tmp_path: Path) -> None:
    """What outlives its time is looked for a while later, when others run: they must not be taken for it."""
    script = """
    if [ $AGENTOS_ITEM_ID = 1 ] && [ $AGENTOS_ATTEMPT = 1 ]; then
        setsid sh -c 'trap "" TERM; echo $$ >"$0/outlives"; while :; do sleep 1; done' "$0" >/dev/null 2>&1 &
        exec sleep 60
    fi
    echo $$ >"$0/$AGENTOS_ITEM_ID.$AGENTOS_ATTEMPT"; until [ -e "$0/go" ]; do sleep 0.1; done
    """
    clock = FakeClock()

    def pid_in(name: str) -> int:
        until(lambda: (tmp_path / name).exists() and (tmp_path / name).read_text().strip())
        return int((tmp_path / name).read_text())

    def items() -> Iterator[str]:
        yield "1"
        outlives = pid_in("outlives")
        clock.advance(50.0)
        aside.submit(let_the_first_overrun, outlives)
        yield "10"

    def let_the_first_overrun(outlives: int) -> None:
        try:
            pid_in("10.1")
            clock.advance(50.0)
            pid_in("1.2")
            until(lambda: not is_alive(outlives))
        finally:
            (tmp_path / "go").touch()

    def rest_is_over(event: Progress) -> None:
        if event.kind == "item_retried":
            clock.advance(40.0)

    with ThreadPoolExecutor(1) as aside:
        stats, results = run(
            items(),
            [*shell(script), str(tmp_path)],
            journal=tmp_path / "run",
            clock=clock,
            timeout=100.0,
            kill_after=0.4,
            retries=1,
            on_progress=rest_is_over,
        )

    assert {item: result.error for item, result in results.items()} == {"1": None, "10": None}
    assert stats.retried == 1


def test_a_run_nested_in_an_item_ends_with_it(tmp_path: Path) -> None:
    """Its helper is not taken for a process of the outer item: it is the one to end the inner commands."""
    script = 'exec "$0" -c "$1" "$2" "$3"'
    argv = [*shell(script), sys.executable, DRIVER, str(tmp_path), STUBBORN]

    result, pids = overrunning(argv, tmp_path, kill_after=0.3)

    assert result.error == "timed out after 60s"
    until(lambda: not any(map(is_alive, pids)))


def test_an_item_of_a_nested_run_is_told_nothing_of_the_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOS_ITEM_FILE", "/from-without")
    monkeypatch.setenv("AGENTOS_CREDENTIAL_NAME", "from-without")

    _, results = run(["x"], shell("env | grep -c from-without; true"))

    assert results["x"].value["stdout"] == "0\n"


def test_a_pipe_or_a_link_in_the_place_of_an_outcome_holds_up_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = tmp_path / "elsewhere"
    secret.write_text('{"failed": "read by mistake"}')
    script = 'if [ $AGENTOS_ITEM = pipe ]; then mkfifo $AGENTOS_OUTCOME; else ln -s "$0" $AGENTOS_OUTCOME; fi'

    stats, _ = run(["pipe", "link"], [*shell(script), str(secret)])

    assert stats.success_count == 2
    assert "it is not a regular file" in caplog.text


def test_what_a_command_still_has_to_pass_on_when_it_ends_is_not_cut_off(tmp_path: Path) -> None:
    """Its output goes through a process that is slower than it is, and no child it waits for."""
    script = 'mkfifo "$0/p"; { sleep 0.3; cat "$0/p"; } & exec >"$0/p"; seq 1 2000; echo last'

    _, results = run(["x"], [*shell(script), str(tmp_path)])

    assert results["x"].value["stdout"].endswith("2000\nlast\n")


def test_a_command_that_had_ended_well_before_it_was_asked_to_is_done(tmp_path: Path) -> None:
    """The driver stood still meanwhile, as after Ctrl-Z, and found the time over when it woke."""
    driver = """
import sys, time
from agentos import Command, ParallelCoordinator
from agentos.util.clock import SystemClock
from pathlib import Path
folder = Path(sys.argv[1])
class Leaping(SystemClock):
    def now(self):
        return time.monotonic() + 3600.0 * (folder / "an hour later").exists()
    def wait(self, sleeper, until):
        while self.now() < until and not sleeper.acquire(True, 0.001):
            pass
command = Command(["sh", "-c", 'echo $$ >>"$0/ran"; until [ -e "$0/go" ]; do sleep 0.1; done', str(folder)])
run = ParallelCoordinator(1, timeout=3000.0, retries=1, clock=Leaping())
stats, results = run.execute_parallel(["x"], command, str)
(folder / "end").write_text(f"{results[0].error} {stats.retried}")
"""
    with subprocess.Popen([sys.executable, "-c", driver, str(tmp_path)]) as process:
        until(lambda: (tmp_path / "ran").exists() and (tmp_path / "ran").read_text().strip())
        process.send_signal(signal.SIGSTOP)
        (tmp_path / "go").touch()
        pid = (tmp_path / "ran").read_text().strip()
        until(lambda: not Path("/proc", pid).exists())  # its helper has seen its end
        (tmp_path / "an hour later").touch()
        process.send_signal(signal.SIGCONT)

    assert (tmp_path / "end").read_text() == "None 0"
    assert (tmp_path / "ran").read_text() == f"{pid}\n", "it ran once"


def test_a_process_that_left_its_session_and_cleared_its_environment_ends_with_the_driver(tmp_path: Path) -> None:
    script = 'env -i setsid sh -c "echo \\$\\$ >$0/escaped; exec sleep 60" & echo $$ >"$0/parent"; wait'
    with subprocess.Popen([sys.executable, "-c", DRIVER.replace("sys.argv[2]", repr(script)), str(tmp_path)]) as driver:
        until(lambda: (tmp_path / "escaped").exists() and (tmp_path / "escaped").read_text().strip())
        pid = int((tmp_path / "escaped").read_text())
        driver.kill()

    until(lambda: not is_alive(pid))


def test_the_descriptors_of_a_command_are_closed_after_it() -> None:
    before = len(os.listdir("/proc/self/fd"))

    run([str(n) for n in range(50)], ["true"], workers=4)
    until(lambda: len(os.listdir("/proc/self/fd")) < before + 25)  # what other tests left behind may open some


class StoppedReader:
    """A screen that takes nothing for a while, as a pipe to a pager does."""

    def __init__(self) -> None:
        self.is_asked, self.reads_on = threading.Event(), threading.Event()

    def line(self, *_: object) -> None:
        self.is_asked.set()
        self.reads_on.wait(PATIENCE)

    def attempt_ended(self, *_: object) -> None: ...


class Kept:
    """A command whose worker waits for the reader of our output, while all the time passes in which it may end."""

    def __init__(self) -> None:
        self.reader, self.clock = StoppedReader(), FakeClock()
        command = Command(
            shell("echo hello; exec sleep 60"), kill_after=0.1, outputs=OutputCapture(None, None, self.reader)
        )
        coordinator = ParallelCoordinator(1, timeout=30.0, retries=0, clock=self.clock)
        self._running = Background(lambda: coordinator.execute_parallel(["x"], command, str))
        assert self.reader.is_asked.wait(PATIENCE)
        for _ in range(3):
            self.passes(30.0)

    def passes(self, seconds: float) -> None:
        """So much time, after which everything is looked at once, and not again and again."""
        self.clock.wait_for_sleepers(1)
        self.clock.advance(seconds)
        self.clock.wait_for_sleepers(1)

    def error(self) -> str | None:
        stats, (result,) = self._running.result()
        assert stats.cause is None
        return result.error


def test_a_worker_blocked_on_our_output_is_neither_abandoned_nor_polled() -> None:
    kept = Kept()

    kept.reader.reads_on.set()

    assert kept.error() == "timed out after 30s"


def test_a_worker_blocked_on_our_output_gets_its_clean_up_time_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    goes_on, may_end, outcome = threading.Event(), threading.Event(), CommandAttempts.evaluate

    def slowly(*arguments: Any) -> Any:
        goes_on.set()
        may_end.wait(PATIENCE)
        return outcome(*arguments)

    monkeypatch.setattr(CommandAttempts, "evaluate", slowly)
    kept = Kept()

    kept.reader.reads_on.set()
    assert goes_on.wait(PATIENCE)
    kept.passes(0.9)
    may_end.set()

    assert kept.error() == "timed out after 30s"
