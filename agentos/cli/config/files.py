"""Read the settings of ``agentos.toml`` files and of the environment.

With ``--config FILE`` (or ``AGENTOS_CONFIG``) only that file is read. Otherwise the user's own file is read, in
``~/.config/agentos`` (or ``$XDG_CONFIG_HOME/agentos``), and then ``agentos.toml`` in the current folder: its ``[run]``
options win, and its credentials are added to the user's. Variables ``AGENTOS_*`` win over files, and flags over both.

A cloned repository may contain an ``agentos.toml``. So a file is trusted only if the user named it, or keeps it in the
user's own folder. Any other file must not run code, send keys elsewhere, read keys or write outside of its folder, or
replace a credential of the user.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..usage_error import UsageError
from .credential_entries import (
    IN_YOUR_OWN,
    NOT_FOR_KEYS,
    OUT_OF_FOLDER,
    ConfigFile,
    CredentialEntry,
    is_within,
    parse_entries,
    require_not_replaced,
    require_same_limits,
)
from .run_options import (
    HERE,
    PASSWORDS_ELSEWHERE,
    RUN_OPTIONS,
    BadValue,
    build_variable_name,
    find_exposure,
    shown,
    unknown,
)

if TYPE_CHECKING:
    from .notify_entries import NotifyEntry

FILE_NAME: Final = "agentos.toml"
_TABLES: Final = ("run", "credentials", "notify")
_LARGEST: Final = 4 * 1024 * 1024
_IN_A_FILE: Final = "sqlite:///"
_LOCAL: Final = ("sqlite", "memory")

# AGENTOS_ variables that are not options: set for running items, or read by the pool and by other commands.
_NO_OPTIONS: Final = {
    f"AGENTOS_{name}"
    for name in (
        *("RUN_ID", "ITEM", "ITEM_ID", "ITEM_FILE", "ATTEMPT", "SLOT", "OUTCOME", "WORKFLOW_DB"),
        *("CREDENTIAL", "CREDENTIAL_NAME", "BASE_URL", "MARK", "GATEWAY_URL", "GATEWAY_TOKEN"),
        *("HOME", "CONFIG", "CREDENTIAL_LIMIT", "SIMULATE_429", "DEBUG", "NO_COLOR"),
    )
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One option set by a file or the environment: its checked value, and where ("agentos.toml, line 4")."""

    value: Any
    where: str
    trusted: bool = True  # False: set by a project's file
    folder: Path | None = None  # paths in it are relative to it; None: to the current folder


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of files and environment, with warnings for the user."""

    run: dict[str, Setting]
    credentials: list[CredentialEntry]
    cwd: Path
    files: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    notify: tuple[NotifyEntry, ...] = ()

    def value(self, name: str, default: Any = None) -> Any:
        """Return the value of an option, or *default* if it is not set."""
        setting = self.run.get(name)
        return default if setting is None else setting.value


def load_settings(config: Path | None, cwd: Path, environ: Mapping[str, str]) -> Settings:
    """Read all settings. Raise UsageError, which names file and line, or the variable."""
    run: dict[str, Setting] = {}
    entries: dict[str, CredentialEntry] = {}
    files: list[Path] = []
    notify: list[NotifyEntry] = []
    _require_named(config, cwd, environ)
    for path, trusted in _files(config, cwd, environ):
        settings, found, messages = read_config_file(path, trusted=trusted, cwd=cwd)
        files.append(path)
        notify += messages
        run.update(settings)
        for entry in found:
            require_not_replaced(entry, entries)
            entries[entry.name] = entry
    from_environment, warnings = _environment(environ)
    run.update(from_environment)
    credentials = list(entries.values())
    require_same_limits(credentials)
    return Settings(run, credentials, cwd, tuple(files), warnings, tuple(notify))


def read_config_file(
    path: Path, *, trusted: bool, cwd: Path
) -> tuple[dict[str, Setting], list[CredentialEntry], list[NotifyEntry]]:
    """Read one file. *trusted*: the user has chosen it, and it may set anything."""
    given, source = _parsed(path, format_path(path, cwd), trusted)
    for name in given:
        if name not in _TABLES:
            hint = 'the file has a table [run], and a [[credentials]] for each key; "agentos init" writes an example'
            near = get_close_matches(name, [*_TABLES, *RUN_OPTIONS], 1)
            if near:
                where = "" if near[0] in _TABLES else ", under [run]"
                hint = f"did you mean {near[0]}{where}?"
            raise UsageError(f"{source.describe_location(name)}: {unknown(name)}", hint)
    entries = parse_entries(given.get("credentials", []), source)
    messages = []
    if "notify" in given:
        from .notify_entries import parse_notify

        messages = parse_notify(given["notify"], source)
    return _parse_run_table(given.get("run", {}), source), entries, messages


# -- files ------------------------------------------------------------------------------------------------------------


def user_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the user's own configuration folder, or None for a user without a home."""
    chosen = environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(chosen):  # the specification ignores a relative one
        return Path(chosen) / "agentos"
    home = environ.get("HOME") or os.path.expanduser("~")
    return Path(home) / ".config" / "agentos" if os.path.isabs(home) else None


