"""A run on a real Dask cluster: a scheduler and three cluster_workers, each a process of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
import socket
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from agentos import (
    Cause,
    Command,
    Credential,
    CredentialCoordinator,
    Dask,
    EngineUnavailable,
    ParallelCoordinator,
    ProgressStats,
    WorkflowResult,
)
from agentos.testing import FakeClock

from . import cluster_workers
from .background_call import Aside
from .dask_processes import Processes
from .driver.test_cluster_engine import eventually, is_alive
from .secret_search import files, found, process_arguments

WAIT = 20.0
TO_START = 120.0  # for a cluster

pytestmark = pytest.mark.timeout(300)  # the first test starts the cluster, and that takes what a slow machine takes

NAMED = f"sk-named-{secrets.token_hex(16)}"  # in the environment of the workers
SHIPPED = f"sk-sent-{secrets.token_hex(16)}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    processes = Processes(tmp_path_factory.mktemp("dask"), dashboard=True, environ={"MY_KEY_7": NAMED})
    try:
        processes.add_workers(3, threads=2)
        yield processes
    finally:
        processes.close()


@pytest.fixture(scope="module")
def client(cluster: Processes) -> Iterator[Client]:
    with Client(cluster.tcp_address, timeout=TO_START, set_as_default=False) as made:
        made.wait_for_workers(3, timeout=TO_START)
        yield made


def run(
    engine: Any, items: list[Any], worker: Any, *, workers: int = 6, pool: Any = None, **options: Any
) -> tuple[ProgressStats, dict[str, WorkflowResult]]:
    coordinator = ParallelCoordinator(workers, pool, max_parallelism=64, engine=engine, **options)
    stats, results = coordinator.execute_parallel(items, worker, str)
    return stats, {result.item_id: result for result in results}


# -- functions, coroutines, commands --------------------------------------------------------------------------------


def test_as_many_items_run_at_once_as_the_cluster_has_threads(
    client: Client, cluster: Processes, tmp_path: Path
) -> None:
    items = [(str(tmp_path), 6, number) for number in range(6)]

    stats, results = run(client, items, cluster_workers.process_at_the_meeting, retries=0)

    assert stats.success_count == 6
    assert Counter(result.value for result in results.values()) == {worker.pid: 2 for worker in cluster.workers}


@pytest.mark.parametrize("options", [{}, {"worker_slots": 1, "ttl": 5.0, "listen": "127.0.0.1:0"}])
def test_a_cluster_may_be_given_by_its_address(cluster: Processes, client: Client, options: dict[str, Any]) -> None:
    stats, _ = run(Dask(cluster.address, **options), [1, 2, 3], cluster_workers.doubled)

    assert stats.success_count == 3


def test_an_executor_of_the_cluster_is_as_good_and_says_on_which_workers(client: Client, cluster: Processes) -> None:
    one = next(address for address, pid in client.run(os.getpid).items() if pid == cluster.workers[0].pid)

    _, results = run(client.get_executor(workers=[one]), list(range(12)), lambda _item, _credential: os.getpid())

    assert {result.value for result in results.values()} == {cluster.workers[0].pid}


def test_a_function_that_stands_in_no_module_travels_itself(client: Client) -> None:
    added = 5

    _, results = run(client, [1], lambda item, _credential: item + added)

    assert results["1"].value == 6


def test_more_coroutines_run_at_once_than_the_cluster_has_threads(client: Client, tmp_path: Path) -> None:
    items = [(str(tmp_path), 40, number) for number in range(40)]

    stats, _ = run(client, items, cluster_workers.meet_in_folder, workers=40, timeout=WAIT, retries=0)

    assert stats.success_count == 40


def test_commands_run_there_and_what_they_print_comes_home(client: Client, tmp_path: Path) -> None:
    stats, results = run(client, ["a", "b"], Command(["sh", "-c", "echo out {}; echo err >&2; sleep 0.01"]))

    assert stats.success_count == 2
    assert results["a"].value == {"exit": 0, "stdout": "out a\n", "truncated": False}


def test_the_context_knows_the_attempt_and_its_log_comes_home(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    pool = CredentialCoordinator([SHIPPED])

    with caplog.at_level(logging.WARNING, "agentos.worker"):
        _, results = run(client, ["a"], cluster_workers.told_all, pool=pool, ship_secrets=True)

    assert results["a"].value == ["a", 0, 1, "key-1", True]
    assert "[a] begun with a" in caplog.text


def test_a_limit_that_is_met_there_costs_no_try(client: Client) -> None:
    pool = CredentialCoordinator([SHIPPED])

    stats, results = run(client, ["a"], cluster_workers.limited_once, pool=pool, ship_secrets=True, retries=0)

    assert results["a"].value == 2
    assert (stats.limited, stats.retried) == (1, 0)


def test_a_run_of_a_loop_does_not_hold_it(client: Client) -> None:
    async def main() -> tuple[ProgressStats, list[WorkflowResult]]:
        coordinator = ParallelCoordinator(3, engine=client)
        return await coordinator.execute_async([1, 2, 3], cluster_workers.doubled_later, str)

    stats, _ = asyncio.run(main())

    assert stats.success_count == 3


def test_a_run_without_work_leaves_the_threads_to_others_and_has_them_again_when_there_is_some(
    client: Client, monkeypatch: pytest.MonkeyPatch, aside: Aside
) -> None:
    pool = CredentialCoordinator([SHIPPED])
    lease = pool.acquire()

    running = aside.submit(run, client, [1, 2, 3], cluster_workers.doubled, pool=pool, ship_secrets=True)
    came = eventually(lambda: seats_of(client))
    monkeypatch.setattr("agentos.runs.cluster.driver.driver_server._UNUSED_TIMEOUT", 0.3)
    left = eventually(lambda: not seats_of(client))
    lease.release()
    stats, _ = running.result(WAIT)

    assert came
    assert left
    assert (stats.success_count, stats.retried) == (3, 0)


# -- stopping -------------------------------------------------------------------------------------------------------


def test_shutdown_tells_those_who_run_there_and_waits_for_them(client: Client, tmp_path: Path, aside: Aside) -> None:
    coordinator = ParallelCoordinator(1, engine=client)
    begun = tmp_path / "begun"

    running = aside.submit(
        coordinator.execute_parallel, [str(begun), "b"], cluster_workers.touches_then_waits_for_stop, str
    )
    assert eventually(begun.exists)
    coordinator.shutdown()
    stats, results = running.result(WAIT)

    assert [result.value for result in results] == ["stopped"]
    assert stats.cause is Cause.ASKED


def test_a_forced_stop_kills_a_command_there(client: Client, tmp_path: Path, aside: Aside) -> None:
    coordinator = ParallelCoordinator(1, engine=client)
    mark = tmp_path / "pid"
    command = Command(["sh", "-c", f"echo $$ > {mark}.new; mv {mark}.new {mark}; exec sleep 60"])

    running = aside.submit(coordinator.execute_parallel, ["x"], command, str)
    assert eventually(mark.exists)
    coordinator.shutdown(force=True)
    stats, _ = running.result(WAIT)

    assert stats.interrupted == 1
    assert eventually(lambda: not is_alive(int(mark.read_text())))


def test_a_coroutine_that_overruns_there_is_cancelled(client: Client, tmp_path: Path, aside: Aside) -> None:
    begun, clock = tmp_path / "begun", FakeClock()

    running = aside.submit(
        run, client, [str(begun)], cluster_workers.touches_and_never_ends, timeout=30.0, retries=0, clock=clock
    )
    assert eventually(begun.exists)
    clock.advance(30.0)
    _, results = running.result(WAIT)

    assert results[str(begun)].error == "timed out after 30s"


def test_a_scheduler_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:1 cannot be used: nothing listens there"):
        run("dask://127.0.0.1:1", [1], cluster_workers.doubled)


def test_a_port_on_which_something_else_listens_is_said_to_be_none_of_a_scheduler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentos.runs.engines.dask._GREETING_TIMEOUT", 0.1)

    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(EngineUnavailable, match="its dashboard"):
        run(f"tcp://127.0.0.1:{silent.getsockname()[1]}", [1], cluster_workers.doubled)


def test_the_port_of_a_worker_is_said_to_be_none_of_a_scheduler(client: Client) -> None:
    worker = next(iter(client.nthreads()))  # not what it knows of its scheduler: that comes and goes by itself

    with pytest.raises(EngineUnavailable, match="is it the port of a scheduler"):
        run(worker, [1], cluster_workers.doubled)


def test_tls_without_certificates_names_the_settings_of_dask_that_are_missing() -> None:
    with pytest.raises(EngineUnavailable, match=r"distributed\.comm\.tls\.ca-file"):
        run("tls://127.0.0.1:1", [1], cluster_workers.doubled)


# -- secrets --------------------------------------------------------------------------------------------------------


def test_secrets_are_nowhere_but_with_the_worker_that_uses_them(
    client: Client, cluster: Processes, tmp_path: Path, caplog: pytest.LogCaptureFixture, aside: Aside
) -> None:
    """By name and shipped, while items run with them and after: in logs, pages, tasks, arguments and the journal."""
    seen: dict[str, str] = {}
    hold = tmp_path / "hold"
    hold.touch()
    for number, (secret, ship) in enumerate(((NAMED, False), (SHIPPED, True))):
        pool = CredentialCoordinator([Credential(secret, "my-key-7")])
        begun = tmp_path / f"begun-{number}"
        with caplog.at_level(logging.DEBUG):
            running = aside.submit(
                run,
                client,
                [[str(begun), str(hold)]],
                cluster_workers.fails_with_its_secret_when_let_go,
                pool=pool,
                ship_secrets=ship,
                journal=tmp_path / f"run-{number}",
                retries=0,
            )
            assert eventually(begun.exists), running.result(WAIT)
            seen.update({f"{number}: {name}": text for name, text in looked_at(client).items()})
            hold.unlink()
            stats, _ = running.result(WAIT)
            hold.touch()
        assert begun.read_text() == str(len(secret)), "the worker had no such secret"
        assert stats.failed == 1
        seen |= files(tmp_path / f"run-{number}")

    seen |= looked_at(client) | process_arguments() | {"the logs": cluster.logged(), "our log": caplog.text}

    assert any("load(<_io.BytesIO object" in text for text in seen.values()), "the seats are not shown where we look"
    assert sum("agentos-seat-" in text for text in seen.values()) >= 4, "their pages were not found"
    assert found([NAMED, SHIPPED], seen) == []


def looked_at(client: Client) -> dict[str, str]:
    """What the scheduler shows: all pages that lead to each other, and its tasks as Python sees them."""
    tasks = client.run_on_scheduler(tasks_of)
    shown = {"the tasks": json.dumps(tasks)}
    port = re.search(r":(\d+)/", client.dashboard_link)
    assert port is not None
    root = f"http://127.0.0.1:{port[1]}/"
    starts = ["status", "sitemap.json", "info/main/workers.html", "info/main/logs.html", "json/index.html"]
    starts += ["json/identity.json", "json/counts.json", *(f"info/task/{key}.html" for key in tasks)]
    todo = [root + path for path in starts]
    while todo and len(shown) < 80:
        page = todo.pop(0)
        if page in shown or not page.startswith(root):
            continue
        try:
            with urllib.request.urlopen(page, timeout=5) as answer:
                shown[page] = answer.read().decode(errors="replace")
        except OSError:
            shown[page] = ""
        todo += [urllib.parse.urljoin(page, link) for link in re.findall(r'(?:href|src)="([^"#]+)"', shown[page])]
    return shown


def seats_of(client: Client) -> list[str]:
    """The seats that take up threads of the cluster."""
    return [key for keys in client.processing().values() for key in keys if "agentos-seat-" in str(key)]


def tasks_of(dask_scheduler: Any) -> dict[str, list[str]]:
    """Every task with all that its scheduler would print of it."""
    return {
        str(task.key): [repr(task), repr(task.run_spec), repr(getattr(task.run_spec, "args", ""))]
        for task in dask_scheduler.tasks.values()
    }
