"""Select the kind of progress output: ``--progress auto|bar|plain|json|none``."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from ...util.terminal import is_terminal
from ..usage_error import UsageError
from .color import is_dumb, use_color

if TYPE_CHECKING:
    from ...pool.snapshot import CredentialState
    from ...runs.display.plain_lines import PlainProgress
    from ...runs.progress import Progress

MODES = ("auto", "bar", "plain", "json", "none")
_TICK = 5.0


class Reporter(Protocol):
    """An ``on_progress`` callback with ``close``, which may be called at any time and more than once."""

    @property
    def write_above(self) -> Callable[[str, str], object] | None:
        """A function that prints lines of ``"stdout"`` or ``"stderr"`` above the drawn region; None: write directly."""
        ...

    def __call__(self, event: Progress) -> None: ...

    def close(self) -> None: ...


def build_reporter(
    mode: str,
    *,
    stream: TextIO,
    stdout: TextIO | None = None,
    environ: Mapping[str, str],
    colour_flag: str = "auto",
    run_name: str = "",
    keys: Callable[[], Sequence[CredentialState]] | None = None,
    parallel: int | None = None,
    waiting: Callable[[], int] | None = None,
    forecast: Callable[[int], float | None] | None = None,
    running: Callable[[], Iterable[tuple[str, float]]] | None = None,
    last_line: Callable[[str], str | None] | None = None,
) -> Reporter:
    """Return progress output on *stream*. ``auto`` is a live display on a capable terminal, else plain lines.

    ``auto`` is plain too if *stdout* is a pipe or a file: ``| less`` shares the terminal with the display, and what
    ``| tee`` prints would go into the middle of it. ``bar`` asks only about *stream*. Without rich both are plain.
    """
    if mode not in MODES:
        raise UsageError(f"--progress: {mode!r} is not known", f"give one of {', '.join(MODES)}")
    colourful = use_color(stream, environ, colour_flag)  # in each mode, so that a wrong flag is always refused
    if mode == "none":
        return _Silent()
    if mode == "json":
        return _Json(stream)
    on_terminal = is_terminal(stream) and (mode == "bar" or stdout is None or is_terminal(stdout))
    if mode != "plain" and on_terminal and not is_dumb(environ):
        try:
            from ...runs.display.rich_display import RichProgress
        except ModuleNotFoundError:
            pass
        else:
            return RichProgress.on(
                stream,
                environ,
                colour=colourful,
                name=run_name,
                keys=keys,
                parallel=parallel,
                waiting=waiting,
                forecast=forecast,
                running=running,
                last_line=last_line,
                redirect=False,
            )
    from ...runs.display.plain_lines import PlainProgress

    lines = PlainProgress(
        stream, name=run_name, keys=keys, parallel=parallel, waiting=waiting, running=running, forecast=forecast
    )
    return _Plain(lines)


class _Silent:
    write_above = None

    def __call__(self, event: Progress) -> None: ...

    def close(self) -> None: ...


class _Plain:
    """Plain lines, also while nothing happens: a log that is silent for ten minutes looks like a hung run."""

    write_above = None

    def __init__(self, lines: PlainProgress) -> None:
        self._lines = lines
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, event: Progress) -> None:
        self._lines(event)
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._tick, name="agentos-lines", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._lines.close()

    def _tick(self) -> None:
        while not self._closed.wait(_TICK):
            self._lines.tick()


class _Json:
    """One JSON object per event and line, without the values of items: those are in the results."""

    write_above = None

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_gone = False

    def __call__(self, event: Progress) -> None:
        if self._is_gone:
            return
        try:
            # Plain ASCII in one write: it can always be encoded, and no other writer's line can split it.
            self._stream.write(json.dumps(_build_facts(event)) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._is_gone = True

    def close(self) -> None: ...


def _build_facts(event: Progress) -> dict[str, Any]:
    stats = event.stats
    facts: dict[str, Any] = {"at": round(time.time(), 3), "kind": event.kind}
    if event.item_id is not None:
        facts["item"] = event.item_id
    if event.result is not None:
        result = event.result
        facts |= {"outcome": result.outcome, "duration": round(result.duration, 3), "attempts": result.attempts}
        facts |= {"credential": result.credential, "error": result.error}
        if not result.success:
            facts |= {name: result.metadata.get(name) for name in ("error_type", "place", "traceback")}
    if event.message:
        facts["message"] = event.message
    facts |= {"total": stats.total, "completed": stats.completed, "failed": stats.failed, "retried": stats.retried}
    facts |= {"limited": stats.limited, "rejected": stats.rejected, "unreachable": stats.unreachable}
    facts |= {"cached": stats.cached, "unreachable_since": stats.unreachable_since}
    facts |= {"interrupted": stats.interrupted, "parked": stats.parked}
    facts |= {"done": stats.success_count, "elapsed": round(stats.elapsed, 3)}
    facts["usage"] = stats.usage.to_json()
    if stats.stopped_by is not None:
        facts["stopped_by"] = stats.stopped_by
    return facts
