"""Whatever can be typed, set or returned is in docs/cli.md. What there is, the code is asked; the page is only read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from agentos.cli.config.credential_entries import _FIELDS
from agentos.cli.config.files import _NO_OPTIONS
from agentos.cli.config.run_options import RUN_OPTIONS, build_variable_name
from agentos.cli.exit_codes import ExitCode
from agentos.cli.main import app
from agentos.runs.commands.outcome_file import _WORDS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "cli.md").read_text()
README = (ROOT / "README.md").read_text()


@dataclass(frozen=True)
class Wanted:
    """Something that has to be mentioned, in the part of the page that is about it."""

    name: str
    part: str = ""  # the heading of a section, or a command that has a row of its own; "": anywhere

    def __str__(self) -> str:
        return f"{self.name} ({self.part})" if self.part else self.name

    @property
    def mention(self) -> re.Pattern[str]:
        """The name as a whole: ``--id`` is not mentioned by ``--idle-timeout``."""
        return re.compile(rf"(?<![\w-]){re.escape(self.name)}(?![\w-])")

    def is_in(self, page: str) -> bool:
        return any(self.mention.search(text) for text in _parts(page, self.part))


def _parts(page: str, part: str) -> Iterator[str]:
    if not part:
        yield page
    for section in re.split(r"^(?=##+ )", page, flags=re.MULTILINE):
        if section.partition("\n")[0].lstrip("# ") == part:
            yield section
    for row in re.findall(r"^\| `agentos .*", page, re.MULTILINE):
        words = re.match(r"\| `((?:[a-z]+ ?)+)", row)
        if words is not None and words[1].strip() == part:
            yield row


def commands(command: Any = None, path: str = "agentos") -> Iterator[tuple[str, Any]]:
    """Every command of the application, and the words it is called by."""
    command = get_command(app) if command is None else command
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}")


def options() -> Iterator[Wanted]:
    for path, command in commands():
        for parameter in command.params:
            for name in (*parameter.opts, *parameter.secondary_opts):
                if name.startswith("-"):
                    yield Wanted(name, "" if path == "agentos" else path)


def variables() -> set[str]:
    """The variables named anywhere in the package, those it puts together, and the twins of options."""
    found = {build_variable_name(name) for name in RUN_OPTIONS} | set(_NO_OPTIONS)
    for path in (ROOT / "agentos").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"\bAGENTOS_[A-Z0-9_]*[A-Z0-9]\b", node.value))
    return found


@cache
def everything() -> list[Wanted]:
    return [
        *(Wanted(path) for path, _ in commands()),
        *options(),
        *(Wanted(f"`{name}`", "agentos.toml") for name in RUN_OPTIONS),
        *(Wanted(name, "agentos.toml") for name in _FIELDS),
        *(Wanted(name) for name in sorted(variables())),
        *(Wanted(f"| {code.value} |", "Exit codes") for code in ExitCode),
        *(Wanted(f'"{word}"', "How a command ends") for word in _WORDS),
    ]


def test_everything_that_can_be_typed_or_set_is_documented() -> None:
    missing = [str(wanted) for wanted in everything() if not wanted.is_in(PAGE)]

    assert not missing, f"docs/cli.md does not mention {', '.join(missing)}"


def test_every_command_is_in_the_readme() -> None:
    missing = [path for path, _ in commands() if not Wanted(path).is_in(README)]

    assert not missing, f"README.md does not mention {', '.join(missing)}"


@pytest.mark.parametrize("wanted", everything(), ids=str)
def test_a_page_without_it_is_noticed(wanted: Wanted) -> None:
    assert not wanted.is_in(wanted.mention.sub("...", PAGE))


def test_the_code_is_asked_and_answers() -> None:
    """Were the list of what is wanted empty, everything would be documented."""
    names = {wanted.name for wanted in everything()}

    assert {"agentos keys clear", "--dry-run", "-j", "--no-tag", "AGENTOS_ITEM_FILE", '"park_until"', "| 75 |"} <= names
    assert {"`idle_timeout`", "AGENTOS_BASE_DIR", "AGENTOS_CREDENTIAL_LIMIT", "extra_env", "--follow"} <= names


def test_a_longer_name_is_no_mention_of_a_shorter_one() -> None:
    assert not Wanted("--id").is_in("give it --idle-timeout or --no-id")
    assert not Wanted("--all", "agentos keys").is_in("| `agentos keys clear NAME` | `--all` |")
    assert Wanted("--all", "agentos keys").is_in("| `agentos keys` | `--all` |")


def test_the_page_names_no_option_that_is_not_there() -> None:
    known = {wanted.name for wanted in options()} | {"--help", "-h"}
    section = next(_parts(PAGE, "agentos run"))
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(-[\w-]+)", row)
    }

    assert named
    assert named <= known


HOPS = re.findall(r"([\w/]+\.py): (\w[\w.]*)", (ROOT / "docs" / "architecture.md").read_text())


@pytest.mark.parametrize(("path", "name"), sorted(set(HOPS)))
def test_the_walks_of_the_architecture_name_functions_that_exist(path: str, name: str) -> None:
    body: list[ast.stmt] = ast.parse((ROOT / "agentos" / path).read_text()).body
    for part in name.split("."):
        (found, *_) = [node for node in body if getattr(node, "name", None) == part]
        body = getattr(found, "body", [])


def test_contributing_names_files_that_exist() -> None:
    named = re.findall(r"`((?:agentos|tests|docs)/[\w/.]+)`", (ROOT / "CONTRIBUTING.md").read_text())

    assert len(named) >= 20
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    "path", [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))], ids=lambda path: path.name
)
def test_no_page_has_the_marks_of_an_unresolved_merge(path: Path) -> None:
    assert not re.findall(r"^(?:<{7} |={7}$|>{7} ).*", path.read_text(), re.MULTILINE)
