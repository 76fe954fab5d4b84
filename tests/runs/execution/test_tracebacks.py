"""Where an error was raised, as the user is told it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentos.runs.execution.tracebacks import find_place, format_traceback


def compile_as(path: str, source: str) -> ModuleType:
    """Return a module as if *source* were the file *path*."""
    module = ModuleType(Path(path).stem)
    exec(compile(source, path, "exec"), module.__dict__)
    return module


def raised_by(call: Any, *arguments: Any) -> BaseException:
    try:
        call(*arguments)
    except BaseException as error:
        trace = error.__traceback__
        return error.with_traceback(None if trace is None else trace.tb_next)  # without this very function
    raise AssertionError("nothing was raised")


def test_the_place_is_the_innermost_line_of_the_users_own_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    own = compile_as(str(tmp_path / "src" / "work.py"), "import json\n\ndef ask():\n    return json.loads('{')\n")

    assert find_place(raised_by(own.ask)) == "src/work.py:4 in ask"


def test_a_file_elsewhere_is_named_by_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    own = compile_as("/somewhere/else/work.py", "class Agent:\n    def run(self):\n        {}['nope']\n")

    assert find_place(raised_by(own.Agent().run)) == "else/work.py:3 in Agent.run"


def test_a_worker_that_is_itself_installed_as_a_library_has_a_place() -> None:
    source = "import json\ndef ask():\n    json.loads('{')\n"
    installed = compile_as("/x/lib/python3/site-packages/agent/run.py", source)

    assert find_place(raised_by(installed.ask)) == "agent/run.py:3 in ask"


def test_an_error_that_no_code_of_the_user_raised_has_no_place_and_no_traceback() -> None:
    assert find_place(TimeoutError("timed out after 5s")) is None
    assert format_traceback(TimeoutError("timed out after 5s")) == ""


def test_a_traceback_has_no_frames_of_agentos_and_counts_those_of_libraries(tmp_path: Path) -> None:
    import agentos

    file = tmp_path / "work.py"
    file.write_text("def ask(call):\n    call()\n")
    own = compile_as(str(file), file.read_text())
    ours = compile_as(str(Path(agentos.__file__).parent / "runs" / "x.py"), "def enter(f, x):\n    f(x)\n")
    library = "/x/site-packages/client/core.py"
    client = compile_as(library, "def a():\n    b()\ndef b():\n    c()\ndef c():\n    raise ValueError('no')\n")

    trace = format_traceback(raised_by(ours.enter, own.ask, client.a))

    assert "agentos/runs/x.py" not in trace
    lines = trace.splitlines()
    assert lines[-5:] == [
        f'  File "{file}", line 2, in ask',
        "    call()",
        "  [2 calls in client]",
        f'  File "{library}", line 6, in c',
        "ValueError: no",
    ]


def test_a_traceback_has_the_causes() -> None:
    source = "def ask():\n try:\n  {}['a']\n except KeyError as e:\n  raise RuntimeError('no a') from e\n"
    own = compile_as("/somewhere/work.py", source)

    trace = format_traceback(raised_by(own.ask))

    assert trace.index("KeyError: 'a'") < trace.index("direct cause") < trace.index("RuntimeError: no a")


def test_a_group_is_shown_with_its_exceptions() -> None:
    source = "def ask():\n    raise ExceptionGroup('two', [ValueError('x'), KeyError('y')])\n"
    own = compile_as("/somewhere/work.py", source)

    trace = format_traceback(raised_by(own.ask))

    assert "ValueError: x" in trace
    assert "KeyError: 'y'" in trace


def test_of_a_long_traceback_the_end_is_kept() -> None:
    calls = "\n".join(f"def f{n}(x):\n    f{n + 1}(x)" for n in range(300))
    own = compile_as("/somewhere/work.py", f"{calls}\ndef f300(x):\n    raise ValueError(x)\n")

    trace = format_traceback(raised_by(own.f0, "x" * 100))

    assert len(trace) <= 8 * 1024
    assert trace.startswith("...\n  File ")
    assert trace.endswith(f"ValueError: {'x' * 100}\n")


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_error_without_readable_text_has_a_traceback() -> None:
    own = compile_as("/somewhere/work.py", "def ask(error):\n    raise error\n")

    assert "Speechless" in format_traceback(raised_by(own.ask, Speechless()))
