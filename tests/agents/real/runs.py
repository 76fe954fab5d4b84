"""``agentos run --agent`` with the real programs, against the simulator. Run by ``make test-agents``."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentos.simulator import Latency, ProviderPlan, Scripted, equal_keys
from tests.agents.real_programs import EXECUTABLES
from tests.agents.recorder import Recording, recording
from tests.agents.situations import build_script

PROGRAMS = ("claude", "codex", "gemini", "opencode")
STYLES = {"claude": "anthropic", "gemini": "gemini"}
# A model that needs no other to choose it, and the address of each style.
OPTIONS = {"gemini": ("-m", "gemini-2.5-flash"), "opencode": ("-m", "openai/gpt-4o-mini")}
PATIENCE = 400.0


class Machine:
    """A home folder, a project in it, and the real programs on the PATH."""

    def __init__(self, folder: Path, name: str, url: str, secrets: Sequence[str]) -> None:
        self.name = name
        self.home = folder / "home"
        self.project = self.home / "project"
        self.project.mkdir(parents=True)
        style = STYLES.get(name, "openai")
        path = "/v1" if style == "openai" else ""
        entry = '[[credentials]]\nname = "k{0}"\nenv = "KEY_{0}"\nprovider = "{1}"\nbase_url = "{2}{3}"\n'
        text = "".join(entry.format(number, style, url, path) for number, _ in enumerate(secrets))
        (self.home / "own.toml").write_text(text)
        self.environ = {
            "PATH": f"{EXECUTABLES[name].parent}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "AGENTOS_HOME": str(self.home / "state"),
            "LANG": "C.UTF-8",
            "CLAUDE_CODE_MAX_RETRIES": "1",  # else it takes three minutes to give up
            **{f"KEY_{number}": secret for number, secret in enumerate(secrets)},
        }
        (self.home / ".gemini").mkdir()
        (self.home / ".gemini" / "settings.json").write_text('{"general": {"maxAttempts": 2}}')

    def words(self, *typed: str, items: Sequence[str] = ("ALPHA",)) -> list[str]:
        agent = ("--config", str(self.home / "own.toml"), "--agent", self.name)
        given = (*agent, *typed, ":::", *items, "--", *OPTIONS.get(self.name, ()))
        return [sys.executable, "-m", "agentos.cli", "run", *given]

    def run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            list(words),
            cwd=self.project,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def rows(self, *kinds: str) -> list[dict[str, Any]]:
        """The details of the journal's entries of these kinds; the value of a ``done``."""
        paths = list(self.project.glob(".agentos/runs/*/journal.sqlite"))
        if not paths:
            return []
        with sqlite3.connect(f"file:{paths[0]}?mode=ro", uri=True) as journal:
            found = journal.execute("select kind, coalesce(value, detail) from entries order by seq").fetchall()
        return [json.loads(text) for kind, text in found if kind in kinds]


@contextmanager
def machine(
    folder: Path, name: str, script: Sequence[Scripted] = (), plan: ProviderPlan | None = None
) -> Iterator[tuple[Machine, Recording]]:
    plan = plan or equal_keys(1, latency=Latency(median=0.0, sigma=0.0), script=tuple(script))
    with recording(plan) as kept:
        yield Machine(folder, name, kept.url, plan.secrets), kept


