"""Lines in a stream of bytes, none of them too long to be held."""

from __future__ import annotations

from collections.abc import Iterator

MAX_LINE = 1 << 16


class LineBuffer:
    """Lets a stream pass in whole lines, and a line of more than 64 KiB in pieces that tear no character."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> bytes:
        """The lines that are whole now, with their ends; or a part of one that is too long to wait for."""
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
        """The line that has no end, at the end of the stream."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest


def split(text: bytes, *, at_end: bool = False) -> Iterator[tuple[bytes, bool]]:
    """The lines of *text* without their line feeds, and whether each ends there: if not, more of it follows.

    A line of more than 64 KiB comes in pieces. What has no line feed is a piece too, unless it is *at_end* of the
    stream. A carriage return stays: where the bytes go on to a pipe, they are to arrive as they came.
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
    """The first *longest* bytes of *text*, or up to three less where that would tear a character."""
    return text if len(text) <= longest else text[: _find_cut(text, longest)]


def _pieces(line: bytes, *, whole: bool) -> Iterator[tuple[bytes, bool]]:
    start = 0
    while len(line) - start > MAX_LINE:
        piece = cut(line[start : start + MAX_LINE + 1], MAX_LINE)
        yield piece, False
        start += len(piece)
    yield line[start:], whole


def _find_cut(text: bytes, end: int) -> int:
    """The last place up to *end*, or a little before, that is not within a character of UTF-8 (nor before a CR LF)."""
    for back in range(1, min(4, end) + 1):
        byte = text[end - back]
        if byte >= 0xC0:  # the first of two, three or four bytes
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return end - back if length > back and end > back else end
        if byte < 0x80:
            return end - 1 if back == 1 and byte == 0x0D and end > 1 else end
    return end
