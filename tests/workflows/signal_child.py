"""Real runs in processes of their own, for signals: `python -m tests.workflows.signal_child FD`.

The first line of standard input names the story and its settings; each line after it opens a gate. What happens is
noted on the descriptor FD, one JSON object a line, stamped with a clock that all processes share. So a test knows where
the process is before it sends a signal, and nobody sleeps to be in time.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import count, takewhile
from pathlib import Path
from types import FrameType
from typing import Any

from agentos import (
    Context,
    CredentialCoordinator,
    ParallelCoordinator,
    Progress,
    ProgressStats,
    RateLimited,
    WorkflowResult,
)
from agentos.runs.execution import signal_watcher
from agentos.runs.execution.run import Run

KEYS = [f"sk-planted-{name}-QWERTZUIOPASDFGH" for name in ("one", "two", "three", "four")]
FOREVER = 1e6
BOTH = (signal.SIGINT, signal.SIGTERM)


def read_line() -> str:
    """Of standard input, with no buffer: a thread that waits in one for ever breaks the end of an interpreter."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 1)
        if not more:
            return ""
        line += more
    return line.decode().strip()


class Gate:
    """Closed until the test opens it; for threads and for coroutines."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []

    def open(self) -> None:
        with self._lock:
            self._open.set()
            callbacks, self._callbacks = self._callbacks, []
        for each in callbacks:
            each()

    def wait(self) -> None:
        self._open.wait()

    async def passed(self) -> None:
        loop = asyncio.get_running_loop()
        passed = asyncio.Event()
        with self._lock:
            if self._open.is_set():
                return
            self._callbacks.append(lambda: loop.call_soon_threadsafe(passed.set))
        await passed.wait()


class Stage:
    """Where a story takes place: notes to the test, gates opened by it."""

    def __init__(self, notes: int) -> None:
        self._notes = notes
        self.folder = Path()
        self.go = Gate()
        self.leave = Gate()

    def note(self, what: str, item: str | None = None, **facts: Any) -> None:
        line = json.dumps({"what": what, "item": item, "at": time.monotonic(), **facts}) + "\n"
        os.write(self._notes, line.encode())

    def listen(self) -> None:
        gates = {"go": self.go, "leave": self.leave}
        while line := read_line():
            gates[line].open()
        os._exit(99)  # the test is gone

    def report(self, name: str, run: ParallelCoordinator, results: list[WorkflowResult] | None, **facts: Any) -> None:
        stats = run.stats
        assert stats is not None
        self.note(
            "report",
            name,
            completed=stats.completed,
            failed=stats.failed,
            success_count=stats.success_count,
            interrupted=stats.interrupted,
            parked=stats.parked,
            stopped_by=stats.stopped_by,
            results=None if results is None else sorted(result.item_id for result in results),
            checkpoints=run.get_checkpoints(),
            **facts,
        )


# -- workers and inputs -------------------------------------------------------------------------------------------


def name_of(item: int) -> str:
    return f"i{item}"


def named_for(number: int) -> Callable[[int], str]:
    return lambda item: f"{number}:{item}"


def blocked(how: str, stage: Stage) -> None:
    """A wait without end, in one C call or another."""
    match how:
        case "gate":
            stage.go.wait()
        case "lock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        case "sleep":
            time.sleep(FOREVER)
        case "c":
            reader, _ = os.pipe()
            while True:  # EINTR, if it was this thread that the signal reached
                ctypes.CDLL(None).read(reader, ctypes.create_string_buffer(1), 1)
        case "any":
            blocked(("lock", "sleep", "c")[threading.get_ident() // 4096 % 3], stage)
        case "free":
            time.sleep(0.001)
        case "computing":
            while not stage.go._open.is_set():
                sum(range(1000))
        case _:
            raise ValueError(how)


async def blocked_coroutine(how: str, stage: Stage) -> None:
    match how:
        case "gate":
            await stage.go.passed()
        case "sleep":
            await asyncio.sleep(FOREVER)
        case "swallow":
            while True:
                try:
                    await asyncio.sleep(FOREVER)
                except asyncio.CancelledError:
                    stage.note("swallowed")
        case "stubborn":
            try:
                await asyncio.sleep(FOREVER)
            except asyncio.CancelledError:
                stage.note("swallowed")
                await asyncio.sleep(FOREVER)
        case "stuck":
            time.sleep(FOREVER)
        case "free":
            await asyncio.sleep(0.001)
        case _:
            raise ValueError(how)


def begin(stage: Stage, item: int, key: str | None) -> None:
    """The first few items end at once; the second of them fails, with its key in the error."""
    stage.note("begun", name_of(item))
    if item == 1:
        stage.note("ended", name_of(item))
        raise ValueError(f"no luck with {key}")


def thread_worker(stage: Stage, how: str, quick: int) -> Callable[..., Any]:
    def worker(item: int, key: str | None) -> dict[str, int]:
        begin(stage, item, key)
        if item >= quick:
            blocked(how, stage)
        stage.note("ended", name_of(item))
        return {"n": item}

    return worker


def heedful_worker(stage: Stage, how: str, quick: int) -> Callable[..., Any]:
    """Notes that it is asked to stop, which nobody's log is needed for."""

    def worker(item: int, key: str | None, context: Context) -> dict[str, int]:
        begin(stage, item, key)
        if item >= quick:
            context.stopping.wait()
            stage.note("asked to stop", name_of(item))
            blocked(how, stage)
        stage.note("ended", name_of(item))
        return {"n": item}

    return worker


