"""The contract of every engine."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import groupby, pairwise
from typing import Any

import pytest

from agentos import (
    Context,
    Credential,
    CredentialCoordinator,
    Interrupted,
    ParallelCoordinator,
    RateLimited,
    Transient,
)
from agentos.pool.lease import CURRENT_ATTEMPT
from agentos.runs.core.states import Phase
from agentos.runs.execution import dispatcher
from agentos.testing import FakeClock
from tests.runs.core.invariants import j2_counts_add_up

from .engine_contract import (
    ENGINES,
    PATIENCE,
    Engine,
    Events,
    Gate,
    Story,
    by_id,
    counted,
    eventually,
    nobody_waits,
    nothing_to_do,
    secrets,
    wait_for_alarm,
)

MakePool = Callable[..., CredentialCoordinator]


# -- items in, results out ----------------------------------------------------------------------------------------


def test_values_and_errors_come_back(engine: Engine, make_pool: MakePool) -> None:
    pool = make_pool(*secrets(2))

    async def body(item: int, key: str | None) -> Any:
        if item % 3 == 0:
            raise ValueError(f"no threes: {item}")
        return {"item": item, "key": key in secrets(2)}

    for items in engine.inputs(range(1, 10)):
        stats, results = engine.execute(ParallelCoordinator(3, pool), items, engine.worker(body))

        found = by_id(results)
        assert {i: r.value for i, r in found.items() if r.success} == {
            str(item): {"item": item, "key": True} for item in (1, 2, 4, 5, 7, 8)
        }
        assert {r.error for r in results if not r.success} == {f"no threes: {item}" for item in (3, 6, 9)}
        assert all(r.metadata["error_type"] == "ValueError" for r in results if not r.success)
        assert all((r.attempts, r.cached, r.outcome) == (1, False, "done" if r.success else "failed") for r in results)
        assert {r.credential for r in results} <= {"key-1", "key-2"}
        assert (stats.total, stats.completed, stats.success_count, stats.failed) == (9, 9, 6, 3)
        assert stats.stopped_by is None


def test_results_are_streamed_too(engine: Engine, make_pool: MakePool) -> None:
    pool = make_pool(*secrets(2))

    async def body(item: int, key: str | None) -> int:
        return item * item

    for items in engine.inputs(range(300)):
        run = ParallelCoordinator(4, pool)
        results = engine.stream(run, items, engine.worker(body))

        assert sorted(r.value for r in results) == [n * n for n in range(300)]
        assert run.stats is not None
        assert run.stats.total == run.stats.success_count == 300


@pytest.mark.parametrize("pooled", [False, True])
def test_with_one_worker_items_start_in_the_order_of_the_input(
    engine: Engine, make_pool: MakePool, pooled: bool
) -> None:
    for items in engine.inputs(range(150)):
        began: list[int] = []

        async def body(item: int, key: str | None, began: list[int] = began) -> None:
            began.append(item)

        engine.execute(ParallelCoordinator(1, make_pool(*secrets(1)) if pooled else None), items, engine.worker(body))

        assert began == list(range(150))


@pytest.mark.parametrize(
    "raised",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), BaseException("x")],
    ids=repr,
)
def test_whatever_a_worker_raises_fails_only_its_item(
    engine: Engine, make_pool: MakePool, raised: BaseException
) -> None:
    async def body(item: int, key: str | None) -> int:
        if item == 1:
            raise raised
        return item

    stats, results = engine.execute(ParallelCoordinator(2, make_pool(*secrets(2))), range(6), engine.worker(body))

    assert (stats.success_count, stats.failed, stats.stopped_by) == (5, 1, None)
    assert by_id(results)["1"].metadata["error_type"] == type(raised).__name__


def test_a_worker_gets_its_item_its_credential_and_a_context(engine: Engine, make_pool: MakePool) -> None:
    pool = make_pool(*secrets(1))

    async def body(item: dict[str, int], key: str | None, context: Context) -> Any:
        assert context.lease is not None
        assert key == secrets(1)[0] == context.lease.reveal()
        assert not context.stopping.is_set()
        assert not context.checkpoint.exists()
        return item, context.item_id, context.attempt

    worker = engine.worker(body, context=True)
    run = ParallelCoordinator(1, pool)
    _, results = engine.execute(run, [{"n": 7}], worker)

    assert results[0].error is None
    assert results[0].value == ({"n": 7}, "{'n': 7}", 1)


def test_without_a_pool_the_credential_is_none(engine: Engine) -> None:
    async def body(item: int, key: str | None, context: Context) -> bool:
        return key is None and context.lease is None and not context.settle(tokens=1)

    _, results = engine.execute(ParallelCoordinator(2), range(3), engine.worker(body, context=True))

    assert [r.value for r in results] == [True] * 3


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_few_items_for_many_workers_are_each_run_once(engine: Engine, make_pool: MakePool, count: int) -> None:
    """The end of the input is found by many at once."""
    pool = make_pool(*secrets(3))
    worker_runs: list[int] = []

    async def body(item: int, key: str | None) -> None:
        worker_runs.append(item)

    for _ in range(4):
        for items in engine.inputs(range(count)):
            worker_runs.clear()
            run = ParallelCoordinator(16, pool, max_parallelism=16)
            stats, results = engine.execute(run, items, engine.worker(body))

            assert sorted(worker_runs) == list(range(count))
            assert len(results) == stats.total == stats.success_count == count
            assert run.get_checkpoints() == []


def test_five_thousand_items_on_sixty_four_workers_over_eight_keys(engine: Engine, make_pool: MakePool) -> None:
    pool = make_pool(*secrets(8), debug=False)
    using = Counter[str]()
    ran = Counter[int]()
    lock = threading.Lock()
    wrong: list[str] = []

    async def body(item: int, key: str | None) -> int:
        with lock:
            using[str(key)] += 1
            ran[item] += 1
            if using[str(key)] > 1:
                wrong.append(f"{item}: somebody else uses this key")
        if item % 50 == 0 and engine.coroutines:
            await asyncio.sleep(0)
        with lock:
            using[str(key)] -= 1
        return item

    run = ParallelCoordinator(64, pool, max_parallelism=64)
    stats, results = engine.execute(run, range(5_000), engine.worker(body))

    assert wrong == []
    assert set(ran.values()) == {1}
    assert sorted(r.value for r in results) == list(range(5_000))
    assert stats.success_count == 5_000
    assert {r.credential for r in results} <= {f"key-{n}" for n in range(1, 9)}


def test_no_more_of_an_endless_input_is_taken_than_is_about_to_be_run(engine: Engine, make_pool: MakePool) -> None:
    ran: list[int] = []
    ahead: list[int] = []
    taken: list[int] = []

    async def body(item: int, key: str | None) -> None:
        ran.append(item)
        ahead.append(len(taken) - len(ran))

    run = ParallelCoordinator(4, make_pool(*secrets(2)))
    stats, _ = engine.execute(run, counted(range(2_000), taken), engine.worker(body))

    assert stats.total == len(taken) == 2_000
    assert max(ahead) <= 300


def test_of_a_list_too_only_a_window_is_looked_at(engine: Engine, make_pool: MakePool) -> None:
    waiting: list[int] = []

    async def body(item: int, key: str | None) -> None:
        waiting.append(len(run._running[0].state.scheduler.fresh))

    run = ParallelCoordinator(4, make_pool(*secrets(2)))
    stats, _ = engine.execute(run, list(range(1_500)), engine.worker(body))

    assert stats.success_count == 1_500
    assert max(waiting) <= 300


@pytest.mark.parametrize(("kind", "window"), [(list, 256), (iter, 64)])
def test_two_workers_that_find_nothing_left_take_one_window(
    kind: Callable[[range], Iterable[int]], window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull, waiting = dispatcher.Dispatcher._read_input, list[int]()

    def later_than_another(self: dispatcher.Dispatcher, on_and_on: bool = False) -> bool:
        return pull(self, on_and_on) and pull(self, on_and_on)

    def body(item: int, key: str | None) -> None:
        waiting.append(len(run._running[0].state.scheduler.fresh))

    monkeypatch.setattr(dispatcher.Dispatcher, "_read_input", later_than_another)
    run = ParallelCoordinator(1)
    stats, _ = run.execute_parallel(kind(range(1_000)), body, str)

    assert stats.success_count == 1_000
    assert max(waiting) < window


def test_an_input_that_waits_for_its_first_item_to_be_done_is_not_waited_for(
    engine: Engine, make_pool: MakePool
) -> None:
    done: list[threading.Event] = [threading.Event() for _ in range(5)]

    def items() -> Any:
        for number in range(5):
            yield number
            assert done[number].wait(PATIENCE), f"nobody began {number}"

    async def body(item: int, key: str | None) -> None:
        done[item].set()

    stats, _ = engine.execute(ParallelCoordinator(2, make_pool(*secrets(2))), items(), engine.worker(body))

    assert (stats.success_count, stats.stopped_by) == (5, None)


@pytest.mark.parametrize("engine", [e for e in ENGINES if e.in_loop], ids=lambda engine: engine.name)
def test_an_async_input_is_not_taken_ahead_either(engine: Engine, make_pool: MakePool) -> None:
    taken: list[int] = []
    ahead: list[int] = []
    ran: list[int] = []

    async def items() -> Any:
        for number in range(1_000):
            taken.append(number)
            yield number

    async def body(item: int, key: str | None) -> None:
        ran.append(item)
        ahead.append(len(taken) - len(ran))

    engine.execute(ParallelCoordinator(4, make_pool(*secrets(2))), items(), engine.worker(body))

    assert sorted(ran) == list(range(1_000))
    assert max(ahead) <= 300


@pytest.mark.parametrize("function", ["cost_func", "model_func", "affinity_func"])
def test_an_exception_in_a_function_of_the_item_fails_only_that_item(
    engine: Engine, make_pool: MakePool, function: str
) -> None:
    good: dict[str, Any] = {"cost_func": {"tokens": 1}, "model_func": "a-model", "affinity_func": "someone"}
    bad: dict[str, Any] = {"cost_func": {"tonnes": 1}, "model_func": 5, "affinity_func": ""}

    def of_item(item: int) -> Any:
        if item == 2:
            raise LookupError("no idea")
        return bad[function] if item == 3 else good[function]

    async def body(item: int, key: str | None) -> int:
        return item

    options: dict[str, Any] = {function: of_item}
    run = ParallelCoordinator(2, make_pool(*secrets(2)), **options)
    stats, results = engine.execute(run, range(8), engine.worker(body))

    found = by_id(results)
    assert "LookupError: no idea" in str(found["2"].error)
    assert "ValueError: " in str(found["3"].error)
    assert (stats.success_count, stats.failed) == (6, 2)


# -- limits and retries -------------------------------------------------------------------------------------------


def test_a_limited_item_goes_back_to_the_head_and_spends_no_try(engine: Engine, make_pool: MakePool) -> None:
    clock = FakeClock()
    pool = make_pool(*secrets(1), clock=clock)
    began: list[tuple[int, float]] = []
    holders: list[str] = []

    async def body(item: int, key: str | None) -> int:
        began.append((item, clock.now()))
        holders.append(pool.explain(str(item)).state)
        if item == 1 and sum(before == 1 for before, _ in began) <= 3:
            raise RateLimited(30)
        return item

    run = ParallelCoordinator(3, pool, retries=0, clock=clock)
    stats, results = Story(engine, run, range(20), engine.worker(body), clock).end()

    instants = [at for item, at in began if item == 1]
    places = [place for place, (item, _) in enumerate(began) if item == 1]
    others = places[-1] - places[0] - 3  # that began between its first attempt and its last
    assert others <= 3 * 2, began  # each time those that the two other workers had in hand, and no more
    assert all(later - earlier >= 30 for earlier, later in pairwise(instants))
    assert (stats.limited, stats.retried, stats.failed) == (3, 0, 0)
    assert by_id(results)["1"].attempts == 4
    assert set(holders) == {"holding"}  # the pool names the item, also where the lease was asked for by another


def test_an_error_that_may_pass_is_tried_again_after_a_pause(engine: Engine, make_pool: MakePool) -> None:
    clock = FakeClock()
    began: list[float] = []

    async def body(item: int, key: str | None) -> str:
        began.append(clock.now())
        if len(began) < 3:
            raise Transient("503")
        return "at last"

    run = ParallelCoordinator(2, make_pool(*secrets(1), clock=clock), retries=2, clock=clock)
    stats, results = Story(engine, run, [0], engine.worker(body), clock).end()

    assert (results[0].value, results[0].attempts, stats.retried) == ("at last", 3, 2)
    assert 0 <= began[1] - began[0] < 1
    assert 0 <= began[2] - began[1] < 2


def test_a_model_that_cools_for_long_does_not_hold_up_the_others(engine: Engine, make_pool: MakePool) -> None:
    clock = FakeClock()
    done: list[str] = []
    gate = Gate()
    limited = Counter[str]()

    async def body(item: str, key: str | None) -> None:
        if item.startswith("slow") and limited[item] < 2:
            limited[item] += 1
            raise RateLimited(3600, model="slow-model")
        done.append(item)
        await gate.wait(item)

    gate.open()
    items = ["slow-0", "slow-1", *(f"quick-{n}" for n in range(20))]
    pool = make_pool(*secrets(2), clock=clock)
    run = ParallelCoordinator(4, pool, model_func=lambda item: f"{item.split('-')[0]}-model", clock=clock)
    story = Story(engine, run, items, engine.worker(body), clock)
    gate.wait_for(20)  # and no time has passed

    assert clock.now() == 1000.0
    assert sorted(done) == sorted(items[2:])
    stats, _ = story.end()
    assert stats.success_count == 22


def test_a_lease_for_one_model_is_not_used_for_an_item_of_another(engine: Engine, make_pool: MakePool) -> None:
    clock = FakeClock()
    pool = make_pool(*secrets(1), clock=clock)
    began: list[tuple[str, float]] = []

    def model_of(item: str) -> str:
        if item == "quick-1":
            # The slow one is the earlier of the two, and its model still cools. By now it is to be run again: where a
            # worker waits for a seat it had the time to stand in the pool's line, else it comes while we look.
            clock.advance(1.0)
            inside = run._running[0]
            eventually(lambda: inside.state.scheduler.retry_ready or inside.dispatcher.requests)
        return f"{item.split('-')[0]}-model"

    async def body(item: str, key: str | None) -> None:
        began.append((item, clock.now()))
        if item == "slow-0" and len(began) == 1:
            raise RateLimited(3600, model="slow-model")

    run = ParallelCoordinator(1, pool, model_func=model_of, clock=clock)
    story = Story(engine, run, ["slow-0", "quick-1"], engine.worker(body))
    eventually(lambda: len(began) == 2)
    story.clock = clock
    story.end()

    assert began == [("slow-0", 1000.0), ("quick-1", 1001.0), ("slow-0", 4600.0)]


def test_many_items_of_a_model_that_cools_for_long_do_not_hold_up_the_others_either(
    engine: Engine, make_pool: MakePool
) -> None:
    clock = FakeClock()
    quick = Gate()
    quick.open()

    async def body(item: str, key: str | None) -> None:
        if item.startswith("slow") and clock.now() < 4000:
            raise RateLimited(3600, model="slow-model")
        if item.startswith("quick"):
            await quick.wait(item)

    items = [*(f"slow-{n}" for n in range(40)), *(f"quick-{n}" for n in range(10))]
    pool = make_pool(*secrets(2), clock=clock)
    run = ParallelCoordinator(4, pool, model_func=lambda item: f"{item.split('-')[0]}-model", clock=clock)
    story = Story(engine, run, items, engine.worker(body), clock)
    try:
        # Nothing can happen any more before an hour has passed: all that may be in line is.
        inside = story.inside
        eventually(
            lambda: len(quick.arrived) == 10 or (nothing_to_do(inside, 4) and not inside.state.scheduler.running)
        )
        assert len(quick.arrived) == 10
    finally:
        story.end()


def test_items_of_one_model_start_in_the_order_of_the_input_though_many_stand_aside(
    engine: Engine, make_pool: MakePool, gate: Gate
) -> None:
    pool = make_pool(*secrets(1))
    began: list[int] = []

    async def body(item: int, key: str | None) -> None:
        began.append(item)
        if len(began) == 1:
            await gate.wait()

    run = ParallelCoordinator(4, pool, model_func=lambda item: "the-only-model")
    story = Story(engine, run, range(40), engine.worker(body))
    gate.wait_for(1)
    inside = story.inside
    eventually(
        lambda: inside.state.scheduler.deferred_count + len(inside.dispatcher.requests) == 39
    )  # everybody else waits
    gate.open()
    stats, _ = story.end()

    assert sorted(began) == list(range(40))
    assert most_overtaken(began) <= 2 * 3  # those that other workers have in hand, on the way to the line and back
    assert stats.success_count == 40


def most_overtaken(began: list[int]) -> int:
    """Return how many earlier items had not begun at most when one did: concurrent workers may change places."""
    return max(sum(earlier not in began[:place] for earlier in range(item)) for place, item in enumerate(began))


def test_items_that_stand_aside_behind_some_that_then_fail_are_run_all_the_same(
    engine: Engine, make_pool: MakePool, gate: Gate
) -> None:
    """Those brought back for the ones that were in line come to nothing: nobody is in line any more to bring others."""
    pool = make_pool(*secrets(1))
    asked, began = Counter[int](), list[int]()

    def model_of(item: int) -> str:
        asked[item] += 1
        if item in {8, 9} and asked[item] == 2:
            raise LookupError("this time I do not know")
        return "the-only-model"

    async def body(item: int, key: str | None) -> int:
        began.append(item)
        if len(began) == 1:
            await gate.wait()
        return item

    run = ParallelCoordinator(3, pool, model_func=model_of)
    story = Story(engine, run, range(12), engine.worker(body))
    gate.wait_for(1)
    inside = story.inside
    eventually(lambda: inside.state.scheduler.deferred_count + len(inside.dispatcher.requests) == 11)
    gate.open()
    stats, results = story.end()

    assert sorted(r.item_id for r in results if not r.success) == ["8", "9"]
    assert stats.success_count == 10


def test_items_that_stand_aside_are_bounded_too(
    engine: Engine, make_pool: MakePool, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "_MAX_DEFERRED", 20)
    taken: list[int] = []
    began: list[int] = []

    async def body(item: int, key: str | None) -> None:
        began.append(item)
        if len(began) == 1:
            await gate.wait()

    run = ParallelCoordinator(4, make_pool(*secrets(1)), model_func=lambda item: "the-only-model")
    story = Story(engine, run, counted(range(240), taken), engine.worker(body))
    gate.wait_for(1)
    inside = story.inside
    # They have looked as far ahead as they may.
    eventually(lambda: len(taken) >= 20 and nothing_to_do(inside, 3))

    assert len(taken) <= 20 + 200
    gate.open()
    assert story.end()[0].success_count == 240


def test_an_item_that_stands_aside_goes_before_the_rest_of_the_input(engine: Engine, make_pool: MakePool) -> None:
    began: list[str] = []
    gates = [Gate() for _ in range(20)]  # of those that begin first

    async def body(item: str, key: str | None) -> None:
        began.append(item)
        if len(began) <= len(gates):
            await gates[len(began) - 1].wait()

    # Whichever begins first, and whichever two of the others are in line: the last of these stands aside.
    items = ["y-0", *(f"x-{n}" for n in range(1, 6)), *(f"y-{n}" for n in range(6, 400))]
    run = ParallelCoordinator(3, make_pool(*secrets(1)), model_func=lambda item: f"{item[0]}-model")
    story = Story(engine, run, iter(items), engine.worker(body))
    inside = story.inside
    for gate in gates:
        gate.wait_for(1)
        eventually(lambda: nothing_to_do(inside, 2))
        gate.open()
    story.end()

    assert sorted(began) == sorted(items)
    assert began.index("x-5") < len(gates)


@pytest.mark.parametrize("how", ["stopped", "troubled", "hopeless"])
def test_items_that_stand_aside_are_not_forgotten(engine: Engine, make_pool: MakePool, gate: Gate, how: str) -> None:
    pool = make_pool(*secrets(1))

    async def body(item: int, key: str | None, context: Context) -> int:
        await gate.wait()
        if how == "hopeless":
            assert context.lease is not None
            context.lease.rejected("401")
            raise PermissionError("401")
        return item

    run = ParallelCoordinator(3, pool, model_func=lambda item: "the-only-model")
    story = Story(engine, run, range(30), engine.worker(body, context=True))
    gate.wait_for(1)
    inside = story.inside
    eventually(lambda: inside.state.scheduler.deferred_count + len(inside.dispatcher.requests) == 29)
    if how == "stopped":
        run.shutdown()
    elif how == "troubled":
        inside.shutdown.on_journal_trouble("no space left on device")
        assert inside.state.scheduler.deferred_count == 0
        inside.shutdown.on_journal_trouble(None)
    gate.open()
    stats, results = story.end()

    done = {"stopped": 1, "troubled": 30, "hopeless": 0}[how]
    finished = sorted(r.value for r in results)
    assert len(finished) == done
    assert run.get_checkpoints() == [str(n) for n in range(30) if n not in finished]
    assert stats.failed == 0


# -- time ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [e for e in ENGINES if e.coroutines], ids=lambda engine: engine.name)
def test_a_worker_that_takes_too_long_is_stopped_if_it_can_be(engine: Engine, make_pool: MakePool, gate: Gate) -> None:
    clock = FakeClock()
    pool = make_pool(*secrets(1), clock=clock)

    async def body(item: int, key: str | None) -> str:
        if item == 0:
            await gate.wait()
        return "ok"

    run = ParallelCoordinator(1, pool, timeout=10, retries=0, clock=clock)
    story = Story(engine, run, range(3), engine.worker(body))
    gate.wait_for(1)
    clock.advance(10.0)
    stats, results = story.end()

    found = by_id(results)
    assert (found["0"].error, found["0"].duration) == ("timed out after 10s", 10.0)
    assert found["0"].metadata["error_type"] == "TimeoutError"
    assert (stats.success_count, stats.failed, stats.stopped_by) == (2, 1, None)


@pytest.mark.parametrize("how", ["returns", "raises"])
@pytest.mark.parametrize("engine", [e for e in ENGINES if e.coroutines], ids=lambda engine: engine.name)
def test_a_worker_that_ends_otherwise_when_it_is_cancelled_leaves_no_trace(
    engine: Engine, make_pool: MakePool, gate: Gate, how: str
) -> None:
    """The task that ran it runs the next item as if nothing had happened."""
    clock = FakeClock()
    cancelling: list[int] = []

    async def body(item: int, key: str | None) -> str:
        task = asyncio.current_task()
        assert task is not None
        cancelling.append(task.cancelling())
        if item == 0:
            try:
                await gate.wait()
            except asyncio.CancelledError:
                if how == "returns":
                    return "what I have"
                raise ValueError("a wrapped cancellation") from None
        if item == 1:
            raise asyncio.CancelledError  # its own, as from a future that somebody cancelled
        return "ok"

    run = ParallelCoordinator(1, make_pool(*secrets(1), clock=clock), timeout=10, retries=0, clock=clock)
    story = Story(engine, run, range(4), engine.worker(body))
    gate.wait_for(1)
    clock.advance(10.0)
    stats, _ = story.end()

    assert (stats.completed, stats.stopped_by) == (4, None)
    assert cancelling == [0, 0, 0, 0]


def test_a_worker_that_cannot_be_stopped_is_left_behind_and_keeps_its_lease(
    engine: Engine, make_pool: MakePool, gate: Gate
) -> None:
    clock = FakeClock()
    pool = make_pool(*secrets(2), clock=clock)
    others = Gate()

    async def body(item: int, key: str | None) -> str | None:
        if item == 0:
            await gate.wait_stubbornly()
        else:
            await others.wait(item)
        return key

    told = Events()
    run = ParallelCoordinator(1, pool, timeout=10, retries=2, on_progress=told, clock=clock)
    story = Story(engine, run, range(4), engine.worker(body))
    gate.wait_for(1)
    clock.advance(10.0)
    if engine.coroutines:
        gate.wait_for(2)  # it was cancelled, and does not care
        wait_for_alarm(clock, 1010.0 + engine.clean_up)
        clock.advance(engine.clean_up)
    failed = told.wait_for("item_finished", "0").result
    others.wait_for(1)  # by another worker in its place, though there is only one

    assert failed is not None
    assert "timed out after 10s; its worker could not be stopped" in str(failed.error)
    assert pool.get_available_count() == 0
    gate.open()
    eventually(lambda: pool.get_available_count() == 1)
    others.open()
    stats, results = story.end()

    found = by_id(results)
    assert len(results) == 4
    assert (found["0"].success, found["0"].value, found["0"].attempts) == (False, None, 1)  # late: no result
    assert found["1"].credential != found["0"].credential
    assert (stats.success_count, stats.failed) == (3, 1)


def test_more_workers_left_behind_than_the_run_has_end_it(engine: Engine, make_pool: MakePool, gate: Gate) -> None:
    clock = FakeClock()
    pool = make_pool(Credential(secrets(1)[0], slots=8), clock=clock)

    async def body(item: int, key: str | None) -> None:
        await gate.wait_stubbornly(item)

    run = ParallelCoordinator(1, pool, timeout=10, clock=clock)
    story = Story(engine, run, range(10), engine.worker(body))
    for number in range(2):
        eventually(lambda number=number: number in gate.arrived)  # type: ignore[misc]
        before = clock.now()
        clock.advance(10.0)
        if engine.coroutines:
            wait_for_alarm(clock, before + 10.0 + engine.clean_up)
            clock.advance(engine.clean_up)
    if engine.coroutines:
        eventually(lambda: all(inside.state.scheduler.phase is not Phase.RUNNING for inside in run._running))
    stats, results = story.end()
    gate.open()

    assert "2 workers that did not return" in str(stats.stopped_by)
    assert sorted(r.item_id for r in results) == ["0", "1"]
    assert run.get_checkpoints() == [str(n) for n in range(2, 10)]


def test_a_lease_that_comes_at_the_deadline_is_given_back(engine: Engine, make_pool: MakePool) -> None:
    clock = FakeClock()
    pool = make_pool(*secrets(1), clock=clock)

    def cost_of(item: int) -> None:
        if item == 1:
            clock.advance(60.0)  # just before it gets its lease

    async def body(item: int, key: str | None) -> int:
        return item

    run = ParallelCoordinator(1, pool, deadline=60, cost_func=cost_of, clock=clock)
    stats, results = Story(engine, run, range(4), engine.worker(body)).end()

    assert [r.value for r in results] == [0]
    assert stats.stopped_by == "the deadline"
    eventually(lambda: pool.get_available_count() == 1)  # the run does not wait for who was about to begin
    assert run.get_checkpoints() == ["1", "2", "3"]


# -- stopping -----------------------------------------------------------------------------------------------------


def test_a_stop_lets_what_runs_end_and_begins_nothing(engine: Engine, make_pool: MakePool, gate: Gate) -> None:
    began: list[int] = []

    async def body(item: int, key: str | None, context: Context) -> bool:
        began.append(item)
        await gate.wait()
        return context.stopping.wait(engine.lag)

    run = ParallelCoordinator(2, make_pool(*secrets(2)))
    story = Story(engine, run, range(20), engine.worker(body, context=True))
    gate.wait_for(2)
    run.shutdown()
    gate.open()
    stats, results = story.end()

    assert sorted(began) == [0, 1]
    assert [r.value for r in results] == [True, True]
    assert (stats.stopped_by, stats.interrupted, stats.unfinished) == ("shutdown()", 0, 18)
    assert run.get_checkpoints() == [str(n) for n in range(2, 20)]


def test_a_worker_that_heeds_the_stop_is_interrupted(engine: Engine, make_pool: MakePool, gate: Gate) -> None:
    async def body(item: int, key: str | None, context: Context) -> None:
        await gate.wait()
        if context.stopping.wait(engine.lag):
            raise Interrupted

    run = ParallelCoordinator(2, make_pool(*secrets(2)))
    story = Story(engine, run, range(5), engine.worker(body, context=True))
    gate.wait_for(2)
    run.shutdown()
    gate.open()
    stats, results = story.end()

    assert (results, stats.interrupted, stats.failed) == ([], 2, 0)
    assert run.get_checkpoints() == [str(n) for n in range(5)]


def test_a_forced_stop_waits_for_nobody(engine: Engine, make_pool: MakePool, gate: Gate) -> None:
    pool = make_pool(*secrets(3))

    async def body(item: int, key: str | None) -> None:
        await gate.wait_stubbornly(item)

    run = ParallelCoordinator(3, pool)
    story = Story(engine, run, range(8), engine.worker(body))
    gate.wait_for(3)
    run.shutdown(force=True)
    stats, results = story.end()

    assert (results, stats.interrupted) == ([], 3)
    assert run.get_checkpoints() == [str(n) for n in range(8)]
    gate.open()


def test_after_a_forced_stop_a_worker_has_a_moment_to_clean_up_and_no_more(
    engine: Engine, make_pool: MakePool, gate: Gate
) -> None:
    clock = FakeClock()

    async def body(item: int, key: str | None) -> None:
        await gate.wait_stubbornly(item)

    run = ParallelCoordinator(2, make_pool(*secrets(2), clock=clock), clock=clock)
    story = Story(engine, run, range(4), engine.worker(body))
    gate.wait_for(2)
    run.shutdown(force=True)
    if engine.coroutines:
        gate.wait_for(4)  # both were cancelled, and do not care
        wait_for_alarm(clock, 1000.3)
        clock.advance(0.3)
    stats, results = story.end()  # and no more time passes

    assert (results, stats.interrupted) == ([], 2)
    gate.open()


def test_a_stop_with_grace_waits_so_long_and_then_for_nobody(engine: Engine, make_pool: MakePool, gate: Gate) -> None:
    clock = FakeClock()

    async def body(item: int, key: str | None) -> int:
        if item == 0:
            await gate.wait_stubbornly(item)
        return item

    told = Events()
    run = ParallelCoordinator(1, make_pool(*secrets(1), clock=clock), on_progress=told, clock=clock)
    story = Story(engine, run, range(4), engine.worker(body))
    gate.wait_for(1)
    story.inside.stop("a test", grace=8.0)
    wait_for_alarm(clock, 1008.0)
    clock.advance(7.9)
    assert story.inside.state.scheduler.phase is Phase.DRAINING
    story.clock = clock
    stats, results = story.end()

    assert (results, stats.interrupted, stats.stopped_by) == ([], 1, "a test")
    assert clock.now() >= 1008.0
    gate.open()


def test_a_stop_takes_the_requests_out_of_the_pools_line(engine: Engine, make_pool: MakePool, gate: Gate) -> None:
    pool = make_pool(*secrets(1))

    async def body(item: int, key: str | None) -> int:
        await gate.wait(item)
        return item

    run = ParallelCoordinator(4, pool)
    story = Story(engine, run, range(10), engine.worker(body))
    running = gate.wait_for(1)
    waiting = "1" if running == [0] else "0"
    inside = story.inside
    eventually(lambda: nothing_to_do(inside, 3) and pool.explain(waiting).state == "waiting")
    run.shutdown()

    assert pool.explain(waiting).state == "unknown"
    assert nobody_waits(pool)
    gate.open()
    _, results = story.end()
    assert [r.value for r in results] == running
    assert pool.get_available_count() == 1


def test_a_stop_while_no_key_is_there_at_all_ends_at_once(engine: Engine, make_pool: MakePool) -> None:
    """Nothing runs, everybody waits for a lease that somebody else holds."""
    pool = make_pool(*secrets(1))
    held = pool.acquire("somebody else")

    async def body(item: int, key: str | None) -> None:
        raise AssertionError("it had no lease")

    run = ParallelCoordinator(4, pool)
    story = Story(engine, run, range(10), engine.worker(body))
    inside = story.inside
    eventually(lambda: nothing_to_do(inside, 4) and pool.explain("0").state == "waiting")
    run.shutdown()
    stats, results = story.end()

    assert (results, stats.stopped_by) == ([], "shutdown()")
    assert nobody_waits(pool)
    held.release()
    assert pool.get_available_count() == 1


def test_a_stop_in_the_very_moment_a_request_is_made_leaves_it_not_in_line(engine: Engine, make_pool: MakePool) -> None:
    pool = make_pool(*secrets(1))
    held = pool.acquire("somebody else")

    def cost_of(item: int) -> None:
        run.shutdown()  # the worker has looked whether it may go on, and has not yet asked for its lease

    async def body(item: int, key: str | None) -> None:
        raise AssertionError("it had no lease")

    run = ParallelCoordinator(2, pool, cost_func=cost_of)
    stats, results = Story(engine, run, range(3), engine.worker(body)).end()

    assert (results, stats.stopped_by) == ([], "shutdown()")
    eventually(lambda: nobody_waits(pool))
    held.release()
    eventually(lambda: pool.get_available_count() == 1)  # perhaps it asks only now, and gives back what it gets


def test_trouble_in_the_very_moment_a_request_is_made_takes_it_out_again(engine: Engine, make_pool: MakePool) -> None:
    pool = make_pool(*secrets(1))
    held = pool.acquire("somebody else")
    troubled = threading.Event()

    def cost_of(item: int) -> None:
        if not troubled.is_set():
            run._running[0].shutdown.on_journal_trouble("no space left on device")
            troubled.set()

    async def body(item: int, key: str | None) -> int:
        return item

    run = ParallelCoordinator(1, pool, cost_func=cost_of)
    story = Story(engine, run, range(3), engine.worker(body))
    inside = story.inside
    assert troubled.wait(PATIENCE)
    eventually(lambda: len(inside.state.idle) == 1)

    assert nobody_waits(pool)
    held.release()
    inside.shutdown.on_journal_trouble(None)
    assert story.end()[0].success_count == 3


def test_trouble_in_the_very_moment_a_lease_comes_gives_it_back(engine: Engine, make_pool: MakePool) -> None:
    pool = make_pool(*secrets(1))
    held = pool.acquire("somebody else")
    began: list[int] = []

    class Requests(dict[Any, None]):
        """Trouble comes when a worker has just taken an answer, so that nobody else can turn it down."""

        def pop(self, *key: Any) -> Any:
            found = super().pop(*key)
            inside.state.pause_reason = "no space left on device"
            return found

    async def body(item: int, key: str | None) -> None:
        began.append(item)

    run = ParallelCoordinator(1, pool)
    story = Story(engine, run, range(3), engine.worker(body))
    inside = story.inside
    eventually(lambda: pool.explain("0").state == "waiting")
    inside.dispatcher.requests = Requests(inside.dispatcher.requests)
    held.release()
    eventually(lambda: pool.get_available_count() == 1 and nobody_waits(pool) and len(inside.state.idle) == 1)

    assert began == []
    inside.dispatcher.requests = {}
    inside.shutdown.on_journal_trouble(None)
    assert story.end()[0].success_count == 3
    assert began == [0, 1, 2]


def test_while_nothing_can_be_recorded_nothing_begins_and_then_it_goes_on(
    engine: Engine, make_pool: MakePool, gate: Gate
) -> None:
    pool = make_pool(*secrets(1))
    began: list[int] = []

    async def body(item: int, key: str | None) -> None:
        began.append(item)
        await gate.wait()

    run = ParallelCoordinator(3, pool)
    story = Story(engine, run, range(12), engine.worker(body))
    gate.wait_for(1)
    inside = story.inside
    eventually(lambda: inside.dispatcher.requests and nothing_to_do(inside, 2))  # the others wait for the key
    inside.shutdown.on_journal_trouble("no space left on device")

    assert nobody_waits(pool)
    gate.open()
    eventually(lambda: nothing_to_do(inside, 3))  # all looked for work, and found that there is none for now
    assert len(began) == 1
    assert pool.get_available_count() == 1
    inside.shutdown.on_journal_trouble(None)
    stats, _ = story.end()
    assert sorted(began) == list(range(12))
    assert stats.success_count == 12


# -- the pool -----------------------------------------------------------------------------------------------------


def test_two_runs_on_one_pool_take_turns_and_both_finish(engine: Engine, make_pool: MakePool) -> None:
    """One key: each time it is given back, it goes to whoever has waited longest, whatever run had it."""
    pool = make_pool(*secrets(1))
    inside: list[tuple[str, Gate]] = []
    all_may_go = threading.Event()

    async def body(item: str, key: str | None) -> None:
        if not all_may_go.is_set():
            gate = Gate()
            inside.append((item[0], gate))
            await gate.wait()

    def in_line(name: str) -> bool:
        with pool._runtime.scheduler.locked():
            return any(str(ticket.requester).startswith(name) for ticket in pool._runtime.core.tickets())

    stories = [
        Story(engine, ParallelCoordinator(3, pool), [f"{name}-{n}" for n in range(60)], engine.worker(body))
        for name in "ab"
    ]
    turns = []
    for turn in range(20):
        eventually(lambda turn=turn: len(inside) > turn)  # type: ignore[misc]
        eventually(lambda: in_line("a") and in_line("b"))
        turns.append(inside[turn][0])
        if turn == 19:
            all_may_go.set()
        inside[turn][1].open()

    assert [story.end()[0].success_count for story in stories] == [60, 60]
    # One request of each run is in line as a rule; but for a moment there may be one of each of its three workers.
    assert max(len(list(turns_of_one)) for _, turns_of_one in groupby(turns)) <= 3, turns


# A worker elsewhere has no pool at hand to lend it anything: a pool does not travel. Its lease is in its context.
@pytest.mark.parametrize("engine", [e for e in ENGINES if not e.away], ids=lambda engine: engine.name)
def test_inside_a_worker_the_pool_lends_the_items_own_lease(engine: Engine, make_pool: MakePool) -> None:
    pool = make_pool(*secrets(2))
    other = make_pool("another-pools-secret")

    async def body(item: int, key: str | None) -> Any:
        with pool.lease() as lease, pool.lease() as again, other.lease() as foreign:
            assert lease is again
            seen = [lease.reveal() == key, foreign.reveal() == "another-pools-secret"]
        seen.append(pool.acquire().reveal() == key)
        inside = contextvars.copy_context()
        thread = threading.Thread(target=lambda: seen.append(inside.run(pool.lease) is lease))
        thread.start()
        thread.join(PATIENCE)
        if engine.coroutines:
            assert (await pool.acquire_async()) is lease

            async def child() -> bool:
                async with pool.lease() as found:
                    return found is lease

            seen.append(await asyncio.create_task(child()))
            seen.append(await asyncio.to_thread(pool.lease) is lease)
        return all(seen) and lease.held

    run = ParallelCoordinator(2, pool)
    _, results = engine.execute(run, range(12), engine.worker(body))

    assert [r.error for r in results] == [None] * 12
    assert all(r.value for r in results)
    assert CURRENT_ATTEMPT.get() is None


def test_the_items_lease_is_seen_nowhere_else(engine: Engine, make_pool: MakePool, gate: Gate) -> None:
    pool = make_pool(*secrets(3))
    seen: list[Any] = []

    async def body(item: int, key: str | None) -> None:
        await gate.wait()

    def on_progress(event: Any) -> None:
        seen.append(CURRENT_ATTEMPT.get())

    def items() -> Any:
        for number in range(4):
            seen.append(CURRENT_ATTEMPT.get())
            yield number

    def id_of(item: int) -> str:
        seen.append(CURRENT_ATTEMPT.get())
        return str(item)

    run = ParallelCoordinator(
        2, pool, on_progress=on_progress, cost_func=lambda item: seen.append(CURRENT_ATTEMPT.get())
    )
    story = threading.Thread(target=lambda: engine.execute(run, items(), engine.worker(body), id_of), daemon=True)
    story.start()
    gate.wait_for(2)
    with pool.lease() as mine:  # a third one, not that of an item
        assert mine.reveal() not in {None}
        assert pool.get_available_count() == 0
    gate.open()
    story.join(PATIENCE)

    assert not story.is_alive()
    assert set(seen) == {None}


def test_what_a_worker_leaves_running_does_not_use_a_lease_that_is_over(
    engine: Engine, make_pool: MakePool, gate: Gate
) -> None:
    pool = make_pool(*secrets(1))
    found: list[bool] = []
    threads: list[threading.Thread] = []

    async def body(item: int, key: str | None) -> None:
        inside = contextvars.copy_context()

        def later() -> None:
            gate.wait_for(1)
            lease = inside.run(pool.acquire)
            found.append(lease.held)
            lease.release()

        threads.append(threading.Thread(target=later, daemon=True))

    engine.execute(ParallelCoordinator(1, pool), [0], engine.worker(body))
    gate.arrived.append("the item is done")
    threads[0].start()
    threads[0].join(PATIENCE)

    assert found == [True]


# -- nothing is lost ----------------------------------------------------------------------------------------------


def test_every_item_is_accounted_for_whatever_becomes_of_it(engine: Engine, make_pool: MakePool) -> None:
    clock = FakeClock()
    attempts = Counter[int]()

    async def body(item: int, key: str | None) -> int:
        attempts[item] += 1
        if item % 7 == 1:
            raise ValueError("bad")
        if item % 7 == 2 and attempts[item] == 1:
            raise RateLimited(1)
        if item % 7 == 3 and attempts[item] <= 2:
            raise ConnectionError("gone")
        return item

    run = ParallelCoordinator(4, make_pool(*secrets(3), clock=clock), halt="soon,fail=12", clock=clock)
    story = Story(engine, run, range(200), engine.worker(body), clock)
    stats, results = story.end()

    assert stats.failed >= 12
    assert stats.stopped_by == "halt at soon,fail=12"
    unfinished = run.get_checkpoints()
    assert j2_counts_add_up(200, {"results": len(results), "unfinished": len(unfinished)}) is None
    assert {r.item_id for r in results}.isdisjoint(unfinished)
    assert len({r.item_id for r in results}) == len(results)
