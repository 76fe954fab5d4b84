"""Files that agentos did not write are not overwritten."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentos.cli.session.output_files import require_own_files
from agentos.cli.usage_error import UsageError

RESULT = '{"id":"a","outcome":"done","value":1,"error":null,"attempts":1}\n'


def request(items: Path, **options: Any) -> Any:
    return SimpleNamespace(option=options.get, source={"kind": "file", "name": str(items)})


@pytest.fixture
def items(tmp_path: Path) -> Path:
    path = tmp_path / "items"
    path.write_text(RESULT)
    return path


@pytest.mark.parametrize(
    ("option", "content"),
    [
        ("results", None),
        ("results", ""),
        ("results", RESULT),
        ("results", '{"id":"a","outco'),
        ("joblog", "Seq\tHost\tStarttime\n"),
    ],
)
def test_what_is_new_empty_or_ours_is_written(tmp_path: Path, items: Path, option: str, content: str | None) -> None:
    path = tmp_path / "target"
    if content is not None:
        path.write_text(content)

    require_own_files(request(items, **{option: str(path)}))

    assert path.exists() == (content is not None), "looking at it does not make it"
    assert content is None or path.read_text() == content


@pytest.mark.parametrize(
    ("option", "content"),
    [
        ("results", "a week of work\n"),
        ("results", '{"id": "a", "prompt": "x"}\n'),
        ("results", "Seq\tHost\n"),
        ("joblog", RESULT),
        ("joblog", "notes\n"),
    ],
)
def test_what_holds_something_else_is_refused(tmp_path: Path, items: Path, option: str, content: str) -> None:
    path = tmp_path / "target"
    path.write_text(content)

    with pytest.raises(UsageError, match="does not hold"):
        require_own_files(request(items, **{option: str(path)}))

    assert path.read_text() == content


def test_the_items_themselves_are_refused_under_any_name(tmp_path: Path, items: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(items)

    for path in (items, link):
        with pytest.raises(UsageError, match="the file of the items"):
            require_own_files(request(items, results=str(path)))


def test_one_file_for_both_is_refused(tmp_path: Path, items: Path) -> None:
    both = str(tmp_path / "x")

    with pytest.raises(UsageError, match="name the same file"):
        require_own_files(request(items, results=both, joblog=both))


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, items: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        require_own_files(request(items, joblog=str(tmp_path / "no" / "x")))
