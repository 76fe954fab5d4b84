"""A credential as the user states it: a secret with a name and its limits."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NoReturn

from ..providers.key_owner import PROVIDERS
from .core.records import Labels
from .host_patterns import normalize_host
from .limit import Limit
from .secret import Secret


class Credential:
    """One API key, token or account. Only its name is ever shown.

    ``quota`` names what the provider really limits: give the credentials of one organisation or project the same quota
    and the same limits. ``rpm``, ``tpm`` and ``rpd`` are short for the usual limits (requests and tokens per minute,
    requests per day from midnight UTC). ``slots`` is how many leases it allows at once; ``"auto"`` infers that, up to
    64. ``base_url``, ``hosts`` and ``env`` go with the credential to its holder; ``labels`` let a request select
    credentials. ``provider`` names the key's provider, such as ``"azure"``, where its form does not show it.
    """

    __slots__ = ("base_url", "env", "hosts", "labels", "limits", "name", "provider", "quota", "secret", "slots")

    def __init__(
        self,
        secret: str | Secret,
        name: str | None = None,
        slots: int | Literal["auto"] = 1,
        quota: str | None = None,
        limits: Iterable[Limit] = (),
        rpm: float | None = None,
        tpm: float | None = None,
        rpd: float | None = None,
        base_url: str | None = None,
        hosts: Iterable[str] = (),
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, object] | Iterable[str] | None = None,
        provider: str | None = None,
    ) -> None:
        # Checks name the argument and never show the secret or anything that may contain it by mistake.
        self.secret = _secret(secret)
        self.name = _text("name", name)
        self.quota = _text("quota", quota)
        if slots != "auto" and (isinstance(slots, bool) or not isinstance(slots, int) or slots < 1):
            raise ValueError('slots must be a whole number of at least 1, or "auto" to infer the number')
        self.slots: int | Literal["auto"] = slots
        self.limits = _limits(limits, rpm=rpm, tpm=tpm, rpd=rpd)
        self.base_url = _base_url(base_url)
        self.hosts = _hosts(hosts)
        self.env = _env(env)
        self.labels = parse_labels("labels", labels)
        if any(label.startswith("agentos-") for label, _ in self.labels):
            raise ValueError("labels must not begin with agentos-: those are reserved for the pool")
        self.provider = _provider(provider)
        for argument in ("name", "quota"):
            if self.secret.reveal() in (getattr(self, argument) or ""):
                raise ValueError(f"{argument} must not hold the secret: it is shown to people")

    def __repr__(self) -> str:
        facts = [f"name={self.name!r}"] if self.name is not None else []
        if self.slots != 1:
            facts.append(f"slots={self.slots!r}")
        if self.quota is not None:
            facts.append(f"quota={self.quota!r}")
        if self.provider is not None:
            facts.append(f"provider={self.provider!r}")
        facts.extend(repr(limit) for limit in self.limits)
        return f"Credential({', '.join(facts)})"

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError("a credential is not pickled: send its name and resolve it on the other side")


def parse_labels(argument: str, labels: Mapping[str, object] | Iterable[str] | None) -> Labels:
    """Parse labels: ``{"tier": "paid"}``, ``["tier=paid"]`` and ``["paid"]`` are all accepted."""
    if labels is None:
        return frozenset()
    if isinstance(labels, str):
        labels = [labels]
    try:
        if isinstance(labels, Mapping):
            return frozenset((_word(name), str(value)) for name, value in labels.items())
        parted = (_word(label).partition("=") for label in labels)
        return frozenset((name, value) for name, _, value in parted)
    except TypeError:
        raise ValueError(f'{argument} must be words, or a mapping such as {{"tier": "paid"}}') from None


def _word(label: Any) -> str:
    if not isinstance(label, str) or not label:
        raise TypeError
    return label


def _secret(secret: object) -> Secret:
    if isinstance(secret, Secret):
        secret = secret.reveal()
    if not isinstance(secret, str):
        raise ValueError(f"secret must be text, not {type(secret).__name__}")
    if not secret.strip():
        raise ValueError("secret must not be empty")
    return Secret(secret)


def _text(argument: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError(f"{argument} must be printable text, or left out")
    return value


def _limits(limits: Iterable[Limit], **short: float | None) -> tuple[Limit, ...]:
    if isinstance(limits, Limit):
        limits = (limits,)
    stated = list(limits)
    if not all(isinstance(limit, Limit) for limit in stated):
        raise ValueError("limits must be Limit objects, such as Limit('tokens', 200_000)")
    meaning: dict[str, tuple[str, Any]] = {
        "rpm": ("requests", 60.0),
        "tpm": ("tokens", 60.0),
        "rpd": ("requests", "day"),
    }
    for argument, amount in short.items():
        if amount is None:
            continue
        dimension, per = meaning[argument]
        try:
            stated.append(Limit(dimension, amount, per=per))
        except ValueError as error:
            raise ValueError(f"{argument}: {error}") from None
    return tuple(dict.fromkeys(stated))


def _base_url(base_url: object) -> str | None:
    if base_url is None:
        return None
    try:
        parts = urllib.parse.urlsplit(str(base_url))
        good = isinstance(base_url, str) and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    # Some readers of the address drop a line end and others do not, so that they would see different hosts. The same
    # applies to letters beyond ASCII.
    if not good or not str(base_url).isprintable() or not str(base_url).isascii() or " " in str(base_url):
        raise ValueError("base_url must be an http:// or https:// address, without blanks or letters beyond ASCII")
    if parts.username is not None or parts.password is not None:
        raise ValueError("base_url must not carry a user or password; the secret is an argument of its own")
    return str(base_url)


def _hosts(hosts: object) -> tuple[str, ...]:
    given = (hosts,) if isinstance(hosts, str) else hosts
    found = [normalize_host(host) for host in given] if isinstance(given, Iterable) else [None]
    good = tuple(host for host in found if host is not None)
    if len(good) < len(found):
        raise ValueError(
            "hosts must be host names such as api.example.com, localhost:8080 or *.example.com, or addresses, "
            "without scheme or path"
        )
    return good


def _provider(provider: object) -> str | None:
    if provider is None:
        return None
    found = provider.lower() if isinstance(provider, str) else ""
    if found not in PROVIDERS:
        raise ValueError(f"provider must be one of {', '.join(PROVIDERS)}, or left out")
    return found


def _env(env: Mapping[str, str] | None) -> Mapping[str, str]:
    found = dict(env or {})
    for variable, value in found.items():
        if not isinstance(variable, str) or not variable or "=" in variable or "\0" in variable:
            raise ValueError("env must map names of environment variables to text")
        if not isinstance(value, str) or "\0" in value:
            raise ValueError(f"env: the value of {variable} must be text")
    return found
