"""xAI: per team and model. Requests per minute are also limited to a sixtieth per second."""

from __future__ import annotations

from ..dialect import Dialect

XAI = Dialect(
    name="xai",
    hosts=("api.x.ai", "*.api.x.ai"),
    marks=("x-xai-",),
    windows={"requests": 60.0, "tokens": 60.0},
    per_model=True,
)
