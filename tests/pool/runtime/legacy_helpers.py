"""Helpers for the tests of the original verbs: users with a thread each, and secrets to search for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 30.0  # real seconds, only ever used up by a test that fails

ALPHA, BRAVO, CHARLIE = "sk-alpha-000001", "sk-bravo-000002", "sk-charlie-000003"


class Person:
    """A thread that does one thing after another, as it is told."""

    def __init__(self, name: str) -> None:
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def starts(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin it; the future has what comes of it."""
        future: Future[T] = Future()

        def act() -> None:
            try:
                future.set_result(call(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        self._todo.put(act)
        return future

    def does(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do it, and say what came of it."""
        return self.starts(call, *args, **kwargs).result(PATIENCE)

    def leave(self) -> bool:
        """End the thread. False: it is stuck."""
        self._todo.put(None)
        self._thread.join(PATIENCE)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (act := self._todo.get()) is not None:
            act()


@contextmanager
def company() -> Iterator[Callable[[str], Person]]:
    """Invites people by name, and sees to it that none is left stuck."""
    people: dict[str, Person] = {}

    def invite(name: str) -> Person:
        people[name] = Person(name)
        return people[name]

    yield invite
    assert [name for name, person in people.items() if not person.leave()] == []


def pieces(secret: str, length: int) -> set[str]:
    """Every piece of that length of a secret: none may show up anywhere."""
    return {secret[i : i + length] for i in range(len(secret) - length + 1)}
