"""Assignments and workers that tests execute as a remote process would."""

from __future__ import annotations

import pickle
from typing import Any

from agentos.runs.remote.assignment import Assignment, ShippedSecret
from agentos.runs.remote.attempt_report import AttemptReport
from agentos.runs.remote.pickled import PickledObject, pack
from agentos.runs.remote.worker_call import run_assignment

SECRET = "sk-there-0123456789abcdef"


def assignment(payload: Any = 1, **facts: Any) -> Assignment:
    """One with a lease and a context, unless told."""
    usual: dict[str, Any] = {
        "run_id": "run",
        "item_id": "item-1",
        "index": 0,
        "attempt": 1,
        "token": 7,
        "payload": payload if isinstance(payload, PickledObject) else pack(payload, "the item"),
        "wants_context": True,
        "credential": "key-1",
        "secret": ShippedSecret(SECRET),
        "lease": 42,
    }
    return Assignment(**(usual | facts))


def there(worker: Any, payload: Any = 1, *, is_async: bool = False, **facts: Any) -> AttemptReport:
    """The report of *worker*, everything having been pickled on its way there and back."""
    facts.setdefault("wants_context", "context" in worker.__code__.co_varnames)
    sent = pickle.loads(pickle.dumps(assignment(payload, **facts)))
    report: AttemptReport = pickle.loads(
        pickle.dumps(run_assignment(pack(worker, "the worker"), sent, is_async=is_async))
    )
    return report
