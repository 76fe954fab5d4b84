"""Modules of agentos import each other in one direction, counting imports for type checkers and inside functions."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent / "agentos"
MOST_IN_A_CYCLE = 5


def name_of(path: Path) -> str:
    parts = ["agentos", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph() -> dict[str, set[str]]:
    """The modules that each module imports, wherever in it the import stands."""
    paths = {name_of(path): path for path in ROOT.rglob("*.py")}
    graph: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                graph[name].update(alias.name for alias in node.names if alias.name in paths)
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                found = {f"{base}.{alias.name}" for alias in node.names}
                graph[name].update(found & paths.keys() or {base} & paths.keys())
        graph[name].discard(name)
    return graph


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        new = graph[left.pop()] - found
        found |= new
        left.extend(new)
    return found


def test_no_import_cycle_has_more_than_five_modules() -> None:
    graph = import_graph()
    from_each = {name: reachable(graph, name) for name in graph}

    cycles = {frozenset(other for other in found if name in from_each[other]) for name, found in from_each.items()}

    assert [sorted(cycle) for cycle in cycles if len(cycle) > MOST_IN_A_CYCLE] == []


def test_only_the_coordinator_imports_the_whole_run() -> None:
    run = next(name for name in import_graph() if name.endswith(".run") and name.startswith("agentos.runs"))

    importers = {name for name, found in import_graph().items() if run in found}

    assert {name.rpartition(".")[0] for name in importers} == {"agentos.workflows.parallel"}
