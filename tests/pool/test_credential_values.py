"""Credentials, limits and secrets as a user states them."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle

import pytest

from agentos import Credential, CredentialCoordinator, Limit, Secret
from agentos.providers.key_owner import PROVIDERS

CANARY = "sk-canary-0123456789abcdef"


def test_names_default_to_key_1_key_2() -> None:
    pool = CredentialCoordinator(["secret-one", "secret-two", Credential("secret-three", name="mine"), "secret-four"])

    assert [row.name for row in pool.snapshot()] == ["key-1", "key-2", "mine", "key-4"]


def test_a_default_name_never_takes_one_that_is_given_later() -> None:
    pool = CredentialCoordinator(["secret-one", "secret-two", Credential("secret-three", name="key-2")])

    assert [row.name for row in pool.snapshot()] == ["key-1", "key-3", "key-2"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"secret": ""}, "secret"),
        ({"secret": "   "}, "secret"),
        ({"secret": CANARY, "slots": 0}, "slots"),
        ({"secret": CANARY, "slots": -1}, "slots"),
        ({"secret": CANARY, "slots": True}, "slots"),
        ({"secret": CANARY, "slots": 1.5}, "slots"),
        ({"secret": CANARY, "name": ""}, "name"),
        ({"secret": CANARY, "name": "two\nlines"}, "name"),
        ({"secret": CANARY, "quota": ""}, "quota"),
        ({"secret": CANARY, "name": CANARY}, "name"),
        ({"secret": CANARY, "quota": f"quota of {CANARY}"}, "quota"),
        ({"secret": CANARY, "rpm": 0}, "rpm"),
        ({"secret": CANARY, "tpm": -5}, "tpm"),
        ({"secret": CANARY, "rpd": float("nan")}, "rpd"),
        ({"secret": CANARY, "limits": ["500 a minute"]}, "limits"),
        ({"secret": CANARY, "base_url": "api.example.com"}, "base_url"),
        ({"secret": CANARY, "base_url": "https://me:pass@api.example.com"}, "base_url"),
        ({"secret": CANARY, "base_url": "https://api.example.com:99999"}, "base_url"),
        ({"secret": CANARY, "base_url": "https://api.exam\nple.com"}, "base_url"),
        ({"secret": CANARY, "base_url": "https://api.example.com/v 1"}, "base_url"),
        ({"secret": CANARY, "hosts": ["https://api.example.com/v1"]}, "hosts"),
        ({"secret": CANARY, "hosts": [CANARY + "!"]}, "hosts"),
        ({"secret": CANARY, "hosts": 3}, "hosts"),
        ({"secret": CANARY, "hosts": [3]}, "hosts"),
        ({"secret": CANARY, "provider": CANARY}, "provider"),
        ({"secret": CANARY, "provider": ""}, "provider"),
        ({"secret": CANARY, "provider": 3}, "provider"),
        ({"secret": CANARY, "provider": "default"}, "provider"),
        ({"secret": CANARY, "env": {"A=B": "x"}}, "env"),
        ({"secret": CANARY, "env": {"A": 1}}, "env"),
        ({"secret": CANARY, "labels": [1]}, "labels"),
    ],
)
def test_a_bad_argument_is_named_and_the_secret_is_not(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named) as caught:
        Credential(**arguments)  # type: ignore[arg-type]

    assert CANARY not in str(caught.value)
    assert "pass@" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"dimension": "words", "amount": 1}, "dimension"),
        ({"dimension": "tokens", "amount": 0}, "amount"),
        ({"dimension": "tokens", "amount": float("inf")}, "amount"),
        ({"dimension": "tokens", "amount": "many"}, "amount"),
        ({"dimension": "requests", "amount": 0.5}, "amount"),
        ({"dimension": "requests", "amount": 0.5, "per": "day"}, "amount"),
        ({"dimension": "tokens", "amount": 1, "per": 0}, "per"),
        ({"dimension": "tokens", "amount": 1, "per": "week"}, "per"),
        ({"dimension": "tokens", "amount": 1, "burst": 0}, "burst"),
        ({"dimension": "requests", "amount": 10, "burst": 0.5}, "burst"),
        ({"dimension": "tokens", "amount": 1, "window": "fixed"}, "window"),
        ({"dimension": "tokens", "amount": 1, "window": "sliding", "burst": 2}, "burst"),
        ({"dimension": "tokens", "amount": 1, "resets_at": "07:00"}, "resets_at"),
        ({"dimension": "tokens", "amount": 1, "per": "day", "resets_at": "7 am"}, "resets_at"),
        ({"dimension": "tokens", "amount": 1, "per": "day", "resets_at": "07:00\n"}, "resets_at"),
        ({"dimension": "tokens", "amount": 1, "per": "day", "tz": "Mars/Base"}, "tz"),
        ({"dimension": "tokens", "amount": 1, "per": "day", "tz": "../../etc/passwd"}, "tz"),
        ({"dimension": "tokens", "amount": 1, "per": "day", "burst": 2}, "burst"),
        ({"dimension": "tokens", "amount": 1, "model": ""}, "model"),
    ],
)
def test_a_bad_limit_names_the_argument(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Limit(**arguments)  # type: ignore[arg-type]


def test_an_empty_secret_in_a_list_is_named_by_its_place() -> None:
    with pytest.raises(ValueError, match=r"credentials\[1\]: secret must not be empty"):
        CredentialCoordinator(["good-secret", ""])


def test_a_duplicate_secret_is_refused_without_showing_it() -> None:
    with pytest.raises(ValueError, match=r"credentials\[1\].*already in the pool as key-1") as caught:
        CredentialCoordinator([CANARY, CANARY])

    assert CANARY[:6] not in str(caught.value)


def test_a_duplicate_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"credentials\[1\].*name 'mine' is taken"):
        CredentialCoordinator([Credential("secret-one", name="mine"), Credential("secret-two", name="mine")])


def test_different_limits_on_one_quota_are_refused() -> None:
    with pytest.raises(ValueError, match="limits differ from those of key-1"):
        CredentialCoordinator(
            [Credential("secret-one", quota="acme", rpm=500), Credential("secret-two", quota="acme", rpm=400)]
        )


def test_the_same_limits_in_another_order_are_the_same() -> None:
    a, b = Limit("requests", 500), Limit("tokens", 9000)

    CredentialCoordinator(
        [Credential("secret-one", quota="acme", limits=[a, b]), Credential("secret-two", quota="acme", limits=[b, a])]
    )


def test_a_single_string_is_not_taken_for_a_list_of_letters() -> None:
    with pytest.raises(ValueError, match="credentials must be a list") as caught:
        CredentialCoordinator(CANARY)

    assert CANARY not in str(caught.value)


def test_the_names_of_a_mapping_are_not_taken_for_secrets() -> None:
    with pytest.raises(ValueError, match=r"not a mapping; .* Credential\(secret, name=\.\.\.\)$") as caught:
        CredentialCoordinator({"my-key": CANARY})

    assert CANARY not in str(caught.value)


def test_rpm_tpm_and_rpd_are_short_for_limits() -> None:
    credential = Credential("secret-one", rpm=500, tpm=200_000, rpd=10_000)

    assert credential.limits == (
        Limit("requests", 500, per=60.0),
        Limit("tokens", 200_000, per=60.0),
        Limit("requests", 10_000, per="day"),
    )


def test_hosts_are_kept_in_one_way_of_writing() -> None:
    assert Credential("secret-one", hosts=["API.example.com.", "[::1]"]).hosts == ("api.example.com", "::1")
    assert Credential("secret-one", hosts="API.example.com").hosts == ("api.example.com",)


def test_a_provider_is_known_in_any_case_and_shown() -> None:
    credential = Credential("secret-one", name="mine", provider="OpenAI")

    assert credential.provider == "openai"
    assert repr(credential) == "Credential(name='mine', provider='openai')"


def test_a_provider_that_was_not_told_is_not_guessed_here() -> None:
    credential = Credential("sk-ant-made-up-for-this-test", name="mine")

    assert credential.provider is None
    assert "provider" not in repr(credential)


def test_an_unknown_provider_is_answered_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match=f"provider must be one of {', '.join(PROVIDERS)}, or left out"):
        Credential("secret-one", provider="opnai")


@pytest.mark.parametrize(
    "show",
    [
        repr,
        str,
        "{}".format,
        "%s".__mod__,
        lambda x: f"{x!r:>40}",
        lambda x: str(vars(x) if hasattr(x, "__dict__") else x),
    ],
)
def test_a_secret_and_its_credential_show_nothing(show: object) -> None:
    for thing in (Secret(CANARY), Credential(CANARY, name="mine", env={"TOKEN": CANARY}), [Secret(CANARY)]):
        shown = show(thing)  # type: ignore[operator]
        assert not any(CANARY[i : i + 4] in shown for i in range(len(CANARY) - 3))


def test_a_secret_is_no_string_and_is_not_pickled_or_serialised() -> None:
    secret = Secret(CANARY)

    assert str not in type(secret).__mro__
    assert secret.reveal() == CANARY
    assert copy.deepcopy(secret) is secret
    for attempt in (lambda: pickle.dumps(secret), lambda: json.dumps(secret), lambda: pickle.dumps(Credential(CANARY))):
        with pytest.raises(TypeError) as caught:
            attempt()
        assert CANARY not in str(caught.value)
    assert CANARY not in str(dataclasses.asdict(_Holder(secret)))


@dataclasses.dataclass
class _Holder:
    secret: Secret


def test_a_pool_its_leases_and_its_rows_show_no_secret() -> None:
    pool = CredentialCoordinator([CANARY])
    lease = pool.acquire("item-1")

    for thing in (pool, lease, lease.secret, pool.snapshot(), pool.explain("item-1"), pool.get_stats(), lease._grant):
        assert CANARY[:8] not in repr(thing)
        assert CANARY[:8] not in str(thing)
    assert lease.reveal() == CANARY
