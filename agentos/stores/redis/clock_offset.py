"""ClockOffset: convert instants between this process's clock and the store's."""

from __future__ import annotations

from typing import overload


class ClockOffset:
    """Converts instants. ``offset`` is how far the store's time is ahead of ours."""

    __slots__ = ("offset",)

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = offset

    @overload
    def to_store(self, at: float) -> float: ...
    @overload
    def to_store(self, at: None) -> None: ...
    @overload
    def to_store(self, at: float | None) -> float | None: ...
    def to_store(self, at: float | None) -> float | None:
        return None if at is None else at + self.offset

    @overload
    def to_local(self, at: float) -> float: ...
    @overload
    def to_local(self, at: None) -> None: ...
    @overload
    def to_local(self, at: float | None) -> float | None: ...
    def to_local(self, at: float | None) -> float | None:
        return None if at is None else at - self.offset
