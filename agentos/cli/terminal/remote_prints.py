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

_LINE_BY_LINE: Final = 500  # messages; after these, lines are sent together to save messages
_TOGETHER: Final = 1_400  # bytes
_LARGEST: Final = 1 << 16  # bytes of one message


def ship_function(
    function: Callable[..., Any], name: str | None, folder: Path | None, outputs: OutputCapture | None = None
) -> ShippedFunction:
    """Return the worker for a run whose items run on other machines. It always takes a context.

    With a *folder*, its modules exist only on this machine: the function and what it uses of them are pickled by value.
    The journal identifies the worker by *name*, which has a colon in it, else by the name of *function*. The driver
    writes what it prints to *outputs*.
    """
    worker = inspect_worker(function)
    kind = ShippedCoroutine if worker.is_async else ShippedFunction
    sent = kind(function, name or worker.name, wants_context=worker.wants_context, folder=folder)
    sent.outputs = outputs
    return sent


class ShippedFunction(SendsOutput):
    """The user's function. It is pickled by value where necessary."""

    def __init__(
        self, function: Callable[..., Any], name: str, *, wants_context: bool, folder: Path | None = None
    ) -> None:
        self._function = function
        self._wants_context = wants_context
        self._folder = folder
        # The journal identifies it by these.
        self.__module__, self.__qualname__ = name.split(":", 1)

    def __call__(self, item: Any, credential: Any, *, context: Context) -> Any:
        with _forward_prints(context):
            return self._function(item, credential, **self._more(context))

    def _more(self, context: Context) -> Mapping[str, Any]:
        return {"context": context} if self._wants_context else {}

    def __reduce__(self) -> tuple[Any, ...]:
        packed = _pack_function(self._function, self._folder)
        return _unpack_function, (type(self), packed, f"{self.__module__}:{self.__qualname__}", self._wants_context)


class ShippedCoroutine(ShippedFunction):
    """The same for a coroutine function."""

    async def __call__(self, item: Any, credential: Any, *, context: Context) -> Any:
        with _forward_prints(context):
            return await self._function(item, credential, **self._more(context))


def _pack_function(function: Callable[..., Any], folder: Path | None) -> bytes:
    cloudpickle = importlib.import_module("cloudpickle")  # installed with Dask
    beside = [] if folder is None else _modules_in(folder)
    for module in beside:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(function))
    finally:
        for module in beside:
            cloudpickle.unregister_pickle_by_value(module)


def _modules_in(folder: Path) -> list[ModuleType]:
    """Return the modules that were loaded from files in that folder."""
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
def _forward_prints(context: Context) -> Iterator[None]:
    """Send what the attempt prints to the driver; without a channel it is printed in this process."""
    from ...runs.remote.worker_context import output_channel

    send = output_channel(context)
    if send is None:
        yield
        return
    with _streams, CurrentOutput(_Captures(send), context):
        yield


class _Streams:
    """Route this process's streams by item while items run in it."""

    redactors = None  # the driver redacts; it knows all secrets

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
        raise NotImplementedError  # each item has its own outputs


_streams: Final = _Streams()


class _Captures:
    """Open the output of one attempt, which is sent to the driver."""

    redactors = None

    def __init__(self, send: SendOutput) -> None:
        self._send = send

    def open(self, item_id: str, index: int, attempt: int, credential_name: str | None = None) -> _Output:
        return _Output(self._send)


class _Output:
    """Sends what one attempt prints, in whole lines. Thread-safe."""

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
