"""Anthropic: per organisation and model family; resets are RFC 3339. Subscriptions count 5 hours and 7 days."""

from __future__ import annotations

from ..dialect import Dialect

ANTHROPIC = Dialect(
    name="anthropic",
    hosts=("api.anthropic.com",),
    marks=("anthropic-",),
    windows={"requests": 60.0, "tokens": 60.0, "input_tokens": 60.0, "output_tokens": 60.0},
    per_model=True,
    month_codes=frozenset({"enforced_spend_limit_reached"}),
)
