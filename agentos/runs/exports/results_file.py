"""``results.jsonl``: one JSON object per finished item, for programs that want the results and not the journal.

The journal is the authority. At the start of a run the file is rewritten from it, which repairs whatever a crash, a
full disk or an editor did to the file; then results are appended as they come.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from agentos.errors import JournalError, JournalInUse

from ...util.private_folder import PrivateFolder, folder_of
from ..journal.journal_files import DATABASE_NAME, JournalFiles, beside, locate_files
from ..report.status import find_owner
from ..results import WorkflowResult
from .append_file import AppendOnlyFile, is_ordinary
from .finished_items import ALL, DONE, SETTLED, FinishedItems, find_plan
from .item_codec import LONGEST_IN_RESULTS
from .result_line import format_finished, format_result

log = logging.getLogger("agentos")

RESULTS_NAME: Final = "results.jsonl"
_LONGEST_LINE: Final = 1 << 20


def open_results(files: JournalFiles, folder: PrivateFolder, *, retry_failed: bool) -> ResultsFile | None:
    """Open the results file beside a journal; None, with a warning, if another file has its name.

    *folder* is the open folder of the journal.
    """
    is_run_folder = files.db.name == DATABASE_NAME
    path = files.db.with_name(RESULTS_NAME) if is_run_folder else beside(files.db, f".{RESULTS_NAME}")
    try:
        taken = folder.find(path.name) is not None and not _starts_with_result(folder, path.name)
    except OSError as error:
        log.warning("results are not written to a file: %s", error)
        return None
    if taken:
        log.warning(
            "results are not written to %s, because that file does not hold results; they are in %s", path, files.db
        )
        return None
    return ResultsFile(path, files.db, retry_failed=retry_failed, folder=folder)


def _starts_with_result(folder: PrivateFolder, name: str) -> bool:
    with open(folder.open(name, os.O_RDONLY), "rb") as file:
        return holds_results(file.readline(_LONGEST_LINE))


def holds_results(line: bytes) -> bool:
    """Return whether *line*, the first of a file, is a result, or the file is empty."""
    if not line.endswith(b"\n"):
        return not line or line.startswith(b'{"id":')  # cut short by a crash, or very long
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and {"id", "outcome", "attempts"} <= found.keys()


class ResultsFile:
    """The results of the run whose journal is at *journal*, in the file *path*.

    The constructor writes what the journal has: every item that is done or failed, except those that this run will add
    again: failed ones with *retry_failed*, and those that every session refuses. Disk errors are not
    raised: they are logged once, and `close` or the next run repairs the file. A file in the run's own *folder* is
    opened through it; any other path comes from the user: links are followed, and if it is not a regular file (a pipe,
    a terminal), results are only appended.
    """

    def __init__(
        self,
        path: Path,
        journal: Path | PrivateFolder,
        *,
        retry_failed: bool = False,
        folder: PrivateFolder | None = None,
        with_items: bool = True,
    ) -> None:
        self.path = path if folder is not None else Path(os.path.realpath(path))  # a link stays one
        self._folder = folder
        self._journal = locate_files(journal)
        self._longest_item = LONGEST_IN_RESULTS if with_items else 0
        self._lock = threading.Lock()
        self._lines = AppendOnlyFile(self.path, what="the results file", folder=folder)
        self._ordinary = folder is not None or is_ordinary(self.path)
        self._left_out = 0  # items left out of the rewritten file
        self._plan: list[int] | None = None  # the plan that gave the items their indexes; None: no plan
        kinds = DONE if retry_failed else SETTLED
        self._whole = self._rewrite(kinds) if self._ordinary else self._append_all(kinds)

    def add(self, result: WorkflowResult, finished_at: float) -> None:
        """Append *result*, unless it is cached and so already there. Thread-safe."""
        self.add_all((result,), finished_at)

    def add_all(self, results: Iterable[WorkflowResult], finished_at: float) -> None:
        """Append those of *results* that are not cached, in one write. Thread-safe."""
        lines = [format_result(result, finished_at, self._longest_item) for result in results if not result.cached]
        with self._lock:
            # After a gap nothing is appended: `close` rewrites the file, or it ends where it is intact.
            if lines and (self._whole or not self._ordinary):
                self._whole = self._lines.add("\n".join(lines)) and self._whole

    def close(self, *, repair: bool = True) -> bool:
        """Rewrite the file if it differs from the closed journal, and return whether it is complete.

        Without *repair* it is left to the next run, because this one has to end at once.
        It differs if it lacks lines, lacks items that the run was to add and did not reach, or has indexes of an
        earlier input.
        """
        with self._lock:
            in_place = self._lines.is_same_file()
            self._lines.close()
            if repair and self._ordinary and not (self._whole and in_place and self._is_as_recorded()):
                self._whole = self._rewrite(ALL)
            return self._whole

    def _is_as_recorded(self) -> bool:
        """Return whether the rewritten part of the file is still up to date."""
        if self._left_out:
            return False
        try:
            return self._plan is None or self._plan == find_plan(self._journal)
        except JournalError:
            return False  # rewriting logs the reason

    def _rewrite(self, kinds: frozenset[str]) -> bool:
        """Replace the file by the journal's results, atomically."""
        draft = f".{self.path.name}.new"
        try:
            self._check_ownership()
            if self._folder is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with folder_of(self.path, self._folder) as folder:
                try:
                    finished = FinishedItems(self._journal)
                    created = folder.create(draft, 0o666 if self._folder is None else 0o600)
                    with open(created, "w", encoding="ascii", newline="\n") as file:
                        for each in finished.read(kinds):
                            file.write(f"{format_finished(each, self._longest_item)}\n")
                        file.flush()
                        os.fsync(file.fileno())
                    if self._folder is not None:
                        folder.check(self.path.name)
                    folder.replace(draft, self.path.name)
                    folder.sync()
                    self._left_out, self._plan = finished.left_out, finished.plan if len(finished) else None
                finally:
                    folder.unlink(draft)
        except (OSError, JournalError) as error:
            log.warning(
                "the results file %s cannot be written (%s); the run goes on, its results are in its journal, and the "
                "file is rewritten when it can be",
                self.path,
                error,
            )
            return False
        return True

    def _check_ownership(self) -> None:
        """Raise if another run appends to the file: replacing it would lose that run's lines."""
        owner = find_owner(self._journal.lock)
        if owner is not None and owner.pid != os.getpid():
            raise JournalInUse(path=str(self._journal.db), owner=f"pid {owner.pid}")

    def _append_all(self, kinds: frozenset[str]) -> bool:
        try:
            for each in FinishedItems(self._journal).read(kinds):
                self._lines.add(format_finished(each, self._longest_item))
        except JournalError as error:
            log.warning("earlier results cannot be read (%s)", error)
            return False
        return not self._lines.dropped
