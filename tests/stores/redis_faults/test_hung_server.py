"""A server that accepts connections and does not answer blocks no caller, and work resumes when it answers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agentos import CredentialCoordinator, NoCredentialAvailable, ParallelCoordinator

from ...background_threads import Background
from ..pool_processes import eventually, keys
from .fault_scenario import AWHILE, LONG, TTL, Scene, let_pass, lost

STEP = 0.25  # the longest a pool waits for one answer
SLACK = AWHILE  # for a machine that has other things to do; what held anybody up would do so for as long as it hangs


@pytest.fixture
def pool(scene: Scene) -> CredentialCoordinator:
    return scene.open(keys(2))


def took(began: float) -> float:
    return time.monotonic() - began


def test_an_acquire_returns_when_its_time_is_over(scene: Scene, pool: CredentialCoordinator) -> None:
    scene.server.pause()
    for _ in range(3):
        began = time.monotonic()

        with pytest.raises(NoCredentialAvailable):
            pool.acquire(timeout=0.3)

        assert took(began) < 0.3 + STEP + SLACK
    scene.server.go_on()
    assert pool.acquire(timeout=20.0).release()


def test_releases_do_not_block_and_are_executed_when_the_server_answers_again(
    scene: Scene, pool: CredentialCoordinator
) -> None:
    witness = scene.open(keys(2))
    lease = pool.acquire(timeout=20.0)
    scene.server.pause()

    began = time.monotonic()
    assert lease.release()
    assert took(began) < STEP + SLACK
    began = time.monotonic()
    assert len(pool.snapshot()) == 2
    assert took(began) < STEP + SLACK

    scene.server.go_on()
    eventually(lambda: scene.tokens() == [])
    leases = [witness.acquire(timeout=20.0) for _ in range(2)]
    assert all(lease.release() for lease in leases)


def test_an_event_loop_goes_on(scene: Scene) -> None:
    child = scene.child(ttl=LONG)
    scene.server.pause()

    found = child.do("wait_in_a_loop", timeout=1.0)

    assert found["got"] is False
    assert found["waited"] < 1.0 + STEP + SLACK
    assert found["longest"] < 2 * STEP
    scene.server.go_on()
    assert child.do("wait_in_a_loop", timeout=20.0)["got"]


def test_waiters_go_on_waiting_and_are_served_when_it_answers_again(scene: Scene, pool: CredentialCoordinator) -> None:
    leases = [pool.acquire(timeout=20.0) for _ in range(2)]
    waiter = Background(lambda: pool.acquire("waiter", timeout=20.0))
    eventually(lambda: pool.explain("waiter").state == "waiting")
    scene.server.pause()
    assert leases[0].release()

    assert waiter.running
    scene.server.go_on()

    assert waiter.result().release()
    assert leases[1].release()


def test_a_holder_whose_server_hangs_for_longer_than_its_time_stops_and_another_may_have_the_slot(scene: Scene) -> None:
    holder, other = scene.child(), scene.child()
    token = holder.do("acquire", timeout=20.0)["token"]
    holder.begin("watch", "until_lost", token=token)
    scene.server.pause()
    over_at = time.monotonic() + TTL
    held_at = holder.outcome("watch").got  # by its own clock
    let_pass(over_at - time.monotonic())  # it stops a little before that, and could be renewed until then

    scene.server.go_on()

    answer = other.ask("acquire", timeout=20.0)
    assert answer.got["token"] > token
    assert answer.ended >= held_at
    assert holder.do("release", token=token) is False
    eventually(lambda: lost(holder, token) == 1)


def test_a_run_loses_no_result_when_the_server_is_killed_in_the_middle_and_comes_back_empty(
    scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = scene.open(keys(3), ttl=1.0)
    run = ParallelCoordinator(3, pool, journal=tmp_path / "run")
    begun: list[int] = []

    def worker(item: int, credential: str | None) -> int:
        begun.append(item)
        if item == 20:
            scene.server.kill()
            eventually(lambda: any("cannot be written" in line for line in caplog.messages))
            scene.server.restart(empty=True)
        return item * item

    stats, results = run.execute_parallel(range(60), worker, str)

    assert scene.server.starts == 2
    assert stats.cause is None
    assert sorted(begun) == list(range(60))  # none was run again
    assert sorted(result.value for result in results) == [item * item for item in range(60)]
