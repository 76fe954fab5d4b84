"""The cluster engine: assignments, reports, and recovery when a part fails."""

from __future__ import annotations

import contextlib
import logging
import socket
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentos import (
    Cause,
    Command,
    Credential,
    CredentialCoordinator,
    EngineUnavailable,
    ParallelCoordinator,
    ProgressStats,
    WorkflowResult,
)
from agentos.testing import FakeClock

from .. import cluster_workers
from ..background_call import Aside
from ..local_slots import WAIT, Proxy, ThreadSeating

SECRETS = ["sk-planted-QWERTZUIOPASDFGHJK", "sk-planted-YXCVBNMLKJHGFDSAPO"]

Use = Callable[..., ThreadSeating]


def run(
    items: list[Any], worker: Any, *, workers: int = 2, pool: Any = None, **options: Any
) -> tuple[ProgressStats, dict[str, WorkflowResult]]:
    options.setdefault("ship_secrets", True)
    coordinator = ParallelCoordinator(workers, pool, max_parallelism=64, **options)
    stats, results = coordinator.execute_parallel(items, worker, str)
    return stats, {result.item_id: result for result in results}


def shell(script: str, **options: Any) -> Command:
    return Command(["sh", "-c", script], **options)


# -- functions ------------------------------------------------------------------------------------------------------


def test_every_item_is_run_and_its_value_comes_home(seating: Use) -> None:
    seating()

    stats, results = run(list(range(50)), cluster_workers.doubled, workers=4)

    assert (stats.success_count, stats.failed) == (50, 0)
    assert {item: result.value for item, result in results.items()} == {str(n): 2 * n for n in range(50)}


def test_an_error_comes_home_as_what_it_was(seating: Use) -> None:
    seating()

    _, results = run(["x"], cluster_workers.broken, retries=0)

    assert results["x"].error == "nothing for x"
    assert results["x"].metadata["error_type"] == "LookupError"


def test_a_worker_knows_its_attempt_and_what_it_logs_and_used_comes_home(
    seating: Use, caplog: pytest.LogCaptureFixture
) -> None:
    seating()
    pool = CredentialCoordinator(SECRETS[:1])

    with caplog.at_level(logging.WARNING, "agentos.worker"):
        _, results = run(["a"], cluster_workers.told_all, pool=pool)

    assert results["a"].value == ["a", 0, 1, "key-1", True]
    assert [record.getMessage() for record in caplog.records if record.name == "agentos.worker"] == ["[a] begun with a"]


def test_an_attempt_that_a_limit_stopped_runs_again_and_costs_no_try(seating: Use) -> None:
    seating()
    pool = CredentialCoordinator(SECRETS[:1])

    stats, results = run(["a"], cluster_workers.limited_once, pool=pool, retries=0)

    assert results["a"].value == 2
    assert (stats.limited, stats.retried, stats.failed) == (1, 0, 0)


def test_what_a_worker_says_of_its_key_is_known_before_the_worker_ends(
    seating: Use, gates: cluster_workers.Gates, aside: Aside
) -> None:
    seating()
    pool = CredentialCoordinator(SECRETS[:1])

    running = aside.submit(run, ["a"], cluster_workers.says_limited_then_waits, pool=pool)
    assert gates.arrived.acquire(timeout=WAIT)
    cooling = eventually(lambda: pool.snapshot()[0].rate_limited_until > 0)
    gates.go_on.set()

    assert cooling
    assert running.result(WAIT)[1]["a"].success


