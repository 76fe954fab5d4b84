"""Short texts of single items, within a budget: previews, errors, ends of logs. Failed items come first."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ..errors import JournalError
from ..runs.context import build_file_name
from ..runs.journal.journal_files import locate_files
from ..runs.report.journal_access import query_rows
from ..util.private_folder import PrivateFolder
from ..util.sanitize import make_printable, shorten
from .item_columns import STATES, ItemColumns

PREVIEW: Final = 80  # characters
_ERROR: Final = 300
_LOG_END: Final = 4 * 1024  # bytes
BUDGET: Final = 1024 * 1024  # bytes of UTF-8 for each kind of text
_READ: Final = 600  # characters of JSON from which a preview is made
_PAGE: Final = 1_000
_SHORTEST: Final = 24  # bytes of a log that are worth reading it

_TEXTS: Final = (
    f"select e.seq, e.item, substr(e.content, 1, {_READ}), substr(e.value, 1, {_READ}), "  # noqa: S608 (constants)
    f"substr(e.error, 1, {_READ}), case when e.kind = 'done' then substr(e.detail, 1, {_READ}) end "
    "from json_each(?) j cross join entries e on e.seq = j.value"
)
_TORN_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{0,3})?$")


class ItemTexts:
    """The previews of items and values, errors and log ends, each by the row of its item."""

    def __init__(self) -> None:
        self.previews: dict[int, tuple[str, str]] = {}
        self.errors: dict[int, str] = {}
        self.logs: dict[int, str] = {}

    def as_json(self) -> dict[str, Any]:
        """Return everything as a JSON object: rows and texts side by side."""
        return {
            "previews": [list(self.previews), list(self.previews.values())],
            "errors": [list(self.errors), list(self.errors.values())],
            "logs": [list(self.logs), list(self.logs.values())],
        }


def read_texts(folder: Path, columns: ItemColumns) -> ItemTexts:
    """Read the texts of as many items as the budgets allow, failed ones first."""
    texts = ItemTexts()
    left = {"preview": BUDGET, "error": BUDGET, "log": BUDGET}
    failed = STATES.index("failed")
    with _open_logs(folder) as logs:
        for row, item, content, value, error, text in _read_rows(folder, columns):
            preview = (make_preview(content), make_preview(value) or make_preview(text, is_json=False))
            cost = _count_bytes(*preview)
            fits = cost <= left["preview"]
            if fits and any(preview):
                left["preview"] -= cost
                texts.previews[row] = preview
            if columns.state[row] != failed:
                if not fits:
                    break
                continue
            _put(texts.errors, row, shorten(clean_text(error or ""), _ERROR), left, "error")
            if left["log"] > _SHORTEST:
                _put(texts.logs, row, logs.read_end(item), left, "log")
    return texts


def _put(into: dict[int, str], row: int, text: str, left: dict[str, int], what: str) -> None:
    cost = _count_bytes(text)
    if text and cost <= left[what]:
        left[what] -= cost
        into[row] = text


def make_preview(text: str | None, *, is_json: bool = True) -> str:
    """Return the beginning of a value on one line; *text* is its JSON, which may be cut off, or its repr."""
    if not text or text == "null":
        return ""
    if is_json and text.startswith('"'):
        text = _decode_beginning(text)
    return shorten(make_printable(text, tabs=False).strip(), PREVIEW)


def clean_text(text: str) -> str:
    """Return *text* without control sequences; line breaks stay."""
    return "\n".join(make_printable(line.rpartition("\r")[2]) for line in text.rstrip("\n").split("\n"))


def _decode_beginning(text: str) -> str:
    """Return the text of a JSON string of which the end may be missing."""
    try:
        return str(json.loads(text))
    except ValueError:
        pass
    try:
        return str(json.loads(_TORN_ESCAPE.sub("", text) + '"'))
    except ValueError:
        return text


def _count_bytes(*texts: str) -> int:
    return sum(len(text.encode("utf-8", "replace")) for text in texts) + 8


def _read_rows(folder: Path, columns: ItemColumns) -> Iterator[tuple[int, Any, Any, Any, Any, Any]]:
    """Yield the row, id and texts of failed items, then of done ones. The journal is not kept open between pages."""
    files = locate_files(folder)
    rows = _choose_rows(columns)
    while page := list(itertools.islice(rows, _PAGE)):
        by_seq = {columns.seqs[row]: row for row in page}
        try:
            found = query_rows(files, _TEXTS, json.dumps(list(by_seq)))
        except JournalError:
            return  # a damaged journal: the rest is reported without these texts
        for seq, *facts in found:
            item, content, value, error, text = facts
            yield by_seq[seq], item, content, value, error, text


def _choose_rows(columns: ItemColumns) -> Iterator[int]:
    for name in ("failed", "running", "interrupted", "parked", "done"):
        code = STATES.index(name)
        yield from (row for row, state in enumerate(columns.state) if state == code and columns.seqs[row])


class _Logs:
    """The folder of a run's logs; without one, every log is empty."""

    def __init__(self, folder: PrivateFolder | None) -> None:
        self._folder = folder

    def __enter__(self) -> _Logs:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._folder is not None:
            self._folder.close()

    def read_end(self, item_id: str) -> str:
        if self._folder is None:
            return ""
        try:
            file = self._folder.open(f"{build_file_name(item_id)}.log", os.O_RDONLY)
        except OSError:
            return ""
        try:
            size = os.fstat(file).st_size
            data = os.pread(file, _LOG_END, max(0, size - _LOG_END))
        except OSError:
            return ""
        finally:
            os.close(file)
        text = data.decode("utf-8", "replace")
        if size > _LOG_END:
            text = text.partition("\n")[2] or text  # whole lines
        return clean_text(text)


def _open_logs(folder: Path) -> _Logs:
    try:
        with PrivateFolder.at(folder) as run:
            return _Logs(run.enter("logs"))
    except OSError:
        return _Logs(None)
