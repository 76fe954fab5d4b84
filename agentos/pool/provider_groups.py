"""Group the credentials of a pool by provider: the items of a run use those of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..providers.key_owner import ANY_PROVIDER
from .allowed_hosts import detect_provider
from .core.records import NO_LABELS, Labels
from .credential import Credential

_UNKNOWN: Final = "unknown"
_MOST_NAMED: Final = 3


def label_provider(credential: Credential) -> Labels:
    """Return the label of the credential's provider; none if it is unknown."""
    provider = detect_provider(credential)
    return NO_LABELS if provider is None else _label(provider)


def select_provider(credentials: Mapping[str, Credential], provider: str | None) -> Labels:
    """Return the labels of the credentials that serve the items of a run; none: all of them.

    *provider* is chosen by the caller; None: the only one there. Raises ValueError if there are several, or if none of
    them is that one.
    """
    groups: dict[str, list[str]] = {}
    for name, credential in credentials.items():
        groups.setdefault(detect_provider(credential) or _UNKNOWN, []).append(name)
    if provider == ANY_PROVIDER or (provider is None and len(groups) < 2):
        return NO_LABELS
    there = "; ".join(f"{owner}: {_listed(names)}" for owner, names in groups.items())
    if provider is None:
        known = next(owner for owner in groups if owner != _UNKNOWN)
        raise ValueError(
            f"the pool has credentials of several providers ({there}), and an item gets any of them: choose one with "
            f'provider="{known}", or lease for each call with lease="call"; provider="{ANY_PROVIDER}" is for workers '
            "that look at their key"
        )
    if provider not in groups:
        raise ValueError(f"provider: no credential of the pool is one of {provider}; they are of {there}")
    return NO_LABELS if len(groups) == 1 else _label(provider)


def _label(provider: str) -> Labels:
    return frozenset({("agentos-provider", provider)})


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
