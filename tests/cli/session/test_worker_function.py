"""Loading the function of ``--worker``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.cli.session.worker_function import find_journal_name, load_worker
from agentos.cli.usage_error import UsageError


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_function_of_a_file_or_of_a_module_here_is_found(tmp_path: Path) -> None:
    (tmp_path / "mywork_a.py").write_text("def ask(item, key): return item\nclass C:\n    def go(item, key): pass\n")

    assert load_worker("mywork_a.py:ask")(1, None) == 1
    assert load_worker("mywork_a:ask")(2, None) == 2
    assert callable(load_worker("mywork_a:C.go"))


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("mywork", "no function in it"),
        (":ask", "no function in it"),
        ("mywork:", "no function in it"),
        ("nowhere_x:ask", "no module nowhere_x"),
        ("nowhere_x.py:ask", "no file nowhere_x.py"),
        ("work_b:nothing", "has no 'nothing'"),
        ("work_b:NUMBER", "is not a function"),
        ("work_c:ask", "needs the module nowhere_y"),
        ("work_d:ask", "RuntimeError: at import"),
        ("work_e.py:ask", "SyntaxError"),
        ("work_f:pieces", "it must return its result, not yield"),
        ("work_f:async_pieces", "it must return its result, not yield"),
        ("work_f:one", "cannot be called with (item, credential): too many positional arguments"),
        ("work_f:three", "missing a required argument: 'more'"),
        ("work_f:Bound.work", "cannot be called with (item, credential)"),
        ("work_f:twice", "cannot be called with (item, credential, context=...)"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(tmp_path: Path, named: str, why: str) -> None:
    (tmp_path / "work_b.py").write_text("NUMBER = 3\ndef ask(item, key): pass\n")
    (tmp_path / "work_c.py").write_text("import nowhere_y\n")
    (tmp_path / "work_d.py").write_text("raise RuntimeError('at import')\n")
    (tmp_path / "work_e.py").write_text("def ask(:\n")
    (tmp_path / "work_f.py").write_text(
        "def pieces(item, key): yield item\n"
        "async def async_pieces(item, key): yield item\n"
        "def one(item): pass\n"
        "def three(item, key, more): pass\n"
        "class Bound:\n    def work(self, item, key): pass\n"
        "def twice(item, context): pass\n"
    )

    with pytest.raises(UsageError) as refused:
        load_worker(named)

    assert why in refused.value.message
    assert named in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize(
    "source",
    [
        "def work(item, key, *, context): pass",
        "def work(item, key, context, more=1): pass",
        "def work(*args, **kwargs): pass",
        "class work:\n    def __init__(self, item, key): pass",
        "class W:\n    async def __call__(self, item, key): pass\nwork = W()",
        "import functools\ndef f(x, item, key): pass\nwork = functools.partial(f, 1)",
        # A decorator that gives its function more than it gets.
        "import functools\ndef f(item, key, session): pass\n"
        "@functools.wraps(f)\ndef work(item, key): return f(item, key, 1)",
        "work = max",
    ],
)
def test_whatever_can_be_called_with_an_item_and_a_credential_is_taken(tmp_path: Path, source: str) -> None:
    (tmp_path / "work_g.py").write_text(f"{source}\n")

    assert callable(load_worker("work_g.py:work"))


def test_modules_beside_the_file_are_found_before_those_of_this_folder(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "work_h.py").write_text("import beside_h, here_h\ndef ask(item, key): return beside_h.NAME\n")
    (tmp_path / "lib" / "beside_h.py").write_text("NAME = 'lib'\n")
    (tmp_path / "beside_h.py").write_text("NAME = 'here'\n")
    (tmp_path / "here_h.py").write_text("")

    assert load_worker("lib/work_h.py:ask")(1, None) == "lib"


def test_a_function_of_a_file_is_known_by_the_files_path_from_here(tmp_path: Path) -> None:
    assert find_journal_name("lib/w.py:f") == "lib/w.py:f"
    assert find_journal_name("./lib/../lib/w.py:C.f") == "lib/w.py:C.f"
    assert find_journal_name(f"{tmp_path / 'lib' / 'w.py'}:f") == "lib/w.py:f"
    assert find_journal_name("package.module:f") is None
