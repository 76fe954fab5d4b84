"""Completion in a shell, as the script that Typer installs asks for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentos.cli.main import main

Complete = Callable[..., list[str]]


@pytest.fixture
def complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complete:
    """Return what is offered for the last of the words that were typed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "AGENTOS_BASE_DIR", "AGENTOS_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name in ("night-one", "night-two", "other"):
        (tmp_path / ".agentos" / "runs" / name).mkdir(parents=True)
        (tmp_path / ".agentos" / "runs" / name / "run.json").touch()

    def complete(*typed: str) -> list[str]:
        monkeypatch.setenv("_AGENTOS_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["agentos", *typed]))
        monkeypatch.setenv("COMP_CWORD", str(len(typed)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([])
        assert ended.value.code == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out.split()

    return complete


@pytest.mark.parametrize("command", ["show", "results", "logs", "retry", "trust"])
def test_the_names_of_runs_are_offered(complete: Complete, command: str) -> None:
    assert sorted(complete(command, "ni")) == ["night-one", "night-two"]
    assert complete(command, "--dir", "/nowhere", "ni") == []


def test_keys_are_offered_by_name_and_by_variable(
    complete: Complete, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-made-up-0123456789")
    (tmp_path / "agentos.toml").write_text('[[credentials]]\nname = "work"\nenv = "WORK_KEY"\n')

    assert {"work", "env:SOME_API_KEY", "none"} <= set(complete("run", "--keys", ""))
    assert complete("keys", "--keys", "wo") == ["work"]
    assert complete("keys", "clear", "wo") == ["work"]


def test_a_file_that_cannot_be_read_offers_nothing(complete: Complete, tmp_path: Path) -> None:
    (tmp_path / "agentos.toml").write_text("[[credentials\n")

    assert complete("keys", "clear", "wo") == []


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["ru"], ["run", "runs"]),
        (["run", "--format", "js"], ["jsonl", "json"]),
        (["run", "--progress", "p"], ["plain"]),
        (["run", "--engine", ""], ["local", "dask://"]),
        (["run", "--store", "s"], ["sqlite"]),
        (["run", "--allow-d"], ["--allow-duplicates"]),
        (["show", "night-one", "f"], ["failed"]),
        (["run", "it"], []),  # the shell then offers files
        (["run", "items.txt", "--", "ec"], []),
    ],
)
def test_commands_options_and_their_words_are_offered(complete: Complete, typed: list[str], offered: list[str]) -> None:
    assert complete(*typed) == offered


def test_it_is_installed_by_typer(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])

    assert "--install-completion" in capsys.readouterr().out
