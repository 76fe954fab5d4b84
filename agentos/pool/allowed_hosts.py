"""Decide where a key may be sent: to its provider, to the hosts it names, to its base URL, and nowhere else."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from urllib.parse import urlsplit

from ..errors import ForeignHost
from ..providers.key_owner import find_key_provider, find_provider
from .core.records import Labels
from .credential import Credential
from .host_patterns import normalize_host

# Compatible providers: a key of the former may serve a request addressed to the latter, at the key's base URL.
_COMPATIBLE_WITH = {"azure": "openai"}

# Path prefixes of a provider that an SDK's base URL has and a key's base URL may lack.
_USUAL_BASES = {"openai": "/v1", "groq": "/openai/v1", "openrouter": "/api/v1", "xai": "/v1", "cerebras": "/v1"}

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """The destination of a request: scheme, host and port."""

    scheme: str
    host: str
    port: int

    @property
    def provider(self) -> str | None:
        """Return the known provider of this host, if any."""
        return find_provider(self.host)

    @property
    def has_valid_host(self) -> bool:
        """Return True if the host is valid. A proxy may read ``evil.com%2f.example.com`` as another host."""
        return "*" not in self.host and normalize_host(self.host) == self.host

    @property
    def is_local_network(self) -> bool:
        """Return True for this machine or its network, where https is not expected."""
        try:
            return ipaddress.ip_address(self.host).is_private
        except ValueError:
            return "." not in self.host

    def __str__(self) -> str:
        usual = _PORTS.get(self.scheme, 0) == self.port
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" if usual else f"{self.scheme}://{host}:{self.port}"


class AnsweredBy(Enum):
    """Who answered a call that was made with a credential."""

    OWN = "own"  # its provider, its base URL or one of its hosts
    OTHER = "other"  # another provider
    UNKNOWN = "unknown"  # a host that nobody has named


def build_origin(scheme: str, host: str, port: int | None) -> Origin:
    """Build an origin; *port* None is the default port of the scheme."""
    return Origin(scheme, host.removesuffix("."), _PORTS.get(scheme, 0) if port is None else port)


def detect_provider(credential: Credential) -> str | None:
    """Return the provider of a key: as stated, by its base URL, or by the form of its secret; None if unknown."""
    host = None if credential.base_url is None else parse_base_origin(credential.base_url).host
    return find_key_provider(credential.secret.reveal(), stated=credential.provider, host=host)


def is_sendable(credential: Credential) -> bool:
    """Return True if a header can carry the secret. A separate frame, so that no traceback keeps the secret."""
    text = credential.secret.reveal()
    return text.isascii() and text.isprintable() and " " not in text


def has_unknown_provider(credential: Credential) -> bool:
    """Return True if neither the credential nor the form of its secret shows where it may be sent."""
    return not credential.hosts and credential.base_url is None and detect_provider(credential) is None


def may_serve(credential: Credential, place: Origin, assumed: str | None) -> bool:
    """Return True if a request addressed to *place* may be made with *credential*.

    *assumed* is the provider of keys that do not name one. A credential with a base URL is not sent to *place* but to
    its own base: it serves the requests meant for its provider.
    """
    if place.scheme not in _PORTS or not place.has_valid_host or not is_sendable(credential):
        return False
    if _is_named(credential, place):
        return True
    provider = detect_provider(credential)
    if provider is None and has_unknown_provider(credential):
        provider = assumed
    if provider is None:
        return False
    if credential.base_url is None:
        return place.provider == provider and place.scheme == "https"
    return place.provider is not None and place.provider in (provider, _COMPATIBLE_WITH.get(provider))


def _is_named(credential: Credential, place: Origin) -> bool:
    """Return True if the credential names the host, or its base URL is there."""
    if any(_matches(pattern, place) for pattern in credential.hosts):
        return True
    return credential.base_url is not None and parse_base_origin(credential.base_url) == place


def _matches(pattern: str, place: Origin) -> bool:
    if _host_and_port(pattern)[1] is None and place.scheme != "https" and not place.is_local_network:
        return False  # a redirect must not send the key in the clear; to allow that, the credential names the port
    return _matches_host(pattern, place)


def _matches_host(pattern: str, place: Origin) -> bool:
    host, port = _host_and_port(pattern)
    return (port is None or port == place.port) and fnmatchcase(place.host, host)


@lru_cache(maxsize=1024)
def _host_and_port(pattern: str) -> tuple[str, int | None]:
    if pattern.count(":") > 1 and not pattern.startswith("["):
        return pattern, None  # an IPv6 address without brackets
    parts = urlsplit(f"//{pattern}")
    return parts.hostname or pattern, parts.port


@lru_cache(maxsize=1024)
def parse_base_origin(base_url: str) -> Origin:
    """Return the origin of a base URL."""
    parts = urlsplit(base_url)
    return build_origin(parts.scheme, (parts.hostname or "").lower(), parts.port)


@lru_cache(maxsize=256)
def rewrite_target(
    base_url: str, place: Origin, path: bytes, query: bytes, bases: tuple[str, ...] = ()
) -> tuple[Origin, bytes]:
    """Return the origin and target of a request for *path* at *place* with a key that carries *base_url*.

    The key's base replaces that of the SDK: the longest of *bases*, those that keys have at *place*, if the path begins
    with one. Else an overlap of both is kept once: ``/openai/v1`` and ``/v1/chat/completions`` become
    ``/openai/v1/chat/completions``; without an overlap, the usual base of the provider is removed first. A query of the
    base URL, such as Azure's ``api-version``, is added unless it is present.
    """
    parts = urlsplit(base_url)
    base = _steps(base_url)
    steps = path.decode("ascii").split("/")[1:]
    shared = max((len(known) for known in map(_steps, bases) if steps[: len(known)] == known), default=0)
    if not shared:
        shared = next((n for n in range(min(len(base), len(steps)), 0, -1) if base[-n:] == steps[:n]), 0)
    if not shared and base:
        usual = _USUAL_BASES.get(place.provider or "", "").split("/")[1:]
        shared = len(usual) if steps[: len(usual)] == usual else 0
    target = "/".join(["", *base, *steps[shared:]])
    queries = [query.decode("ascii")] if query else []
    there = {pair.partition("=")[0] for pair in queries[0].split("&")} if queries else set()
    queries += [pair for pair in parts.query.split("&") if pair and pair.partition("=")[0] not in there]
    return parse_base_origin(base_url), "?".join([target, *(["&".join(queries)] if queries else [])]).encode("ascii")


def _steps(base_url: str) -> list[str]:
    return [step for step in urlsplit(base_url).path.split("/") if step]


class AllowedHosts:
    """The credentials of a pool that may serve each origin. Each origin is a label that they are given."""

    def __init__(self) -> None:
        self._places: dict[Origin, tuple[str, str]] = {}
        self._bases: dict[Origin, tuple[str, ...]] = {}
        self._based = 0  # the number of credentials at that time
        self._assumed: str | None = None  # the provider of keys that name none: the one that is called first

    def find_labels(self, credential: Credential) -> Labels:
        """Return the labels of the origins known so far that *credential* may serve."""
        return frozenset(label for place, label in self._places.items() if may_serve(credential, place, self._assumed))

    def find_serving(self, place: Origin, credentials: Mapping[str, Credential]) -> list[str]:
        """Return the names of those that may serve *place*. Raises ForeignHost if there is none."""
        assumed = self._assumed
        if assumed is None and not any(detect_provider(credential) for credential in credentials.values()):
            assumed = place.provider
        names = [name for name, credential in credentials.items() if may_serve(credential, place, assumed)]
        if not names:
            raise ForeignHost(
                host=str(place), credentials=tuple(credentials), detail=self._explain_refusal(place, credentials)
            )
        self._assumed = assumed
        return names

    def find_answerer(
        self, credential: Credential, place: Origin, learned: str | None, credentials: Mapping[str, Credential]
    ) -> AnsweredBy:
        """Return who answered at *place*; *learned* is the provider of earlier answers to the credential, if known."""
        base = None if credential.base_url is None else parse_base_origin(credential.base_url)
        if base == place or any(_matches_host(pattern, place) for pattern in credential.hosts):
            return AnsweredBy.OWN
        there = place.provider
        if there is None:
            return AnsweredBy.UNKNOWN
        provider = detect_provider(credential)
        if provider is not None:
            return AnsweredBy.OWN if provider == there else AnsweredBy.OTHER
        assumed = learned or self._assumed
        if assumed is None and not any(detect_provider(one) for one in credentials.values()):
            assumed = there  # keys that say nothing belong to the provider that is called first
        return AnsweredBy.OWN if assumed == there else AnsweredBy.UNKNOWN

    def find_base_urls(self, place: Origin, credentials: Mapping[str, Credential]) -> tuple[str, ...]:
        """Return the base URLs of *credentials* at *place*: an SDK may use one of them."""
        if len(credentials) != self._based:  # their number only grows
            self._bases = {}
            for url in dict.fromkeys(one.base_url for one in credentials.values() if one.base_url is not None):
                there = parse_base_origin(url)
                self._bases[there] = (*self._bases.get(there, ()), url)
            self._based = len(credentials)
        return self._bases.get(place, ())

    def get_label(self, place: Origin) -> tuple[str, str]:
        """Return the label of the credentials that may serve *place*; create it if there is none."""
        return self._places.setdefault(place, ("agentos-to", str(place)))

    def _could_serve(self, place: Origin, credentials: Mapping[str, Credential]) -> bool:
        assumed = self._assumed or place.provider
        return any(may_serve(credential, place, assumed) for credential in credentials.values())

    def _explain_refusal(self, place: Origin, credentials: Mapping[str, Credential]) -> str:
        silent = [name for name, credential in credentials.items() if has_unknown_provider(credential)]
        if not credentials:
            return "the pool has no credentials"
        unsendable = [name for name, credential in credentials.items() if not is_sendable(credential)]
        if len(unsendable) == len(credentials):
            return f"no header can carry the secret of {_listed(unsendable)}: it has blanks, line ends or the like"
        if place.scheme not in _PORTS:
            return (
                f"only http and https go through the pool's transport, not {place.scheme} "
                "(for that: with pool.lease() as lease, and lease.reveal() as the key)"
            )
        lost = [name for name, one in credentials.items() if one.base_url is not None and detect_provider(one) is None]
        if lost:
            return f"whose requests {_listed(lost)} is to serve at its base_url was not said"
        if place.scheme != "https" and self._could_serve(Origin("https", place.host, place.port), credentials):
            return (
                f"it would travel unencrypted (who means that names the port: hosts=[{f'{place.host}:{place.port}'!r}])"
            )
        if place.provider is None:
            return "no credential names it, and no provider that agentos knows is at home there"
        if silent and self._assumed is not None:
            return f"who issued {_listed(silent)} was not said, and they were used for {self._assumed} before"
        if silent:
            return f"who issued {_listed(silent)} was not said, in a pool of several providers"
        return f"no credential is one of {place.provider}"


def _listed(names: list[str], most: int = 3) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
