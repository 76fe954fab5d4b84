"""`agentos demo`: a real run is killed, continued, and checked."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agentos.cli.demo import scenario
from agentos.cli.demo.checks import Evidence, check_promises
from agentos.cli.demo.demo_folder import DemoFolder
from agentos.cli.demo.demo_provider import DEAD, SLOW, build_provider, count_slots
from agentos.cli.exit_codes import ExitCode
from agentos.cli.main import main
from agentos.cli.usage_error import UsageError
from agentos.runs.report.run_report import build_report
from agentos.simulator import Simulator, Statistics, Tally

from ...page.report_reader import all_bytes, read_data

ITEMS = 30
COMMAND = [sys.executable, "-m", "agentos.cli", "demo"]


def environment(root: Path, **more: str) -> dict[str, str]:
    """A user with an empty home, and with a folder for temporary files."""
    for name in ("home", "tmp"):
        (root / name).mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTOS_", "XDG_"))}
    package = str(Path(__file__).parents[3])
    return {**kept, "HOME": str(root / "home"), "TMPDIR": str(root / "tmp"), "PYTHONPATH": package, **more}


@dataclass(frozen=True, slots=True)
class Played:
    """A demo that was played to its end, its folder kept."""

    root: Path
    code: int
    out: str
    err: str
    left: bool  # whether a process of it was still there

    @property
    def folder(self) -> Path:
        (found,) = (self.root / "tmp").iterdir()
        return found

    @property
    def run(self) -> Path:
        (found,) = (self.folder / ".agentos" / "runs").iterdir()
        return found


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """One demo for all tests that only look, of a user whose own settings would spoil it."""
    root = tmp_path_factory.mktemp("demo")
    (root / "config" / "agentos").mkdir(parents=True)
    (root / "config" / "agentos" / "agentos.toml").write_text("no configuration at all")
    spoilt = {"AGENTOS_PARALLEL": "1", "AGENTOS_STORE": "memory", "http_proxy": "http://127.0.0.1:1"}
    demo = subprocess.Popen(
        [*COMMAND, "--items", str(ITEMS), "--keep"],
        env=environment(root, XDG_CONFIG_HOME=str(root / "config"), **spoilt),
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    out, err = demo.communicate(timeout=150)
    return Played(root, demo.returncode, out, err, is_there(demo.pid))


def is_there(group: int) -> bool:
    """Whether any process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


# The demo as a whole.


def test_every_promise_is_kept(played: Played) -> None:
    assert played.code == ExitCode.OK, played.out + played.err
    assert len(re.findall(r"^  kept    .{,90}$", played.out, re.MULTILINE)) == 6  # they fit on a terminal
    assert "BROKEN" not in played.out
    assert f"{ITEMS} of {ITEMS} items done" in played.out


def test_the_run_was_really_killed_and_its_numbers_are_those_of_the_journal(played: Played) -> None:
    report = build_report(played.run)

    killed, resumed = report.sessions
    assert (killed.ended, resumed.ended) == ("crashed", "finished")
    told = re.search(r"(\d+) done before the kill, none of them ran again: (\d+) answers after it", played.out)
    assert told is not None
    assert (int(told[1]), int(told[2])) == (killed.finished, resumed.finished)
    assert killed.finished >= ITEMS // 2
    assert f"kill -9 {killed.pid}" in played.out


def test_the_results_are_all_there(played: Played) -> None:
    results = [json.loads(line) for line in (played.run / "results.jsonl").read_text().splitlines()]

    assert {each["id"] for each in results} == {f"item-{number:03d}" for number in range(1, ITEMS + 1)}
    assert len(results) == ITEMS
    assert all(each["outcome"] == "done" and "Simulated answer" in each["value"] for each in results)


def test_each_command_is_shown_as_a_person_types_it(played: Played) -> None:
    typed = [line for line in played.out.splitlines() if line.startswith("$ ")]

    run = "$ agentos run items.jsonl --worker ask.py:ask -j 16"
    assert typed == [run, run, "$ agentos show", "$ agentos keys", f"$ agentos report -o {played.folder}/report.html"]


def test_it_writes_a_report_without_secrets_and_names_it(played: Played) -> None:
    page = played.folder / "report.html"

    facts, columns = read_data(page)

    assert facts["report"]["counts"]["done"] == len(columns["ids"]) == ITEMS
    assert f"to open in a browser: {page}" in played.out
    secrets = [path.read_bytes().strip() for path in (played.folder / "keys").iterdir()]
    assert not any(secret in all_bytes(page) for secret in secrets)


def test_only_the_report_is_left_of_a_demo_that_is_not_kept(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*COMMAND, "--items", "20"],
        env=environment(tmp_path),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )

    (left,) = (tmp_path / "tmp").iterdir()
    assert left.suffix == ".html"
    assert f"to open in a browser: {left}" in ended.stdout


def test_in_a_pipe_there_are_plain_lines_and_no_secret(played: Played) -> None:
    secrets = [path.read_text().strip() for path in (played.folder / "keys").iterdir()]

    assert len(secrets) == 8
    assert "\x1b" not in played.out + played.err
    assert not any(secret in played.out + played.err for secret in secrets)


def test_nothing_is_left_outside_its_folder_and_no_process(played: Played) -> None:
    assert list((played.root / "home").iterdir()) == []
    assert {path.name for path in played.root.iterdir()} == {"home", "tmp", "config"}
    assert not played.left


