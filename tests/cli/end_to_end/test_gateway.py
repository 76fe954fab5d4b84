"""The gateway as people start it: by itself, and for a run."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.simulator import Latency, Running, Simulator, equal_keys

from .harness import Place, Program, wait_until

KEYS = 3
ASK = """
import json, os, sys, urllib.request
body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": sys.argv[1]}]}).encode()
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions", body,
    {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"})
for _ in range(int(sys.argv[2])):
    with urllib.request.urlopen(request, timeout=100) as answer:
        print(json.load(answer)["choices"][0]["message"]["content"])
"""


@pytest.fixture
def simulator() -> Iterator[Running]:
    with Simulator(equal_keys(KEYS, rpm=6000, latency=Latency(0.005, 0.0))) as running:
        yield running


def secrets(running: Running) -> list[str]:
    return [key.secret for key in equal_keys(KEYS, rpm=6000).keys]


@pytest.fixture
def keyed(place: Place, simulator: Running) -> Place:
    """A place with keys of the simulator."""
    return with_keys(place, simulator)


def with_keys(place: Place, simulator: Running) -> Place:
    entries = ""
    for number, secret in enumerate(secrets(simulator), start=1):
        place.environment[f"SIM_KEY_{number}"] = secret
        entries += (
            f'[[credentials]]\nname = "key-{number}"\nenv = "SIM_KEY_{number}"\n'
            f'base_url = "{simulator.url}"\nprovider = "openai"\n'
        )
    place.environment["AGENTOS_CONFIG"] = str(place.write("keys.toml", entries))
    place.write("ask.py", ASK)
    return place


def start_gateway(place: Place, *options: str) -> tuple[Program, dict[str, Any]]:
    """A gateway, and what its file says."""
    before = set((place.agentos_home / "gateway").glob("*.json"))
    program = place.start("gateway", *options)
    program.out.wait_for("agentos env claude")
    (file,) = set((place.agentos_home / "gateway").glob("*.json")) - before or before
    return program, json.loads(file.read_text())


def ask(facts: dict[str, Any], path: str = "/v1/chat/completions", token: str | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(
        facts["url"] + path,
        json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}).encode(),
        {"authorization": f"Bearer {token or facts['token']}", "content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=100) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_gateway_serves_and_says_where_and_ends_by_a_signal(keyed: Place) -> None:
    program, facts = start_gateway(keyed)

    assert ask(facts)[0] == 200
    assert ask(facts, token="wrong")[0] == 401
    files = keyed.agentos_home / "gateway"
    assert {stat.S_IMODE(os.stat(path).st_mode) for path in files.iterdir()} == {0o600}
    program.signal(signal.SIGTERM)
    ended = program.ended()

    assert ended.code == 0
    assert f"base URL {facts['url']}/v1" in ended.out
    assert facts["token"] not in ended.out + ended.err
    assert [path.name for path in files.iterdir()] == ["requests.jsonl"]  # and no token that nobody can use
    (line,) = (files / "requests.jsonl").read_text().splitlines()
    assert (json.loads(line)["key"], json.loads(line)["status"]) == ("key-1", 200)


def test_a_restart_on_the_same_port_keeps_the_token_unless_a_new_one_is_wanted(keyed: Place) -> None:
    program, first = start_gateway(keyed)
    program.process.kill()  # not even a signal handler
    program.process.wait()
    program.end()
    port = str(first["port"])

    again, second = start_gateway(keyed, "--port", port)
    assert (second["url"], second["token"]) == (first["url"], first["token"])
    assert ask(second)[0] == 200
    again.signal(signal.SIGINT)
    assert again.ended().code == 0

    other, third = start_gateway(keyed, "--port", port, "--new-token")
    assert third["token"] != first["token"]
    assert ask(third, token=first["token"])[0] == 401
    other.signal(signal.SIGINT)
    other.ended()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--listen", "0.0.0.0"), "--listen needs --token"),
        (("--port", "99999"), "--port must be"),
        (("--listen", "0.0.0.0", "--token", "abc"), "--token must be env:NAME"),
        (("--listen", "0.0.0.0", "--token", "env:NOT_THERE"), "at least 20"),
        (("--listen", "192.0.2.1", "--token", "env:SIM_KEY_1"), "cannot listen on 192.0.2.1: "),
        (("--keys", "none-such"), "no credential of that name"),
        (("--socket", "none-such/socket"), "cannot listen on none-such/socket: No such file"),
        (("--socket", "ask.py"), "cannot listen on ask.py: there is a file that is not a socket"),
    ],
)
def test_a_gateway_that_would_be_wrong_is_refused(keyed: Place, options: tuple[str, ...], says: str) -> None:
    ended = keyed.run("gateway", *options)

    assert ended.code == 2
    assert says in ended.err


def test_a_project_file_cannot_configure_the_gateway(place: Place) -> None:
    place.write("agentos.toml", '[gateway]\nlisten = "0.0.0.0"\n')

    ended = place.run("gateway")

    assert ended.code == 2
    assert "gateway" in ended.err


def test_items_of_a_run_share_the_keys_by_tokens_and_are_recorded(keyed: Place, simulator: Running) -> None:
    items = [f"item-{number}" for number in range(6)]
    ended = keyed.run("run", "--gateway", "-j", "6", "--", sys.executable, "ask.py", "{}", "2", ":::", *items)

    assert ended.code == 0, ended.err
    results = keyed.run("results", "--jsonl").objects
    assert {line["outcome"] for line in results} == {"done"}
    assert all(line["usage"]["output"] == 32 for line in results)
    requests = keyed.run("results", "--requests").objects
    assert sorted(line["item"] for line in requests) == sorted(items * 2)
    assert {line["key"] for line in requests} == {"key-1", "key-2", "key-3"}
    assert "12 requests through the gateway" in keyed.run("show").out


def test_no_key_is_in_the_environment_of_any_process_of_a_run(keyed: Place, simulator: Running) -> None:
    script = (
        "import os, pathlib, sys\n"
        "def read(path):\n"
        "    try:\n"
        "        return path.read_text(errors='replace')\n"
        "    except OSError:\n"
        "        return ''  # a process that has ended\n"
        "lines = map(read, pathlib.Path('/proc').glob('[0-9]*/cmdline'))\n"
        "open(f'seen-{sys.argv[1]}', 'w').write(repr(dict(os.environ)) + ''.join(lines))\n"
        "print(os.environ['AGENTOS_GATEWAY_TOKEN'])"
    )
    keyed.write("look.py", script)
    for name in ("seen-a", "seen-b"):
        keyed.asked_for(name)
    ended = keyed.run("run", "--gateway", "--", sys.executable, "look.py", "{}", ":::", "a", "b")

    assert ended.code == 0, ended.err
    seen = "".join((keyed.cwd / f"seen-{name}").read_text() for name in "ab")
    everything = seen + ended.out + ended.err + _read_all(keyed.cwd / ".agentos")
    assert not [secret for secret in secrets(simulator) if secret in everything]
    assert "sk-agentos-" in seen  # the token is there,
    tokens = {word.strip("',") for word in seen.split() if word.startswith("'sk-agentos-")}
    assert not [token for token in tokens if token in ended.out]  # and masked in what was printed


def _read_all(folder: Path) -> str:
    return "".join(path.read_bytes().decode("latin-1") for path in folder.rglob("*") if path.is_file())


FUNCTIONS = """
import asyncio, hashlib, json, os, pathlib, signal, time, urllib.error, urllib.request

def send(key):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", b'{"model": "gpt-4o", "messages": []}',
        {"authorization": "Bearer " + key, "content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=100) as answer:
        json.load(answer)

def ask(item, credential):
    print(credential)
    send(credential)
    real = [value for value in os.environ.values() if value.startswith("sk-") and "agentos" not in value]
    return {"token": hashlib.sha256(credential.encode()).hexdigest(), "keys": len(real)}

async def ask_async(item, credential):
    return await asyncio.to_thread(ask, item, credential)

def ask_after_a_kill(item, credential):
    send(credential)
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command, status = (path / "cmdline").read_text(), (path / "status").read_text()
        except OSError:
            continue
        if "gateway_child" in command and f"PPid:\\t{os.getpid()}\\n" in status:
            os.kill(int(path.name), signal.SIGKILL)
    while True:
        try:
            return send(credential)
        except (urllib.error.URLError, ConnectionError) as error:
            if isinstance(error, urllib.error.HTTPError):
                raise
            time.sleep(0.01)
"""


@pytest.mark.parametrize("function", ["ask", "ask_async"])
def test_python_functions_get_a_token_for_each_attempt_and_their_requests_are_recorded(
    keyed: Place, simulator: Running, function: str
) -> None:
    keyed.write("work.py", FUNCTIONS)
    ended = keyed.run("run", "--gateway", "-j", "3", "--worker", f"work.py:{function}", ":::", "a", "b", "c")

    assert ended.code == 0, ended.err
    results = keyed.run("results", "--jsonl").objects
    assert [line["value"]["keys"] for line in results] == [0, 0, 0]
    assert len({line["value"]["token"] for line in results}) == 3
    assert all(line["usage"]["output"] == 16 for line in results)
    requests = keyed.run("results", "--requests").objects
    assert sorted((line["item"], line["attempt"]) for line in requests) == [("a", 1), ("b", 1), ("c", 1)]
    assert "3 requests through the gateway" in keyed.run("show").out
    everything = ended.out + ended.err + _read_all(keyed.cwd / ".agentos")
    assert "<secret>" in ended.out  # what the functions printed,
    assert "sk-agentos-" not in everything.replace("sk-agentos-<secret>", "")  # and no token anywhere
    assert not [secret for secret in secrets(simulator) if secret in everything]


def test_functions_keep_their_tokens_when_the_gateway_is_killed_in_mid_run(keyed: Place) -> None:
    keyed.write("work.py", FUNCTIONS)
    ended = keyed.run("run", "--gateway", "-j", "1", "--worker", "work.py:ask_after_a_kill", ":::", "a", "b")

    assert ended.code == 0, ended.err
    assert ended.err.count("its process ended with code -9, and is started again") == 2
    requests = keyed.run("results", "--requests").objects
    # What was answered before the kill may be lost with the process, what came after it is not.
    assert {(line["item"], line["attempt"], line["status"]) for line in requests} == {("a", 1, 200), ("b", 1, 200)}


def test_a_command_that_is_refused_because_all_keys_are_parked_waits_for_them(place: Place) -> None:
    with Simulator(equal_keys(KEYS, daily_requests=1, latency=Latency(0.005, 0.0))) as daily:
        keyed = with_keys(place, daily)
        items = ("a", "b", "c", "d")
        ended = keyed.run(
            "run", "--gateway", "--no-wait", "-j", "1", "--", sys.executable, "ask.py", "{}", "1", ":::", *items
        )

    assert ended.code == 75, ended.err
    assert "3 of 4 done, 0 failed, 1 rate-limited" in ended.err + ended.out
    assert "1 left (1 parked)" in keyed.run("show").out


CONVERSE = """
import json, os, pathlib, sys, urllib.request
kept = pathlib.Path(sys.argv[1] + ".json")
said = json.loads(kept.read_text()) if kept.exists() else []
body = {"model": "gpt-4o", "input": said, "include": ["reasoning.encrypted_content"]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/responses", json.dumps(body).encode(),
    {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "session-id": sys.argv[1]})
with urllib.request.urlopen(request, timeout=100) as answer:
    kept.write_text(json.dumps([*said, *json.load(answer)["output"]]))
    print(answer.headers["x-agentos-key"])
"""


def test_a_session_that_goes_on_in_a_resumed_run_stays_with_its_organisation(keyed: Place) -> None:
    keyed.write("converse.py", CONVERSE)
    for name in ("a.json", "b.json"):
        keyed.asked_for(name)
    command = ("--", sys.executable, "converse.py", "{}", ":::", "a", "b")
    first = keyed.run("run", "--name", "r", "--gateway", "-j", "1", *command)
    assert "[b] key-2" in first.out

    again = keyed.run("retry", "r", "--items", "b")

    assert again.code == 0, again.err
    assert "[b] key-2" in again.out


def test_a_gateway_without_keys_is_refused(place: Place) -> None:
    ended = place.run("run", "--gateway", "--", "echo", "{}", ":::", "a")

    assert ended.code == 2
    assert "--gateway needs keys" in ended.err


def test_the_first_signal_waits_for_a_request_and_the_second_does_not(place: Place) -> None:
    with Simulator(equal_keys(KEYS, rpm=6000, latency=Latency(600.0, 0.0))) as slow:
        program, facts = start_gateway(with_keys(place, slow))
        with socket.create_connection(("127.0.0.1", facts["port"])) as client:
            body = b'{"model": "m", "messages": []}'
            head = f"host: localhost\r\nx-api-key: {facts['token']}\r\ncontent-length: {len(body)}\r\n"
            client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + body)
            urllib.request.urlopen(f"{slow.url}/simulator/wait?in_flight=1", timeout=100).close()
            program.signal(signal.SIGINT)
            program.err.wait_for("1 requests are in progress")
            wait_until(lambda: not _listens(facts["port"]), "nothing new is accepted")
            program.signal(signal.SIGINT)

            assert program.ended().code == 130
            assert client.recv(100) == b""


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def test_the_driver_is_not_dumpable_and_its_commands_are(place: Place) -> None:
    look = "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    place.write("look.py", f"def look(item, credential):\n    {look.replace('print(', 'return (')}\n")

    place.run("run", "--name", "function", "--worker", "look.py:look", ":::", "a")
    place.run("run", "--name", "command", "--", sys.executable, "-c", look, ":::", "a")

    assert [line["value"] for line in place.results("function")] == [0]
    assert [line["value"]["stdout"].strip() for line in place.results("command")] == ["1"]


def test_a_gateway_killed_in_mid_stream_is_replaced_at_the_same_address(place: Place) -> None:
    with Simulator(equal_keys(KEYS, rpm=6000, latency=Latency(3.0, 0.0))) as slow:
        program, facts = start_gateway(with_keys(place, slow), "--slots", "1")
        body = b'{"model": "m", "stream": true, "messages": []}'
        head = f"host: localhost\r\nx-api-key: {facts['token']}\r\ncontent-length: {len(body)}\r\n"
        clients = [socket.create_connection(("127.0.0.1", facts["port"]), timeout=60) for _ in range(KEYS)]
        for client in clients:
            client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + body)
        for client in clients:
            assert client.recv(9) == b"HTTP/1.1 "  # the stream has begun: every key is in use
        program.process.kill()
        for client in clients:
            assert b"[DONE]" not in _read_to_end(client)
        program.end()

        again, same = start_gateway(place, "--slots", "1", "--port", str(facts["port"]))

        assert (same["url"], same["token"]) == (facts["url"], facts["token"])
        assert ask(same)[0] == 200  # with a key that the killed one had
        again.signal(signal.SIGTERM)
        again.ended()


def _read_to_end(client: socket.socket) -> bytes:
    data = b""
    with client:
        try:
            while piece := client.recv(65536):
                data += piece
        except ConnectionError:
            pass
    return data
