"""Whose key it is, by its looks, and to which hosts a provider's keys may go."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from .dialects import DEFAULT, DIALECTS

# What a credential may state as its provider.
PROVIDERS: Final = tuple(name for name in DIALECTS if name != DEFAULT.name)

# Beginnings that one provider alone gives to its keys. A bare ``sk-`` is not among them: many do.
_BEGINNINGS: Final = (
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
# The keys OpenAI gave to users rather than to projects have its mark in the middle.
_OPENAI_USER_KEY: Final = re.compile(r"sk-[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}")

# To know an answer by its host a guess will do; to send a key it will not. Under amazonaws.com anybody may have a
# name that begins with "bedrock" (a bucket, a load balancer), but not one that is a service followed by a region.
# A star would also take the dots of such a name.
_REGIONS: Final = tuple(
    f"[a-z][a-z]-{area}{direction}-[0-9]"
    for area in ("", "gov-")
    for direction in (
        *("north", "east", "south", "west", "central"),
        *("northeast", "southeast", "southwest", "northwest"),
    )
)
_STRICTER: Final = {
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
    """The provider that makes keys of this shape; None where the shape does not tell. Never raises."""
    for beginning, provider in _BEGINNINGS:
        if secret.startswith(beginning):
            return provider
    return "openai" if _OPENAI_USER_KEY.fullmatch(secret) else None


@lru_cache(maxsize=256)
def find_provider(host: str) -> str | None:
    """The provider whose keys may go to *host*, which is in lower case; None if it is nobody's we know."""
    for provider in PROVIDERS:
        if any(fnmatchcase(host, pattern) for pattern in find_hosts(provider)):
            return provider
    return None


def find_hosts(provider: str) -> tuple[str, ...]:
    """Where keys of *provider* may go, as patterns for ``fnmatchcase``; nowhere if it is not known. Never raises."""
    stricter = _STRICTER.get(provider)
    if stricter is not None:
        return stricter
    dialect = DIALECTS.get(provider)
    return () if dialect is None else dialect.hosts
