"""Parse the ``[[credentials]]`` of a configuration file."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from ..usage_error import UsageError
from .run_options import OURS, BadValue, Kind, flag, key_variable, shown, slots_number, text, unknown, variable

if TYPE_CHECKING:
    from ...pool.limit import Limit

SOURCES: Final = ("env", "file", "command")

_IN_CLEAR: Final = re.compile(r"(?:.*_)?(?:secret|key|api_?key|token|password|passwd|credential)", re.IGNORECASE)
_VARIABLE_IN_CLEAR: Final = re.compile(r"(?:.*_)?(?:API_?KEY|SECRET|SECRET_KEY|TOKEN|PASSWORD)", re.IGNORECASE)
_INSTEAD: Final = (
    'name where it is instead: env = "OPENAI_API_KEY", file = "path", or command = ["pass", "show", "acme"]'
)
_NAME: Final = re.compile(r"[^\s,:/\\]+")

# Fields that only a trusted file may set, with the error for other files.
_OWN_ONLY: Final[Mapping[str, str]] = {
    "command": "is not run: its author could run commands on your machine",
    "extra_env": "is not set: by variables such as PATH its author could run commands on your machine",
    "base_url": "is not used: its author could receive your key",
}
_THIS_MACHINE: Final = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?", re.IGNORECASE)
NOT_FOR_KEYS: Final = (
    "must end in KEY, TOKEN or SECRET here: through other variables its author could run commands on your machine"
)
OUT_OF_FOLDER: Final = "leads out of the folder of this file: its author could have any file of yours sent as a key"
IN_YOUR_OWN: Final = "put it into agentos.toml in your own configuration folder, or name this file with --config"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file that was read. *trusted*: the user named it, or it is in the user's own folder."""

    path: Path
    label: str  # its name in messages
    trusted: bool
    lines: Mapping[tuple[str | int, ...], int]

    def describe_location(self, *way: str | int) -> str:
        """Return "agentos.toml, line 12" for the value at *way*, or the nearest known line above it."""
        for length in range(len(way), 0, -1):
            line = self.lines.get(way[:length])
            if line is not None:
                return f"{self.label}, line {line}"
        return self.label


@dataclass(frozen=True, slots=True)
class CredentialEntry:
    """One credential of a configuration file."""

    name: str
    source: Literal["env", "file", "command"]
    place: str | list[str]  # the variable, the path as written, or the command
    where: str  # "agentos.toml, line 12"
    folder: Path  # paths are relative to it
    env_key: str | None = None
    quota: str | None = None
    slots: int | Literal["auto"] | None = None  # None: as the run chooses
    rpm: float | None = None
    tpm: float | None = None
    rpd: float | None = None
    base_url: str | None = None
    hosts: tuple[str, ...] = ()
    provider: str | None = None
    extra_env: Mapping[str, str] | None = None
    disabled: bool = False
    trusted: bool = True  # like its file

    def stated(self) -> dict[str, Any]:
        """Return the arguments of ``Credential`` besides the secret."""
        return {
            "name": self.name,
            "quota": self.quota,
            "slots": self.slots or 1,
            "rpm": self.rpm,
            "tpm": self.tpm,
            "rpd": self.rpd,
            "base_url": self.base_url,
            "hosts": self.hosts,
            "provider": self.provider,
            "env": self.extra_env,
        }

    def limits(self) -> tuple[Limit, ...]:
        """Return the limits of the entry."""
        from ...pool.credential import Credential

        return Credential("stands for the secret", rpm=self.rpm, tpm=self.tpm, rpd=self.rpd).limits


# -- what a field must be ---------------------------------------------------------------------------------------------


def _amount(value: Any, _from_text: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise BadValue(f"must be a number above zero, not {shown(value)}")
    return value


def _name(value: Any, _from_text: bool = False) -> str:
    # It is typed after --keys, where a comma separates names and a colon marks a source.
    if not isinstance(value, str) or not _NAME.fullmatch(value) or not value.isprintable() or len(value) > 64:
        raise BadValue("must be a name of at most 64 characters, without spaces, commas, colons and slashes")
    return value


def _hosts(value: Any, _from_text: bool = False) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(host, str) for host in found):
        raise BadValue('must be a list of host names, such as ["api.example.com"]')
    return tuple(found)


