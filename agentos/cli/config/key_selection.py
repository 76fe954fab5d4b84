"""Select the credentials of a run by ``--keys`` and read their secrets.

``--keys`` may be repeated, and each may hold several words, separated by commas: ``env:NAME``, ``env:PATTERN*``, the
name of a credential in ``agentos.toml``, or the path of a file (``.toml``: entries; ``.env``: its variables for keys;
else a secret per line).
Without ``--keys``, ``keys`` of ``[run]`` counts, else all credentials of ``agentos.toml``.

A typed file is trusted: its commands are run, and it may be a pipe (``<(...)``). A file that ``AGENTOS_KEYS`` or a
project's file names is not trusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..exit_codes import ExitCode
from ..usage_error import UsageError
from .credential_entries import CredentialEntry, require_not_replaced, require_same_limits
from .files import Settings, expand_path, format_path, read_config_file
from .provider_choice import build_none_left_error
from .run_options import OURS
from .slots_choice import NO_CHOICE, Slots, SlotsChoice

if TYPE_CHECKING:
    from ...pool.credential import Credential
    from ...pool.requests import KeySpec

_ENV: Final = "env:"
_KINDS: Final = "env:NAME, env:NAME*, a file, or a name from agentos.toml"
_TO_ITS_KEY: Final = re.compile(r"(.*(?:KEY|TOKEN|SECRET))(?:_.*|\d+)?")
_LONG_ENOUGH: Final = 8  # to be searched for in other variables: a shorter one could be there by chance


@dataclass(frozen=True, slots=True)
class SelectedKey:
    """One credential, ready for a pool.

    ``env_key`` is the variable in which a command expects it, if known. ``sources`` are the environment variables that
    hold its secret, which no child may inherit. ``where`` is the place of its definition. ``provider`` is None if it is
    unknown.
    """

    credential: Credential
    env_key: str | None
    sources: tuple[str, ...]
    where: str
    provider: str | None = None


@dataclass(frozen=True, slots=True)
class _ChosenKey:
    """A selected credential. Its secret is set only if it had to be read to find the name."""

    entry: CredentialEntry
    secret: str | None = None
    stem: str | None = None  # fixed part of the pattern that matched it


def load_credentials(
    settings: Settings,
    keys: list[str],
    environ: Mapping[str, str],
    *,
    provider: str | None = None,
    provider_from: str = "--provider",
    slots: SlotsChoice = NO_CHOICE,
) -> list[SelectedKey]:
    """Return the credentials to use, in the order of their names; an empty list means that no pool is needed.

    *keys* is what was typed; ``keys`` of ``[run]`` is taken from *settings*, with its trust. Words that are equal to
    those of *settings* count as written there. With *provider*, set by *provider_from*, only the keys of that provider
    are returned, and the secrets of others need not be there. *slots* is the run's choice of slots. Raise UsageError:
    USAGE for bad input, NO_CREDENTIAL for a missing secret.
    """
    from ...pool.secret_sources import SecretUnavailable, require_distinct

    found = _KeySelection(settings, environ).select(keys)
    chosen = [each for each in found if not each.entry.disabled]
    if found and not chosen:
        raise UsageError(
            f"every credential is disabled: {', '.join(each.entry.name for each in found)}",
            "remove disabled = true from one of them, or choose others with --keys",
            ExitCode.NO_CREDENTIAL,
        )
    given: list[tuple[_ChosenKey, str]] = []
    others: list[tuple[str | None, str]] = []
    for each in chosen:
        secret, owner = _read_if_of(each, provider, environ)
        if secret is not None and provider in (None, owner):
            given.append((each, secret))
        else:
            others.append((owner, each.entry.name))
    if others and not given:
        raise build_none_left_error(others, str(provider), provider_from)
    try:
        require_distinct((f"{each.entry.where} ({each.entry.name})", secret) for each, secret in given)
    except SecretUnavailable as error:
        raise UsageError(f"{error.source} {error.problem}", error.advice) from None
    return [_ready(each, secret, environ, slots) for each, secret in given]


def build_specs(
    settings: Settings, keys: list[str], environ: Mapping[str, str]
) -> tuple[list[KeySpec], dict[str, str]]:
    """Return the specifications of the same credentials for reading a store, and their secrets by name.

    A secret that is missing, or that only a command could tell, is left out.
    """
    chosen = [
        each for each in _KeySelection(settings, environ, names_only=True).select(keys) if not each.entry.disabled
    ]
    secrets: dict[str, str] = {}
    for each in chosen:
        if each.entry.source != "command":
            with suppress(UsageError):
                secrets[each.entry.name] = _read_secret(each, environ)
    return [_build_spec(each.entry, settings.value("slots")) for each in chosen], secrets


def _build_spec(entry: CredentialEntry, otherwise: Slots | None) -> KeySpec:
    """Return the specification of a key; a number of slots that is not stated may have been estimated by a run."""
    from ...pool.requests import KeySpec

    slots = entry.slots or otherwise or "auto"
    return KeySpec(entry.name, 1 if slots == "auto" else slots, entry.quota, entry.limits(), auto=slots == "auto")


# -- choosing ---------------------------------------------------------------------------------------------------------


class _KeySelection:
    """Finds the credentials that words name. With *names_only*, a variable need not be set."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], *, names_only: bool = False) -> None:
        self._settings = settings
        self._environ = environ
        self._names_only = names_only
        self._by_name = {entry.name: entry for entry in settings.credentials}
        self._by_variable = {str(entry.place): entry for entry in settings.credentials if entry.source == "env"}

    def select(self, keys: list[str]) -> list[_ChosenKey]:
        """Return each credential once, disabled ones included."""
        found: dict[str, _ChosenKey] = {}
        for each in self._named(keys):
            other = found.setdefault(each.entry.name, each)
            if (other.entry.where, other.entry.place) != (each.entry.where, each.entry.place):
                raise UsageError(
                    f"two credentials are called {each.entry.name}: {other.entry.where} and {each.entry.where}",
                    "give one of them another name, or leave it out",
                )
        require_same_limits([each.entry for each in found.values()])
        return list(found.values())

    def _named(self, keys: list[str]) -> Iterator[_ChosenKey]:
        settings = self._settings
        setting = settings.run.get("keys")
        # Words equal to those of a file count as the file's: repeating them must not add trust.
        if keys and (setting is None or setting.folder is None or keys != setting.value):
            yield from self._words(_parted(keys, settings.cwd), "--keys", settings.cwd, trusted=True)
        elif setting is not None:
            folder = setting.folder or settings.cwd
            yield from self._words(setting.value, setting.where, folder, trusted=setting.trusted)
        else:
            yield from (_ChosenKey(entry) for entry in settings.credentials)

    def _words(self, words: list[str], where: str, folder: Path, *, trusted: bool) -> Iterator[_ChosenKey]:
        for number, word in enumerate(words, start=1):
            # Named by its position: the word itself may be a secret.
            place = f"{where}, word {number}" if len(words) > 1 else where
            if word.startswith(_ENV):
                yield from self._in_environment(word.removeprefix(_ENV), place)
            elif (entry := self._by_name.get(word) or self._by_variable.get(word)) is not None:
                yield self._entry(entry, place)
            else:
                yield from self._in_file(word, place, folder, trusted=trusted)

    def _entry(self, entry: CredentialEntry, place: str) -> _ChosenKey:
        if entry.disabled and not self._names_only:
            raise UsageError(
                f"{place}: {entry.name} is disabled ({entry.where})",
                "remove disabled = true there",
                ExitCode.NO_CREDENTIAL,
            )
        return _ChosenKey(entry)

    def _in_environment(self, pattern: str, place: str) -> Iterator[_ChosenKey]:
        from ...pool.secret_sources import SecretUnavailable, derive_name

        if not re.fullmatch(r"[A-Za-z0-9_*?\[\]!-]+", pattern):
            raise UsageError(
                f"{place}: what follows env: is not the name of a variable", "such as env:OPENAI_API_KEY, or env:ACME_*"
            )
        stem = pattern[:-1].rstrip("_") if pattern.endswith("*") and "*" not in pattern[:-1] else None
        try:
            found = self._variables(pattern)
        except SecretUnavailable as error:
            raise _unavailable(place, error) from None
        for variable, secret in found.items():
            entry = CredentialEntry(derive_name(variable), "env", variable, f"environment variable {variable}", Path())
            yield _ChosenKey(entry, secret, stem)

    def _variables(self, pattern: str) -> Mapping[str, str | None]:
        from ...pool.secret_sources import find_variables, from_env, from_env_pattern

        is_pattern = bool(set("*?[") & set(pattern))
        if self._names_only:
            return dict.fromkeys(find_variables(pattern, self._environ) if is_pattern else [pattern])
        return from_env_pattern(pattern, self._environ) if is_pattern else {pattern: from_env(pattern, self._environ)}

    def _in_file(self, word: str, place: str, folder: Path, *, trusted: bool) -> Iterator[_ChosenKey]:
        for each in self._read(word, place, folder, trusted=trusted):
            require_not_replaced(each.entry, self._by_name)
            yield each

    def _read(self, word: str, place: str, folder: Path, *, trusted: bool) -> Iterator[_ChosenKey]:
        from ...pool.secret_sources import SecretUnavailable, from_env_file, from_file, is_env_file

        cwd = self._settings.cwd
        path = folder / expand_path(word, self._environ)
        if not word or "\0" in word or not _is_there(path):
            raise UsageError(f"{place}: no credential of that name, and no such file", self._hint(word))
        if path.suffix == ".toml":
            yield from (_ChosenKey(entry) for entry in read_config_file(path, trusted=trusted, cwd=cwd)[1])
            return
        try:
            found = (from_env_file if is_env_file(path) else from_file)(path, pipes=trusted)
        except SecretUnavailable as error:
            raise _unavailable(place, error) from None
        for name, secret in found.items():
            where = format_path(path, cwd)
            yield _ChosenKey(CredentialEntry(name, "file", word, where, path.parent, trusted=trusted), secret)

    def _hint(self, word: str) -> str:
        if word in self._environ:
            return f"did you mean {_ENV}{word}?"
        near = get_close_matches(word, self._by_name, 1)
        if near:
            return f"did you mean {near[0]}?"
        known = list(self._by_name)
        names = f" ({', '.join(known[:10])}{', ...' if len(known) > 10 else ''})" if known else ""
        return f"it may be {_KINDS}{names}"


