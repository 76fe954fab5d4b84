"""Whole runs in processes of their own, signalled at known points.

After every process: J2, J5, S4 and L5 by an independent reader of its journal, S1 and S2 by the clock that processes
share, no traceback but the expected one, no secret anywhere (``Child.finish``).
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .signal_harness import FINAL, Child, Ending, Nursery, TooLate
from .signal_harness import nursery as make_nursery

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="there is nothing to send there"),
    pytest.mark.timeout(120),
]

SIGINT, SIGTERM = signal.SIGINT, signal.SIGTERM
BOTH = [SIGINT, SIGTERM]
PAIRS = list(itertools.product(BOTH, BOTH))
FIRST_THREE = {"i0", "i1", "i2"}
NEXT_THREE = {"i3", "i4", "i5"}
ALL = {f"i{n}" for n in range(30)}

Start = Callable[..., Child]

nursery = pytest.fixture(scope="module")(make_nursery)


@pytest.fixture
def start(nursery: Nursery, tmp_path: Path) -> Iterator[Start]:
    """Start a story in a process of its own."""

    numbers = itertools.count()

    def start(story: str = "batch", **settings: Any) -> Child:
        folder = tmp_path / f"process-{next(numbers)}"
        folder.mkdir()
        child = nursery.take()
        child.tell(folder, story, **settings)
        return child

    yield start
    nursery.clear()


def until_three_are_blocked(child: Child) -> Child:
    """Items 0 to 2 have ended, item 1 by failing; 3 to 5 have begun, and do not end."""
    child.wait_noted("begun", 6)
    return child


def one_of_three(try_it: Callable[[], Ending]) -> Ending:
    """For processes that need the processor to be in time: where others have it, one of three must be."""
    for _ in range(2):
        try:
            return try_it()
        except TooLate:
            pass
    return try_it()


def ids(*sets: set[str]) -> list[str]:
    return sorted(set().union(*sets))


def in_order(items: set[str]) -> list[str]:
    return sorted(items, key=lambda item: int(item[1:]))


# -- one signal ---------------------------------------------------------------------------------------------------


WAYS_TO_RUN = [
    ("execute_parallel", "thread"),
    ("execute_parallel", "coroutine"),
    ("stream", "thread"),
    ("execute_async", "thread"),
    ("execute_async", "coroutine"),
    ("stream_async", "coroutine"),
]


@pytest.mark.parametrize("signum", BOTH)
@pytest.mark.parametrize(("api", "worker"), WAYS_TO_RUN)
def test_the_first_signal_stops_admission_and_lets_what_runs_end(
    start: Start, api: str, worker: str, signum: int
) -> None:
    child = until_three_are_blocked(start(api=api, worker=worker))

    child.send(signum)
    child.wait_stopping(signum)
    child.open("go")
    end = child.finish()

    assert end.code == 0
    assert set(end.items("begun")) == FIRST_THREE | NEXT_THREE
    assert end.report["results"] == ids(FIRST_THREE, NEXT_THREE)
    assert (end.report["completed"], end.report["failed"], end.report["interrupted"]) == (6, 1, 0)
    assert end.report["checkpoints"] == in_order(ALL - FIRST_THREE - NEXT_THREE)
    assert end.report["stopped_by"] == signal.Signals(signum).name
    assert end.report["restored"]
    assert end.in_state("done") == (FIRST_THREE | NEXT_THREE) - {"i1"}
    assert end.in_state("failed") == {"i1"}
    assert "waiting" in end.stderr
    assert all(item in end.stderr for item in NEXT_THREE), "it says what it waits for"
    if api.endswith("async"):
        assert end.noted("in the loop")["restored"]
        end.noted("the loop lives")


def test_a_drain_after_sigint_takes_as_long_as_it_takes(start: Start) -> None:
    """The grace is for SIGTERM: with a grace of nothing, items that are in no hurry still end."""
    child = until_three_are_blocked(start(grace=0.0))

    child.send(SIGINT)
    child.wait_stopping(SIGINT)
    child.open("go")
    end = child.finish()

    assert end.report["results"] == ids(FIRST_THREE, NEXT_THREE)


FOR_EVER = [
    ("execute_parallel", "thread", "lock"),
    ("execute_parallel", "thread", "sleep"),
    ("execute_parallel", "thread", "c"),
    ("execute_parallel", "coroutine", "sleep"),
    ("execute_parallel", "coroutine", "swallow"),
    ("execute_parallel", "coroutine", "stuck"),
    ("stream", "thread", "any"),
    ("execute_async", "thread", "any"),
    ("execute_async", "coroutine", "sleep"),
    ("execute_async", "coroutine", "stubborn"),
    ("stream_async", "coroutine", "sleep"),
]


@pytest.mark.parametrize(("api", "worker", "how"), FOR_EVER)
def test_after_the_grace_what_never_ends_is_interrupted_and_cannot_hold_the_process(
    start: Start, api: str, worker: str, how: str
) -> None:
    child = start(api=api, worker=worker, how=how, grace=0.1)
    if how == "stuck":
        child.wait_noted("begun", 4)  # it keeps the loop to itself
    else:
        until_three_are_blocked(child)

    child.send(SIGTERM)
    end = child.finish()

    begun = set(end.items("begun"))
    assert end.code == 0
    assert end.took < 5.0
    assert end.report["results"] == ids(FIRST_THREE)
    assert end.report["interrupted"] == len(begun - FIRST_THREE)
    assert end.report["checkpoints"] == in_order(ALL - FIRST_THREE)
    assert end.in_state("interrupted") == begun - FIRST_THREE
    assert (end.report["completed"], end.report["failed"]) == (3, 1)
    if worker == "coroutine" and how == "sleep":
        assert set(end.items("cancelled")) == NEXT_THREE
    if how in ("swallow", "stubborn"):
        assert end.items("swallowed"), "it was asked to end"


def test_items_that_wait_for_a_limit_are_parked(start: Start) -> None:
    child = start(worker="limited", grace=0.0)
    child.wait_noted("limited", 3)

    child.send(SIGINT)
    end = child.finish()

    assert end.code == 0
    assert end.in_state("parked") == NEXT_THREE
    assert (end.report["parked"], end.report["completed"]) == (3, 3)
    assert set(end.report["checkpoints"]) == ALL - FIRST_THREE


@pytest.mark.parametrize(("api", "worker"), WAYS_TO_RUN)
def test_before_the_first_item_it_ends_at_once_and_leaves_the_pools_line(start: Start, api: str, worker: str) -> None:
    """The only key is somebody else's; afterwards it goes to whoever asks, and not to a run that is over."""
    child = start(api=api, worker=worker, keys=1)
    child.wait_noted("in line")

    child.send(SIGINT)
    end = child.finish()

    assert end.code == 0
    assert end.items("begun") == []
    assert end.report["results"] == []
    assert end.report["left"] == 1
    assert set(end.report["checkpoints"]) == ALL


