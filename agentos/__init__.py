"""agentos: run a long list of agent or LLM work over a handful of rate-limited credentials."""

from .credentials import Credential, Lease, Limit, Secret
from .errors import (
    AgentOSError,
    DuplicateItems,
    InputFailed,
    Interrupted,
    InvariantViolated,
    JournalDamaged,
    JournalError,
    JournalInUse,
    JournalMismatch,
    JournalTooNew,
    JournalUnavailable,
    NeverFits,
    NoCredentialAvailable,
    NotAJournal,
    NoUsableCredential,
    PoolClosed,
    RateLimited,
    Transient,
    WouldBlockLoop,
)
from .runs.context import Context
from .runs.progress import Progress
from .workflows.parallel import (
    CredentialCoordinator,
    CredentialState,
    ParallelCoordinator,
    ProgressStats,
    WorkflowResult,
)

__version__ = "0.1.0"

__all__ = [
    "AgentOSError",
    "Context",
    "Credential",
    "CredentialCoordinator",
    "CredentialState",
    "DuplicateItems",
    "InputFailed",
    "Interrupted",
    "InvariantViolated",
    "JournalDamaged",
    "JournalError",
    "JournalInUse",
    "JournalMismatch",
    "JournalTooNew",
    "JournalUnavailable",
    "Lease",
    "Limit",
    "NeverFits",
    "NoCredentialAvailable",
    "NoUsableCredential",
    "NotAJournal",
    "ParallelCoordinator",
    "PoolClosed",
    "Progress",
    "ProgressStats",
    "RateLimited",
    "Secret",
    "Transient",
    "WorkflowResult",
    "WouldBlockLoop",
    "__version__",
]
