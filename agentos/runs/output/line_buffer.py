"""Split a stream of bytes into lines of bounded length."""

from __future__ import annotations

from collections.abc import Iterator

MAX_LINE = 1 << 16


class LineBuffer:
    """Passes a stream on in whole lines; a line of more than 64 KiB in pieces that do not split a character."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Return the lines that are complete now, with their ends, or a part of one that is too long to buffer."""
        end = data.rfind(b"\n") + 1
        if not end and len(self._rest) + len(data) <= MAX_LINE:
            self._rest += data
            return b""
        text = bytes(self._rest) + data
        end = end + len(self._rest) if end else 0
        if len(text) - end > MAX_LINE:
            end = _find_cut(text, len(text))
        self._rest[:] = text[end:]
        return text[:end]

    def flush(self) -> bytes:
        """Return the unterminated line at the end of the stream."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest


def split(text: bytes, *, at_end: bool = False) -> Iterator[tuple[bytes, bool]]:
    """Yield the lines of *text* without line feeds, and whether each is complete or more of it follows.

    A line of more than 64 KiB comes in pieces. Text without a line feed is a piece too, unless it is *at_end* of the
    stream. Carriage returns are kept, so that bytes forwarded to a pipe arrive unchanged.
    """
    lines = text.split(b"\n")
    rest = lines.pop()
    for line in lines:
        if len(line) > MAX_LINE:
            yield from _pieces(line, whole=True)
        else:
            yield line, True
    if rest:
        yield from _pieces(rest, whole=at_end)


def cut(text: bytes, longest: int) -> bytes:
    """Return the first *longest* bytes of *text*, or up to three fewer so that no character is split."""
    return text if len(text) <= longest else text[: _find_cut(text, longest)]


def cut_start(text: bytes) -> bytes:
    """Return *text* without the rest of a character that was split at its beginning."""
    start = 0
    while start < min(3, len(text)) and text[start] & 0xC0 == 0x80:  # such a byte continues a character of UTF-8
        start += 1
    return text[start:]


def _pieces(line: bytes, *, whole: bool) -> Iterator[tuple[bytes, bool]]:
    start = 0
    while len(line) - start > MAX_LINE:
        piece = cut(line[start : start + MAX_LINE + 1], MAX_LINE)
        yield piece, False
        start += len(piece)
    yield line[start:], whole


def _find_cut(text: bytes, end: int) -> int:
    """Return the last position up to *end* that splits no UTF-8 character and no CR LF."""
    for back in range(1, min(4, end) + 1):
        byte = text[end - back]
        if byte >= 0xC0:  # the first of two, three or four bytes
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return end - back if length > back and end > back else end
        if byte < 0x80:
            return end - 1 if back == 1 and byte == 0x0D and end > 1 else end
    return end
