"""Real signals, in this process and in others."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from agentos.runs.execution.job_control import JOB_CONTROL
from agentos.runs.execution.signal_watcher import _SIGNALS, WATCH

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="os.kill ends the process there")

LONG = 20.0


class Run:
    """A run that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.on: list[str] = []
        self.then: Callable[[], object] = bool
        self._arrived = threading.Semaphore(0)

    def on_signal(self, signum: int) -> None:
        self.told.append(signum)
        self.on.append(threading.current_thread().name)
        self._arrived.release()
        self.then()

    def wait_told(self, count: int = 1) -> None:
        for _ in range(count):
            assert self._arrived.acquire(timeout=LONG), f"told of {self.told}"


def send(signum: int) -> None:
    os.kill(os.getpid(), signum)


def in_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join(LONG)
    assert not thread.is_alive()


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in _SIGNALS]


def wakeup_fd() -> int:
    found = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(found, warn_on_full_buffer=False)
    return found


@pytest.fixture(autouse=True)
def everything_is_put_back() -> Iterator[None]:
    before = [signal.getsignal(number) for number in _SIGNALS]
    yield
    left = list(WATCH._runs.values()), WATCH._on_main, WATCH._previous, wakeup_fd()
    after = handlers()
    # One test that fails must not make the next ones fail.
    for run, _ in left[0]:
        WATCH.leave(run)
    signal.set_wakeup_fd(-1)
    for number, handler in zip(_SIGNALS, before, strict=True):
        signal.signal(number, handler)
    assert left == ([], 0, {}, -1)
    assert after == before


@pytest.fixture
def run() -> Iterator[Run]:
    run = Run()
    try:
        WATCH.join(run)
        yield run
    finally:
        WATCH.leave(run)


def test_handlers_are_ours_while_a_run_is_on_and_no_longer() -> None:
    def own(signum: int, frame: FrameType | None) -> None: ...

    earlier = signal.signal(signal.SIGTERM, own)
    before = handlers()
    run = Run()

    WATCH.join(run)
    during = handlers()
    WATCH.leave(run)

    assert all(a is not b for a, b in zip(before, during, strict=True))
    assert all(a is b for a, b in zip(before, handlers(), strict=True))
    signal.signal(signal.SIGTERM, earlier)


def test_leaving_twice_or_without_having_joined_changes_nothing(run: Run) -> None:
    other = Run()

    WATCH.leave(other)
    WATCH.join(other)
    WATCH.leave(other)
    WATCH.leave(other)

    send(signal.SIGINT)
    run.wait_told()
    assert other.told == []


@pytest.mark.parametrize("signum", _SIGNALS)
def test_runs_are_notified_on_the_watcher_thread(run: Run, signum: int) -> None:
    send(signum)
    run.wait_told()

    assert run.told == [signum]
    assert run.on == ["agentos-signals"]


def test_each_of_two_signals_is_told_once(run: Run) -> None:
    send(signal.SIGINT)
    run.wait_told()
    send(signal.SIGTERM)
    run.wait_told()
    send(signal.SIGTERM)
    run.wait_told()

    WATCH.leave(run)
    assert run.told == [signal.SIGINT, signal.SIGTERM, signal.SIGTERM]


def test_other_signals_are_nobodys_business(run: Run) -> None:
    earlier = signal.signal(signal.SIGUSR1, lambda *_: None)
    send(signal.SIGUSR1)
    send(signal.SIGINT)
    run.wait_told()
    signal.signal(signal.SIGUSR1, earlier)

    assert run.told == [signal.SIGINT]


def test_a_run_was_notified_of_every_signal_when_leave_returns() -> None:
    for _ in range(50):
        run = Run()
        WATCH.join(run)
        send(signal.SIGINT)
        WATCH.leave(run)
        assert run.told == [signal.SIGINT]


