"""The real programs share keys through ``agentos run --gateway``. Run by ``make test-agents``.

``AGENTOS_LONG_COOLDOWN=660`` lets all keys cool down for that many seconds first, as a night may have it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agentos.simulator import Latency, ProviderPlan, Running, Scripted, Simulator, organisations
from agentos.simulator.plan import Style
from tests.agents.real_programs import EXECUTABLES, QUIET, start_once

TASKS = 12
FEWER_TASKS = 6  # where it matters that keys are lost, or cool down, and not how many programs share them
COOLDOWN = float(os.environ.get("AGENTOS_LONG_COOLDOWN", "8"))
COMMANDS = {
    "claude": ("anthropic", ("-p", "{}", "--output-format", "json")),
    "codex": ("openai", ("exec", "--json", "--skip-git-repo-check", "{}")),
    "gemini": ("gemini", ("-m", "gemini-2.5-flash", "-p", "{}", "--output-format", "json")),
    "opencode": ("openai", ("run", "--format", "json", "-m", "openai/gpt-4o-mini", "{}")),
}
LIMIT_WORDS = ("rate limit", "rate_limit", "too many requests", "quota", " 429")


def plan_for(provider: str, **options: Any) -> ProviderPlan:
    """Three keys of three organisations, with 20 requests a minute each."""
    style: Style = provider  # type: ignore[assignment]
    counts = {f"{provider}-a": 1, f"{provider}-b": 1, f"{provider}-c": 1}
    return organisations(counts, rpm=20, latency=Latency(0.05, 0.0), style=style, **options)


class Run:
    """A run of one program, and a hunter for keys in the processes meanwhile."""

    def __init__(self, root: Path, name: str, simulator: Running, plan: ProviderPlan, tasks: int = TASKS) -> None:
        self.root, self.name, self.plan, self.tasks = root, name, plan, tasks
        self.home, self.work = root / "home", root / "work"
        for folder in (self.home, self.work):
            folder.mkdir(parents=True)
        provider = COMMANDS[name][0]
        entries = ""
        for number, key in enumerate(plan.keys, start=1):
            file = root / f"key-{number}"
            file.write_text(key.secret)
            file.chmod(0o600)
            entries += f'[[credentials]]\nname = "key-{number}"\nfile = "{file}"\nquota = "{key.quota}"\n'
            entries += f'base_url = "{simulator.url}"\nprovider = "{provider}"\n'
        self.config = root / "agentos.toml"
        self.config.write_text(entries)
        self.environment = {
            "PATH": f"{EXECUTABLES[name].parent}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "AGENTOS_HOME": str(root / "state"),
            "TERM": "dumb",
            "LANG": "C.UTF-8",
            **QUIET,
        }
        self.found: list[str] = []
        start_once(name, self.work, self.environment)

    def agentos(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "agentos.cli", *words],
            cwd=self.work,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def go(self, *options: str) -> subprocess.CompletedProcess[str]:
        _, words = COMMANDS[self.name]
        items = [f"say hi number {number}" for number in range(self.tasks)]
        typed = ("run", "--config", str(self.config), "--gateway", "-j", "6", *options, "--", self.name, *words)
        with self._hunting():
            return self.agentos(*typed, ":::", *items)

    @contextmanager
    def _hunting(self) -> Iterator[None]:
        over = threading.Event()
        hunter = threading.Thread(target=self._hunt, args=(over,), daemon=True)
        hunter.start()
        try:
            yield
        finally:
            over.set()
            hunter.join()

    def _hunt(self, over: threading.Event) -> None:
        secrets = [key.secret.encode() for key in self.plan.keys]
        while not over.wait(0.2):
            for entry in Path("/proc").iterdir():
                if entry.name.isdecimal() and int(entry.name) != os.getpid():
                    for part in ("environ", "cmdline"):
                        try:
                            data = (entry / part).read_bytes()
                        except OSError:
                            continue
                        self.found += [f"{entry}/{part}" for secret in secrets if secret in data]

    def check(self, ended: subprocess.CompletedProcess[str], simulator: Running) -> list[dict[str, Any]]:
        """Every task is done, no program reports a limit, no key is anywhere, and nothing overtook."""
        assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
        results = [json.loads(line) for line in self.agentos("results", "--jsonl").stdout.splitlines()]
        assert [line["outcome"] for line in results] == ["done"] * self.tasks
        finals = [line["value"]["stdout"].strip().splitlines()[-1].lower() for line in results]
        assert not [text for text in finals for word in LIMIT_WORDS if word in text]
        assert self.found == []
        everything = ended.stdout + ended.stderr + self.agentos("show").stdout
        everything += "".join(
            path.read_text("latin-1") for path in (self.work / ".agentos").rglob("*") if path.is_file()
        )
        assert not [key.name for key in self.plan.keys if key.secret in everything]
        assert simulator.statistics().violations == ()
        requests = [json.loads(line) for line in self.agentos("results", "--requests").stdout.splitlines()]
        check_order(requests)
        return requests


def check_order(requests: list[dict[str, Any]]) -> None:
    """Of two requests for one model, the one that came first leaves first, unless a key refused it before."""
    for model in {line["model"] for line in requests}:
        same = [line for line in requests if line["model"] == model and not line["refusals"] and line["key"]]
        left = [line["at"] + line["waited"] for line in sorted(same, key=lambda line: line["at"])]
        assert all(one <= other + 0.01 for one, other in pairwise(left)), (model, left)  # they are rounded


@pytest.mark.parametrize("name", COMMANDS)
def test_twelve_tasks_of_a_program_share_three_keys(name: str, tmp_path: Path) -> None:
    plan = plan_for(COMMANDS[name][0])
    with Simulator(plan) as simulator:
        run = Run(tmp_path, name, simulator, plan)
        requests = run.check(run.go(), simulator)

    assert {line["key"] for line in requests if line["outcome"] == "done"} == {"key-1", "key-2", "key-3"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_key_that_dies_and_one_without_credit_fail_nothing(name: str, tmp_path: Path) -> None:
    provider = COMMANDS[name][0]
    plan = plan_for(provider)
    spent: dict[str, Any] = {
        "openai": {"error": {"type": "insufficient_quota", "code": "insufficient_quota", "message": "no credit"}},
        "anthropic": {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "Your credit balance is too low to access the API."},
        },
        "gemini": {
            "error": {
                "code": 403,
                "status": "PERMISSION_DENIED",
                "message": "This API method requires billing to be enabled.",
                "details": [
                    {
                        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                        "reason": "BILLING_DISABLED",
                        "domain": "googleapis.com",
                    }
                ],
            }
        },
    }
    first, second, third = plan.keys
    status = {"openai": 429, "anthropic": 400, "gemini": 403}[provider]
    script = (Scripted(status, at=0.5, until=1e6, key=second.name, body=spent[provider]),)
    plan = replace(plan, keys=(replace(first, dies_after=2), second, third), script=script)
    with Simulator(plan) as simulator:
        run = Run(tmp_path, name, simulator, plan, FEWER_TASKS)
        run.check(run.go(), simulator)


def test_a_long_cooldown_of_all_keys_fails_no_program(tmp_path: Path) -> None:
    """All four side by side."""
    ended: dict[str, Any] = {}

    def one(name: str) -> None:
        plan = plan_for(COMMANDS[name][0])
        wait = {"retry-after": str(int(COOLDOWN))}
        plan = replace(plan, script=tuple(Scripted(429, call=1, key=key.name, headers=wait) for key in plan.keys))
        with Simulator(plan) as simulator:
            run = Run(tmp_path / name, name, simulator, plan, FEWER_TASKS // 2)
            # A limit is that of a model, and opencode asks another one for a title at the same time.
            (run.work / "opencode.json").write_text('{"small_model": "openai/gpt-4o-mini"}')
            try:
                ended[name] = run.check(run.go(), simulator)
            except BaseException as error:
                ended[name] = error

    threads = [threading.Thread(target=one, args=(name,)) for name in COMMANDS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {name: error for name, error in ended.items() if isinstance(error, BaseException)} == {}
    for requests in ended.values():
        assert max(line["waited"] for line in requests) > COOLDOWN / 2
