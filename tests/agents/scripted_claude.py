"""A program that prints what the real claude prints, by a script: one step for each of its starts.

Its folder has ``steps.json``, a list of lists of events, and ``starts.jsonl``, to which each start adds its arguments,
its standard input and the variables that tests look at. ``{"exit": N}`` ends it; ``{"hang": true}`` waits to be killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SESSION = "SESSION"  # in an event: the id that it was given


def install(folder: Path, steps: Sequence[Sequence[dict[str, Any]]]) -> Path:
    """Write the program with these steps, and return its path. After the last step, that one is repeated."""
    folder.mkdir(exist_ok=True)
    (folder / "steps.json").write_text(json.dumps(steps))
    path = folder / "claude"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{__file__}" "{folder}" "$@"\n')
    path.chmod(0o755)
    return path


def read_starts(folder: Path) -> list[dict[str, Any]]:
    """Return what the program's starts saw, in order."""
    path = folder / "starts.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def begin() -> dict[str, Any]:
    return {"type": "system", "subtype": "init", "session_id": SESSION}


def say(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": [{"type": "text", "text": text}]}
    return {"type": "assistant", "message": message, "session_id": SESSION, "parent_tool_use_id": None}


def done(answer: str = "the answer", **more: Any) -> list[dict[str, Any]]:
    """The events of a process that is done."""
    result = {"type": "result", "subtype": "success", "is_error": False, "result": answer, "num_turns": 2}
    usage = {"modelUsage": {"m": {"inputTokens": 100, "outputTokens": 10}}, "total_cost_usd": 0.5}
    return [begin(), say(answer), {**result, **usage, "session_id": SESSION, **more}, {"exit": 0}]


def failed(error: str, status: int | None, **more: Any) -> list[dict[str, Any]]:
    """The events of a process whose last call was refused."""
    shown = {**say("API Error"), "error": error}
    result = {"type": "result", "subtype": "success", "is_error": True, "api_error_status": status, "num_turns": 1}
    return [begin(), shown, {**result, "result": "API Error", "session_id": SESSION, **more}, {"exit": 1}]


def parked(reset_at: float) -> list[dict[str, Any]]:
    """The events of a process that met a usage limit."""
    info = {"status": "rejected", "resetsAt": reset_at, "rateLimitType": "five_hour"}
    limit = {"type": "rate_limit_event", "rate_limit_info": info, "session_id": SESSION}
    first, *others = failed("rate_limit", 429)
    return [first, limit, *others]


def missing() -> list[dict[str, Any]]:
    """The events of a process whose session is not there."""
    result = {"type": "result", "subtype": "error_during_execution", "is_error": True, "session_id": "other"}
    return [{**result, "errors": ["No conversation found with session ID"]}, {"exit": 1}]


def _ask() -> None:
    """Ask the provider for one answer, as the real program does."""
    from urllib.request import Request, urlopen

    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "anthropic-version": "2023-06-01"}
    headers |= {"content-type": "application/json", "user-agent": "claude-cli/2.1 (external)"}
    url = f"{os.environ['ANTHROPIC_BASE_URL']}/v1/messages"
    with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=100) as answer:
        answer.read()


def _main(folder: Path, words: list[str]) -> int:
    session = next((words[n + 1] for n, word in enumerate(words) if word in ("--session-id", "--resume")), "none")
    with (folder / "starts.jsonl").open("a") as starts:
        fcntl.flock(starts, fcntl.LOCK_EX)
        number = len(read_starts(folder))
        told = {name: value for name, value in os.environ.items() if name.startswith(("ANTHROPIC", "AGENTOS"))}
        starts.write(json.dumps({"argv": words, "stdin": sys.stdin.read(), "env": told, "cwd": os.getcwd()}) + "\n")
    steps = json.loads((folder / "steps.json").read_text())
    for event in steps[min(number, len(steps) - 1)]:
        if "exit" in event:
            return int(event["exit"])
        if "touch" in event:
            Path(event["touch"]).write_text("x")
        elif "ask" in event:
            _ask()
        elif "hang" in event:
            time.sleep(600)
        else:
            sys.stdout.write(json.dumps(event).replace(SESSION, session) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), sys.argv[2:]))
