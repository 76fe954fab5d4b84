"""Gemini, and Vertex AI: per project and model; all information is in the body."""

from __future__ import annotations

from ..dialect import Dialect
from ..signal import Event

GEMINI = Dialect(
    name="gemini",
    hosts=("generativelanguage.googleapis.com", "aiplatform.googleapis.com", "*-aiplatform.googleapis.com"),
    marks=("x-gemini-",),
    codes={
        "consumer_suspended": Event.KEY_DEAD,
        "consumer_invalid": Event.KEY_DEAD,
        "service_disabled": Event.KEY_DEAD,  # for the whole project, until a person enables it
        "billing_disabled": Event.MONEY_GONE,
    },
    per_model=True,
    day_zone="America/Los_Angeles",
    misleading_day_delay=True,
    shared_hosts=("aiplatform.googleapis.com", "*-aiplatform.googleapis.com"),
)
