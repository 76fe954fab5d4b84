"""A real Redis for tests: started, stopped, killed, made to stand still, and told another hour.

The program is the one that ``redis_program`` finds; a machine that has none fails the test, for a test that is
skipped shows nothing. The server listens on loopback and on a socket in its folder.
"""

from __future__ import annotations

import atexit
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from . import redis_program

PATIENCE = 20.0  # for what takes a tenth of a second on a machine that has nothing else to do

# Below the ports that systems give to connections going out: none of those can take the port of a server that is down.
_PORTS = range(20_000, 32_000)
_LONGEST_SOCKET = 100  # characters; the system's own bound is a little above
_dice = random.SystemRandom()  # the other one is seeded alike in every process of a test run


class RedisServer:
    """One server, which keeps its port, its socket and its folder through any number of restarts.

    *aof*: what was written outlives a kill. *faketime*: its hour of the day can be set, by `jump`.
    """

    def __init__(self, folder: Path, *, aof: bool = False, faketime: bool = False) -> None:
        self.folder = folder
        self.port = 0  # until it was started once
        self._claim: socket.socket | None = None  # to the port, also while it is down
        self.starts = 0
        self._aof = aof
        self._hour = folder / "hour" if faketime else None
        self._off = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._short: Path | None = None
        self.socket = folder / "redis.sock"
        if len(str(self.socket)) > _LONGEST_SOCKET:
            self._short = Path(tempfile.mkdtemp(prefix="redis-"))
            self.socket = self._short / "redis.sock"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def url(self, pool: str | None = None, *, port: int | None = None) -> str:
        """Where it is; *port*: by way of a proxy that listens there."""
        return f"redis://127.0.0.1:{port or self.port}/0" + ("" if pool is None else f"?pool={pool}")

    def unix_url(self, pool: str | None = None) -> str:
        return f"unix://{self.socket}" + ("" if pool is None else f"?pool={pool}")

    # -- what happens to it -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Returns when it answers. The first time it takes any free port, and later that one again."""
        assert not self.running, "the server runs"
        for _ in range(50):
            if self._claim is None:
                self.port, self._claim = _claimed()
            if self._started():
                self.starts += 1
                return
            if self.starts:  # whoever has it claims nothing, and so is no test like this one
                threading.Event().wait(0.05)
            else:
                self._give_up_the_port()
        raise AssertionError(f"no Redis could be started in {self.folder}: {self._last_words()}")

    def stop(self) -> None:
        """SIGTERM: it ends in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> float:
        """kill -9. Returns when it was dead, by the monotonic clock."""
        self._end(signal.SIGKILL)
        return time.monotonic()

    def restart(self, *, empty: bool = False) -> None:
        """Killed if it runs, and started again: with what was written to its folder, or with nothing."""
        if self.running:
            self.kill()
        if empty:
            for name in ("appendonly.aof", "dump.rdb"):
                (self.folder / name).unlink(missing_ok=True)
            shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)  # where it is written since Redis 7
        self.start()

    def pause(self) -> None:
        """SIGSTOP, in effect: it takes connections, as the system does that for it, and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        eventually(self._stands_still)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def jump(self, seconds: float) -> None:
        """Set its hour of the day forward or back, at once. Its monotonic clock goes on as before."""
        assert self._hour is not None, "only a server with faketime=True can be told another hour"
        self._off += seconds
        self._write_hour()
        eventually(lambda: abs(self.time() - time.time() - self._off) < 5.0)

    def close(self) -> None:
        """It is gone, whatever state it was in."""
        if self.running:
            self.kill()
        self._give_up_the_port()
        if self._short is not None:
            shutil.rmtree(self._short, ignore_errors=True)
        atexit.unregister(self.close)

    # -- what it says -----------------------------------------------------------------------------------------

    def client(self) -> Any:
        """A client of redis-py, which tries nothing twice and answers in text (by its types it might be bytes)."""
        retry = Retry(NoBackoff(), 0)
        return redis.Redis(port=self.port, socket_timeout=PATIENCE, retry=retry, decode_responses=True)

    def time(self) -> float:
        """The hour of its day, in seconds."""
        with closing(self.client()) as client:
            seconds, micros = client.time()
        return float(seconds + micros / 1e6)

    # -- inside -----------------------------------------------------------------------------------------------

    def _started(self) -> bool:
        """Whether it answers; else it is gone again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.socket.parent.mkdir(exist_ok=True)
        self.socket.unlink(missing_ok=True)
        environment = dict(os.environ)
        if self._hour is not None:
            self._write_hour()
            environment |= {
                "LD_PRELOAD": str(faketime_library()),
                "FAKETIME_TIMESTAMP_FILE": str(self._hour),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        settings = {
            "port": self.port,
            "bind": "127.0.0.1",
            "unixsocket": self.socket,
            "dir": self.folder,
            "logfile": self.folder / "redis.log",
            "daemonize": "no",
            "save": "",
            "appendonly": "yes" if self._aof else "no",
            # It is killed, and never loses its power. By default it syncs every second, and while it does so it answers
            # before it has written: a kill then takes what was answered.
            "appendfsync": "no",
            "databases": 2,
        }
        self._process = subprocess.Popen(
            [executable(), *(word for name, value in settings.items() for word in (f"--{name}", str(value)))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        atexit.register(self.close)
        deadline = time.monotonic() + PATIENCE
        while self.running and time.monotonic() < deadline:
            if self.socket.exists() and self._answers():
                return True
            threading.Event().wait(0.002)
        if self.running:
            self.kill()
        return False

    def _give_up_the_port(self) -> None:
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def _answers(self) -> bool:
        with closing(self.client()) as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False  # not yet, or it is still reading what it had written

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None, "the server was not started"
        self._process.send_signal(how)
        self._process.send_signal(signal.SIGCONT)
        self._process.wait(PATIENCE)

    def _stands_still(self) -> bool:
        tasks = [(task / "stat").read_text() for task in Path(f"/proc/{self.pid}/task").iterdir()]
        return all(text.rpartition(")")[2].split()[0] in "Tt" for text in tasks)

    def _write_hour(self) -> None:
        assert self._hour is not None
        new = self._hour.with_suffix(".new")
        new.write_text(f"{self._off:+f}\n", encoding="ascii")
        new.replace(self._hour)  # it is read at every look at the clock: half of it must never be seen

    def _last_words(self) -> str:
        log = self.folder / "redis.log"
        return " / ".join(log.read_text(errors="replace").splitlines()[-3:]) if log.exists() else "it has no log"


def _claimed() -> tuple[int, socket.socket]:
    """A port, and what keeps it for a server that is down: its namesake of UDP, which only one process can have."""
    while True:
        port = _dice.choice(_PORTS)
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
        else:
            return port, claim


@functools.cache
def executable() -> str:
    """The server's program."""
    program = redis_program.find()
    assert program, "these tests need a redis-server: `make test` fetches one, or put one on PATH"
    return program


@functools.cache
def faketime_library() -> Path:
    """What a process must load first for its hour to be set: of the wheel, which is not imported, or of the system."""
    spec = find_spec("libfaketime")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    installed = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    assert installed, "these tests need libfaketime: pip install libfaketime, or the system's package of that name"
    return installed


@functools.cache
def shared_server() -> RedisServer:
    """A server of this process, for tests that do nothing to it. It ends with the process; nobody may empty it."""
    folder = Path(tempfile.mkdtemp(prefix="redis-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    server = RedisServer(folder)
    server.start()
    return server


def fresh_pool() -> str:
    """A name that no other test has given to its pool."""
    return f"test-{uuid.uuid4().hex[:12]}"


def eventually(condition: Callable[[], object]) -> None:
    """Until it holds. For what the server does, and nobody can be asked about."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true within {PATIENCE:g}s"
        threading.Event().wait(0.001)
