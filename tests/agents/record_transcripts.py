"""Record what each real program prints in each situation: ``python -m tests.agents.record_transcripts [PROGRAM...]``.

Each file has the exit code, the standard output and, for codex, its session file. Folders, keys and user
names are replaced.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agentos.agents.programs import PROGRAMS
from agentos.simulator import KeyPlan, Latency, ProviderPlan, QuotaPlan, simulated_key

from .real_programs import ASK, EXECUTABLES, Ended, environment, run_program
from .recorder import recording
from .situations import SITUATIONS, build_script

FOLDER = Path(__file__).parent / "recorded" / "transcripts"
_STYLES = {"claude": "anthropic", "gemini": "gemini"}
_TIME = 420.0
# A subscription of claude, which is told of its windows. The simulator takes any secret of its plan for valid.
LOGIN = "usage-limit-login"
_LOGIN = f"sk-ant-oat01-{'a' * 60}"
_LONGEST_LINE = 20_000


def record(name: str, situation: str) -> None:
    """Run the program in that situation, and write the file."""
    slow = situation == "killed"
    login = situation == LOGIN
    plan = ProviderPlan(
        quotas=(QuotaPlan("quota"),),
        keys=(KeyPlan(_LOGIN if login else simulated_key("recorded"), "quota"),),
        latency=Latency(median=30.0 if slow else 0.0, sigma=0.0),
        script=build_script(_STYLES.get(name, "openai"), situation.removesuffix("-login")),
    )
    with recording(plan) as kept, tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        home = Path(folder)
        began = time.time()
        if slow:
            ended = _killed(name, kept.url, plan.secrets[0], home)
        else:
            more = {"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": _LOGIN} if login else {}
            ended = run_program(name, kept.url, plan.secrets[0], home, timeout=_TIME, more=more)
        files = {path.name: path.read_text() for path in sorted(home.glob(".codex/sessions/**/rollout-*.jsonl"))}

    def clean(text: str) -> str:
        return text.replace(plan.secrets[0], "TOKEN").replace(folder, "/home/user").replace(kept.url, "http://gateway")

    found: dict[str, Any] = {
        "program": name,
        "situation": situation,
        "code": ended.code,
        "calls": [each.status for each in kept.generations()],
        "recorded_at": round(began, 3),
        "stdout": [_shorten(line) for line in clean(ended.stdout).splitlines()],
    }
    if files:
        found["files"] = {file: [_shorten(line) for line in clean(text).splitlines()] for file, text in files.items()}
    path = FOLDER / name / f"{situation}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    sys.stderr.write(f"{name} {situation}: exit {ended.code} after {time.time() - began:.0f} s, {found['calls']}\n")


def _killed(name: str, url: str, token: str, home: Path) -> Ended:
    (home / "work").mkdir(parents=True)
    argv = [str(EXECUTABLES[name]), *PROGRAMS[name].arguments(url, token), *ASK[name]]
    process = subprocess.Popen(
        argv,
        env=environment(name, url, token, home),
        cwd=home / "work",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(12)
    os.killpg(process.pid, signal.SIGKILL)
    stdout, stderr = process.communicate()
    return Ended(process.returncode, stdout, stderr)


def _shorten(line: str) -> str:
    """Leave out lists of tools and instructions, which make most of a transcript."""
    try:
        fields = json.loads(line)
    except ValueError:
        return line[:_LONGEST_LINE]
    if isinstance(fields, dict) and fields.get("subtype") == "init":
        kept = ("type", "subtype", "session_id", "model", "uuid")
        return json.dumps({key: fields[key] for key in kept if key in fields})
    if isinstance(fields, dict) and fields.get("type") in ("session_meta", "turn_context", "world_state"):
        payload = fields.get("payload") or {}
        return json.dumps({"type": fields["type"], "payload": {"id": payload.get("id")}})
    if isinstance(fields, dict) and fields.get("type") == "response_item":
        return json.dumps({"type": "response_item", "payload": {"role": (fields.get("payload") or {}).get("role")}})
    return line[:_LONGEST_LINE]


def main(words: list[str]) -> None:
    """Record the programs and situations that are named, or all; two at a time."""
    names = [word for word in words if word in EXECUTABLES] or list(EXECUTABLES)
    situations = [word for word in words if word in (*SITUATIONS, LOGIN)] or [*SITUATIONS, LOGIN]
    pairs = [(name, each) for each in situations for name in names if each != LOGIN or name == "claude"]
    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(record, *pair) for pair in pairs]:
            done.result()


if __name__ == "__main__":
    main(sys.argv[1:])