def _parted(keys: list[str], cwd: Path) -> list[str]:
    words: list[str] = []
    for given in keys:
        # A path may contain a comma.
        whole = "," in given and not given.startswith(_ENV) and "\0" not in given and _is_there(cwd / given)
        words.extend([given] if whole else [word.strip() for word in given.split(",")])
    return words


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


# -- fetching ---------------------------------------------------------------------------------------------------------


def _read_if_of(chosen: _ChosenKey, provider: str | None, environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the secret and its provider; no secret if it is one of another provider, without need to read it."""
    from ...providers.key_owner import find_variable_provider

    stated = _find_owner(chosen, "")
    if provider is not None and stated not in (None, provider):
        return None, stated
    try:
        secret = _read_secret(chosen, environ)
    except UsageError:
        named = find_variable_provider(_find_variable(chosen) or "")
        if provider is None or named in (None, provider):
            raise
        return None, named
    return secret, _find_owner(chosen, secret)


def _find_owner(chosen: _ChosenKey, secret: str) -> str | None:
    """Return the provider of a key; without its secret, what the entry states."""
    from ...pool.allowed_hosts import parse_base_origin
    from ...providers.key_owner import find_key_provider

    entry = chosen.entry
    host = None if entry.base_url is None else parse_base_origin(entry.base_url).host
    variable = _find_variable(chosen) if secret else None
    return find_key_provider(secret, stated=entry.provider, host=host, variable=variable)


def _find_variable(chosen: _ChosenKey) -> str | None:
    """Return the variable in which a program expects the key, as stated, else the one that holds it."""
    entry = chosen.entry
    if entry.env_key is None and entry.source == "env" and isinstance(entry.place, str):
        return entry.place
    return _env_key(chosen)


def _read_secret(chosen: _ChosenKey, environ: Mapping[str, str]) -> str:
    from ...pool.secret_sources import SecretUnavailable, from_command, from_env

    entry = chosen.entry
    if chosen.secret is not None:
        return chosen.secret
    try:
        if entry.source == "command":
            return from_command(entry.place, environ)
        if isinstance(entry.place, str):
            return from_env(entry.place, environ) if entry.source == "env" else _only_one(entry, entry.place, environ)
    except SecretUnavailable as error:
        raise _unavailable(f"{entry.where}: {entry.name}", error) from None
    raise AssertionError(entry.source)


def _only_one(entry: CredentialEntry, place: str, environ: Mapping[str, str]) -> str:
    from ...pool.secret_sources import SecretUnavailable, from_file

    found = from_file(entry.folder / expand_path(place, environ))
    if len(found) > 1:
        raise SecretUnavailable(
            source="the file named there",
            problem=f"holds {len(found)} secrets, and an entry is for one",
            advice="choose the file as a whole with --keys FILE, or make a file for each secret",
        )
    return next(iter(found.values()))


def _unavailable(place: str, error: Exception) -> UsageError:
    from ...pool.secret_sources import SecretUnavailable

    assert isinstance(error, SecretUnavailable)  # noqa: S101 - for the type checker
    return UsageError(f"{place}: {error.source} {error.problem}", error.advice, ExitCode.NO_CREDENTIAL)


def _ready(chosen: _ChosenKey, secret: str, environ: Mapping[str, str], slots: SlotsChoice) -> SelectedKey:
    from ...pool.credential import Credential

    entry = chosen.entry
    provider = _find_owner(chosen, secret)
    try:
        stated = entry.stated() | {"provider": provider, "slots": slots.choose(entry.slots, provider)}
        if entry.base_url is None:
            stated["hosts"] = (*entry.hosts, *_find_sdk_hosts(chosen, provider, environ))
        credential = Credential(secret, **stated)
    except ValueError as error:
        raise UsageError(f"{entry.where}: {entry.name if secret not in entry.name else 'it'}: {error}") from None
    return SelectedKey(credential, _env_key(chosen), _find_variables(secret, entry, environ), entry.where, provider)


def _find_sdk_hosts(chosen: _ChosenKey, provider: str | None, environ: Mapping[str, str]) -> list[str]:
    """Return the hosts to which the user has sent the SDK of *provider*, as with OPENAI_BASE_URL.

    Unless the provider is stated, also those of the SDK that reads the key's variable: ANTHROPIC_API_KEY may hold a key
    of a gateway that looks like one of OpenAI's, and that SDK sends it there.
    """
    from ...pool.host_patterns import normalize_host
    from ...providers.dialects import parse_origin
    from ...providers.key_owner import find_base_url_variables, find_variable_provider

    names = [*find_base_url_variables(provider)]
    if chosen.entry.provider is None:
        names += find_base_url_variables(find_variable_provider(_find_variable(chosen) or ""))
    origins = [parse_origin(environ[name]) for name in names if name in environ]
    hosts = [normalize_host(origin.partition("://")[2]) for origin in origins if origin is not None]
    return [host for host in dict.fromkeys(hosts) if host is not None and "*" not in host]


def _find_variables(secret: str, entry: CredentialEntry, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return all environment variables that hold the secret, not only the one it was read from."""
    return tuple(
        variable
        for variable, value in environ.items()
        if value == secret
        or (len(secret) >= _LONG_ENOUGH and secret in value)
        or (entry.source == "env" and variable == entry.place)
    )


def _env_key(chosen: _ChosenKey) -> str | None:
    """Return the variable in which a program expects the key: OPENAI_API_KEY for OPENAI_API_KEY_3, by default."""
    entry = chosen.entry
    if entry.env_key is not None:
        return entry.env_key
    if entry.source == "file" and chosen.secret is not None:  # a line of a file such as OPENAI_API_KEY_3=...
        named = _TO_ITS_KEY.fullmatch(entry.name.upper().replace("-", "_"))
        return None if named is None else named[1]
    if entry.source != "env" or not isinstance(entry.place, str):
        return None
    if chosen.stem and _TO_ITS_KEY.fullmatch(chosen.stem):
        found = chosen.stem
    else:
        match = _TO_ITS_KEY.fullmatch(entry.place)
        found = match[1] if match is not None else chosen.stem or entry.place
    return None if found.startswith(OURS) else found
