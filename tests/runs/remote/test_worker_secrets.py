"""A remote worker resolves the secret of its credential by name, and checks that it is the same."""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from agentos.pool.secret_sources import SecretUnavailable
from agentos.runs.remote.assignment import Assignment, compute_proof
from agentos.runs.remote.worker_secrets import resolve_secret

from .sample_assignments import SECRET, assignment

NONCE = b"nonce"


def wanted(name: str = "openai-api-key-1") -> Assignment:
    return assignment(credential=name, secret=None, nonce=NONCE, proof=compute_proof(SECRET, NONCE))


def refusal(environ: dict[str, str], name: str = "openai-api-key-1") -> str:
    with pytest.raises(SecretUnavailable) as caught:
        resolve_secret(wanted(name), environ)
    return str(caught.value)


def test_without_a_credential_there_is_no_secret() -> None:
    assert resolve_secret(assignment(credential=None, secret=None), {}) is None


def test_a_secret_that_came_along_is_used_as_it_is() -> None:
    assert resolve_secret(assignment(), {"KEY_1": "another"}) == SECRET


def test_it_is_in_the_variable_after_which_the_credential_is_called() -> None:
    assert resolve_secret(wanted(), {"HOME": "/", "OPENAI_API_KEY_1": f"{SECRET}\n"}) == SECRET


def test_of_several_variables_of_that_name_the_one_with_the_right_secret_counts() -> None:
    assert resolve_secret(wanted(), {"openai_api_key_1": "old", "OPENAI_API_KEY_1": SECRET}) == SECRET


def test_else_it_is_in_the_file_of_keys(tmp_path: Path) -> None:
    keys = tmp_path / "keys.env"
    keys.write_text(f"OTHER=abc\nOPENAI_API_KEY_1={SECRET}\n")
    keys.chmod(0o600)

    assert resolve_secret(wanted(), {"AGENTOS_KEYS": str(keys)}) == SECRET


def test_a_file_of_keys_is_read_again_when_it_was_changed(tmp_path: Path) -> None:
    keys = tmp_path / "keys.env"
    keys.write_text("OPENAI_API_KEY_1=old\n")
    keys.chmod(0o600)
    refusal({"AGENTOS_KEYS": str(keys)})

    keys.write_text(f"OPENAI_API_KEY_1={SECRET}\n")

    assert resolve_secret(wanted(), {"AGENTOS_KEYS": str(keys)}) == SECRET


def test_a_key_file_readable_by_others_is_warned_about_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = tmp_path / "keys.env"
    keys.write_text(f"OPENAI_API_KEY_1={SECRET}\n")
    keys.chmod(0o644)

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            resolve_secret(wanted(), {"AGENTOS_KEYS": str(keys)})

    assert len(caplog.records) == 1


def test_a_missing_secret_is_reported_with_the_host_and_advice() -> None:
    said = refusal({"HOME": "/"})

    assert f"openai-api-key-1 was not found on {socket.gethostname()}" in said
    assert "export OPENAI_API_KEY_1 there" in said
    assert "AGENTOS_KEYS names no file" in said
    assert "ship_secrets=True (--ship-secrets)" in said


def test_through_a_scheduler_it_does_not_advise_what_would_be_refused() -> None:
    asked = replace(wanted(), scheduled=True)

    with pytest.raises(SecretUnavailable, match=r"engine=<the Client> in place of its executor, and ship_secrets=True"):
        resolve_secret(asked, {})


def test_a_name_that_no_variable_can_have_is_not_made_one_of() -> None:
    assert "export it there" in refusal({}, "Team 7")


def test_a_file_of_keys_without_it_is_named(tmp_path: Path) -> None:
    keys = tmp_path / "keys.env"
    keys.write_text("OTHER=abc\n")
    keys.chmod(0o600)

    assert "not in the file that AGENTOS_KEYS names" in refusal({"AGENTOS_KEYS": str(keys)})


def test_a_file_of_keys_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    assert "does not exist" in refusal({"AGENTOS_KEYS": str(tmp_path / "none")})


def test_another_key_of_the_same_name_is_refused_and_not_shown() -> None:
    said = refusal({"OPENAI_API_KEY_1": "sk-another-key-of-that-name"})

    assert "is another key" in said
    assert "the environment variable OPENAI_API_KEY_1" in said
    assert "sk-another" not in said
    assert SECRET not in said
