"""The public classes: the pool of credentials, and the run of many items with it."""

from .coordinator import ParallelCoordinator, ProgressStats, WorkflowResult
from .credential_coordinator import CredentialCoordinator, CredentialState, Explanation

__all__ = [
    "CredentialCoordinator",
    "CredentialState",
    "Explanation",
    "ParallelCoordinator",
    "ProgressStats",
    "WorkflowResult",
]
