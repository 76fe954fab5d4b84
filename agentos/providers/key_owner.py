"""Guess the provider of a key by its form, and find the hosts to which its keys may be sent."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from .dialects import DEFAULT, DIALECTS

# Providers that a credential may state.
PROVIDERS: Final = tuple(name for name in DIALECTS if name != DEFAULT.name)

# Prefixes of keys that only one provider uses. A bare ``sk-`` is not among them: many use it.
_PREFIXES: Final = (
    ("sk-ant-", "anthropic"),
    ("sk-or-", "openrouter"),
    ("sk-proj-", "openai"),
    ("sk-svcacct-", "openai"),
    ("sk-admin-", "openai"),
    ("AIza", "gemini"),
    ("AQ.", "gemini"),
    ("gsk_", "groq"),
    ("xai-", "xai"),
    ("csk-", "cerebras"),
    ("ghp_", "github"),
    ("gho_", "github"),
    ("ghu_", "github"),
    ("ghs_", "github"),
    ("github_pat_", "github"),
)
# OpenAI's user keys, as opposed to project keys, have a mark in the middle.
_OPENAI_USER_KEY: Final = re.compile(r"sk-[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}")

# A guess is good enough to recognise an answer by its host, but not to send a key. Anyone may have a name under
# amazonaws.com that begins with "bedrock" (a bucket, a load balancer), but not one that is a service followed by a
# region. A star would also match the dots of such a name.
_REGIONS: Final = tuple(
    f"[a-z][a-z]-{area}{direction}-[0-9]"
    for area in ("", "gov-")
    for direction in (
        *("north", "east", "south", "west", "central"),
        *("northeast", "southeast", "southwest", "northwest"),
    )
)
_STRICT_HOSTS: Final = {
    "bedrock": tuple(
        f"{service}.{region}.amazonaws.com"
        for region in _REGIONS
        for service in (
            "bedrock",
            "bedrock-fips",
            "bedrock-runtime",
            "bedrock-runtime-fips",
            "bedrock-agent",
            "bedrock-agent-fips",
            "bedrock-agent-runtime",
            "bedrock-agent-runtime-fips",
        )
    ),
}


def guess_provider(secret: str) -> str | None:
    """Return the provider of keys of this form; None if the form is ambiguous. Never raises."""
    for prefix, provider in _PREFIXES:
        if secret.startswith(prefix):
            return provider
    return "openai" if _OPENAI_USER_KEY.fullmatch(secret) else None


@lru_cache(maxsize=256)
def find_provider(host: str) -> str | None:
    """Return the provider whose keys may be sent to *host*, in lower case; None if there is none."""
    for provider in PROVIDERS:
        if any(fnmatchcase(host, pattern) for pattern in find_hosts(provider)):
            return provider
    return None


def find_hosts(provider: str) -> tuple[str, ...]:
    """Return the hosts for keys of *provider* as patterns for ``fnmatchcase``; none if unknown. Never raises."""
    strict_hosts = _STRICT_HOSTS.get(provider)
    if strict_hosts is not None:
        return strict_hosts
    dialect = DIALECTS.get(provider)
    return () if dialect is None else dialect.hosts