@pytest.mark.parametrize("start_mode", ["queued", "strict"])
def test_a_signal_during_the_last_items_loses_none_of_them(start: Start, start_mode: str) -> None:
    child = until_three_are_blocked(start(items=6, start=start_mode))

    child.send(SIGINT)
    child.wait_stopping(SIGINT)
    child.open("go")
    end = child.finish()

    assert end.code == 0
    assert end.report["results"] == ids(FIRST_THREE, NEXT_THREE)
    assert end.report["checkpoints"] == []


@pytest.mark.parametrize("signum", BOTH)
def test_a_signal_after_the_last_item_changes_nothing(start: Start, signum: int) -> None:
    """All has ended, and whoever takes the results has not come to the end of them."""
    child = start(api="stream", how="free", items=5, consumer="gated", grace=0.0, level="INFO")
    child.wait_noted("busy")
    child.wait_said("Progress: 5/5")

    child.send(signum)
    child.open("go")
    end = child.finish()

    assert end.code == 0
    assert end.report["results"] == [f"i{n}" for n in range(5)]
    assert end.report["checkpoints"] == []
    assert end.report["restored"]


@pytest.mark.parametrize(
    ("api", "given"),
    [
        ("execute_parallel", "blocks"),
        ("stream", "blocks"),
        ("execute_async", "blocks async"),
        ("stream_async", "blocks"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_an_input_that_never_gives_the_next_item_holds_nobody(start: Start, api: str, given: str, count: int) -> None:
    child = start(api=api, given=given, how="gate")
    child.wait_noted("input blocks")
    child.wait_noted("begun", 4)

    child.send(SIGINT)
    child.wait_stopping(SIGINT)
    if count == 2:
        child.send(SIGINT)
        end = child.finish_after_the_second()
        assert "i3" in end.in_state("interrupted")
        return
    child.open("go")
    end = child.finish()

    assert end.code == 0
    assert set(end.report["results"]) == {*FIRST_THREE, "i3"}
    assert end.report["checkpoints"] == []


# -- two signals and more -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "worker", "first", "second"),
    [(*way, *pair) for way in WAYS_TO_RUN for pair in PAIRS if way == WAYS_TO_RUN[0] or pair[0] == pair[1]],
)
def test_the_second_signal_ends_within_a_second_with_its_own_exit_code(
    start: Start, api: str, worker: str, first: int, second: int
) -> None:
    how = "any" if worker == "thread" else "sleep"
    child = until_three_are_blocked(start(api=api, worker=worker, how=how))

    child.send(first)
    child.wait_stopping(first)
    child.send(second)
    end = child.finish_after_the_second()

    assert end.code == (-SIGINT if second == SIGINT else 143)
    raised = end.noted("raised")
    assert raised["item"] == ("KeyboardInterrupt" if second == SIGINT else "SystemExit")
    assert raised["restored"]
    assert end.in_state("interrupted") == NEXT_THREE
    assert end.in_state("done") | end.in_state("failed") == FIRST_THREE


@pytest.mark.parametrize(
    ("api", "worker", "how"),
    [
        ("execute_parallel", "coroutine", "swallow"),
        ("execute_parallel", "coroutine", "stuck"),
        ("execute_async", "coroutine", "stubborn"),
        ("execute_async", "coroutine", "stuck"),
        ("stream_async", "coroutine", "stuck"),
    ],
)
@pytest.mark.parametrize("signum", BOTH)
def test_the_second_signal_ends_what_does_not_want_to(
    start: Start, api: str, worker: str, how: str, signum: int
) -> None:
    child = start(api=api, worker=worker, how=how)
    child.wait_noted("begun", 4 if how == "stuck" else 6)

    child.send(signum)
    child.wait_stopping(signum)
    child.send(signum)
    end = child.finish_after_the_second()

    assert end.in_state("interrupted") | end.in_state("running") == set(end.items("begun")) - FIRST_THREE


@pytest.mark.parametrize("signum", BOTH)
def test_the_second_signal_ends_a_worker_that_computes(start: Start, signum: int) -> None:
    """It gives up the interpreter every 5 ms, and everybody else has to wait for that; the journal may stay open."""

    def try_it() -> Ending:
        child = start(how="computing", workers=1)
        child.wait_noted("begun", 4)
        child.send(signum)
        child.wait_stopping(signum)
        child.send(signum)
        return child.finish_after_the_second(closed=False)

    end = one_of_three(try_it)

    assert {item for item, state in end.states["run"].items() if state in FINAL} == FIRST_THREE


@pytest.mark.parametrize(
    ("api", "worker", "consumer"),
    [
        ("stream", "thread", "sleeps"),
        ("stream", "thread", "computes"),
        ("stream", "thread", "waits"),
        ("stream", "thread", "selects"),
        ("stream", "coroutine", "sleeps"),
        ("stream_async", "coroutine", "sleeps"),
        ("stream_async", "coroutine", "computes"),
    ],
)
def test_the_second_signal_ends_a_stream_whose_consumer_is_busy(
    start: Start, api: str, worker: str, consumer: str
) -> None:
    def try_it() -> Ending:
        child = start(api=api, worker=worker, consumer=consumer, keys=3)
        child.wait_noted("busy")
        child.send(SIGINT)
        child.wait_stopping(SIGINT)
        child.send(SIGINT)
        return child.finish_after_the_second(closed=consumer != "computes")

    if consumer == "computes":
        one_of_three(try_it)
    else:
        try_it()


@pytest.mark.parametrize(("api", "worker"), [("stream", "thread"), ("stream_async", "coroutine")])
def test_the_second_signal_ends_a_busy_consumer_even_when_all_the_rest_is_over(
    start: Start, api: str, worker: str
) -> None:
    child = start(api=api, worker=worker, consumer="sleeps", level="INFO", how="free", items=5)
    child.wait_noted("busy")
    child.wait_noted("ended", 5 if worker == "thread" else 3)

    child.send(SIGINT, SIGTERM)
    end = child.finish()

    assert end.code in (-SIGINT, 143)
    assert end.took < 1.0


@pytest.mark.parametrize("signum", BOTH)
def test_two_different_signals_in_the_same_instant_are_two(start: Start, signum: int) -> None:
    """Each kind is kept apart by the kernel, so neither can be lost; which comes first is its choice."""
    child = until_three_are_blocked(start(how="any"))

    child.send(signum, SIGINT + SIGTERM - signum)
    end = child.finish()

    assert end.code in (-SIGINT, 143)
    assert end.took < 1.0
    assert end.in_state("interrupted") == NEXT_THREE


@pytest.mark.parametrize(("second", "third"), PAIRS)
def test_a_third_signal_spoils_nothing(start: Start, second: int, third: int) -> None:
    """It may find Python's own handlers, on the way out; the journal is sound whatever they do."""
    child = until_three_are_blocked(start(how="any"))

    child.send(SIGINT)
    child.wait_stopping(SIGINT)
    child.send(second)
    child.wait_said("not waiting for 3 running items")
    child.send(third)
    end = child.finish(dirty=True)

    assert end.code in (-SIGINT, -SIGTERM, 143)
    assert end.took < 1.0
    assert {item for item, state in end.states["run"].items() if state in FINAL} == FIRST_THREE


@pytest.mark.parametrize("signum", BOTH)
def test_an_exception_of_the_second_signal_can_be_caught_and_nothing_is_lost_by_it(start: Start, signum: int) -> None:
    child = until_three_are_blocked(start(how="any", catches=True))

    child.send(signum)
    child.wait_stopping(signum)
    child.send(signum)
    end = child.finish()

    assert end.code == 0
    assert end.report["restored"]
    assert end.report["interrupted"] == 3
    assert end.report["checkpoints"] == in_order(ALL - FIRST_THREE)


# -- several runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signum", BOTH)
def test_a_signal_to_the_group_stops_every_run_of_the_process(start: Start, signum: int) -> None:
    child = start("three_runs")
    child.wait_noted("begun", 6)

    child.send_to_group(signum)
    child.wait_said(f"Stopping because of {signal.Signals(signum).name}", 3)
    child.open("go")
    end = child.finish()

    assert end.code == 0
    assert sorted(end.items("report")) == ["a", "b", "main"]
    for name in ("a", "b", "main"):
        assert end.noted("report", name)["results"] == [f"{name}:0", f"{name}:1"]
        assert end.in_state("done", name) == {f"{name}:0", f"{name}:1"}
    assert end.noted("all ended")["restored"]


@pytest.mark.parametrize("signum", BOTH)
def test_a_second_signal_to_the_group_ends_the_process(start: Start, signum: int) -> None:
    child = start("three_runs", how="any")
    child.wait_noted("begun", 6)

    child.send_to_group(signum)
    child.wait_said(f"Stopping because of {signal.Signals(signum).name}", 3)
    child.send_to_group(signum)
    end = child.finish_after_the_second(dirty=True)

    for name in ("a", "b", "main"):
        assert end.in_state("done", name) == set()
    assert end.in_state("interrupted", "main") == {"main:0", "main:1"}


def test_two_coordinators_in_one_loop_are_both_stopped(start: Start) -> None:
    child = start("two_in_a_loop")
    child.wait_noted("begun", 4)

    child.send(SIGINT)
    child.wait_said("Stopping because of SIGINT", 2)
    child.open("go")
    end = child.finish()

    assert end.code == 0
    for name in ("a", "b"):
        assert end.noted("report", name)["results"] == [f"{name}:0", f"{name}:1"]
    assert end.noted("all ended")["restored"]


def test_an_object_can_be_used_again_and_signals_count_afresh(start: Start) -> None:
    child = start("reused")
    child.wait_noted("begun", 3)
    child.send(SIGINT)
    child.wait_stopping(SIGINT)
    child.open("go")
    child.wait_noted("begun", 6)

    child.send(SIGINT)
    child.wait_said("Stopping because of SIGINT", 2)
    child.open("leave")
    end = child.finish()

    assert end.code == 0
    first, second = end.noted("report", "first"), end.noted("report", "second")
    assert first["results"] == ids(FIRST_THREE)
    assert (second["results"], second["cached"]) == (ids(FIRST_THREE, NEXT_THREE), 3)
    assert second["checkpoints"] == in_order(ALL - FIRST_THREE - NEXT_THREE)
    assert first["restored"]
    assert second["restored"]


# -- off the main thread, and hosts with handlers of their own -----------------------------------------------------


@pytest.mark.parametrize(("how", "force"), [("gate", False), ("any", True)])
def test_off_the_main_thread_the_signal_is_pythons_and_shutdown_does_the_rest(
    start: Start, how: str, force: bool
) -> None:
    child = start("elsewhere", how=how, force=force)
    until_three_are_blocked(child)

    child.send(SIGINT)
    child.wait_stopping("shutdown()")
    child.open("go")
    end = child.finish()

    assert end.code == 0
    assert end.noted("waiting")["restored"], "no handler is ours"
    assert end.noted("raised")["restored"]
    ended = FIRST_THREE if force else FIRST_THREE | NEXT_THREE
    assert end.report["results"] == ids(ended)
    assert end.report["checkpoints"] == in_order(ALL - ended)
    assert end.in_state("interrupted") == (NEXT_THREE if force else set())


def test_off_the_main_thread_sigterm_kills_as_it_does_any_python(start: Start) -> None:
    child = until_three_are_blocked(start("elsewhere"))

    child.send(SIGTERM)
    end = child.finish(dirty=True, killed=True)

    assert end.code == -SIGTERM
    assert end.in_state("running") <= FIRST_THREE | NEXT_THREE


def test_handlers_are_those_of_before_however_a_run_ends(start: Start) -> None:
    end = start("put_back").finish(tracebacks=0)

    endings = [note for note in end.notes if note["what"] == "ending"]
    assert len(endings) == 3 * 8
    for each in endings:
        assert each["restored"], each
        assert each["wakeup"] == -1, each
        assert each["raised"] == (each["item"] if "Error" in each["item"] or each["item"][0].isupper() else None), each


def test_handlers_of_a_loop_are_back_and_hear_again(start: Start) -> None:
    child = until_three_are_blocked(start("loop_handlers"))

    child.send(SIGINT)
    child.wait_stopping(SIGINT)
    child.open("go")
    child.wait_noted("listening")
    child.send(SIGTERM)
    end = child.finish()

    assert end.code == 0
    assert end.report["restored"]
    assert end.report["results"] == ids(FIRST_THREE, NEXT_THREE)
    end.noted("the loop hears again")


def test_an_ignored_signal_stays_ignored(nursery: Nursery, tmp_path: Path) -> None:
    """As under nohup: a whole run, and SIGINT is nobody's business; SIGTERM still is."""
    child = nursery.cold(prepare="trap '' INT")
    child.tell(tmp_path, "batch")
    until_three_are_blocked(child)

    child.send(SIGINT, SIGINT, SIGINT, SIGTERM)
    child.wait_stopping(SIGTERM)
    child.open("go")
    end = child.finish()

    assert end.code == 0
    assert end.report["stopped_by"] == "SIGTERM"
    assert end.report["restored"]
    nursery.clear()


# -- storms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("api", "worker"), WAYS_TO_RUN)
def test_a_storm_ends_a_run_as_its_second_signal_does(start: Start, api: str, worker: str) -> None:
    """In a host whose own handlers only count, so that whatever goes wrong is our doing."""
    settings = {"how": "free", "given": "endless", "host": "own", "catches": True, "lingers": True}
    child = start(api=api, worker=worker, **settings)
    child.wait_noted("begun", 20)

    child.send_at_once(SIGINT, SIGTERM)  # its items are quick: between two of the storm it may be through with them
    sent = child.storm(SIGINT, SIGTERM, seconds=1.5 if (api, worker) == WAYS_TO_RUN[0] else 0.5, least=101)
    child.raised_within_a_second()
    child.open("leave")
    end = child.finish()

    assert sent > 100
    assert end.code == 0
    assert end.noted("raised")["restored"]
    assert end.report["restored"]


@pytest.mark.parametrize("how", ["any", "gate"])
def test_a_storm_while_it_drains_is_no_different(start: Start, how: str) -> None:
    child = until_three_are_blocked(start(how=how, host="own", catches=True, lingers=True))
    child.send(SIGTERM)
    child.wait_stopping(SIGTERM)

    child.storm(SIGINT, seconds=1.0)
    child.raised_within_a_second()
    child.open("leave")
    end = child.finish()

    assert end.code == 0
    assert end.noted("raised", "KeyboardInterrupt")["restored"]
    assert end.in_state("interrupted") == NEXT_THREE
    assert end.report["checkpoints"] == in_order(ALL - FIRST_THREE)


@pytest.mark.parametrize(("api", "worker"), WAYS_TO_RUN[::2])
def test_a_storm_that_also_meets_pythons_own_handlers_leaves_a_sound_journal(
    start: Start, api: str, worker: str
) -> None:
    child = start(api=api, worker=worker, how="free", given="endless", quick=3)
    child.wait_noted("begun", 20)

    child.storm(SIGINT, seconds=1.5)
    end = child.finish(dirty=True)

    drained = end.code == 0 and end.report["stopped_by"] == "SIGINT"  # and ended, before the second was sent
    assert drained or end.code == -SIGINT
    assert child.time_taken(child.sent[:2][-1][1], end.at) < 1.0


def test_a_storm_over_one_run_after_the_other_deadlocks_none(start: Start) -> None:
    child = start("storm_over_many", seconds=0.9, least=3)
    child.wait_noted("begun", 20)

    child.storm(SIGINT, SIGTERM, until="storm over")
    child.wait_noted("storm over")
    child.open("leave")
    child.sent.clear()  # each run had its own
    end = child.finish()

    assert end.code == 0
    assert end.items("handlers were not put back") == []
    storm = end.noted("storm over")
    assert storm["runs"] >= 3
    assert storm["endings"].get("KeyboardInterrupt", 0) + storm["endings"].get("SystemExit", 0) >= 1
    assert storm["threads"] < 30
    assert end.noted("host hears")["heard"] == 1


def test_a_storm_of_somebody_elses_signals_is_not_even_noticed(start: Start) -> None:
    end = start("alarms", seconds=0.8, least=200).finish()

    assert end.code == 0
    assert end.report["stopped_by"] is None
    assert end.report["seen"] >= 200
    assert end.report["failed"] == 1
    assert end.report["interrupted"] == 0


# -- at every step ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("twice", [False, True])
def test_a_signal_at_any_line_of_the_main_thread_loses_nothing(start: Start, twice: bool) -> None:
    child = start("steps", first=1, stride=29, most=100_000, twice=twice, seconds=1.2)
    end = child.finish()

    assert end.code == 0
    walked = [note for note in end.notes if note["what"] == "step"]
    assert len(walked) == end.noted("steps over")["points"]
    for step in walked:
        at = str(step["at_line"])
        final = sorted(item for item, state in end.states[at].items() if state in FINAL)
        assert step["restored"], step
        assert step["raised"] in ({None, "KeyboardInterrupt"} if twice else {None}), step
        assert step["results"] in (None, final), step
        assert step["checkpoints"] == sorted({f"{at}:{n}" for n in range(8)} - set(final)), step


@pytest.mark.parametrize(("signum", "catches"), [(SIGINT, False), (SIGINT, True), (SIGTERM, False)])
def test_a_signal_while_the_journal_is_opened_is_pythons_own(start: Start, signum: int, catches: bool) -> None:
    """Nothing has begun, so there is nothing to drain. Caught, the same call works again."""
    child = start("comparing", catches=catches)
    child.wait_noted("comparing")

    child.send(signum)
    end = child.finish(dirty=signum == SIGTERM)

    assert end.code == (0 if catches else -signum)
    assert len(end.items("begun")) == 5
    assert len(end.in_state("done") | end.in_state("failed")) == 5


# -- output that goes nowhere -------------------------------------------------------------------------------------


@pytest.mark.parametrize("progress", [None, "display"])
def test_a_full_output_stops_nothing(nursery: Nursery, tmp_path: Path, progress: str | None) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    child = nursery.cold(stdout=full, stderr=full)
    os.close(full)
    child.tell(tmp_path, "batch", level="INFO", how="free", progress=progress)
    end = child.finish()

    assert set(end.report["results"]) == ALL
    assert end.report["failed"] == 1
    assert end.code in (0, 120)
    nursery.clear()


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("progress", [None, "display"])
def test_an_output_nobody_reads_any_more_stops_nothing(nursery: Nursery, tmp_path: Path, progress: str | None) -> None:
    nowhere = closed_pipe()
    child = nursery.cold(stdout=nowhere, stderr=nowhere)
    os.close(nowhere)
    child.tell(tmp_path, "batch", level="INFO", progress=progress)
    until_three_are_blocked(child)

    child.send(SIGINT)
    child.wait_noted("begun", 6)
    child.open("go")
    end = child.finish()

    assert end.code in (0, 120)
    assert end.report["failed"] == 1
    nursery.clear()


def test_without_any_output_a_run_goes_on(nursery: Nursery, tmp_path: Path) -> None:
    child = nursery.cold(prepare="exec 1>&- 2>&-")
    child.tell(tmp_path, "batch", level="INFO", how="free")
    end = child.finish()

    assert end.code == 0
    assert set(end.report["results"]) == ALL
    nursery.clear()


@pytest.mark.parametrize("progress", [None, "display"])
@pytest.mark.parametrize("signum", BOTH)
def test_a_log_that_blocks_for_ever_cannot_keep_the_second_signal_from_ending_it(
    nursery: Nursery, tmp_path: Path, signum: int, progress: str | None
) -> None:
    """Whoever writes to a full pipe is stuck there, so nobody who is needed may write to it."""
    reader, writer = full_pipe()
    child = nursery.cold(stdout=writer, stderr=writer)
    os.close(writer)
    child.tell(tmp_path, "batch", worker="heedful", level="INFO", progress=progress, catches=True)
    until_three_are_blocked(child)

    child.send(signum)
    child.wait_noted("asked to stop", 3)
    child.send(signum)
    try:
        child.raised_within_a_second()
    finally:
        os.close(reader)  # or logging waits for ever at the end of the interpreter
    end = child.finish()

    assert end.in_state("interrupted") == NEXT_THREE
    nursery.clear()


def full_pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    return reader, writer


@pytest.mark.parametrize("count", [1, 2])
def test_an_on_progress_that_never_returns_holds_nobody(start: Start, count: int) -> None:
    child = until_three_are_blocked(start(worker="heedful", progress="blocks"))
    child.wait_noted("on_progress", 2)

    child.send(SIGINT)
    child.wait_noted("asked to stop", 3)
    if count == 2:
        child.send(SIGINT)
        child.finish_after_the_second()
        return
    child.open("go")
    end = child.finish()

    assert end.code == 0
    assert end.report["results"] == ids(FIRST_THREE, NEXT_THREE)
    assert end.took < 10.0


@pytest.mark.parametrize("signum", BOTH)
def test_a_stream_that_is_being_left_still_hears_signals(start: Start, signum: int) -> None:
    """Its `close()` waits for what runs: the same two signals end that wait."""
    child = until_three_are_blocked(start("stream_given_up"))
    child.open("leave")
    child.wait_noted("leaving")

    child.send(signum)
    child.send(SIGINT + SIGTERM - signum)
    end = child.finish(dirty=True)

    assert end.took < 1.0
    assert end.code in (-SIGINT, 143)
