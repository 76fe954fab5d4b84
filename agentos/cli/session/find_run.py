"""Find the base folder of runs, and the run that a name, prefix or path refers to."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..usage_error import UsageError

if TYPE_CHECKING:
    from ...util.private_folder import Accept, PrivateFolder, UnsafePath

DEFAULT_BASE: Final = ".agentos"
BASE_VARIABLE: Final = "AGENTOS_BASE_DIR"
LATEST: Final = "latest"

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class BaseFolder(os.PathLike[str]):
    """The folder that contains the runs, and the part of its path that the user has named.

    Links below the folder ``below`` may have come with a repository, and are followed only if they are trusted. With
    None the user named the whole of ``path``, and links in it are trusted.
    """

    path: Path
    below: Path | None = None

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)


def base_folder(flag: str | None, environ: Mapping[str, str] = os.environ) -> BaseFolder:
    """Return the base folder: ``--dir``, else AGENTOS_BASE_DIR, else agentos.toml, else ``.agentos`` here."""
    given = flag or environ.get(BASE_VARIABLE)
    return BaseFolder(Path(given).expanduser()) if given else _configured(environ)


def open_folder(base: BaseFolder, names: Sequence[str], accept: Accept, *, make: bool = False) -> PrivateFolder:
    """Open the folder at the path *names* below *base*; with *make*, create missing folders as private ones.

    Every folder on the path must be owned by this user, not a link, and not writable by others; *accept* is called for
    one that is not. A new base folder is hidden from git. Raise UnsafePath or OSError.
    """
    from ...util.private_folder import PrivateFolder, UnsafePath

    path = Path(os.path.abspath(base.path))
    if base.below is not None and not path.is_relative_to(base.below):
        raise UnsafePath(path, f"is not in {base.below}")
    if base.below is None:
        if make and not path.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            with PrivateFolder.at(path.parent) as parent:
                _make(parent, path.name, hidden=True)
        way, hidden = list(names), None
    else:
        inside = path.relative_to(base.below).parts
        way, hidden = [*inside, *names], len(inside) - 1
    folder = PrivateFolder.at(base.below or path, accept=accept)
    try:
        if base.below is None:
            folder.require_own(chosen=True)
        for place, name in enumerate(way):
            if make:
                _make(folder, name, hidden=place == hidden)
            outer, folder = folder, folder.enter(name)
            outer.close()
    except BaseException:
        folder.close()
        raise
    return folder


def _make(folder: PrivateFolder, name: str, *, hidden: bool) -> None:
    if folder.make(name) and hidden:
        with folder.enter(name) as made:
            os.close(_written(made.create(".gitignore", 0o644), b"*\n"))


def _written(file: int, content: bytes) -> int:
    os.write(file, content)
    return file


def build_run_path(base: Path | BaseFolder, name: str) -> Path:
    """Return the folder of the run *name*, which need not exist."""
    return Path(base) / "runs" / name


def list_runs(base: BaseFolder) -> list[Path]:
    """Return the folders of all runs in *base*, links included, the most recently changed first."""
    from ...runs.report.run_summary import find_last_change

    try:
        with open_folder(base, ["runs"], accepted_to_read()) as folder:
            names = folder.names()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unlisted(base, error) from None
    folders = [build_run_path(base, name) for name in names]
    return sorted(filter(_is_run, folders), key=find_last_change, reverse=True)


def _unlisted(base: BaseFolder, error: OSError) -> UsageError:
    from ...util.private_folder import UnsafePath

    if isinstance(error, UnsafePath):
        return build_link_error(error)
    return UsageError(f"the runs in {base} cannot be listed: {error.strerror}")


def accepted_to_read() -> Accept:
    """Return a check that accepts folders of any owner for reading, but only trusted links."""
    from ..config.trusted_runs import TrustedRuns

    known = TrustedRuns()
    return lambda unsafe: not unsafe.is_link or known.accepts(unsafe)


def build_link_error(unsafe: UnsafePath) -> UsageError:
    """Return the error for an untrusted link on the path of a run."""
    return UsageError(
        f"{unsafe}: such a link is not followed, as it may have come with a repository",
        f"name the folder that it leads to with --dir, or use the link from now on: agentos trust {unsafe.filename}",
    )


def require_no_link(base: BaseFolder, folder: Path) -> None:
    """Raise UsageError if the run *folder* in *base* is behind a link that the user has neither named nor trusted.

    A run that was given as a path was named by the user.
    """
    from ...util.private_folder import UnsafePath

    if folder.parent.parent != base.path:
        return
    try:
        open_folder(base, ["runs", folder.name], accepted_to_read()).close()
    except UnsafePath as unsafe:
        raise build_link_error(unsafe) from None
    except OSError:
        pass  # reported when it is read


def find_run(base: BaseFolder, run: str | None) -> Path:
    """Return the folder of a run by its name, a prefix of it, or its path; None or "latest" is the newest run.

    Raise UsageError, which suggests the nearest names, or for a run behind a link.
    """
    found = _find(base, run)
    require_no_link(base, found)
    return found


def require_begun(folder: Path) -> None:
    """Raise UsageError for a run that has a folder but no journal, because its first start was refused."""
    if not any(os.path.lexists(folder / name) for name in ("journal.sqlite", "journal.sqlite.head")):
        raise UsageError(f"{folder.name} has not begun: there is no journal in {folder}")


def _find(base: BaseFolder, run: str | None) -> Path:
    if run is not None and run != LATEST:
        return _named(base, run)
    if run is not None and _is_run(build_run_path(base, run)):
        return build_run_path(base, run)
    found = list_runs(base)
    if not found:
        raise UsageError(f"there are no runs in {base}", "agentos run starts one; --dir names another folder")
    return found[0]


def _named(base: BaseFolder, run: str) -> Path:
    is_name = bool(run) and "\0" not in run and Path(run).name == run and run not in (".", "..")
    if is_name and _is_run(build_run_path(base, run)):
        return build_run_path(base, run)
    path = None if "\0" in run else _find_at(Path(run))
    if path is not None:
        return path
    found = list_runs(base)
    names = [folder.name for folder in found]
    beginnings = [folder for folder in found if run and folder.name.startswith(run)]
    if len(beginnings) == 1:
        return beginnings[0]
    if beginnings:
        fitting = ", ".join(folder.name for folder in beginnings[:_SHOWN])
        more = f" and {len(beginnings) - _SHOWN} more" if len(beginnings) > _SHOWN else ""
        raise UsageError(f"{len(beginnings)} runs begin with {run!r}", f"which one: {fitting}{more}?")
    near = get_close_matches(run, names, _SHOWN, 0.5) or names[:_SHOWN]
    hint = f"there is: {', '.join(near)}" if near else "there are no runs yet"
    raise UsageError(f"no run is called {run!r} in {base}", f"{hint} (agentos runs lists them)" if near else hint)


def _find_at(path: Path) -> Path | None:
    """Return the run folder at a path to the folder or to its journal."""
    folder = Path(os.path.abspath(path.parent if path.name == "journal.sqlite" else path))
    return folder if _is_run(Path(os.path.realpath(folder))) else None


def _is_run(folder: Path) -> bool:
    """Return whether the folder contains a run, sound or not, or is a link."""
    try:
        if stat.S_ISLNK(os.lstat(folder).st_mode):
            return os.path.isdir(folder)
        return any(os.path.lexists(folder / name) for name in ("journal.sqlite", "run.json"))
    except (OSError, ValueError):
        return False


def _configured(environ: Mapping[str, str]) -> BaseFolder:
    from ..config.files import load_settings

    try:
        setting = load_settings(None, Path.cwd(), environ).run.get("dir")
    except (UsageError, OSError):
        setting = None  # errors of the configuration matter for starting a run, not for reading one
    if setting is None:
        return BaseFolder(Path(DEFAULT_BASE), Path.cwd())
    folder = setting.folder or Path()
    return BaseFolder(folder / Path(setting.value).expanduser(), None if setting.trusted else folder)
