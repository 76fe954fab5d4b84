"""Messages of real runs: at the end, after a kill, and with a receiver that never answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentos.cli.exit_codes import ExitCode

from ...notify.receiver import Receiver

COMMAND = [sys.executable, "-m", "agentos.cli", "run", "--name", "told"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTOS_", "XDG_"))}
    package = str(Path(__file__).parents[3])
    return {**kept, "HOME": str(tmp_path), "AGENTOS_HOME": str(tmp_path / "home"), "PYTHONPATH": package}


def type_run(folder: Path, environ: dict[str, str], *typed: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*COMMAND, *typed], cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_the_end_of_a_run_is_posted_and_its_variable_is_not_passed_on(tmp_path: Path, environ: dict[str, str]) -> None:
    with Receiver() as receiver:
        environ["HOOK_URL"] = receiver.url
        run = type_run(
            tmp_path, environ, "--notify", "json:env:HOOK_URL", "--", "sh", "-c", "env; test {} = a", ":::", "a", "b"
        )
        out, err = run.communicate(timeout=150)
        message: dict[str, Any] = receiver.received.get(timeout=60)

    assert run.returncode == ExitCode.SOME_FAILED
    assert (message["event"], message["done"], message["failed"]) == ("ended", 1, 1)
    assert message["next"] == "agentos retry told"
    assert b"HOOK_URL" not in out
    written = b"".join(path.read_bytes() for path in (tmp_path / ".agentos").rglob("*") if path.is_file())
    assert b"SECRET" not in out + err + written


def test_a_killed_run_is_told_of_with_the_command_that_resumes(tmp_path: Path, environ: dict[str, str]) -> None:
    os.mkfifo(tmp_path / "begun")
    with Receiver() as receiver:
        environ["HOOK_URL"] = receiver.url
        script = "echo x > begun; exec sleep 600"
        run = type_run(tmp_path, environ, "--notify", "json:env:HOOK_URL", "--", "sh", "-c", script, ":::", "a")
        with open(tmp_path / "begun", "rb") as begun:
            assert begun.read() == b"x\n"
        run.send_signal(signal.SIGKILL)
        run.communicate(timeout=150)
        message = receiver.received.get(timeout=60)

    assert message["event"] == "crashed"
    assert message["next"].startswith(f"cd {tmp_path} && agentos run --name told")


def test_a_receiver_that_never_answers_does_not_hold_the_run(tmp_path: Path, environ: dict[str, str]) -> None:
    with Receiver(hangs=True) as receiver:
        environ["HOOK_URL"] = receiver.url
        run = type_run(tmp_path, environ, "--notify", "slack:env:HOOK_URL", "--", "true", ":::", "a")
        run.communicate(
            timeout=150
        )  # it ends although the receiver has not answered, and will not before this block ends
        message = receiver.received.get(timeout=60)

    assert run.returncode == ExitCode.OK
    assert message["text"].startswith("told ended. 1 of 1 done")


def test_a_stop_by_a_signal_is_told_by_a_command(tmp_path: Path, environ: dict[str, str]) -> None:
    os.mkfifo(tmp_path / "begun")
    os.mkfifo(tmp_path / "message")
    script = "echo x > begun; exec sleep 600"
    run = type_run(
        tmp_path, environ, "--grace", "0", "--notify", f"tee {tmp_path}/message", "--", "sh", "-c", script, ":::", "a"
    )
    with open(tmp_path / "begun", "rb") as begun:
        assert begun.read() == b"x\n"
    run.send_signal(signal.SIGTERM)
    with open(tmp_path / "message", "rb") as told:
        message = json.loads(told.read())
    run.communicate(timeout=150)

    assert message["event"] == "stopped"
    assert run.returncode == ExitCode.TERMINATED


def test_nobody_is_told_with_none(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / ".config" / "agentos").mkdir(parents=True)
    (tmp_path / ".config" / "agentos" / "agentos.toml").write_text('[[notify]]\ncommand = ["touch", "told"]\n')
    run = type_run(tmp_path, environ, "--notify", "none", "--", "true", ":::", "a")
    run.communicate(timeout=150)

    assert run.returncode == ExitCode.OK
    assert not (tmp_path / ".agentos" / "runs" / "told" / "notify.log").exists()
