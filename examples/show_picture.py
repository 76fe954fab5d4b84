"""Draws docs/show.svg, the picture of `agentos show` in the README: `python examples/show_picture.py [FILE]`.

It is a real run: 240 calls over three keys of a simulated provider, one of which is refused, and some items fail.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from agentos.simulator import KeyPlan, ProviderPlan, QuotaPlan, Simulator

WIDTH = 104

WORKER = """
async def ask(item, key, context):
    question = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": item["prompt"]}]}
    answer = await context.http.post("%s/chat/completions", json=question)
    answer.raise_for_status()
    if item["id"].endswith("7"):
        raise ValueError("the answer has no JSON in it")
    return answer.json()["choices"][0]["message"]["content"]
"""

KEYS = {
    "OPENAI_API_KEY_1": "sk-proj-4f1TnQzkV8wJ2mXcR6yL9bHsD3gP7uE5aKoI",
    "OPENAI_API_KEY_2": "sk-proj-Zb7NdW1qYt5CxM3vGh8RkJ2fLp9SaU6eTiQo",
    "OPENAI_API_KEY_3": "sk-proj-Hm6XrK9cPz2VwB4nTj7DyQ5sFg1LeA8uOiRk",
}


def main() -> None:
    quotas = tuple(QuotaPlan(f"org-{name[-1]}", rpm=900) for name in KEYS)
    keys = tuple(
        KeyPlan(secret, f"org-{name[-1]}", name=name, dead=name.endswith("3")) for name, secret in KEYS.items()
    )
    with Simulator(ProviderPlan(quotas, keys)) as provider, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "ask.py").write_text(WORKER % provider.base_url)
        items = [{"id": f"q-{number:03}", "prompt": f"question {number}"} for number in range(240)]
        (place / "prompts.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in items))
        environment = {**os.environ, **KEYS, "AGENTOS_HOME": folder, "OPENAI_BASE_URL": provider.base_url}
        work = ["prompts.jsonl", "--worker", "ask.py:ask", "--keys", "env:OPENAI_API_KEY*"]
        command = [sys.executable, "-m", "agentos.cli"]
        subprocess.run(
            [*command, "run", *work, "--name", "night", "-j", "64"],
            cwd=place,
            env=environment,
            check=False,
            capture_output=True,
        )
        shown = subprocess.run(
            [*command, "show", "night", "--color", "always"],
            cwd=place,
            env={**environment, "COLUMNS": str(WIDTH)},
            check=True,
            capture_output=True,
            text=True,
        )
    default = Path(__file__).parent.parent / "docs" / "show.svg"
    draw("agentos show night", shown.stdout, Path(sys.argv[1]) if len(sys.argv) > 1 else default)


def draw(command: str, shown: str, target: Path) -> None:
    """Draw a terminal in which *command* was typed."""
    paper = Console(file=open(os.devnull, "w"), record=True, width=WIDTH, force_terminal=True, _environ={})  # noqa: SIM115
    paper.print(Text(f"$ {command}"))
    paper.print(Text.from_ansi(shown))
    svg = paper.export_svg(title="agentos show", unique_id=target.stem)
    # A picture in a README should fetch nothing: any font of fixed width will do.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")
    target.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
