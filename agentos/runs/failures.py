"""Failures as every place shows and keeps them: one line about one, and its facts as JSON in the journal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from .results import WorkflowResult

_LONGEST_TAIL: Final = 4_000

# The texts of these say by themselves what happened.
_SELF_EXPLANATORY = (None, "CommandFailed", "TimeoutError", "Interrupted")


def describe_failure(error: str | None, error_type: str | None, place: str | None = None) -> str:
    """Return ``KeyError: 'nope' (work.py:12 in fetch)``: the type, the first line of the message, and the place."""
    text = next((line.strip() for line in (error or "").splitlines() if line.strip()), "")
    if error_type is not None and (place is not None or error_type not in _SELF_EXPLANATORY) and text != error_type:
        text = f"{error_type}: {text}" if text else error_type
    return text + (f" ({place})" if place else "") or "no reason was recorded"


def describe_result(result: WorkflowResult) -> str:
    """Return one line about a failed result."""
    return describe_failure(result.error, result.metadata.get("error_type"), result.metadata.get("place"))


def describe_unreachable(since: float, why: str) -> str:
    """Return ``no answer from the network since 09:12: ConnectError: ...``."""
    said = f"no answer from the network since {time.strftime('%H:%M', time.localtime(since))}"
    return f"{said}: {why}" if why else said


def encode_facts(facts: Mapping[str, Any], masked: Callable[[str], str]) -> str:
    """Return the facts as the journal keeps them, as JSON."""
    kept = {"type": facts["error_type"], **facts}
    del kept["error_type"]
    if "tail" in kept:
        kept["tail"] = masked("\n".join(kept["tail"]))[-_LONGEST_TAIL:]
    return json.dumps(kept)


def decode_facts(detail: str | None) -> dict[str, Any]:
    """Return the facts that a journal kept; empty for a detail of another format."""
    try:
        kept = json.loads(detail or "null")
    except ValueError:
        return {}
    if not isinstance(kept, dict) or not isinstance(kept.get("type"), str):
        return {}
    facts = {"error_type": kept.pop("type"), **kept}
    if isinstance(facts.get("tail"), str):
        facts["tail"] = tuple(facts["tail"].splitlines())
    return facts
