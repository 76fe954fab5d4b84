"""One item for the live page: its whole texts, cut to a bound, and its log as it grows."""

from __future__ import annotations

import codecs
import json
import os
from pathlib import Path
from typing import Any, Final

from ...runs.context import build_file_name
from ...runs.failures import decode_facts
from ...runs.journal.journal_files import locate_files
from ...runs.report.journal_access import DECIDING, query_rows
from ...util.private_folder import PrivateFolder
from ..previews import clean_text

_LONGEST: Final = 64 * 1024
_ITEM: Final = (
    f"select kind, substr(content, 1, {_LONGEST}), substr(value, 1, {_LONGEST}), error, detail "  # noqa: S608
    f"from entries where item = ? and kind in ({DECIDING}) order by seq desc limit 1"
)


def read_item(folder: Path, item_id: str) -> dict[str, Any]:
    """Return the texts of an item; all empty for one without an entry. Raises JournalError."""
    rows = query_rows(locate_files(folder), _ITEM, item_id)
    kind, content, value, error, detail = rows[0] if rows else ("", None, None, None, None)
    facts = decode_facts(detail) if kind != "done" else {}
    return {
        "input": _format(content),
        "value": _format(value) or (clean_text(detail or "") if kind == "done" else ""),
        "error": clean_text(error or "")[:_LONGEST],
        "traceback": clean_text(str(facts.get("traceback") or ""))[-_LONGEST:],
    }


def read_log(folder: Path, item_id: str, start: int | None) -> dict[str, Any]:
    """Return the log of an item from byte *start* on, or its end, with the byte to go on from."""
    try:
        with PrivateFolder.at(folder) as run, run.enter("logs") as logs:
            file = logs.open(f"{build_file_name(item_id)}.log", os.O_RDONLY)
    except OSError:
        return {"text": "", "next": 0}
    try:
        size = os.fstat(file).st_size
        begin = max(0, size - _LONGEST) if start is None or start > size else start
        data = os.pread(file, _LONGEST, begin)
    finally:
        os.close(file)
    if start is None and begin > 0:
        data = data[data.find(b"\n") + 1 :]
        begin = size - len(data)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    incomplete = len(decoder.getstate()[0])  # a character of which the rest comes with the next read
    return {"text": text, "next": begin + len(data) - incomplete}


def _format(text: str | None) -> str:
    """Return the JSON of an item or a value for people: a text as it is, anything else indented."""
    if not text or text == "null":
        return ""
    try:
        found = json.loads(text)
    except ValueError:
        return clean_text(text)
    return clean_text(found if isinstance(found, str) else json.dumps(found, indent=2, ensure_ascii=False))
