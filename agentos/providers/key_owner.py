"""Find the provider of a key, and the hosts to which its keys may be sent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from .dialects import DIALECTS


@dataclass(frozen=True, slots=True)
class KeyForm:
    """How the keys of one provider are recognised."""

    provider: str
    stems: tuple[str, ...]  # of the environment variables in which they are kept
    prefixes: tuple[str, ...] = ()  # of the keys; those that no other provider uses
    hosts: tuple[str, ...] = ()  # where the provider has no dialect of its own


# A bare ``sk-`` is not among the prefixes: many use it, and only the variable tells whose key it is.
KEY_FORMS: Final = (
    KeyForm("openai", ("OPENAI",), ("sk-proj-", "sk-svcacct-", "sk-admin-")),
    KeyForm("azure", ("AZURE_OPENAI",)),
    KeyForm("anthropic", ("ANTHROPIC", "CLAUDE"), ("sk-ant-",)),
    KeyForm("gemini", ("GEMINI", "GOOGLE", "GOOGLE_GEMINI"), ("AIza", "AQ.")),
    KeyForm("mistral", ("MISTRAL", "CODESTRAL")),
    KeyForm("groq", ("GROQ",), ("gsk_",)),
    KeyForm("cerebras", ("CEREBRAS",), ("csk-",)),
    KeyForm("xai", ("XAI",), ("xai-",)),
    KeyForm("openrouter", ("OPENROUTER",), ("sk-or-",)),
    KeyForm("bedrock", ("BEDROCK",), ("ABSK",)),
    KeyForm("github", ("GITHUB", "GH"), ("ghp_", "gho_", "ghu_", "ghs_", "github_pat_")),
    KeyForm("deepseek", ("DEEPSEEK",), hosts=("api.deepseek.com",)),
    KeyForm("together", ("TOGETHER", "TOGETHERAI"), ("tgp_v1_",), ("api.together.xyz", "api.together.ai")),
    KeyForm("fireworks", ("FIREWORKS",), ("fw_",), ("api.fireworks.ai",)),
    KeyForm("perplexity", ("PERPLEXITY", "PERPLEXITYAI"), ("pplx-",), ("api.perplexity.ai",)),
    KeyForm("cohere", ("COHERE",), hosts=("api.cohere.com", "api.cohere.ai")),
)
ANY_PROVIDER: Final = "any"  # instead of one: the keys of all providers
# Providers that a credential may state.
PROVIDERS: Final = tuple(form.provider for form in KEY_FORMS)
# OpenAI's keys have a mark in the middle; by it user keys, which begin with ``sk-``, are recognised.
OPENAI_MARK: Final = "T3BlbkFJ"
_OPENAI_USER_KEY: Final = re.compile(rf"sk-[A-Za-z0-9]{{20}}{OPENAI_MARK}[A-Za-z0-9]{{20}}")

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


def find_key_provider(
    secret: str, *, stated: str | None = None, host: str | None = None, variable: str | None = None
) -> str | None:
    """Return the provider of a key; None if it is unknown. Never raises.

    The first of these that tells: what the user *stated*, the *host* of its base URL, the form of the key, the name of
    the environment *variable* that holds it.
    """
    if stated is not None:
        return stated
    at_host = None if host is None else find_provider(host)
    if at_host is not None:
        return at_host
    by_form = guess_provider(secret)
    return by_form if by_form is not None or variable is None else find_variable_provider(variable)


def guess_provider(secret: str) -> str | None:
    """Return the provider of keys of this form; None if the form is ambiguous. Never raises."""
    for form in KEY_FORMS:
        if form.prefixes and secret.startswith(form.prefixes):
            return form.provider
    return "openai" if _OPENAI_USER_KEY.fullmatch(secret) else None


def find_variable_provider(variable: str) -> str | None:
    """Return the provider that a variable names: openai for ``OPENAI_API_KEY_2``; None if none, or two, are named."""
    words = "_" + re.sub(r"[^A-Z]+", "_", variable.upper()) + "_"
    named = {form.provider for form in KEY_FORMS for stem in form.stems if f"_{stem}_" in words}
    if "azure" in named:
        named.discard("openai")
    return named.pop() if len(named) == 1 else None


def find_base_url_variables(provider: str | None) -> tuple[str, ...]:
    """Return the variables in which the SDK of *provider* looks for another address: ``OPENAI_BASE_URL``."""
    return tuple(f"{stem}_BASE_URL" for form in KEY_FORMS if form.provider == provider for stem in form.stems)


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
    if dialect is not None:
        return dialect.hosts
    return next((form.hosts for form in KEY_FORMS if form.provider == provider), ())
