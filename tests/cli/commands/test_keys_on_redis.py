"""``agentos keys`` and ``keys clear`` on a server work as on a file, and show no password."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from agentos import Credential, CredentialCoordinator
from agentos.cli.commands import keys
from agentos.cli.usage_error import UsageError

from ...redis_server import fresh_pool, shared_server

app = typer.Typer()
app.add_typer(keys.app, name="keys")

SECRET = "planted-secret-of-alice"


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")
    for name in ("XDG_CONFIG_HOME", "FORCE_COLOR", "AGENTOS_STORE", "AGENTOS_KEYS", "AGENTOS_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def url() -> str:
    return shared_server().url(fresh_pool())


@pytest.fixture
def pool(url: str) -> Iterator[CredentialCoordinator]:
    pool = CredentialCoordinator([Credential(SECRET, name="alice"), Credential("planted-other", name="bob")], store=url)
    yield pool
    pool.close()


def lines(*arguments: str) -> list[str]:
    """What is printed, blanks between columns made one."""
    result = CliRunner().invoke(app, ["keys", *arguments])
    if isinstance(result.exception, UsageError):
        raise result.exception
    assert result.exception is None, result.output
    return [re.sub(r" {2,}", " | ", line) for line in result.stdout.splitlines()]


def test_each_key_is_shown_as_the_server_has_it(pool: CredentialCoordinator, url: str) -> None:
    pool.mark_rate_limited(SECRET, 60)

    shown = lines("--store", url)

    assert " of 2 available" in shown[0]  # none, while the server is too young
    assert shown[3].startswith("alice | cooling | 0/1 | ")
    assert shown[4].startswith("bob | available")


def test_a_pause_of_grants_on_a_restarted_server_is_shown(url: str) -> None:
    """No server of a test has been up for a day."""
    pool = CredentialCoordinator([Credential(SECRET, name="alice")], store=url, lease_ttl=86_400.0)

    shown, told = lines("--store", url), json.loads(lines("--store", url, "--json")[0])

    pool.close()
    up = r"the server had been up for only \d+ s: .*"
    assert re.fullmatch(rf"0 of 1 available: no lease starts in the next \d+ s: {up}", shown[0])
    assert (told["state"], told["available"]) == ("available", False)
    assert told["paused_until"] > time.time()
    assert re.fullmatch(up, told["paused_why"])


def test_a_cleared_key_is_available_to_all_processes_of_the_server(pool: CredentialCoordinator, url: str) -> None:
    pool.mark_rate_limited(SECRET, 60)

    assert lines("clear", "alice", "--store", url) == ["cleared alice"]

    assert pool.snapshot()[0].state == "available"


def test_the_address_may_be_in_a_variable_of_any_name(
    pool: CredentialCoordinator, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYS_URL", url)

    assert " of 2 available" in lines("--store", "env:KEYS_URL")[0]


def test_an_unused_pool_is_named_without_user_and_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOS_STORE", url)

    assert lines()[0] == f"no run has used a store at {url} yet"


def test_a_server_that_cannot_be_reached_is_named_without_user_and_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOS_STORE", "redis://planted-user:planted-password@127.0.0.1:1/0")

    with pytest.raises(UsageError, match=r"redis://127\.0\.0\.1:1/0") as refused:
        lines()

    assert "planted" not in f"{refused.value.message}{refused.value.hint}"


@pytest.mark.parametrize("arguments", [(), ("clear", "alice")])
def test_without_the_package_it_says_what_to_install(
    arguments: tuple[str, ...], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)

    with pytest.raises(UsageError, match="needs the package redis") as refused:
        lines("--store", url, *arguments)

    assert refused.value.hint == "pip install redis"
