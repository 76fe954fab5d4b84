"""StoreConnection: the connection for steps, its handshake with the store, and reconnecting.

A step that finds no connection fails at once; one that loses it waits for a new one, no longer than for a reply. The
maintenance thread reconnects while it waits, outside the pool's lock: it connects, and reads which server answers and
the store's metadata.
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
from ...pool.store_protocol import TransientStoreError
from ..process_fairness import StoreSession
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
    """A new connection, with the store's metadata and the server's time."""

    connection: RespConnection
    meta: StoreMetadata
    time_reading: ServerTimeReading


class StoreConnection:
    """Holds the connection for steps. While there is none ``handshake`` is None, and ``why`` is the reason."""

    def __init__(self, place: RedisLocation, server_time: ServerTime, ttl: float) -> None:
        self.place = place
        self.limit = min(_LIMIT, max(_SHORTEST_LIMIT, ttl / 10))
        self.handshake: Handshake | None = None
        self.why = ""
        self.known: Callable[[], KnownStoreState | None] = lambda: None  # what this process remembers of the store
        self.dropped: Callable[[], None] = lambda: None  # called when the connection is lost
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
        """Return the channel that wakes the process of that session."""
        return self.place.key(f"bell:{session.partition('.')[0]}")

    # -- connecting -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect for the first time, retrying transient errors for a moment. Raises StoreError."""
        deadline = time.monotonic() + _INSIST
        while self.handshake is None:
            try:
                self.handshake = self._handshake()
            except TransientStoreError as error:
                if time.monotonic() > deadline:
                    raise build_opening_error(error, self.place.shown) from None
                time.sleep(_FIRST_PAUSE)

    def failed(self, error: Exception) -> TransientStoreError | StoreError:
        """Drop the connection, and return what to raise for *error*."""
        found = translate_error(error, self.place.shown, self.limit)
        self.drop(str(found))
        # Transient now: a person can correct it while the pool waits.
        return TransientStoreError(self.why) if isinstance(found, StoreUnavailable) else found

    def drop(self, why: str) -> None:
        """Close the connection."""
        handshake, self.handshake = self.handshake, None
        self.why = why
        if handshake is not None:
            self._reconnect_at = time.monotonic()
            self._pause = _FIRST_PAUSE
            handshake.connection.close()
            self.dropped()

    def reconnect_delay(self) -> float:
        """Return in how many seconds to call ``reconnect``; infinite if connected."""
        return (
            _FOR_EVER if self.handshake is not None or self.closed else max(0.0, self._reconnect_at - time.monotonic())
        )

    def reconnect(self) -> bool:
        """Connect again, however long that takes. Return False on failure; ``reconnect_delay`` is then the next try."""
        with self._reconnecting:
            if self.handshake is not None or self.closed:
                return self.handshake is not None
            try:
                handshake = self._handshake()
            except (TransientStoreError, StoreError) as error:
                self.why = error.detail if isinstance(error, StoreUnavailable) else str(error)
                self._reconnect_at = time.monotonic() + self._pause
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                return False
            return self._use(handshake)

    def _use(self, handshake: Handshake) -> bool:
        if self.closed:  # closed meanwhile
            handshake.connection.close()
        else:
            self.handshake = handshake
            self.reconnects()
        return not self.closed

    def reconnect_within_step(self) -> bool:
        """Reconnect within the time of one reply, on another thread, because resolving a name may take longer."""
        deadline = time.monotonic() + self.limit
        if self._reconnecting.locked() and self._reconnecting.acquire(timeout=self.limit):  # another thread has tried
            self._reconnecting.release()
        left = deadline - time.monotonic()
        if self.handshake is None and left > 0:  # none has, or only before this failure
            thread = threading.Thread(target=self.reconnect, name="agentos-reconnect", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending
                return False
            thread.join(left)
        return self.handshake is not None

    def close(self) -> None:
        self.closed = True
        self.drop("it is closed")

    # -- handshake --------------------------------------------------------------------------------------------

    def _handshake(self) -> Handshake:
        resp = self.connect()
        try:
            handshake = self.query(lambda: self._reconcile(resp))
            resp.set_timeout(self.limit)
        except BaseException:
            resp.close()
            raise
        return handshake

    def connect(self) -> RespConnection:
        """Open a separate connection. Raises TransientStoreError or StoreError."""
        try:
            return self.query(lambda: RespConnection(self.place, max(self.limit, _LIMIT)))  # it blocks no step
        except (ValueError, TypeError) as error:
            raise build_option_error(error, self.place.shown) from None

    def query(self, call: Callable[[], T]) -> T:
        """Call *call* and translate its errors. Raises TransientStoreError or StoreError."""
        try:
            return call()
        except FAILURES as error:
            raise translate_error(error, self.place.shown, self.limit) from None

    def _reconcile(self, resp: RespConnection) -> Handshake:
        server = self._server(resp)
        for script in (APPLY, AMEND, UNTIL):
            resp.load(script)
        resp.execute("PUBLISH", self.wakeup_channel("nobody"), "")  # else a missing permission would show too late
        for _ in range(_TRIES):
            meta = self.read_meta(resp)
            reading = self.server_time.read(resp)
            activity = self._read_activity(resp, meta, reading.time)
            self._require_no_older_use(meta, activity)
            new = reconcile_metadata(
                meta,
                ServerInfo(server.run, server.uptime, reading.time),
                self.known(),
                ttl=self._ttl,
                activity=activity,
                salt=secrets.token_hex(_SALT_BYTES),
            )
            if new is meta or self.amend(resp, new, meta):
                return Handshake(resp, new, reading)
        raise TransientStoreError(f"other processes keep changing the metadata of {self.place.shown}")

    def _server(self, resp: RespConnection) -> ServerInfo:
        reply = resp.execute("INFO", "server").decode(errors="replace")
        info = dict(line.split(":", 1) for line in reply.splitlines() if ":" in line)
        try:
            version = tuple(int(number) for number in re.findall(r"\d+", info["redis_version"])[:2])
            run, counted = info["run_id"], float(info["uptime_in_seconds"])
        except (KeyError, ValueError) as error:
            detail = f"its answer to INFO is not that of a Redis or Valkey server ({error})"
            raise StoreUnavailable(path=self.place.shown, detail=detail) from None
        if version < _OLDEST:
            detail = f"the server is Redis {info['redis_version']}, and 6.0 or newer is needed (or Valkey)"
            raise StoreUnavailable(path=self.place.shown, detail=detail)
        return ServerInfo(run, self.server_time.uptime(counted), 0.0)

    def _read_activity(self, resp: RespConnection, meta: StoreMetadata | None, hour: float) -> StoreActivity:
        """Return whether other processes seem to use the store, at that time of the server."""
        if meta is not None and resp.execute("ZCARD", self.keys[3]):
            return StoreActivity(True, bool(resp.execute("ZCOUNT", self.keys[3], f"({hour + meta.shift!r}", "+inf")))
        return StoreActivity(listening=bool(resp.execute("PUBSUB", "CHANNELS", self.wakeup_channel("*"))))

    def _require_no_older_use(self, meta: StoreMetadata | None, activity: StoreActivity) -> None:
        if meta is not None and meta.format < FORMAT and activity.in_force:
            detail = (
                f"processes of an older agentos are using it (its format is {meta.format}, this agentos needs "
                f"{FORMAT}): update them, or wait until they have ended; one that was killed counts until its session "
                f"expires, in {meta.longest:g} s at most"
            )
            raise StoreUnavailable(path=self.place.shown, detail=detail)

    def read_meta(self, resp: RespConnection) -> StoreMetadata | None:
        """Read the store's metadata; None if there is no store yet. Raises StoreError if it is not ours."""
        words = [word.decode(errors="replace") for word in resp.execute("HGETALL", self.keys[0])]
        fields = dict(zip(words[::2], words[1::2], strict=True))
        if not fields:
            return None
        if "format" not in fields:
            raise NotAStore(path=self.place.shown, detail=f"its key {self.keys[0]} belongs to another program")
        try:
            version = int(fields["format"])
            if version > FORMAT:
                raise StoreTooNew(path=self.place.shown, version=version, newest=FORMAT)
            return parse_metadata(fields)
        except (ValueError, KeyError) as error:
            raise StoreDamaged(path=self.place.shown, detail=f"its metadata is not readable ({error})") from None

    def apply(self, resp: RespConnection, words: list[str]) -> bytes:
        """Return the server's reply to a step. Raises redis-py's errors."""
        reply: bytes = resp.run_script(self._apply, words)
        return reply

    def amend(self, resp: RespConnection, new: StoreMetadata, old: StoreMetadata | None) -> bool:
        """Change the store's metadata. Return False if another process has changed it meanwhile."""
        counters = ["sequence", self._find_last_change(resp)] if old is None else []
        before = "" if old is None else old.version
        return bool(resp.run_script(self._amend, [before, str(new.token), *new.fields(), *counters]))

    def _find_last_change(self, resp: RespConnection) -> str:
        """Return the newest change of a store that has lost its metadata, where a new one continues."""
        newest = resp.execute("ZREVRANGE", self.keys[2], "0", "0", "WITHSCORES")
        return str(int(newest[1])) if newest else "0"

    def read_session_expiries(self, resp: RespConnection) -> dict[str, float]:
        """Return when each session expires if it is not renewed, in the store's time."""
        words = resp.execute("ZRANGE", self.keys[3], "0", "-1", "WITHSCORES")
        return {name.decode(): float(at) for name, at in zip(words[::2], words[1::2], strict=True)}

    def schedule_expiry(self, resp: RespConnection, session: str, was: float | None, at: float) -> None:
        """Let a session expire *at* that instant, unless its expiry is no longer what it *was*."""
        resp.run_script(self._until, [session, "" if was is None else repr(was), repr(at)])

    def correct_expiry(
        self, resp: RespConnection, sessions: Iterable[StoreSession], too_far: Sequence[StoreSession], now: float
    ) -> None:
        """Let those of *sessions* that are *too_far*, or have no expiry, expire after their TTL.

        A session lasts too long if the server's clock was set back while no process was connected; it has no expiry if
        the server lost data. *now* is in the store's time.
        """
        try:
            ends_at = self.read_session_expiries(resp)
            for session in sessions:
                if session in too_far or session.id not in ends_at:
                    self.schedule_expiry(resp, session.id, ends_at.get(session.id), now + session.ttl)
        except FAILURES as error:
            raise self.failed(error) from None
