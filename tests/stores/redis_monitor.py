"""Read a pool on a Redis server from outside, and record all commands in the order of their execution."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from ..redis_server import PATIENCE, RedisServer
from .histories import StoreEvent, store_order

_READINGS = 20
_SURE = 0.001  # by how much two clocks that were compared may be apart a moment later


@dataclass(frozen=True)
class LeaseSeen:
    """A lease in force."""

    token: int
    credential: str
    session: str


class Window:
    """Reads a pool's keys. Instants are of this machine's monotonic clock."""

    def __init__(self, server: RedisServer, pool: str) -> None:
        self._client = server.client()
        self._pool = pool

    def close(self) -> None:
        self._client.close()

    def key(self, name: str) -> str:
        return f"agentos:{{{self._pool}}}:{name}"

    def last_token(self) -> int:
        """The last that was given out."""
        return int(self._client.hget(self.key("meta"), "token") or 0)

    def leases(self) -> list[LeaseSeen]:
        """Those in force, the oldest first."""
        records: dict[str, str] = self._client.hgetall(self.key("records"))
        found = [
            LeaseSeen(token, name, session)
            for number, text in records.items()
            if number.startswith("c")
            for name, leases in [credential_in(text)]
            for token, session in leases.items()
        ]
        return sorted(found, key=lambda lease: lease.token)

    def pids(self) -> dict[str, int]:
        """Of which process each session is."""
        records: dict[str, str] = self._client.hgetall(self.key("records"))
        return {name[1:]: pid_in(text) for name, text in records.items() if name.startswith("s")}

    def expiry(self) -> dict[str, float]:
        """Return when each session expires if it is not renewed."""
        ahead = self.ahead()
        found: list[tuple[str, float]] = self._client.zrange(self.key("expiry"), 0, -1, withscores=True)
        return {session: at - ahead for session, at in found}

    def ahead(self) -> float:
        """Return the maximum offset of the store's time from this machine's monotonic clock."""
        shift = float(self._client.hget(self.key("meta"), "shift") or 0.0)
        readings: list[float] = []
        for _ in range(_READINGS):
            asked_at = time.monotonic()
            seconds, micros = self._client.time()
            readings.append(seconds + micros / 1e6 - asked_at)
        return min(readings) + shift


def credential_in(text: str) -> tuple[str, dict[int, str]]:
    """The name of a credential, and the sessions that have leased it, by token: from its record."""
    head, *leases = [json.loads(line) for line in text.split("\n")]
    return head[1], {lease[0]: lease[1] for lease in leases}


def pid_in(text: str) -> int:
    """The process of a session, from its record."""
    return int(json.loads(text)[10])


@dataclass
class Watched:
    """The commands recorded for one pool."""

    order: list[StoreEvent] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)
    due: dict[int, float] = field(default_factory=dict)  # by when leases that ended had to be renewed, by token


class Monitor:
    """Has a server report each command that it does, also those of scripts, and keeps what is about one pool."""

    _QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')

    def __init__(self, server: RedisServer, window: Window) -> None:
        self._server = server
        self._window = window
        self._ahead = window.ahead()
        self._before = window.leases()
        self._pids = window.pids()
        self._expiry = window.expiry()
        self._lines: list[bytes] = []
        self._mark, self._marked = b"", threading.Event()
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._socket.sendall(b"MONITOR\r\n")
        self._reader = self._socket.makefile("rb")
        assert self._reader.readline() == b"+OK\r\n"
        self._thread = threading.Thread(target=self._read, name="monitor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):  # the server has ended it already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._reader.close()
        self._socket.close()

    def watched(self) -> Watched:
        """All that was done so far. Nobody may have used the pool while this began to watch."""
        self._catch_up()
        found = Watched(pids=dict(self._pids))
        in_force: dict[str, dict[int, str]] = {}
        for lease in self._before:
            in_force.setdefault(lease.credential, {})[lease.token] = lease.session
        expiry = dict(self._expiry)
        events: list[tuple[int, str, int, int, str]] = []
        names: dict[int, str] = {}
        for command, key, *rest in self._commands():
            if not rest:
                continue
            name, *words = rest
            if (command, key) == ("ZADD", self._window.key("expiry")):
                expiry[words[0]] = float(name) - self._ahead
            elif (command, key) != ("HSET", self._window.key("records")):
                continue
            elif name.startswith("s"):
                found.pids[name[1:]] = pid_in(words[0])
            elif name.startswith("c"):
                number = int(name[1:])
                names[number], now = credential_in(words[0])
                before = in_force.get(names[number], {})
                for token in before.keys() - now.keys():
                    events.append((len(events), "ended", token, number, before[token]))
                    found.due[token] = expiry[before[token]] - _SURE
                for token in sorted(now.keys() - before.keys()):
                    events.append((len(events), "granted", token, number, now[token]))
                in_force[names[number]] = now
        found.order = store_order(events, names)
        return found

    def _commands(self) -> Iterator[list[Any]]:
        for line in self._lines:
            words = [word.decode("unicode_escape") for word in self._QUOTED.findall(line)]
            if len(words) > 2:  # else it only looked
                yield words

    def _read(self) -> None:
        pool = self._window.key("").encode()
        try:
            for line in self._reader:
                if b' lua] "' in line and pool in line:
                    self._lines.append(line)
                elif self._mark and self._mark in line:
                    self._marked.set()
        except OSError:
            pass  # closed

    def _catch_up(self) -> None:
        """Until what was done before now has been reported."""
        self._marked.clear()
        self._mark = uuid.uuid4().hex.encode()
        with closing(self._server.client()) as client:
            client.echo(self._mark.decode())
        assert self._marked.wait(PATIENCE), "the server does not report what it does"
