"""Imports point inward, and the core imports nothing that can wait, look at the clock or reach outside."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "agentos"

# Each room may import from those listed after it, and from itself.
ROOMS = {
    "cli": {"workflows", "runs", "providers", "credentials", "simulator"},
    "workflows": {"runs", "providers", "credentials"},
    "testing": {"workflows", "runs", "providers", "credentials"},
    "credentials": set[str](),
}

# What a _core may have of the standard library: data and arithmetic. No clock, lock, thread, socket, file or chance.
PURE = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "datetime",
    "enum",
    "fnmatch",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "re",
    "typing",
}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """The full names of the modules that *path* imports, relative ones resolved."""
    package = ["agentos", *path.relative_to(ROOT).parts[:-1]]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            found.add(".".join([*base, *([node.module] if node.module else [])]))
    return found


def broken_rules(path: Path) -> list[str]:
    broken = []
    parts = path.relative_to(ROOT).parts
    room = parts[0]
    for name in imported(path):
        words = name.split(".")
        ours = words[0] == "agentos" and len(words) > 1 and (ROOT / words[1]).is_dir()
        if ours and room in ROOMS and words[1] not in {room, *ROOMS[room]}:
            broken.append(f"{room} imports {name}")
        if "_core" in parts and words[0] != "agentos" and words[0] not in PURE:
            broken.append(f"a core imports {name}")
    return broken


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_inward(path: Path) -> None:
    assert broken_rules(path) == []


@pytest.mark.parametrize("path", sorted((ROOT / "credentials" / "_core").glob("*.py")), ids=lambda path: path.name)
def test_the_core_never_asks_for_the_time(path: Path) -> None:
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    asked = [f.attr for f in calls if isinstance(f, ast.Attribute) and f.attr in {"now", "utcnow", "today"}]
    assert asked == []


def test_the_rules_notice_a_core_that_imports_a_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = tmp_path / "credentials" / "_core" / "bad.py"
    bad.parent.mkdir(parents=True)
    bad.write_text("import time\nfrom ...workflows import parallel\n")
    (tmp_path / "workflows").mkdir()
    monkeypatch.setattr("tests.test_imports.ROOT", tmp_path)

    assert sorted(broken_rules(bad)) == ["a core imports time", "credentials imports agentos.workflows"]


def test_every_room_has_its_rule() -> None:
    rooms = {path.relative_to(ROOT).parts[0] for path in modules() if len(path.relative_to(ROOT).parts) > 1}
    assert rooms <= set(ROOMS)


def test_importing_agentos_needs_nothing_but_python() -> None:
    outside = {
        name.split(".")[0] for path in modules() for name in imported(path) if not name.startswith("agentos")
    } - set(__import__("sys").stdlib_module_names)
    assert outside == set()
