"""Guards on names, folders and imports."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "agentos"

MOST_MODULES_IN_A_FOLDER = 20
LONGEST_MODULE = 500
# Folders with one small table file for each provider.
FREE_FOLDERS = {"dialects"}
# Rooms with one folder for each backend, in which modules of one role have one name.
PARALLEL_FOLDERS = {"stores"}
# Besides the room itself: the stores apply the pool's rules in their steps, the virtual run applies all rules.
MAY_IMPORT_A_CORE = ("agentos.stores.", "agentos.simulator.virtual")
INHERITANCE_DEPTH = 3
# The pool's rules, what it learns, its view of a store, sharing, and checks of its own promises.
DEPTH_OF_THE_CORE_POOL = 5


QUESTION_WORDS = {"What", "Who", "Whose", "Whom", "Where", "When", "How", "Whether", "Which"}


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def imports_of(path: Path) -> Iterator[tuple[str, str]]:
    """Each module that *path* imports from, with the name it imports; wherever the statement is."""
    package = [*path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(trees()[path]):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    return ((path, node) for path, tree in trees().items() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def test_public_class_names_are_unique() -> None:
    assert repeated(node.name for _, node in classes() if not node.name.startswith("_")) == []


def test_module_names_are_unique_in_a_room() -> None:
    rooms: dict[str, list[str]] = defaultdict(list)
    for path in trees():
        room = path.relative_to(PACKAGE).parts[0]
        if not path.name.startswith("__") and room not in PARALLEL_FOLDERS:
            rooms[room].append(path.name)
    assert {room: repeated(names) for room, names in rooms.items() if repeated(names)} == {}


def test_a_folder_has_few_modules() -> None:
    folders = Counter(path.parent for path in trees() if path.name != "__init__.py")
    assert [f for f, n in folders.items() if n > MOST_MODULES_IN_A_FOLDER and f.name not in FREE_FOLDERS] == []


def test_a_module_is_short() -> None:
    assert [path for path in trees() if len(path.read_text().splitlines()) > LONGEST_MODULE] == []


def is_private(module: str, name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in f"{module}.{name}".split(".")[1:])


def test_rooms_import_public_modules_and_names_of_other_rooms() -> None:
    wrong = [
        (module_name(path), module, name)
        for path in trees()
        for module, name in imports_of(path)
        if module.startswith("agentos") and room_of(module) != room_of(module_name(path))
        if is_private(module, name)
        or ("core" in module.split(".") and not module_name(path).startswith(MAY_IMPORT_A_CORE))
    ]
    assert wrong == []


def test_inheritance_is_shallow() -> None:
    bases: dict[str, list[str]] = {}
    for _, node in classes():
        bases.setdefault(node.name, [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases])

    def chain(name: str) -> tuple[str, ...]:
        if name not in bases or name == "AgentOSError":
            return ()
        return (name, *max((chain(base) for base in bases[name]), key=len, default=()))

    chains = [chain(name) for name in bases]
    assert [c for c in chains if len(c) > INHERITANCE_DEPTH and "LeasePool" not in c] == []
    assert [c for c in chains if len(c) > DEPTH_OF_THE_CORE_POOL] == []


def test_docstrings_of_modules_say_what_the_module_is() -> None:
    questions = [
        path
        for path, tree in trees().items()
        if (ast.get_docstring(tree) or "-").split()[0].strip(".,:;") in QUESTION_WORDS
    ]
    assert questions == []
