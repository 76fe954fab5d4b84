"""The way to the server: one connection for steps, made anew after trouble by whoever may wait.

A step that finds the connection gone fails at once; one that finds it cut waits for a new one, no longer than for an
answer. The housekeeper's wait is where it is mended, outside the pool's lock: it connects, sees which server answers,
and what the store there says of itself.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from ...errors import NotAStore, StoreDamaged, StoreError, StoreTooNew, StoreUnavailable
from ...pool.core.fair_queue import StoreSession
from ...pool.store_protocol import TransientStoreError
from .errors import FAILURES, build_opening_error, build_option_error, translate_error
from .metadata import (
    FORMAT,
    KnownStoreState,
    ServerInfo,
    StoreActivity,
    StoreMetadata,
    parse_metadata,
    reconcile_metadata,
)
from .resp_connection import AMEND, APPLY, UNTIL, RespConnection
from .server_time import ServerTime, ServerTimeReading
from .url import RedisLocation

T = TypeVar("T")

_LIMIT: Final = 0.25
_SHORTEST_LIMIT: Final = 0.05
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_OLDEST: Final = (6, 0)
_TRIES: Final = 20
_INSIST: Final = 2.0
_SALT_BYTES: Final = 32
_FOR_EVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Handshake:
    """A connection as it was made: what the store says of itself, and the server's hour."""

    connection: RespConnection
    meta: StoreMetadata
    time_reading: ServerTimeReading


