"""`agentos watch`: serves the live page until Ctrl-C."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agentos.cli.exit_codes import ExitCode
from agentos.cli.main import main

from ...runs.sample_runs import run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    run(tmp_path / ".agentos" / "runs" / "night", ["a", "b"])
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_at_the_address_that_it_prints_until_it_is_stopped(folder: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "agentos.cli", "watch", "night"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        printed = watching.stdout.readline().split()[-1]
        address = urlsplit(printed)
        assert address.port is not None
        connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=60)
        connection.request("GET", "/api/runs", headers={"x-agentos-token": address.fragment.removeprefix("token=")})
        answer = connection.getresponse().read()
        connection.close()

        watching.send_signal(number)
        _, errors = watching.communicate(timeout=60)

    assert b'"chosen": "night"' in answer
    assert watching.returncode == ExitCode.OK
    assert errors == "Ctrl-C ends this page; runs go on\n"


def test_an_unknown_run_and_a_taken_port_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "day"]) == ExitCode.USAGE
    assert "no run is called 'day'" in capsys.readouterr().err
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["watch", "--port", str(taken.getsockname()[1])]) == ExitCode.USAGE
    assert "cannot be listened on" in capsys.readouterr().err