def _command(value: Any, _from_text: bool = False) -> str | list[str]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not given or not all(isinstance(word, str) and word for word in given):
        raise BadValue('must be a command and its arguments, such as ["pass", "show", "acme"]')
    return value if isinstance(value, str) else list(given)


def _path(value: Any, _from_text: bool = False) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise BadValue("must be the path of a file that holds the secret")
    return value


def _variables(value: Any, _from_text: bool = False) -> dict[str, str]:
    if not isinstance(value, dict):
        raise BadValue('must be a table of variables, such as { OPENAI_ORG_ID = "org-1" }')
    for name, setting in value.items():
        if variable(name).startswith(OURS):
            raise BadValue(f"must not set {OURS}... variables: agentos sets them for each item")
        if not isinstance(setting, str) or "\0" in setting:
            raise BadValue(f"must map names of variables to text, and {name} is {shown(setting)}")
    return dict(value)


_FIELDS: Final[Mapping[str, Kind]] = {
    "name": _name,
    "env": variable,
    "file": _path,
    "command": _command,
    "env_key": key_variable,
    "quota": text,
    "slots": slots_number,
    "rpm": _amount,
    "tpm": _amount,
    "rpd": _amount,
    "base_url": text,
    "hosts": _hosts,
    "provider": text,
    "extra_env": _variables,
    "disabled": flag,
}


# -- reading them -----------------------------------------------------------------------------------------------------


def parse_entries(given: Any, source: ConfigFile) -> list[CredentialEntry]:
    """Return the checked entries of one file. Raise UsageError, which names the line."""
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise UsageError(
            f"{source.describe_location('credentials')}: credentials must be a list of tables",
            "begin each of them with a line [[credentials]], in double brackets",
        )
    found: dict[str, CredentialEntry] = {}
    for number, each in enumerate(given):
        entry = _entry(each, number, source)
        if entry.name in found:
            raise _taken(entry, found[entry.name], "give each credential a name of its own")
        found[entry.name] = entry
    return list(found.values())


def require_not_replaced(entry: CredentialEntry, known: Mapping[str, CredentialEntry]) -> None:
    """Raise UsageError for an entry of an untrusted file that would replace one of the user's own."""
    other = known.get(entry.name)
    if other is not None and other.trusted and not entry.trusted:
        raise _taken(
            entry, other, "leave one of them out, or give it another name; with --config FILE that file alone is read"
        )


def _taken(entry: CredentialEntry, other: CredentialEntry, hint: str) -> UsageError:
    return UsageError(f"{entry.where}: the name {entry.name} is taken by {other.where}", hint)


def _entry(given: Mapping[str, Any], number: int, source: ConfigFile) -> CredentialEntry:
    fields = dict(given)
    if isinstance(fields.get("env"), dict):  # a table: extra variables; text: the variable of the secret
        if "extra_env" in fields:
            _refuse(source, number, "extra_env", "has the same meaning as env here; keep one of the two")
        fields["extra_env"] = fields.pop("env")
    checked = {field: _checked(field, value, number, source) for field, value in fields.items()}
    kinds = [kind for kind in SOURCES if kind in checked]
    if len(kinds) != 1:
        problem = "does not say where the secret is" if not kinds else f"names two secrets, by {' and by '.join(kinds)}"
        _refuse(source, number, "", problem, _INSTEAD if not kinds else "keep one of them")
    kind = kinds[0]
    if not source.trusted:
        _require_harmless(checked, number, source)
    place = checked.pop(kind)
    for other in SOURCES:
        checked.pop(other, None)
    if "name" not in checked:
        checked["name"] = _default_name(kind, place, number, source)
    entry = CredentialEntry(
        source=kind,
        place=place,
        where=source.describe_location("credentials", number),
        folder=source.path.parent,
        trusted=source.trusted,
        **checked,
    )
    _require_good(entry, number, source)
    return entry