def _files(config: Path | None, cwd: Path, environ: Mapping[str, str]) -> list[tuple[Path, bool]]:
    """Return the files to read, with whether each is trusted; later files win."""
    named = environ.get("AGENTOS_CONFIG") if config is None else config
    if named:
        return [(cwd / expand_path(str(named), environ), True)]
    folder = user_folder(environ)
    own = None if folder is None else folder / FILE_NAME
    project = cwd / FILE_NAME
    found = []
    if own is not None and os.path.lexists(own):
        found.append((own, True))
    if os.path.lexists(project) and not (found and os.path.realpath(project) == os.path.realpath(found[0][0])):
        found.append((project, False))
    return found


def _require_named(config: Path | None, cwd: Path, environ: Mapping[str, str]) -> None:
    """Raise UsageError for a missing file, without showing a name that may be a misplaced secret."""
    named = environ.get("AGENTOS_CONFIG") if config is None else str(config)
    if not named:
        return
    try:
        os.stat(cwd / expand_path(named, environ))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        is_path = named.endswith(".toml") and named.isprintable()
        file = f'"{named}"' if is_path else f"the file named there ({shown(named)})"
        who = "--config" if config is not None else "AGENTOS_CONFIG"
        raise UsageError(f"{who}: {file} cannot be read: {reason}", '"agentos init" writes an example') from None


def expand_path(path: str, environ: Mapping[str, str]) -> Path:
    """Return the path with ``~`` expanded."""
    home = environ.get("HOME")
    if home and (path == "~" or path.startswith("~/")):
        return Path(home + path[1:])
    return Path(os.path.expanduser(path))


def current_folder() -> Path:
    """Return the current folder."""
    try:
        return Path.cwd()
    except OSError:
        raise UsageError("the current folder is gone", "go to another one: cd") from None


def format_path(path: Path, cwd: Path) -> str:
    """Return a path for messages: relative if it is below the current folder."""
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) and path != cwd else str(path)


def _parsed(path: Path, label: str, trusted: bool) -> tuple[dict[str, Any], ConfigFile]:
    import tomllib

    from .toml_lines import find_lines

    try:
        data = _read_bytes(path, trusted)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise UsageError(f"{label} cannot be read: {reason}", '"agentos init" writes an example') from None
    if len(data) > _LARGEST:
        raise UsageError(f"{label} is larger than 4 MiB: it is not an agentos.toml")
    try:
        # As tomllib does for files, so that lines are counted in the same text.
        text = data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{label}, line {line}: not UTF-8", "save the file as UTF-8") from None
    try:
        given = tomllib.loads(text)
        lines = find_lines(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{label}, {_format_toml_error(str(error), text)}", "the file is TOML: see https://toml.io"
        ) from None
    except RecursionError:
        raise UsageError(f"{label} is nested too deeply: it is not an agentos.toml") from None
    return given, ConfigFile(path, label, trusted, lines)


