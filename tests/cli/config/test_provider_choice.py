"""A run uses the keys of one provider. No key in here was ever issued."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from agentos.cli.exit_codes import ExitCode
from agentos.cli.session.agent_options import AgentFlags
from agentos.cli.session.argv import ParsedArguments
from agentos.cli.session.request import Flags, RunRequest, build_request
from agentos.cli.usage_error import UsageError
from agentos.simulator import simulated_key

OPENAI, ANTHROPIC, GEMINI = "sk-proj-made-up-1", "sk-ant-made-up-22", "AIza-made-up-333"
SECRETS = {"OPENAI_API_KEY": OPENAI, "ANTHROPIC_API_KEY": ANTHROPIC, "GEMINI_API_KEY": GEMINI}
CONFIG = "".join(f'[[credentials]]\nenv = "{variable}"\n' for variable in SECRETS)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agentos.toml").write_text(CONFIG)
    return tmp_path


def requested(environ: dict[str, str] | None = None, **options: Any) -> RunRequest:
    """The request of ``agentos run -- echo {} ::: a`` with those options, typed."""
    flags: dict[str, Any] = dict.fromkeys(field.name for field in fields(Flags))
    typed = ParsedArguments((), ("a",), ("echo", "{}"))
    flags |= {"typed": typed, "items": (), "color": "auto", "options": options, "agent": AgentFlags()}
    return build_request(Flags(**flags), {"HOME": "/nowhere", **(SECRETS if environ is None else environ)})


def names(request: RunRequest) -> list[str | None]:
    return [key.credential.name for key in request.keys]


def refused(environ: dict[str, str] | None = None, **options: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        requested(environ, **options)
    said = f"{caught.value.message}{caught.value.hint}"
    assert not any(secret in said for secret in SECRETS.values())
    return caught.value


def test_an_open_choice_is_refused_with_the_words_to_type() -> None:
    refusal = refused()

    assert refusal.code == ExitCode.USAGE
    assert refusal.message == (
        "the keys are of several providers (openai: openai-api-key; anthropic: anthropic-api-key; "
        "gemini: gemini-api-key), and a run uses those of one"
    )
    assert refusal.hint == (
        "choose one: --provider openai or --provider anthropic or --provider gemini\n"
        'or for every run, in agentos.toml under [run]: provider = "openai"'
    )


@pytest.mark.parametrize("provider", ["openai", "anthropic", "gemini"])
def test_the_typed_provider_gives_its_keys_only(provider: str) -> None:
    request = requested(provider=provider)

    assert names(request) == [f"{provider}-api-key"]
    assert [key.credential.provider for key in request.keys] == [provider]
    assert request.warnings == []


def test_the_file_may_choose_and_the_flag_wins(project: Path) -> None:
    (project / "agentos.toml").write_text(f'[run]\nprovider = "gemini"\n{CONFIG}')

    assert names(requested()) == ["gemini-api-key"]
    assert names(requested(provider="openai")) == ["openai-api-key"]
    assert names(requested({**SECRETS, "AGENTOS_PROVIDER": "anthropic"})) == ["anthropic-api-key"]


def test_one_provider_needs_no_choice(project: Path) -> None:
    (project / "agentos.toml").write_text(
        '[[credentials]]\nenv = "OPENAI_API_KEY"\n[[credentials]]\nenv = "OPENAI_API_KEY_2"\n'
    )

    assert len(requested({"OPENAI_API_KEY": OPENAI, "OPENAI_API_KEY_2": "sk-of-no-known-form"}).keys) == 2


def test_keys_of_no_known_provider_need_no_choice(project: Path) -> None:
    (project / "agentos.toml").write_text('[[credentials]]\nenv = "ALICE_KEY"\n[[credentials]]\nenv = "BOB_KEY"\n')

    assert len(requested({"ALICE_KEY": "made-up-alice", "BOB_KEY": "made-up-bob"}).keys) == 2


def test_a_key_of_no_known_provider_beside_others_leaves_the_choice_open(project: Path) -> None:
    (project / "agentos.toml").write_text('[[credentials]]\nenv = "OPENAI_API_KEY"\n[[credentials]]\nenv = "BOB_KEY"\n')
    environ = {"OPENAI_API_KEY": OPENAI, "BOB_KEY": "made-up-bob"}

    refusal = refused(environ)

    assert "openai: openai-api-key; unknown: bob-key" in refusal.message
    assert refusal.hint is not None
    assert 'or say whose bob-key is: provider = "..." in its [[credentials]]' in refusal.hint
    assert names(requested(environ, provider="openai")) == ["openai-api-key"]


def test_named_keys_are_taken_as_named_with_a_warning_if_they_are_mixed() -> None:
    request = requested(keys=["openai-api-key,env:GEMINI_API_KEY"])

    assert names(request) == ["openai-api-key", "gemini-api-key"]
    (warning,) = request.warnings
    assert warning.startswith(
        "the named keys are of several providers (openai: openai-api-key; gemini: gemini-api-key); an item gets any"
    )
    assert "--provider openai takes only those of openai" in warning
    assert requested(keys=["openai-api-key"]).warnings == []


def test_named_keys_win_over_the_provider_of_the_file_but_not_over_the_typed_one(project: Path) -> None:
    (project / "agentos.toml").write_text(f'[run]\nprovider = "gemini"\n{CONFIG}')

    assert names(requested(keys=["openai-api-key"])) == ["openai-api-key"]
    assert names(requested(keys=["openai-api-key,gemini-api-key"], provider="gemini")) == ["gemini-api-key"]


def test_any_provider_takes_all_keys_without_a_warning() -> None:
    request = requested(provider="any")

    assert (len(request.keys), request.warnings) == (3, [])


def test_a_provider_without_a_key_is_refused_with_what_is_there() -> None:
    refusal = refused(provider="groq")

    assert refusal.code == ExitCode.NO_CREDENTIAL
    assert refusal.message.startswith(
        "--provider: none of the keys is one of groq; they are of openai: openai-api-key;"
    )


@pytest.mark.parametrize("typed", ["opnai", "", "unknown"])
def test_a_provider_that_is_not_known_is_refused_with_those_that_are(typed: str) -> None:
    assert refused(provider=typed).message.startswith("--provider must be one of openai, azure, anthropic, ")


def test_the_secrets_of_other_providers_need_not_be_there(project: Path) -> None:
    (project / "mine.toml").write_text(
        '[[credentials]]\nenv = "OPENAI_API_KEY"\n[[credentials]]\nenv = "GEMINI_API_KEY"\n'
        '[[credentials]]\nname = "vault"\nprovider = "anthropic"\ncommand = "false"\n'
        '[[credentials]]\nname = "gw"\nbase_url = "https://api.mistral.ai/v1"\ncommand = "false"\n'
    )
    environ = {"OPENAI_API_KEY": OPENAI, "AGENTOS_CONFIG": str(project / "mine.toml")}

    assert names(requested(environ, provider="openai")) == ["openai-api-key"]
    with pytest.raises(UsageError, match="GEMINI_API_KEY is not set"):
        requested(environ, provider="gemini")


@pytest.mark.parametrize(
    ("entry", "secret", "provider"),
    [
        ('env = "WORK_KEY"\nenv_key = "OPENAI_API_KEY"', "sk-bare", "openai"),
        ('env = "WORK_KEY"\nprovider = "xai"', ANTHROPIC, "xai"),
        ('env = "WORK_KEY"\nbase_url = "https://api.x.ai/v1"', ANTHROPIC, "xai"),
        ('env = "WORK_KEY"\nbase_url = "http://127.0.0.1:8000/v1"', ANTHROPIC, "anthropic"),
        ('env = "WORK_KEY"', "sk-bare", None),
    ],
)
def test_the_provider_of_an_entry(project: Path, entry: str, secret: str, provider: str | None) -> None:
    (project / "mine.toml").write_text(f"[[credentials]]\n{entry}\n")

    (key,) = requested({"WORK_KEY": secret, "AGENTOS_CONFIG": str(project / "mine.toml")}).keys

    assert key.provider == provider


@pytest.mark.parametrize(
    ("address", "hosts"),
    [
        ("http://127.0.0.1:8000/v1", ("127.0.0.1:8000",)),
        ("https://gw.example.com/openai", ("gw.example.com",)),
        ("https://*.example.com", ()),
        ("not an address", ()),
        ("", ()),
    ],
)
def test_a_key_belongs_where_the_variable_of_its_sdk_leads(address: str, hosts: tuple[str, ...]) -> None:
    (key,) = requested({**SECRETS, "OPENAI_BASE_URL": address}, provider="openai").keys
    (other,) = requested({**SECRETS, "OPENAI_BASE_URL": address}, provider="anthropic").keys

    assert (key.credential.hosts, other.credential.hosts) == (hosts, ())


@pytest.mark.parametrize(
    ("variable", "base_url"),
    [
        ("OPENAI_API_KEY", "OPENAI_BASE_URL"),
        ("ANTHROPIC_API_KEY_2", "ANTHROPIC_BASE_URL"),
        ("GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"),
        ("MISTRAL_API_KEY", "MISTRAL_BASE_URL"),
    ],
)
def test_a_key_belongs_where_the_sdk_that_reads_its_variable_sends_it_whatever_it_looks_like(
    variable: str, base_url: str
) -> None:
    environ = {variable: simulated_key("key-1"), base_url: "http://127.0.0.1:8000"}
    bases = ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "MISTRAL_BASE_URL")
    elsewhere = {name: "http://elsewhere.example" for name in bases if name not in (base_url, "OPENAI_BASE_URL")}

    (key,) = requested({**elsewhere, **environ}, keys=[f"env:{variable}"]).keys

    assert (key.provider, key.credential.hosts) == ("openai", ("127.0.0.1:8000",))


def test_a_key_whose_provider_is_stated_belongs_where_the_sdk_of_that_one_sends_it(project: Path) -> None:
    (project / "agentos.toml").write_text('[[credentials]]\nenv = "ANTHROPIC_API_KEY"\nprovider = "openai"\n')
    environ = {"ANTHROPIC_API_KEY": OPENAI, "ANTHROPIC_BASE_URL": "http://127.0.0.1:8000"}

    (key,) = requested(environ).keys

    assert key.credential.hosts == ()


def test_a_run_without_keys_says_that_a_provider_has_no_effect(project: Path) -> None:
    (project / "agentos.toml").unlink()

    assert requested(provider="openai").warnings == ["--provider has no effect without keys; give some with --keys"]


# -- .env -------------------------------------------------------------------------------------------------------------

ENV_FILE = f"""
# of the web application
DATABASE_URL=postgres://me:secret@db/app?key=1
export OPENAI_API_KEY_1="{OPENAI}"  # work
OPENAI_API_KEY_2='sk-bare'
ANTHROPIC_API_KEY={ANTHROPIC} # home
CLAUDE_API_KEY={ANTHROPIC}
STRIPE_TOKEN=made-up-token
DJANGO_SECRET=made-up-secret#1
EMPTY_KEY=
KEY_FILE=/etc/keys
KEYS=none
GIT_CONFIG_KEY_0=core.editor
PRIVATE_KEY="-----BEGIN PRIVATE KEY-----
MIIEvQ==
-----END PRIVATE KEY-----"
a line that says nothing
"""


def test_an_env_file_gives_the_variables_that_are_for_keys(project: Path) -> None:
    (project / ".env").write_text(ENV_FILE)
    (project / ".env").chmod(0o600)

    request = requested({}, keys=[".env"])

    assert {str(key.credential.name): (key.credential.secret.reveal(), key.provider) for key in request.keys} == {
        "openai-api-key-1": (OPENAI, "openai"),
        "openai-api-key-2": ("sk-bare", "openai"),
        "anthropic-api-key": (ANTHROPIC, "anthropic"),
        "stripe-token": ("made-up-token", None),
        "django-secret": ("made-up-secret#1", None),
    }
    assert "of several providers" in request.warnings[0]
    assert names(requested({}, keys=[".env"], provider="openai")) == ["openai-api-key-1", "openai-api-key-2"]


def test_an_env_file_is_not_read_unless_it_is_named(project: Path) -> None:
    (project / ".env").write_text(ENV_FILE)
    (project / "agentos.toml").unlink()

    assert requested({}).keys == ()


def test_an_env_file_without_keys_is_refused(project: Path) -> None:
    (project / ".env.local").write_text("DATABASE_URL=postgres://me:secret@db/app\n")

    assert "holds no variable whose name ends in KEY, TOKEN or SECRET" in refused({}, keys=[".env.local"]).message
