"""Capture what a Python worker prints as the output of its item."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from .redacted_stream import RedactedStream

if TYPE_CHECKING:
    from ...runs.context import Context
    from ...runs.output.capture import Redactors
    from .stream_writer import Write

_printing: ContextVar[CurrentOutput | None] = ContextVar("agentos_printing", default=None)


class AttemptOutput(Protocol):
    """Receives what one attempt prints."""

    @property
    def finished(self) -> bool: ...

    def write(self, stream: str, data: bytes) -> None: ...

    def finish(self) -> object: ...


class OutputOpener(Protocol):
    """Opens the output of an attempt; ``redactors`` redact secrets in output that belongs to no item."""

    @property
    def redactors(self) -> Redactors | None: ...

    def open(self, item_id: str, index: int, attempt: int, credential_name: str | None = None) -> AttemptOutput: ...


class PrintCapture:
    """Routes ``print``: inside a worker to its item, elsewhere to the original stream, redacted.

    A context manager: from ``install`` to ``uninstall`` it replaces ``sys.stdout`` and ``sys.stderr``. Tasks and
    ``asyncio.to_thread`` of the worker print for its item too; bare threads and forked children do not. With
    *all_to_stderr* nothing goes to standard output. Text for a terminal goes through *write*, if given, because a live
    display may own the terminal.
    """

    def __init__(self, outputs: OutputOpener, *, all_to_stderr: bool = False, write: Write | None = None) -> None:
        self._outputs = outputs
        self._all_to_stderr = all_to_stderr
        self._write = write
        self._replaced: dict[str, tuple[TextIO | None, RoutedText]] = {}

    def __enter__(self) -> PrintCapture:
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def install(self) -> None:
        reals = {"stdout": sys.stdout, "stderr": sys.stderr}
        for name, real in reals.items():
            if name not in self._replaced:
                goes_to = reals["stderr"] if self._all_to_stderr else real
                routed = RoutedText(name, RedactedStream(goes_to, self._outputs.redactors, self._above()))
                self._replaced[name] = (real, routed)
                setattr(sys, name, routed)

    def _above(self) -> Callable[[str], object] | None:
        # Always as standard error: for standard output, a display that has ended would print to this object.
        return None if self._write is None else functools.partial(self._write, "stderr")

    def uninstall(self) -> None:
        """Restore the streams, unless other code has replaced them meanwhile."""
        for name, (real, routed) in self._replaced.items():
            if getattr(sys, name) is routed:
                setattr(sys, name, real)
            routed.redacted.finish()
        self._replaced.clear()

    def wrap(self, function: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
        """Return a worker that calls *function* and captures its output. It always takes a context.

        The journal identifies it by *name*, which has a colon in it, else by the name of *function*.
        """
        from ...runs.worker import inspect_worker

        worker = inspect_worker(function)
        call: Callable[..., Any]
        if worker.is_async:

            async def call(item: Any, credential: Any, *, context: Context) -> Any:
                with CurrentOutput(self._outputs, context):
                    if worker.wants_context:
                        return await worker.call(item, credential, context=context)
                    return await worker.call(item, credential)

        else:

            def call(item: Any, credential: Any, *, context: Context) -> Any:
                with CurrentOutput(self._outputs, context):
                    if worker.wants_context:
                        return worker.call(item, credential, context=context)
                    return worker.call(item, credential)

        # The journal identifies a worker by these; functools.wraps would also copy the signature.
        call.__module__, call.__qualname__ = (name or worker.name).split(":", 1)
        call.__name__ = call.__qualname__.rpartition(".")[2]
        setattr(call, "outputs", self._outputs)  # noqa: B010 - the run writes there how each attempt ended
        return call


@contextlib.contextmanager
def build_redacted_streams(redactors: Redactors | None, *, all_to_stderr: bool = False) -> Iterator[None]:
    """While active, redact standard output and error; with *all_to_stderr* everything goes to the latter."""
    if redactors is None and not all_to_stderr:
        yield
        return
    from ...runs.output.capture import OutputCapture

    with PrintCapture(OutputCapture(None, redactors), all_to_stderr=all_to_stderr):
        yield


class CurrentOutput:
    """While entered, what the context prints is the output of this attempt."""

    def __init__(self, outputs: OutputOpener, context: Context) -> None:
        name = None if context.lease is None else context.lease.name
        self.output = outputs.open(context.item_id, context.index, context.attempt, name)
        self._process = os.getpid()

    @property
    def is_in_a_child(self) -> bool:
        """Return whether this is a forked copy: its locks may stay held, and its buffered text is the parent's."""
        return os.getpid() != self._process

    def __enter__(self) -> None:
        self._token = _printing.set(self)

    def __exit__(self, *_: object) -> None:
        _printing.reset(self._token)
        if not self.is_in_a_child:
            self.output.finish()


