"""A run of commands in a process of its own, to be stopped, continued and killed. Its arguments are a JSON object."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from agentos import Command, Credential, CredentialCoordinator, ParallelCoordinator

KEY = Credential("sk-one-for-all-of-them", name="shared")
# Says at every turn that it uses the key; whoever reads the file sees in which order that was.
USE_THE_KEY = """
echo $$ >> "$1.pids"
while [ ! -e "$1.go" ]; do echo "$1" >> ticks; sleep 0.02; done
"""


def wait_to_be_let_go(name: str, _key: str | None) -> None:
    Path(f"{name}.pids").write_text(f"{os.getpid()}\n")
    while not os.path.exists(f"{name}.go"):
        time.sleep(0.02)


def main() -> None:
    told = json.loads(sys.argv[1])
    name = told["name"]
    pool = None
    if told.get("store"):
        pool = CredentialCoordinator([KEY], store=told["store"], lease_ttl=told["ttl"])
    run = ParallelCoordinator(1, pool, journal=name, retries=0, timeout=told.get("timeout"))
    worker: Any = Command(
        ["sh", "-c", told.get("script", USE_THE_KEY), "sh", name], idle_timeout=told.get("idle_timeout")
    )
    if told.get("function"):
        worker = wait_to_be_let_go
    _, results = run.execute_parallel([name], worker, lambda _: "item")
    found = [[result.item_id, result.success, result.attempts, result.error] for result in results]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
