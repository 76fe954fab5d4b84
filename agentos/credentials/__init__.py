"""Deprecated alias of ``agentos.pool``; the next version removes it."""

from __future__ import annotations

import warnings
from importlib import import_module

__all__ = [
    "Clock",
    "Credential",
    "Lease",
    "Limit",
    "NeverFits",
    "NoCredentialAvailable",
    "NoUsableCredential",
    "PoolClosed",
    "Secret",
    "SystemClock",
    "WouldBlockLoop",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"agentos.credentials.{name} is now agentos.pool.{name}", DeprecationWarning, stacklevel=2)
    found: object = getattr(import_module("agentos.pool"), name)
    return found
