"""``agentos trust``: show what a run folder from elsewhere would run, and record that it may."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ..completion import complete_run
from ..exit_codes import ExitCode
from ..session.find_run import base_folder, find_run
from ..usage_error import UsageError

if TYPE_CHECKING:
    from ...util.private_folder import PrivateFolder, UnsafePath
    from ..config.trusted_runs import TrustedRuns

_LONGEST: Final = 4_000  # characters of what would be run


def trust(
    path: Annotated[
        str,
        typer.Argument(
            help="The folder of a run, or its name; or a folder that runs are kept in.",
            metavar="PATH",
            autocompletion=complete_run,
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only show it; record nothing.")] = False,
    dir: Annotated[  # noqa: A002 - it is the option's name
        str | None, typer.Option(help="The folder in which runs are kept: .agentos.", metavar="FOLDER")
    ] = None,
) -> int:
    """Show what a run folder would run, and trust it: run and retry then continue in it.

    For a run folder that was made elsewhere, moved, or made by an earlier version; and for a folder of runs that is a
    link, another user's, or writable by others. Check what is shown: the author of the folder chose it.
    """
    from ...util.private_folder import UnsafePath
    from ..config.trusted_runs import TrustedRuns

    folder = _find_folder(path, dir)
    memory = TrustedRuns()
    try:
        _trust(folder, memory, dry_run=dry_run)
    except UnsafePath as unsafe:
        raise UsageError(f"{unsafe}: agentos would write to it", "remove it first") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        where = f": {error.filename}" if isinstance(error, OSError) and error.filename else ""
        raise UsageError(f"{folder} cannot be trusted: {reason}{where}") from None
    return ExitCode.OK


def _find_folder(path: str, base: str | None) -> Path:
    """Return the folder at *path* without resolving links, else the run of that name."""
    folder = Path(os.path.abspath(path))
    if os.path.isdir(folder):
        return folder
    if os.path.basename(path) == "journal.sqlite" and os.path.isdir(folder.parent):
        return folder.parent
    return Path(os.path.abspath(find_run(base_folder(base), path)))


def _trust(folder: Path, memory: TrustedRuns, *, dry_run: bool) -> None:
    from ..session.run_folder import is_new, require_own_files

    found: list[UnsafePath] = []
    with _open_folder(folder, found) as opened:
        is_run = not is_new(opened) and any(os.path.lexists(folder / name) for name in ("journal.sqlite", "run.json"))
        print(f"{'run' if is_run else 'folder'}      {folder}")
        if is_run:
            opened.owners = None
            require_own_files(opened)
            for line in _describe_runs(opened):
                print(line)
        for unsafe in found:
            print(f"note     {unsafe}")
        if dry_run:
            return
        if is_run:
            _remember(opened, memory)
    for unsafe in found:
        if not memory.accepts(unsafe):
            memory.accept(unsafe)
    if is_run:
        print("trusted: agentos run and agentos retry continue in it")
    elif found:
        print("trusted: runs are kept there from now on")
    else:
        print("nothing to trust: it is not a run, it is yours, and no other user can write to it")


def _open_folder(folder: Path, found: list[UnsafePath]) -> PrivateFolder:
    """Open *folder* as a run would, and add everything that a run would refuse to *found*."""
    from ...util.private_folder import PrivateFolder

    def noting(unsafe: UnsafePath) -> bool:
        found.append(unsafe)
        return True

    is_run = folder.parent.name == "runs" and len(folder.parents) > 2
    start = folder.parents[2] if is_run else folder.parent  # the folder of all runs is checked too
    opened = PrivateFolder.at(start, accept=noting)
    for name in folder.relative_to(start).parts:
        outer, opened = opened, opened.enter(name)
        outer.close()
    return opened


def _remember(folder: PrivateFolder, memory: TrustedRuns) -> None:
    from ...errors import JournalInUse
    from ...runs.journal.owner_lock import OwnerLock
    from ...util.private_folder import current_user
    from ..session.run_folder import LOCK_NAME, enrol

    try:
        lock = OwnerLock(folder.path / LOCK_NAME, journal=folder.path, run=folder.path.name, folder=folder)
    except JournalInUse as error:
        raise UsageError(str(error)) from None
    try:
        others = [name for name in folder.names() if (there := folder.find(name)) and there.st_uid != current_user()]
        enrol(folder, memory, any_owner=bool(others))
    finally:
        lock.release()


def _describe_runs(folder: PrivateFolder) -> Iterator[str]:
    """Yield lines that describe what ``agentos retry`` would run."""
    import json
    import shlex

    from ...runs.report.run_card import CARD_NAME, MAX_CARD_SIZE, parse_card
    from ..terminal.report_text import clean, run_command

    try:
        content = folder.read(CARD_NAME, MAX_CARD_SIZE)
    except FileNotFoundError:
        content = b""
    card = parse_card(content)
    if card is None:
        yield "runs     nothing: how it was started is not recorded, so retry refuses it"
        return
    yield f"in       {clean(card.cwd, _LONGEST)}"
    yield f"runs     {clean(run_command(card, card.cwd), _LONGEST)}"
    command, worker = (json.loads(content).get(name) for name in ("command", "worker"))
    if isinstance(command, list):
        yield f"command  {clean(shlex.join(map(str, command)), _LONGEST)}"
    if worker is not None:
        yield f"worker   {clean(str(worker), _LONGEST)}"
    yield from _config(card.cwd, card.arguments)


def _config(cwd: str, arguments: tuple[str, ...]) -> Iterator[str]:
    """Yield lines on the configuration that the arguments name, and on its commands that fetch keys."""
    import shlex

    from ..config.files import read_config_file
    from ..session.argv import find_option_value
    from ..terminal.report_text import clean, options_end

    named = find_option_value(list(arguments[: options_end(arguments)]), "--config")
    if named is None:
        return
    path = Path(cwd, os.path.expanduser(named))
    yield f"config   {clean(str(path), _LONGEST)}"
    try:
        entries = read_config_file(path, trusted=True, cwd=Path(cwd))[1] if path.is_file() else []
    except UsageError as refusal:
        yield f"         {clean(refusal.message, _LONGEST)}"
        return
    for entry in entries:
        if entry.source == "command":
            words = entry.place if isinstance(entry.place, list) else [entry.place]
            yield f"         runs for the key {clean(entry.name)}: {clean(shlex.join(words), _LONGEST)}"