def coroutine_worker(stage: Stage, how: str, quick: int) -> Callable[..., Any]:
    async def worker(item: int, key: str | None) -> dict[str, int]:
        begin(stage, item, key)
        try:
            if item >= quick:
                await blocked_coroutine(how, stage)
        except asyncio.CancelledError:
            stage.note("cancelled", name_of(item))
            raise
        stage.note("ended", name_of(item))
        return {"n": item}

    return worker


def numbered_worker(stage: Stage, number: int) -> Callable[..., Any]:
    def worker(item: int, key: str | None) -> int:
        stage.note("begun", f"{number}:{item}", run=number)
        stage.note("ended", f"{number}:{item}", run=number)
        return item

    return worker


def limited_worker(stage: Stage, how: str, quick: int) -> Callable[..., Any]:
    """From the first slow item on, everything meets a limit of an hour."""
    # An item that was limited goes on at once with the next free key: three of them must have theirs before that.
    all_have_a_key = threading.Barrier(3)

    def worker(item: int, key: str | None) -> dict[str, int]:
        begin(stage, item, key)
        if item >= quick:
            all_have_a_key.wait()
            stage.note("limited", name_of(item))
            raise RateLimited(3600.0)
        stage.note("ended", name_of(item))
        return {"n": item}

    return worker


def giving(stage: Stage, items: Iterable[int], name: Callable[[int], str]) -> Iterator[int]:
    """Each of *items*, and a note of it: of an input that is no list, the journal has no plan."""
    for item in items:
        stage.note("given", name(item))
        yield item


def source(stage: Stage, kind: str, items: int, quick: int) -> Any:
    def stops_giving() -> Iterator[int]:
        yield from giving(stage, range(quick + 1), name_of)
        stage.note("input blocks")
        time.sleep(FOREVER)

    async def stops_giving_async() -> AsyncIterator[int]:
        for item in giving(stage, range(quick + 1), name_of):
            yield item
        stage.note("input blocks")
        await asyncio.sleep(FOREVER)

    match kind:
        case "list":
            return list(range(items))
        case "endless":
            return giving(stage, count(), name_of)
        case "blocks":
            return stops_giving()
        case "blocks async":
            return stops_giving_async()
    raise ValueError(kind)


def consume(stage: Stage, how: str, result: WorkflowResult) -> None:
    """What the loop over a stream does with the third result: it is busy, for long."""
    if how == "attentive" or result.item_id != "i2":
        return
    stage.note("busy")
    match how:
        case "gated":
            stage.go.wait()
        case "sleeps":
            time.sleep(FOREVER)
        case "computes":
            until = time.monotonic() + FOREVER
            while time.monotonic() < until:
                sum(range(100))
        case "waits":
            threading.Event().wait(FOREVER)
        case "selects":
            while True:
                select.select([], [], [], 60.0)
        case _:
            raise ValueError(how)


# -- hosts --------------------------------------------------------------------------------------------------------


