"""Redact secrets in a stream of bytes that arrives in arbitrary pieces.

The unit is a window: eight bytes that occur in any form of a secret are redacted. A lookup for each window would take a
second per 20 MB. But any window covers a whole *word*: four bytes at an offset that is a multiple of four. So the words
are looked up, many in one call, and windows only around the few words that also occur in a secret.

Letter case does not count: windows are stored in lower case, and a lower-case copy of the text, which has the same
offsets, is searched.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import compress, count

from ...pool.redaction import FULLY_KNOWN, SHORTEST_PIECE, Masker, folded_forms
from ...pool.redaction import MASK as MASK_TEXT
from ...pool.secret import Secret

MASK = MASK_TEXT.encode()

_WORD = 4
_BLOCK = 64  # words: if one of them is known, these are checked one by one
_UNDECIDED = SHORTEST_PIECE - 1  # bytes at the end that may begin a window
_UNDECIDED_STRETCH = 2 * (SHORTEST_PIECE - 1)  # or a stretch long enough to be noticed

# Sequences that a terminal does not show: colours, titles, links, control characters (the zeros of UTF-16 are some).
_NOT_SHOWN = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"
    rb"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"
    rb"|\x1b[ -/]*[0-Z\\`-~]"
    rb"|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]"
)


class Redaction:
    """Makes a redactor for each stream of a pool's items. Secrets added to the masker later take effect at once.

    Every window of the first fifty secrets, and of the item's own secret, is redacted. Other secrets are detected by
    every eighth window, so in any stretch of fifteen bytes, and from then on redacted completely in that stream.
    """

    def __init__(self, masker: Masker, secret_of: Callable[[str], Secret] | None = None) -> None:
        self._masker = masker
        self._find_secret = secret_of  # by credential name; raises LookupError if there is none
        self._windows = SecretWindows()
        self._taken = 0
        self._taking = threading.Lock()

    def stream(self, credential: str | None = None) -> StreamRedactor:
        """Return a redactor for one stream of an item that uses *credential*."""
        own = SecretWindows()
        if credential is not None and self._find_secret is not None and self._masker.count > FULLY_KNOWN:
            try:
                own.add(self._find_secret(credential).reveal())
            except LookupError:
                pass  # removed from the pool meanwhile; the masker still has it
        return StreamRedactor(self.windows, own)

    def masked(self, text: str) -> str:
        """Return *text* without the secrets; nearly always *text* itself."""
        data = text.encode("utf-8", "surrogatepass")
        if not self.windows()[0].find_starts(data.lower()):
            return text
        stream = self.stream()
        return (stream.feed(data) + stream.flush()).decode("utf-8", "surrogatepass")

    def windows(self) -> tuple[SecretWindows, bool]:
        """Return the windows of all secrets, and whether every window of each is included."""
        if self._taken < self._masker.count:
            with self._taking:
                for secret in self._masker.secrets_from(self._taken):
                    self._windows.add(secret, every=1 if self._taken < FULLY_KNOWN else SHORTEST_PIECE)
                    self._taken += 1
        return self._windows, self._taken <= FULLY_KNOWN


class SecretWindows:
    """Windows of secrets in lower case, with a fast search."""

    __slots__ = ("_owners", "_words")  # windows, with the secret they represent only a part of; words, as integers

    def __init__(self) -> None:
        self._owners: dict[bytes, str | None] = {}
        self._words: set[int] = set()

    def add(self, secret: str, every: int = 1) -> None:
        """Add *secret*, by every *every*-th of its windows."""
        for form in folded_forms(secret):
            raw = form.encode()
            windows = [raw[start : start + SHORTEST_PIECE] for start in range(0, len(raw) - SHORTEST_PIECE + 1, every)]
            if every == 1:
                self._owners.update(dict.fromkeys(windows))
            else:
                for window in windows:
                    self._owners.setdefault(window, secret)
            # The first whole word of a window in a text is at its start, or up to three bytes after.
            for stretch in [raw] if every == 1 else [window[:-1] for window in windows]:
                for shift in range(_WORD):
                    self._words.update(_split_words(stretch[shift:]))

    def find_starts(self, text: bytes) -> list[int]:
        """Return the offsets of known windows in *text*, which is in lower case, in order."""
        if not self._words:
            return []
        words = _split_words(text)
        found: list[int] = []
        for first in range(0, len(words), _BLOCK):
            block = words[first : first + _BLOCK]
            if not self._words.isdisjoint(block):
                found += self._find_starts_near(compress(count(first), map(self._words.__contains__, block)), text)
        return found

    def _find_starts_near(self, words: Iterable[int], text: bytes) -> Iterator[int]:
        owners = self._owners
        for number in words:
            # The first whole word of a window is at most three bytes after its start.
            for start in range(max(0, number * _WORD - _WORD + 1), number * _WORD + 1):
                if text[start : start + SHORTEST_PIECE] in owners:
                    yield start

    def partly_known(self, windows: Iterable[bytes]) -> Iterator[str]:
        """Yield each secret that has one of *windows* and of which not every window is stored."""
        yield from {owner for owner in map(self._owners.get, windows) if owner is not None}


class StreamRedactor:
    """Redacts the secrets in one stream: ``feed`` it the bytes as they come, and ``flush`` it at the end.

    It holds back the last few bytes of an unterminated line, because they may begin a secret; the rest is returned at
    once. Of a secret that contains line ends and is written line by line, up to seven bytes may be missed.
    """

    def __init__(self, known: Callable[[], tuple[SecretWindows, bool]], own: SecretWindows) -> None:
        self._known = known
        self._own = own
        self._text = b""  # the last bytes, in which a secret may begin
        self._out = 0  # number of those that were returned, redacted or not
        self._redacted = False  # the last output was a mask

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that may be shown now."""
        return self._judge(self._text + data) if data else b""

    def flush(self) -> bytes:
        """Return the rest, at the end of the stream."""
        return self._judge(self._text, at_end=True)

    def redact_without_colors(self, lines: bytes) -> bytes:
        """Redact secrets that only control sequences hide in *lines*, and drop those sequences; else return *lines*.

        A terminal does not show what stands between two pieces of such a secret. *lines* were returned by this
        redactor.
        """
        if b"\x1b" not in lines and b"\0" not in lines:
            return lines
        plain = _NOT_SHOWN.sub(b"", lines)
        if not self._find_starts(plain)[0]:
            return lines
        again = StreamRedactor(self._known, self._own)
        return again.feed(plain) + again.flush()

    def _judge(self, text: bytes, *, at_end: bool = False) -> bytes:
        starts, all_known = self._find_starts(text)
        undecided = 0 if at_end else _UNDECIDED if all_known else _UNDECIDED_STRETCH
        kept = max(0, len(text) - undecided)
        show = max(kept, text.rfind(b"\n") + 1)
        parts: list[bytes] = []
        out = self._out
        for start in starts:
            if start + SHORTEST_PIECE <= out:
                continue  # processed before
            if start > out:
                parts.append(text[out:start])
                self._redacted = False
            if not self._redacted:
                parts.append(MASK)
                self._redacted = True
            out = start + SHORTEST_PIECE
        if show > out:
            parts.append(text[out:show])
            self._redacted = False
            out = show
        self._text = text[kept:]
        self._out = out - kept
        return b"".join(parts)

    def _find_starts(self, text: bytes) -> tuple[list[int], bool]:
        windows, all_known = self._known()
        text = text.lower()
        starts = windows.find_starts(text)
        if starts and not all_known:
            for secret in windows.partly_known(text[start : start + SHORTEST_PIECE] for start in starts):
                self._own.add(secret)
        own = self._own.find_starts(text)
        return (sorted({*starts, *own}) if own else starts), all_known


def _split_words(text: bytes) -> memoryview:
    """Return the whole words of *text* as integers."""
    return memoryview(text)[: len(text) // _WORD * _WORD].cast("I")
