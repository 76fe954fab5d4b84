"""Where runs are kept, and which one a person means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from ._errors import Refusal

DEFAULT_BASE: Final = ".agentos"
BASE_VARIABLE: Final = "AGENTOS_BASE_DIR"
LATEST: Final = "latest"

_SHOWN: Final = 5


def base_folder(flag: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder that all is kept in: ``--dir``, else AGENTOS_BASE_DIR, else agentos.toml, else ``.agentos`` here."""
    given = flag or environ.get(BASE_VARIABLE)
    return Path(given).expanduser() if given else _configured(environ)


def make_base(base: Path) -> None:
    """Make *base* if it is not there, hidden from git: logs and results are nobody's source code. Raises OSError."""
    if base.is_dir():
        return
    base.mkdir(parents=True, exist_ok=True)  # another run, started at the same moment, may make it, too
    (base / ".gitignore").write_text("*\n")


def folder_of(base: Path, name: str) -> Path:
    """The folder of the run *name*, whether it is there or not."""
    return base / "runs" / name


def runs_in(base: Path) -> list[Path]:
    """The folders of all runs in *base*, the one that something last happened to first."""
    from ..runs.reporting.brief import last_touched

    try:
        folders = [Path(entry.path) for entry in os.scandir(base / "runs") if _is_run(Path(entry.path))]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Refusal(f"the runs in {base} cannot be listed: {error.strerror}") from None
    return sorted(folders, key=last_touched, reverse=True)


def find_run(base: Path, run: str | None) -> Path:
    """The folder of the run that *run* names: its name, the beginning of it, its path; None or "latest": the newest.

    Raises Refusal, which tells the nearest names.
    """
    if run is not None and run != LATEST:
        return _named(base, run)
    if run is not None and _is_run(folder_of(base, run)):
        return folder_of(base, run)
    found = runs_in(base)
    if not found:
        raise Refusal(f"there are no runs in {base}", "agentos run starts one; --dir names another folder")
    return found[0]


def _named(base: Path, run: str) -> Path:
    is_name = bool(run) and "\0" not in run and Path(run).name == run and run not in (".", "..")
    if is_name and _is_run(folder_of(base, run)):
        return folder_of(base, run)
    path = None if "\0" in run else _at(Path(run))
    if path is not None:
        return path
    found = runs_in(base)
    names = [folder.name for folder in found]
    beginnings = [folder for folder in found if run and folder.name.startswith(run)]
    if len(beginnings) == 1:
        return beginnings[0]
    if beginnings:
        fitting = ", ".join(folder.name for folder in beginnings[:_SHOWN])
        more = f" and {len(beginnings) - _SHOWN} more" if len(beginnings) > _SHOWN else ""
        raise Refusal(f"{len(beginnings)} runs begin with {run!r}", f"which one: {fitting}{more}?")
    near = get_close_matches(run, names, _SHOWN, 0.5) or names[:_SHOWN]
    hint = f"there is: {', '.join(near)}" if near else "there are no runs yet"
    raise Refusal(f"no run is called {run!r} in {base}", f"{hint} (agentos runs lists them)" if near else hint)


def _at(path: Path) -> Path | None:
    """The run folder that a path leads to: the folder itself, or its journal."""
    folder = Path(os.path.abspath(path.parent if path.name == "journal.sqlite" else path))
    return folder if _is_run(folder) else None


def _is_run(folder: Path) -> bool:
    try:
        return (folder / "journal.sqlite").is_file() or (folder / "run.json").is_file()
    except (OSError, ValueError):
        return False


def _configured(environ: Mapping[str, str]) -> Path:
    from ._config import load

    try:
        said = load(None, Path.cwd(), environ).run.get("dir")
    except (Refusal, OSError):
        said = None  # what is wrong there is for whoever starts a run; looking at old ones needs no credentials
    if said is None:
        return Path(DEFAULT_BASE)
    return (said.folder or Path()) / Path(said.value).expanduser()
