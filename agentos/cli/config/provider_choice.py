"""Let a run use the keys of one provider: an item gets any key of its run, and its worker calls one provider.

A key of another would be sent to that provider's host. Keys that ``--keys`` or ``keys`` of ``[run]`` names are used as
named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ..exit_codes import ExitCode
from ..usage_error import UsageError

# A key, as far as the choice goes: its provider, None if unknown, and its name.
OwnedKey = tuple[str | None, str]

_UNKNOWN: Final = "unknown"
_MOST_NAMED: Final = 3


def require_one_provider(keys: Iterable[OwnedKey]) -> None:
    """Raise UsageError, with the words to type, if it is open whose keys a run is to use."""
    groups = _group(keys)
    if len(groups) < 2:
        return
    known = [provider for provider in groups if provider != _UNKNOWN]
    hint = f"choose one: {' or '.join(f'--provider {provider}' for provider in known)}\n"
    hint += f'or for every run, in agentos.toml under [run]: provider = "{known[0]}"'
    if _UNKNOWN in groups:
        hint += (
            f'\nor say whose {groups[_UNKNOWN][0]} is: provider = "..." in its [[credentials]], or name it with --keys'
        )
    raise UsageError(f"the keys are of several providers ({_describe(groups)}), and a run uses those of one", hint)


def find_mixed_warning(keys: Iterable[OwnedKey]) -> str | None:
    """Return the warning for named keys of several providers; None if they are of one."""
    groups = _group(keys)
    if len(groups) < 2:
        return None
    from ...providers.key_owner import ANY_PROVIDER

    first = next(provider for provider in groups if provider != _UNKNOWN)
    return (
        f"the named keys are of several providers ({_describe(groups)}); an item gets any of them, whichever "
        f"provider it calls. --provider {first} takes only those of {first}; --provider {ANY_PROVIDER} says that you "
        "mean it"
    )


def build_none_left_error(keys: Iterable[OwnedKey], provider: str, where: str) -> UsageError:
    """Return the error for a provider that has none of the selected keys."""
    return UsageError(
        f"{where}: none of the keys is one of {provider}; they are of {_describe(_group(keys))}",
        f'name keys of {provider} with --keys; if one of these is, say so: provider = "{provider}" in its '
        "[[credentials]]",
        ExitCode.NO_CREDENTIAL,
    )


def _describe(groups: dict[str, list[str]]) -> str:
    """Return the providers with the names of their keys: ``openai: a, b; anthropic: c``."""
    return "; ".join(f"{provider}: {_listed(names)}" for provider, names in groups.items())


def _group(keys: Iterable[OwnedKey]) -> dict[str, list[str]]:
    """Return the names of the keys by provider, the unknown ones last."""
    groups: dict[str, list[str]] = {}
    for provider, name in sorted(keys, key=lambda key: key[0] is None):
        groups.setdefault(provider or _UNKNOWN, []).append(name)
    return groups


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