# What one key and no gateway tells of each situation; the others are in the recorded transcripts.
ENDINGS = {
    "done": "done",
    "limited-short": "done",
    "rejected": "key rejected",
    "spent": "out of credit",
    "context": "context too long",
    "overloaded": "provider overloaded",
    "usage-limit": "parked",
    "limited-unstated": "rate-limited",
    "cut": "provider overloaded",
}
TOLD_LESS = {
    ("claude", "usage-limit"): "rate-limited",
    ("gemini", "usage-limit"): "rate-limited",
    ("gemini", "spent"): "failed",
    ("gemini", "context"): "failed",
    ("gemini", "cut"): "failed",
    ("codex", "cut"): "failed",
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("situation", ENDINGS)
def test_what_a_provider_does_is_classified_right(name: str, situation: str, tmp_path: Path) -> None:
    script = build_script(STYLES.get(name, "openai"), situation)
    with machine(tmp_path, name, script) as (user, _):
        ended = user.run(user.words("--no-gateway", "--retries", "0", "--deadline", "3s", "--store", "memory"))

    rows = user.rows("done", "failed", "limited", "retry")
    assert rows, ended.stderr
    assert rows[0]["ending"] == TOLD_LESS.get((name, situation), ENDINGS[situation])


def until(condition: Callable[[], object], driver: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("killed", [False, True], ids=["in-one-run", "after-kill-9"])
def test_a_parked_item_resumes_in_the_same_session_after_the_reset(name: str, killed: bool, tmp_path: Path) -> None:
    seconds = 45
    limited = build_script(STYLES.get(name, "openai"), "limited-until", reset_in=seconds)
    script = [replace(each, until=float(seconds)) for each in limited]
    with machine(tmp_path, name, script) as (user, kept):
        words = user.words("--park-after", "1s")
        driver = subprocess.Popen(
            words, cwd=user.project, env=user.environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        until(lambda: user.rows("limited"), driver)
        assert _agents_of(user) == []
        if killed:
            driver.send_signal(signal.SIGKILL)
            driver.communicate()
            ended = user.run(words)
            assert ended.returncode == 0, ended.stderr
        else:
            _, errors = driver.communicate(timeout=PATIENCE)
            assert driver.returncode == 0, errors

        last = kept.generations()[-1]
    (value,) = user.rows("done")
    assert user.rows("limited")[0]["ending"] == "parked"
    assert b"ALPHA" in last.body
    if name == "gemini":
        return  # it keeps no session that has no answer yet: another one began, with the same prompt
    assert value["resumes"] >= 1
    assert value["session"] == user.rows("limited")[0]["session"]
    assert b"where you left off" in last.body


def _agents_of(user: Machine) -> list[str]:
    """The processes of the program that run for this user."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environ, words = (path / "environ").read_bytes(), (path / "cmdline").read_bytes()
        except OSError:
            continue
        if f"HOME={user.home}".encode() in environ and b"AGENTOS_ITEM=ALPHA" in environ:
            found.append(words.decode("utf-8", "replace"))
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_is_killed_is_resumed_by_the_same_command(name: str, tmp_path: Path) -> None:
    plan = equal_keys(1, latency=Latency(median=5.0, sigma=0.0))
    with machine(tmp_path, name, plan=plan) as (user, kept):
        words = user.words()
        driver = subprocess.Popen(
            words, cwd=user.project, env=user.environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        until(lambda: kept.generations(), driver)
        driver.send_signal(signal.SIGKILL)
        driver.communicate()

        ended = user.run(words)

    assert ended.returncode == 0, ended.stderr
    (value,) = user.rows("done")
    assert value["answer"].startswith("Simulated answer")
    assert b"ALPHA" in kept.generations()[-1].body


def test_forty_agents_over_three_keys_with_failures_are_all_accounted_for(tmp_path: Path) -> None:
    plan = equal_keys(
        3, rpm=120, request_burst=20, latency=Latency(median=0.2, sigma=0.3), error_rate=0.1, overload_rate=0.1, seed=7
    )
    items = [f"item-{number}" for number in range(40)]
    with machine(tmp_path, "claude", plan=plan) as (user, kept):
        ended = user.run(user.words("-j", "4", items=items))
        done, failed = user.rows("done"), user.rows("failed")
        asked = _count_by_session(kept)
        again = user.run(user.words("-j", "4", "--retry-failed", items=items))
        asked_again = _count_by_session(kept)

    assert len(done) + len(failed) == 40, ended.stderr
    assert again.returncode in (0, 1), again.stderr
    assert len(user.rows("done")) + len(user.rows("failed")) >= 40
    assert len({each["session"] for each in user.rows("done")}) == len(user.rows("done")) >= len(done)
    # By the provider's own count: each agent that is done got an answer, and none was asked for again.
    for value in done:
        assert value["answer"].startswith("Simulated answer")
        assert asked_again[value["session"]] == asked[value["session"]] >= 1


def _count_by_session(kept: Recording) -> Counter[str]:
    return Counter(each.headers.get("x-claude-code-session-id", "") for each in kept.generations())