class SlowWaiters(deque[Any]):
    """The runs that wait until they were told. Whoever lets one go comes back only when the test goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.came = 0
        self.goes_on = threading.Semaphore(0)

    def append(self, waiter: Any) -> None:
        super().append(waiter)
        self.came += 1
        if self.came > 1:
            self.goes_on.release()

    def popleft(self) -> Any:
        waiter = super().popleft()
        return SimpleNamespace(release=lambda: (waiter.release(), self.goes_on.acquire(timeout=LONG)))


def test_a_run_is_notified_even_if_the_previous_one_is_being_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiters = SlowWaiters()
    monkeypatch.setattr(WATCH, "_catching_up", waiters)
    told = []
    for _ in range(2):
        run = Run()
        WATCH.join(run)
        send(signal.SIGINT)
        WATCH.leave(run)
        told.append(list(run.told))
    waiters.goes_on.release()

    assert told == [[signal.SIGINT]] * 2


def test_a_signal_reaches_every_run(run: Run) -> None:
    nested, elsewhere = Run(), Run()
    WATCH.join(nested)
    in_thread(lambda: WATCH.join(elsewhere))

    send(signal.SIGTERM)
    for each in (run, nested, elsewhere):
        each.wait_told()

    in_thread(lambda: WATCH.leave(elsewhere))
    WATCH.leave(nested)
    assert [each.told for each in (run, nested, elsewhere)] == [[signal.SIGTERM]] * 3


def test_a_run_that_fails_to_heed_does_not_keep_it_from_the_others(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    class Deaf:
        def on_signal(self, signum: int) -> None:
            raise LookupError("deaf")

    deaf, after = Deaf(), Run()
    WATCH.join(deaf)
    WATCH.join(after)

    send(signal.SIGINT)
    after.wait_told()
    WATCH.leave(after)
    WATCH.leave(deaf)

    assert run.told == after.told == [signal.SIGINT]
    assert "a run failed to handle signal 2" in caplog.text


def test_overlapping_runs_put_back_what_was_there_before_the_first() -> None:
    before = handlers()
    first, second = Run(), Run()

    WATCH.join(first)
    WATCH.join(second)
    WATCH.leave(first)
    assert handlers() != before
    send(signal.SIGINT)
    second.wait_told()
    WATCH.leave(second)

    assert handlers() == before
    assert first.told == []


def test_off_the_main_thread_no_handler_is_set() -> None:
    before = handlers()
    seen = []

    def elsewhere() -> None:
        run = Run()
        WATCH.join(run)
        seen.append(handlers())
        WATCH.leave(run)

    in_thread(elsewhere)

    assert seen == [before]


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    earlier = signal.signal(signal.SIGINT, signal.SIG_IGN)
    run = Run()
    try:
        WATCH.join(run)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        send(signal.SIGINT)
        send(signal.SIGTERM)
        run.wait_told()
    finally:
        WATCH.leave(run)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.signal(signal.SIGINT, earlier)
    assert run.told == [signal.SIGTERM]


def test_with_both_ignored_there_is_nothing_to_watch() -> None:
    earlier = [signal.signal(number, signal.SIG_IGN) for number in _SIGNALS]
    run = Run()

    WATCH.join(run)
    assert wakeup_fd() == -1
    assert not WATCH.raise_in_main(KeyboardInterrupt(), signal.SIGINT)
    WATCH.leave(run)

    assert handlers() == [signal.SIG_IGN] * 2
    for number, each in zip(_SIGNALS, earlier, strict=True):
        signal.signal(number, each)


def test_a_handler_the_host_has_set_meanwhile_is_left_alone() -> None:
    hosts: list[int] = []

    def host(signum: int, frame: FrameType | None) -> None:
        hosts.append(signum)

    before = signal.getsignal(signal.SIGINT)
    run = Run()
    WATCH.join(run)
    signal.signal(signal.SIGINT, host)
    send(signal.SIGINT)
    send(signal.SIGTERM)
    run.wait_told()

    WATCH.leave(run)

    assert signal.getsignal(signal.SIGINT) is host
    assert hosts == [signal.SIGINT]
    assert run.told == [signal.SIGTERM]
    signal.signal(signal.SIGINT, before)


def test_a_host_may_go_on_to_our_handler_during_the_run_and_after_it() -> None:
    earlier: list[int] = []
    before = signal.signal(signal.SIGINT, lambda signum, _: earlier.append(signum))
    run = Run()
    WATCH.join(run)
    ours = signal.getsignal(signal.SIGINT)
    assert callable(ours)
    signal.signal(signal.SIGINT, lambda signum, frame: ours(signum, frame))

    send(signal.SIGINT)
    run.wait_told()
    assert (run.told, earlier) == ([signal.SIGINT], [])
    WATCH.leave(run)
    send(signal.SIGINT)

    assert (run.told, earlier) == ([signal.SIGINT], [signal.SIGINT])
    signal.signal(signal.SIGINT, before)


def test_a_signal_after_a_run_left_from_another_thread_goes_where_it_went_before() -> None:
    earlier: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, _: earlier.append(signum))
    run = Run()
    WATCH.join(run)
    in_thread(lambda: WATCH.leave(run))

    send(signal.SIGTERM)

    assert (run.told, earlier) == ([], [signal.SIGTERM])
    assert handlers() == [signal.default_int_handler, signal.getsignal(signal.SIGTERM)]
    signal.signal(signal.SIGTERM, before)


def test_handlers_left_installed_are_restored_before_the_next_run() -> None:
    before = handlers()
    abandoned, run = Run(), Run()
    WATCH.join(abandoned)
    in_thread(lambda: WATCH.leave(abandoned))

    WATCH.join(run)
    send(signal.SIGINT)
    run.wait_told()
    WATCH.leave(run)

    assert handlers() == before
    assert abandoned.told == []


def test_a_second_leave_in_the_main_thread_puts_back_what_was_left_behind() -> None:
    before = handlers()
    run = Run()
    WATCH.join(run)
    in_thread(lambda: WATCH.leave(run))
    assert handlers() != before

    WATCH.leave(run)

    assert handlers() == before


def test_a_thousand_runs_leave_no_descriptor_and_one_thread_at_most() -> None:
    def counts() -> tuple[int, int]:
        watchers = [thread for thread in threading.enumerate() if thread.name == "agentos-signals"]
        return len(os.listdir("/proc/self/fd")), len(watchers)

    first = Run()
    WATCH.join(first)
    WATCH.leave(first)
    descriptors, _ = counts()

    for _ in range(1000):
        run = Run()
        WATCH.join(run)
        until = time.monotonic() + LONG
        # The last one's may be about to end; and what nobody reads fills the pipe.
        while counts()[1] != 1 or WATCH._begun != WATCH._taken_over:
            assert time.monotonic() < until
        WATCH.leave(run)

    assert counts()[0] < descriptors + 100  # what other tests left behind may open some


def test_the_watcher_ends_with_the_last_run(run: Run) -> None:
    watcher = WATCH._watcher
    assert watcher is not None

    WATCH.leave(run)

    watcher.join(LONG)
    assert not watcher.is_alive()


# -- the wake-up descriptor -----------------------------------------------------------------------------------


class Pipe:
    """Somebody else's wake-up descriptor."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self.writer, False)

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def test_a_wakeup_descriptor_of_another_owner_is_kept(pipe: Pipe) -> None:
    signal.set_wakeup_fd(pipe.writer)
    run = Run()

    WATCH.join(run)
    send(signal.SIGINT)
    run.wait_told()
    send(signal.SIGINT)
    run.wait_told()
    WATCH.leave(run)

    assert signal.set_wakeup_fd(-1) == pipe.writer
    assert os.read(pipe.reader, 100) == bytes([signal.SIGINT] * 2)
    assert run.told == [signal.SIGINT] * 2


