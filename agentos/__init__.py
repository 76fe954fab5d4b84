"""agentos: run a long list of agent or LLM work over a handful of rate-limited credentials.

Names are imported on first use: ``agentos --help`` starts fast, and a program loads only what it uses.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .version import __version__

if TYPE_CHECKING:
    from .agents.agent import Agent
    from .costs import Usage
    from .errors import (
        AgentOSError,
        CommandFailed,
        DuplicateItems,
        EngineUnavailable,
        ForeignHost,
        InputFailed,
        Interrupted,
        InvariantViolated,
        JournalDamaged,
        JournalError,
        JournalInUse,
        JournalMismatch,
        JournalTooNew,
        JournalUnavailable,
        LeaseLost,
        NeverFits,
        NoCredentialAvailable,
        NotAJournal,
        NotAStore,
        NotPicklable,
        NoUsableCredential,
        PoolClosed,
        RateLimited,
        RemoteError,
        StoreDamaged,
        StoreElsewhere,
        StoreError,
        StoreOnNetworkShare,
        StoreTooNew,
        StoreUnavailable,
        Transient,
        ValueNotRecorded,
        WorkerLost,
        WouldBlockLoop,
    )
    from .pool import Credential, Lease, Limit, Secret
    from .providers import Event, Reading, Signal, classify, from_exception
    from .runs.commands.command import Command
    from .runs.context import Context
    from .runs.display.rich_display import RichProgress
    from .runs.exports.recorded_run import RecordedRun, load_run
    from .runs.progress import Progress
    from .runs.remote.dask_config import Dask
    from .runs.results import Cause, RunStopped
    from .workflows.parallel import (
        CredentialCoordinator,
        CredentialState,
        ParallelCoordinator,
        ProgressStats,
        WorkflowResult,
    )

__all__ = [
    "Agent",
    "AgentOSError",
    "Cause",
    "Command",
    "CommandFailed",
    "Context",
    "Credential",
    "CredentialCoordinator",
    "CredentialState",
    "Dask",
    "DuplicateItems",
    "EngineUnavailable",
    "Event",
    "ForeignHost",
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
    "LeaseLost",
    "Limit",
    "NeverFits",
    "NoCredentialAvailable",
    "NoUsableCredential",
    "NotAJournal",
    "NotAStore",
    "NotPicklable",
    "ParallelCoordinator",
    "PoolClosed",
    "Progress",
    "ProgressStats",
    "RateLimited",
    "Reading",
    "RecordedRun",
    "RemoteError",
    "RichProgress",
    "RunStopped",
    "Secret",
    "Signal",
    "StoreDamaged",
    "StoreElsewhere",
    "StoreError",
    "StoreOnNetworkShare",
    "StoreTooNew",
    "StoreUnavailable",
    "Transient",
    "Usage",
    "ValueNotRecorded",
    "WorkerLost",
    "WorkflowResult",
    "WouldBlockLoop",
    "__version__",
    "classify",
    "from_exception",
    "load_run",
]

_HOME = {
    "Agent": ".agents.agent",
    "Usage": ".costs",
    "Credential": ".pool",
    "Lease": ".pool",
    "Limit": ".pool",
    "Secret": ".pool",
    "Event": ".providers",
    "Reading": ".providers",
    "Signal": ".providers",
    "classify": ".providers",
    "from_exception": ".providers",
    "Cause": ".runs.results",
    "RunStopped": ".runs.results",
    "RecordedRun": ".runs.exports.recorded_run",
    "load_run": ".runs.exports.recorded_run",
    "Command": ".runs.commands.command",
    "Context": ".runs.context",
    "Progress": ".runs.progress",
    "RichProgress": ".runs.display.rich_display",
    "Dask": ".runs.remote.dask_config",
    "CredentialCoordinator": ".workflows.parallel",
    "CredentialState": ".workflows.parallel",
    "ParallelCoordinator": ".workflows.parallel",
    "ProgressStats": ".workflows.parallel",
    "WorkflowResult": ".workflows.parallel",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOME.get(name, ".errors"), __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
