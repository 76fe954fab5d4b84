"""The tokens that clients present instead of a key: one of the gateway itself, and one for each running item."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Final
from urllib.parse import parse_qsl

from ..costs.usage_log import UsageLog
from ..providers.wire_verdict import WireLog

PREFIX: Final = "sk-agentos-"
MOST_HELD: Final = 64  # requests of one token at once
_SHORTEST: Final = 16
_HEADERS: Final = ("x-api-key", "x-goog-api-key", "api-key")


def is_strong(token: str) -> bool:
    """Return False if *token* is too short, or no header can carry it."""
    return len(token) >= _SHORTEST and token.isascii() and token.isprintable() and " " not in token


def require_strong(token: str) -> str:
    """Return *token*. Raises ValueError if it is not strong."""
    if not is_strong(token):
        raise ValueError(f"token must be at least {_SHORTEST} letters and digits without blanks")
    return token


def new_token() -> str:
    """Return a new random token of 192 bits."""
    return PREFIX + secrets.token_hex(24)


def new_stem() -> str:
    """Return a random beginning of 128 bits that the item tokens of one gateway have in common.

    Whoever redacts it makes all of them worthless.
    """
    return PREFIX + secrets.token_hex(16)


def new_item_token(stem: str) -> str:
    """Return a new random token that begins with *stem*."""
    return stem + secrets.token_hex(8)


class TokenHolder:
    """The holder of a token: an attempt of an item, or whoever knows the gateway's own token."""

    __slots__ = ("attempt", "held", "item_id", "name", "usage_log", "wire")
    _numbers = itertools.count(1)

    def __init__(
        self, item_id: str | None = None, attempt: int | None = None, usage_log: UsageLog | None = None
    ) -> None:
        self.name = f"holder-{next(self._numbers)}"  # unique in this process
        self.item_id = item_id
        self.attempt = attempt
        self.held = 0  # requests in progress
        self.usage_log = usage_log
        self.wire = WireLog()


class TokenTable:
    """The valid tokens. Threads may add and revoke while the gateway looks tokens up.

    Tokens are found by their digest, so that the time of a lookup says nothing about a token. Those that it issues
    begin with :attr:`stem`.
    """

    def __init__(self, own: str | None) -> None:
        self._lock = threading.Lock()
        self._holders: dict[bytes, TokenHolder] = {}
        self.stem = new_stem()
        if own is not None:
            self._holders[_digest(own)] = TokenHolder()

    def issue(self, holder: TokenHolder) -> str:
        """Return a new token for *holder*, valid until it is revoked."""
        token = new_item_token(self.stem)
        self.admit(token, holder)
        return token

    def admit(self, token: str, holder: TokenHolder) -> None:
        """Make *token* valid; a token that a run issued is given again to a gateway that was restarted."""
        with self._lock:
            self._holders[_digest(token)] = holder

    def revoke(self, token: str) -> TokenHolder | None:
        """Make *token* invalid, and return its holder; None if it was not valid."""
        with self._lock:
            return self._holders.pop(_digest(token), None)

    def find(self, token: str) -> TokenHolder | None:
        """Return the holder of *token*; None if it is not valid."""
        return self._holders.get(_digest(token))


def find_presented(headers: Mapping[str, str], query: str) -> Iterator[str]:
    """Yield what a request presents as its key, wherever clients put one."""
    for name in _HEADERS:
        if headers.get(name):
            yield headers[name]
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if value and scheme.lower() == "bearer":
        yield value.strip()
    if "key=" in query:
        yield from (value for name, value in parse_qsl(query) if name == "key")


def is_login(token: str) -> bool:
    """Return True if *token* looks like the login of a subscription: of claude.ai, ChatGPT or Google."""
    return token.startswith(("sk-ant-oat", "ya29.")) or (token.startswith("ey") and token.count(".") == 2)


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
