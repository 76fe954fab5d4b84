"""The items and attempts of a run as columns of numbers: small in memory, and quick to compress."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..runs.journal.entry_kinds import RecordedState

STATES: Final = tuple(state.value for state in RecordedState)
# Ends of attempts, with what stopped them; "start" is an attempt without an end.
ENDS: Final = ("done", "failed", "retry", "limited", "interrupted", "start")
TROUBLES: Final = ("", "limited", "rejected", "unreachable")

NO_CAUSE: Final = 0
OTHER_CAUSE: Final = 0xFFFF
NO_ITEM: Final = 0xFFFFFFFF

_CODE_OF_STATE: Final = {state: code for code, state in enumerate(RecordedState)}
_CODE_OF_END: Final = {kind: code for code, kind in enumerate(ENDS)}
_CODE_OF_TROUBLE: Final = {word: code for code, word in enumerate(TROUBLES)}
_MOST: Final = 0xFFFFFFFF
_TEXTS: Final = 2_000  # distinct errors of earlier attempts
_LONGEST_ERROR: Final = 200  # characters
_FLUSH_AFTER: Final = 10_000  # ids that are kept as strings


class ItemColumns:
    """Collects one row for each item, and one for each attempt that is not the item's last.

    Times are milliseconds after ``began``, the instant of the first entry. ``seqs`` has the entry that decided each
    item. Memory is about 30 bytes an item, besides its id.
    """

    def __init__(self) -> None:
        self.began: float | None = None
        self.keys: list[str] = [""]  # by number; 0: no key
        self.ids = IdText()
        self.state = array("B")
        self.key = array("H")
        self.attempts = array("H")
        self.ended = array("I")
        self.duration = array("I")
        self.tokens = array("I")
        self.cause = array("H")
        self.seqs = array("I")
        self.causes_at: list[int] = []  # rows that have a cause, for renumbering
        self.earlier = EarlierAttempts()
        self._key_numbers: dict[str | None, int] = {None: 0}
        self._newest: dict[str, int] = {}  # the newest earlier attempt of items that are not decided yet

    def __len__(self) -> int:
        return len(self.state)

    def add_entry(
        self,
        item: str,
        state: RecordedState | None,
        seq: int,
        at: float,
        kind: str,
        token: int | None,
        number: int | None,
        credential: str | None,
        duration: float | None,
        error: str | None,
        trouble: str | None,
        usage: Mapping[str, Any] | None,
        cause: int | None,
    ) -> None:
        """Take an entry of the journal, as JournalScan passes it on."""
        if self.began is None:
            self.began = at
        ended = int((at - self.began) * 1000 + 0.5)
        lasted = int(duration * 1000 + 0.5) if duration else 0
        if not (0 <= ended <= _MOST and 0 <= lasted <= _MOST):  # the clock was set, or it ran for seven weeks
            ended, lasted = min(_MOST, max(0, ended)), min(_MOST, max(0, lasted))
        key = self._key_numbers.get(credential)
        if key is None:
            key = self._add_key(credential)
        ends_here = kind in _CODE_OF_END and kind != "start" and token is not None
        if state is None:
            if ends_here:
                self._add_earlier(item, kind, number, key, ended, lasted, error, trouble)
            return
        row = len(self.state)
        if kind in ("retry", "limited", "interrupted") and ends_here:
            # It waits for its next attempt: the end of this one is shown as that of an earlier attempt.
            self._add_earlier(item, kind, number, key, ended, lasted, error, trouble)
        if self._newest:
            newest = self._newest.pop(item, None)
            if newest is not None:
                self.earlier.set_item(newest, row)
        self.ids.add(item)
        self.state.append(_CODE_OF_STATE[state])
        self.key.append(key)
        self.attempts.append(min(0xFFFF, number or 1))
        self.ended.append(ended)
        self.duration.append(lasted)
        self.tokens.append(0 if usage is None else _sum_tokens(usage))
        self.seqs.append(min(seq, _MOST))
        self._add_cause(row, state, cause)

    def add_refused(self, seq: int, item: str, error: str | None, cause: int | None) -> None:
        """Take an item that failed because its id was taken."""
        row = len(self.state)
        self._add_plain(item, RecordedState.FAILED, seq)
        self._add_cause(row, RecordedState.FAILED, cause)

    def add_not_begun(self, item: str) -> None:
        """Take a planned item without any entry."""
        self._add_plain(item, RecordedState.PENDING, 0)
        self.cause.append(NO_CAUSE)

    def renumber_causes(self, order: list[int]) -> None:
        """Replace the numbers of causes by their places in *order*, from 1 on."""
        places = {number: place for place, number in enumerate(order, 1)}
        for row in self.causes_at:
            self.cause[row] = min(places.get(self.cause[row], OTHER_CAUSE), OTHER_CAUSE)

    def _add_plain(self, item: str, state: RecordedState, seq: int) -> None:
        self.ids.add(item)
        self.state.append(_CODE_OF_STATE[state])
        self.key.append(0)
        self.attempts.append(0)
        self.ended.append(self.ended[-1] if self.ended else 0)
        self.duration.append(0)
        self.tokens.append(0)
        self.seqs.append(min(seq, _MOST))

    def _add_cause(self, row: int, state: RecordedState, cause: int | None) -> None:
        if state is not RecordedState.FAILED:
            self.cause.append(NO_CAUSE)
        elif cause is None:
            self.cause.append(OTHER_CAUSE)
        else:
            self.cause.append(cause)
            self.causes_at.append(row)

    def _add_key(self, name: str | None) -> int:
        number = self._key_numbers[name] = min(len(self.keys), 0xFFFF)
        self.keys.append(name or "")
        return number

    def _add_earlier(
        self,
        item: str,
        kind: str,
        number: int | None,
        key: int,
        ended: int,
        lasted: int,
        error: str | None,
        trouble: str | None,
    ) -> None:
        self._newest[item] = self.earlier.add(
            self._newest.get(item, -1), kind, number or 1, key, ended, lasted, error, trouble
        )


class EarlierAttempts:
    """The attempts that are not the last of their item. Those of one item form a list, the newest first."""

    def __init__(self) -> None:
        self.item = array("I")
        self.kind = array("B")
        self.number = array("H")
        self.key = array("H")
        self.ended = array("I")
        self.duration = array("I")
        self.trouble = array("B")
        self.text = array("H")  # 0: none
        self.texts: list[str] = [""]
        self._before = array("l")
        self._text_numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.item)

    def add(
        self,
        before: int,
        kind: str,
        number: int,
        key: int,
        ended: int,
        lasted: int,
        error: str | None,
        trouble: str | None,
    ) -> int:
        """Add an attempt; *before* is the previous one of its item, or -1. Return its number."""
        self.item.append(NO_ITEM)
        self.kind.append(_CODE_OF_END[kind])
        self.number.append(min(0xFFFF, number))
        self.key.append(key)
        self.ended.append(ended)
        self.duration.append(lasted)
        if trouble is None and kind == "limited":
            trouble = "limited"  # as version 0.1.0 wrote it
        self.trouble.append(_CODE_OF_TROUBLE.get(trouble or "", 0))
        self.text.append(self._add_text(error))
        self._before.append(before)
        return len(self.item) - 1

    def set_item(self, newest: int, row: int) -> None:
        """Note the row of the item to which the attempt *newest* and those before it belong."""
        while newest >= 0 and self.item[newest] == NO_ITEM:
            self.item[newest] = row
            newest = self._before[newest]

    def _add_text(self, error: str | None) -> int:
        if not error:
            return 0
        text = error[:_LONGEST_ERROR]
        found = self._text_numbers.get(text)
        if found is None:
            if len(self.texts) > _TEXTS:
                return 0
            found = self._text_numbers[text] = len(self.texts)
            self.texts.append(text)
        return found


class IdText:
    """Item ids as one text: a line for each. A line break or backslash in an id is escaped.

    The text is kept compressed: the ids of a million items would take as much memory as half of the columns.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._ids: list[str] = []

    def add(self, item_id: str) -> None:
        if "\n" in item_id or "\\" in item_id:
            item_id = item_id.replace("\\", "\\\\").replace("\n", "\\n")
        self._ids.append(item_id)
        if len(self._ids) == _FLUSH_AFTER:
            self._flush()

    def encode(self) -> Iterator[bytes]:
        """Return the text in UTF-8, in pieces of whole lines."""
        self._flush()
        return map(zlib.decompress, self._parts)

    def _flush(self) -> None:
        if self._ids:
            text = "".join([f"{each}\n" for each in self._ids])
            self._parts.append(zlib.compress(text.encode("utf-8", "replace"), 1))
            self._ids.clear()


def _sum_tokens(usage: Mapping[str, Any]) -> int:
    """Return the tokens of an item from the journal's column; 0 if it is not one."""
    try:
        total = int(usage["input"] + usage["output"] + usage["cache_read"] + usage["cache_write"])
    except (ValueError, TypeError, LookupError, OverflowError):
        return 0
    return min(_MOST, max(0, total))
