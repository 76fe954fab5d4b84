"""The program that the processes of these tests run: ``python -m tests.stores.pool_child DESCRIPTOR``.

It is a template: it has imported everything and opened nothing, and forks a child whenever it is asked for one. A child
does what it is told, line by line, and answers each line. It ends as a program ends, because it leaves ``main``.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import random
import resource
import select
import signal
import socket
import sqlite3
import sys
import threading
import time
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentos import Credential, CredentialCoordinator, Lease, Limit, NoCredentialAvailable
from agentos.stores import session
from agentos.stores.redis import store_connection
from agentos.stores.redis.store import RedisStore
from agentos.stores.session import SessionStore
from agentos.stores.sqlite import file
from agentos.stores.sqlite.step import SqliteStep
from agentos.util.clock import Alarm, Sleeper, SystemClock

from .histories import Recorder

Spec = dict[str, Any]

# Opening a store retries transient errors for some seconds. Retry longer here, because the machine may be busy.
for module, how_long in ((file, "_INSIST"), (session, "_JOIN_RETRY_SECONDS"), (store_connection, "_INSIST")):
    setattr(module, how_long, 20.0)


def credentials_of(specs: list[Spec]) -> list[Credential]:
    """Credentials, from what can be sent to another process."""
    return [
        Credential(
            spec.get("secret", f"planted-secret-of-{spec['name']}"),
            name=spec["name"],
            slots=spec.get("slots", 1),
            quota=spec.get("quota"),
            limits=[Limit(**limit) for limit in spec.get("limits", ())],
            labels=spec.get("labels"),
        )
        for spec in specs
    ]


class ClockFromFile:
    """The machine's clock, but a file says how much more time has passed, and how far the hour of the day is off."""

    def __init__(self, path: Path) -> None:
        self._real = SystemClock()
        self._path = path

    def _told(self) -> list[float]:
        return [float(word) for word in self._path.read_text(encoding="ascii").split()]

    def now(self) -> float:
        passed, _ = self._told()
        return self._real.now() + passed

    def wall(self) -> float:
        passed, off = self._told()
        return self._real.wall() + passed + off

    def wait(self, sleeper: Sleeper, until: float) -> None:
        while (left := until - self.now()) > 0:
            if sleeper.acquire(True, min(left, _LOOK_AGAIN)):
                return

    def call_at(self, loop: AbstractEventLoop, when: float, callback: Callable[[], object]) -> Alarm:
        raise AssertionError("what runs in a loop is told by the machine's clock here")


_LOOK_AGAIN = 0.01  # whether more time has passed


