"""Record how each real program asks a provider: ``python -m tests.agents.record_habits``, after ``make agents``.

The file that it writes has each request's method, path and headers, without ids, keys and lengths.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from agentos.simulator import Latency, equal_keys

from .real_programs import EXECUTABLES, run_program
from .recorder import RecordedRequest, recording

FILE = Path(__file__).parent / "recorded" / "habits.json"
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}(:\d+)?|ses_\w+|\b\d{8}_\d+\b")
_KERNEL = re.compile(r"linux \d[\w.-]+")
_MACHINE = {"host", "content-length", "x-stainless-os", "x-stainless-arch", "traceparent", "x-codex-turn-metadata"}


def describe(request: RecordedRequest, secret: str) -> dict[str, Any]:
    """Return what is the same for every such request."""
    headers = {
        name: _KERNEL.sub("linux", _ID.sub("ID", value.replace(secret, "TOKEN")))
        for name, value in sorted(request.headers.items())
        if name not in _MACHINE
    }
    fields = request.fields
    return {
        "method": request.method,
        "path": request.path,
        "headers": headers,
        "streams": "streamGenerateContent" in request.path or fields.get("stream") is True,
        "fields": sorted(fields),
    }


def main(names: list[str]) -> None:
    """Run each program once and write the file."""
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in names or list(EXECUTABLES):
        plan = equal_keys(1, latency=Latency(median=0.0, sigma=0.0))
        with recording(plan) as kept, tempfile.TemporaryDirectory() as home:
            ended = run_program(name, kept.url, plan.secrets[0], Path(home))
            sys.stderr.write(f"{name}: exit {ended.code}, {len(kept.requests)} requests\n")
            found[name] = [describe(each, plan.secrets[0]) for each in kept.requests]
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