class StoreConnection:
    """Holds the connection for steps. ``handshake`` is None while there is none; ``why`` tells why not."""

    def __init__(self, place: RedisLocation, server_time: ServerTime, ttl: float) -> None:
        self.place = place
        self.limit = min(_LIMIT, max(_SHORTEST_LIMIT, ttl / 10))
        self.handshake: Handshake | None = None
        self.why = ""
        self.known: Callable[[], KnownStoreState | None] = lambda: None  # what this process knows of the store
        self.dropped: Callable[[], None] = lambda: None  # told when there is something to mend
        self.reconnects: Callable[[], None] = lambda: None  # called after a reconnect: notifications may be lost
        self.closed = False
        self.server_time = server_time
        self._ttl = ttl
        self._pause = _FIRST_PAUSE
        self._reconnect_at = 0.0
        self._reconnecting = threading.Lock()
        self.keys = [place.key(name) for name in ("meta", "records", "changes", "expiry")]
        self._apply, self._amend, self._until = (
            script.bind(keys) for script, keys in ((APPLY, self.keys), (AMEND, self.keys[:1]), (UNTIL, self.keys[3:]))
        )

    def wakeup_channel(self, session: str) -> str:
        """The channel on which the process of that session is woken."""
        return self.place.key(f"bell:{session.partition('.')[0]}")

    # -- connecting -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect for the first time. Insists for a moment on what may pass. Raises StoreError."""
        deadline = time.monotonic() + _INSIST
        while self.handshake is None:
            try:
                self.handshake = self._handshake()
            except TransientStoreError as error:
                if time.monotonic() > deadline:
                    raise build_opening_error(error, self.place.shown) from None
                time.sleep(_FIRST_PAUSE)

    def failed(self, error: Exception) -> TransientStoreError | StoreError:
        """The connection is of no use any more. What to raise in place of *error*."""
        found = translate_error(error, self.place.shown, self.limit)
        self.drop(str(found))
        # What a person has to put right can be put right while we wait.
        return TransientStoreError(self.why) if isinstance(found, StoreUnavailable) else found

    def drop(self, why: str) -> None:
        """Let go of the connection."""
        greeting, self.handshake = self.handshake, None
        self.why = why
        if greeting is not None:
            self._reconnect_at = time.monotonic()
            self._pause = _FIRST_PAUSE
            greeting.connection.close()
            self.dropped()

    def reconnect_delay(self) -> float:
        """In how many seconds ``reconnect`` should be tried; infinite if nothing is broken."""
        return (
            _FOR_EVER if self.handshake is not None or self.closed else max(0.0, self._reconnect_at - time.monotonic())
        )

    def reconnect(self) -> bool:
        """Connect again, however long that takes. False: in vain, and ``reconnect_delay`` says when to try next."""
        with self._reconnecting:
            if self.handshake is not None or self.closed:
                return self.handshake is not None
            try:
                greeting = self._handshake()
            except (TransientStoreError, StoreError) as error:
                self.why = error.detail if isinstance(error, StoreUnavailable) else str(error)
                self._reconnect_at = time.monotonic() + self._pause
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                return False
            return self._use(greeting)

    def _use(self, greeting: Handshake) -> bool:
        if self.closed:  # meanwhile
            greeting.connection.close()
        else:
            self.handshake = greeting
            self.reconnects()
        return not self.closed

    def reconnect_within_step(self) -> bool:
        """The same for who holds others up, for the time of one answer at most: to look up a name may take any."""
        deadline = time.monotonic() + self.limit
        if self._reconnecting.locked() and self._reconnecting.acquire(timeout=self.limit):  # somebody was at it
            self._reconnecting.release()
        left = deadline - time.monotonic()
        if self.handshake is None and left > 0:  # nobody was, or only before this broke
            mender = threading.Thread(target=self.reconnect, name="agentos-mender", daemon=True)
            try:
                mender.start()
            except RuntimeError:  # the interpreter is ending
                return False
            mender.join(left)
        return self.handshake is not None

    def close(self) -> None:
        self.closed = True
        self.drop("it is closed")

    # -- what is said first -----------------------------------------------------------------------------------

    def _handshake(self) -> Handshake:
        wire = self.connect()
        try:
            greeting = self.query(lambda: self._reconcile(wire))
            wire.set_timeout(self.limit)
        except BaseException:
            wire.close()
            raise
        return greeting

    def connect(self) -> RespConnection:
        """A connection of its own. Raises StoreTrouble or StoreError."""
        try:
            return self.query(lambda: RespConnection(self.place, max(self.limit, _LIMIT)))  # it holds nobody up
        except (ValueError, TypeError) as error:
            raise build_option_error(error, self.place.shown) from None

    def query(self, ask: Callable[[], T]) -> T:
        """What the server answers. Raises StoreTrouble or StoreError."""
        try:
            return ask()
        except FAILURES as error:
            raise translate_error(error, self.place.shown, self.limit) from None

    def _reconcile(self, wire: RespConnection) -> Handshake:
        server = self._server(wire)
        for script in (APPLY, AMEND, UNTIL):
            wire.load(script)
        wire.ask("PUBLISH", self.wakeup_channel("nobody"), "")  # or who may not would find out when others wait for it
        for _ in range(_TRIES):
            meta = self.read_meta(wire)
            heard = self.server_time.read(wire)
            new = reconcile_metadata(
                meta,
                ServerInfo(server.run, server.uptime, heard.hour),
                self.known(),
                ttl=self._ttl,
                signs=self._read_activity(wire, meta, heard.hour),
                salt=secrets.token_hex(_SALT_BYTES),
            )
            if new is meta or self.amend(wire, new, meta):
                return Handshake(wire, new, heard)
        raise TransientStoreError(f"others keep changing what {self.place.shown} says of itself")

    def _server(self, wire: RespConnection) -> ServerInfo:
        said = wire.ask("INFO", "server").decode(errors="replace")
        info = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
        try:
            version = tuple(int(number) for number in re.findall(r"\d+", info["redis_version"])[:2])
            run, counted = info["run_id"], float(info["uptime_in_seconds"])
        except (KeyError, ValueError) as error:
            detail = f"it does not say what a Redis or Valkey says of itself in answer to INFO ({error})"
            raise StoreUnavailable(path=self.place.shown, detail=detail) from None
        if version < _OLDEST:
            detail = f"the server is Redis {info['redis_version']}, and 6.0 or newer is needed (or Valkey)"
            raise StoreUnavailable(path=self.place.shown, detail=detail)
        return ServerInfo(run, self.server_time.uptime(counted), 0.0)

    def _read_activity(self, wire: RespConnection, meta: StoreMetadata | None, hour: float) -> StoreActivity:
        """Who else seems to use the store, at that hour of the server."""
        if meta is not None and wire.ask("ZCARD", self.keys[3]):
            return StoreActivity(True, bool(wire.ask("ZCOUNT", self.keys[3], f"({hour + meta.shift!r}", "+inf")))
        return StoreActivity(listening=bool(wire.ask("PUBSUB", "CHANNELS", self.wakeup_channel("*"))))

    def read_meta(self, wire: RespConnection) -> StoreMetadata | None:
        """What the store says of itself; None if there is no store yet. Raises StoreError if it is none of ours."""
        words = [word.decode(errors="replace") for word in wire.ask("HGETALL", self.keys[0])]
        fields = dict(zip(words[::2], words[1::2], strict=True))
        if not fields:
            return None
        if "format" not in fields:
            raise NotAStore(path=self.place.shown, detail=f"its key {self.keys[0]} is somebody else's")
        try:
            version = int(fields["format"])
            if version > FORMAT:
                raise StoreTooNew(path=self.place.shown, version=version, newest=FORMAT)
            return parse_metadata(fields)
        except (ValueError, KeyError) as error:
            raise StoreDamaged(
                path=self.place.shown, detail=f"what it says of itself is not readable ({error})"
            ) from None

    def apply(self, wire: RespConnection, words: list[str]) -> bytes:
        """What the server says to a step. Errors are those of redis-py."""
        said: bytes = wire.run_script(self._apply, words)
        return said

    def amend(self, wire: RespConnection, new: StoreMetadata, old: StoreMetadata | None) -> bool:
        """Change what the store says of itself. False: somebody else has, meanwhile."""
        counters = ["sequence", self._find_last_change(wire)] if old is None else []
        before = "" if old is None else old.version
        return bool(wire.run_script(self._amend, [before, str(new.token), *new.fields(), *counters]))

    def _find_last_change(self, wire: RespConnection) -> str:
        """The newest change of a store that says nothing of itself any more: a new one in its place goes on there."""
        newest = wire.ask("ZREVRANGE", self.keys[2], "0", "0", "WITHSCORES")
        return str(int(newest[1])) if newest else "0"

    def read_session_expiries(self, wire: RespConnection) -> dict[str, float]:
        """When each session runs out, if it is not renewed; in the store's time."""
        words = wire.ask("ZRANGE", self.keys[3], "0", "-1", "WITHSCORES")
        return {name.decode(): float(at) for name, at in zip(words[::2], words[1::2], strict=True)}

    def schedule_expiry(self, wire: RespConnection, session: str, was: float | None, at: float) -> None:
        """Let a session run out then, and no more at the instant it *was* to, unless it was renewed meanwhile."""
        wire.run_script(self._until, [session, "" if was is None else repr(was), repr(at)])

    def correct_expiry(
        self, wire: RespConnection, sessions: Iterable[StoreSession], too_far: Sequence[StoreSession], now: float
    ) -> None:
        """Let those of *sessions* that are *too_far*, or have no expiry, run out after their time to live.

        One lasts too long if the server's clock was set back while no process was there to notice; one has no expiry
        if part of what the server knew is gone. *now* is in the store's time.
        """
        try:
            ends_at = self.read_session_expiries(wire)
            for session in sessions:
                if session in too_far or session.id not in ends_at:
                    self.schedule_expiry(wire, session.id, ends_at.get(session.id), now + session.ttl)
        except FAILURES as error:
            raise self.failed(error) from None