class Said(logging.Handler):
    """Log handler that keeps messages in memory: some children cannot write to any file."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class Puppet:
    """A process with pools and leases. Every public method is something it can be told to do."""

    def __init__(self) -> None:
        self.said_so_far = Said()
        logging.getLogger("agentos").addHandler(self.said_so_far)
        self._pools: dict[str, CredentialCoordinator] = {}
        self._leases: dict[int, Lease] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._outcomes: dict[str, dict[str, Any]] = {}
        self._connection: sqlite3.Connection | None = None

    def obey(self, command: str, told: dict[str, Any]) -> dict[str, Any]:
        """Do it; what came of it, and when."""
        began = time.monotonic()
        answer: dict[str, Any]
        try:
            answer = {"value": getattr(self, command)(**told)}
        except Exception as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        return {**answer, "began": began, "ended": time.monotonic()}

    def begin(self, name: str, command: str, told: dict[str, Any]) -> None:
        """Do something in a thread of its own, to be asked for later."""

        def run() -> None:
            self._outcomes[name] = self.obey(command, told)

        self._threads[name] = threading.Thread(target=run, daemon=True)
        self._threads[name].start()

    def outcome(self, name: str) -> dict[str, Any]:
        """Return the result of the action started under that name."""
        self._threads[name].join()
        return self._outcomes.pop(name)

    # -- pools and leases -------------------------------------------------------------------------------------

    def open(
        self,
        credentials: list[Spec],
        path: str = "",
        url: str | None = None,
        pool: str = "",
        clock: str | None = None,
        boot: str | None = None,
        **options: Any,
    ) -> None:
        """In the file *path*, or wherever *url* says.

        *clock*: a file that says what time it is; *boot*: to which boot of the machine we belong.
        """
        if boot is not None:
            setattr(file, "read_boot_id", lambda: boot)  # noqa: B010 - it is imported there, not exported
        self._pools[pool] = CredentialCoordinator(
            credentials_of(credentials),
            store=url or f"sqlite:///{path}",
            clock=None if clock is None else ClockFromFile(Path(clock)),
            **options,
        )

    def acquire(self, pool: str = "", **ask: Any) -> dict[str, Any]:
        lease = self._pools[pool].acquire(**ask)
        self._leases[lease.token] = lease
        return {"token": lease.token, "name": lease.name}

    def acquire_some(self, count: int, pool: str = "", **ask: Any) -> list[int]:
        """Take up to so many leases, those that are to be had at once; their tokens."""
        tokens: list[int] = []
        while len(tokens) < count:
            try:
                tokens.append(self.acquire(pool, timeout=0.0, **ask)["token"])
            except NoCredentialAvailable:
                break
        return tokens

    def acquire_all(self, slots: int, timeout: float, pool: str = "", **ask: Any) -> list[tuple[str, int]]:
        """Take so many leases, one after the other, all of them within *timeout*; their names and tokens."""
        deadline = time.monotonic() + timeout
        got = [self.acquire(pool, timeout=max(0.0, deadline - time.monotonic()), **ask) for _ in range(slots)]
        return [(each["name"], each["token"]) for each in got]

    def release(self, token: int) -> bool:
        return self._leases[token].release()

    def release_all(self) -> list[bool]:
        return [self._leases.pop(token).release() for token in list(self._leases)]

    def settle(self, token: int, **amounts: float) -> bool:
        return self._leases[token].settle(amounts)

    def rate_limited(self, token: int, seconds: float) -> bool:
        return self._leases[token].rate_limited(seconds)

    def held(self, token: int) -> bool:
        return self._leases[token].held

    def until_lost(self, token: int) -> float:
        """Wait until the lease is not held any more. The last time that it was for sure: who looks may be late."""
        looked_at = held_at = time.monotonic()
        while self._leases[token].held:
            held_at = looked_at
            time.sleep(0.0005)
            looked_at = time.monotonic()
        return held_at

    def reveal(self, token: int) -> bool:
        return bool(self._leases[token].reveal())

    def snapshot(self, pool: str = "") -> list[dict[str, Any]]:
        return [{"name": row.name, "state": row.state} for row in self._pools[pool].snapshot()]

    def waits(self, requester: str, pool: str = "") -> bool:
        return self._pools[pool].explain(requester).state == "waiting"

    def close(self, pool: str = "") -> None:
        self._pools.pop(pool).close()

    def forget(self) -> None:
        """Keep no pool and no lease; they were not closed and not given back."""
        self._leases.clear()
        self._pools.clear()
        gc.collect()

    def said(self) -> list[str]:
        return list(self.said_so_far.lines)

    def worked(self) -> float:
        """Return the CPU time that this process has used, in seconds."""
        return time.process_time()

    # -- many leases, fast ------------------------------------------------------------------------------------

    def hammer(self, begun: str, until: str, timeout: float = 120.0, pool: str = "", keeps: int = 0) -> list[str]:
        """Take a lease and give one back, until there is a file of that name. What went wrong.

        There is a file *begun* as soon as it has had the first. It always *keeps* so many leases.
        """
        errors: list[str] = []
        acquire = self._pools[pool].acquire
        held: deque[Lease] = deque()
        taken = 0
        while not os.path.exists(until):
            try:
                held.append(acquire(timeout=timeout))
                taken += 1
                if taken == 1:
                    Path(begun).touch()
                if len(held) > keeps and not (lease := held.popleft()).release():
                    errors.append(f"lease {lease.token} had ended")
            except Exception as error:
                errors.append(repr(error))
        return errors

    def churn(self, seed: int, pool: str = "") -> None:
        """Take up to three leases at a time and give them back in any order, until killed."""
        dice = random.Random(seed)
        held: list[Lease] = []
        while True:
            if len(held) < 3 and dice.random() < 0.6:
                try:
                    cost = dice.choice(({"tokens": 1}, None))
                    held.append(self._pools[pool].acquire(timeout=dice.choice((0.0, 0.05)), cost=cost))
                except NoCredentialAvailable:
                    continue
            elif held:
                held.pop(dice.randrange(len(held))).release()

    def live(self, record: str, label: str, seed: int, until: str, groups: list[str]) -> dict[str, int]:
        """A random life with leases, recorded, until there is a file of that name. What happened how often."""
        return Life(self._pools[""], Recorder(Path(record), label), seed, groups).live(Path(until))

    # -- faults -----------------------------------------------------------------------------------------------

    def end(self, how: str) -> None:
        """End the process, in one of many ways."""
        if how == "_exit":
            os._exit(0)
        if how == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        if how == "exception":
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody wants to read the traceback
        raise Leave(how)

    def lock_the_file(self, path: str) -> None:
        """Be in the middle of a step of somebody else's making."""
        self._connection = sqlite3.connect(path, timeout=10.0, isolation_level=None)
        self._connection.execute("begin immediate")

    def unlock_the_file(self) -> None:
        assert self._connection is not None
        self._connection.execute("rollback")
        self._connection.close()

    def stop_in_the_next_grant(self) -> None:
        """Stand still in the middle of the step that would begin the next lease, until continued."""
        lease = SqliteStep.lease

        def stopping(step: SqliteStep, *arguments: Any) -> Any:
            SqliteStep.lease = lease  # type: ignore[method-assign]
            granted = lease(step, *arguments)
            os.kill(os.getpid(), signal.SIGSTOP)
            return granted

        SqliteStep.lease = stopping  # type: ignore[assignment,method-assign]

    def no_file_larger_than(self, size: int | None) -> None:
        """From now on the disk is full, as far as this process is concerned; None: it has room again."""
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))

    def keep_the_interpreter(self, seconds: float) -> None:
        """Call something that does not let any other thread run meanwhile."""
        system = ctypes.PyDLL(None)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            system.usleep(max(1, min(900_000, int(left * 1e6))))

    def wait_in_a_loop(self, timeout: float, pool: str = "") -> dict[str, Any]:
        """Ask for a lease in an event loop, and give it back there. Whether it came, and the loop's longest pause.

        And that of a thread which does nothing: so long the machine had other things to do.
        """
        longest = {"loop": 0.0, "thread": 0.0}
        ended = threading.Event()

        def tick_in_a_thread() -> None:
            while not ended.is_set():
                before = time.monotonic()
                time.sleep(0.002)
                longest["thread"] = max(longest["thread"], time.monotonic() - before)

        async def tick() -> None:
            while not ended.is_set():
                before = time.monotonic()
                await asyncio.sleep(0.002)
                longest["loop"] = max(longest["loop"], time.monotonic() - before)

        async def story() -> dict[str, Any]:
            ticking = asyncio.ensure_future(tick())
            began = time.monotonic()
            try:
                lease = await self._pools[pool].acquire_async(timeout=timeout)
                lease.release()
                got = True
            except NoCredentialAvailable:
                got = False
            waited = time.monotonic() - began
            ended.set()
            await ticking
            return {"got": got, "waited": waited}

        idle = threading.Thread(target=tick_in_a_thread)
        idle.start()
        try:
            found = asyncio.run(story())
        finally:
            ended.set()
            idle.join()
        return {**found, "longest": longest["loop"] - longest["thread"]}

    # -- forks ------------------------------------------------------------------------------------------------

    def fork(
        self, commands: list[tuple[str, dict[str, Any]]], how: str = "return", patience: float = 20.0
    ) -> list[dict[str, Any]] | None:
        """Fork; the child does these things with what it has inherited, and ends. Its answers; None if it hangs."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(reader)
                answers = [self.obey(command, told) for command, told in commands]
                os.write(writer, json.dumps(answers).encode())
                os.close(writer)
            except BaseException:
                os._exit(70)
            raise Leave(how)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            ready, _, _ = select.select([pipe], [], [], patience)
            if not ready:
                os.kill(pid, signal.SIGKILL)
            said = pipe.read()
        os.waitpid(pid, 0)
        return json.loads(said) if ready else None

    def fork_in_the_middle(
        self, times: int, commands: list[tuple[str, dict[str, Any]]], pool: str = ""
    ) -> list[list[dict[str, Any]] | None]:
        """Fork as often, each time while other threads are somewhere in the middle of using the pool."""
        ended = threading.Event()

        def use() -> None:
            while not ended.is_set():
                with self._pools[pool].lease():
                    pass

        threads = [threading.Thread(target=use) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            found: list[list[dict[str, Any]] | None] = []
            while len(found) < times and None not in found:
                found.append(self.fork(commands, "_exit"))
            return found
        finally:
            ended.set()
            for thread in threads:
                thread.join()

    def go_on_in_a_fork(self) -> int:
        """From here on this is another process, which has inherited all; the one before it is gone. Its pid."""
        if os.fork():
            os._exit(0)
        return os.getpid()


class Life:
    """One process that takes leases and gives them back at random, and writes down all it does."""

    def __init__(self, pool: CredentialCoordinator, recorder: Recorder, seed: int, groups: list[str]) -> None:
        self._pool = pool
        self._recorder = recorder
        self._dice = random.Random(seed)
        self._groups = groups
        self._held: list[Lease] = []
        self._ended: list[Lease] = []
        self.counts = dict.fromkeys(
            ("granted", "granted late", "refused", "timed out", "released", "put off", "stale", "double", "settled"), 0
        )

    def live(self, until: Path) -> dict[str, int]:
        while not until.exists():
            what = self._dice.random()
            if what < 0.48 and len(self._held) < 4:
                self._acquire()
            elif what < 0.52 and self._ended:
                self._release(self._dice.choice(self._ended[-5:]), "double")
            elif what < 0.6 and self._held:
                self._report(self._dice.choice(self._held))
            elif self._held:
                lease = self._held.pop(self._dice.randrange(len(self._held)))
                self._release(lease, "released")
                self._ended.append(lease)
        for lease in self._held:
            self._release(lease, "released")
        return self.counts

    def _acquire(self) -> None:
        dice = self._dice
        timeout = dice.choice((0.0, 0.0, 0.005, 0.02, 0.05))
        number = self._recorder.invoked("acquire")
        asked_at, asked_by = time.monotonic(), self._connection()
        try:
            lease = self._pool.acquire(
                timeout=timeout, labels=[dice.choice(self._groups)], cost={"tokens": dice.randint(1, 5)}
            )
        except NoCredentialAvailable:
            if self._connection() is asked_by:
                self._recorder.returned(number, answer=False)
            # Else an answer was lost: it may have been granted what it did not hear of, which ends by itself.
            self.counts["timed out" if timeout else "refused"] += 1
            return
        self._recorder.returned(number, answer=True, credential=lease.name, token=lease.token)
        self.counts["granted"] += 1
        self.counts["granted late"] += time.monotonic() - asked_at > 0.002
        self._held.append(lease)
        if dice.random() < 0.5:
            time.sleep(dice.uniform(0.0, 0.002))  # its work

    def _connection(self) -> object:
        """Return the handshake of the connection to the store, another one after each failure; None for a file."""
        store = self._pool._runtime.store
        return (store._connection.handshake or object()) if isinstance(store, RedisStore) else None

    def _release(self, lease: Lease, what: str) -> None:
        number = self._recorder.invoked("release", lease.name, lease.token)
        ended = lease.release()
        store = self._pool._runtime.store
        assert isinstance(store, SessionStore)
        if store._pending:
            # The store was busy. It will be told, and nobody waits for that: whoever looks there may see it later.
            self.counts["put off"] += 1
            return
        self._recorder.returned(number, answer=ended)
        if what == "released" and not ended:
            what = "stale"
        self.counts[what] += 1

    def _report(self, lease: Lease) -> None:
        if self._dice.random() < 0.3:
            number = self._recorder.invoked("renew", lease.name, lease.token)
            if lease.held:  # if it is not, that is for the store to say: a holder stops a little earlier
                self._recorder.returned(number, answer=True)
        else:
            self.counts["settled"] += lease.settle(tokens=self._dice.randint(1, 5))


class Leave(BaseException):
    """This process is to end, in that way."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


