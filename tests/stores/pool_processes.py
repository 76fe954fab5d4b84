"""Drive real processes that share one store: start, command, stop, kill and query them."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .histories import TRIGGERS, StoreEvent, store_order
from .pool_child import Spec

PATIENCE = 30.0  # for what should take no time
ROOT = Path(__file__).parents[2]

# Heavier runs: every number of trials, and every time span in which processes only hammer, is multiplied by it.
TRIALS = float(os.environ.get("AGENTOS_STORE_TRIALS", "1"))


def trials(count: int) -> int:
    return max(1, round(count * TRIALS))


@dataclass(frozen=True)
class Answer:
    """The answer of a process: what it did, and when, by the machine's monotonic clock."""

    began: float
    ended: float
    value: Any = None
    error: str | None = None
    text: str = ""

    @property
    def got(self) -> Any:
        assert self.error is None, f"{self.error}: {self.text}"
        return self.value


class Child:
    """One process. It does one thing after the other; what it is told while it is stopped, it does afterwards."""

    def __init__(self, family: Family, pid: int, orders: socket.socket) -> None:
        self.pid = pid
        self._family = family
        orders.settimeout(PATIENCE)
        self._orders = orders
        self._told = orders.makefile("w", encoding="utf-8")
        self._answers = orders.makefile("r", encoding="utf-8")

    # -- what it is told --------------------------------------------------------------------------------------

    def tell(self, command: str, /, **told: Any) -> None:
        """Have it do something, and do not wait for that."""
        self._told.write(f"{json.dumps({'command': command, 'told': told})}\n")
        self._told.flush()

    def answer(self) -> Answer:
        """Return the answer to the first command whose answer was not read yet."""
        line = self._answers.readline()
        assert line, f"process {self.pid} ended without an answer"
        return Answer(**json.loads(line))

    def do(self, command: str, /, **told: Any) -> Any:
        """Have it do something; what it got."""
        return self.ask(command, **told).got

    def ask(self, command: str, /, **told: Any) -> Answer:
        """Have it do something; what came of that, be it an error."""
        self.tell(command, **told)
        return self.answer()

    def begin(self, name: str, command: str, /, **told: Any) -> None:
        """Have it do something in a thread of its own."""
        self.do("begin", name=name, command=command, told=told)

    def outcome(self, name: str) -> Answer:
        """Return the result of that action."""
        return Answer(**self.do("outcome", name=name))

    # -- what happens to it -----------------------------------------------------------------------------------

    def kill(self) -> float:
        """kill -9. Returns when it was dead."""
        os.kill(self.pid, signal.SIGKILL)
        _, at = self.wait()
        return at

    def stop(self) -> None:
        """SIGSTOP, in effect."""
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_stopped()

    def wait_stopped(self) -> None:
        eventually(lambda: self.stopped)

    @property
    def stopped(self) -> bool:
        """Return whether none of its threads runs."""
        try:
            tasks = [(task / "stat").read_text() for task in Path(f"/proc/{self.pid}/task").iterdir()]
        except OSError:
            return False
        return all(text.rpartition(")")[2].split()[0] in "Tt" for text in tasks)

    def stop_outside_a_step(self, path: Path) -> None:
        """SIGSTOP, at a moment at which it does not have the file locked: that is another fault, with another bound."""
        self.stop()
        while locked_by(path, self):
            self.go_on()
            self.stop()

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self, how: str) -> None:
        """Have it end by itself."""
        self.tell("end", how=how)

    def wait(self) -> tuple[int, float]:
        """Until it has ended. Its exit code, and when that was known."""
        return self._family.wait(self.pid)

    def close(self) -> None:
        self._answers.close()
        try:
            self._told.close()
        except OSError:
            pass  # it ended before it had read all
        self._orders.close()


