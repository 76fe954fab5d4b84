"""A fake clock for tests of agentos and of programs that use it."""

from .fake_clock import FakeClock

__all__ = ["FakeClock"]
