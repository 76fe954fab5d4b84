"""Derive the name of a run from its command and items, so that the same command finds the same folder."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence

from ..usage_error import UsageError

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LONGEST = 80
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[1-9]|lpt[1-9])(?:\..*)?", re.IGNORECASE)
_LONGEST_SLUG = 40
# No digits: nearly every key contains some, and the name is shown everywhere.
_WORD = re.compile(r"[A-Za-z][A-Za-z_-]{0,23}")
_FILE = re.compile(r"([A-Za-z][\w-]{0,30})\.[A-Za-z]{1,4}", re.ASCII)
_RULE = "letters, digits, dots, dashes and underscores, at most 80, the first a letter or digit"


def check_name(name: str) -> str:
    """Return *name* if it is a valid folder name on all systems. Raise ``UsageError``, which says why not."""
    if not name:
        raise _build_error("is empty")
    if os.path.isabs(name) or re.match(r"[A-Za-z]:[\\/]", name):
        raise _build_error("is an absolute path; a run has a name, and --dir sets its folder")
    if ".." in re.split(r"[/\\]", name):
        raise _build_error("leads out of its folder with '..'")
    if "/" in name or "\\" in name:
        raise _build_error("has a path separator in it; --dir sets the folder of runs")
    if len(name) > _LONGEST:
        raise _build_error(f"has {len(name)} characters")
    if not _SAFE.fullmatch(name):
        odd = re.sub(r"[A-Za-z0-9._-]", "", name)
        raise _build_error(f"has {odd[0]!r} in it" if odd else f"begins with {name[0]!r}")
    if name.endswith("."):
        raise _build_error("ends with a dot, which some file systems drop")
    if _RESERVED.fullmatch(name):
        raise _build_error(f"is {name!r}, which is a device on Windows")
    return name


def build_name(
    command: Sequence[str] | None, worker: str | None, source: Mapping[str, str], id_field: str | None = None
) -> str:
    """Return a name built from the worker and the items: readable words, then eight hex digits of a hash of both.

    *source* has ``kind`` and ``name``, as in run.json: the absolute path of a file, the pattern of a glob, the words.
    Raise ``UsageError`` for standard input, which has no identity.
    """
    if source["kind"] == "stdin":
        raise UsageError(
            "items from standard input need --name",
            "it identifies the run when you continue it: agentos run - --name nightly -- ...",
        )
    import json
    from hashlib import blake2b

    work = worker if worker is not None else list(command or ())
    known_by = source["name"]
    if source["kind"] == "files":
        known_by = "\0".join(map(os.path.abspath, shlex.split(known_by)))
    elif source["kind"] != "words" and os.path.lexists(known_by):
        known_by = os.path.abspath(known_by)
    else:
        # Words and patterns depend on the current folder, and runs of several folders may share a base folder.
        known_by = f"{os.getcwd()}\0{known_by}"
    identity = json.dumps([work, source["kind"] == "words", known_by, id_field])
    digest = blake2b(identity.encode(), digest_size=4).hexdigest()
    return f"{_slug(command or (), worker)}-{digest}"


def _slug(command: Sequence[str], worker: str | None) -> str:
    if worker is not None:
        module, _, function = worker.rpartition(":")
        stem = os.path.basename(module).removesuffix(".py").rpartition(".")[2]
        words = [stem] if stem == function else [stem, function]
    else:
        words = _find_significant_words(command)
    slug = "-".join(filter(None, (re.sub(r"[^a-z0-9_]+", "-", word.lower()).strip("-_") for word in words)))
    return slug[:_LONGEST_SLUG].rstrip("-_") or "run"


def _find_significant_words(command: Sequence[str]) -> list[str]:
    """Return the program and its first significant argument: ``python-summarize``, ``git-clone``."""
    from ...runs.commands.embedded_code import find_code, find_program

    if not command:
        return []
    at = find_program(command)
    program = os.path.basename(command[at])
    code = find_code(command)
    for index in range(at + 1, len(command)):
        element = command[index]
        if index in code.languages:
            break
        if index in code.scripts:
            element = element.split()[0] if element.strip() else ""
        base = os.path.basename(element)
        file = _FILE.fullmatch(base)
        if file or _WORD.fullmatch(base):
            return [program, file[1] if file else base]
    return [program]


def _build_error(what: str) -> UsageError:
    return UsageError(f"--name {what}", f"a name has {_RULE}")
