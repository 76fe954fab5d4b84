"""Parse where messages about runs go: ``[[notify]]`` of a configuration file, and ``--notify``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NoReturn

from ...notify.targets import FORMATS, KINDS, LONG, NotifyTarget
from ..usage_error import UsageError
from .credential_entries import IN_YOUR_OWN, ConfigFile
from .run_options import BadValue, unknown, variable
from .typed_durations import parse_duration

NONE: Final = "none"  # sends nothing, whatever the configuration says
_FIELDS: Final = ("command", "webhook", "env", "file", "on", "cooling_after", "stuck_after")
_INSTEAD: Final = 'the address is a secret: name the variable that has it, env = "SLACK_URL", or a file'
_LONGEST_FILE: Final = 8_192


@dataclass(frozen=True, slots=True)
class NotifyEntry:
    """One target as it is configured: the address of a webhook is still in a variable or a file."""

    where: str
    command: tuple[str, ...] = ()
    webhook: str = ""
    env: str | None = None
    file: Path | None = None
    on: tuple[str, ...] = KINDS
    cooling_after: float = LONG
    stuck_after: float = LONG


def parse_notify(given: Any, source: ConfigFile) -> list[NotifyEntry]:
    """Return the checked entries of one file. Raise UsageError, which names the line."""
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise UsageError(
            f"{source.describe_location('notify')}: notify must be a list of tables",
            "begin each of them with a line [[notify]], in double brackets",
        )
    if given and not source.trusted:
        problem = "is not used: its author could run commands on your machine, and would be told of your runs"
        raise UsageError(f"{source.describe_location('notify')}: notify {problem}", IN_YOUR_OWN)
    return [_parse_entry(each, number, source) for number, each in enumerate(given)]


def parse_typed(given: Sequence[str]) -> list[NotifyEntry]:
    """Return the entries of ``--notify``: ``slack:env:NAME``, ``json:file:PATH``, or a command. Raise UsageError."""
    return [_parse_typed(each) for each in given]


def resolve_targets(entries: Sequence[NotifyEntry], environ: MutableMapping[str, str]) -> list[NotifyTarget]:
    """Return the targets, with the addresses of webhooks; their variables are removed from *environ*.

    So no command of the run inherits them. Raise UsageError for an address that is missing, without showing any.
    """
    resolved = [(entry, _find_address(entry, environ)) for entry in entries]
    for entry in entries:
        if entry.env is not None:
            environ.pop(entry.env, None)
    return [
        NotifyTarget(entry.command, url, entry.webhook or "json", entry.on, entry.cooling_after, entry.stuck_after)
        for entry, url in resolved
    ]


def _find_address(entry: NotifyEntry, environ: Mapping[str, str]) -> str:
    if entry.command:
        return ""
    if entry.env is not None:
        url, place = environ.get(entry.env, ""), f"the variable {entry.env}"
    else:
        place = f"the file {entry.file}"
        try:
            with open(entry.file or os.devnull, encoding="utf-8") as file:
                url = file.read(_LONGEST_FILE)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise UsageError(f"{entry.where}: {place} cannot be read: {reason}") from None
    url = url.strip()
    if not url.startswith(("http://", "https://")) or len(url.split()) != 1:
        raise UsageError(f"{entry.where}: {place} does not hold the http address of a webhook")
    return url


def _parse_entry(given: Mapping[str, Any], number: int, source: ConfigFile) -> NotifyEntry:
    where = source.describe_location("notify", number)

    def refuse(field: str, problem: str, hint: str | None = None) -> NoReturn:
        place = source.describe_location("notify", number, field)
        raise UsageError(f"{place}: notify[{number + 1}].{field} {problem}", hint)

    for field in given:
        if field not in _FIELDS:
            near = get_close_matches(field, _FIELDS, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_FIELDS)}"
            if field == "url":
                refuse("url", "does not belong in this file", _INSTEAD)
            raise UsageError(
                f"{source.describe_location('notify', number, field)}: {unknown(field, f'notify[{number + 1}].')}", hint
            )
    command = given.get("command")
    if command is not None:
        words = shlex.split(command) if isinstance(command, str) else command
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            refuse("command", "must be a list of words", 'for example: command = ["notify-send", "agentos"]')
        command = tuple(words)
    webhook = given.get("webhook")
    if webhook is not None and webhook not in FORMATS:
        refuse("webhook", f"must be {', '.join(FORMATS[:-1])} or {FORMATS[-1]}", _INSTEAD)
    if (command is None) == (webhook is None):
        raise UsageError(f"{where}: notify[{number + 1}] needs a command or a webhook, and not both")
    env, file = given.get("env"), given.get("file")
    if webhook is not None and (env is None) == (file is None):
        raise UsageError(f"{where}: notify[{number + 1}] does not say where the address is", _INSTEAD)
    on = given.get("on", list(KINDS))
    if not isinstance(on, list) or not on or not all(kind in KINDS for kind in on):
        refuse("on", f"must be a list of these: {', '.join(KINDS)}")
    patience = {}
    for field in ("cooling_after", "stuck_after"):
        value = given.get(field, LONG)
        if isinstance(value, str):
            value = parse_duration(value, f"{source.describe_location('notify', number, field)}: {field}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            refuse(field, "must be a duration", 'for example: "30m"')
        patience[field] = float(value)
    try:
        env = None if env is None else variable(env, False)
    except BadValue as error:
        refuse("env", str(error), _INSTEAD)
    path = None if file is None else source.path.parent / Path(str(file)).expanduser()
    return NotifyEntry(where, command or (), webhook or "", env, path, tuple(on), **patience)


def _parse_typed(given: str) -> NotifyEntry:
    form, _, rest = given.partition(":")
    kind, _, place = rest.partition(":")
    if form in FORMATS and kind in ("env", "file") and place:
        if kind == "file":
            return NotifyEntry("--notify", webhook=form, file=Path(place).expanduser())
        try:
            return NotifyEntry("--notify", webhook=form, env=variable(place, True))
        except BadValue as error:
            raise UsageError(f"--notify {error}") from None
    if form in FORMATS or "://" in given:
        raise UsageError(
            "--notify: the address of a webhook is a secret, and others can read what is typed",
            "name the variable that has it: --notify slack:env:SLACK_URL; or a file: --notify slack:file:PATH",
        )
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise UsageError(f"--notify: {error}") from None
    if not words:
        raise UsageError("--notify names no command", "for example: --notify 'notify-send agentos'")
    return NotifyEntry("--notify", command=tuple(words))