def test_a_wakeup_descriptor_taken_from_us_is_noticed_and_each_signal_still_counts_once(pipe: Pipe) -> None:
    run = Run()
    WATCH.join(run)
    send(signal.SIGINT)
    run.wait_told()

    ours = signal.set_wakeup_fd(pipe.writer)
    send(signal.SIGINT)
    run.wait_told()
    signal.set_wakeup_fd(ours)  # as trio does at its end
    send(signal.SIGINT)
    run.wait_told()
    signal.set_wakeup_fd(-1)  # as asyncio does
    send(signal.SIGINT)
    run.wait_told()
    WATCH.leave(run)

    assert run.told == [signal.SIGINT] * 4
    assert signal.set_wakeup_fd(-1) == -1


def test_a_wakeup_descriptor_set_during_the_run_is_left_alone_at_its_end(pipe: Pipe) -> None:
    run = Run()
    WATCH.join(run)
    signal.set_wakeup_fd(pipe.writer)

    WATCH.leave(run)

    assert signal.set_wakeup_fd(-1) == pipe.writer


def test_a_wakeup_descriptor_that_was_taken_and_dropped_is_claimed_again() -> None:
    run = Run()
    WATCH.join(run)
    signal.set_wakeup_fd(-1)

    for _ in range(3):
        send(signal.SIGINT)
        run.wait_told()
    WATCH.leave(run)

    assert run.told == [signal.SIGINT] * 3


