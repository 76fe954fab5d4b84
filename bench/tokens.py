"""The README's recipe for prompts under an unknown limit on tokens: ``python bench/tokens.py [--seed N]``.

The command runs as typed, with the SDK, against a simulated provider in a process of its own: three keys that allow
60,000 tokens a minute and hold a quarter of that, prompts of very different length, and work for about 42 s. How many
calls are refused is for the provider to say, since the transport makes them again without telling the worker.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, get_args

from agentos.simulator import Latency, equal_keys, in_process
from agentos.simulator.plan import Dialect

KEYS: Final = 3
A_MINUTE: Final = 60_000
HELD: Final = A_MINUTE // 4
SECONDS: Final = 42
MOST_REFUSED: Final = 0.05
WORKER: Final = """
import openai

async def ask(item, key, context):
    client = openai.AsyncOpenAI(api_key="pool", http_client=context.http, max_retries=0)
    question = [{"role": "user", "content": item["prompt"]}]
    return await client.chat.completions.create(model="gpt-4o-mini", messages=question, max_tokens=1)
"""


def draw_prompts(seed: int) -> list[dict[str, str]]:
    """Return prompts, most of a few hundred tokens and some of thousands, whose tokens take the time to flow in."""
    luck, left = random.Random(seed), KEYS * (A_MINUTE / 60 * SECONDS + HELD)
    prompts: list[dict[str, str]] = []
    while left > 0:
        size = min(6_000, max(10, round(500 * luck.lognormvariate(-0.5, 1.0))))
        left -= size
        prompts.append({"id": f"q{len(prompts)}", "prompt": "tea " * size})
    return prompts


def run_recipe(dialect: Dialect, seed: int) -> str:
    """Run it once and return a line on how it went."""
    plan = equal_keys(KEYS, tpm=A_MINUTE, token_burst=HELD, dialect=dialect, latency=Latency(0.5, 0.3), seed=seed)
    prompts = draw_prompts(seed)
    with in_process(plan) as provider, tempfile.TemporaryDirectory(prefix="agentos-tokens-") as folder:
        place = Path(folder)
        (place / "ask.py").write_text(WORKER)
        (place / "prompts.jsonl").write_text("".join(f"{json.dumps(prompt)}\n" for prompt in prompts))
        keys = {f"OPENAI_API_KEY_{number}": key for number, key in enumerate(provider.keys, start=1)}
        settings = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTOS_", "OPENAI_"))}
        began = time.monotonic()
        typed = ["run", "prompts.jsonl", "--worker", "ask.py:ask", "--keys", "env:OPENAI_API_KEY*"]
        ended = subprocess.run(
            [sys.executable, "-m", "agentos.cli", *typed, "--name", "night", "-j", "200", "--timeout", "5m"],
            cwd=place,
            env=settings | keys | {"OPENAI_BASE_URL": provider.base_url, "HOME": folder, "PYTHONPATH": os.getcwd()},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds, total = time.monotonic() - began, provider.statistics().total
    refused = total.refused / max(1, total.calls)
    verdict = "ok" if refused <= MOST_REFUSED and total.ok == len(prompts) else "MISSED"
    lost = "" if ended.returncode == 0 else f"  exit {ended.returncode}: {ended.stderr[-300:]}"
    return f"  {dialect:<14}{len(prompts):>8,}{total.ok:>8,}{refused:>10.1%}{seconds:>9.1f}  {verdict}{lost}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.randrange(1_000))
    parser.add_argument("--dialect", nargs="*", choices=get_args(Dialect), default=["full", "retry-after", "none"])
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}; at most {MOST_REFUSED:.0%} refused; about {SECONDS} s of work and the start")
    print(f"  {'headers':<14}{'prompts':>8}{'done':>8}{'refused':>10}{'seconds':>9}")
    for dialect in arguments.dialect:
        print(run_recipe(dialect, arguments.seed), flush=True)


if __name__ == "__main__":
    main()
