"""One table per provider, and the functions that find the right one."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache
from urllib.parse import urlsplit

from ..dialect import Dialect
from .anthropic import ANTHROPIC
from .azure import AZURE
from .bedrock import BEDROCK
from .cerebras import CEREBRAS
from .default import DEFAULT
from .gemini import GEMINI
from .github import GITHUB
from .groq import GROQ
from .mistral import MISTRAL
from .openai import OPENAI
from .openrouter import OPENROUTER
from .xai import XAI

__all__ = ["DEFAULT", "DIALECTS", "find_dialect", "is_shared", "parse_host", "parse_origin"]

_TABLES = (OPENAI, AZURE, ANTHROPIC, GEMINI, MISTRAL, GROQ, CEREBRAS, XAI, OPENROUTER, BEDROCK, GITHUB, DEFAULT)
DIALECTS = {table.name: table for table in _TABLES}

_LONGEST_HOST = 253


def parse_host(url: object) -> str:
    """Return the host of a URL, or of an object that has one as text; empty if there is none."""
    text = url if isinstance(url, str) else str(url)
    authority = text[:2048].partition("://")[2] or text[:2048]
    for end in "/?#":
        authority = authority.partition(end)[0]
    host = authority.rpartition("@")[2].lower()
    return host.partition(":")[0][:_LONGEST_HOST]


def parse_origin(url: object) -> str | None:
    """Return the scheme, host and port, unless it is the usual one, of a URL; None if it has no scheme or no host."""
    try:
        parts = urlsplit(str(url)[:2048])
        host, port = (parts.hostname or "")[:_LONGEST_HOST], parts.port
    except ValueError:
        return None
    if not parts.scheme or not host:
        return None
    usual = port is None or (parts.scheme, port) in (("https", 443), ("http", 80))
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{'' if usual else f':{port}'}"


@lru_cache(maxsize=256)
def find_dialect(host: str) -> Dialect | None:
    """Return the dialect of *host*, if it is known."""
    for table in _TABLES:
        if any(fnmatchcase(host, pattern) for pattern in table.hosts):
            return table
    return None


def is_shared(dialect: Dialect, host: str) -> bool:
    """Return whether all customers at *host* share one quota, to which a bare refusal refers."""
    return any(fnmatchcase(host, pattern) for pattern in dialect.shared_hosts)
