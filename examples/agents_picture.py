"""Draws docs/agents.svg, `agentos show` after a run of agents: `make agents`, then `python examples/agents_picture.py`.

It is a real run of the real claude, over two keys of a simulated provider that limits both for half a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from show_picture import WIDTH, draw

from agentos.simulator import Latency, Scripted, Simulator, equal_keys

ROOT = Path(__file__).parent.parent
ITEMS = ("login", "search", "export", "upload", "invoices", "avatars", "locale", "webhooks", "backups", "audit")


def main() -> None:
    window = {"anthropic-ratelimit-unified-status": "rejected", "retry-after": "25"}
    too_long = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}}
    script = (
        Scripted(400, call=3, body=too_long),
        Scripted(429, at=6.0, until=30.0, headers=window),
    )
    plan = equal_keys(2, latency=Latency(median=1.5, sigma=0.4), script=script, seed=3)
    entry = '[[credentials]]\nname = "key-{0}"\nenv = "KEY_{0}"\nprovider = "anthropic"\nbase_url = "{1}"\n'
    with Simulator(plan) as provider, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        entries = [entry.format(number, provider.url) for number, _ in enumerate(plan.secrets, 1)]
        (place / "keys.toml").write_text("".join(entries))
        environment = {
            **os.environ,
            **{f"KEY_{number}": secret for number, secret in enumerate(plan.secrets, 1)},
            "PATH": f"{ROOT / '.agents' / 'node_modules' / '.bin'}:{os.environ['PATH']}",
            "HOME": folder,
            "AGENTOS_HOME": folder,
            "COLUMNS": str(WIDTH),
        }
        command = [sys.executable, "-m", "agentos.cli"]
        work = ["--config", "keys.toml", "--agent", "claude", "--name", "night", "-j", "3", "--park-after", "5s"]
        for words in ([*command, "run", *work, ":::", *ITEMS], [*command, "show", "night", "--color", "always"]):
            ended = subprocess.run(words, cwd=place, env=environment, check=False, capture_output=True, text=True)
    draw("agentos show night", ended.stdout, ROOT / "docs" / "agents.svg")


if __name__ == "__main__":
    main()
