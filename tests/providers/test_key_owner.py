"""Whose key it is by its looks, and where a provider's keys may go. No key in here was ever issued."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.providers.dialects import DIALECTS, find_dialect
from agentos.providers.key_owner import (
    KEY_FORMS,
    PROVIDERS,
    find_hosts,
    find_key_provider,
    find_provider,
    find_variable_provider,
    guess_provider,
)


@pytest.mark.parametrize(
    ("secret", "provider"),
    [
        ("sk-ant-api03-made-up", "anthropic"),
        ("sk-or-v1-made-up", "openrouter"),
        ("sk-proj-made-up", "openai"),
        ("sk-svcacct-made-up", "openai"),
        ("sk-admin-made-up", "openai"),
        ("sk-" + "a" * 20 + "T3BlbkFJ" + "b" * 20, "openai"),
        ("AIzaMadeUp", "gemini"),
        ("AQ.MadeUp", "gemini"),
        ("gsk_madeup", "groq"),
        ("xai-madeup", "xai"),
        ("csk-madeup", "cerebras"),
        ("ghp_madeup", "github"),
        ("gho_madeup", "github"),
        ("ghu_madeup", "github"),
        ("ghs_madeup", "github"),
        ("github_pat_madeup", "github"),
    ],
)
def test_a_key_is_known_by_the_shape_its_provider_gives_it(secret: str, provider: str) -> None:
    assert guess_provider(secret) == provider
    assert provider in PROVIDERS


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "sk-",
        "sk-" + "a" * 48,  # several vendors make these
        "sk-" + "a" * 19 + "T3BlbkFJ" + "b" * 20,
        "sk-" + "a" * 20 + "T3BlbkFJ" + "b" * 20 + "\n",
        "sk-antelope",
        "SK-ANT-made-up",
        " sk-ant-made-up",
        "a sk-proj-made-up",
        "0123456789abcdef0123456789abcdef",
        "aiza-made-up",
        "AQmadeup",
    ],
)
def test_a_shape_that_many_use_tells_nothing(secret: str) -> None:
    assert guess_provider(secret) is None


@given(st.text())
def test_any_text_has_a_known_owner_or_none(secret: str) -> None:
    assert guess_provider(secret) in (None, *PROVIDERS)


def test_every_dialect_but_the_common_one_is_a_provider() -> None:
    assert set(DIALECTS) - {"default"} <= set(PROVIDERS)


def test_no_two_providers_share_a_prefix_or_a_variable() -> None:
    prefixes = [prefix for form in KEY_FORMS for prefix in form.prefixes]
    stems = [stem for form in KEY_FORMS for stem in form.stems]

    assert len(set(PROVIDERS)) == len(PROVIDERS)
    assert len(set(stems)) == len(stems)
    assert not [(one, other) for one in prefixes for other in prefixes if one is not other and one.startswith(other)]


@pytest.mark.parametrize(
    ("variable", "provider"),
    [
        ("OPENAI_API_KEY", "openai"),
        ("OPENAI_API_KEY_2", "openai"),
        ("OPENAI_API_KEY3", "openai"),
        ("MY_OPENAI_KEY", "openai"),
        ("openai-api-key-2", "openai"),
        ("AZURE_OPENAI_API_KEY", "azure"),
        ("ANTHROPIC_AUTH_TOKEN", "anthropic"),
        ("GOOGLE_API_KEY", "gemini"),
        ("AWS_BEARER_TOKEN_BEDROCK", "bedrock"),
        ("GH_TOKEN", "github"),
        ("DEEPSEEK_API_KEY", "deepseek"),
        ("NOTOPENAI_API_KEY", None),
        ("OPENAI_TO_ANTHROPIC_KEY", None),  # either
        ("ACME_TOKEN", None),
        ("", None),
    ],
)
def test_a_variable_names_its_provider(variable: str, provider: str | None) -> None:
    assert find_variable_provider(variable) == provider


@pytest.mark.parametrize(
    ("stated", "host", "secret", "variable", "provider"),
    [
        ("azure", "api.anthropic.com", "gsk_made-up", "OPENAI_API_KEY", "azure"),
        (None, "api.anthropic.com", "gsk_made-up", "OPENAI_API_KEY", "anthropic"),
        (None, "127.0.0.1", "gsk_made-up", "OPENAI_API_KEY", "groq"),
        (None, None, "sk-made-up", "OPENAI_API_KEY", "openai"),
        (None, None, "sk-made-up", "DEEPSEEK_API_KEY", "deepseek"),
        (None, None, "sk-made-up", None, None),
    ],
)
def test_what_is_stated_counts_before_the_host_the_form_and_the_variable(
    stated: str | None, host: str | None, secret: str, variable: str | None, provider: str | None
) -> None:
    assert find_key_provider(secret, stated=stated, host=host, variable=variable) == provider


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_has_hosts(provider: str) -> None:
    assert find_hosts(provider)


@pytest.mark.parametrize("provider", ["", "default", "nobody", "OPENAI"])
def test_what_is_no_provider_has_no_hosts(provider: str) -> None:
    assert find_hosts(provider) == ()


@pytest.mark.parametrize(
    ("host", "provider"),
    [
        ("api.openai.com", "openai"),
        ("eu.api.openai.com", "openai"),
        ("mine.openai.azure.com", "azure"),
        ("api.anthropic.com", "anthropic"),
        ("generativelanguage.googleapis.com", "gemini"),
        ("europe-west4-aiplatform.googleapis.com", "gemini"),
        ("api.mistral.ai", "mistral"),
        ("api.deepseek.com", "deepseek"),
        ("models.github.ai", "github"),
    ],
)
def test_a_host_is_its_providers(host: str, provider: str) -> None:
    assert find_provider(host) == provider


@pytest.mark.parametrize("host", ["", "openai.com", "evil-api.openai.com", "api.openai.com.evil.test", "127.0.0.1"])
def test_a_host_of_somebody_else_is_no_providers(host: str) -> None:
    assert find_provider(host) is None


@pytest.mark.parametrize(
    "host",
    [
        "bedrock.us-east-1.amazonaws.com",
        "bedrock-runtime.eu-central-1.amazonaws.com",
        "bedrock-runtime-fips.us-gov-west-1.amazonaws.com",
        "bedrock-agent-runtime.ap-southeast-4.amazonaws.com",
    ],
)
def test_a_key_of_bedrock_may_go_to_a_service_in_a_region(host: str) -> None:
    assert find_provider(host) == "bedrock"
    assert find_dialect(host) is DIALECTS["bedrock"]


@pytest.mark.parametrize(
    "host",
    [
        "bedrock.s3.amazonaws.com",
        "bedrock-runtime.s3.us-east-1.amazonaws.com",
        "bedrock-runtime.s3-us-west-2.amazonaws.com",
        "bedrock-1234567890.us-east-1.elb.amazonaws.com",
        "bedrock-mine.us-east-1.amazonaws.com",
        "bedrock-runtime.us-east-1.amazonaws.com.evil.test",
    ],
)
def test_a_key_of_bedrock_does_not_go_to_a_bucket_or_a_machine_that_is_called_so(host: str) -> None:
    assert find_provider(host) is None
