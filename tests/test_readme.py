"""What the documents show, works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLE = re.compile(r"<!-- a test runs this example -->\n```python\n(.*?)```", re.DOTALL)


def run(*arguments: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_example_runs_and_asks_nothing_twice(tmp_path: Path) -> None:
    (example,) = EXAMPLE.findall((ROOT / "README.md").read_text())

    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    lines = run("-c", example, cwd=tmp_path).splitlines()
    assert sorted(line.split(":")[0] for line in lines) == ["four", "one", "three", "two"]
    assert all(re.fullmatch(r"(\w+): the answer to \1 \(by key-[12]\)", line) for line in lines)

    never = example.replace("return f", "raise AssertionError  # ")
    assert sorted(run("-c", never, cwd=tmp_path).splitlines()) == sorted(lines)


def test_every_example_in_the_documents_is_python() -> None:
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
            compile(block, str(path), "exec", flags=0x2000)  # top-level await is allowed in an excerpt


def test_the_demo_tells_its_story() -> None:
    told = run("examples/first_run.py")

    assert told.count(" done with key-") >= 15
    assert told.count("key-2 rate-limited for 0.4s") == 1
    assert "30 of 30 done, 0 failed" in told
    assert "demo-secret" not in told


def test_the_documents_link_to_what_is_there() -> None:
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], []])
def test_the_command_answers(arguments: list[str]) -> None:
    assert "agentos" in run("-c", "import sys; from agentos.cli.main import main; sys.exit(main())", *arguments)
