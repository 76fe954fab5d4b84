"""Forks: what has locks is told before one, and in the parent and the child after it.

A forked child has one thread. A lock that another thread of the parent held at that moment stays locked in the child
for ever, and what that thread was changing stays half changed. Whoever is told is referred to weakly.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something that must not be copied in the middle of a change."""

    def before_fork(self) -> None:
        """Wait until it is at rest, if it is to be used in the child, and keep it so."""
        ...

    def after_fork(self) -> None:
        """In the parent: go on."""
        ...

    def in_forked_child(self) -> None:
        """In the child: replace locks, and whatever belongs to threads that are not there."""
        ...


class ForkSafeLocks:
    """Has locks that a forked child replaces; what they guard is whole at any moment."""

    def before_fork(self) -> None:
        pass

    def after_fork(self) -> None:
        pass


_registered: dict[int, weakref.ref[Forkable]] = {}


def register_fork_hooks(thing: Forkable) -> None:
    """Tell *thing* of forks, as long as it exists."""
    number = id(thing)
    _registered[number] = weakref.ref(thing, lambda _gone: _registered.pop(number, None))


def _existing() -> list[Forkable]:
    """In the order of their ids: two threads that fork at once lock in the same order, and not each other out."""
    references = sorted(_registered.copy().items())
    return [thing for _, reference in references if (thing := reference()) is not None]


def _before() -> None:
    for thing in _existing():
        thing.before_fork()


def _in_parent() -> None:
    for thing in _existing():
        thing.after_fork()


def _in_child() -> None:
    for thing in _existing():
        thing.in_forked_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
