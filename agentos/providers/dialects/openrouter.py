"""OpenRouter: per account; its headers come inside the body, with the reset in epoch milliseconds."""

from __future__ import annotations

from ..dialect import Dialect, phrase
from ..signal import Event

OPENROUTER = Dialect(
    name="openrouter",
    hosts=("openrouter.ai", "*.openrouter.ai"),
    marks=("x-openrouter-",),
    phrases=(phrase("can only afford less", Event.MONEY_GONE, r"can only afford \d", 402, 403),),
    day_zone="UTC",
)
