"""For tests of agentos, and of programs that use it: a clock that moves when it is told to."""

from .clock import FakeClock

__all__ = ["FakeClock"]