def _current_item() -> AttemptOutput | None:
    """Return the current item's output; None outside of an item, and in a task that outlives its item."""
    printing = _printing.get()
    if printing is None or printing.is_in_a_child or printing.output.finished:
        return None
    return printing.output


def write_for_item(text: str) -> bool:
    """Write *text* to the standard error of the item whose worker runs here; False outside of one."""
    item = _current_item()
    if item is not None:
        _write_to_item(item, "stderr", text.encode("utf-8", "backslashreplace"))
    return item is not None


def _write_to_item(item: AttemptOutput, stream: str, data: bytes) -> None:
    # Code that shows or logs the item's line may print to the same stream.
    token = _printing.set(None)
    try:
        item.write(stream, data)
    finally:
        _printing.reset(token)


class RoutedText(io.TextIOBase):
    """Replaces ``sys.stdout`` or ``sys.stderr``; output of no item goes to *redacted*. Closing it does nothing."""

    def __init__(self, name: str, redacted: RedactedStream) -> None:
        self._name = name
        self.redacted = redacted
        self.buffer = RoutedBytes(name, redacted)

    @property
    def _real(self) -> TextIO | None:
        return self.redacted.real

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        item = _current_item()
        if item is not None:
            _write_to_item(item, self._name, text.encode("utf-8", "backslashreplace"))
        else:
            self.redacted.write_text(text)
        return len(text)

    def flush(self) -> None:
        if _current_item() is None:
            self.redacted.flush()

    def isatty(self) -> bool:
        # An item's output also goes to its log: no colours and no bars.
        return self._real is not None and _current_item() is None and self._real.isatty()

    def fileno(self) -> int:
        """Return the descriptor of the original stream: what is written to it belongs to no item."""
        return self.buffer.fileno()

    def writable(self) -> bool:
        return True

    def close(self) -> None: ...

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8" if self._real is None or _current_item() is not None else self._real.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return "backslashreplace" if self._real is None or _current_item() is not None else self._real.errors

    def __getattr__(self, name: str) -> Any:
        """Return other attributes (``name``, ``mode``, ``reconfigure``) of the original stream."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._real, name)


class RoutedBytes(io.RawIOBase):
    """The ``buffer`` of a routed stream."""

    def __init__(self, name: str, redacted: RedactedStream) -> None:
        self._name = name
        self._redacted = redacted

    @property
    def _real(self) -> TextIO | None:
        return self._redacted.real

    def write(self, data: Any) -> int:
        written = bytes(data) if not isinstance(data, int | str) else _no_bytes(data)
        item = _current_item()
        if item is not None:
            _write_to_item(item, self._name, written)
        else:
            self._redacted.write_bytes(written)
        return len(written)

    def flush(self) -> None:
        if _current_item() is None:
            self._redacted.flush()

    def isatty(self) -> bool:
        return self._real is not None and _current_item() is None and self._real.isatty()

    def fileno(self) -> int:
        if self._real is None:
            raise io.UnsupportedOperation("fileno")
        return self._real.fileno()

    def writable(self) -> bool:
        return True

    def close(self) -> None: ...


def _no_bytes(data: object) -> bytes:
    raise TypeError(f"a bytes-like object is required, not {type(data).__name__!r}")
