"""A store can be named by a variable that holds its address and password."""

from __future__ import annotations

import pytest

from agentos import StoreUnavailable
from agentos.cli.config.store_url import build_store_error, resolve_address
from agentos.cli.usage_error import UsageError

URL = "rediss://me:planted-password@host:6380/0?pool=night"


def refusal(said: str, environ: dict[str, str]) -> UsageError:
    with pytest.raises(UsageError) as refused:
        resolve_address(said, environ, where="--store")
    return refused.value


def test_a_store_is_the_given_address_or_that_of_the_named_variable() -> None:
    assert resolve_address("sqlite", {}, where="--store") == "sqlite"
    assert resolve_address("env:KEYS_URL", {"KEYS_URL": f" {URL}\n"}, where="--store") == URL


@pytest.mark.parametrize("environ", [{}, {"KEYS_URL": ""}, {"KEYS_URL": "  "}])
def test_the_error_for_an_unset_variable_says_where_it_was_named(environ: dict[str, str]) -> None:
    refused = refusal("env:KEYS_URL", environ)

    assert refused.message == "--store: the environment variable KEYS_URL is not set"
    assert refused.hint == "export it before the command: redis://user:password@host:port/db"


@pytest.mark.parametrize("value", ["planted-password", "http://me:planted-password@host", "env:OTHER"])
def test_a_variable_that_has_no_address_is_refused_without_showing_what_it_has(value: str) -> None:
    refused = refusal("env:KEYS_URL", {"KEYS_URL": value, "OTHER": URL})

    assert "KEYS_URL" in refused.message
    assert "planted" not in f"{refused.message}{refused.hint}"


def test_the_hint_for_a_store_error_is_one_that_can_be_typed() -> None:
    refused = build_store_error(StoreUnavailable(path="redis://host:6379/0", detail="it is away"), "name another")

    assert refused.message == "the pool's shared state redis://host:6379/0 cannot be used: it is away"
    assert refused.hint == "name another"


def test_a_server_that_wants_a_password_is_given_it_in_a_variable() -> None:
    refused = build_store_error(
        StoreUnavailable(path="redis://host:6379/0", detail="no", wants_login=True), "name another"
    )

    assert refused.hint is not None
    assert "AGENTOS_STORE=redis://user:password@host" in refused.hint
