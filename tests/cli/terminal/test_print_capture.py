"""Prints of a Python worker belong to its item; other prints go to the original stream."""

# ruff: noqa: T201 - printing is what is tested

from __future__ import annotations

import asyncio
import functools
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentos.cli.terminal.print_capture import PrintCapture
from agentos.pool.redaction import Masker
from agentos.runs.output.capture import OutputCapture
from agentos.runs.output.stream_redaction import Redaction
from agentos.runs.worker import inspect_worker

CANARY = "canary/0123456789+abcdef"


class Recorder:
    """A screen that remembers the lines of each item."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {}

    def line(self, item_id: str, index: int, stream: str, text: str, whole: bool) -> None:
        self.lines.setdefault(item_id, []).append(f"{stream}: {text}")

    def attempt_ended(self, item_id: str, index: int, log: Path | None) -> None:
        self.lines.setdefault(item_id, []).append("ended")


@pytest.fixture
def screen() -> Recorder:
    return Recorder()


@pytest.fixture
def prints(screen: Recorder) -> PrintCapture:
    """Not installed: pytest changes the streams between a fixture and its test."""
    return PrintCapture(OutputCapture(None, Redaction(Masker([CANARY])).stream, screen))


def context(item_id: str = "a") -> Any:
    return SimpleNamespace(item_id=item_id, index=0, attempt=1, lease=None)


def run(prints: PrintCapture, worker: Callable[..., Any], item_id: str = "a") -> Any:
    return prints.wrap(worker)(item_id, None, context=context(item_id))


def test_what_a_worker_prints_is_its_items_output_without_secrets(prints: PrintCapture, screen: Recorder) -> None:
    def worker(item: str, credential: object) -> str:
        print("key", CANARY, flush=True)
        print("oh", file=sys.stderr)
        sys.stdout.writelines(["no ", "end"])
        return "value"

    with prints:
        assert run(prints, worker) == "value"

    assert screen.lines == {"a": ["stdout: key <secret>", "stderr: oh", "stdout: no end", "ended"]}


def test_bytes_and_odd_text_are_taken_too(prints: PrintCapture, screen: Recorder) -> None:
    def worker(item: str, credential: object) -> None:
        sys.stdout.buffer.write(bytearray(b"raw \xff\n"))
        sys.stdout.buffer.flush()
        print("half \ud800")

    with prints:
        run(prints, worker)

    assert screen.lines["a"] == ["stdout: raw \udcff", "stdout: half \\ud800", "ended"]


@pytest.mark.parametrize("wrong", [b"bytes", 3])
def test_what_is_no_text_is_refused_as_ever(prints: PrintCapture, wrong: Any) -> None:
    with prints, pytest.raises(TypeError):
        sys.stdout.write(wrong)
    with prints, pytest.raises(TypeError):
        sys.stdout.buffer.write("text")  # type: ignore[call-overload]


def test_a_worker_that_raises_still_ends_its_output(prints: PrintCapture, screen: Recorder) -> None:
    def worker(item: str, credential: object) -> None:
        print("before")
        raise LookupError

    with prints, pytest.raises(LookupError):
        run(prints, worker)

    assert screen.lines["a"] == ["stdout: before", "ended"]


def test_prints_from_elsewhere_go_where_they_always_went(screen: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    real = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    monkeypatch.setattr(sys, "stdout", real)
    prints = PrintCapture(OutputCapture(None, None, screen))

    def worker(item: str, credential: object) -> None:
        thread = threading.Thread(target=print, args=("from a bare thread",))
        thread.start()
        thread.join()

    with prints:
        print("outside", flush=True)
        sys.stdout.buffer.write(b"raw\n")
        run(prints, worker)
        assert sys.stdout.encoding == "utf-8"

    assert sys.stdout is real
    assert real.buffer.getvalue() == b"outside\nraw\nfrom a bare thread\n"
    assert screen.lines == {"a": ["ended"]}


def test_a_screen_that_prints_itself_prints_to_the_real_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    class Printing(Recorder):
        def line(self, item_id: str, index: int, stream: str, text: str, whole: bool) -> None:
            print("shown:", text)

    def worker(item: str, credential: object) -> None:
        print("one")
        sys.stdout.buffer.write(b"two")

    real = io.StringIO()
    monkeypatch.setattr(sys, "stdout", real)
    with PrintCapture(OutputCapture(None, None, Printing())) as prints:
        run(prints, worker)

    assert real.getvalue() == "shown: one\nshown: two\n"


def test_two_threads_print_each_for_its_item(prints: PrintCapture, screen: Recorder) -> None:
    both = threading.Barrier(2)

    def worker(item: str, credential: object) -> None:
        for number in range(20):
            both.wait()
            print(item, end="")
            both.wait()
            print(number)

    threads = [threading.Thread(target=run, args=(prints, worker, name)) for name in ("a", "b")]
    with prints:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    for name in ("a", "b"):
        assert screen.lines[name] == [*(f"stdout: {name}{number}" for number in range(20)), "ended"]


def test_two_coroutines_print_each_for_its_item(prints: PrintCapture, screen: Recorder) -> None:
    async def worker(item: str, credential: object) -> str:
        for number in range(20):
            print(item, end="")
            await asyncio.sleep(0)
            print(number)
        await asyncio.to_thread(print, "from a thread of its own")
        return item

    async def main() -> list[str]:
        wrapped = prints.wrap(worker)
        return list(await asyncio.gather(*(wrapped(name, None, context=context(name)) for name in ("a", "b"))))

    with prints:
        assert asyncio.run(main()) == ["a", "b"]

    for name in ("a", "b"):
        own = [*(f"stdout: {name}{number}" for number in range(20)), "stdout: from a thread of its own", "ended"]
        assert screen.lines[name] == own


def test_a_task_that_outlives_its_item_prints_for_nobody(screen: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    real = io.StringIO()
    monkeypatch.setattr(sys, "stdout", real)
    prints = PrintCapture(OutputCapture(None, None, screen))

    async def late(over: asyncio.Event) -> None:
        await over.wait()
        print("late")

    async def worker(item: str, credential: Any) -> asyncio.Task[None]:
        return asyncio.create_task(late(credential))

    async def main() -> None:
        over = asyncio.Event()
        task = await prints.wrap(worker)("a", over, context=context())
        over.set()
        await task

    with prints:
        asyncio.run(main())

    assert real.getvalue() == "late\n"
    assert screen.lines == {"a": ["ended"]}


def test_inside_an_item_nobody_looks_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    with open(slave, "w", encoding="latin-1") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        with PrintCapture(OutputCapture(None)) as inner:
            assert sys.stdout.isatty()
            assert sys.stdout.buffer.isatty()
            assert sys.stdout.encoding == "latin-1"

            def worker(item: str, credential: object) -> tuple[object, ...]:
                return sys.stdout.isatty(), sys.stdout.buffer.isatty(), sys.stdout.encoding, sys.stdout.fileno()

            assert run(inner, worker) == (False, False, "utf-8", slave)
    os.close(master)


def test_closing_the_stream_does_not_close_the_real_one(screen: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    real = io.StringIO()
    monkeypatch.setattr(sys, "stdout", real)
    with PrintCapture(OutputCapture(None, None, screen)):
        sys.stdout.close()
        print("still here")

    assert real.getvalue() == "still here\n"


def test_without_real_streams_only_items_are_heard(screen: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)

    def worker(item: str, credential: object) -> None:
        print("inside")

    with PrintCapture(OutputCapture(None, None, screen)) as prints:
        print("outside", flush=True)
        with pytest.raises(io.UnsupportedOperation):
            sys.stdout.fileno()
        run(prints, worker)

    assert screen.lines == {"a": ["stdout: inside", "ended"]}


def test_a_stream_that_somebody_put_there_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    prints = PrintCapture(OutputCapture(None))
    prints.install()
    theirs = sys.stdout = io.StringIO()

    prints.uninstall()

    assert sys.stdout is theirs


def test_installing_twice_is_installing_once(monkeypatch: pytest.MonkeyPatch) -> None:
    real = io.StringIO()
    monkeypatch.setattr(sys, "stdout", real)
    prints = PrintCapture(OutputCapture(None))
    prints.install()
    prints.install()

    prints.uninstall()

    assert sys.stdout is real


class Callee:
    def __call__(self, item: str, credential: object, context: Any) -> str:
        return str(context.item_id)


async def coroutine(item: str, credential: object, *, context: Any) -> str:
    return str(context.item_id)


def plain(item: str, credential: object, more: str = "") -> str:
    return item + more


@pytest.mark.parametrize("worker", [Callee(), coroutine, plain, functools.partial(plain, more="!")])
def test_a_wrapped_worker_is_of_the_same_kind_and_name_and_wants_a_context(
    prints: PrintCapture, worker: Callable[..., Any]
) -> None:
    before, after = inspect_worker(worker), inspect_worker(prints.wrap(worker))

    assert (after.is_async, after.name) == (before.is_async, before.name)
    assert after.wants_context


def test_the_context_is_passed_on_to_a_worker_that_wants_it(prints: PrintCapture) -> None:
    assert run(prints, Callee(), "x") == "x"
    assert asyncio.run(prints.wrap(coroutine)("x", None, context=context("x"))) == "x"
    assert run(prints, functools.partial(plain, more="!"), "x") == "x!"


def test_a_worker_may_be_given_the_name_that_a_journal_knows_it_by(prints: PrintCapture) -> None:
    assert inspect_worker(prints.wrap(plain, "lib/w.py:plain")).name == "lib/w.py:plain"


def test_with_all_to_stderr_a_bare_thread_prints_nothing_to_standard_output(
    screen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)

    def worker(item: str, credential: object) -> None:
        thread = threading.Thread(target=print, args=("from a bare thread",))
        thread.start()
        thread.join()
        print("from the worker")

    with PrintCapture(OutputCapture(None, None, screen), all_to_stderr=True) as prints:
        run(prints, worker)

    assert (out.getvalue(), err.getvalue()) == ("", "from a bare thread\n")
    assert sys.stdout is out
    assert screen.lines == {"a": ["stdout: from the worker", "ended"]}


def test_on_a_terminal_what_is_no_items_goes_above_the_display(monkeypatch: pytest.MonkeyPatch) -> None:
    """For standard output a display that has ended prints, which comes back to us."""
    above: list[str] = []

    def write(stream: str, text: str) -> None:
        if stream == "stdout":
            sys.stdout.write(text)
        else:
            above.append(text)

    master, slave = os.openpty()
    with open(slave, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        with PrintCapture(OutputCapture(None), write=write):
            print("\x1b[31mred")
    os.close(master)

    assert above == ["red\n"]


def test_a_generator_is_refused(prints: PrintCapture) -> None:
    def worker(item: str, credential: object) -> Iterator[str]:
        yield item

    with pytest.raises(ValueError, match="generator"):
        prints.wrap(worker)
