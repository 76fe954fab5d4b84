"""Cerebras: per organisation and model. Resets are float seconds; a call reserves its largest possible answer."""

from __future__ import annotations

from ..dialect import Dialect

CEREBRAS = Dialect(
    name="cerebras",
    hosts=("api.cerebras.ai",),
    marks=(
        "x-cerebras-",
        "x-ratelimit-limit-requests-day",
        "x-ratelimit-remaining-requests-day",
        "x-ratelimit-reset-requests-day",
    ),
    windows={"requests": 60.0, "tokens": 60.0},
    per_model=True,
    days_refill=True,
)
