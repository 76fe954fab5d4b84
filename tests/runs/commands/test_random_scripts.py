"""Property: a script with placeholders is refused, or executes nothing of an item. In real shells.

``make soak`` goes on for longer and in more shells: AGENTOS_RANDOM_SCRIPTS is how many scripts are made for each of
AGENTOS_SHELLS.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from .random_scripts import Arena, ScriptMaker, accepted

SCRIPTS = int(os.environ.get("AGENTOS_RANDOM_SCRIPTS", "2000"))
SHELLS = os.environ.get("AGENTOS_SHELLS", "").split() or [shell for shell in ("dash", "bash") if shutil.which(shell)]
BATCH = 200


@pytest.mark.parametrize("shell", SHELLS)
def test_a_random_script_is_refused_or_executes_no_item(shell: str, tmp_path: Path) -> None:
    assert shutil.which(shell) is not None, f"{shell} is not installed"
    seed = int(os.environ.get("AGENTOS_SEED") or random.randrange(2**32))
    print(f"{shell}: AGENTOS_SEED={seed}")  # noqa: T201 - to run the same scripts again
    maker, arena, chance = ScriptMaker(seed), Arena(tmp_path), random.Random(seed)
    ran = 0

    for begin in range(0, SCRIPTS, BATCH):
        scripts = [maker.script() for _ in range(begin, min(begin + BATCH, SCRIPTS))]
        found = (accepted(shell, each, chance.choice(arena.items)) for each in scripts if "{}" in each)
        commands = [command for command in found if command is not None]
        ran += len(commands)
        assert list(arena.breaches(commands)) == []

    print(f"{shell}: {SCRIPTS} scripts, {ran} accepted and run, no item was executed")  # noqa: T201
    assert ran > SCRIPTS // 20


def test_an_item_that_is_executed_is_noticed(tmp_path: Path) -> None:
    arena = Arena(tmp_path)
    harmless = ["sh", "-c", 'echo "$1"', "sh", arena.items[0]]
    careless = ["sh", "-c", 'eval "echo $1"', "sh", arena.items[0]]

    assert list(arena.breaches([harmless, careless, harmless])) == [careless]
    assert list(arena.breaches([harmless])) == []