# -- raising in the main thread -------------------------------------------------------------------------------


class Forced(SystemExit):
    """What a second signal raises."""


class Forcing(Run):
    """The first signal makes the main thread raise."""

    def on_signal(self, signum: int) -> None:
        self.sent = WATCH.raise_in_main(Forced(), signum)
        super().on_signal(signum)


def sleeping(signum: int) -> None:
    send(signum)
    time.sleep(LONG)


def waiting_for_a_lock(signum: int) -> None:
    lock = threading.Lock()
    lock.acquire()
    send(signum)
    lock.acquire(timeout=LONG)


def at_work(signum: int) -> None:
    until = time.monotonic() + LONG
    send(signum)
    while time.monotonic() < until:
        pass


def in_an_idle_loop(signum: int) -> None:
    async def idle() -> None:
        asyncio.get_running_loop().call_soon(send, signum)
        await asyncio.sleep(LONG)

    asyncio.run(idle())


def in_a_stuck_loop(signum: int) -> None:
    async def stuck() -> None:
        sleeping(signum)

    asyncio.run(stuck())


@pytest.mark.parametrize("signum", _SIGNALS)
@pytest.mark.parametrize("busy", [sleeping, waiting_for_a_lock, at_work, in_an_idle_loop, in_a_stuck_loop])
def test_an_error_is_raised_in_the_main_thread_wherever_it_is(busy: Callable[[int], None], signum: int) -> None:
    run = Forcing()
    began = time.monotonic()
    try:
        WATCH.join(run)
        with pytest.raises(Forced):
            busy(signum)
    finally:
        WATCH.leave(run)

    assert time.monotonic() - began < LONG / 2
    assert run.sent
    assert run.told == [signum], "its own signal is not told as the user's"


def test_the_error_is_raised_with_the_wakeup_descriptor_in_other_hands(pipe: Pipe) -> None:
    signal.set_wakeup_fd(pipe.writer)
    run = Forcing()
    try:
        WATCH.join(run)
        with pytest.raises(Forced):
            sleeping(signal.SIGINT)
    finally:
        WATCH.leave(run)
        signal.set_wakeup_fd(-1)

    assert run.told == [signal.SIGINT]


def test_the_users_next_signal_counts_again_after_one_of_ours() -> None:
    run = Forcing()
    try:
        WATCH.join(run)
        for _ in range(3):
            with pytest.raises(Forced):
                sleeping(signal.SIGTERM)
    finally:
        WATCH.leave(run)

    assert run.told == [signal.SIGTERM] * 3


