"""Mistral: per workspace; the header's name contains the window, and no reset is stated."""

from __future__ import annotations

from ..dialect import Dialect
from ..signal import Event

MISTRAL = Dialect(
    name="mistral",
    hosts=("api.mistral.ai", "codestral.mistral.ai"),
    marks=("mistral-", "x-ratelimit-limit-req-", "x-ratelimit-remaining-req-", "x-ratelimit-tokens-query-cost"),
    codes={
        "1300": Event.LIMITED,
        "3505": Event.BUSY,
        "service_tier_capacity_exceeded": Event.BUSY,
        "1500": Event.NOT_ENTITLED,
    },
)
