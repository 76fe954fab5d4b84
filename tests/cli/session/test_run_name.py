"""Names of runs: stable for the same work, and valid folder names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.cli.exit_codes import ExitCode
from agentos.cli.session.run_name import build_name, check_name
from agentos.cli.usage_error import UsageError

WORDS = {"kind": "words", "name": "a b"}


def file(name: str) -> dict[str, str]:
    return {"kind": "file", "name": name}


@pytest.mark.parametrize("name", ["a", "A", "nightly", "run-1", "2026.11.15_x", "x" * 80, "console", "com10", "a..b"])
def test_a_safe_name_is_taken(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "--name is empty"),
        ("..", "--name leads out of its folder with '..'"),
        ("../x", "--name leads out of its folder with '..'"),
        ("a/../b", "--name leads out of its folder with '..'"),
        ("a\\..\\b", "--name leads out of its folder with '..'"),
        ("/etc/x", "--name is an absolute path"),
        ("C:\\x", "--name is an absolute path"),
        ("a/b", "--name has a path separator in it"),
        ("a\\b", "--name has a path separator in it"),
        ("x" * 81, "--name has 81 characters"),
        (".", "--name begins with '.'"),
        (".hidden", "--name begins with '.'"),
        ("-n", "--name begins with '-'"),
        ("a b", "--name has ' ' in it"),
        ("größe", "--name has 'ö' in it"),
        ("a\n", "--name has '\\n' in it"),
        ("a\0", "--name has '\\x00' in it"),
        ("٣", "--name has '٣' in it"),
        ("a.", "--name ends with a dot"),
        ("nul", "--name is 'nul', which is a device"),
        ("COM1.txt", "--name is 'COM1.txt', which is a device"),
    ],
)
def test_any_other_name_is_refused_and_says_why(name: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_name(name)

    assert caught.value.message.startswith(message)
    assert "letters, digits" in str(caught.value.hint)
    assert caught.value.code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("command", "slug"),
    [
        (["echo", "{}"], "echo"),
        (["/usr/bin/python3", "scripts/summarize.py", "{}"], "python3-summarize"),
        (["claude", "-p", "{}"], "claude"),
        (["git", "clone", "{}"], "git-clone"),
        (["env", "KEY=secret", "timeout", "30", "curl", "{}"], "curl"),
        (["sh", "-c", "curl -s {} | jq ."], "sh-curl"),
        (["sh", "-c", "  "], "sh"),
        (["python", "-c", "print"], "python"),
        (["größe.sh"], "gr-e-sh"),
        (["..."], "run"),
        (["x" * 100, "word"], "x" * 40),
    ],
)
def test_a_default_name_begins_with_the_program_and_what_it_does(command: list[str], slug: str) -> None:
    name = build_name(command, None, WORDS)

    assert re.fullmatch(re.escape(slug) + "-[0-9a-f]{8}", name)


def test_a_worker_s_name_is_its_module_and_function() -> None:
    assert re.fullmatch(r"jobs-summarize-[0-9a-f]{8}", build_name(None, "package.jobs:summarize", WORDS))
    assert re.fullmatch(r"jobs-[0-9a-f]{8}", build_name((), "jobs", WORDS))


def test_no_word_that_could_be_a_key_becomes_part_of_a_name() -> None:
    for word in ("sk-abc123def456", "AKIA5XYZ", "x" * 25, "user:pass", "TOKEN=abc"):
        assert build_name(["tool", word], None, WORDS)[:-8] == "tool-"


def test_the_same_work_has_the_same_name_and_other_work_another() -> None:
    names = [
        build_name(["echo", "{}"], None, WORDS),
        build_name(["echo", "{}", ""], None, WORDS),
        build_name(["echo {}"], None, WORDS),
        build_name(None, "echo:x", WORDS),
        build_name(["echo", "{}"], None, {"kind": "words", "name": "a c"}),
        build_name(["echo", "{}"], None, file("a b")),
        build_name(["echo", "{}"], None, WORDS, "field"),
    ]

    assert len(set(names)) == len(names)
    assert build_name(("echo", "{}"), None, dict(WORDS)) == names[0]


def test_a_file_is_known_by_where_it_is_and_a_pattern_by_the_folder_it_is_typed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "items.txt").touch()
    found = {}
    for folder in ("one", "two"):
        monkeypatch.chdir(tmp_path / folder)
        found[folder] = [build_name(["x"], None, file(name)) for name in ("items.txt", "./items.txt", "*.md")]
    from_above = build_name(["x"], None, file(str(tmp_path / "two" / "items.txt")))

    assert found["one"][0] == found["one"][1] != found["two"][0]
    assert found["one"][2] != found["two"][2], "it matches other files there"
    assert found["two"][0] == from_above


def test_standard_input_has_no_name_of_its_own() -> None:
    with pytest.raises(UsageError, match="standard input need --name") as caught:
        build_name(["x"], None, {"kind": "stdin", "name": "-"})

    assert "when you continue it" in str(caught.value.hint)


@given(st.lists(st.text(), min_size=1), st.text())
def test_a_default_name_is_always_one_that_could_be_given(command: list[str], name: str) -> None:
    found = build_name(command, None, {"kind": "words", "name": name})

    assert check_name(found) == found
    assert len(found) <= 49


@pytest.mark.parametrize(
    ("worker", "slug"), [("ask.py:ask", "ask"), ("work/ask.py:reply", "ask-reply"), ("a.b:ask", "b-ask")]
)
def test_a_worker_of_a_file_is_called_after_the_file(worker: str, slug: str) -> None:
    assert build_name(None, worker, {"kind": "file", "name": "x"}).rpartition("-")[0] == slug
