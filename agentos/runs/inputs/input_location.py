"""Determine the kind of an input before reading it."""

from __future__ import annotations

import glob
import os
import re
import shlex
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .file_names import has_items_by_name
from .input_error import InputError

Kind = Literal["file", "files", "folder", "glob", "stdin", "words"]

STANDARD_INPUT = "standard input"
_MOST_FILES = 200  # they stay open
_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class InputLocation:
    """One source of items. ``"stdin"`` is any that can be read only once: standard input, a pipe, ``<(command)``."""

    kind: Kind
    name: str  # as it was typed; for words, their number; for several files, all names
    words: tuple[str, ...] = ()  # the words, or the names of several files

    @property
    def path(self) -> str:
        """The absolute path of the folder or file, which a change of directory does not affect."""
        return os.path.abspath(self.name)


def locate_files(names: Sequence[str], *, named_format: bool) -> InputLocation:
    """Classify several files whose items make one input. Raise ``InputError`` for anything else.

    A shell makes several names of an unquoted pattern: files whose names do not say that they contain items are
    refused unless the format was named.
    """
    if len(names) > _MOST_FILES:
        raise InputError(
            source=f"{len(names)} files", detail=f"at most {_MOST_FILES} can be given", hint="join them: cat"
        )
    for name in names:
        if (kind := locate_input(name).kind) != "file":
            what = {"stdin": "standard input, or a pipe", "glob": "a pattern"}.get(kind, f"a {kind}")
            raise InputError(source=name, detail=f"{what}; only files can be given together")
        if not named_format and not has_items_by_name(name):
            hint = "for their lines: --format text; for their paths: put the pattern in quotes, as in 'src/*.py'"
            raise InputError(source=name, detail="are the lines of these files the items, or their paths?", hint=hint)
    return InputLocation("files", shlex.join(names), tuple(names))


def locate_input(source: str | os.PathLike[str] | Sequence[str]) -> InputLocation:
    """Classify *source*: ``"-"`` (standard input), a file, a folder, a glob pattern, or a sequence of words.

    A name that exists is never taken for a pattern. Raise ``InputError`` if there is nothing of that name.
    """
    if not isinstance(source, (str, os.PathLike)):
        given = tuple(source)
        return InputLocation("words", f"{len(given)} word{'' if len(given) == 1 else 's'}", given)
    name = os.fspath(source)
    if name == "-":
        return InputLocation("stdin", STANDARD_INPUT)
    if not name or "\0" in name:
        raise InputError(source=repr(name), detail="not the name of a file, folder or pattern")
    try:
        mode = os.stat(name).st_mode
    except (FileNotFoundError, NotADirectoryError):
        if _MAGIC.search(name):
            return InputLocation("glob", name)
        raise _missing(name) from None
    except OSError as error:
        raise build_read_error(name, error) from None
    if stat.S_ISDIR(mode):
        return InputLocation("folder", name)
    return InputLocation("file" if stat.S_ISREG(mode) else "stdin", name)


def list_paths(place: InputLocation) -> list[str]:
    """Return the paths that a glob matches, or the files of a folder, sorted. Hidden ones are left out."""
    if place.kind == "glob":
        found = sorted(glob.glob(place.name, recursive=True))
        if not found:
            raise InputError(source=place.name, detail="no path matches this pattern, and no file has this name")
        return found
    try:
        with os.scandir(place.name) as entries:
            seen = [(entry.name, entry.is_file()) for entry in entries]
    except OSError as error:
        raise build_read_error(place.name, error) from None
    files = sorted(os.path.join(place.name, name) for name, is_file in seen if is_file and not name.startswith("."))
    if not files:
        hint = f"for its folders: '{os.path.join(place.name, '*')}', quoted" if seen else None
        raise InputError(source=place.name, detail="no files in this folder", hint=hint)
    return files


def split_words(text: str) -> list[str]:
    """Split a list as typed: ``"a,b,c"``, ``"a b c"``, ``"a, b"``."""
    return [word for word in re.split(r"[,\s]+", text) if word]


def build_read_error(name: str, error: OSError, line: int | None = None) -> InputError:
    """Build the error for a failed read."""
    return InputError(source=name, detail=f"cannot be read ({error.strerror or type(error).__name__})", line=line)


def _missing(name: str) -> InputError:
    folder, base = os.path.split(name)
    try:
        there = os.listdir(folder or ".")
    except OSError:
        return InputError(source=name, detail=f"no such file: there is no folder {folder!r}")
    import difflib  # only after a typing error

    close = difflib.get_close_matches(base, there, n=1)
    hint = f"did you mean {os.path.join(folder, close[0])}?" if close else None
    return InputError(source=name, detail="no such file", hint=hint)
