"""Requests for leases, their costs and their answers: the values of ``pool.core`` that other rooms use."""

from .core.cost import (
    MOST_USED,
    ONE_REQUEST,
    AbsurdUsage,
    Cost,
    is_absurd,
    parse_used,
    request_cost,
)
from .core.learning.usage_stats import UsageStats
from .core.records import NO_LABELS, PLAIN, Grant, KeySpec, Labels, LeaseRequest
from .core.states import TicketState

__all__ = [
    "MOST_USED",
    "NO_LABELS",
    "ONE_REQUEST",
    "PLAIN",
    "AbsurdUsage",
    "Cost",
    "Grant",
    "KeySpec",
    "Labels",
    "LeaseRequest",
    "TicketState",
    "UsageStats",
    "is_absurd",
    "parse_used",
    "request_cost",
]