def _read_bytes(path: Path, trusted: bool) -> bytes:
    """Return the contents, at most a little more than is allowed. An untrusted pipe is not waited for."""
    with open(path, "rb", opener=None if trusted else _open_nonblocking) as file:
        if not trusted and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "it is not a regular file")
        return file.read(_LARGEST + 1)


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _format_toml_error(message: str, text: str) -> str:
    """Return tomllib's error with the line in front, without the text of the file: it may be a secret."""
    import re

    problem, _, place = message.rpartition(" (at ")
    line = re.match(r"line (\d+)", place)
    number = int(line[1]) if line else text.count("\n") + 1
    message = re.sub(r"'[^']{5,}'|\"[^\"]{5,}\"", "a name", problem)
    return f"line {number}: {message[:1].lower()}{message[1:]}"


def _parse_run_table(given: Any, source: ConfigFile) -> dict[str, Setting]:
    if not isinstance(given, dict):
        raise UsageError(f"{source.describe_location('run')}: run must be a table", "begin it with a line [run]")
    found = {}
    for name, value in given.items():
        where = source.describe_location("run", name)
        option = RUN_OPTIONS.get(name)
        if option is None:
            near = get_close_matches(name.replace("-", "_"), RUN_OPTIONS, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(RUN_OPTIONS)}"
            raise UsageError(f"{where}: {unknown(name, 'run.')}", hint)
        try:
            found[name] = Setting(option.kind(value, False), where, source.trusted, source.path.parent)
        except BadValue as error:
            raise UsageError(f"{where}: run.{name} {error}", f"for example: {name} = {option.example}") from None
        problem = find_exposure(name, found[name].value)
        if problem is not None:
            raise UsageError(f"{where}: run.{name} {problem}", PASSWORDS_ELSEWHERE)
        problem = None if source.trusted else _find_harm(name, found[name].value, source.path.parent)
        if problem is not None:
            raise UsageError(f"{where}: run.{name} {problem}", IN_YOUR_OWN)
    return found


def _find_harm(name: str, value: Any, folder: Path) -> str | None:
    """Return why a project's file in *folder* may not set this value; None if it is harmless."""
    if name == "env_key":
        from ...pool.secret_sources import is_for_keys

        return None if is_for_keys(value) else NOT_FOR_KEYS
    if (name == "engine" and value != HERE) or (name == "ship_secrets" and value):
        return "is not used: its author could receive your items and your keys"
    if name == "store" and value not in _LOCAL and not value.startswith(_IN_A_FILE):
        return "is not used: its author's server could count and block your keys"
    if name == "store":
        path = value.removeprefix(_IN_A_FILE) if value.startswith(_IN_A_FILE) else None
    else:
        path = value if name in ("dir", "results", "joblog", "report") else None
    if path is not None and not is_within(folder, path):
        return "leads out of the folder of this file: its author could have files written there"
    if name == "keys" and not all(is_within(folder, word) for word in value):
        return OUT_OF_FOLDER
    return None


# -- environment ------------------------------------------------------------------------------------------------------


def _environment(environ: Mapping[str, str]) -> tuple[dict[str, Setting], tuple[str, ...]]:
    twins = {build_variable_name(name): name for name in RUN_OPTIONS}
    found, warnings = {}, []
    for variable in sorted(v for v in environ if v.startswith("AGENTOS_")):
        name = twins.get(variable)
        if name is None:
            if variable not in _NO_OPTIONS:
                near = get_close_matches(variable, [*twins, *_NO_OPTIONS], 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                warnings.append(f"the environment variable {variable} means nothing to agentos{hint}")
        elif environ[variable].strip():  # empty means not set
            # A variable may be set by a project's tools: key files that it names are not trusted as typed ones are.
            # AGENTOS_CONFIG is trusted, because its purpose is to name a trusted file.
            trusted = name != "keys"
            try:
                found[name] = Setting(RUN_OPTIONS[name].kind(environ[variable], True), variable, trusted)
            except BadValue as error:
                raise UsageError(f"{variable} {error}", "set it right, or unset it") from None
    return found, tuple(warnings)
