"""Parse a Redis URL into a server and a pool, and into a text without secrets. Does not need redis-py."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

_SCHEMES: Final = {
    "redis": "redis",
    "rediss": "rediss",
    "unix": "unix",
    "valkey": "redis",
    "valkeys": "rediss",
}
_DEFAULT_PORT: Final = 6379
_DEFAULT_POOL: Final = "agentos"
_POOL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)
_HOST: Final = re.compile(r"[A-Za-z0-9_.:%-]+", re.ASCII)
_ORDINARY_OPTION: Final = re.compile(r"[a-z_]{1,20}", re.ASCII)
_NO_DATABASE: Final = "its database must be a number, as in redis://host:port/0; a pool is named by ?pool=name"

REDIS_URL: Final = "'redis://host:port/db?pool=name'"


@dataclass(frozen=True, slots=True)
class RedisLocation:
    """A pool on a server. ``shown`` is the URL for people: without user, password and options."""

    shown: str
    pool: str
    url: str = field(repr=False)  # for redis-py
    passwords: tuple[str, ...] = field(default=(), repr=False)  # in that URL: decoded, and as written

    def key(self, name: str) -> str:
        """Return a key of this pool. The part in braces keeps all keys in one slot of a cluster."""
        return f"agentos:{{{self.pool}}}:{name}"

    def exists(self) -> bool:
        """Return True, like a path that exists: the server may have a store."""
        return True


def is_redis_url(text: str) -> bool:
    """Return whether the text begins like a Redis URL."""
    return text.partition("://")[0].lower() in _SCHEMES and "://" in text


def parse_redis_url(text: str) -> RedisLocation:
    """Parse a URL. Raises ValueError, which names the wrong part but shows none of its text."""
    _require(text.isprintable(), "it contains a character that cannot be printed")
    parts, port, options = _parts(text)
    scheme = parts.scheme.lower()
    encrypted = _SCHEMES[scheme] == "rediss"
    pool = options.pop("pool", _DEFAULT_POOL)
    _require(_POOL.fullmatch(pool), "its pool must be 1 to 100 letters, digits, '_', '.' or '-'")
    for name, value in options.items():
        _require(
            _is_known(name), f"{_displayable_option(name)} is not one of those it may have: pool, db and TLS's ssl_..."
        )
        _require(name != "db" or value.isdecimal(), _NO_DATABASE)
        _require(
            encrypted or name == "db",
            f"{_displayable_option(name)} is for TLS, which needs a URL that begins with rediss://",
        )
    if encrypted and options.get("ssl_cert_reqs") != "none":
        options.setdefault("ssl_check_hostname", "true")  # redis-py checks it by default only since version 6
    target, shown = (
        _socket(parts.path, options) if scheme == "unix" else _host(parts.hostname, port, parts.path, options)
    )
    userinfo = parts.netloc.rpartition("@")[0]
    if userinfo:
        target = f"{userinfo}@{target}"
    query = f"?{urlencode(options)}" if options else ""
    of_pool = "" if pool == _DEFAULT_POOL else f"?pool={pool}"
    url = f"{_SCHEMES[scheme]}://{target}{query}"
    written = [parts.password or "", options.get("ssl_password", "")]
    passwords = tuple(dict.fromkeys(filter(None, [unquote(written[0]), *written])))
    return RedisLocation(f"{scheme}://{shown}{of_pool}", pool, url, passwords)


def _parts(text: str) -> tuple[SplitResult, int, dict[str, str]]:
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError("its host cannot be read") from None
    _require(not parts.fragment, "it has a '#'; write one in a password as %23")
    try:
        port = parts.port or _DEFAULT_PORT
    except ValueError:
        raise ValueError("its port must be a number from 1 to 65535") from None
    try:
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise ValueError("what follows its '?' must be such as pool=name") from None
    return parts, port, options


def _require(holds: object, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _is_known(option: str) -> bool:
    """Return whether the option may be set in a URL: those for TLS, which redis-py gets unchanged, and db."""
    return option.startswith("ssl_") or option == "db"


def _displayable_option(option: str) -> str:
    """Return the option's name if it may be shown: it could be something pasted in the wrong place."""
    return f"its option {option!r}" if _ORDINARY_OPTION.fullmatch(option) else "one of its options"


def _socket(path: str, options: dict[str, str]) -> tuple[str, str]:
    _require(path.startswith("/") and len(path) > 1, "it names no socket, as in unix:///run/redis.sock")
    _require("@" not in unquote(path), "its path contains an '@'")
    return path, quote(unquote(path)) + (f" db {options['db']}" if "db" in options else "")


def _host(host: str | None, port: int, path: str, options: dict[str, str]) -> tuple[str, str]:
    database = path.strip("/") or options.pop("db", "0")
    _require(host, "it names no host")
    assert host is not None  # noqa: S101 - for the type checker
    _require(_HOST.fullmatch(host), "its host cannot be read")
    _require(database.isdecimal(), _NO_DATABASE)
    _require("db" not in options, "it names two databases, in its path and with db=")
    name = f"[{host}]" if ":" in host else host
    target = f"{name}:{port}/{int(database)}"
    return target, target