class Host:
    """A program with handlers of its own, that only count."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self.seen += 1


def handlers() -> dict[int, Any]:
    return {signum: signal.getsignal(signum) for signum in BOTH}


def unchanged(before: dict[int, Any]) -> bool:
    after = handlers()
    return all(after[signum] is before[signum] for signum in before)


def prepare_host(kind: str) -> None:
    if kind == "own":
        host = Host()
        for signum in BOTH:
            signal.signal(signum, host)


def on_progress(stage: Stage, kind: str | None) -> Callable[[Progress], object] | None:
    def block(event: Progress) -> None:
        stage.note("on_progress", kind=event.kind)
        if event.kind == "item_finished":
            time.sleep(FOREVER)

    def display() -> Callable[[Progress], object]:
        from agentos.runs.display.rich_display import RichProgress

        return RichProgress()

    return {"blocks": block, "display": display() if kind == "display" else None, None: None}[kind]


# -- the stories --------------------------------------------------------------------------------------------------


def batch(
    stage: Stage,
    *,
    api: str = "execute_parallel",
    worker: str = "thread",
    how: str = "gate",
    given: str = "list",
    consumer: str = "attentive",
    progress: str | None = None,
    host: str = "default",
    journal: str | None = "run",
    items: int = 30,
    quick: int = 3,
    workers: int = 3,
    keys: int = 3,
    grace: float = 60.0,
    start: str = "queued",
    catches: bool = False,
    lingers: bool = False,
) -> None:
    """One run on the main thread, of any kind."""
    prepare_host(host)
    before = handlers()
    pool = CredentialCoordinator(KEYS[:keys]) if keys else None
    held = None if pool is None or keys > 1 else pool.acquire_nowait("somebody else")
    run = ParallelCoordinator(
        workers,
        pool,
        journal=None if journal is None else stage.folder / journal,
        grace=grace,
        start=start,
        on_progress=on_progress(stage, progress),
    )
    workers_by_name = {
        "thread": thread_worker,
        "heedful": heedful_worker,
        "coroutine": coroutine_worker,
        "limited": limited_worker,
    }
    work = workers_by_name[worker](stage, how, quick)
    given_items = source(stage, given, items, quick)
    results: list[WorkflowResult] = []
    note_handlers(stage, run)
    if pool is not None and held is not None:
        threading.Thread(target=note_when_in_line, args=(stage, pool), daemon=True).start()
    try:
        if api == "execute_parallel":
            _, results = run.execute_parallel(given_items, work, name_of)
        elif api == "stream":
            for result in run.stream(given_items, work, name_of):
                results.append(result)
                consume(stage, consumer, result)
        elif api == "execute_async":
            results = asyncio.run(in_loop(stage, run, given_items, work, before))
        else:
            asyncio.run(in_loop_stream(stage, run, given_items, work, before, consumer, results))
    except BaseException as error:
        if not catches:
            stage.note("raised", type(error).__name__, restored=unchanged(before))
            raise
        stage.note("raised", type(error).__name__, restored=unchanged(before))
    left = None
    if held is not None and pool is not None:
        held.release()
        pool.acquire_nowait("the next").release()  # nobody who has left stands in the line
        left = pool.get_available_count()
    stage.report("run", run, results, restored=unchanged(before), left=left)
    if lingers:
        stage.leave.wait()


def note_when_in_line(stage: Stage, pool: CredentialCoordinator) -> None:
    while pool.explain("i0").state != "waiting":
        time.sleep(0.001)
    stage.note("in line")


def note_handlers(stage: Stage, run: ParallelCoordinator) -> None:
    """Nothing is installed by making a coordinator."""
    assert signal_watcher.WATCH._previous == {}
    stage.note("made", str(run.max_workers))


async def in_loop(
    stage: Stage, run: ParallelCoordinator, items: Any, work: Any, before: dict[int, Any]
) -> list[WorkflowResult]:
    inside = handlers()
    _, results = await run.execute_async(items, work, name_of)
    stage.note("in the loop", restored=unchanged(inside))
    await asyncio.sleep(0.001)
    await asyncio.to_thread(stage.note, "the loop lives")
    return results


async def in_loop_stream(
    stage: Stage,
    run: ParallelCoordinator,
    items: Any,
    work: Any,
    before: dict[int, Any],
    consumer: str,
    results: list[WorkflowResult],
) -> None:
    inside = handlers()
    async for result in run.stream_async(items, work, name_of):
        results.append(result)
        consume(stage, consumer, result)
    stage.note("in the loop", restored=unchanged(inside))
    await asyncio.sleep(0.001)
    await asyncio.to_thread(stage.note, "the loop lives")


def three_runs(stage: Stage, *, how: str = "gate") -> None:
    """Two runs in threads of their own and one in the main thread."""
    before = handlers()

    def one(name: str) -> None:
        run = ParallelCoordinator(2, CredentialCoordinator(KEYS[:2]), journal=stage.folder / name, grace=60.0)

        def worker(item: int, key: str | None) -> int:
            stage.note("begun", f"{name}:{item}")
            blocked(how, stage)
            stage.note("ended", f"{name}:{item}")
            return item

        _, results = run.execute_parallel(range(10), worker, lambda item: f"{name}:{item}")
        stage.report(name, run, results)

    threads = [threading.Thread(target=one, args=(name,), daemon=True) for name in ("a", "b")]
    for each in threads:
        each.start()
    one("main")
    for each in threads:
        each.join()
    stage.note("all ended", restored=unchanged(before))


def two_in_a_loop(stage: Stage) -> None:
    """Two coordinators in one loop."""

    async def one(name: str) -> None:
        run = ParallelCoordinator(2, journal=stage.folder / name)

        async def worker(item: int, key: str | None) -> int:
            stage.note("begun", f"{name}:{item}")
            await stage.go.passed()
            stage.note("ended", f"{name}:{item}")
            return item

        _, results = await run.execute_async(range(10), worker, lambda item: f"{name}:{item}")
        stage.report(name, run, results)

    async def both() -> None:
        await asyncio.gather(one("a"), one("b"))

    before = handlers()
    asyncio.run(both())
    stage.note("all ended", restored=unchanged(before))


def elsewhere(stage: Stage, *, how: str = "gate", force: bool = False) -> None:
    """A run off the main thread, which waits for it and meets Python's own KeyboardInterrupt."""
    before = handlers()
    run = ParallelCoordinator(3, CredentialCoordinator(KEYS[:3]), journal=stage.folder / "run")
    work = thread_worker(stage, how, 3)
    got: list[tuple[ProgressStats, list[WorkflowResult]]] = []

    ended = threading.Event()  # Python 3.11 takes a thread for ended whose join() was interrupted

    def go() -> None:
        got.append(run.execute_parallel(list(range(30)), work, name_of))
        ended.set()

    threading.Thread(target=go, daemon=True).start()
    try:
        stage.note("waiting", restored=unchanged(before))
        ended.wait()
    except KeyboardInterrupt:
        stage.note("raised", "KeyboardInterrupt", restored=unchanged(before))
        run.shutdown(force=force)
    ended.wait()
    stage.report("run", run, got[0][1], restored=unchanged(before))


