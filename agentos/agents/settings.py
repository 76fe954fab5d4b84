"""Write the folder of settings that a program needs, from the user's own and the table's values."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .program import SettingsFolder


def write_settings(settings: SettingsFolder, home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Write the settings below *home*, which is created, and return the variable that names it.

    The user's settings are copied with the table's values in them; the other files of the user's folder are linked, so
    that instructions, extensions and commands are found. Settings that are not plain JSON are not copied.
    """
    theirs = Path(environ.get(settings.variable) or environ.get("HOME") or os.path.expanduser("~")) / settings.folder
    ours = home / settings.folder
    ours.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps(_merge(_read(theirs / settings.file), settings.values), indent=2)
    descriptor = os.open(ours / settings.file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    if theirs != ours:
        _link_others(theirs, ours, {settings.file, *settings.private})
    return {settings.variable: str(home)}


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _merge(given: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(given)
    for name, value in values.items():
        inner = merged.get(name)
        if isinstance(value, Mapping):
            merged[name] = _merge(inner if isinstance(inner, Mapping) else {}, value)
        else:
            merged[name] = value
    return merged


def _link_others(theirs: Path, ours: Path, left_out: set[str]) -> None:
    try:
        names = sorted(os.listdir(theirs))
    except OSError:
        return
    for name in names:
        if name not in left_out and not os.path.lexists(ours / name):
            (ours / name).symlink_to(theirs / name)
