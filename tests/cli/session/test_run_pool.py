"""An invalid store is refused, and the error names where it was set."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentos import Credential
from agentos.cli.session.run_pool import build_pool
from agentos.cli.usage_error import UsageError


def request(store: str, where: str = "--store") -> Any:
    key = SimpleNamespace(credential=Credential("planted-secret-of-zoe", name="zoe"))
    return SimpleNamespace(keys=(key,), where={"store": where}, option={"store": store}.__getitem__)


@pytest.mark.parametrize("where", ["--store", "AGENTOS_STORE", "agentos.toml, line 3"])
@pytest.mark.parametrize("read_only", [False, True])
def test_the_error_for_an_invalid_store_says_where_it_was_set(where: str, read_only: bool) -> None:
    with pytest.raises(UsageError) as refused:
        build_pool(request("planted-junk", where), read_only=read_only)

    assert refused.value.message.startswith(f"{where} must be 'memory', 'sqlite'")
    assert "planted-junk" not in f"{refused.value.message}{refused.value.hint}"


def test_credentials_that_do_not_go_together_are_not_the_stores_fault() -> None:
    twice = request("memory")
    twice.keys *= 2

    with pytest.raises(UsageError, match="the credentials cannot be used together"):
        build_pool(twice)
