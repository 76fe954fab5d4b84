"""Calls on a background thread while the test acts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Aside:
    """Each call has a thread of its own, which nobody waits for: one that never returns fails its test, not all."""

    def submit(self, call: Callable[..., T], *arguments: Any, **options: Any) -> Future[T]:
        future: Future[T] = Future()

        def go() -> None:
            try:
                future.set_result(call(*arguments, **options))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=go, name="aside", daemon=True).start()
        return future
