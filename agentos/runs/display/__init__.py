"""The live display and its plain-text form.

``agentos.runs.display.RichProgress`` is a deprecated alias of ``agentos.runs.display.rich_display.RichProgress``.
"""

from __future__ import annotations

import warnings
from importlib import import_module


def __getattr__(name: str) -> object:
    if name not in ("RichProgress", "segments"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is now {__name__}.rich_display.{name}", DeprecationWarning, stacklevel=2)
    found: object = getattr(import_module(".rich_display", __name__), name)
    return found
