"""xAI: per team and model. The requests of a minute are also held to a sixtieth of them per second."""

from __future__ import annotations

from ..dialect import Dialect

XAI = Dialect(
    name="xai",
    hosts=("api.x.ai", "*.api.x.ai"),
    marks=("x-xai-",),
    windows={"requests": 60.0, "tokens": 60.0},
    per_model=True,
)