def test_an_error_is_sent_again_until_it_is_raised(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that arrives just before a call blocks is noticed, but does not end that call."""
    really, sent = signal.pthread_kill, []

    def without_effect_at_first(ident: int, signum: int) -> None:
        sent.append(signum)
        if len(sent) > 1:
            really(ident, signum)
        else:
            WATCH._write(signum)

    monkeypatch.setattr(signal, "pthread_kill", without_effect_at_first)

    assert WATCH.raise_in_main(Forced(), signal.SIGINT)
    with pytest.raises(Forced):
        time.sleep(LONG)

    WATCH.leave(run)
    assert run.told == []
    assert len(sent) >= 2


def test_an_error_raised_again_and_again_sends_no_signal_that_counts() -> None:
    """A run may insist. The kernel makes one signal of several that wait, so we must not expect several."""
    run = Run()
    in_the_way = threading.Event()
    try:
        WATCH.join(run)
        for _ in range(100):
            with pytest.raises(Forced):  # noqa: PT012 - it is raised in either line
                for _ in range(10):
                    WATCH.raise_in_main(Forced(), signal.SIGINT)
                in_the_way.wait(LONG)
        send(signal.SIGINT)
        run.wait_told()
    finally:
        WATCH.leave(run)

    assert run.told == [signal.SIGINT]


def test_a_signal_counts_though_one_of_ours_was_lost_in_the_run_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "pthread_kill", lambda ident, signum: None)
    before, run = Run(), Run()
    WATCH.join(before)
    assert WATCH.raise_in_main(Forced(), signal.SIGINT)
    WATCH.leave(before)

    WATCH.join(run)
    send(signal.SIGINT)
    run.wait_told()
    WATCH.leave(run)

    assert (before.told, run.told) == ([], [signal.SIGINT])


def test_no_error_is_raised_without_a_joined_run_or_with_the_hosts_handler(run: Run) -> None:
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    assert not WATCH.raise_in_main(Forced(), signal.SIGINT)
    signal.signal(signal.SIGINT, ours)

    WATCH.leave(run)

    assert not WATCH.raise_in_main(Forced(), signal.SIGINT)


def test_an_error_that_comes_too_late_is_dropped_and_its_signal_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "pthread_kill", lambda ident, signum: None)
    run = Run()
    WATCH.join(run)
    assert WATCH.raise_in_main(Forced(), signal.SIGINT)

    WATCH.leave(run)
    monkeypatch.undo()

    again = Run()
    WATCH.join(again)
    WATCH.leave(again)
    assert WATCH._error is None


def test_an_error_raised_inside_leave_does_not_keep_the_run_from_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    before = handlers()
    run = Run()
    WATCH.join(run)
    really = WATCH._put_back

    def interrupted() -> None:
        monkeypatch.undo()
        WATCH.raise_in_main(Forced(), signal.SIGINT)
        raise Forced

    monkeypatch.setattr(WATCH, "_put_back", interrupted)

    with pytest.raises(Forced):
        WATCH.leave(run)

    assert WATCH._put_back == really
    assert handlers() == before


# -- event loops ----------------------------------------------------------------------------------------------


def test_inside_a_running_loop_the_loops_handler_is_replaced_and_put_back() -> None:
    run = Run()

    async def main() -> None:
        before = handlers()
        assert before[0] is not signal.default_int_handler, "asyncio.run sets one of its own"
        told = asyncio.Event()
        loop = asyncio.get_running_loop()
        run.then = lambda: loop.call_soon_threadsafe(told.set)
        WATCH.join(run)
        send(signal.SIGINT)
        await asyncio.wait_for(told.wait(), LONG)
        WATCH.leave(run)
        assert handlers() == before

    asyncio.run(main())

    assert run.told == [signal.SIGINT]


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_loop_keeps_its_own_signals(run: Run, when: str) -> None:
    WATCH.leave(run)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        users = asyncio.Queue[str]()
        if when == "before":
            loop.add_signal_handler(signal.SIGUSR1, users.put_nowait, "usr1")
        WATCH.join(run)
        if when == "during":
            loop.add_signal_handler(signal.SIGUSR1, users.put_nowait, "usr1")

        for _ in range(2):
            send(signal.SIGUSR1)
            assert await asyncio.wait_for(users.get(), LONG) == "usr1"
            send(signal.SIGINT)
            await asyncio.to_thread(run.wait_told)
        WATCH.leave(run)
        send(signal.SIGUSR1)
        assert await asyncio.wait_for(users.get(), LONG) == "usr1"
        assert loop.remove_signal_handler(signal.SIGUSR1)

    asyncio.run(main())

    assert run.told == [signal.SIGINT] * 2


# -- other processes ------------------------------------------------------------------------------------------

PRELUDE = """
import os, signal, subprocess, sys, threading, time
from agentos.runs.execution.signal_watcher import WATCH

class Run:
    def __init__(self):
        self.told = []
        self.arrived = threading.Semaphore(0)
    def on_signal(self, signum):
        self.told.append(int(signum))
        self.arrived.release()
"""


def in_process(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-c", PRELUDE + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_a_storm_of_signals_neither_blocks_nor_breaks_a_thread_that_logs_and_prints() -> None:
    ended = in_process("""
        import logging
        logging.basicConfig(stream=sys.stdout, format="log %(message)s")
        run = Run()
        WATCH.join(run)
        storm = '''
        import os, sys, time
        for _ in range(1000):
            os.kill(int(sys.argv[1]), 2)
            os.kill(int(sys.argv[1]), 15)
            time.sleep(0.0005)
        '''
        import textwrap
        sender = subprocess.Popen([sys.executable, "-c", textwrap.dedent(storm), str(os.getpid())])
        event = threading.Event()
        while sender.poll() is None:
            print("print")
            logging.getLogger("agentos").warning("line")
            event.set(); event.clear()
        WATCH.leave(run)
        sys.stderr.write(f"told {len(run.told) > 10} {set(run.told) == {2, 15}}")
    """)

    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stderr == "told True True"
    assert set(ended.stdout.split("\n")) == {"print", "log line", ""}


def test_a_main_thread_in_a_long_call_does_not_keep_the_signal_from_the_run() -> None:
    """``join`` of a C library's thread, a big sort: the handler runs only afterwards."""
    ended = in_process("""
        import re, ctypes
        run = Run()
        WATCH.join(run)
        libc = ctypes.CDLL(None)
        cut_short = threading.Event()
        def send_and_hear():
            os.kill(os.getpid(), 2)
            heard = run.arrived.acquire(timeout=20)
            os.write(1, b"heard" if heard else b"deaf")
            os.kill(os.getpid(), 9)
        threading.Thread(target=send_and_hear).start()
        while True:
            libc.sleep(30)  # ends early by the signal, then again, without a look at Python's handlers in between
    """)

    assert (ended.stdout, ended.returncode) == ("heard", -9)


def test_a_forked_child_is_on_its_own() -> None:
    ended = in_process("""
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        before = signal.getsignal(2), signal.getsignal(15)
        run = Run()
        WATCH.join(run)
        ready, go = os.pipe()
        child = os.fork()
        if child == 0:
            assert (signal.getsignal(2), signal.getsignal(15)) == before
            assert signal.set_wakeup_fd(-1) == -1
            assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
            try:
                os.kill(os.getpid(), 2)
                time.sleep(20)
            except KeyboardInterrupt:
                pass
            own = Run()
            WATCH.join(own)
            os.kill(os.getpid(), 15)
            WATCH.leave(own)
            assert own.told == [15] and run.told == []
            assert (signal.getsignal(2), signal.getsignal(15)) == before
            os.write(go, b"x")
            os.kill(os.getpid(), 15)
            time.sleep(20)
            os._exit(3)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -15, status
        assert os.read(ready, 1) == b"x"
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
        assert run.told == []
        os.kill(os.getpid(), 15)
        WATCH.leave(run)
        assert run.told == [15]
        print("both well")
    """)

    assert (ended.stdout, ended.stderr, ended.returncode) == ("both well\n", "", 0)


def test_an_error_that_comes_during_a_fork_is_raised_after_it() -> None:
    ended = in_process("""
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        run = Run()
        WATCH.join(run)
        WATCH.before_fork()
        thread = threading.Thread(target=lambda: WATCH.raise_in_main(KeyboardInterrupt("late"), 2))
        thread.start()
        thread.join()
        WATCH.after_fork()
        try:
            time.sleep(20)
        except KeyboardInterrupt as error:
            print(error, run.told)
        WATCH.leave(run)
    """)

    assert (ended.stdout, ended.stderr, ended.returncode) == ("late []\n", "", 0)


def test_a_process_that_ends_in_the_middle_of_a_run_ends_quietly() -> None:
    ended = in_process("""
        run = Run()
        WATCH.join(run)
        os.kill(os.getpid(), 2)
        assert run.arrived.acquire(timeout=20)
    """)

    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 0)


