"""A simulator in a thread and in a process of its own: starting, ending, and leaving nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from agentos.simulator import Latency, ProviderPlan, Running, Simulator, equal_keys, in_process
from agentos.simulator.__main__ import main
from agentos.simulator.server import Service, listen

ROOT = Path(__file__).parents[2]
PLAN = equal_keys(2, rpm=60, latency=Latency(0, 0))
MAKERS: list[Callable[[ProviderPlan], Running]] = [Simulator, in_process]


def call(simulator: Running, key: int = 0) -> dict[str, object]:
    request = urllib.request.Request(
        f"{simulator.base_url}/chat/completions",
        data=b'{"model": "m", "messages": []}',
        headers={"authorization": f"Bearer {simulator.keys[key]}"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        told: dict[str, object] = json.load(answer)
        return told


def refuses(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


def threads_since(before: set[threading.Thread]) -> set[threading.Thread]:
    """Those that came. One of another test that was still there *before* may have gone meanwhile."""
    return set(threading.enumerate()) - before


@pytest.mark.parametrize("make", MAKERS)
def test_it_serves_until_it_is_left_and_its_last_statistics_stay(make: Callable[[ProviderPlan], Running]) -> None:
    threads = set(threading.enumerate())

    with make(PLAN) as simulator:
        assert call(simulator)["object"] == "chat.completion"
        assert call(simulator, key=1)["id"] == "chatcmpl-2"
        simulator.wait_idle()
        assert simulator.statistics().total.ok == 2
        assert (simulator.base_url, simulator.anthropic_url) == (f"{simulator.url}/v1", simulator.url)
        assert (simulator.gemini_url, simulator.mistral_url) == (simulator.url, f"{simulator.url}/mistral")

    assert simulator.statistics().keys["key-2"].ok == 1
    assert refuses(simulator.url)
    assert not threads_since(threads)
    simulator.close()


@pytest.mark.parametrize("make", MAKERS)
def test_it_may_be_started_again_and_not_twice(make: Callable[[ProviderPlan], Running]) -> None:
    simulator = make(PLAN)
    for _ in range(2):
        with simulator:
            call(simulator)
            assert simulator.statistics().total.calls == 1
            with pytest.raises(RuntimeError, match="running already"):
                simulator.start()


def test_before_it_runs_it_has_no_address() -> None:
    with pytest.raises(RuntimeError, match="with statement"):
        Simulator(PLAN).base_url  # noqa: B018


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "localhost", "::", ""])
def test_it_serves_this_machine_alone(host: str) -> None:
    with pytest.raises(ValueError, match="host must be"):
        Simulator(PLAN, host=host).start()


def test_a_port_in_use_is_an_error_and_leaves_no_thread() -> None:
    threads = set(threading.enumerate())
    with Simulator(PLAN) as first, pytest.raises(OSError):
        Simulator(PLAN, port=int(first.url.rsplit(":", 1)[1])).start()

    assert not threads_since(threads)


def test_waiting_in_vain_is_a_timeout() -> None:
    with Simulator(PLAN) as simulator, pytest.raises(TimeoutError):
        simulator.wait_in_flight(5, timeout=0.01)


def test_clients_that_are_still_there_do_not_keep_it_from_ending() -> None:
    with Simulator(equal_keys(1, latency=Latency(3600.0, 0.0))) as simulator:
        host, port = simulator.url.removeprefix("http://").split(":")
        idle = socket.create_connection((host, int(port)), timeout=20)
        busy = socket.create_connection((host, int(port)), timeout=20)
        head = (
            f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: {simulator.keys[0]}\r\nContent-Length: 2\r\n\r\n{{}}"
        )
        busy.sendall(head.encode())
        simulator.wait_in_flight(1)

    with idle, busy:
        for each in (idle, busy):
            try:
                assert each.recv(1) == b""
            except ConnectionResetError:
                pass


def test_a_child_ends_with_its_parent() -> None:
    """The parent is killed, so that it can do nothing about it; the child's end closes the pipe that it inherited."""
    script = """
import os, signal, sys
from agentos.simulator import equal_keys, in_process
simulator = in_process(equal_keys(1))
simulator.start()
sys.stdout.write(simulator.url + "\\n")
sys.stdout.flush()
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    url = process.stdout.readline().decode().strip()
    assert not refuses(url)

    _, errors = process.communicate(b"\n", timeout=150)  # returns once nobody holds its stderr: the child is gone too

    assert process.returncode == -signal.SIGKILL
    assert errors == b""
    assert refuses(url)


def command(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "agentos.simulator", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def ready(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    url = str(told["url"])
    assert told == {
        "url": url,
        "base_urls": {"openai": f"{url}/v1", "anthropic": url, "gemini": url, "mistral": f"{url}/mistral"},
    }
    return url


def test_a_plan_from_the_input_is_served_until_that_closes() -> None:
    process = command("--plan", "-")
    assert process.stdin is not None
    process.stdin.write(json.dumps(equal_keys(3).to_dict()).encode() + b"\n")
    process.stdin.flush()
    url = ready(process)
    with urllib.request.urlopen(f"{url}/simulator/statistics", timeout=20) as answer:
        assert list(json.load(answer)["keys"]) == ["key-1", "key-2", "key-3"]

    out, errors = process.communicate(timeout=20)

    assert (process.returncode, out, errors) == (0, b"", b"")
    assert refuses(url)


def test_the_command_stays_when_its_input_closes_and_ends_at_a_signal() -> None:
    """As a background job it has no input, or that of a terminal, which would stop it if it read."""
    process = command("--keys", "12", "--latency", "0")
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    url = ready(process)
    for _ in range(3):  # it has had the time to notice
        assert not refuses(url)

    process.send_signal(signal.SIGTERM)

    told = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 0
    assert f"export OPENAI_BASE_URL={url}/v1\n" in told
    assert f"export ANTHROPIC_BASE_URL={url}\n" in told
    assert f"export GOOGLE_GEMINI_BASE_URL={url}\n" in told
    assert told.count("export OPENAI_API_KEY_") == 10
    assert told.endswith("# and 2 more keys\n")


def test_the_command_never_reads_its_input() -> None:
    process = command("--latency", "0")
    assert process.stdin is not None
    url = ready(process)
    os.set_blocking(process.stdin.fileno(), False)

    written = 0
    with contextlib.suppress(BlockingIOError):
        while written < 1 << 20:
            written += os.write(process.stdin.fileno(), b"x" * 4096)

    assert written < 1 << 20  # the pipe is full
    assert not refuses(url)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    process.communicate()


def test_the_command_reads_a_plan_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(equal_keys(5).to_dict()))
    process = command("--plan", str(path))
    with urllib.request.urlopen(f"{ready(process)}/simulator/statistics", timeout=20) as answer:
        assert len(json.load(answer)["keys"]) == 5
    process.terminate()
    assert b"OPENAI_API_KEY" not in process.communicate(timeout=60)[1]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--keys", "0"], "n must be"),
        (["--rpm", "-5"], "rpm must be"),
        (["--plan", "/nowhere/plan.json"], "No such file"),
        (["--plan", "x", "--rpm", "5"], "combined with rpm"),
    ],
)
def test_a_plan_that_cannot_be_is_told_in_one_line(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2

    told = capsys.readouterr()
    assert told.out == ""
    assert why in told.err
    assert told.err.count("\n") == 1


def test_a_child_that_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    with pytest.raises(RuntimeError, match="ended with code 1 before it was ready"):
        in_process(PLAN).start()


@pytest.mark.parametrize("turns", range(6))
def test_a_client_that_comes_in_the_moment_of_the_end_is_sent_away(turns: int) -> None:
    """So many *turns* of the loop after it connected: it may be in the queue, just accepted, or a connection."""
    wrong: list[dict[str, object]] = []

    async def end_as_a_client_comes() -> bytes:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: wrong.append(context))
        listening = await listen(Service(PLAN))
        host, port = listening.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30.0) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            await asyncio.wait_for(listening.close(), 30.0)
            try:
                return client.recv(1)
            except ConnectionError:
                return b""

    assert asyncio.run(end_as_a_client_comes()) == b""
    gc.collect()
    assert wrong == []