def _checked(field: str, value: Any, number: int, source: ConfigFile) -> Any:
    if field not in _FIELDS:
        if _IN_CLEAR.fullmatch(field):
            _refuse(source, number, field, "holds a secret in clear, which does not belong in this file", _INSTEAD)
        near = get_close_matches(field, _FIELDS, 1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_FIELDS)}"
        raise UsageError(
            f"{source.describe_location('credentials', number, field)}: "
            f"{unknown(field, f'credentials[{number + 1}].')}",
            hint,
        )
    try:
        checked = _FIELDS[field](value, False)
    except BadValue as error:
        _refuse(source, number, field, str(error), _INSTEAD if field in SOURCES else None)
    if field == "extra_env":
        for name in checked:
            if _VARIABLE_IN_CLEAR.fullmatch(name):
                problem = f"holds a secret in clear, as {name}" if name.isupper() else "holds a secret in clear"
                _refuse(source, number, field, problem, "a secret is given by env, file or command, and env_key")
    return checked


def _require_harmless(checked: Mapping[str, Any], number: int, source: ConfigFile) -> None:
    from ...pool.secret_sources import is_for_keys

    for field, problem in _OWN_ONLY.items():
        if field in checked:
            _refuse(source, number, field, problem, IN_YOUR_OWN)
    if not all(map(_THIS_MACHINE.fullmatch, checked.get("hosts", ()))):
        _refuse(source, number, "hosts", _OWN_ONLY["base_url"], IN_YOUR_OWN)
    if "env_key" in checked and not is_for_keys(checked["env_key"]):
        _refuse(source, number, "env_key", NOT_FOR_KEYS, IN_YOUR_OWN)
    if "file" in checked and not is_within(source.path.parent, checked["file"]):
        _refuse(source, number, "file", OUT_OF_FOLDER, IN_YOUR_OWN)


def is_within(folder: Path, path: str) -> bool:
    """Return whether *path*, links resolved, is inside *folder*. A path that begins with ``~`` is not."""
    inside = Path(os.path.realpath(folder))
    return not path.startswith("~") and Path(os.path.realpath(inside / path)).is_relative_to(inside)


def _default_name(kind: str, place: Any, number: int, source: ConfigFile) -> str:
    from ...pool.secret_sources import derive_name, displayable_name

    if kind == "env" and displayable_name(place) != displayable_name(""):
        return derive_name(place)
    _refuse(source, number, "", "has no name", 'give it one: name = "alice"')


def _require_good(entry: CredentialEntry, number: int, source: ConfigFile) -> None:
    """Raise UsageError for what only a complete credential shows: a bad address, a limit that admits nothing."""
    from ...pool.credential import Credential

    try:
        Credential("stands for the secret", **entry.stated())
    except ValueError as error:
        argument = re.match(r"\w+", str(error))
        field = argument[0] if argument is not None and argument[0] in _FIELDS else ""
        field = "extra_env" if field == "env" else field
        problem = str(error).removeprefix(argument[0]).lstrip(": ") if argument is not None and field else str(error)
        _refuse(source, number, field, problem.removeprefix("amount "))


def _refuse(source: ConfigFile, number: int, field: str, problem: str, hint: str | None = None) -> NoReturn:
    # Counted from one, as people do.
    what = f"credentials[{number + 1}]" + (f".{field}" if field else "")
    way: tuple[str | int, ...] = ("credentials", number, field) if field else ("credentials", number)
    if field == "extra_env" and way not in source.lines:
        way = ("credentials", number, "env")
    raise UsageError(f"{source.describe_location(*way)}: {what} {problem}", hint)


def require_same_limits(entries: list[CredentialEntry]) -> None:
    """Raise UsageError if credentials of one quota state different limits."""
    first: dict[str, CredentialEntry] = {}
    for entry in entries:
        if entry.quota is None or entry.disabled:
            continue
        other = first.setdefault(entry.quota, entry)
        if set(other.limits()) != set(entry.limits()):
            raise UsageError(
                f"{entry.where}: the limits of {entry.name} are not those of {other.name} ({other.where}), "
                f"with which it shares the quota {entry.quota}",
                "limits belong to the quota: state the same rpm, tpm and rpd for both",
            )
