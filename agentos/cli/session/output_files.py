"""Check the files of ``--results``, ``--joblog`` and ``--report`` before the run.

They are rewritten at each start, so a mistyped name must not overwrite another file.
"""

from __future__ import annotations

import itertools
import os
import shlex
import stat
from typing import TYPE_CHECKING

from ..usage_error import UsageError

if TYPE_CHECKING:
    from .request import RunRequest


def require_own_files(request: RunRequest) -> None:
    """Raise ``UsageError`` for a file that cannot be written, or that was not written by agentos."""
    given = {option: request.option(option) for option in ("results", "joblog", "report")}
    paths = {option: path for option, path in given.items() if path is not None}
    for option, path in paths.items():
        named = f"--{option} {path}"
        if any(_is_same(path, name) for name in _item_files(request)):
            raise UsageError(f"{named} is the file of the items", "name another file for it")
        if any(_is_same(path, descriptor) for descriptor in (1, 2) if _is_file(descriptor)):
            raise UsageError(f"{named} is the file that standard output goes to", "name another file, or use --json")
        _require(option, path, named)
    for one, other in itertools.combinations(paths, 2):
        if _is_same(paths[one], paths[other]):
            hint = "give each a file of its own"
            raise UsageError(f"--{one} and --{other} name the same file, {paths[one]}", hint)


def _item_files(request: RunRequest) -> list[str]:
    kind, name = request.source["kind"], request.source["name"]
    return shlex.split(name) if kind == "files" else [name] if kind == "file" else []


def _require(option: str, path: str, named: str) -> None:
    before = os.path.lexists(path)
    try:
        with open(path, "ab") as file:
            ordinary, length = stat.S_ISREG(os.fstat(file.fileno()).st_mode), os.fstat(file.fileno()).st_size
        if not before:
            os.unlink(path)
        if ordinary and length and not _is_ours(option, path):
            what = {"results": "results", "joblog": "a joblog", "report": "a report"}[option]
            raise UsageError(
                f"{named} is there, and does not hold {what}", "it would be overwritten: name another file"
            )
    except OSError as error:
        raise UsageError(f"{named} cannot be written: {error.strerror}") from None


def _is_ours(option: str, path: str) -> bool:
    with open(path, "rb") as file:
        line = file.readline(1 << 20)
    if option == "report":
        return line == b"<!doctype html>\n"
    if option == "joblog":
        return line.startswith(b"Seq\tHost\t")
    from ...runs.exports.results_file import holds_results

    return holds_results(line)


def _is_same(path: str, other: str | int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.stat(other))
    except (OSError, ValueError):
        return isinstance(other, str) and os.path.abspath(path) == os.path.abspath(other)


def _is_file(descriptor: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:
        return False
