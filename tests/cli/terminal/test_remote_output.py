"""Output of functions on other machines: sent over a worker's connection, written as its item's output here."""

# ruff: noqa: T201 - the functions under test print

from __future__ import annotations

import asyncio
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from agentos import CredentialCoordinator, ParallelCoordinator, Transient
from agentos.cli.terminal.remote_prints import ship_function
from agentos.pool.redaction import Masker
from agentos.runs.output.capture import OutputCapture
from agentos.runs.output.stream_redaction import Redaction

from ...contract.engine_contract import eventually
from ...runs.cluster import cluster_workers
from ...runs.cluster.background_call import Aside
from ...runs.cluster.conftest import aside, gates
from ...runs.cluster.local_slots import WAIT, Proxy, proxy, seating

__all__ = ["aside", "gates", "proxy", "seating"]

SECRET = "k-planted-QWERTZUIOPASDFGHJK"


class Screen:
    """Collects the lines that are shown."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str]] = []

    def line(self, item_id: str, index: int, stream: str, text: str, whole: bool) -> None:
        self.lines.append((item_id, stream, text))

    def attempt_ended(self, item_id: str, index: int, log: Path | None) -> None: ...


def run(items: list[str], function: Any, outputs: OutputCapture, **options: Any) -> dict[str, Any]:
    pool = options.pop("pool", None)
    coordinator = ParallelCoordinator(2, pool, ship_secrets=True, **options)
    _, results = coordinator.execute_parallel(items, ship_function(function, None, None, outputs), str)
    return {result.item_id: result.value for result in results}


def fails_once(item: str, _key: str, context: Any) -> str:
    print("attempt", context.attempt, "of", item)
    if context.attempt == 1:
        print("half a line", end="")
        raise Transient("once")
    return item


def prints_and_logs(item: str, key: str, context: Any) -> str:
    print("with", key[:12], end="")
    print(key[12:])
    print("in passing", file=sys.stderr)
    context.log.warning("logged")
    return item


async def takes_turns(item: str, _key: str | None) -> str:
    for number in range(20):
        print(item, number)
        await asyncio.sleep(0)
    return item


def prints_much(item: str, _key: str | None) -> str:
    for number in range(2_000):
        print("line", number)
    return item


def prints_and_waits(item: str, _key: str | None, context: Any) -> str:
    print("attempt", context.attempt)
    if context.attempt == 1:
        print("begun", end="")
        cluster_workers.GATES.arrived.release()
        cluster_workers.GATES.go_on.wait(WAIT)
        print("too late")
    return item


def test_two_attempts_of_an_item_have_an_output_each(seating: Any, tmp_path: Path) -> None:
    seating()

    run(["tea"], fails_once, OutputCapture(tmp_path / "logs"), pool=CredentialCoordinator([SECRET]), retries=1)
    first, failed, second, done = (tmp_path / "logs" / "tea.log").read_text().split("--- attempt ")[1:]

    assert first.splitlines()[1:4] == ["attempt 1 of tea", "half a line", "Traceback (most recent call last):"]
    assert first.endswith("agentos.errors.Transient: once\n")
    assert re.match(r"1 failed after .*: Transient: once \(.* in fails_once\); the item is retried ---", failed)
    assert second.splitlines()[1:] == ["attempt 2 of tea"]
    assert done.startswith("2 done after ")
    assert "key key-1" in second


def test_streams_are_kept_apart_secrets_are_redacted_and_the_log_has_none_of_it(
    seating: Any, caplog: pytest.LogCaptureFixture
) -> None:
    seating()
    pool, screen = CredentialCoordinator([SECRET]), Screen()
    redaction = Redaction(Masker([SECRET]))

    with caplog.at_level(logging.WARNING, "agentos.worker"):
        run(["tea"], prints_and_logs, OutputCapture(None, redaction.stream, screen), pool=pool)

    assert screen.lines == [("tea", "stdout", "with <secret>"), ("tea", "stderr", "in passing")]
    logged = [record.getMessage() for record in caplog.records if record.name == "agentos.worker"]
    assert logged == ["[tea] logged"]


def test_coroutines_of_one_worker_print_for_their_items(seating: Any) -> None:
    seating(width=2)
    screen = Screen()

    run(["tea", "sea"], takes_turns, OutputCapture(None, None, screen))

    for item in ("tea", "sea"):
        assert [text for name, _, text in screen.lines if name == item] == [f"{item} {number}" for number in range(20)]


def test_no_line_is_lost_though_connections_break(seating: Any, proxy: Proxy) -> None:
    proxy.cut_each = 5_000
    seating(through=proxy)
    screen = Screen()

    run(["tea"], prints_much, OutputCapture(None, None, screen))

    assert [text for _, _, text in screen.lines] == [f"line {number}" for number in range(2_000)]
    assert proxy.made > 2  # the lines have 18,890 bytes; the first two connections pass 5,000 and 10,000 on


def test_the_output_of_an_attempt_that_is_lost_ends_with_it(
    seating: Any, proxy: Proxy, gates: cluster_workers.Gates, aside: Aside, tmp_path: Path
) -> None:
    places = seating(through=proxy)
    outputs = OutputCapture(tmp_path / "logs")

    running = aside.submit(run, ["tea"], prints_and_waits, outputs, retries=1)
    assert gates.arrived.acquire(timeout=WAIT)
    eventually(lambda: outputs.last_line("tea") == "attempt 1")
    proxy.shut = True
    proxy.cut()
    places.lose_driver()
    places.lose_workers()
    proxy.shut = False
    places.add_slot()
    values = running.result(WAIT)
    gates.go_on.set()
    first, lost, second, _ = (tmp_path / "logs" / "tea.log").read_text().split("--- attempt ")[1:]

    assert lost.startswith("1 failed after ")
    assert values == {"tea": "tea"}
    assert first.splitlines()[1:] == ["attempt 1"]
    assert second.splitlines()[1:] == ["attempt 2"]
