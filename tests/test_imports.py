"""Imports point inward, and the core imports nothing that can wait, look at the clock or reach outside."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "agentos"

# Each room may import from those listed after it, and from itself.
ROOMS = {
    "cli": {"workflows", "runs", "providers", "pool", "stores", "simulator", "agents", "gateway", "page", "notify"},
    "page": {"runs"},
    "notify": set[str](),
    "workflows": {"runs", "providers", "pool", "stores", "transport", "gateway"},
    "gateway": {"agents", "transport", "providers", "pool"},
    "transport": {"providers", "pool"},
    "testing": {"workflows", "runs", "providers", "pool"},
    "agents": {"runs", "providers"},
    "runs": {"providers", "pool"},
    "simulator": {"workflows", "runs", "providers", "pool"},
    "stores": {"pool"},
    "pool": {"providers"},
    "credentials": set[str](),
    "providers": set[str](),
    "costs": set[str](),
}

# Rooms that any other may import.
EVERYWHERE = {"util", "costs"}

# What is installed for the command, and the only file or room that may import it: the library needs nothing but Python.
OPTIONAL = {
    "rich": "runs/display/rich_display.py",
    "typer": "cli",
    "httpx2": "transport",
    "httpx": "transport",
    "redis": "stores/redis",
    "distributed": "runs/engines/dask.py",
    "cryptography": "runs/cluster",
}

# What a core may have of the standard library: data and arithmetic. No clock, lock, thread, socket, file or chance.
PURE = {
    "__future__",
    "array",
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

# The simulated provider is pure too, but for the files that serve it; its chance comes from its plan's seed.
SIMULATOR_SHELLS = {"__init__.py", "__main__.py", "runner.py", "server.py"}
PURE_IN_SIMULATOR = PURE | {"base64", "hashlib", "json", "random", "struct"}
# Those that try the pool on the provider. All others know nothing of the pool: its faults must not be theirs as well.
SIMULATOR_MEETS_POOL = {"virtual.py", "pool_forecast.py"}


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


def pure(path: Path) -> set[str] | None:
    """What *path* may have of the standard library; None where that is anything."""
    parts = path.relative_to(ROOT).parts
    if "core" in parts:
        return PURE
    return PURE_IN_SIMULATOR if parts[0] == "simulator" and path.name not in SIMULATOR_SHELLS else None


def broken_rules(path: Path) -> list[str]:
    broken = []
    room = path.relative_to(ROOT).parts[0]
    allowed = pure(path)
    for name in imported(path):
        words = name.split(".")
        ours = words[0] == "agentos" and len(words) > 1 and (ROOT / words[1]).is_dir()
        if ours and not room.endswith(".py") and words[1] not in {room, *ROOMS.get(room, ()), *EVERYWHERE}:
            broken.append(f"{room} imports {name}")
        if ours and room == "simulator" != words[1] not in EVERYWHERE and path.name not in SIMULATOR_MEETS_POOL:
            broken.append(f"the simulated provider imports {name}")
        if allowed is not None and words[0] != "agentos" and words[0] not in allowed:
            broken.append(f"a core imports {name}")
        if words[0] in OPTIONAL and not path.relative_to(ROOT).is_relative_to(OPTIONAL[words[0]]):
            broken.append(f"{words[0]} is for {OPTIONAL[words[0]]} alone")
    return broken


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_inward(path: Path) -> None:
    assert broken_rules(path) == []


def asks_for(path: Path) -> list[str]:
    """Where *path* asks for the time, or for chance that no seed decides."""
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    asked = [f for f in calls if isinstance(f, ast.Attribute)]
    time = [f.attr for f in asked if f.attr in {"now", "utcnow", "today"}]
    chance = [f.attr for f in asked if isinstance(f.value, ast.Name) and f.value.id == "random" and f.attr != "Random"]
    return time + chance


@pytest.mark.parametrize(
    "path", [path for path in modules() if pure(path)], ids=lambda path: str(path.relative_to(ROOT))
)
def test_the_core_never_asks_for_the_time_or_for_chance_without_a_seed(path: Path) -> None:
    assert asks_for(path) == []


def draws(path: Path) -> list[str]:
    """What *path* calls or imports of the generator that all modules of a process share."""
    tree = ast.parse(path.read_text())
    own = {"Random", "SystemRandom"}
    got = [(n.value, n.attr) for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr not in own]
    called = [attr for value, attr in got if isinstance(value, ast.Name) and value.id == "random"]
    sources = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "random"]
    return called + [name.name for node in sources for name in node.names if name.name not in own]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_whoever_seeds_random_gets_the_numbers_seeded_for(path: Path) -> None:
    assert draws(path) == []


def test_the_rule_notices_a_draw_from_the_shared_generator(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import random\nfrom random import Random, choice\nrandom.Random(1)\nrandom.uniform(0, 1)\n")

    assert draws(bad) == ["uniform", "choice"]


def test_the_rules_notice_a_core_that_imports_a_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = tmp_path / "pool" / "core" / "bad.py"
    bad.parent.mkdir(parents=True)
    bad.write_text("import time\nfrom ...workflows import parallel\n")
    (tmp_path / "workflows").mkdir()
    monkeypatch.setattr("tests.test_imports.ROOT", tmp_path)

    assert sorted(broken_rules(bad)) == ["a core imports time", "pool imports agentos.workflows"]


def test_the_rules_notice_a_simulated_provider_with_a_clock_a_pool_or_chance_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "simulator").mkdir()
    for name in ("rules.py", "server.py"):
        (tmp_path / "simulator" / name).write_text("import socket\nfrom ..pool import core\nrandom.random()\n")
    monkeypatch.setattr("tests.test_imports.ROOT", tmp_path)

    borrowed = "the simulated provider imports agentos.pool"
    assert sorted(broken_rules(tmp_path / "simulator" / "rules.py")) == ["a core imports socket", borrowed]
    assert broken_rules(tmp_path / "simulator" / "server.py") == [borrowed]
    assert asks_for(tmp_path / "simulator" / "rules.py") == ["random"]


def test_the_rules_notice_an_optional_dependency_in_the_wrong_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "display").mkdir(parents=True)
    for name in ("rich_display.py", "other.py"):
        (tmp_path / "runs" / "display" / name).write_text("from rich.console import Console\n")
    monkeypatch.setattr("tests.test_imports.ROOT", tmp_path)

    assert broken_rules(tmp_path / "runs" / "display" / "rich_display.py") == []
    assert broken_rules(tmp_path / "runs" / "display" / "other.py") == [
        "rich is for runs/display/rich_display.py alone"
    ]


def test_every_room_has_its_rule() -> None:
    rooms = {path.relative_to(ROOT).parts[0] for path in modules() if len(path.relative_to(ROOT).parts) > 1}
    assert rooms <= {*ROOMS, *EVERYWHERE}


def test_importing_agentos_needs_nothing_but_python() -> None:
    outside = {
        name.split(".")[0] for path in modules() for name in imported(path) if not name.startswith("agentos")
    } - set(sys.stdlib_module_names)
    assert outside <= set(OPTIONAL)


def test_every_other_file_can_be_imported_without_the_optional_dependencies() -> None:
    names = [
        ".".join(["agentos", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
        for path in modules()
        if not any(path.relative_to(ROOT).is_relative_to(place) for place in OPTIONAL.values())
        and path.name != "__main__.py"
    ]
    hide = f"import sys\nsys.modules.update(dict.fromkeys({list(OPTIONAL)}))\n"
    script = hide + "\n".join(f"import {name}" for name in names)

    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=150, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("module", "not_wanted"),
    [
        ("agentos", ["asyncio", "sqlite3", "typer", "rich", "agentos.errors"]),
        (
            "agentos.cli.main",
            ["asyncio", "sqlite3", "rich", "agentos.runs", "agentos.pool", "agentos.simulator"],
        ),
        ("agentos.workflows.parallel", ["asyncio", "typer", "rich"]),
    ],
)
def test_a_start_imports_nothing_it_does_not_need(module: str, not_wanted: list[str]) -> None:
    """``agentos --help`` answers at once only as long as this holds; a clock would tell it less surely."""
    script = f"import sys, {module}\nprint([name for name in {not_wanted} if name in sys.modules])"

    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=150, check=False)

    assert (ended.stdout.strip(), ended.stderr) == ("[]", "")
