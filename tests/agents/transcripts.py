"""Transcripts of the real programs, and how a reader reads one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentos.agents.programs import PROGRAMS
from agentos.agents.reading import PlainReader
from agentos.providers.wire_verdict import WireVerdict
from agentos.runs.agents.agent_protocol import AgentReport
from agentos.runs.agents.agent_verdict import AgentVerdict, decide

FOLDER = Path(__file__).parent / "recorded" / "transcripts"


@dataclass(frozen=True)
class Transcript:
    """What one process printed, its exit code, and the files of its session."""

    program: str
    situation: str
    code: int | None
    stdout: tuple[str, ...]
    recorded_at: float = 0.0
    files: dict[str, list[str]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.program}-{self.situation}"


def load(program: str, situation: str) -> Transcript:
    """Return a recorded transcript."""
    found: dict[str, Any] = json.loads((FOLDER / program / f"{situation}.json").read_text())
    return Transcript(
        program, situation, found["code"], tuple(found["stdout"]), found["recorded_at"], found.get("files", {})
    )


def load_all() -> Iterator[Transcript]:
    """Return all recorded transcripts."""
    for path in sorted(FOLDER.glob("*/*.json")):
        yield load(path.parent.name, path.stem)


def read(
    transcript: Transcript, home: Path, wire: WireVerdict | None = None, resumed: str | None = None
) -> tuple[AgentReport, AgentVerdict, list[str]]:
    """Return what the program's reader reports, what is decided, and the lines for people."""
    for name, lines in transcript.files.items():
        folder = home / ".codex" / "sessions" / "2026" / "11" / "18"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(lines) + "\n")
    reader = (PROGRAMS[transcript.program].reader or PlainReader)({"HOME": str(home)}, resumed)
    shown = [line for printed in transcript.stdout for line in reader.feed(printed)]
    report = reader.finish(transcript.code)
    return report, decide(report, wire, transcript.code, now=transcript.recorded_at), shown
