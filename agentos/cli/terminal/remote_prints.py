"""A function of the command line on its way to other machines. It travels as it stands; what it prints comes home.

Home it comes by the item's log, which every engine carries: as messages of a level of their own, of which
``_overheard`` makes the item's output again.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from .print_capture import Printing, Prints

if TYPE_CHECKING:
    from ...runs.context import Context

PRINTED: Final = logging.WARNING + 5  # a run leaves out what is below a warning

_LONGEST: Final = 9_500  # characters of a message; an engine cuts longer ones
_AT_ONCE: Final = 500  # messages that are sent line by line; then several lines go together
_TOGETHER: Final = 1_400  # bytes


def made_to_travel(function: Callable[..., Any], name: str | None, folder: Path | None) -> Sent:
    """The worker to give to a run whose items run elsewhere. It always wants a context.

    With a *folder*, the modules in it are only here: the function and what it uses of them travel as they stand. A
    journal knows it by *name*, which has a colon in it; else as it would know *function*.
    """
    from ...runs.worker import worker_of

    worker = worker_of(function)
    kind = SentCoroutine if worker.is_async else Sent
    return kind(function, name or worker.name, wants_context=worker.wants_context, folder=folder)


class Sent:
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
        with _streams, Printing(_Homewards(context), context):
            return self._function(item, credential, **self._more(context))

    def _more(self, context: Context) -> Mapping[str, Any]:
        return {"context": context} if self._wants_context else {}

    def __reduce__(self) -> tuple[Any, ...]:
        packed = _packed(self._function, self._folder)
        return _arrived, (type(self), packed, f"{self.__module__}:{self.__qualname__}", self._wants_context)


class SentCoroutine(Sent):
    """The same for a coroutine function."""

    async def __call__(self, item: Any, credential: Any, *, context: Context) -> Any:
        with _streams, Printing(_Homewards(context), context):
            return await self._function(item, credential, **self._more(context))


def _packed(function: Callable[..., Any], folder: Path | None) -> bytes:
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


def _arrived(kind: type[Sent], packed: bytes, name: str, wants_context: bool) -> Sent:
    import pickle

    return kind(pickle.loads(packed), name, wants_context=wants_context)  # noqa: S301 - it comes from the run itself


# -- there ------------------------------------------------------------------------------------------------------------


class _Streams:
    """While items run in this process, its streams tell whose a line is; else they are as they were."""

    redactors = None  # secrets are taken out at home, where all are known

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prints = Prints(self)
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


class _Homewards:
    """Opens the output of one attempt, which goes home by its log."""

    redactors = None

    def __init__(self, context: Context) -> None:
        self._logger = context.log.logger

    def open(self, item_id: str, index: int, attempt: int, credential_name: str | None = None) -> _Output:
        return _Output(self._logger, [item_id, index, attempt, credential_name])


class _Output:
    """What one attempt prints. Threads may share it."""

    def __init__(self, logger: logging.Logger, whose: list[Any]) -> None:
        self._logger = logger
        self._whose = whose
        self._lock = threading.Lock()
        self._held: dict[str, bytearray] = {}
        self._sent = 0
        self._room = max(1, (_LONGEST - len(json.dumps(whose))) // 6)  # JSON has six characters for one of them
        self.finished = False

    def write(self, stream: str, data: bytes) -> None:
        with self._lock:
            if self.finished:
                return
            held = self._held.setdefault(stream, bytearray())
            held += data
            whole = held.rfind(b"\n") + 1
            if whole and (self._sent < _AT_ONCE or whole >= _TOGETHER):
                self._send(stream, bytes(held[:whole]))
                del held[:whole]

    def finish(self) -> None:
        with self._lock:
            if not self.finished:
                self.finished = True
                for stream, held in self._held.items():
                    self._send(stream, bytes(held))
                if self._sent:
                    self._say("", b"")

    def _send(self, stream: str, data: bytes) -> None:
        for start in range(0, len(data), self._room):
            self._say(stream, data[start : start + self._room])

    def _say(self, stream: str, data: bytes) -> None:
        self._sent += 1
        text = data.decode("utf-8", "surrogateescape")
        self._logger.log(PRINTED, "%s", json.dumps([*self._whose, stream, text], ensure_ascii=False))
