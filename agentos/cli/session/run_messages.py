"""Messages about one session of a run: starts the notifier, and reports to it what the session sees."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from ...pool.snapshot import OUT_OF_USE
from ...runs.execution.process_exit import OWN_CHILDREN
from ...runs.report.key_time import is_resting

if TYPE_CHECKING:
    from ...notify.targets import NotifyTarget
    from ...runs.results import ProgressStats
    from .request import RunRequest
    from .speed_recorder import SpeedFacts

_LONGEST: Final = 1_000  # characters of a command in a message


def find_targets(request: RunRequest, environ: MutableMapping[str, str]) -> list[NotifyTarget]:
    """Return where messages go: what was typed, else what is configured. Variables of webhooks leave *environ*."""
    typed, settings = request.flags.notify, request.settings.notify
    from ..config.notify_entries import NONE, parse_typed, resolve_targets

    if typed == (NONE,):
        return []
    return resolve_targets(parse_typed(typed) if typed else settings, environ)


class RunMessages:
    """The notifier of one session. *masked* takes secrets out of texts."""

    def __init__(
        self, request: RunRequest, targets: list[NotifyTarget], resume: str, masked: Callable[[str], str]
    ) -> None:
        from ...notify.client import NotifierClient

        name, typed = shlex.quote(request.name), request.flags.options["dir"]
        place = "" if typed is None else f" --dir {shlex.quote(typed)}"
        show = f"agentos show {name}{place}"
        resume = masked(f"cd {shlex.quote(os.getcwd())} && {resume}")
        commands = {
            "resume": resume if len(resume) <= _LONGEST else show,
            "retry": show if request.source["kind"] == "stdin" else f"agentos retry {name}{place}",
            "results": f"agentos results {name}{place}",
            "keys": "agentos keys",
            "show": show,
        }
        self._total = request.total
        self._masked = masked
        self._ended = False
        environ = {variable: value for variable, value in os.environ.items() if masked(value) == value}
        self._client = NotifierClient(
            targets, run=request.name, folder=request.folder, commands=commands, environ=environ
        )
        if self._client.pid is not None:
            OWN_CHILDREN.add(self._client.pid)

    def observe(self, facts: SpeedFacts, wall: float) -> None:
        """Report the state of the run."""
        usable = [key for key in facts.keys if key.state not in OUT_OF_USE]
        resting = [key for key in usable if is_resting(key, wall)]
        due = [key.rate_limited_until for key in resting if key.rate_limited_until > wall]
        self._client.report(
            {
                **self._count(facts.stats),
                "keys": len(facts.keys),
                "usable": len(usable),
                "resting": len(resting),
                "next_at": round(min(due)) if due else None,
            }
        )

    def note_stopping(self, why: str) -> None:
        """Report that the run has begun to stop."""
        self._client.note_stopping(self._masked(why))

    def end(self, code: int, stats: ProgressStats) -> None:
        """Report the end of the session."""
        self._ended = True
        why = None if stats.stopped_by is None else self._masked(stats.stopped_by)
        self._client.end(code, why, self._count(stats))

    def close(self) -> None:
        """Give up the notifier, which then tells of a crash unless the end was reported."""
        self._client.close()

    def _count(self, stats: ProgressStats) -> dict[str, Any]:
        return {
            "done": stats.success_count,
            "failed": stats.failed,
            "left": stats.unfinished,
            "total": stats.total if stats.total is not None else self._total,
        }
