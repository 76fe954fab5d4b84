"""Remove a run: the files that agentos made in its folder, and the folder if nothing else is in it.

Everything is reached through open folders and never through a link. A link, a pipe or another folder under one of the
names that agentos uses is not a file of agentos, and stays.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import JournalError, JournalInUse
from ...notify.notifier import LOG_NAME as NOTIFY_LOG_NAME
from ...notify.notifier import STATE_NAME as NOTIFIED_NAME
from ...runs.context import build_file_name
from ...runs.exports.event_log import EVENTS_NAME
from ...runs.exports.results_file import RESULTS_NAME
from ...runs.journal.journal_files import DATABASE_NAME, locate_files
from ...runs.journal.owner_lock import OwnerLock
from ...runs.report.run_card import CARD_NAME
from ...util.private_folder import PrivateFolder, UnsafePath, unless_link
from ..config.trusted_runs import ID_NAME, TrustedRuns
from ..usage_error import UsageError
from .detached_run import LOG_NAME as DETACHED_LOG_NAME
from .find_run import BaseFolder, build_run_path, open_folder
from .run_folder import LOCK_NAME, find_difference

if TYPE_CHECKING:
    from typing import Self

_JOURNAL: Final = re.compile(rf"{re.escape(DATABASE_NAME)}(\.damaged-\d+)?(\.new)?(\.head|\.lock|-wal|-shm|-journal)?")
_PLAIN: Final = frozenset(
    {
        *(LOCK_NAME, ID_NAME, CARD_NAME, EVENTS_NAME, RESULTS_NAME),
        *(DETACHED_LOG_NAME, NOTIFY_LOG_NAME, NOTIFIED_NAME, f"{NOTIFIED_NAME}.new"),
        *(f"{ID_NAME}.new", f"{CARD_NAME}.new", f".{RESULTS_NAME}.new"),
    }
)
_ATTEMPTS: Final = re.compile(r"\.attempts-[0-9a-f]{16}")
_BESIDE_DATABASE: Final = ("-wal", "-shm", "-journal")
_HEADING: Final = b"--- attempt "  # at the beginning of each log

IsOurs = Callable[[PrivateFolder, str], bool]


@dataclass(slots=True)
class RunToRemove:
    """A run folder that this user started, locked so that no run begins in it."""

    runs: PrivateFolder
    folder: PrivateFolder
    _memory: TrustedRuns
    _ends: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    @property
    def name(self) -> str:
        return self.folder.path.name

    def list_files(self) -> list[tuple[str, int]]:
        """Return the files that agentos made, as paths in the folder, with their sizes."""
        found = []
        for parts, name, status in self._files():
            found.append(("/".join((*parts, name)), status.st_size))
        return found

    def remove(self) -> list[str]:
        """Remove them, and the folder if it is then empty. Return what is left in it."""
        for parts, name, _ in list(self._files()):
            if name not in (LOCK_NAME, f"{DATABASE_NAME}.lock"):
                self._unlink(parts, name)
        for inner in self._inner_folders():
            self._remove_folder(inner)
        # The locks last: until then no run can begin here.
        for name in (f"{DATABASE_NAME}.lock", LOCK_NAME):
            self._unlink((), name)
        left = sorted(self.folder.names())
        if not left:
            self.runs.remove_folder(self.name)
        self._memory.forget(self.folder.path)
        return left

    def _files(self) -> Iterator[tuple[tuple[str, ...], str, os.stat_result]]:
        yield from self._in((), self.folder, lambda _, name: name in _PLAIN or bool(_JOURNAL.fullmatch(name)))
        for parts in self._inner_folders():
            with ExitStack() as opened:
                inner = self._enter(parts, opened)
                if inner is None:
                    continue
                if parts == ("logs",):
                    yield from self._in(parts, inner, _is_log)
                elif parts == ("checkpoints",):
                    names = self._checkpoint_names()
                    yield from self._in(parts, inner, lambda _, name, names=names: name in names)  # type: ignore[misc]
                else:
                    yield from self._in(parts, inner, lambda *_: True)

    def _in(
        self, parts: tuple[str, ...], folder: PrivateFolder, is_ours: IsOurs
    ) -> Iterator[tuple[tuple[str, ...], str, os.stat_result]]:
        for name in sorted(folder.names()):
            status = folder.find(name)
            if status is not None and stat.S_ISREG(status.st_mode) and is_ours(folder, name):
                yield parts, name, status

    def _inner_folders(self) -> Iterator[tuple[str, ...]]:
        """Yield the folders that agentos makes in a run folder, the innermost first."""
        with ExitStack() as opened:
            checkpoints = self._enter(("checkpoints",), opened)
            attempts = (
                [] if checkpoints is None else [name for name in checkpoints.names() if _ATTEMPTS.fullmatch(name)]
            )
        for name in attempts:
            yield "checkpoints", name
        yield ("checkpoints",)
        yield ("logs",)

    def _enter(self, parts: tuple[str, ...], opened: ExitStack) -> PrivateFolder | None:
        """Open the folder at *parts*; None if there is none, or something else in its place."""
        folder = self.folder
        try:
            for name in parts:
                folder = opened.enter_context(folder.enter(name))
        except OSError:
            return None
        return folder

    def _unlink(self, parts: tuple[str, ...], name: str) -> None:
        with ExitStack() as opened:
            folder = self._enter(parts, opened)
            if folder is None:
                return
            status = folder.find(name)
            if status is not None and stat.S_ISREG(status.st_mode):
                folder.unlink(name)

    def _remove_folder(self, parts: tuple[str, ...]) -> None:
        with ExitStack() as opened:
            outer = self._enter(parts[:-1], opened)
            if outer is not None:
                outer.remove_folder(parts[-1])

    def _checkpoint_names(self) -> frozenset[str]:
        """Return the names that agentos gave to the checkpoints of items; none if the journal cannot be read."""
        from ...runs.report.item_states import list_items

        try:
            names = {build_file_name(item.id) for item in list_items(locate_files(self.folder))}
        except (JournalError, OSError):
            return frozenset()
        return frozenset(names | {f"{name}{suffix}" for name in names for suffix in _BESIDE_DATABASE})


def claim_to_remove(base: BaseFolder, run: str) -> RunToRemove:
    """Open and lock the run with exactly this name, or at this path. Raise UsageError.

    It must be known to this user's state folder as it is: nobody else's folder is ever removed.
    """
    memory = TrustedRuns()
    ends = ExitStack()
    with ends:
        runs, name = _open_runs(base, run, memory)
        ends.callback(runs.close)
        path = runs.path / name
        try:
            runs.accept = unless_link
            folder = runs.enter(name)
            ends.callback(folder.close)
            fault = find_difference(folder, memory.find(folder.path))
            if fault is None:
                for lock, what in ((LOCK_NAME, folder.path), (f"{DATABASE_NAME}.lock", folder.path / DATABASE_NAME)):
                    held = OwnerLock(folder.path / lock, journal=what, run=name, folder=folder)
                    ends.callback(held.release)
                fault = find_difference(folder, memory.find(folder.path))  # as it is now that nobody can change it
        except JournalInUse as error:
            raise UsageError(f"{name} is in use: {error}", "it can be removed when it has ended") from None
        except UnsafePath as unsafe:
            raise UsageError(f"{unsafe}: it is not removed") from None
        except OSError as error:
            raise UsageError(f"{path} cannot be removed: {error.strerror}") from None
        if fault is not None:
            raise UsageError(
                f"the run folder {path} may not be yours: {fault}",
                f"if it is, remove it by hand, or let agentos know it: agentos trust {path}",
            )
        return RunToRemove(runs, folder, memory, ends.pop_all())


def _open_runs(base: BaseFolder, run: str, memory: TrustedRuns) -> tuple[PrivateFolder, str]:
    """Return the open folder that the run is in, and its name there."""
    is_name = bool(run) and "\0" not in run and Path(run).name == run and run not in (".", "..")
    try:
        if is_name and os.path.lexists(build_run_path(base, run)):
            return open_folder(base, ["runs"], memory.accepts), run
        path = Path(os.path.abspath(run)) if run and "\0" not in run and not is_name else None
        if path is not None and os.path.lexists(path) and path.name:
            return PrivateFolder.at(path.parent), path.name
    except UnsafePath as unsafe:
        raise UsageError(f"{unsafe}: nothing in it is removed") from None
    except OSError as error:
        raise UsageError(f"{run} cannot be removed: {error.strerror}") from None
    raise UsageError(
        f"no run is called exactly {run!r} in {base}", "rm takes whole names or paths; agentos runs lists them"
    )


def _is_log(folder: PrivateFolder, name: str) -> bool:
    """Return whether the file is a log of an item: agentos begins each with the same words."""
    if not name.endswith(".log"):
        return False
    try:
        with os.fdopen(folder.open(name, os.O_RDONLY), "rb") as file:
            return file.read(len(_HEADING)) == _HEADING
    except OSError:
        return False
