"""For tests of agentos, and of programs that use it: a clock that moves when it is told to."""

from .fake_clock import FakeClock

__all__ = ["FakeClock"]