def test_a_secret_is_found_by_its_name_where_the_worker_is(seating: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    seating()
    monkeypatch.setenv("MY_KEY_7", SECRETS[0])
    pool = CredentialCoordinator([Credential(SECRETS[0], "my-key-7")])

    _, results = run(["a"], cluster_workers.with_secret, pool=pool, ship_secrets=False)

    assert results["a"].success


def test_an_item_that_cannot_be_pickled_fails_and_the_seat_takes_the_next(seating: Use) -> None:
    seating()

    stats, results = run([threading.Lock(), 4], cluster_workers.doubled, workers=1)

    failed = next(result for result in results.values() if not result.success)
    assert "the item cannot be pickled" in str(failed.error)
    assert results["4"].value == 8
    assert (stats.success_count, stats.failed) == (1, 1)


def test_a_value_that_is_too_large_fails_its_item_only(seating: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    seating()
    monkeypatch.setattr("agentos.runs.cluster.wire.messages.MAX_FRAME", 9_000)

    _, results = run(["a"], cluster_workers.too_large)

    assert "exceed the limit of 9,000" in str(results["a"].error)


def test_starts_may_be_on_disk_before_they_happen(seating: Use, tmp_path: Path) -> None:
    seating()

    stats, _ = run(list(range(5)), cluster_workers.doubled, journal=tmp_path / "run", start="strict")

    assert stats.success_count == 5
    assert kinds(tmp_path / "run").count("start") == 5


def test_nothing_begins_while_no_seat_has_asked(
    seating: Use, gates: cluster_workers.Gates, aside: Aside, tmp_path: Path
) -> None:
    places = seating(place=False)
    pool = CredentialCoordinator(SECRETS)

    running = aside.submit(run, [1, 2], cluster_workers.doubled, pool=pool, journal=tmp_path / "run")
    assert places.placed.wait(WAIT)
    leased = leased_of(pool)
    places.add_slot()
    running.result(WAIT)

    assert leased == 0


def test_a_cluster_that_cannot_be_reached_is_told_to_whoever_started_the_run(
    seating: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = seating()
    error = EngineUnavailable(place="the cluster", detail="nobody answers")
    monkeypatch.setattr(places, "open", raising(error))

    with pytest.raises(EngineUnavailable, match="nobody answers"):
        run([1], cluster_workers.doubled)


def test_what_an_earlier_run_has_done_is_counted_though_the_cluster_cannot_be_reached(
    seating: Use, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places = seating()
    run(list(range(0, 1_000, 2)), cluster_workers.doubled, journal=tmp_path / "run")
    monkeypatch.setattr(places, "open", raising(EngineUnavailable(place="the cluster", detail="nobody answers")))

    coordinator = ParallelCoordinator(2, journal=tmp_path / "run")
    with pytest.raises(EngineUnavailable):
        coordinator.execute_parallel(list(range(1_000)), cluster_workers.doubled, str)

    assert coordinator.stats is not None
    assert (coordinator.stats.success_count, coordinator.stats.unfinished) == (500, 500)


def test_results_of_an_earlier_run_are_all_yielded_before_it_is_said_that_the_cluster_cannot_be_reached(
    seating: Use, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places = seating()
    run(list(range(3_000)), cluster_workers.doubled, workers=8, journal=tmp_path / "run")
    monkeypatch.setattr(places, "open", raising(EngineUnavailable(place="the cluster", detail="nobody answers")))
    yielded = []

    with pytest.raises(EngineUnavailable):  # noqa: PT012 - what came before it matters
        for result in ParallelCoordinator(2, journal=tmp_path / "run").stream(
            list(range(-1, 3_000)), cluster_workers.doubled, str
        ):
            yielded.append(result.value)  # noqa: PERF401

    assert len(yielded) == 3_000


def test_a_run_with_nothing_left_to_do_needs_no_cluster(
    seating: Use, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places = seating()
    run(list(range(20)), cluster_workers.doubled, journal=tmp_path / "run")
    monkeypatch.setattr(places, "open", raising(EngineUnavailable(place="the cluster", detail="nobody answers")))

    stats, _ = run(list(range(20)), cluster_workers.doubled, journal=tmp_path / "run")

    assert (stats.success_count, stats.cached, stats.stopped_by) == (20, 20, None)


def test_an_address_that_cannot_be_listened_on_is_told_to_whoever_started_the_run(
    seating: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = seating()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(places, "open", lambda _workers: ("127.0.0.1", port, 1))
        with pytest.raises(EngineUnavailable, match=f"127.0.0.1:{port}"):
            run([1], cluster_workers.doubled)


# -- stopping -------------------------------------------------------------------------------------------------------


def test_shutdown_lets_what_runs_end_and_tells_it_to_finish_soon(
    seating: Use, gates: cluster_workers.Gates, aside: Aside
) -> None:
    seating()
    coordinator = ParallelCoordinator(1)

    running = aside.submit(coordinator.execute_parallel, ["a", "b"], cluster_workers.waits_for_stop, str)
    assert gates.arrived.acquire(timeout=WAIT)
    coordinator.shutdown()
    stats, results = running.result(WAIT)

    assert [result.item_id for result in results] == ["a"]
    assert stats.cause is Cause.ASKED


def test_a_function_that_overruns_is_left_behind_and_keeps_its_key_until_it_returns(
    seating: Use, gates: cluster_workers.Gates, aside: Aside
) -> None:
    seating()
    pool, clock = CredentialCoordinator(SECRETS[:1]), FakeClock()

    running = aside.submit(
        run, ["a"], cluster_workers.waits_for_gate, pool=pool, timeout=30.0, retries=0, workers=1, clock=clock
    )
    assert gates.arrived.acquire(timeout=WAIT)
    clock.advance(30.0)
    _, results = running.result(WAIT)
    leased = leased_of(pool)
    gates.go_on.set()

    assert "abandoned" in str(results["a"].error)
    assert leased == 1
    assert eventually(lambda: not leased_of(pool))


# -- coroutines -----------------------------------------------------------------------------------------------------


def test_coroutines_run_many_at_once_in_one_seat(seating: Use, gates: cluster_workers.Gates) -> None:
    seating(width=10)

    stats, _ = run([10] * 1 + [9, 8, 7, 6, 5, 4, 3, 2, 1], cluster_workers.all_at_once, workers=10)

    assert stats.success_count == 10


def test_a_coroutine_that_overruns_is_cancelled_where_it_is(
    seating: Use, gates: cluster_workers.Gates, aside: Aside
) -> None:
    seating(width=2)
    clock = FakeClock()

    running = aside.submit(run, ["a"], cluster_workers.never_ends, timeout=30.0, retries=0, clock=clock)
    assert gates.arrived.acquire(timeout=WAIT)
    clock.advance(30.0)
    _, results = running.result(WAIT)

    assert results["a"].error == "timed out after 30s"
    assert gates.seen == ["cancelled"]


def test_a_forced_stop_cancels_coroutines_where_they_are(
    seating: Use, gates: cluster_workers.Gates, aside: Aside
) -> None:
    seating(width=2)
    coordinator = ParallelCoordinator(2)

    running = aside.submit(coordinator.execute_parallel, ["a"], cluster_workers.never_ends, str)
    assert gates.arrived.acquire(timeout=WAIT)
    coordinator.shutdown(force=True)
    stats, _ = running.result(WAIT)

    assert stats.interrupted == 1
    assert gates.go_on.wait(WAIT)


# -- commands -------------------------------------------------------------------------------------------------------


def test_a_command_is_performed_elsewhere_and_its_output_is_the_value(seating: Use) -> None:
    seating()

    _, results = run(["a", "b c"], Command(["printf", "%s!", "{}"]))

    assert results["b c"].value == {"exit": 0, "stdout": "b c!", "truncated": False}


def test_a_command_finds_its_key_and_what_it_may_want_to_know_in_its_environment(
    seating: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    seating()
    monkeypatch.setenv("ANOTHER_KEY", SECRETS[1])
    pool = CredentialCoordinator(SECRETS[:1] + SECRETS[1:])
    script = 'echo "$AGENTOS_ITEM_ID $AGENTOS_ATTEMPT $AGENTOS_RUN_ID ${#AGENTOS_CREDENTIAL} ${ANOTHER_KEY:-none}"'

    _, results = run(["a"], shell(script, run_id="nightly"), pool=pool, workers=1)

    assert results["a"].value["stdout"] == f"a 1 nightly {len(SECRETS[0])} none\n"


def test_a_command_on_a_worker_does_not_find_the_store_of_the_keys(
    seating: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    seating()
    monkeypatch.setenv("AGENTOS_STORE", "redis://:planted-password@host")
    monkeypatch.setenv("KEY_STORE", "redis://:planted-password@host")
    monkeypatch.setenv("AGENTOS_HOME", "/state")
    script = 'echo "${AGENTOS_STORE-none} ${KEY_STORE-none} $AGENTOS_HOME"'

    _, results = run(["a"], shell(script, without={"KEY_STORE"}), workers=1)

    assert results["a"].value["stdout"] == "none none /state\n"


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo broken >&2; exit 3", "exit 3: broken"),
        ("kill -SEGV $$", "killed by SIGSEGV"),
        ("""echo '{"failed": "no such page"}' > "$AGENTOS_OUTCOME" """, "no such page"),
        ("""echo '{"rejected": "bad key"}' > "$AGENTOS_OUTCOME" """, "its credential: bad key"),
    ],
)
def test_how_a_command_ended_is_judged_at_home(seating: Use, script: str, error: str) -> None:
    seating()

    _, results = run(["x"], shell(script), retries=0)

    assert results["x"].error == error


def test_a_program_that_is_not_there_is_said_to_be_missing_on_that_machine(seating: Use) -> None:
    seating()

    _, results = run(["x"], Command(["no-such-program-anywhere"]), retries=0)

    assert results["x"].error == f"command not found on {socket.gethostname()}: no-such-program-anywhere"


def test_a_command_that_says_it_was_limited_lets_its_key_cool_and_runs_again(seating: Use) -> None:
    seating()
    pool = CredentialCoordinator(SECRETS[:1])
    script = 'test $AGENTOS_ATTEMPT = 2 || echo \'{"rate_limited": 0.05}\' > "$AGENTOS_OUTCOME"'

    stats, results = run(["x"], shell(script), pool=pool, retries=0)

    assert results["x"].success
    assert (stats.limited, stats.retried) == (1, 0)


def test_a_silent_command_is_stopped_where_it_is(seating: Use) -> None:
    seating()

    _, results = run(["x"], shell("sleep 60", idle_timeout=0.2, kill_after=0.2), retries=0)

    assert results["x"].error == "silent for 0.2s, and stopped"


def test_a_forced_stop_kills_a_command_where_it_is(seating: Use, tmp_path: Path, aside: Aside) -> None:
    seating()
    coordinator = ParallelCoordinator(1)
    mark = tmp_path / "pid"
    command = shell(f"echo $$ > {mark}.new; mv {mark}.new {mark}; exec sleep 60")

    running = aside.submit(coordinator.execute_parallel, ["x"], command, str)
    assert eventually(mark.exists)
    coordinator.shutdown(force=True)
    stats, _ = running.result(WAIT)

    assert stats.interrupted == 1
    assert eventually(lambda: not is_alive(int(mark.read_text())))


# -- what breaks in between -----------------------------------------------------------------------------------------


def test_a_connection_that_breaks_costs_nothing(
    seating: Use, proxy: Proxy, gates: cluster_workers.Gates, aside: Aside
) -> None:
    seating(through=proxy)

    running = aside.submit(run, ["a", "b"], cluster_workers.waits_for_gate, retries=0)
    for _ in range(2):
        assert gates.arrived.acquire(timeout=WAIT)
    proxy.cut()
    gates.go_on.set()
    stats, results = running.result(WAIT)

    assert stats.success_count == 2
    assert [results[item].attempts for item in "ab"] == [1, 1]


def test_the_output_of_a_command_is_whole_though_connections_break_all_the_time(seating: Use, proxy: Proxy) -> None:
    proxy.cut_each = 1_000
    seating(through=proxy)
    _, results = run(["x"], shell("seq 200 3199"), retries=0)

    assert results["x"].value["stdout"].split() == [str(n) for n in range(200, 3_200)]
    assert proxy.made > 4  # the output has 14,200 bytes; the first four connections pass 1,000 to 4,000 on


def test_a_worker_that_is_cut_off_loses_its_item_which_runs_again_and_its_late_result_is_evidence(
    seating: Use, proxy: Proxy, gates: cluster_workers.Gates, aside: Aside, tmp_path: Path
) -> None:
    places = seating(through=proxy)
    pool = CredentialCoordinator(SECRETS[:1])

    running = aside.submit(
        run, ["a"], cluster_workers.first_waits, pool=pool, workers=1, journal=tmp_path / "run", halt=None, retries=2
    )
    assert gates.arrived.acquire(timeout=WAIT)
    proxy.shut = True
    proxy.cut()
    places.lose_driver()
    places.lose_workers()
    assert eventually(lambda: "retry" in kinds(tmp_path / "run"))
    gates.go_on.set()
    assert eventually(lambda: gates.seen)
    proxy.shut = False
    assert eventually(lambda: "late" in kinds(tmp_path / "run"))
    places.add_slot()
    stats, results = running.result(WAIT)

    assert gates.seen == [(1, True, False)]  # told to stop, and that its lease is lost, before it came back
    assert results["a"].value == ["a", 2]
    assert (stats.success_count, stats.retried) == (1, 1)


def test_a_coroutine_whose_worker_is_cut_off_is_cancelled_before_its_key_is_given_away(
    seating: Use, proxy: Proxy, gates: cluster_workers.Gates, aside: Aside
) -> None:
    places = seating(through=proxy)
    pool = CredentialCoordinator(SECRETS[:1])

    running = aside.submit(run, ["a"], cluster_workers.never_ends, pool=pool, workers=1, retries=0)
    assert gates.arrived.acquire(timeout=WAIT)
    proxy.shut = True
    proxy.cut()
    places.lose_driver()
    assert gates.go_on.wait(WAIT)
    leased_when_cancelled = leased_of(pool)
    places.lose_workers()
    _, results = running.result(WAIT)

    assert leased_when_cancelled == 1
    assert results["a"].metadata["error_type"] == "WorkerLost"


# -- helpers --------------------------------------------------------------------------------------------------------


def eventually(condition: Callable[[], Any]) -> Any:
    pause, result = threading.Event(), condition()
    for _ in range(int(WAIT / 0.01)):
        if result:
            break
        pause.wait(0.01)
        result = condition()
    return result


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise error

    return call


def leased_of(pool: CredentialCoordinator) -> int:
    return sum(credential.leases for credential in pool.snapshot())


def kinds(journal: Path) -> list[str]:
    """What the journal has, in order."""
    path = journal / "journal.sqlite"
    if not path.exists():
        return []
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("select kind from entries order by seq")]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
