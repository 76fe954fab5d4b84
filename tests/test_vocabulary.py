"""Guards on names, folders and imports. Each limit is a ratchet: it may fall, not rise."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from agentos import CredentialCoordinator, ParallelCoordinator

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "agentos"

REPEATED_CLASS_NAMES = 39
REPEATED_MODULE_NAMES = 34
LARGEST_FOLDER = 57
LARGEST_MODULE = 666
PRIVATE_IMPORTS = 127
INHERITANCE_DEPTH = 7
QUESTION_DOCSTRINGS = 149
IMPORT_CYCLE_AROUND_RUN = 42
COORDINATOR_NAMES = 69

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


def test_public_class_names_are_unique() -> None:
    names = Counter(node.name for _, node in classes() if not node.name.startswith("_"))
    assert sum(count > 1 for count in names.values()) <= REPEATED_CLASS_NAMES


def test_module_names_are_unique() -> None:
    names = Counter(path.name for path in trees() if not path.name.startswith("__"))
    assert sum(count > 1 for count in names.values()) <= REPEATED_MODULE_NAMES


def test_a_folder_has_a_few_modules() -> None:
    folders = Counter(path.parent for path in trees() if path.name != "__init__.py")
    assert max(folders.values()) <= LARGEST_FOLDER


def test_a_module_has_one_idea() -> None:
    assert max(len(path.read_text().splitlines()) for path in trees()) <= LARGEST_MODULE


def test_rooms_import_public_names_of_other_rooms() -> None:
    private = [
        (path, module, name)
        for path in trees()
        for module, name in imports_of(path)
        if module.startswith("agentos") and room_of(module) != room_of(module_name(path))
        if any(part.startswith("_") and not part.startswith("__") for part in f"{module}.{name}".split(".")[1:])
    ]
    assert len(private) <= PRIVATE_IMPORTS


def test_inheritance_is_shallow() -> None:
    bases: dict[str, list[str]] = {}
    for _, node in classes():
        bases.setdefault(node.name, [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases])

    def depth(name: str, below: tuple[str, ...] = ()) -> int:
        if name not in bases or name in below or name == "AgentOSError":
            return 0
        return 1 + max((depth(base, (*below, name)) for base in bases[name]), default=0)

    assert max(map(depth, bases)) <= INHERITANCE_DEPTH


def test_docstrings_of_modules_say_what_the_module_is() -> None:
    questions = [
        path
        for path, tree in trees().items()
        if (ast.get_docstring(tree) or "-").split()[0].strip(".,:;") in QUESTION_WORDS
    ]
    assert len(questions) <= QUESTION_DOCSTRINGS


def test_few_modules_import_each_other_around_the_run() -> None:
    """Counting imports for type checkers and within functions."""
    modules = {module_name(path): path for path in trees()}
    graph: dict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        for module, imported in imports_of(path):
            target = f"{module}.{imported}" if f"{module}.{imported}" in modules else module
            if target in modules and target != name:
                graph[name].add(target)

    def reachable(start: str) -> set[str]:
        found, open_ends = set[str](), [start]
        while open_ends:
            for target in graph[open_ends.pop()] - found:
                found.add(target)
                open_ends.append(target)
        return found

    run = "agentos.runs.execution.run"
    assert len([name for name in reachable(run) if run in reachable(name)]) <= IMPORT_CYCLE_AROUND_RUN


def test_the_coordinators_show_their_public_names_only() -> None:
    for coordinator in (CredentialCoordinator, ParallelCoordinator):
        assert len([name for name in dir(coordinator) if not name.startswith("_")]) <= COORDINATOR_NAMES
