"""Load the Python function of ``--worker``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ..usage_error import UsageError

_SHAPE = "write it as def work(item, credential): ..., or async def; a parameter named context gets the context"
_EXAMPLE = "name it as package.module:function or path/to/file.py:function"


def load_worker(named: str) -> Callable[..., Any]:
    """Import the function and check that it can be called as a worker.

    Modules of the current folder can be imported, as with ``python -m``; before them those beside a named file, as with
    ``python FILE``.
    """
    place, _, attribute = named.rpartition(":")
    if not place or not attribute:
        raise UsageError(f"--worker {named}: there is no function in it", _EXAMPLE)
    if sys.path[:1] != [""]:
        sys.path.insert(0, "")
    module = _from_file(Path(place), named) if place.endswith(".py") else _from_name(place, named)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"--worker {named}: {place} has no {part!r}", _what_it_has(module))
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"--worker {named}: {attribute} is not a function", _EXAMPLE)
    _require_a_worker(found, named)
    return found  # type: ignore[no-any-return]


def find_journal_name(named: str) -> str | None:
    """Return the worker's name for the journal: the relative path of a file; None for the function's own name."""
    place, _, attribute = named.rpartition(":")
    return f"{os.path.relpath(place)}:{attribute}" if place.endswith(".py") else None


def find_worker_folder(named: str) -> Path | None:
    """Return the folder of a named file, which other machines lack; None for a module, which they may have."""
    place = named.rpartition(":")[0]
    return Path(place).resolve().parent if place.endswith(".py") else None


def _require_a_worker(function: Callable[..., Any], named: str) -> None:
    from ...runs.worker import inspect_worker

    try:
        inspect_worker(function)
    except ValueError as error:
        raise UsageError(f"--worker {named}: {error}".replace("worker_func", "it", 1), _SHAPE) from None


def _from_name(name: str, named: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(f"--worker {named}: there is no module {error.name}", _EXAMPLE) from None
        raise UsageError(
            f"--worker {named}: it needs the module {error.name}, which is not installed here",
            f"install it where agentos is: {sys.executable} -m pip install ...",
        ) from None
    except (Exception, SystemExit) as error:
        raise _build_import_error(named, error) from error


def _from_file(path: Path, named: str) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"--worker {named}: there is no file {path}", _EXAMPLE)
    sys.path.insert(0, str(path.resolve().parent))
    # Under its own name, as if imported: pickles and logs contain the name.
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"--worker {named}: {path} cannot be imported", _EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _build_import_error(named, error) from error
    return module


def _build_import_error(named: str, error: BaseException) -> UsageError:
    """Return the error for a module that raised during import."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    where = next((f"{f.filename}, line {f.lineno}" for f in reversed(frames) if "importlib" not in f.filename), "")
    if isinstance(error, SyntaxError):
        where = f"{error.filename}, line {error.lineno}"
    return UsageError(f"--worker {named}: importing it fails: {type(error).__name__}: {error}", where or None)


def _what_it_has(module: ModuleType) -> str:
    functions = [name for name, thing in vars(module).items() if callable(thing) and not name.startswith("_")]
    own = [name for name in functions if getattr(vars(module)[name], "__module__", None) == module.__name__]
    return f"it has {', '.join(sorted(own)[:8])}" if own else _EXAMPLE
