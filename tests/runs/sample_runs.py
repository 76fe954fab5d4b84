"""Real runs by the real coordinator, some of them killed, for tests of reports and displays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from agentos.runs.exports.append_file import AppendOnlyFile
from agentos.workflows.parallel import CredentialCoordinator, ParallelCoordinator, WorkflowResult

SECRETS = ["sk-first-secret-000", "sk-second-secret-111"]


def by_name(item: Any) -> str:
    return str(item)


def by_fate(item: str, credential: str | None) -> Any:
    """Its name says what becomes of an item: "bad-3" and "odd-3" fail, each for its own reason; others are done."""
    if item.startswith("bad"):
        raise ValueError(f"{item}: no 'field{item}' in /data/{item}.json, line {len(item)}")
    if item.startswith("odd"):
        raise KeyError("weather")
    return {"answer": item}


def all_well(item: str, credential: str | None) -> str:
    return f"{item} is well"


def run(
    folder: Path,
    items: Iterable[Any],
    worker: Callable[..., Any] = by_fate,
    *,
    keys: Iterable[str] | None = None,
    **options: Any,
) -> list[WorkflowResult]:
    """One whole run with its journal in *folder*, known as the same work whatever *worker* is."""
    folder.mkdir(parents=True, exist_ok=True)
    pool = None if keys is None else CredentialCoordinator(list(keys))
    coordinator = ParallelCoordinator(options.pop("workers", 2), pool, journal=folder, worker_version="work", **options)
    results = coordinator.execute_parallel(items, worker, by_name)[1]
    if pool is not None:
        pool.close()
    return results


def stop_after(folder: Path, items: Iterable[Any], count: int) -> list[WorkflowResult]:
    """A run that is stopped when *count* items have finished, as by Ctrl-C."""
    folder.mkdir(parents=True, exist_ok=True)  # else a name with a dot would be that of a file
    coordinator = ParallelCoordinator(1, journal=folder, worker_version="work")
    done = 0

    def work(item: str, credential: str | None) -> Any:
        nonlocal done
        done += 1
        if done == count:
            coordinator.shutdown()
        return by_fate(item, credential)

    return coordinator.execute_parallel(items, work, by_name)[1]


class Child:
    """A run in a process of its own (see `running_child`): two items are done, one failed, and one waits for us."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.runs.running_child", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._stdout, self._stdin = self._process.stdout, self._process.stdin

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_running(self) -> None:
        assert self._stdout.readline() == "running\n"

    def let_go(self) -> None:
        """The last item ends, and so does the run."""
        self._stdin.close()
        assert self._process.wait(20) == 0

    def kill(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(20)

    def __enter__(self) -> Child:
        self.wait_until_running()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()
        for stream in (self._stdout, self._stdin):
            try:
                stream.close()
            except BrokenPipeError:
                pass


def crashed(folder: Path) -> Path:
    """A run that was killed while an item was running."""
    with Child(folder) as child:
        child.kill()
    return folder


def card(folder: Path, *arguments: str, cwd: Path, **more: Any) -> None:
    """Write down how the run in *folder* was started."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {
        "format": 1,
        "name": folder.name,
        "created": 1.0,
        "started": 2.0,
        "cwd": str(cwd),
        "arguments": list(arguments),
        "command": ["echo", "{}"],
        "worker": None,
        "source": {"kind": "file", "name": "items.txt"},
        "parallel": 3,
        "keys": [],
        "agentos": "0",
    }
    (folder / "run.json").write_text(json.dumps({**found, **more}))


def events(folder: Path, *facts: dict[str, Any]) -> None:
    lines = AppendOnlyFile(folder / "events.jsonl", what="a test")
    for fact in facts:
        lines.add(json.dumps(fact))
    lines.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