def reused(stage: Stage) -> None:
    """Two runs of one object, each drained by one signal: they are counted afresh."""
    before = handlers()
    run = ParallelCoordinator(3, CredentialCoordinator(KEYS[:3]), journal=stage.folder / "run")
    for name, gate in (("first", stage.go), ("second", stage.leave)):

        def worker(item: int, key: str | None, name: str = name, gate: Gate = gate) -> int:
            stage.note("begun", name_of(item), run=name)
            gate.wait()
            stage.note("ended", name_of(item), run=name)
            return item

        _, results = run.execute_parallel(list(range(30)), worker, name_of)
        stage.report(name, run, results, restored=unchanged(before), cached=sum(r.cached for r in results))


def put_back(stage: Stage) -> None:
    """However a run ends, the handlers are those of before."""

    def endings() -> Iterator[tuple[str, Callable[[], object]]]:
        def broken() -> Iterator[int]:
            yield 0
            raise OSError("the input broke")

        def left_early() -> None:
            stream = ParallelCoordinator().stream(count(), lambda item, key: item, str)
            next(stream)
            assert not unchanged(before)
            stream.close()  # type: ignore[attr-defined]

        async def left_early_async() -> None:
            stream = ParallelCoordinator().stream_async(count(), lambda item, key: item, str)
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]

        async def cancelled() -> None:
            async def worker(item: int, key: str | None) -> None:
                await asyncio.sleep(FOREVER)

            task = asyncio.create_task(ParallelCoordinator().execute_async([1], worker, str))
            await asyncio.sleep(0.01)
            task.cancel()
            await task

        def engine_fails() -> None:
            def no_more_threads(*_: Any, **__: Any) -> None:
                raise RuntimeError("can't start new thread")

            kept, threading.Thread.start = threading.Thread.start, no_more_threads  # type: ignore[method-assign]
            try:
                ParallelCoordinator().execute_parallel([1], bool, str)
            finally:
                threading.Thread.start = kept  # type: ignore[method-assign]

        yield "return", lambda: ParallelCoordinator().execute_parallel([1], lambda item, key: item, str)
        yield "InputFailed", lambda: ParallelCoordinator().execute_parallel(broken(), lambda item, key: item, str)
        yield "DuplicateItems", lambda: ParallelCoordinator().execute_parallel([1, 1], lambda item, key: item, str)
        yield "left early", left_early
        yield "left early in a loop", lambda: asyncio.run(left_early_async())
        yield "CancelledError", lambda: asyncio.run(cancelled())
        yield "RuntimeError", engine_fails
        yield (
            "return in a loop",
            lambda: asyncio.run(ParallelCoordinator().execute_async([1], lambda item, key: item, str)),
        )

    for host in (Host(), signal.default_int_handler, signal.SIG_DFL):
        for signum in BOTH:
            signal.signal(signum, host)
        before = handlers()
        for name, end in endings():
            try:
                end()
                raised = None
            except BaseException as error:
                raised = type(error).__name__
            wakeup = signal.set_wakeup_fd(-1)
            stage.note("ending", name, raised=raised, restored=unchanged(before), wakeup=wakeup, host=str(host))


