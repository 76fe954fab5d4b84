"""Call hooks of objects that have locks before a fork, and in the parent and the child after it.

A forked child has one thread. A lock that another thread of the parent held at the fork stays locked in the child, and
the state it guards stays half changed. Registered objects are referenced weakly.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """An object that must not be copied in the middle of a change."""

    def before_fork(self) -> None:
        """Wait until no change is in progress, if the child will use the object, and block changes."""
        ...

    def after_fork(self) -> None:
        """In the parent: allow changes again."""
        ...

    def in_forked_child(self) -> None:
        """In the child: replace locks and state of threads that do not exist here."""
        ...


class ForkSafeLocks:
    """Base for objects whose locks a forked child replaces; the state they guard is consistent at any moment."""

    def before_fork(self) -> None:
        pass

    def after_fork(self) -> None:
        pass


_registered: dict[int, weakref.ref[Forkable]] = {}


def register_fork_hooks(thing: Forkable) -> None:
    """Call the hooks of *thing* at forks, as long as it exists."""
    number = id(thing)
    _registered[number] = weakref.ref(thing, lambda _gone: _registered.pop(number, None))


def _list_registered() -> list[Forkable]:
    """Return the registered objects by id: two threads that fork at once lock in the same order and cannot deadlock."""
    references = sorted(_registered.copy().items())
    return [thing for _, reference in references if (thing := reference()) is not None]


def _before() -> None:
    for thing in _list_registered():
        thing.before_fork()


def _in_parent() -> None:
    for thing in _list_registered():
        thing.after_fork()


def _in_child() -> None:
    for thing in _list_registered():
        thing.in_forked_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
