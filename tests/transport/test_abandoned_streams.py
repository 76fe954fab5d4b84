"""When the garbage collector is made to look for streams that nobody reads any more."""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentos.transport.abandoned_streams import CollectionTimer, OpenStreams


class Later:
    """Timers that go off when the test says so."""

    def __init__(self) -> None:
        self.set: list[Timer] = []

    def __call__(self, seconds: float, act: Callable[[], None]) -> Timer:
        self.set.append(Timer(seconds, act))
        return self.set[-1]


class Timer:
    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self.seconds = seconds
        self.go_off = act
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Stream:
    """What a transport hands up; in a cycle, as SDKs have it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def later() -> Later:
    return Later()


@pytest.fixture
def streams(later: Later) -> OpenStreams:
    return OpenStreams(later)


class Time:
    """A clock that the test moves: else a pause would be shorter by as long as this process stood still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr("agentos.transport.abandoned_streams.time", time)
    return time


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """One entry for each look. Nothing is collected otherwise."""
    seen: list[int] = []
    collect = gc.collect
    gc.freeze()
    gc.disable()
    monkeypatch.setattr(gc, "collect", lambda: seen.append(collect()))
    yield seen
    gc.enable()
    gc.unfreeze()


def test_nothing_is_looked_for_while_no_call_waits(streams: OpenStreams, later: Later) -> None:
    stream = Stream()

    streams.add(stream)

    assert later.set == []


def test_nothing_is_looked_for_while_no_stream_is_open(streams: OpenStreams, later: Later) -> None:
    streams.add(Stream())
    gc.collect()

    with streams.collecting_while_waiting():
        assert later.set == []


def test_a_call_that_waits_has_forgotten_streams_found_in_a_moment(
    streams: OpenStreams, later: Later, looks: list[int]
) -> None:
    streams.add(Stream())

    with streams.collecting_while_waiting():
        (timer,) = later.set
        timer.go_off()

    assert timer.seconds < 0.1
    assert len(looks) == 1


def test_a_stream_handed_up_while_calls_wait_is_looked_for_too(
    streams: OpenStreams, later: Later, looks: list[int]
) -> None:
    with streams.collecting_while_waiting():
        streams.add(Stream())
        later.set[0].go_off()

    assert len(looks) == 1


def test_one_timer_does_for_all_calls_that_wait(streams: OpenStreams, later: Later) -> None:
    stream = Stream()
    streams.add(stream)

    with streams.collecting_while_waiting(), streams.collecting_while_waiting():
        assert len(later.set) == 1


def test_after_a_look_in_vain_the_next_one_is_put_off_for_longer_each_time(
    streams: OpenStreams, later: Later, looks: list[int], time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, collect = Stream(), gc.collect

    def slow() -> None:
        time.now += 0.2
        collect()

    monkeypatch.setattr(gc, "collect", slow)
    streams.add(stream)

    with streams.collecting_while_waiting():
        for number in range(3):
            later.set[number].go_off()
            time.now += later.set[-1].seconds

        assert len(looks) == 3
        assert [timer.seconds for timer in later.set[1:]] == pytest.approx([0.4, 0.8, 1.6])


def test_after_a_find_the_next_look_comes_as_soon_as_the_first(
    streams: OpenStreams, later: Later, looks: list[int]
) -> None:
    kept: Any = Stream()
    streams.add(kept)
    streams.add(Stream())

    with streams.collecting_while_waiting():
        later.set[0].go_off()

        assert len(looks) == 1
        assert later.set[1].seconds == later.set[0].seconds


def test_when_the_last_call_has_its_key_nothing_is_looked_for_any_more(
    streams: OpenStreams, later: Later, looks: list[int]
) -> None:
    stream = Stream()
    streams.add(stream)

    with streams.collecting_while_waiting():
        pass
    (timer,) = later.set
    timer.go_off()  # it was on its way already

    assert timer.cancelled
    assert looks == []
    assert len(later.set) == 1


# -- who looks, where threads wait -----------------------------------------------------------------------------------


def test_a_watchman_does_one_thing_after_the_other() -> None:
    watchman = CollectionTimer()
    for _ in range(3):
        done = threading.Event()
        watchman(0.0, done.set)
        assert done.wait(10.0)


def test_what_was_called_off_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.transport.abandoned_streams._IDLE_SECONDS", 0.001)
    watchman, called_off, threads = CollectionTimer(), threading.Event(), queue.SimpleQueue[threading.Thread]()

    def act() -> None:  # on the thread that would do the next thing, so that nothing is done in between
        watchman(0.0, called_off.set).cancel()
        threads.put(threading.current_thread())

    watchman(0.0, act)

    thread = threads.get(timeout=10.0)
    thread.join(10.0)  # it has looked for something to do, and gone
    assert not thread.is_alive()
    assert not called_off.is_set()


def test_all_waits_share_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.transport.abandoned_streams._IDLE_SECONDS", 60.0)  # however slow this test is
    watchman, ran_on = CollectionTimer(), set[int]()
    for _ in range(5):
        watchman(60.0, lambda: None)  # slept through, and not to its end
        done = threading.Event()

        def do(done: threading.Event = done) -> None:
            ran_on.add(threading.get_ident())
            done.set()

        watchman(0.0, do)
        assert done.wait(10.0)

    assert len(ran_on) == 1
