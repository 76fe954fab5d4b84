"""A user's machine with the real programs on the PATH, before a simulated provider that records what it is asked."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentos.simulator import Latency, ProviderPlan, Scripted, equal_keys
from tests.agents.real_programs import EXECUTABLES, QUIET
from tests.agents.recorder import Recording, recording

PROGRAMS = ("claude", "codex", "gemini", "opencode")
STYLES = {"claude": "anthropic", "gemini": "gemini"}
# A model that needs no other to choose it.
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
            **QUIET,
            **{f"KEY_{number}": secret for number, secret in enumerate(secrets)},
        }
        (self.home / ".gemini").mkdir()
        (self.home / ".gemini" / "settings.json").write_text('{"general": {"maxAttempts": 2}}')

    def words(self, *typed: str, items: Sequence[str] = ("ALPHA",)) -> list[str]:
        """Return the command that runs the agent for the items."""
        given = ("--config", str(self.home / "own.toml"), "--agent", self.name, *typed)
        listed = (":::", *items) if items else ()
        return [sys.executable, "-m", "agentos.cli", "run", *given, *listed, "--", *OPTIONS.get(self.name, ())]

    def run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
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

    def start(self, words: Sequence[str]) -> subprocess.Popen[str]:
        """Start a command."""
        return subprocess.Popen(
            list(words),
            cwd=self.project,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def rows(self, *kinds: str) -> list[dict[str, Any]]:
        """The details of the journal's entries of these kinds; the value of a ``done``."""
        paths = list(self.project.glob(".agentos/runs/*/journal.sqlite"))
        if not paths:
            return []
        with sqlite3.connect(f"file:{paths[0]}?mode=ro", uri=True) as journal:
            found = journal.execute("select kind, coalesce(value, detail) from entries order by seq").fetchall()
        return [json.loads(text) for kind, text in found if kind in kinds]

    def has_kept(self, text: bytes) -> bool:
        """True if the program has written *text* to its own files: what it has not, no resume can bring back."""
        for folder, names, files in os.walk(self.home):
            names[:] = [name for name in names if name != ".agentos"]
            for path in (Path(folder, name) for name in files):
                try:
                    if path.is_file() and text in path.read_bytes():
                        return True
                except OSError:
                    continue  # it is gone, or no file
        return False

    def find_agents(self) -> list[int]:
        """Return the processes of the program that run for this user."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                environ = (path / "environ").read_bytes()
            except OSError:
                continue
            if f"HOME={self.home}".encode() in environ and b"AGENTOS_ITEM=ALPHA" in environ:
                found.append(int(path.name))
        return found


@contextmanager
def machine(
    folder: Path, name: str, script: Sequence[Scripted] = (), plan: ProviderPlan | None = None
) -> Iterator[tuple[Machine, Recording]]:
    """Yield the machine of a user of that program, and what its provider is asked."""
    plan = plan or equal_keys(1, latency=Latency(median=0.0, sigma=0.0), script=tuple(script))
    with recording(plan) as kept:
        yield Machine(folder, name, kept.url, plan.secrets), kept


def until(condition: Callable[[], object], driver: subprocess.Popen[str]) -> None:
    """Wait for the condition while the driver runs."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < end
        time.sleep(0.1)
