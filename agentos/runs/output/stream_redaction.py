"""Redact secrets in a stream of bytes that arrives in arbitrary pieces, or in a value.

The unit is a window: bytes that occur in a form of a secret and are redacted, eight of them in a stream. A lookup at
each offset would take a second per 20 MB. But any window covers a whole *word*: four bytes at an offset that is a
multiple of four (eight, if the windows are long enough). So the words are looked up, many in one call, and windows only
around the few words that also occur in a window.

Letter case does not count: windows are stored in lower case, and a lower-case copy of the text, which has the same
offsets, is searched.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, count

from ...pool.redaction import FULLY_KNOWN, SHORTEST_PIECE, Masker, output_windows
from ...pool.redaction import MASK as MASK_TEXT
from ...pool.secret import Secret

MASK = MASK_TEXT.encode()

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


Windows = Callable[[str], Iterable[bytes]]  # of a secret, by one of the rules of pool/redaction.py


class Redaction:
    """Makes a redactor for each stream of a pool's items. Secrets added to the masker later take effect at once.

    Every window of the first fifty secrets, and of the item's own secret, is redacted. Other secrets are detected by
    every eighth piece of eight bytes, so in any stretch of fifteen bytes, and from then on redacted completely in that
    stream. *windows*: the rule; that of values is for ``masked`` only.
    """

    def __init__(
        self,
        masker: Masker,
        secret_of: Callable[[str], Secret] | None = None,
        *,
        windows: Windows = output_windows,
    ) -> None:
        self._masker = masker
        self._find_secret = secret_of  # by credential name; raises LookupError if there is none
        self._rule = windows
        self._windows = SecretWindows(windows)
        self._taken = 0
        self._taking = threading.Lock()

    def stream(self, credential: str | None = None) -> StreamRedactor:
        """Return a redactor for one stream of an item that uses *credential*."""
        own = SecretWindows(self._rule)
        if credential is not None and self._find_secret is not None and self._masker.count > FULLY_KNOWN:
            try:
                own.add(self._find_secret(credential).reveal())
            except LookupError:
                pass  # removed from the pool meanwhile; the masker still has it
        return StreamRedactor(self.windows, own)

    def masked(self, text: str) -> str:
        """Return *text* without the secrets; nearly always *text* itself."""
        data = text.encode("utf-8", "surrogatepass")
        if not self.windows()[0].find(data.lower()):
            return text
        return self.stream().redact(data).decode("utf-8", "surrogatepass")

    def windows(self) -> tuple[SecretWindows, bool]:
        """Return the windows of all secrets, and whether every window of each is included."""
        if self._taken < self._masker.count:
            with self._taking:
                for secret in self._masker.secrets_from(self._taken):
                    if self._taken < FULLY_KNOWN:
                        self._windows.add(secret)
                    else:
                        self._windows.add_detection(secret)
                    self._taken += 1
        return self._windows, self._taken <= FULLY_KNOWN


@dataclass(frozen=True, slots=True, order=True)
class FoundWindow:
    """A window in a text. ``owner`` is the secret it detects, if not every window of that is known."""

    start: int
    end: int
    owner: str | None = None


class SecretWindows:
    """Windows of secrets in lower case, with a fast search."""

    __slots__ = ("_indexes", "_owners", "_rule")

    def __init__(self, rule: Windows = output_windows) -> None:
        self._rule = rule
        self._owners: dict[bytes, str | None] = {}  # windows, with the secret they detect
        self._indexes = (_WordIndex(4), _WordIndex(8))

    def add(self, secret: str) -> None:
        """Add every window of *secret*."""
        windows = list(self._rule(secret))
        self._owners.update(dict.fromkeys(windows))
        self._add_words(windows)

    def add_detection(self, secret: str) -> None:
        """Add the windows that detect *secret*."""
        windows = list(output_windows(secret, SHORTEST_PIECE))
        for window in windows:
            self._owners.setdefault(window, secret)
        self._add_words(windows)

    def _add_words(self, windows: Sequence[bytes]) -> None:
        short, long = self._indexes
        short.add([window for window in windows if len(window) < long.shortest_window])
        long.add([window for window in windows if len(window) >= long.shortest_window])

    def find(self, text: bytes) -> list[FoundWindow]:
        """Return the windows in *text*, which is in lower case, in order."""
        owners = self._owners
        found = [
            FoundWindow(start, start + len(window), owners[window])
            for index in self._indexes
            for start, window in index.find_candidates(text)
            if window in owners
        ]
        return sorted(found) if found else found


class _WordIndex:
    """Finds the places in a text where a window may be, by the words of *size* bytes that windows contain."""

    __slots__ = ("_lengths", "_words", "shortest_window", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.shortest_window = 2 * size - 1  # else it need not cover a whole word
        self._words: set[int] = set()
        self._lengths: tuple[int, ...] = ()  # of windows

    def add(self, windows: Sequence[bytes]) -> None:
        if windows:
            # The first whole word of a window in a text is at its start, or up to *size* - 1 bytes after.
            parts = {window[shift : shift + self.size] for window in windows for shift in range(self.size)}
            self._lengths = tuple({*self._lengths, *map(len, windows)})
            self._words.update(self._split(b"".join(parts)))

    def find_candidates(self, text: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the places, each with the text there, in the length of every window."""
        known, size, lengths = self._words, self.size, self._lengths
        if not known:
            return
        words = self._split(text)
        for first in range(0, len(words), _BLOCK):
            block = words[first : first + _BLOCK]
            if not known.isdisjoint(block):
                for number in compress(count(first), map(known.__contains__, block)):
                    for start in range(max(0, (number - 1) * size + 1), number * size + 1):
                        for length in lengths:
                            yield start, text[start : start + length]

    def _split(self, text: bytes) -> memoryview:
        """Return the whole words of *text* as integers."""
        whole = memoryview(text)[: len(text) // self.size * self.size]
        return whole.cast("Q") if self.size == 8 else whole.cast("I")


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
        self.has_redacted = False  # a secret was in the stream

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
        if not self._find(plain)[0]:
            return lines
        self.has_redacted = True
        again = StreamRedactor(self._known, self._own)
        return again.feed(plain) + again.flush()

    def redact(self, text: bytes) -> bytes:
        """Return the whole *text* of a stream redacted."""
        return self._judge(text, at_end=True)

    def _judge(self, text: bytes, *, at_end: bool = False) -> bytes:
        found, all_known = self._find(text)
        undecided = 0 if at_end else _UNDECIDED if all_known else _UNDECIDED_STRETCH
        kept = max(0, len(text) - undecided)
        show = max(kept, text.rfind(b"\n") + 1)
        parts: list[bytes] = []
        out = self._out
        for window in found:
            if window.end <= out:
                continue  # processed before
            if window.start > out:
                parts.append(text[out : window.start])
                self._redacted = False
            if not self._redacted:
                parts.append(MASK)
                self._redacted = self.has_redacted = True
            out = window.end
        if show > out:
            parts.append(text[out:show])
            self._redacted = False
            out = show
        self._text = text[kept:]
        self._out = out - kept
        return b"".join(parts)

    def _find(self, text: bytes) -> tuple[list[FoundWindow], bool]:
        """Return the windows that are redacted, in order, and whether all windows of all secrets are known."""
        windows, all_known = self._known()
        text = text.lower()
        found = windows.find(text)
        for secret in {each.owner for each in found if each.owner is not None}:
            self._own.add(secret)
        own = self._own.find(text)
        if not all_known or own:
            found = sorted({each for each in (*found, *own) if each.owner is None})
        return found, all_known
