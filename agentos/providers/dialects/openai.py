"""OpenAI: per organisation, project and model; resets are durations until the bucket is full."""

from __future__ import annotations

from ..dialect import Dialect

OPENAI = Dialect(
    name="openai",
    hosts=("api.openai.com", "*.api.openai.com"),
    marks=("openai-",),
    windows={"tokens": 60.0, "input_tokens": 60.0, "output_tokens": 60.0},
    per_model=True,
    days_refill=True,
)