def test_a_run_that_leaves_at_the_very_end_of_the_process_waits_for_no_watcher() -> None:
    """Left to the collector, as a stream may be: by then no thread but the main one runs any more."""
    ended = in_process("""
        import gc
        from agentos.runs.execution import signal_watcher as signals
        signals._CATCH_UP_WITHIN = 1e6
        gc.disable()  # until the end
        class Left:
            def __del__(self):
                WATCH.leave(run)
                os.write(1, b"left")
        run = Run()
        WATCH.join(run)
        os.kill(os.getpid(), 2)
        assert run.arrived.acquire(timeout=20)
        left = Left()
        left.me = left
        del left
    """)

    assert (ended.stdout, ended.stderr, ended.returncode) == ("left", "", 0)


def test_after_the_run_the_signal_means_what_it_meant_before() -> None:
    ended = in_process("""
        run = Run()
        WATCH.join(run)
        os.kill(os.getpid(), 15)
        WATCH.leave(run)
        os.write(1, str(run.told).encode())
        os.kill(os.getpid(), 15)
        time.sleep(20)
    """)

    assert (ended.stdout, ended.stderr, ended.returncode) == ("[15]", "", -15)


# -- Ctrl-Z ---------------------------------------------------------------------------------------------------------


def test_handlers_for_job_control_are_ours_only_while_a_run_is_on() -> None:
    before = [signal.getsignal(number) for number in JOB_CONTROL]
    run = Run()

    WATCH.join(run)
    during = [signal.getsignal(number) for number in JOB_CONTROL]
    WATCH.leave(run)

    assert before == [signal.SIG_DFL] * 2
    assert during == [WATCH._handler] * 2
    assert [signal.getsignal(number) for number in JOB_CONTROL] == before


