"""Claim the folder of a run for one session, check that it is trusted, and record how the run was started."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import JournalInUse
from ...runs.exports.event_log import EVENTS_NAME
from ...runs.exports.results_file import RESULTS_NAME
from ...runs.journal.journal_files import locate_files
from ...runs.journal.owner_lock import OwnerLock
from ...runs.report.run_card import CARD_NAME, MAX_CARD_SIZE
from ...util.private_folder import Accept, PrivateFolder, UnsafePath, current_user, unless_link
from ..config.trusted_runs import ID_NAME, TrustedRun, TrustedRuns, digest, new_id, read_digest, read_id
from ..usage_error import UsageError
from .find_run import open_folder

if TYPE_CHECKING:
    from .request import RunRequest

LOCK_NAME: Final = "run.lock"
_FOLDERS: Final = ("logs", "checkpoints")
_LOOKS: Final = 3


@dataclass(slots=True)
class RunFolder:
    """The folder of a run, locked for this session."""

    folder: PrivateFolder
    known: TrustedRun
    _memory: TrustedRuns
    _lock: OwnerLock

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()
        self.folder.close()

    def write_card(self, request: RunRequest) -> None:
        """Write run.json, which ``agentos show`` and ``agentos retry`` read. Raise ``UsageError``."""
        try:
            content = _card(request, self.folder)
            before, now = read_digest(self.folder), digest(content)
            # Both digests until it is written: a run that is killed in between must be known too.
            self._remember(replace(self.known, cards=(before, now)), durable=True)
            self.folder.write(CARD_NAME, content)
            self._remember(replace(self.known, cards=(now,)), durable=False)
        except OSError as error:
            message = str(error) if isinstance(error, UnsafePath) else f"{error.strerror}: {request.folder}"
            raise UsageError(f"the run's folder cannot be written: {message}") from None

    def _remember(self, known: TrustedRun, *, durable: bool) -> None:
        self.known = known
        with contextlib.suppress(OSError, ValueError):  # already reported at the start
            self._memory.record(known, durable=durable)


def claim_folder(request: RunRequest) -> RunFolder:
    """Create or, with ``--fresh``, replace the run's folder, and lock it until it is released.

    The journal has its own lock; this one is taken before results are rewritten. Raise ``UsageError``, also for a
    folder that this user has not started: it may have come with a repository.
    """
    memory = TrustedRuns()
    try:
        return _claim_folder(request, memory, accept_any if request.flags.trust else memory.accepts)
    except UnsafePath as unsafe:
        raise build_error(unsafe, request.folder) from None
    except JournalInUse as error:
        raise UsageError(str(error), "wait for it, or give this run another --name") from None
    except OSError as error:
        raise UsageError(
            f"the run's folder cannot be used: {error.strerror}: {error.filename or request.folder}",
            "name another place with --dir FOLDER, or AGENTOS_BASE_DIR",
        ) from None


def _claim_folder(request: RunRequest, memory: TrustedRuns, accept: Accept) -> RunFolder:
    flags = request.flags
    with open_folder(request.base, ["runs"], accept, make=True) as runs:
        if flags.fresh and runs.find(request.name) is not None:
            _archive_old_run(runs, request.name, memory, accept)
        runs.make(request.name)
        folder = runs.enter(request.name)
    try:
        if not flags.trust:
            known = require_known(folder, memory)
            if known is None or not known.any_owner:
                folder.owners = frozenset({current_user(), folder.owner()})
        require_own_files(folder)
        lock = OwnerLock(folder.path / LOCK_NAME, journal=folder.path, run=request.name, folder=folder)
        try:
            known = memory.find(folder.path) if flags.trust else require_known(folder, memory)
            if known is None or find_difference(folder, known) is not None:
                known = enrol(folder, memory)
        except BaseException:
            lock.release()
            raise
    except BaseException:
        folder.close()
        raise
    return RunFolder(folder, known, memory, lock)


def accept_any(_: UnsafePath) -> bool:
    """Accept any folder."""
    return True


def require_known(folder: PrivateFolder, memory: TrustedRuns) -> TrustedRun | None:
    """Return the record of *folder* if it is as this user's last start left it, or if no run has begun in it.

    Raise ``UsageError`` for any other folder.
    """
    fault = None
    for _ in range(_LOOKS):  # a run that is just starting writes both
        known = memory.find(folder.path)
        if is_new(folder):
            return known
        fault = find_difference(folder, known)
        if fault is None:
            return known
    raise UsageError(
        f"the run folder {folder.path} may not be yours: {fault}",
        "it may have come with a repository or an archive, or been moved or changed since; runs of earlier versions\n"
        "are not known either. To continue in it:\n"
        f"agentos trust {shlex.quote(str(folder.path))}  shows what it would run, and trusts it\n"
        "--trust  continues this once: in a container, or with a new home folder\n"
        "--fresh  starts over, and keeps this folder under another name",
    )


def find_difference(folder: PrivateFolder, known: TrustedRun | None) -> str | None:
    """Return how *folder* differs from its record, or None."""
    if known is None:
        return "this user has not started it"
    if read_id(folder) != known.id:
        return "it is not the folder that was there before"
    if read_digest(folder) not in known.cards:
        return f"its {CARD_NAME}, which has the command to run, is not the one that was written last"
    return None


def is_new(folder: PrivateFolder) -> bool:
    """Return whether no run has begun in the folder. A killed start may have left a lock and an id."""
    return not set(folder.names()) - {LOCK_NAME, ID_NAME, f"{ID_NAME}.new"}


def require_own_files(folder: PrivateFolder) -> None:
    """Raise UnsafePath if a file that agentos would write in *folder* is a link, a pipe, or another user's."""
    files = locate_files(folder)
    journal = (files.db, files.wal, files.shm, files.rollback, files.head, files.lock)
    folder.check(LOCK_NAME, ID_NAME, CARD_NAME, RESULTS_NAME, EVENTS_NAME, *(path.name for path in journal))
    for name in _FOLDERS:
        if folder.find(name) is not None:
            folder.enter(name).close()


