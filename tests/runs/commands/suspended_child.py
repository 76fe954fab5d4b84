"""A run of commands in a process of its own, to be stopped, continued and killed. Its arguments are a JSON object."""

from __future__ import annotations

import json
import sys

from agentos import Command, Credential, CredentialCoordinator, ParallelCoordinator

# Says at every turn that it uses the key; whoever reads the file sees in which order that was.
USE_THE_KEY = """
echo $$ >> "$1.pids"
while [ ! -e "$1.go" ]; do echo "$1" >> ticks; sleep 0.02; done
"""


def main() -> None:
    told = json.loads(sys.argv[1])
    name = told["name"]
    pool = None
    if told.get("store"):
        pool = CredentialCoordinator(
            [Credential("sk-one-for-all-of-them", name="shared")], store=told["store"], lease_ttl=told["ttl"]
        )
    run = ParallelCoordinator(1, pool, journal=name, retries=0, timeout=told.get("timeout"))
    command = Command(["sh", "-c", told.get("script", USE_THE_KEY), "sh", name], idle_timeout=told.get("idle_timeout"))
    _, results = run.execute_parallel(["item"], command, str)
    found = [[result.item_id, result.success, result.attempts, result.error] for result in results]
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
