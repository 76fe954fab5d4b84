"""RespConnection: one connection to the server; sends a command in one piece and reads one reply."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final

from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import NoScriptError, ResponseError
from redis.retry import Retry

from .url import RedisLocation

_READ_AT_ONCE: Final = 1 << 16


def _quiet() -> dict[str, object]:
    """Turn off the maintenance announcements that newer versions of redis-py request."""
    try:
        from redis.maint_notifications import MaintNotificationsConfig
    except ImportError:
        return {}
    return {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}


_QUIET: Final = _quiet()


class LuaScript:
    """A script that the server stores under its digest."""

    def __init__(self, name: str) -> None:
        self.text = files(__package__).joinpath("scripts", name).read_text(encoding="ascii")
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def bind(self, keys: Sequence[str]) -> ScriptCall:
        """Return the script with fixed keys."""
        return ScriptCall(self, ("EVALSHA", self.digest, str(len(keys)), *keys))


class ScriptCall:
    """A script with its keys, encoded."""

    def __init__(self, script: LuaScript, words: tuple[str, ...]) -> None:
        self.script = script
        self._count = len(words)
        self._packed = "".join(map(_packed, words))

    def encode(self, words: Sequence[str]) -> bytes:
        """Return the whole command."""
        parts = [f"*{self._count + len(words)}\r\n{self._packed}"]
        parts += [f"${len(word)}\r\n{word}\r\n" for word in words]
        return "".join(parts).encode("ascii")


APPLY: Final = LuaScript("apply.lua")
AMEND: Final = LuaScript("amend.lua")
UNTIL: Final = LuaScript("until.lua")


class RespConnection:
    """Sends a command and waits *limit* seconds at most for the reply. Raises redis-py's errors; never retries.

    Every argument is ASCII text; the caller encodes other text as JSON.
    """

    def __init__(self, place: RedisLocation, limit: float) -> None:
        made = ConnectionPool.from_url(
            place.url,
            socket_timeout=limit,
            socket_connect_timeout=limit,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            **_QUIET,
        )
        # The pool is used only for parsing the URL: each connection is separate, and never shared.
        self._connection: Any = made.connection_class(**made.connection_kwargs)
        self._connection.connect()

    def set_timeout(self, limit: float) -> None:
        """Set the timeout of later replies."""
        self._connection._sock.settimeout(limit)

    def execute(self, *words: str) -> Any:
        """Send a command and return the reply; text as bytes."""
        packed = "".join([f"*{len(words)}\r\n", *map(_packed, words)]).encode("ascii")
        self._require_open()
        try:
            self._connection.send_packed_command((packed,), False)
            return self._connection.read_response()
        except ResponseError:
            raise  # it is the complete reply
        except BaseException:
            self.close()  # else the rest of this reply would be read as the next one
            raise

    def run_script(self, call: ScriptCall, words: Sequence[str]) -> bytes:
        """Run a script and return its reply, which is always one text. Every step uses it, so it is optimised."""
        packed = call.encode(words)
        try:
            return self._exchange(packed)
        except NoScriptError:
            self.load(call.script)  # the server lost it: it was restarted or flushed
            return self._exchange(packed)

    def load(self, script: LuaScript) -> None:
        """Store a script on the server."""
        self.execute("SCRIPT", "LOAD", script.text)

    def _exchange(self, packed: bytes) -> bytes:
        sock = self._require_open()
        try:
            sock.sendall(packed)
            data: bytes = sock.recv(_READ_AT_ONCE)
            while (end := data.find(b"\r\n")) < 0:
                data += self._receive()
            if data[:1] == b"$":
                whole = end + 2 + int(data[1:end])
                while len(data) < whole + 2:
                    data += self._receive()
                return data[end + 2 : whole]
        except BaseException:
            self.close()  # else the rest of this reply would be read as the next one
            raise
        text = data[1:end].decode("ascii", "replace")
        raise NoScriptError(text) if text.startswith("NOSCRIPT") else ResponseError(text)

    def _require_open(self) -> Any:
        """Return the socket. redis-py would reopen a closed connection."""
        sock = self._connection._sock
        if sock is None:
            raise Disconnected("the connection is closed")
        return sock

    def _receive(self) -> bytes:
        sock = self._connection._sock
        more: bytes = b"" if sock is None else sock.recv(_READ_AT_ONCE)
        if not more:
            raise Disconnected("the server closed the connection")
        return more

    def read_message(self) -> Any:
        """Return the next message of a subscription."""
        return self._connection.read_response()

    def can_read(self) -> bool:
        """Return whether a message has arrived, or the connection has ended."""
        return bool(self._connection.can_read(0))

    def fileno(self) -> int:
        """Return the socket's descriptor, for ``select``."""
        return int(self._connection._sock.fileno())

    def close(self) -> None:
        self._connection.disconnect()


def _packed(word: str) -> str:
    return f"${len(word)}\r\n{word}\r\n"