def enrol(folder: PrivateFolder, memory: TrustedRuns, *, any_owner: bool = False) -> TrustedRun:
    """Give the folder an id and record its current state. Print a warning if it cannot be recorded."""
    known = TrustedRun(os.path.realpath(folder.path), new_id(), (read_digest(folder),), any_owner)
    try:
        memory.record(known)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = (
            f"agentos: this run cannot be recorded in your state folder ({reason}); to continue it later, add --trust"
        )
        print(message, file=sys.stderr)
    folder.write(ID_NAME, f"{known.id}\n".encode())
    return known


def build_error(unsafe: UnsafePath, folder: Path) -> UsageError:
    """Return the error for an unsafe path, with a hint."""
    path = str(unsafe.filename)
    if Path(path).parent == folder and Path(path).name not in _FOLDERS:
        return UsageError(
            f"{unsafe}: agentos does not write to it",
            "remove it, or start over with --fresh, which keeps this folder under another name",
        )
    ways = [f"agentos trust {shlex.quote(path)}  uses it from now on", "--trust  uses it this once"]
    if "may be written" in unsafe.what:
        ways.insert(0, f"chmod go-w {shlex.quote(path)}  keeps other users out")
    elif folder not in (Path(path), Path(path).parent):
        ways.append("--dir FOLDER  keeps runs in a folder that you name")
    if Path(path) == folder:
        ways.append("--fresh  starts over, and keeps it under another name")
    if unsafe.is_link:
        return UsageError(
            f"{unsafe}: such a link is not followed, as it may have come with a repository", "\n".join(ways)
        )
    return UsageError(f"{unsafe}: other users can change it", "\n".join(ways))


def _archive_old_run(runs: PrivateFolder, name: str, memory: TrustedRuns, accept: Accept) -> None:
    """Rename a run that is to start over to the next free name. Anything else is moved without opening it."""
    lock = None
    runs.accept = unless_link
    try:
        with runs.enter(name) as folder:
            lock = OwnerLock(folder.path / LOCK_NAME, journal=folder.path, run=name, folder=folder)
    except (UnsafePath, NotADirectoryError):
        pass
    finally:
        runs.accept = accept
    try:
        number = 1
        while runs.find(kept := f"{name}.{number}") is not None:
            number += 1
        with contextlib.suppress(OSError, ValueError):
            memory.move(runs.path / name, runs.path / kept)
        runs.replace(name, kept)
    finally:
        if lock is not None:
            lock.release()


def _card(request: RunRequest, folder: PrivateFolder) -> bytes:
    from ...version import __version__

    created = now = time.time()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        created = float(json.loads(folder.read(CARD_NAME, MAX_CARD_SIZE))["created"])
    card = {
        "format": 1,
        "name": request.name,
        "created": created,
        "started": now,
        "cwd": os.getcwd(),
        "arguments": request.flags.typed.resume_arguments,
        "command": None if request.command is None else list(request.command),
        "worker": request.flags.worker,
        "source": dict(request.source),
        "parallel": request.parallel,
        "engine": request.engine,
        "keys": [key.credential.name for key in request.keys],
        "agentos": __version__,
        "id_rules": request.id_rules,
    }
    return f"{json.dumps(card, indent=1)}\n".encode()
