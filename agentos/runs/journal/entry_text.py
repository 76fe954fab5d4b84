"""Encode one entry as text: the JSON array of its columns, which is queued, hashed and parsed by SQLite.

The columns of format 2 are left out of the array if all of them are null, so that the entries of a format 1 journal
have the same text, and the same hash, after its migration.

A reader that selects the same columns and dumps them the same way must get exactly the same text, on any machine and
with any SQLite; otherwise an intact journal would look damaged. Two rules ensure that. Seconds are kept to a tenth of a
millisecond: with at most 15 digits, four of them after the point, every version of SQLite converts decimal text to the
nearest float. And text has no NUL (SQLite's JSON ends there) and no lone surrogate (it is not UTF-8): both become
visible escapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from json import JSONEncoder
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, Final, NamedTuple

from .entry_kinds import DECIDES, RecordedState

COLUMNS: Final = (
    "at",
    "kind",
    "item",
    "token",
    "attempt",
    "credential",
    "duration",
    "fingerprint",
    "value",
    "error",
    "detail",
    "content",
    "usage",
    "flags",
)
_FIRST_FORMAT: Final = COLUMNS.index("content")  # the number of columns in format 1
ADDED: Final = COLUMNS[_FIRST_FORMAT:]  # by format 2
_NONE_ADDED: Final = (None,) * len(ADDED)

# SQLite accepts a billion bytes in one text; a commit has at least one row, and escapes make it longer.
LONGEST_ROW: Final = 256 * 1024 * 1024

# Three thousand years in seconds: exact with four digits after the point.
_LONGEST_TIME: Final = 1e11

_dump = JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode


class StateRow(NamedTuple):
    """One entry as stored in the journal.

    ``content`` is the item, ``usage`` the tokens used and ``flags`` an object of further facts, such as
    ``{"redacted": true}``; all three are JSON.
    """

    seq: int
    at: float
    kind: str
    item: str | None
    token: int | None
    attempt: int | None
    credential: str | None
    duration: float | None
    fingerprint: str | None
    value: str | None
    error: str | None
    detail: str | None
    content: str | None = None
    usage: str | None = None
    flags: str | None = None

    @property
    def state(self) -> RecordedState | None:
        """Return the state that this entry gives its item; None if it decides nothing."""
        return DECIDES.get(self.kind)


def encode_row(
    at: float,
    kind: str,
    item: str | None = None,
    token: int | None = None,
    attempt: int | None = None,
    credential: str | None = None,
    duration: float | None = None,
    fingerprint: str | None = None,
    value: str | None = None,
    error: str | None = None,
    detail: str | None = None,
    content: str | None = None,
    usage: str | None = None,
    flags: str | None = None,
) -> str:
    """Return an entry's text. NaN becomes 0 and times are bounded; a row too long for SQLite raises ValueError."""
    if not -_LONGEST_TIME < at < _LONGEST_TIME:
        at = _bounded(at)
    if duration is not None and not -_LONGEST_TIME < duration < _LONGEST_TIME:
        duration = _bounded(duration)
    # Written out because it runs once per item: a third faster than dumping a list. A test keeps the two equal.
    text = (
        f"[{round(at * 1e4) / 1e4!r},{_quoted(kind)},{'null' if item is None else _quoted(item)},"
        f"{'null' if token is None else f'{token:d}'},{'null' if attempt is None else f'{attempt:d}'},"
        f"{'null' if credential is None else _quoted(credential)},"
        f"{'null' if duration is None else repr(round(duration * 1e4) / 1e4)},"
        f"{'null' if fingerprint is None else _quoted(fingerprint)},{'null' if value is None else _quoted(value)},"
        f"{'null' if error is None else _quoted(error)},{'null' if detail is None else _quoted(detail)}"
    )
    if content is None and usage is None and flags is None:
        text += "]"
    else:
        text += (
            f",{'null' if content is None else _quoted(content)},{'null' if usage is None else _quoted(usage)},"
            f"{'null' if flags is None else _quoted(flags)}]"
        )
    if "\\u0000" in text or "\\ud" in text:
        given = (item, credential, fingerprint, value, error, detail, content, usage, flags)
        clean = tuple(None if column is None else replace_surrogates(column) for column in given)
        if clean != given:
            item, credential, *others = clean
            return encode_row(at, kind, item, token, attempt, credential, duration, *others)
    if len(text) > LONGEST_ROW:
        raise ValueError(f"an entry of {len(text):,} characters is too long for a journal ({LONGEST_ROW:,} at most)")
    return text


def replace_surrogates(text: str) -> str:
    r"""Return *text* as stored in a journal: NUL as ``\x00`` and lone surrogates as ``\ud800``.

    An item is identified in its journal by this form of its id.
    """
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def join_rows(rows: Iterable[str]) -> str:
    """Return the text of a whole commit from the texts of its rows."""
    return f"[{','.join(rows)}]"


def join_columns(rows: Sequence[Sequence[Any]]) -> str:
    """Return the text of a whole commit from the columns that were read back."""
    return _dump([row[:_FIRST_FORMAT] if row[_FIRST_FORMAT:] == _NONE_ADDED else row for row in rows])


def _bounded(seconds: float) -> float:
    if seconds != seconds:  # NaN
        return 0.0
    return max(-_LONGEST_TIME, min(_LONGEST_TIME, seconds))
