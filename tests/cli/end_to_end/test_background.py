"""Runs in the background: `agentos run --detach` starts one, `agentos attach` shows it, Ctrl-C only leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.cli.exit_codes import ExitCode
from agentos.runs.report.run_report import build_report

TIMEOUT = 120
AGENTOS = [sys.executable, "-m", "agentos.cli"]
# Each item waits until the test opens the pipe of its name.
SCRIPT = "echo begun {}; cat {}.pipe; echo ended {}"


class Desk:
    """A folder with two items, which end when they are let go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pids: list[int] = []
        (folder / "items.txt").write_text("a\nb\n")
        for name in ("a", "b"):
            os.mkfifo(folder / f"{name}.pipe")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTOS_", "XDG_"))}
        package = str(Path(__file__).parents[3])
        self.environ = {**kept, "HOME": str(folder), "AGENTOS_HOME": str(folder / "home"), "PYTHONPATH": package}

    def type(self, *typed: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*AGENTOS, *typed], cwd=self.folder, env=self.environ, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip

    def detach(self) -> int:
        started = self.type("run", "items.txt", "--name", "bg", "--detach", "--", "sh", "-c", SCRIPT)
        assert started.returncode == ExitCode.OK, started.stderr
        told = re.match(r"bg runs in the background as pid (\d+); its output: (.+)", started.stdout)
        assert told is not None
        assert Path(told[2]) == self.run / "detached.log"
        self.pids.append(int(told[1]))
        return int(told[1])

    def let_go(self, name: str) -> None:
        with open(self.folder / f"{name}.pipe", "wb") as pipe:
            pipe.write(b"x\n")

    @property
    def run(self) -> Path:
        return self.folder / ".agentos" / "runs" / "bg"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    for pid in made.pids:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def test_a_detached_run_has_begun_when_the_command_returns_and_has_its_own_session(desk: Desk) -> None:
    pid = desk.detach()

    assert str(build_report(desk.run).state) == f"running as pid {pid}"
    assert os.getsid(pid) == pid
    assert b"AGENTOS_DETACHED" not in _read_environment_of_a_command(desk)


def _read_environment_of_a_command(desk: Desk) -> bytes:
    """The environment of an item's command, once it has one."""
    desk.let_go("a")  # which waits until its command reads
    found = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    environments = []
    for path in found:
        try:
            if b"b.pipe" in (path / "cmdline").read_bytes():
                environments.append((path / "environ").read_bytes())
        except OSError:
            continue
    return b"".join(environments)


def test_attach_shows_it_to_its_end_and_says_how_it_ended(desk: Desk) -> None:
    desk.detach()
    with subprocess.Popen(
        [*AGENTOS, "attach", "bg", "--progress", "json"], cwd=desk.folder, env=desk.environ, stderr=subprocess.PIPE,
        text=True,
    ) as attached:  # fmt: skip
        assert attached.stderr is not None
        assert json.loads(attached.stderr.readline())["kind"] == "run_started"
        desk.let_go("a")
        assert json.loads(attached.stderr.readline())["item"] == "a"
        desk.let_go("b")
        kinds = [json.loads(line) for line in attached.stderr]
        assert attached.wait(TIMEOUT) == ExitCode.OK

    assert [each["kind"] for each in kinds] == ["item_finished", "run_finished"]
    assert kinds[-1]["done"] == 2
    assert "ended a" in (desk.run / "detached.log").read_text()


def test_ctrl_c_leaves_the_display_and_the_run_goes_on(desk: Desk) -> None:
    pid = desk.detach()
    with subprocess.Popen(
        [*AGENTOS, "attach", "bg"], cwd=desk.folder, env=desk.environ, stderr=subprocess.PIPE, text=True
    ) as attached:
        assert attached.stderr is not None
        assert attached.stderr.readline() == "attached to bg\n"
        attached.send_signal(signal.SIGINT)
        told = attached.stderr.read()
        assert attached.wait(TIMEOUT) == ExitCode.OK

    assert "left; the run goes on: agentos attach bg" in told
    os.kill(pid, 0)
    desk.let_go("a")
    desk.let_go("b")


def test_a_run_that_is_not_on_cannot_be_attached_to(desk: Desk) -> None:
    desk.type("run", "--name", "bg", "--", "true", ":::", "a")

    refused = desk.type("attach", "bg")

    assert refused.returncode == ExitCode.USAGE
    assert refused.stderr.startswith("agentos: bg is not running: it is finished")


def test_a_run_that_does_not_begin_says_why_with_its_exit_code(desk: Desk) -> None:
    refused = desk.type("run", "none.txt", "--detach", "--", "true")

    assert refused.returncode == ExitCode.USAGE
    assert "none.txt: no such file" in refused.stderr
    for typed in (["run", "-", "--detach", "--", "true"], ["run", "items.txt", "--detach", "-n", "--", "true"]):
        assert desk.type(*typed).returncode == ExitCode.USAGE


def test_the_same_command_continues_a_detached_run(desk: Desk) -> None:
    pid = desk.detach()
    os.kill(pid, signal.SIGKILL)
    for name in ("a", "b"):
        (desk.folder / f"{name}.pipe").unlink()
        (desk.folder / f"{name}.pipe").write_text("x\n")

    again = desk.type("run", "items.txt", "--name", "bg", "--", "sh", "-c", SCRIPT)

    assert again.returncode == ExitCode.OK, again.stderr
    assert build_report(desk.run).counts["done"] == 2
    assert "--detach" not in (desk.run / "run.json").read_text()


def test_a_program_is_told_of_the_detached_run_as_json(desk: Desk) -> None:
    started = desk.type("run", "--name", "bg", "--detach", "--json", "--", "true", ":::", "a")

    told = json.loads(started.stdout)

    assert (told["event"], told["run"], told["folder"]) == ("detached", "bg", str(desk.run))
    assert isinstance(told["pid"], int)
