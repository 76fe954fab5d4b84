"""Translate headers, bodies and exceptions of any provider into one value, the signal."""

from .classify import classify
from .clients.exceptions import from_exception, read_signal
from .signal import Event, Reading, Signal

__all__ = ["Event", "Reading", "Signal", "classify", "from_exception", "read_signal"]