# -- the template --------------------------------------------------------------------------------------------------


def serve(control: socket.socket) -> socket.socket | None:
    """Fork a child for each descriptor that is sent. Returns that in the child, and None at the end."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([control.fileno(), reader], [], [])
        if reader in ready:
            os.read(reader, 4096)
            report_the_dead(control)
        if control.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                return None
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (reader, writer):
                    os.close(descriptor)
                control.close()
                return socket.socket(fileno=descriptors[0])
            os.close(descriptors[0])
            control.sendall(f"{json.dumps({'pid': pid})}\n".encode())


def report_the_dead(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        ended = {"ended": pid, "code": os.waitstatus_to_exitcode(status), "at": time.monotonic()}
        control.sendall(f"{json.dumps(ended)}\n".encode())


def main() -> None:
    orders = serve(socket.socket(fileno=int(sys.argv[1])))
    if orders is None:
        return
    puppet = Puppet()
    how = "return"
    # Two streams: one that is read and written forgets, at each writing, what it has read ahead.
    with orders.makefile("r", encoding="utf-8") as told, orders.makefile("w", encoding="utf-8") as answers:
        for line in told:
            order = json.loads(line)
            try:
                answer = puppet.obey(order["command"], order["told"])
            except Leave as leave:
                how = leave.how
                break
            answers.write(f"{json.dumps(answer)}\n")
            answers.flush()
    # The puppet lives on until the interpreter takes it down, as the variables of a program do.
    globals()["puppet"] = puppet
    if how == "sys.exit":
        sys.exit(3)
    if how == "exception":
        raise RuntimeError("something the program did not expect")
    if how == "_exit":
        os._exit(0)
    if how == "pool closed":
        for pool in puppet._pools.values():
            pool.close()


if __name__ == "__main__":
    main()
