"""Groq: per organisation and model. Requests are counted per day, tokens per minute."""

from __future__ import annotations

from ..dialect import Dialect
from ..signal import Event

GROQ = Dialect(
    name="groq",
    hosts=("api.groq.com",),
    marks=("x-groq-",),
    windows={"requests": 86_400.0, "tokens": 60.0},
    codes={"capacity_exceeded": Event.BUSY, "organization_restricted": Event.KEY_DEAD},
    per_model=True,
    days_refill=True,
)
