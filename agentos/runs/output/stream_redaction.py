"""Taking secrets out of a stream of bytes, wherever its pieces begin and end.

A stream is judged window by window: eight bytes that stand in any form of a secret are blotted out. Looking up each
window would take a second for every 20 MB. But any window covers a whole *word*: four bytes whose place in the text is
a multiple of four. So the words are looked up, many in one call, and windows only around the few words that some secret
has too.

Letter case does not count: windows are kept in lower case, and a copy of the text in lower case, which has the same
positions, is searched.
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
_BLOCK = 64  # words: where one of them is known, these are looked at one by one
_UNDECIDED = SHORTEST_PIECE - 1  # what begins so near the end may yet become a window
_UNDECIDED_STRETCH = 2 * (SHORTEST_PIECE - 1)  # or a stretch that is noticed

# What a terminal obeys and does not show: colours, titles, links, controls (the zeros of UTF-16 are some).
_NOT_SHOWN = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"
    rb"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"
    rb"|\x1b[ -/]*[0-Z\\`-~]"
    rb"|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]"
)


class Redaction:
    """Makes a redactor for each stream of a pool's items. Secrets that the masker learns later are known at once.

    Of the first fifty secrets, and of the one an item uses itself, every window is blotted out. Others are noticed by
    every eighth window, hence in any stretch of fifteen bytes, and from then on in that stream wholly.
    """

    def __init__(self, masker: Masker, secret_of: Callable[[str], Secret] | None = None) -> None:
        self._masker = masker
        self._find_secret = secret_of  # by the name of its credential; a LookupError: there is none of that name
        self._windows = SecretWindows()
        self._taken = 0
        self._taking = threading.Lock()

    def stream(self, credential: str | None = None) -> StreamRedactor:
        """A redactor for one stream of an item that uses *credential*."""
        own = SecretWindows()
        if credential is not None and self._find_secret is not None and self._masker.count > FULLY_KNOWN:
            try:
                own.add(self._find_secret(credential).reveal())
            except LookupError:
                pass  # it has left the pool meanwhile; the masker still knows it
        return StreamRedactor(self.windows, own)

    def masked(self, text: str) -> str:
        """*text* without the secrets; nearly always *text* itself."""
        data = text.encode("utf-8", "surrogatepass")
        if not self.windows()[0].find_starts(data.lower()):
            return text
        stream = self.stream()
        return (stream.feed(data) + stream.flush()).decode("utf-8", "surrogatepass")

    def windows(self) -> tuple[SecretWindows, bool]:
        """The windows of all secrets, and whether those are all of them."""
        if self._taken < self._masker.count:
            with self._taking:
                for secret in self._masker.secrets_from(self._taken):
                    self._windows.add(secret, every=1 if self._taken < FULLY_KNOWN else SHORTEST_PIECE)
                    self._taken += 1
        return self._windows, self._taken <= FULLY_KNOWN


class SecretWindows:
    """Windows of secrets in lower case, found in a text as fast as Python can."""

    __slots__ = ("_owners", "_words")  # a set of words, as numbers; windows, with the secret they are but a part of

    def __init__(self) -> None:
        self._owners: dict[bytes, str | None] = {}
        self._words: set[int] = set()

    def add(self, secret: str, every: int = 1) -> None:
        """Know *secret*, by *every* so many of its windows."""
        for form in folded_forms(secret):
            raw = form.encode()
            windows = [raw[start : start + SHORTEST_PIECE] for start in range(0, len(raw) - SHORTEST_PIECE + 1, every)]
            if every == 1:
                self._owners.update(dict.fromkeys(windows))
            else:
                for window in windows:
                    self._owners.setdefault(window, secret)
            # The first whole word of a window in a text is at its beginning, or up to three bytes behind.
            for stretch in [raw] if every == 1 else [window[:-1] for window in windows]:
                for shift in range(_WORD):
                    self._words.update(_split_words(stretch[shift:]))

    def find_starts(self, text: bytes) -> list[int]:
        """Where the known windows begin in *text*, which is in lower case, in order."""
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
            # The first whole word of a window lies at most three bytes behind its beginning.
            for start in range(max(0, number * _WORD - _WORD + 1), number * _WORD + 1):
                if text[start : start + SHORTEST_PIECE] in owners:
                    yield start

    def partly_known(self, windows: Iterable[bytes]) -> Iterator[str]:
        """The secrets with one of *windows*, of which not every window is here; each once."""
        yield from {owner for owner in map(self._owners.get, windows) if owner is not None}


class StreamRedactor:
    """Blots out the secrets in one stream: ``feed`` it the bytes as they come, and ``flush`` it at the end.

    It keeps back the last few bytes of a line that has not ended, for they may begin a secret; all else comes out at
    once. Of a secret that has line ends itself, written line by line, up to seven bytes may so come out.
    """

    def __init__(self, known: Callable[[], tuple[SecretWindows, bool]], own: SecretWindows) -> None:
        self._known = known
        self._own = own
        self._text = b""  # the last bytes: a secret may begin in them
        self._out = 0  # so many of those have come out, as they are or blotted out
        self._redacted = False  # the last that came out was a blot

    def feed(self, data: bytes) -> bytes:
        """The bytes that may be shown now."""
        return self._judge(self._text + data) if data else b""

    def flush(self) -> bytes:
        """The rest, at the end of the stream."""
        return self._judge(self._text, at_end=True)

    def redact_without_colors(self, lines: bytes) -> bytes:
        """*lines* that came out of here; but if only colours hide a secret in them, without colours and secret.

        A terminal shows none of what stands there between two pieces of the secret.
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
                continue  # it was met before
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
    """The whole words of *text*, as numbers."""
    return memoryview(text)[: len(text) // _WORD * _WORD].cast("I")
