"""``agentos env`` prints what a program needs, in a form that a shell evaluates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentos.agents.programs import PROGRAMS
from agentos.cli.commands.env import env
from agentos.cli.main import main
from agentos.cli.usage_error import UsageError
from tests.cli.invoke import call

TOKEN = "token'of $the gateway"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTOS_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("THE_TOKEN", TOKEN)
    return tmp_path


def write_gateway(home: Path, name: str = "gateway.json", *, mode: int = 0o600, **fields: Any) -> None:
    folder = home / "state" / "gateway"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps({"port": 8089, "token": TOKEN, "pid": os.getpid()} | fields))
    path.chmod(mode)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_shell_that_evaluates_the_lines_has_the_variables(
    program: str, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_gateway(home)

    assert call(env, program) == 0

    script = capfd.readouterr().out + "\nenv -0"
    ended = subprocess.run(["sh", "-eu", "-c", script], capture_output=True, text=True, check=True)
    got = dict(line.split("=", 1) for line in ended.stdout.split("\0") if "=" in line)
    wanted = PROGRAMS[program].environment("http://127.0.0.1:8089", TOKEN)
    assert {name: got.get(name) for name in wanted} == wanted


def test_flags_become_a_function_that_passes_them(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_gateway(home)
    folder = home / "bin"
    folder.mkdir()
    (folder / "codex").write_text('#!/bin/sh\nfor word; do printf "%s\\n" "$word"; done\n')
    (folder / "codex").chmod(0o755)

    call(env, "codex")

    script = capfd.readouterr().out + "\ncodex exec 'say hi'"
    path = f"{folder}:{os.environ['PATH']}"
    ended = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env={"PATH": path})
    assert ended.stdout.splitlines() == [
        *PROGRAMS["codex"].arguments("http://127.0.0.1:8089", TOKEN),
        "exec",
        "say hi",
    ]


def test_a_variable_that_would_win_is_unset(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_gateway(home)

    call(env, "claude")

    script = capfd.readouterr().out + '\nprintf "%s" "${ANTHROPIC_AUTH_TOKEN-unset}"'
    ended = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=True, env={"ANTHROPIC_AUTH_TOKEN": "x"}
    )
    assert ended.stdout == "unset"


def test_an_address_can_be_named_with_a_token_from_a_variable(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(env, "openai", "--url", "http://127.0.0.1:9/", "--token", "env:THE_TOKEN", "--json") == 0

    told = json.loads(capfd.readouterr().out)
    assert told["variables"] == {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": TOKEN}


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        (["vim"], "no program 'vim'"),
        (["claude"], "no gateway runs: there is no file of one in"),
        (["claude", "--port", "7"], "no gateway runs on port 7"),
        (["claude", "--url", "http://127.0.0.1:9"], "--url and --token go together"),
        (["claude", "--url", "ftp://x", "--token", "env:THE_TOKEN"], "--url must be an address"),
        (["claude", "--url", "http://u:p@x", "--token", "env:THE_TOKEN"], "--url must be an address"),
        (["claude", "--url", "http://x", "--token", "typed-secret"], "--token must be env:NAME"),
        (["claude", "--url", "http://x", "--token", "env:NOT_SET"], "NOT_SET is not set"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(typed: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        call(env, *typed)

    assert "typed-secret" not in refused.value.message


def test_one_of_several_gateways_is_chosen_by_its_port(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_gateway(home, "a.json", port=8001)
    write_gateway(home, "b.json", port=8002, url="http://127.0.0.1:8002")

    with pytest.raises(UsageError, match="2 gateways run") as refused:
        call(env, "openai")
    call(env, "openai", "--port", "8002")

    assert refused.value.hint == "choose one with --port: 8001, 8002"
    assert "http://127.0.0.1:8002/v1" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("mode", "fields"),
    [
        (0o644, {}),  # others have read it, or written it
        (0o600, {"pid": 2**22 + 1}),  # no such process
        (0o600, {"token": ""}),
        (0o600, {"port": "8089"}),
    ],
)
def test_a_file_that_is_not_that_of_a_running_gateway_is_not_used(
    home: Path, mode: int, fields: dict[str, Any]
) -> None:
    write_gateway(home, mode=mode, **fields)

    with pytest.raises(UsageError, match="no gateway runs"):
        call(env, "claude")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_gateway_that_was_killed_and_not_reaped_is_not_used(home: Path) -> None:
    """As in a container whose first process reaps nothing."""
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        write_gateway(home, pid=process.pid)

        with pytest.raises(UsageError, match="no gateway runs"):
            call(env, "claude")


def test_the_command_is_registered(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_gateway(home)

    assert main(["env", "anthropic"]) == 0
    assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:8089" in capfd.readouterr().out