@pytest.mark.parametrize(
    ("number", "to_all", "code"),
    [
        pytest.param(signal.SIGINT, True, ExitCode.INTERRUPTED, id="ctrl-c"),
        pytest.param(signal.SIGTERM, False, ExitCode.TERMINATED, id="sigterm"),
    ],
)
def test_a_signal_ends_it_all(tmp_path: Path, number: signal.Signals, to_all: bool, code: ExitCode) -> None:
    demo = subprocess.Popen(
        COMMAND,
        env=environment(tmp_path),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert demo.stdout is not None
    while "key dead" not in demo.stdout.readline():  # other calls are under way then
        assert demo.poll() is None

    (os.killpg if to_all else os.kill)(demo.pid, number)

    told, _ = demo.communicate(timeout=150)
    assert demo.returncode == code, told
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not is_there(demo.pid)
    assert "Traceback" not in told


# What can go wrong.


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_run_that_ends_before_it_can_be_killed_is_reported(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "RUN", ("run", "no-such-file.jsonl", "--worker", "ask.py:ask"))

    with pytest.raises(UsageError, match="ended with code 2 before") as caught:
        scenario.run_demo(20, keep=False)

    assert caught.value.code is ExitCode.SOME_FAILED
    assert list(temporary.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))

    with pytest.raises(UsageError, match="cannot be written: No such file") as caught:
        scenario.run_demo(20, keep=False)

    assert "TMPDIR" in str(caught.value.hint)


def test_a_machine_without_a_loopback_is_reported(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: Simulator) -> None:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr(Simulator, "start", start)

    with pytest.raises(UsageError, match=r"cannot listen on 127\.0\.0\.1: Cannot assign"):
        scenario.run_demo(20, keep=False)

    assert list(temporary.iterdir()) == []


def test_a_closed_pipe_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(items: int, *, keep: bool) -> ExitCode:
        raise BrokenPipeError

    monkeypatch.setattr(scenario, "run_demo", play)

    assert main(["demo"]) == ExitCode.OK


def test_too_few_items_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--items", "3"]) == ExitCode.USAGE
    assert "--items" in capsys.readouterr().err


# The provider and the files.


def test_there_are_eight_keys_in_three_organisations_one_dead_one_slow() -> None:
    plan = build_provider(300)

    assert len(plan.keys) == 8
    assert len(plan.quotas) == 3
    assert [key.name for key in plan.keys if key.dead] == [DEAD]
    assert [key.name for key in plan.keys if key.slowness > 1] == [SLOW]
    assert {key.name for key in plan.keys} == set(count_slots())


def test_secrets_are_new_each_time() -> None:
    assert not set(build_provider(300).secrets) & set(build_provider(300).secrets)


def test_a_secret_in_a_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "acme-1").write_text("a-planted-secret")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "item-1.log").write_bytes(b"\0\xffa-planted-secret\n")
    (tmp_path / "logs" / "item-2.log").write_text("all is well\n")

    assert DemoFolder(tmp_path).find_leaks(("a-planted-secret", "another")) == ["logs/item-1.log"]


# Holding it against what was promised.


def statistics(ok: int, refused: int = 0, dead: int = 3, most: int = 2) -> Statistics:
    keys = {"good": Tally(calls=ok, ok=ok, most_in_flight=most), "dead": Tally(calls=dead)}
    rejected = {"requests": refused, "dead_key": dead}
    return Statistics(Tally(calls=ok + refused + dead, ok=ok, rejected=rejected), keys, {"acme": Tally()})


ALL: Mapping[str, float] = {f"item-{number}": float(number) for number in range(100)}
HALF: Mapping[str, float] = {item: at for item, at in ALL.items() if at < 50}
KEPT = Evidence(
    items=100,
    done_before=HALF,
    done=ALL,
    at_kill=statistics(ok=52),
    at_end=statistics(ok=102, refused=2),
    slots={"good": 2, "dead": 1},
    dead="dead",
)


def test_a_kept_promise_is_printed_with_its_figures() -> None:
    found = list(check_promises(KEPT))

    assert all(promise.kept for promise in found)
    assert [promise.text for promise in found] == [
        "100 of 100 items done",
        "50 done before the kill, none of them ran again: 50 answers after it for the 50 left",
        "107 calls in all, 2 of them refused for a limit (429): 1.9 %",
        "never more calls at once on a key than it has slots",
        "the dead key was tried 3 times, not once after the kill",
        "the secrets of the 2 keys: in no journal, log or result",
    ]


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (replace(KEPT, done={**ALL, "item-99": 99.0, "item-3": 77.0}), "1 of them ran again"),
        (replace(KEPT, at_end=statistics(ok=103)), "51 answers after it for the 50 left"),
        (replace(KEPT, at_end=statistics(ok=102, refused=30)), "30 of them refused"),
        (replace(KEPT, at_end=statistics(ok=102, most=3)), "good had 3, and has 2"),
        (replace(KEPT, at_end=statistics(ok=102, dead=7)), "tried 7 times, 4 of them after the kill"),
        (
            replace(KEPT, at_kill=statistics(ok=52, dead=4), at_end=statistics(ok=102, dead=4)),
            "tried 4 times, not once",
        ),
        (replace(KEPT, leaks=("logs/item-1.log",)), "found in logs/item-1.log"),
        (replace(KEPT, ended_badly=("agentos keys ended with code 70",)), "agentos keys ended with code 70"),
    ],
)
def test_a_broken_promise_is_printed(seen: Evidence, told: str) -> None:
    (broken,) = [promise for promise in check_promises(seen) if not promise.kept]

    assert told in broken.text


def test_a_run_that_goes_on_may_have_to_find_out_again_that_a_key_is_dead() -> None:
    seen = replace(KEPT, at_kill=statistics(ok=52, dead=2), at_end=statistics(ok=102, dead=5))

    assert all(promise.kept for promise in check_promises(seen))


def test_items_that_are_missing_break_the_promise() -> None:
    (first, *_) = check_promises(replace(KEPT, done=HALF))

    assert not first.kept
    assert first.text == "50 of 100 items done"
