"""agentos: run a long list of agent or LLM work over a handful of rate-limited credentials."""

from .credentials import Credential, Lease, Limit, Secret
from .errors import (
    AgentOSError,
    InvariantViolated,
    NeverFits,
    NoCredentialAvailable,
    NoUsableCredential,
    PoolClosed,
    WouldBlockLoop,
)
from .workflows.parallel import CredentialCoordinator, CredentialState

__version__ = "0.1.0"

__all__ = [
    "AgentOSError",
    "Credential",
    "CredentialCoordinator",
    "CredentialState",
    "InvariantViolated",
    "Lease",
    "Limit",
    "NeverFits",
    "NoCredentialAvailable",
    "NoUsableCredential",
    "PoolClosed",
    "Secret",
    "WouldBlockLoop",
    "__version__",
]
