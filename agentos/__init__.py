"""agentos: run a long list of agent or LLM work over a handful of rate-limited credentials."""

from .errors import (
    AgentOSError,
    InvariantViolated,
    NeverFits,
    NoCredentialAvailable,
    NoUsableCredential,
    PoolClosed,
    WouldBlockLoop,
)

__version__ = "0.1.0"

__all__ = [
    "AgentOSError",
    "InvariantViolated",
    "NeverFits",
    "NoCredentialAvailable",
    "NoUsableCredential",
    "PoolClosed",
    "WouldBlockLoop",
    "__version__",
]