class Family:
    """The template, and all the children it has forked. They are one process group, and end together."""

    def __init__(self, *prefix: str) -> None:
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.stores.pool_child", str(theirs.fileno())],
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        ours.settimeout(PATIENCE)
        self._control = ours
        self._reports = ours.makefile("r", encoding="utf-8")
        self._asking = threading.Lock()
        self._ended: dict[int, tuple[int, float]] = {}
        self._children: list[Child] = []

    def child(self) -> Child:
        """One more process, which waits to be told what to do."""
        ours, theirs = socket.socketpair()
        with self._asking:
            socket.send_fds(self._control, [b"!"], [theirs.fileno()])
            theirs.close()
            while "pid" not in (report := json.loads(self._reports.readline())):
                self._note(report)
        child = Child(self, report["pid"], ours)
        self._children.append(child)
        return child

    def children(self, count: int) -> list[Child]:
        return [self.child() for _ in range(count)]

    def wait(self, pid: int) -> tuple[int, float]:
        with self._asking:
            while pid not in self._ended:
                self._note(json.loads(self._reports.readline()))
            return self._ended[pid]

    def _note(self, report: dict[str, Any]) -> None:
        self._ended[report["ended"]] = (report["code"], report["at"])

    def clear(self) -> None:
        """At the end of a test: no child of it is left, whatever became of it."""
        for child in self._children:
            if child.pid not in self._ended:
                try:
                    os.kill(child.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # its end is known in a moment
                child.wait()
            child.close()
        self._children.clear()

    def close(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._reports.close()
        self._control.close()
        for child in self._children:
            child.close()


@contextmanager
def family(*prefix: str) -> Iterator[Family]:
    """*prefix* is put before the template's command."""
    made = Family(*prefix)
    try:
        yield made
    finally:
        made.close()


def eventually(condition: Callable[[], object], within: float = PATIENCE, every: float = 0.001) -> None:
    """Until it holds. For what the system or another process does, and nobody can be asked about."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true within {within:g}s"
        threading.Event().wait(every)


class DrivenTime:
    """A clock for processes that read it from a file: the machine's, plus what a test adds."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)
        self._path = file
        self._passed = self._off = 0.0
        self._tell()

    def now(self) -> float:
        return time.monotonic() + self._passed

    def let_pass(self, seconds: float) -> None:
        self._passed += seconds
        self._tell()

    def let_come(self, instant: float) -> None:
        self.let_pass(max(0.0, instant - self.now()))

    def set_hour(self, off: float) -> None:
        """The hour of the day is off by so much; nothing else is."""
        self._off = off
        self._tell()

    def _tell(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(f"{self._passed!r} {self._off!r}", encoding="ascii")
        new.replace(self._path)  # at once, for whoever reads it


# -- the file, from outside ----------------------------------------------------------------------------------------


def keys(count: int, slots: int | str = 1, **more: Any) -> list[Spec]:
    """Credentials to be sent to a process."""
    return [{"name": f"key-{number}", "slots": slots, **more} for number in range(1, count + 1)]


def rows(path: Path, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
    """Return the rows of the store's file."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=PATIENCE)) as connection:
        return connection.execute(query, arguments).fetchall()


def locked_by(path: Path, child: Child) -> bool:
    """Return whether a process has the store's file locked for writing, in the middle of a step."""
    inode = f":{os.stat(f'{path}-shm').st_ino}"
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(lock[3:5] == ["WRITE", str(child.pid)] and lock[5].endswith(inode) for lock in locks)


def wait_for_grants(path: Path, count: int) -> None:
    """Until the store has granted so many leases."""
    eventually(lambda: rows(path, "select max(token) from log")[0][0] >= count)


def session_of(path: Path, child: Child) -> tuple[str, float]:
    """The session of a process, and when it ends if it is not renewed."""
    ((session, expires_at),) = rows(path, "select id, expires_at from sessions where pid = ?", child.pid)
    return session, expires_at


def in_flight(path: Path) -> int:
    """Requests of unknown cost that count against some limit."""
    records = [json.loads(record) for (record,) in rows(path, "select record from quotas")]
    limits = [limit for record in records for limit in record.get("limits", {}).values()]
    return sum(limit["usage"]["in_flight"] for limit in limits if limit.get("usage"))


def bytes_of(path: Path) -> bytes:
    """A store's file, with all that was in its log. Nobody may have it open, not even this process."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)").fetchone()
    return path.read_bytes()


def sound(path: Path) -> str:
    """Return the result of SQLite's integrity check."""
    return str(rows(path, "pragma integrity_check")[0][0])


# -- histories -----------------------------------------------------------------------------------------------------

# Beside the order of grants and ends: which process a session was, and by when a lease that ended had to be renewed.
_MORE_TRIGGERS = """
CREATE TABLE joined(session TEXT PRIMARY KEY, pid INTEGER);
CREATE TRIGGER session_joined AFTER INSERT ON sessions BEGIN
    INSERT INTO joined VALUES (new.id, new.pid);
END;
CREATE TABLE due(token INTEGER PRIMARY KEY, expires_at REAL);
CREATE TRIGGER lease_was_due AFTER DELETE ON leases BEGIN
    INSERT INTO due VALUES (old.token, (SELECT expires_at FROM sessions WHERE id = old.session));
END;
INSERT INTO joined SELECT id, pid FROM sessions;
"""


def install_triggers(path: Path) -> None:
    """Have the store write its own order down. It would not be opened so: somebody must have it open by now."""
    with closing(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)) as connection:
        connection.executescript(f"BEGIN IMMEDIATE; {TRIGGERS} {_MORE_TRIGGERS} COMMIT;")


def order_of(path: Path, labels: dict[int, str] | None = None) -> list[StoreEvent]:
    """The store's own order; *labels* are names of processes by their pid, to be put in the place of their sessions."""
    names = dict(rows(path, "select number, name from credentials"))
    order = store_order(rows(path, "select seq, op, token, credential, session from history"), names)
    if labels is None:
        return order
    owner = {session: labels[pid] for session, pid in rows(path, "select session, pid from joined") if pid in labels}
    return [replace(event, session=owner[event.session]) for event in order]
