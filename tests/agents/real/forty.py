"""Forty agents over three keys, with failures of provider and pushes. Run by ``make test-agents``."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

from agentos.simulator import Latency, equal_keys
from tests.agents.real_programs import EXECUTABLES
from tests.agents.recorder import Recording

from .machine import Machine, machine

REPOSITORIES = 4
ITEMS = tuple(f"item-{number}" for number in range(40))
GIT = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
# What the repositories count by themselves: pushes that arrive, and those that they accept. The first push of every
# fourth item is refused.
PRE_RECEIVE = """#!/bin/sh
read -r old new name
echo "$name" >> attempts
case $name in
  *[048]) test "$(grep -cx "$name" attempts)" -gt 1 ;;
esac
"""
POST_RECEIVE = """#!/bin/sh
while read -r old new name; do echo "$name" >> pushes; done
"""


def make_repositories(user: Machine) -> list[Path]:
    """Make bare repositories with a first commit and the hooks that count."""
    user.environ |= GIT
    seed = user.home / "seed"
    _git(user, user.home, "init", "-q", "-b", "main", str(seed))
    _git(user, seed, "commit", "-q", "--allow-empty", "-m", "first")
    found = []
    for number in range(REPOSITORIES):
        path = user.home / f"repository-{number}.git"
        _git(user, user.home, "init", "-q", "--bare", "-b", "main", str(path))
        _git(user, seed, "push", "-q", str(path), "HEAD:main")
        for name, text in (("pre-receive", PRE_RECEIVE), ("post-receive", POST_RECEIVE)):
            (path / "hooks" / name).write_text(text)
            (path / "hooks" / name).chmod(0o755)
        found.append(path)
    return found


def _git(user: Machine, folder: Path, *words: str) -> str:
    ended = subprocess.run(
        ["git", "-C", str(folder), *words], env=user.environ, check=True, capture_output=True, text=True
    )
    return ended.stdout


def _let_it_commit(user: Machine) -> None:
    """Put a claude on the PATH that commits, as it would itself with a model that does more than the simulated one."""
    folder = user.home / "bin"
    folder.mkdir()
    commit = "git commit -q --allow-empty -m work"
    (folder / "claude").write_text(f'#!/bin/sh\n"{EXECUTABLES["claude"]}" "$@" && {commit}\n')
    (folder / "claude").chmod(0o755)
    user.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


def _count_lines(paths: list[Path], name: str) -> Counter[str]:
    texts = [(path / name).read_text() for path in paths if (path / name).exists()]
    return Counter(line.removeprefix("refs/heads/") for text in texts for line in text.splitlines())


def _count_by_session(kept: Recording) -> Counter[str]:
    return Counter(each.headers.get("x-claude-code-session-id", "") for each in kept.generations())


def test_forty_agents_over_three_keys_with_failures_are_all_accounted_for(tmp_path: Path) -> None:
    plan = equal_keys(
        3, rpm=120, request_burst=20, latency=Latency(median=0.2, sigma=0.3), error_rate=0.2, overload_rate=0.2, seed=7
    )
    with machine(tmp_path, "claude", plan=plan) as (user, kept):
        repositories = make_repositories(user)
        _let_it_commit(user)
        lines = [
            {"id": item, "task": f"Fix {item}", "repo": str(repositories[number % REPOSITORIES])}
            for number, item in enumerate(ITEMS)
        ]
        (user.project / "items.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        (user.project / "fix.md").write_text("{task}")
        push = ("--clone", "--after", "git push -q origin HEAD:refs/heads/{id}", "--retries", "1")
        words = user.words("items.jsonl", "--prompt", "fix.md", *push, "-j", "4", "--retry-failed", items=())
        ended = user.run(words)
        done, failed = user.rows("done"), user.rows("failed")
        asked, pushed = _count_by_session(kept), _count_lines(repositories, "pushes")
        again = user.run(words)
        asked_again, pushed_again = _count_by_session(kept), _count_lines(repositories, "pushes")

    assert ended.returncode in (0, 1), ended.stderr
    assert again.returncode in (0, 1), again.stderr
    # Every item is done or failed, and each that is done was pushed once, by the count of the repositories.
    assert len(done) + len(failed) == len(ITEMS)
    assert len(done) >= len(ITEMS) // 2
    assert len(pushed) == len(done)
    assert set(pushed.values()) == {1}
    # The second run does what failed in the first: nothing that is done is asked, or pushed, again.
    assert set(pushed_again.values()) == {1}
    assert len(pushed_again) == len(user.rows("done"))
    for value in done:
        assert value["answer"].startswith("Simulated answer")
        assert asked_again[value["session"]] == asked[value["session"]] >= 1
    # Agents whose push was refused did not run again for it: a session per item that is done.
    attempts = _count_lines(repositories, "attempts")
    refused = {item for item in pushed_again if item.endswith(("0", "4", "8"))}
    assert len(refused) >= 8
    assert all(attempts[item] == (2 if item in refused else 1) for item in pushed_again)
    assert len({value["session"] for value in user.rows("done")}) == len(user.rows("done"))
    # Every branch has the one commit of its agent, and no clone is left but those of failed items.
    for path in repositories:
        for branch in _git(user, path, "branch", "--format=%(refname:short)").split():
            count = _git(user, path, "rev-list", "--count", branch).strip()
            assert count == ("1" if branch == "main" else "2")
    left = {path.name for path in user.project.glob(".agentos/runs/*/trees/*")}
    assert not left & set(pushed_again)
