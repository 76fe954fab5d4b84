"""Draws docs/live.svg, the picture of the live display in the README: `python examples/live_picture.py [FILE]`.

The same picture each time: the run, its keys and the hour are made up.
"""

from __future__ import annotations

import io
import os
import re
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.segment import Segments

from agentos.pool.core.credential_report import Headroom
from agentos.pool.snapshot import CredentialState
from agentos.runs.display.event_state import FailedItem
from agentos.runs.display.layout import DisplayState, RunningItem, render
from agentos.runs.display.rich_display import segments
from agentos.runs.results import ProgressStats

WIDTH, HEIGHT = 104, 36
NOW = 1_763_176_920.0  # 03:22 UTC


def key(name: str, quota: str, state: str, left: float = 0.0, rests: float = 0.0, why: str = "") -> CredentialState:
    """One of several keys of a quota of 500 requests a minute."""
    until = NOW + rests if rests else 0.0
    limits = (Headroom("requests", 500.0, left, None, False),)
    return CredentialState(
        name, state=state, quota=quota, slots=8, leases=8, rate_limited_until=until, why=why, limits=limits
    )


KEYS = [
    key("north-1", "north", "leased", 310.0),
    key("north-2", "north", "leased", 310.0),
    key("north-3", "north", "available", 310.0),
    key("south-1", "south", "cooling", 0.0, 240.0, "fix.sh reported a rate limit (issue-0998)"),
    key("south-2", "south", "dead", why="fix.sh reported 401: this key was revoked (issue-0951)"),
    key("west-1", "west", "leased", 65.0),
    key("west-2", "west", "limited", 0.0, 7.0, "at its limit (500/min)"),
    key("spare", "spare", "parked", 0.0, 16_680.0, "out of quota until the daily reset"),
]

SAID = [
    "Reading src/billing/invoice.py",
    "pytest: 112 passed, 2 failed; looking at test_rounding",
    "Editing 3 files: tax.py, tax_test.py, README.md",
    "",
    "Asking for the schema of table customers",
    "All tests pass; writing the summary",
]

RUNNING = [
    RunningItem(f"issue-{1041 + number}", NOW - 412.0 + 9.7 * number, SAID[number % len(SAID)]) for number in range(40)
]

FAILURES = [
    FailedItem("issue-0987", "exit 2: the branch has conflicts with main"),
    FailedItem("issue-1012", "timed out after 30m"),
    FailedItem("issue-1030", "exit 1: no test covers this change"),
]

SCENE = DisplayState(
    stats=ProgressStats(
        total=1_500,
        completed=960,
        failed=3,
        success_count=957,
        retried=12,
        limited=31,
        cached=412,
        start_time=0.0,
        end_time=8_077.0,
    ),
    now=NOW,
    name="fix-issues-3f9c",
    seconds_left=7_950.0,
    speed=["4.2 items/min", "bound by: -j 40 (all workers busy)"],
    keys=KEYS,
    running=RUNNING,
    failures=FAILURES,
)


def main() -> None:
    os.environ["TZ"] = "UTC"
    time.tzset()
    paper = Console(file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, _environ={})
    paper.print(Segments(segments(render(SCENE, WIDTH, HEIGHT))), end="")
    target = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / "docs" / "live.svg")
    svg = paper.export_svg(title="agentos run", unique_id="live")
    # A picture in a README should fetch nothing: any font of fixed width will do.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")
    target.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
