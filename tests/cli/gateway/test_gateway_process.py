"""The gateway of a run of functions, in its process: tokens of attempts, and what is left of them after ``kill -9``."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos import Credential
from agentos.cli.gateway.gateway_child import describe_credential
from agentos.cli.gateway.gateway_process import GatewayProcess
from agentos.costs.usage_log import UsageLog
from agentos.gateway.program_access import ProgramAccess

from ...gateway.running import Answer, Provider, RawClient, make_request, provider, secret, wait_until

USAGE = b'{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}'


class Running:
    """A process of the gateway, and the records of its requests."""

    def __init__(self, url: str, folder: Path) -> None:
        key = Credential(secret(1), name="key-1", provider="openai", base_url=url, slots=64)
        config = {
            "credentials": [describe_credential(key)],
            "store": f"sqlite:///{folder}/pool.sqlite",
            "max_wait": None,
            "park_after": None,
            "port": 0,
            "token": None,
        }
        environ = {name: value for name, value in os.environ.items() if not name.startswith("AGENTOS_")}
        self.process = GatewayProcess(config, environ, lambda url: ProgramAccess(url, folder, {"HOME": str(folder)}))
        self.port = int(self.process.url.rpartition(":")[2])
        self.records: list[Any] = []
        self.process.bind(self.records.append)

    @property
    def pid(self) -> int:
        return self.process._process.pid

    @property
    def recorded(self) -> list[tuple[str | None, int | None, str]]:
        return [(each.item, each.attempt, each.outcome) for each in self.records]

    def open(self, item: str, attempt: int = 1) -> Any:
        return self.process.open(item, attempt, UsageLog(), "")

    def ask(self, token: str) -> Answer:
        with RawClient(self.port) as client:
            client.send(make_request(self.port, token))
            return client.answer()

    def kill(self) -> None:
        """Kill the process, and wait until another one listens."""
        before = self.pid
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: self.pid != before)
        wait_until(self._listens)

    def _listens(self) -> bool:
        try:
            RawClient(self.port).close()
        except OSError:
            return False
        return True


@pytest.fixture
def upstream() -> Iterator[Provider]:
    with provider(lambda received: received.json(USAGE)) as made:
        yield made


@pytest.fixture
def running(upstream: Provider, tmp_path: Path) -> Iterator[Running]:
    made = Running(upstream.url, tmp_path)
    try:
        yield made
    finally:
        made.process.close()


def test_a_request_is_recorded_with_its_attempt_and_counted_for_it(running: Running) -> None:
    usage_log = UsageLog()
    access = running.process.open("item-7", 2, usage_log, "")

    assert running.ask(access.token).status == 200
    access.close()

    assert running.recorded == [("item-7", 2, "done")]
    used = usage_log.take()
    assert (used["key-1"].input, used["key-1"].output) == (3, 4)


def test_the_token_of_the_gateway_names_no_item(running: Running) -> None:
    assert running.ask(running.process.token).status == 200
    running.open("item").close()  # waits until all is recorded

    assert running.recorded == [(None, None, "done")]


def test_a_token_and_its_requests_end_with_the_attempt(running: Running, upstream: Provider) -> None:
    upstream.reply = None
    ended, other = running.open("ended"), running.open("other")
    with RawClient(running.port) as client:
        client.send(make_request(running.port, ended.token))
        sent = upstream.next()

        ended.close()

        assert client.is_closed()
        assert sent.is_closed()
    upstream.reply = lambda received: received.json(USAGE)
    assert running.ask(ended.token).status == 401
    assert running.ask(other.token).status == 200
    other.close()
    assert running.recorded == [("ended", 1, "cut off"), ("other", 1, "done")]


def test_a_process_that_replaces_a_killed_one_accepts_the_tokens_that_are_valid(
    running: Running, upstream: Provider
) -> None:
    upstream.reply = None
    ended, valid = running.open("ended"), running.open("valid")
    ended.close()
    with RawClient(running.port) as client:
        client.send(make_request(running.port, valid.token))
        upstream.next()

        running.kill()

        assert client.is_closed()
    upstream.reply = lambda received: received.json(USAGE)
    assert running.ask(valid.token).status == 200
    assert running.ask(ended.token).status == 401
    assert running.ask(running.process.token).status == 200
    valid.close()
    assert running.recorded == [("valid", 1, "done"), (None, None, "done")]
    assert running.ask(valid.token).status == 401


def test_a_token_that_is_issued_or_revoked_while_no_process_runs_is_known_to_the_next(running: Running) -> None:
    revoked = running.open("revoked")
    before = running.pid
    os.kill(before, signal.SIGSTOP)  # it cannot answer,
    threading.Timer(0, os.kill, (before, signal.SIGKILL)).start()  # and ends while it is asked

    issued = running.open("issued")
    revoked.close()

    wait_until(lambda: running.pid != before)
    wait_until(running._listens)
    assert running.ask(issued.token).status == 200
    assert running.ask(revoked.token).status == 401


def test_no_valid_token_is_ever_refused_while_processes_are_killed(running: Running) -> None:
    answers: list[int] = []
    enough = threading.Event()

    def attempts(name: str) -> None:
        number = 0
        while not enough.is_set():
            number += 1
            access = running.open(name, number)
            try:
                answers.append(running.ask(access.token).status)
            except (OSError, ValueError, IndexError):
                continue  # it was killed before it answered
            finally:
                access.close()

    threads = [threading.Thread(target=attempts, args=(f"item-{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        count = len(answers)
        wait_until(lambda before=count: len(answers) > before + 20)  # type: ignore[misc]
        running.kill()
    enough.set()
    for thread in threads:
        thread.join()

    assert set(answers) == {200}
    assert not running.process._valid
    assert not running.process._holders
    assert not running.process._unanswered
    assert {each.item for each in running.records} == {f"item-{number}" for number in range(6)}


def test_tokens_and_keys_are_in_no_environment_and_no_argument(running: Running) -> None:
    access = running.open("item")
    seen = Path(f"/proc/{running.pid}/cmdline").read_bytes()
    try:
        seen += Path(f"/proc/{running.pid}/environ").read_bytes()
    except PermissionError:
        pass  # it cannot be read: its process is not dumpable

    for hidden in (access.token, running.process.stem, running.process.token, secret(1)):
        assert hidden.encode() not in seen


def test_what_waits_is_forgotten_with_its_process(running: Running, upstream: Provider) -> None:
    upstream.reply = None
    access = running.open("item")
    clients = [RawClient(running.port) for _ in range(70)]  # more than the key has slots, and than an item may have
    try:
        for client in clients:
            client.send(make_request(running.port, running.process.token))
        wait_until(lambda: running.process.waiting_requests == 6)

        running.kill()

        assert running.process.waiting_requests == 0
    finally:
        for client in clients:
            client.close()
        access.close()
