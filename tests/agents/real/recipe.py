"""The README's recipe for forty coding agents, typed with the real claude. Run by ``make test-agents``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from agentos.simulator import Latency, equal_keys
from tests.agents.real_programs import EXECUTABLES
from tests.agents.recorder import recording

README = Path(__file__).parents[3] / "README.md"


def test_the_recipe_runs_as_it_is_typed(tmp_path: Path) -> None:
    (recipe,) = re.findall(r"```sh\n(echo 'Fix issue.*?)```", README.read_text(), re.DOTALL)
    assert len(recipe.strip().splitlines()) == 3
    project, origin, bin_folder = tmp_path / "project", tmp_path / "origin.git", tmp_path / "bin"
    bin_folder.mkdir()
    # What it would commit itself, with a model that does more than the simulated one.
    git = "git commit -q --allow-empty -m fix"
    (bin_folder / "claude").write_text(f'#!/bin/sh\n"{EXECUTABLES["claude"]}" "$@" && {git}\n')
    (bin_folder / "agentos").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m agentos.cli "$@"\n')
    for name in ("claude", "agentos"):
        (bin_folder / name).chmod(0o755)
    plan = equal_keys(3, latency=Latency(median=0.1, sigma=0.2))
    with recording(plan) as kept:
        environ = {
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "AGENTOS_HOME": str(tmp_path / "state"),
            "ANTHROPIC_BASE_URL": kept.url,
            **{f"ANTHROPIC_API_KEY_{number}": secret for number, secret in enumerate(plan.secrets)},
            **{f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }
        entries = "".join(
            f'[[credentials]]\nenv = "ANTHROPIC_API_KEY_{number}"\nprovider = "anthropic"\nbase_url = "{kept.url}"\n'
            for number in range(3)
        )
        (tmp_path / ".config" / "agentos").mkdir(parents=True)
        (tmp_path / ".config" / "agentos" / "agentos.toml").write_text(entries)

        def type_words(script: str, folder: Path) -> str:
            ended = subprocess.run(
                ["bash", "-ec", script],
                cwd=folder,
                env=environ,
                capture_output=True,
                text=True,
                timeout=400,
                check=False,
            )
            assert ended.returncode == 0, ended.stderr
            return ended.stdout

        type_words("git init -q --bare -b main origin.git && git clone -q origin.git project 2>&1", tmp_path)
        type_words("git commit -q --allow-empty -m first && git push -q origin HEAD:main", project)
        (project / "issues.txt").write_text("".join(f"{number}\n" for number in range(1, 9)))
        typed = recipe.replace("--keys 'env:ANTHROPIC_API_KEY*'", "")  # those of the user's file have an address

        type_words(typed.replace("-j 40", "-j 4"), project)

    pushed = type_words("git branch --format='%(refname:short)'", origin).split()
    assert sorted(pushed) == sorted(["main", *(f"fix-{number}" for number in range(1, 9))])
    assert not list(project.glob(".agentos/runs/fix/trees/*"))
    bodies = [each.body for each in kept.generations()]
    for number in range(1, 9):
        assert any(f"Fix issue {number} of this repository".encode() in body for body in bodies)
