"""The pool of an earlier commit in the matrix: a process with that commit's package, which reads variants from stdin.

``python bench/matrix_earlier.py FOLDER``: FOLDER holds what ``git archive eb80834`` exports. A line is a variant, when
to stop and the most refusals; the answer is a line with its result.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

COMMIT = "eb80834"


def use_package(folder: str) -> None:
    """Import that folder's package from here on, with the limiters of this one, which it did not have."""
    sys.path.insert(0, folder)
    ours = Path(__file__).parents[1] / "agentos" / "simulator" / "limiters.py"
    spec = importlib.util.spec_from_file_location("agentos.simulator.limiters", ours)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    importlib.import_module("agentos.simulator")
    sys.modules["agentos.simulator.limiters"] = module
    spec.loader.exec_module(module)


def main(folder: str) -> None:
    use_package(folder)
    from matrix_clients import PoolClient, PoolKit, drive
    from matrix_variants import scene_of, variant_from

    def names(module: str, *wanted: str) -> list[Any]:
        found = importlib.import_module(f"agentos.{module}")
        assert str(found.__file__).startswith(folder), found.__file__
        return [getattr(found, name) for name in wanted]

    (pool,) = names("credentials._core.learning", "LearningPool")
    (forever,) = names("credentials._core.limits", "FOREVER")
    spec, ask, ticket = names("credentials._core.records", "KeySpec", "Ask", "Ticket")
    (wait,) = names("credentials._core.states", "Wait")
    (limit,) = names("credentials.limit", "Limit")
    (classify,) = names("providers", "classify")
    kit = PoolKit(pool, spec, limit, ask, ticket, wait.GRANTED, forever, classify, lambda heard: heard.touched)
    for line in sys.stdin:
        name, until, most_rejected = json.loads(line)
        scene = scene_of(variant_from(name))
        result = drive(PoolClient(scene, kit), scene, until=until, most_rejected=most_rejected)
        print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