def loop_handlers(stage: Stage) -> None:
    """A loop with handlers of its own, which has the wake-up descriptor: they are back afterwards and work."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        heard = asyncio.Event()
        for signum in BOTH:
            loop.add_signal_handler(signum, heard.set)
        inside = handlers()
        run = ParallelCoordinator(3, CredentialCoordinator(KEYS[:3]), journal=stage.folder / "run")
        work = coroutine_worker(stage, "gate", 3)
        _, results = await run.execute_async(list(range(30)), work, name_of)
        stage.report("run", run, results, restored=unchanged(inside), heard=heard.is_set())
        heard.clear()
        stage.note("listening")
        await heard.wait()
        stage.note("the loop hears again")

    asyncio.run(story())


def comparing(stage: Stage, *, catches: bool = False) -> None:
    """A run that goes on with a journal, and is signalled while the journal is open and nothing has begun."""

    compare = Run.compare_with_journal
    runs = count(1)

    def compare_slowly(run: Run) -> None:
        if next(runs) == 2:
            stage.note("comparing")
            stage.go.wait()
        compare(run)

    Run.compare_with_journal = compare_slowly  # type: ignore[method-assign, assignment]
    work = thread_worker(stage, "free", 30)
    before = handlers()
    for _ in range(2):
        run = ParallelCoordinator(3, CredentialCoordinator(KEYS[:3]), journal=stage.folder / "run")
        try:
            _, results = run.execute_parallel(list(range(5)), work, name_of)
        except KeyboardInterrupt:
            stage.note("raised", "KeyboardInterrupt", restored=unchanged(before))
            if not catches:
                raise
            _, results = run.execute_parallel(list(range(5)), work, name_of)
        stage.report("run", run, results)


def storm_over_many(stage: Stage, *, seconds: float, least: int) -> None:
    """One run after the other, for so long and at least so many, in a host whose own handlers only count.

    Only the storm ends a run, so it must last until this is over; one at least is ended by its second signal.
    """
    prepare_host("own")
    before = handlers()
    until = time.monotonic() + seconds
    number = 0
    endings: dict[str, int] = {}
    threads = 0
    while number < least or time.monotonic() < until or endings.keys() <= {"return"}:
        number += 1
        run = ParallelCoordinator(3, CredentialCoordinator(KEYS[:3]), journal=stage.folder / str(number))
        work = numbered_worker(stage, number)
        try:
            run.execute_parallel(giving(stage, range(100_000), named_for(number)), work, named_for(number))
            how = "return"
        except (KeyboardInterrupt, SystemExit) as error:
            how = type(error).__name__
        endings[how] = endings.get(how, 0) + 1
        threads = max(threads, threading.active_count())
        if not unchanged(before):
            stage.note("handlers were not put back", str(number))
    stage.note("storm over", endings=endings, threads=threads, runs=number)
    stage.leave.wait()
    seen = before[signal.SIGINT].seen
    os.kill(os.getpid(), signal.SIGINT)
    stage.note("host hears", heard=before[signal.SIGINT].seen - seen)


def alarms(stage: Stage, *, seconds: float, least: int) -> None:
    """Two thousand signals a second that are none of ours, all through a run: for so long, and at least so many."""
    seen = Host()
    until = time.monotonic() + seconds
    items = takewhile(lambda _: seen.seen < least or time.monotonic() < until, count())
    signal.signal(signal.SIGALRM, seen)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    run = ParallelCoordinator(3, CredentialCoordinator(KEYS[:3]), journal=stage.folder / "run")
    _, results = run.execute_parallel(giving(stage, items, name_of), thread_worker(stage, "free", 3), name_of)
    signal.setitimer(signal.ITIMER_REAL, 0)
    stage.report("run", run, results, seen=seen.seen)


def steps(stage: Stage, *, first: int, stride: int, most: int, twice: bool, seconds: float = 60.0) -> None:
    """A signal at every *stride*-th line that agentos executes in the main thread, a run for each."""
    prepare_host("own")
    before = handlers()
    until = time.monotonic() + seconds
    points = 0
    for at in range(first, most, stride):
        points += 1
        lines = 0
        folder = stage.folder / str(at)

        def trace(frame: FrameType, event: str, argument: Any, at: int = at) -> Any:
            nonlocal lines
            if "/agentos/" not in frame.f_code.co_filename:
                return None
            if event == "line":
                lines += 1
                if lines == at or (twice and lines == at + stride):
                    signal.raise_signal(signal.SIGINT)
            return trace

        def worker(item: int, key: str | None, at: int = at) -> int:
            stage.note("ended", f"{at}:{item}")
            return item

        run = ParallelCoordinator(3, CredentialCoordinator(KEYS[:3]), journal=folder)
        results: list[str] | None = None
        raised = None
        try:
            sys.settrace(trace)
            _, got = run.execute_parallel(list(range(8)), worker, named_for(at))
            sys.settrace(None)
            results = sorted(result.item_id for result in got)
        except BaseException as error:
            sys.settrace(None)
            raised = type(error).__name__
        stage.note(
            "step",
            at_line=at,
            raised=raised,
            results=results,
            checkpoints=run.get_checkpoints(),
            restored=unchanged(before),
        )
        if lines < at or time.monotonic() > until:
            break
    stage.note("steps over", points=points)


def stream_given_up(stage: Stage) -> None:
    """A stream whose consumer is done with it, and drains it in a `finally`, at the signal."""
    run = ParallelCoordinator(3, CredentialCoordinator(KEYS[:3]), journal=stage.folder / "run", grace=60.0)
    stream = run.stream(list(range(30)), thread_worker(stage, "gate", 3), name_of)
    for _ in range(3):
        next(stream)
    stage.leave.wait()
    stage.note("leaving")
    stream.close()  # type: ignore[attr-defined]
    stage.report("run", run, None)


STORIES: dict[str, Callable[..., None]] = {
    story.__name__: story
    for story in (
        alarms,
        batch,
        comparing,
        elsewhere,
        loop_handlers,
        put_back,
        reused,
        steps,
        storm_over_many,
        stream_given_up,
        three_runs,
        two_in_a_loop,
    )
}


def main() -> None:
    stage = Stage(int(sys.argv[1]))
    # To the log as it is usually set up; a story may have it go elsewhere.
    told = json.loads(read_line())
    stage.folder = Path(told["folder"])
    stream = {"stderr": sys.stderr, "stdout": sys.stdout}[told["log"]]
    logging.basicConfig(level=told["level"], stream=stream, format="%(levelname)s %(name)s %(message)s")
    threading.Thread(target=stage.listen, daemon=True).start()
    STORIES[told["story"]](stage, **told["settings"])


if __name__ == "__main__":
    main()
