"""Pools in a forked child, in any state of the parent's other threads."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import select
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentos import CredentialCoordinator
from agentos.pool.redaction import Masker
from agentos.pool.runtime import fork_handling
from agentos.pool.runtime.scheduler import Scheduler
from agentos.runs.context import CheckpointFolder
from agentos.transport.abandoned_streams import CollectionTimer, OpenStreams
from agentos.util import fork_hooks

PATIENCE = 30.0
HANGS = "the child hangs"
KEY = "a-secret-key-1"


def in_child(act: Callable[[], Any]) -> Any:
    """Fork, and call *act* there: what it returns, or the error that it raises."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads, which is what this is about
        pid = os.fork()
    if pid == 0:
        try:
            said = act()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, json.dumps(said).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        ready, _, _ = select.select([pipe], [], [], PATIENCE)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        said = json.loads(pipe.read()) if ready else HANGS
    os.waitpid(pid, 0)
    return said


@contextmanager
def held_by_another_thread(*locks: Any) -> Iterator[None]:
    has_them, done = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                lock.acquire()
                stack.callback(lock.release)
            has_them.set()
            done.wait(PATIENCE)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert has_them.wait(PATIENCE)
    try:
        yield
    finally:
        done.set()
        thread.join(PATIENCE)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[CredentialCoordinator]:
    with CredentialCoordinator([KEY], store=tmp_path / "pool.sqlite") as pool:
        yield pool


def test_a_child_is_refused_though_another_thread_held_the_lock_of_the_pool_and_of_the_log(
    shared: CredentialCoordinator,
) -> None:
    handler = logging.StreamHandler()
    logging.getLogger("agentos").addHandler(handler)
    try:
        with held_by_another_thread(shared._runtime.scheduler.lock, handler.lock):
            said = in_child(lambda: shared.acquire(timeout=1).name)
    finally:
        logging.getLogger("agentos").removeHandler(handler)

    assert said.startswith("StoreUnavailable")
    assert f"made in process {os.getpid()} and forked; make one in each process" in said


def test_a_child_that_was_forked_in_the_middle_of_a_step_is_refused_and_may_make_a_pool_of_its_own(
    shared: CredentialCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_step, go_on = threading.Event(), threading.Event()
    acquire = shared._runtime.core.acquire

    def stopped(*arguments: Any) -> Any:
        in_a_step.set()
        go_on.wait(PATIENCE)
        return acquire(*arguments)

    monkeypatch.setattr(shared._runtime.core, "acquire", stopped)
    thread = threading.Thread(target=lambda: shared.acquire().release(), daemon=True)
    thread.start()
    assert in_a_step.wait(PATIENCE)

    def use_both() -> list[str]:
        try:
            shared.acquire(timeout=1)
        except Exception as error:
            refused = type(error).__name__
        with CredentialCoordinator([KEY], store=tmp_path / "pool.sqlite") as own, own.lease(timeout=PATIENCE) as lease:
            return [refused, lease.name]

    said = in_child(use_both)
    go_on.set()
    thread.join(PATIENCE)

    assert said == ["StoreUnavailable", "key-1"]
    assert shared.acquire(timeout=PATIENCE).release()


def test_everything_that_needs_the_store_is_refused_in_a_child_and_what_ends_something_does_nothing(
    shared: CredentialCoordinator,
) -> None:
    lease = shared.acquire()

    def use() -> list[Any]:
        said: list[Any] = []
        for act in (
            lambda: shared.acquire_nowait(),
            lambda: shared.lease().__enter__(),
            lambda: asyncio.run(shared.acquire_async()),
            lambda: shared.reserve(timeout=1),
            lambda: shared.snapshot(),
            lambda: shared.get_stats(),
            lambda: shared.explain("nobody"),
            lambda: shared.add("another-secret-key"),
            lambda: shared.revive("key-1"),
        ):
            try:
                act()
            except Exception as error:
                said.append(type(error).__name__)
        ended = [lease.settle(tokens=1), lease.rate_limited(1.0), lease.release()]
        shared.close()
        return [set(said) == {"StoreUnavailable"} and len(said), ended, lease.reveal() == KEY]

    assert in_child(use) == [9, [False, False, False], True]
    assert lease.held
    assert lease.release()


def test_a_pool_in_memory_is_whole_in_the_child_though_another_thread_was_changing_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = CredentialCoordinator([KEY])
    inside, asked = threading.Event(), threading.Event()
    state: list[str] = []
    before_fork = Scheduler.before_fork

    def tell(self: Scheduler) -> None:
        asked.set()
        before_fork(self)

    monkeypatch.setattr(Scheduler, "before_fork", tell)

    def change() -> None:
        with pool._runtime.scheduler.locked():
            state.append("half")
            inside.set()
            asked.wait(PATIENCE)
            state.append("whole")

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    assert inside.wait(PATIENCE)

    assert in_child(lambda: [*state, (_held := pool.acquire(timeout=1)).name]) == ["half", "whole", "key-1"]
    thread.join(PATIENCE)
    with pool.lease(timeout=0) as lease:
        assert lease.held


def test_in_the_child_no_key_of_a_pool_in_memory_is_kept_for_threads_of_the_parent_that_wait() -> None:
    with CredentialCoordinator([KEY]) as pool:
        lease = pool.acquire()
        threads = [threading.Thread(target=lambda: pool.acquire().release(), daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        while pool._runtime.core.waiting < 2:
            threading.Event().wait(0.001)

        assert in_child(lambda: [lease.release(), (_held := pool.acquire_nowait()).name]) == [True, "key-1"]

        assert lease.release()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def test_a_pool_in_memory_that_does_not_come_to_rest_is_refused_in_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_handling, "_LOCK_TIMEOUT", 0.001)
    pool = CredentialCoordinator([KEY])

    with held_by_another_thread(pool._runtime.scheduler.lock):
        said = in_child(lambda: pool.acquire(timeout=1).name)

    assert said.startswith("StoreUnavailable")
    assert pool.acquire_nowait().release()


@pytest.mark.parametrize(
    ("make", "lock_of", "use"),
    [
        (lambda: Masker([KEY]), lambda it: it._marking, lambda it: it.mask(f"key {KEY}")),
        (CheckpointFolder, lambda it: it._lock, lambda it: str(it.ensure_folder().is_dir())),
        (lambda: OpenStreams(CollectionTimer()), lambda it: it._lock, lambda it: it.add(it)),
        (CollectionTimer, lambda it: it._changed, lambda it: it.cancel()),
    ],
    ids=["masker", "checkpoints", "open streams", "watchman"],
)
def test_a_child_finds_free_what_another_thread_had_locked(
    make: Callable[..., Any], lock_of: Callable[[Any], Any], use: Callable[[Any], Any]
) -> None:
    thing = make(None) if make is CheckpointFolder else make()

    with held_by_another_thread(lock_of(thing)):
        said = in_child(lambda: [use(thing)])

    assert said != HANGS
    assert isinstance(said, list)


def test_forks_keep_no_pool_from_being_forgotten() -> None:
    pool = CredentialCoordinator([KEY])
    gone, number = weakref.ref(pool._runtime.scheduler), id(pool._runtime.scheduler)
    assert number in fork_hooks._registered

    del pool
    gc.collect()

    assert gone() is None
    assert number not in fork_hooks._registered or fork_hooks._registered[number]() is not None