@pytest.mark.parametrize("theirs", [signal.SIG_IGN, lambda *_: None])
def test_a_host_that_deals_with_ctrl_z_itself_keeps_its_handler(theirs: Any) -> None:
    signal.signal(signal.SIGTSTP, theirs)
    run = Run()
    try:
        WATCH.join(run)
        assert signal.getsignal(signal.SIGTSTP) is theirs
        assert signal.getsignal(signal.SIGCONT) is signal.SIG_DFL
    finally:
        WATCH.leave(run)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)


STOPPED = """
import ctypes, sys, threading
from agentos.runs.execution.signal_watcher import WATCH

class Run:
    def on_signal(self, signum): ...
    def before_stop(self): print("before", threading.current_thread().name, flush=True)
    def after_continue(self): print("after", flush=True); done.set()

done, run = threading.Event(), Run()
WATCH.job_control.add(run)
WATCH.join(run)
print("ready", flush=True)
if sys.argv[1] == "busy":
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(256)
    libc.pthread_mutex_lock(mutex)
    threading.Thread(target=lambda: done.wait() and libc.pthread_mutex_unlock(mutex)).start()
    libc.pthread_mutex_lock(mutex)  # one long call, which no signal interrupts: no handler runs meanwhile
done.wait()
WATCH.leave(run)
"""


@pytest.mark.parametrize("main_thread", ["waits", "busy"])
def test_listeners_are_notified_before_the_stop_and_after_the_continue(main_thread: str) -> None:
    # A group of its own in our session: to the system that is a job of ours.
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STOPPED), main_thread],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTSTP)
        assert process.stdout.readline() == "before agentos-signals\n"
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "after\n"
        assert process.wait(LONG) == 0
    finally:
        process.kill()
        process.communicate()
