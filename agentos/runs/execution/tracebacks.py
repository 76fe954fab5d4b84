"""Find where an exception was raised in the user's code, and format its traceback without frames of agentos."""

from __future__ import annotations

import os
import site
import sysconfig
import traceback
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Final

_LONGEST: Final = 8 * 1024  # characters; the end is kept, because it has the error itself
_MOST_FRAMES: Final = 200  # of each exception, the innermost: a recursion has thousands
_LEFT_OUT: Final = "<left out>"  # stands for the file of frames that are only counted

_OWN: Final = str(Path(__file__).resolve().parents[2]) + os.sep

# The attribute of an exception raised in another process that holds its place and its traceback there.
REMOTE_TRACE: Final = "_agentos_trace"


def find_place(error: BaseException) -> str | None:
    """Return where *error* was raised, as ``work.py:12 in fetch``: the innermost frame that is not a library's.

    None if it was not raised in the user's code: agentos made it.
    """
    remote = error.__dict__.get(REMOTE_TRACE)
    if remote is not None:
        return remote[0]  # type: ignore[no-any-return]
    found = outermost = None
    for frame, line in _walk(error.__traceback__):
        code = frame.f_code
        if not code.co_filename.startswith(_OWN):
            outermost = outermost or (code, line)
            if not _is_library(code.co_filename):
                found = (code, line)
    place = found or outermost  # a worker that is itself installed as a library
    return None if place is None else f"{_shorten_path(place[0].co_filename)}:{place[1]} in {place[0].co_qualname}"


def format_traceback(error: BaseException) -> str:
    """Return the traceback with its causes, at most 8 KiB of it; of frames of libraries only the innermost.

    Empty if no frame is left, because agentos made the error.
    """
    remote = error.__dict__.get(REMOTE_TRACE)
    if remote is not None:
        return remote[1]  # type: ignore[no-any-return]
    try:
        found = traceback.TracebackException.from_exception(error, limit=-_MOST_FRAMES, lookup_lines=False)
        shown = sum(_reduce_frames(each) for each in _chain(found))
        text = "".join(found.format()) if shown else ""
    except BaseException:  # noqa: BLE001 - the exception's own methods may raise anything
        return type(error).__name__
    return text if len(text) <= _LONGEST else f"...\n{text[4 - _LONGEST :].partition(chr(10))[2]}"


def _walk(trace: TracebackType | None) -> Iterator[tuple[Any, int | None]]:
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _chain(found: traceback.TracebackException | None) -> Iterator[traceback.TracebackException]:
    """Yield the exception, its causes, and the exceptions of groups."""
    if found is not None:
        yield found
        yield from _chain(found.__cause__)
        yield from _chain(found.__context__)
        for each in found.exceptions or ():
            yield from _chain(each)


def _reduce_frames(found: traceback.TracebackException) -> int:
    """Remove the frames of agentos and count those of libraries. Return how many frames are left."""
    frames = [frame for frame in found.stack if not frame.filename.startswith(_OWN)]
    users = [not _is_library(frame.filename) for frame in frames]
    if frames and not any(users):
        users[0] = True  # the worker itself is a library
    if frames:
        users[-1] = True  # where it was raised
    kept: list[traceback.FrameSummary] = []
    for is_kept, group in groupby(zip(users, frames, strict=True), key=lambda pair: pair[0]):
        some = [frame for _, frame in group]
        kept += some if is_kept or len(some) == 1 else [traceback.FrameSummary(_LEFT_OUT, 0, _count_frames(some))]
    found.stack = _Frames(kept)
    return len(kept)


def _count_frames(frames: list[traceback.FrameSummary]) -> str:
    packages = dict.fromkeys(_find_package(frame.filename) for frame in frames)
    return f"[{len(frames)} calls in {', '.join(packages)}]"


class _Frames(traceback.StackSummary):
    """Frames, some of which stand for several of a library."""

    def format_frame_summary(self, frame_summary: traceback.FrameSummary, **options: Any) -> str:
        if frame_summary.filename == _LEFT_OUT:
            return f"  {frame_summary.name}\n"
        return super().format_frame_summary(frame_summary, **options)


@lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    found = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found.update([*site.getsitepackages(), site.getusersitepackages()] if hasattr(site, "getsitepackages") else [])
    real = {os.path.realpath(folder) for folder in found}
    return tuple(folder + os.sep for folder in found | real)


@lru_cache(maxsize=4096)
def _is_library(file: str) -> bool:
    if file.startswith("<"):
        return not file.startswith(("<stdin>", "<string>", "<ipython"))  # <frozen importlib._bootstrap>
    return (
        file.startswith(_library_folders())
        or f"{os.sep}site-packages{os.sep}" in file
        or f"{os.sep}dist-packages{os.sep}" in file
    )


def _find_package(file: str) -> str:
    """Return the name of the package or module that *file* belongs to."""
    for folder in ("site-packages", "dist-packages"):
        _, found, rest = file.rpartition(f"{os.sep}{folder}{os.sep}")
        if found:
            return rest.split(os.sep)[0].removesuffix(".py")
    for folder in _library_folders():
        if file.startswith(folder):
            return file.removeprefix(folder).split(os.sep)[0].removesuffix(".py")
    return "Python" if file.startswith("<") else Path(file).stem


def _shorten_path(file: str) -> str:
    """Return the path from the working folder, or the last two parts of one that is elsewhere."""
    if file.startswith("<"):
        return file
    path = Path(file)
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(Path(*path.parts[-2:]))
