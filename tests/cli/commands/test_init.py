"""``agentos init`` writes a file that loads, explains every option, and holds no secret."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from agentos.cli.commands import init
from agentos.cli.config.files import load_settings
from agentos.cli.config.key_selection import load_credentials
from agentos.cli.config.run_options import RUN_OPTIONS, build_variable_name
from agentos.cli.usage_error import UsageError

SECRETS = {
    "OPENAI_API_KEY_10": "planted-secret-number-10",
    "OPENAI_API_KEY_9": "planted-secret-number-9",
    "ANTHROPIC_API_KEY": "planted-secret-anthropic",
    "MISTRAL_API_KEY": "planted-secret-number-9",
}

app = typer.Typer()
app.command("init")(init.init)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if "_API_KEY" in name or name == "XDG_CONFIG_HOME"]:
        monkeypatch.delenv(name)
    return folder


@pytest.fixture
def at_hand(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    return {"HOME": os.environ["HOME"], **SECRETS}


def typed(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, UsageError):
        raise result.exception
    assert result.exception is None, result.output
    return result


def environ() -> dict[str, str]:
    return {"HOME": os.environ["HOME"]}


def test_the_file_loads_and_sets_nothing_by_itself(project: Path) -> None:
    typed()

    settings = load_settings(None, project, environ())

    assert (settings.run, settings.credentials) == ({}, [])


def test_every_option_and_its_variable_are_mentioned_and_can_be_commented_in(project: Path) -> None:
    typed()
    path = project / "agentos.toml"
    text = path.read_text()

    for name in RUN_OPTIONS:
        assert f"\n# {name} = " in text
        assert f"({build_variable_name(name)})" in text
        text = text.replace(f"\n# {name} = ", f"\n{name} = ")
    path.write_text(text)

    assert list(load_settings(None, project, environ()).run) == list(RUN_OPTIONS)


def test_every_field_of_a_credential_is_mentioned(project: Path) -> None:
    from agentos.cli.config.credential_entries import _FIELDS

    typed()

    text = (project / "agentos.toml").read_text()
    assert [field for field in _FIELDS if f"\n#   {field} = " not in text] == []


def test_what_a_project_may_not_say_is_under_the_line_that_says_so(project: Path) -> None:
    typed()
    allowed, _, own = (project / "agentos.toml").read_text().partition("# Only in your own configuration folder")
    named = project / "mine.toml"

    def commented_in(text: str) -> str:
        found = [line.removeprefix("#   ") for line in text.splitlines() if line.startswith("#   ")]
        fields = [re.sub(r" {2,}.*", "", line) for line in found if " = " in line]
        return "\n".join(["[[credentials]]", *(field for field in fields if not re.match("file|command", field))])

    (project / "agentos.toml").write_text(commented_in(allowed))
    named.write_text(commented_in(allowed + own))

    assert load_settings(None, project, environ()).credentials[0].env_key == "OPENAI_API_KEY"
    assert load_settings(named, project, environ()).credentials[0].extra_env == {"OPENAI_ORG_ID": "org-1"}
    (project / "agentos.toml").write_text(commented_in(allowed + own))
    with pytest.raises(UsageError, match="extra_env is not set"):
        load_settings(None, project, environ())


def test_keys_at_hand_become_entries_by_the_names_of_their_variables(project: Path, at_hand: dict[str, str]) -> None:
    printed = typed().output

    given = load_credentials(load_settings(None, project, at_hand), [], at_hand)

    assert [each.credential.name for each in given] == ["openai-api-key-9", "openai-api-key-10", "anthropic-api-key"]
    text = (project / "agentos.toml").read_text()
    assert "MISTRAL_API_KEY holds the same secret as OPENAI_API_KEY_9" in text
    assert not any(secret in text + printed for secret in SECRETS.values())
    assert "it has 3 credentials, by name: OPENAI_API_KEY_9, OPENAI_API_KEY_10, ANTHROPIC_API_KEY" in printed


def test_keys_are_grouped_by_provider_and_one_is_chosen_for_runs(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {
        "GEMINI_API_KEY": "AIza-made-up",
        "OPENAI_API_KEY_1": "sk-proj-made-up",
        "OPENAI_API_KEY_2": "sk-or-made-up",  # a key of OpenRouter, by its form
        "ANTHROPIC_API_KEY_1": "made-up-1",
        "ANTHROPIC_API_KEY_2": "made-up-2",
        "DEEPSEEK_API_KEY": "sk-made-up",
    }
    for name, secret in secrets.items():
        monkeypatch.setenv(name, secret)

    printed = typed().output

    found = load_settings(None, project, secrets | environ())
    groups = ["openai (1 key)", "anthropic (2 keys)", "gemini (1 key)", "openrouter (1 key)", "deepseek (1 key)"]
    assert found.value("provider") == "anthropic"
    assert [entry.provider for entry in found.credentials] == [
        *("openai", "anthropic", "anthropic", "gemini", "openrouter", "deepseek")
    ]
    assert f"of several providers: {', '.join(groups)}; a run uses those of one" in printed
    assert 'now it is anthropic: change provider = "anthropic" under [run], or type --provider openai' in printed
    text = (project / "agentos.toml").read_text()
    assert re.findall("# -- (.*) --", text) == ["openai", "anthropic", "gemini", "openrouter", "deepseek"]
    assert not any(secret in text + printed for secret in secrets.values())


def test_it_says_what_to_do_next(project: Path) -> None:
    printed = typed().output

    assert printed.startswith("wrote agentos.toml\n")
    assert "then: agentos keys\n" in printed
    assert "agentos run items.jsonl -- your-command {}" in printed


def test_another_place_can_be_named_and_is_then_named_in_what_comes_next(project: Path) -> None:
    (project / "sub").mkdir()

    assert "agentos keys --config sub/agentos.toml" in typed("sub").output
    typed("mine.toml")

    assert load_settings(Path("mine.toml"), project, environ()).files == (project / "mine.toml",)
    assert (project / "sub" / "agentos.toml").is_file()


@pytest.mark.parametrize("kind", ["file", "link to nowhere"])
def test_what_is_there_is_left_as_it_is(project: Path, kind: str) -> None:
    path = project / "agentos.toml"
    path.write_text("# mine\n") if kind == "file" else path.symlink_to("nowhere")

    with pytest.raises(UsageError, match=r"agentos\.toml is there already"):
        typed()

    assert path.read_text() == "# mine\n" if kind == "file" else path.is_symlink()
    assert list(project.iterdir()) == [path]


def test_what_is_made_there_in_the_meantime_is_left_as_it_is(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project / "agentos.toml"
    link = os.link

    def somebody_is_first(source: Path, target: Path) -> None:
        path.write_text("# theirs\n")
        link(source, target)

    monkeypatch.setattr(os, "link", somebody_is_first)

    with pytest.raises(UsageError, match="is there already"):
        typed()

    assert path.read_text() == "# theirs\n"
    assert list(project.iterdir()) == [path]


def test_a_file_system_without_links_is_written_to_as_well(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", no_links)

    typed()

    assert [each.name for each in project.iterdir()] == ["agentos.toml"]


def test_by_force_it_is_overwritten(project: Path) -> None:
    (project / "agentos.toml").write_text("# mine\n")

    typed("--force")

    assert "[run]" in (project / "agentos.toml").read_text()
    assert [each.name for each in project.iterdir()] == ["agentos.toml"]


@pytest.mark.parametrize("path", ["none/agentos.toml", "x" * 300, "file/agentos.toml"])
def test_a_place_that_cannot_be_written_is_refused_and_nothing_is_left_there(project: Path, path: str) -> None:
    (project / "file").touch()

    with pytest.raises(UsageError, match="cannot be written"):
        typed(path)

    assert [each.name for each in project.iterdir()] == ["file"]


def test_a_disk_that_is_full_leaves_nothing_behind(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(UsageError, match="cannot be written: No space left on device"):
        typed()

    assert list(project.iterdir()) == []
