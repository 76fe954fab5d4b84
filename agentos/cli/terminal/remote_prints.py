"""Ship a function of the command line to other machines, and send what it prints there to the driver.

A cluster's connection has channels for output. The driver writes what they carry to the run's ``OutputCapture``.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ...runs.worker import SendsOutput, inspect_worker
from .print_capture import CurrentOutput, PrintCapture

if TYPE_CHECKING:
    from ...runs.context import Context
    from ...runs.output.capture import OutputCapture
    from ...runs.remote.worker_context import SendOutput

_LINE_BY_LINE: Final = 500  # messages; after those, lines are sent together, for each message has its cost
_TOGETHER: Final = 1_400  # bytes
_LARGEST: Final = 1 << 16  # bytes of one message


def ship_function(
    function: Callable[..., Any], name: str | None, folder: Path | None, outputs: OutputCapture | None = None
) -> ShippedFunction:
    """The worker to give to a run whose items run elsewhere. It always wants a context.

    With a *folder*, the modules in it are only here: the function and what it uses of them travel as they stand. A
    journal knows it by *name*, which has a colon in it; else as it would know *function*. The driver writes what it
    prints to *outputs*.
    """
    worker = inspect_worker(function)
    kind = ShippedCoroutine if worker.is_async else ShippedFunction
    sent = kind(function, name or worker.name, wants_context=worker.wants_context, folder=folder)
    sent.outputs = outputs
    return sent


class ShippedFunction(SendsOutput):
    """The user's function. It pickles by value, where it has to."""

    def __init__(
        self, function: Callable[..., Any], name: str, *, wants_context: bool, folder: Path | None = None
    ) -> None:
        self._function = function
        self._wants_context = wants_context
        self._folder = folder
        # By these a journal knows it.
        self.__module__, self.__qualname__ = name.split(":", 1)

    def __call__(self, item: Any, credential: Any, *, context: Context) -> Any:
        with _sent_home(context):
            return self._function(item, credential, **self._more(context))

    def _more(self, context: Context) -> Mapping[str, Any]:
        return {"context": context} if self._wants_context else {}

    def __reduce__(self) -> tuple[Any, ...]:
        packed = _pack_function(self._function, self._folder)
        return _unpack_function, (type(self), packed, f"{self.__module__}:{self.__qualname__}", self._wants_context)


class ShippedCoroutine(ShippedFunction):
    """The same for a coroutine function."""

    async def __call__(self, item: Any, credential: Any, *, context: Context) -> Any:
        with _sent_home(context):
            return await self._function(item, credential, **self._more(context))


def _pack_function(function: Callable[..., Any], folder: Path | None) -> bytes:
    cloudpickle = importlib.import_module("cloudpickle")  # which Dask brings
    beside = [] if folder is None else _modules_in(folder)
    for module in beside:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(function))
    finally:
        for module in beside:
            cloudpickle.unregister_pickle_by_value(module)


def _modules_in(folder: Path) -> list[ModuleType]:
    """Those that were loaded from files in that very folder."""
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name == getattr(module, "__name__", None) and Path(file).resolve().parent == folder.resolve():
            found.append(module)
    return found


def _unpack_function(kind: type[ShippedFunction], packed: bytes, name: str, wants_context: bool) -> ShippedFunction:
    import pickle

    return kind(pickle.loads(packed), name, wants_context=wants_context)  # noqa: S301 - it comes from the run itself


# -- there ------------------------------------------------------------------------------------------------------------


@contextmanager
def _sent_home(context: Context) -> Iterator[None]:
    """Send to the driver what the attempt prints; without a channel for that it is printed in this process."""
    from ...runs.remote.worker_context import output_channel

    send = output_channel(context)
    if send is None:
        yield
        return
    with _streams, CurrentOutput(_Captures(send), context):
        yield


class _Streams:
    """While items run in this process, its streams tell whose a line is; else they are as they were."""

    redactors = None  # secrets are taken out by the driver, which knows all of them

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prints = PrintCapture(self)
        self._running = 0

    def __enter__(self) -> None:
        with self._lock:
            self._running += 1
            if self._running == 1:
                self._prints.install()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._running -= 1
            if self._running == 0:
                self._prints.uninstall()

    def open(self, item_id: str, index: int, attempt: int, credential_name: str | None = None) -> _Output:
        raise NotImplementedError  # each item has outputs of its own


_streams: Final = _Streams()


class _Captures:
    """Open the output of one attempt, which is sent to the driver."""

    redactors = None

    def __init__(self, send: SendOutput) -> None:
        self._send = send

    def open(self, item_id: str, index: int, attempt: int, credential_name: str | None = None) -> _Output:
        return _Output(self._send)


class _Output:
    """Send what one attempt prints, in whole lines. Threads may share it."""

    def __init__(self, send: SendOutput) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._held: dict[str, bytearray] = {}
        self._sent = 0
        self.finished = False

    def write(self, stream: str, data: bytes) -> None:
        with self._lock:
            if self.finished:
                return
            held = self._held.setdefault(stream, bytearray())
            held += data
            whole = held.rfind(b"\n") + 1
            if self._sent < _LINE_BY_LINE or whole >= _TOGETHER:
                self._send_start(stream, held, whole)

    def finish(self) -> None:
        with self._lock:
            if not self.finished:
                self.finished = True
                for stream, held in self._held.items():
                    self._send_start(stream, held, len(held))

    def _send_start(self, stream: str, held: bytearray, size: int) -> None:
        for start in range(0, size, _LARGEST):
            self._sent += 1
            self._send(stream, bytes(held[start : min(size, start + _LARGEST)]))
        del held[:size]
