#!/usr/bin/env python3
"""One coding agent for one issue: clone, let claude work, push a branch.

    agentos run issues.txt --name fix -- ./fix_issue.py {}

Start it in your checkout. Each issue has a clone of its own in trees/, made from the checkout's origin, and pushes the
branch fix-ISSUE there; the checkout is not touched. A run that was interrupted finds the clone again, and an agent that
has finished is not paid twice: if only the push failed, only the push is repeated.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

# It may run any command in its clone: use a container if that matters.
AGENT = ["claude", "-p", "--output-format", "json", "--allowedTools", "Bash,Edit,Write"]
TRY_AGAIN = 75  # agentos retries this exit code


def main(issue: str) -> None:
    if not re.fullmatch(r"\w[\w.-]*", issue):
        sys.exit(f"{issue!r} cannot be the name of a folder and a branch")
    tree = Path("trees", issue)
    if not tree.exists():
        clone(tree)
    finished = tree / ".git" / "agent-finished.json"  # in .git, so that it is never committed
    if not finished.exists():
        answer = work(issue, tree)
        finished.write_text(json.dumps(answer), encoding="utf-8")
    if git(tree, "push", "--quiet", "origin", f"HEAD:refs/heads/fix-{issue}").returncode:
        sys.exit(TRY_AGAIN)


def clone(tree: Path) -> None:
    origin = git(Path(), "remote", "get-url", "origin", capture=True)
    if origin.returncode:
        sys.exit("this checkout has no origin to which a fix could be pushed")
    unfinished = tree.with_name(f"{tree.name}.new")  # of an earlier attempt that was killed
    shutil.rmtree(unfinished, ignore_errors=True)
    if git(Path(), "clone", "--quiet", origin.stdout.strip(), str(unfinished)).returncode:
        sys.exit(TRY_AGAIN)
    unfinished.rename(tree)


def work(issue: str, tree: Path) -> dict[str, Any]:
    """Let the agent work and return its answer; exit if it failed, whatever its exit code is."""
    prompt = f"Fix issue {issue}, run the tests, commit."
    ended = subprocess.run([*AGENT, prompt], cwd=tree, stdout=subprocess.PIPE, text=True, check=False)
    answer = read_answer(ended.stdout)
    status = find_status(answer)
    outcome: dict[str, Any] = {"usage": answer["usage"]} if answer.get("usage") else {}
    if status == 429 or answer.get("terminal_reason") == "blocking_limit":
        outcome["rate_limited"] = True  # the key cools down, and the issue waits unharmed
    elif status == 401:
        outcome["rejected"] = "401"  # the key is dead; the issue goes on with another
    tell(outcome)
    if ended.returncode or answer.get("is_error") is not False:
        print(f"claude: {answer.get('result') or f'exit code {ended.returncode}, no answer'}", file=sys.stderr)
        sys.exit(TRY_AGAIN if status is not None and status >= 500 else 1)
    if git(tree, "rev-list", "-n1", "HEAD", "--not", "--remotes", capture=True).stdout == "":
        sys.exit("claude committed nothing")
    return answer


def read_answer(printed: str) -> dict[str, Any]:
    try:
        answer = json.loads(printed)
    except ValueError:
        return {}
    last = answer[-1] if isinstance(answer, list) and answer else answer  # a list with --verbose
    return last if isinstance(last, dict) else {}


def find_status(answer: dict[str, Any]) -> int | None:
    """Return the HTTP status with which the provider refused the last call; older versions only print it."""
    if answer.get("is_error") is not True:
        return None
    printed = re.match(r"API Error: (\d{3})\b", str(answer.get("result")))
    status = answer.get("api_error_status")
    return status if isinstance(status, int) else int(printed[1]) if printed else None


def tell(outcome: dict[str, Any]) -> None:
    if outcome and "AGENTOS_OUTCOME" in os.environ:
        Path(os.environ["AGENTOS_OUTCOME"]).write_text(json.dumps(outcome), encoding="utf-8")


def git(folder: Path, *arguments: str, capture: bool = False) -> subprocess.CompletedProcess[str]:
    never_ask = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
    stdout = subprocess.PIPE if capture else None
    return subprocess.run(["git", *arguments], cwd=folder, env=never_ask, stdout=stdout, text=True, check=False)


if __name__ == "__main__":
    main(sys.argv[1])
