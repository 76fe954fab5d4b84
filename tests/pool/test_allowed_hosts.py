"""Keys are sent to their provider, to the hosts they name, to their base URL, and nowhere else."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentos import Credential, CredentialCoordinator, ForeignHost
from agentos.pool.allowed_hosts import AllowedHosts, Origin, build_origin, rewrite_target
from agentos.testing import FakeClock

from ..background_threads import Background
from ..transport.fakes import WELL, Provider, Says, Way, in_every_way, wait_in_line

OPENAI = "sk-proj-planted0123456789"
ANTHROPIC = "sk-ant-planted0123456789"
SILENT = "planted0123456789"  # its looks do not tell whose it is

at_any_pace = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def place(url: str) -> Origin:
    """Where a request for *url* would really go, as the library that sends it reads it."""
    read = httpx2.URL(url)
    return build_origin(read.scheme, read.raw_host.decode("ascii"), read.port)


def serving(url: str, **credentials: Credential) -> list[str]:
    return AllowedHosts().find_serving(place(url), credentials)


# -- one key ---------------------------------------------------------------------------------------------------------

GATEWAY = "https://gw.example.com/tenant/v1"


@pytest.mark.parametrize(
    ("facts", "url"),
    [
        ({"secret": OPENAI}, "https://api.openai.com/v1/models"),
        ({"secret": OPENAI}, "https://API.OpenAI.com/v1"),
        ({"secret": OPENAI}, "https://api.openai.com./v1"),
        ({"secret": OPENAI}, "https://api.openai.com:443/v1"),
        ({"secret": OPENAI}, "https://someone:else@api.openai.com/v1"),
        ({"secret": OPENAI}, "https://eu.api.openai.com/v1"),
        ({"secret": ANTHROPIC}, "https://api.anthropic.com/v1/messages"),
        ({"secret": SILENT, "provider": "anthropic"}, "https://api.anthropic.com/v1/messages"),
        ({"secret": OPENAI, "provider": "openrouter"}, "https://openrouter.ai/api/v1/chat/completions"),
        ({"secret": SILENT, "provider": "bedrock"}, "https://bedrock-runtime.us-east-1.amazonaws.com/model/m/converse"),
        ({"secret": SILENT}, "https://api.openai.com/v1"),
        ({"secret": SILENT}, "https://api.mistral.ai/v1"),
        ({"secret": SILENT, "hosts": ["gw.example.com"]}, "https://gw.example.com/v1"),
        ({"secret": SILENT, "hosts": ["gw.example.com"]}, "https://GW.Example.com.:8443/v1"),
        ({"secret": SILENT, "hosts": ["gw.example.com:80"]}, "http://gw.example.com/v1"),
        ({"secret": SILENT, "hosts": ["gw.example.com:4000"]}, "http://gw.example.com:4000/v1"),
        ({"secret": SILENT, "hosts": ["gateway"]}, "http://gateway:8080/v1"),
        ({"secret": SILENT, "hosts": ["gw.example.com:8443"]}, "https://gw.example.com:8443/v1"),
        ({"secret": SILENT, "hosts": ["gw.example.com:443"]}, "https://gw.example.com/v1"),
        ({"secret": SILENT, "hosts": ["*.example.com"]}, "https://a.example.com/v1"),
        ({"secret": SILENT, "hosts": ["*.example.com"]}, "https://a.b.example.com/v1"),
        ({"secret": SILENT, "hosts": ["xn--bcher-kva.example"]}, "https://bücher.example/v1"),
        ({"secret": SILENT, "hosts": ["127.0.0.1"]}, "http://127.0.0.1:5000/v1"),
        ({"secret": SILENT, "hosts": ["::1"]}, "http://[::1]:5000/v1"),
        ({"secret": SILENT, "hosts": ["192.168.1.7"]}, "http://192.168.1.7:5000/v1"),
        ({"secret": SILENT, "hosts": ["8.8.8.8"]}, "https://8.8.8.8/v1"),
        ({"secret": SILENT, "hosts": ["[::1]:5000"]}, "http://[::1]:5000/v1"),
        ({"secret": OPENAI, "hosts": ["gw.example.com"]}, "https://api.openai.com/v1"),
        ({"secret": SILENT, "base_url": GATEWAY}, "https://gw.example.com/tenant/v1/models"),
        ({"secret": OPENAI, "base_url": GATEWAY}, "https://api.openai.com/v1/models"),
        ({"secret": SILENT, "base_url": GATEWAY, "provider": "openai"}, "https://api.openai.com/v1/models"),
        ({"secret": SILENT, "base_url": GATEWAY, "provider": "azure"}, "https://api.openai.com/v1/models"),
        ({"secret": SILENT, "base_url": "https://mine.openai.azure.com"}, "https://api.openai.com/v1/models"),
        ({"secret": SILENT, "base_url": "https://eu.api.openai.com/v1"}, "https://api.openai.com/v1/models"),
        ({"secret": SILENT, "base_url": "http://localhost:8080"}, "http://localhost:8080/v1"),
    ],
)
def test_a_key_serves_where_it_belongs(facts: dict[str, Any], url: str) -> None:
    assert serving(url, mine=Credential(**facts)) == ["mine"]


@pytest.mark.parametrize(
    ("facts", "url"),
    [
        ({"secret": OPENAI}, "http://api.openai.com/v1"),
        ({"secret": OPENAI}, "ws://api.openai.com/v1"),
        ({"secret": OPENAI}, "https://api.anthropic.com/v1"),
        ({"secret": OPENAI}, "https://openai.com/v1"),
        ({"secret": OPENAI}, "https://evil-api.openai.com/v1"),
        ({"secret": OPENAI}, "https://api.openai.com.evil.com/v1"),
        ({"secret": OPENAI}, "https://api.openai.com@evil.com/v1"),
        ({"secret": OPENAI}, "https://api.openai.com:443@evil.com/v1"),
        ({"secret": OPENAI}, "https://evil.com/api.openai.com"),
        ({"secret": OPENAI}, "https://evil.com?@api.openai.com/"),
        ({"secret": OPENAI}, "https://evil.com#@api.openai.com/"),
        ({"secret": OPENAI}, "https://api.openai.com%2eevil.com/v1"),
        ({"secret": OPENAI}, "https://api.openai.com%00.evil.com/v1"),
        ({"secret": OPENAI}, "https://api.openai.com%20/v1"),
        ({"secret": OPENAI}, "https://\N{CYRILLIC SMALL LETTER A}pi.openai.com/v1"),
        ({"secret": OPENAI}, "https://xn--pi-6kc.openai.com/v1"),
        ({"secret": OPENAI}, "https:///api.openai.com/v1"),
        ({"secret": OPENAI}, "//api.openai.com/v1"),
        ({"secret": OPENAI}, "https://127.0.0.1/v1"),
        ({"secret": OPENAI, "provider": "openrouter"}, "https://api.openai.com/v1"),
        ({"secret": SILENT, "provider": "azure"}, "https://api.openai.com/v1"),
        ({"secret": SILENT, "provider": "azure"}, "https://mine.openai.azure.com.evil.com/v1"),
        ({"secret": SILENT, "provider": "bedrock"}, "https://bedrock.us-mine.s3.us-east-1.amazonaws.com/"),
        ({"secret": SILENT, "provider": "bedrock"}, "https://bedrock-runtime.us-mine.s3-us-west-2.amazonaws.com/"),
        ({"secret": SILENT}, "http://api.openai.com/v1"),
        ({"secret": SILENT}, "https://gw.example.com/v1"),
        ({"secret": SILENT, "hosts": ["gw.example.com"]}, "http://gw.example.com/v1"),
        ({"secret": SILENT, "hosts": ["*.example.com"]}, "http://gw.example.com/v1"),
        ({"secret": SILENT, "hosts": ["8.8.8.8"]}, "http://8.8.8.8/v1"),
        ({"secret": SILENT, "hosts": ["*.example.com"]}, "https://evil.com%2f.example.com/v1"),
        ({"secret": SILENT, "hosts": ["*.example.com"]}, "https://evil.com&x.example.com/v1"),
        ({"secret": SILENT, "hosts": ["*.example.com"]}, "https://.example.com/v1"),
        ({"secret": OPENAI}, "https://api.openai.com../v1"),
        ({"secret": SILENT}, "http://localhost:8080/v1"),
        ({"secret": SILENT, "hosts": ["gw.example.com"]}, "https://api.openai.com/v1"),
        ({"secret": SILENT, "hosts": ["gw.example.com"]}, "https://evilgw.example.com/v1"),
        ({"secret": SILENT, "hosts": ["gw.example.com"]}, "https://gw.example.com.evil.com/v1"),
        ({"secret": SILENT, "hosts": ["gw.example.com:8443"]}, "https://gw.example.com/v1"),
        ({"secret": SILENT, "hosts": ["*.example.com"]}, "https://example.com/v1"),
        ({"secret": SILENT, "hosts": ["*.example.com"]}, "https://evilexample.com/v1"),
        ({"secret": SILENT, "hosts": ["*.example.com"]}, "https://a.example.com.evil.com/v1"),
        ({"secret": SILENT, "hosts": ["127.0.0.1"]}, "http://localhost/v1"),
        ({"secret": SILENT, "hosts": ["127.0.0.1"]}, "http://127.0.0.1.evil.com/v1"),
        ({"secret": SILENT, "hosts": ["127.0.0.1"]}, "http://127.0.0.2/v1"),
        ({"secret": SILENT, "hosts": ["localhost"]}, "http://127.0.0.1/v1"),
        ({"secret": SILENT, "base_url": GATEWAY}, "http://gw.example.com/tenant/v1"),
        ({"secret": SILENT, "base_url": GATEWAY}, "https://gw.example.com:8443/tenant/v1"),
        ({"secret": SILENT, "base_url": GATEWAY}, "https://api.openai.com/v1"),
        ({"secret": OPENAI, "base_url": GATEWAY}, "https://evil.com/v1"),
        ({"secret": OPENAI, "base_url": GATEWAY}, "https://api.anthropic.com/v1"),
        ({"secret": SILENT, "base_url": GATEWAY, "provider": "anthropic"}, "https://evil.com/v1"),
        ({"secret": SILENT, "base_url": GATEWAY, "provider": "azure"}, "https://evil.com/v1"),
        ({"secret": SILENT, "base_url": GATEWAY, "provider": "azure"}, "https://api.anthropic.com/v1"),
    ],
)
def test_a_key_serves_nowhere_else(facts: dict[str, Any], url: str) -> None:
    with pytest.raises(ForeignHost) as refused:
        serving(url, mine=Credential(**facts))

    assert refused.value.credentials == ("mine",)
    assert "planted" not in f"{refused.value!r} {refused.value.host}"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://Evil.com:443/path?query", "https://evil.com"),
        ("http://evil.com:8080/", "http://evil.com:8080"),
        ("http://[::1]:8080/", "http://[::1]:8080"),
        ("https://user:password@evil.com/", "https://evil.com"),
    ],
)
def test_a_refusal_names_the_place_and_no_more_of_the_address(url: str, shown: str) -> None:
    with pytest.raises(ForeignHost) as refused:
        serving(url, mine=Credential(OPENAI))

    assert refused.value.host == shown


# -- several keys ----------------------------------------------------------------------------------------------------

MIXED = {
    "of-openai": Credential(OPENAI),
    "of-anthropic": Credential(ANTHROPIC),
    "silent": Credential(SILENT),
    "local": Credential("planted-local", hosts=["localhost"]),
    "in-azure": Credential("planted-azure", base_url="https://mine.openai.azure.com/openai/v1"),
}


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("https://api.openai.com/v1", ["of-openai", "in-azure"]),
        ("https://api.anthropic.com/v1", ["of-anthropic"]),
        ("http://localhost:8080/v1", ["local"]),
        ("https://mine.openai.azure.com/openai/v1", ["in-azure"]),
        ("https://other.openai.azure.com/openai/v1", ["in-azure"]),
    ],
)
def test_in_a_pool_of_several_providers_each_place_has_its_own_keys(url: str, names: list[str]) -> None:
    assert serving(url, **MIXED) == names


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://api.mistral.ai/v1", "who issued silent was not said, in a pool of several providers"),
        ("https://evil.com/v1", "no credential names it"),
        ("http://api.anthropic.com/v1", "it would travel unencrypted"),
    ],
)
def test_a_pool_of_several_providers_says_why_it_has_no_key_for_a_place(url: str, why: str) -> None:
    with pytest.raises(ForeignHost, match=why):
        serving(url, **MIXED)


def test_keys_that_say_nothing_belong_to_the_provider_that_is_called_first() -> None:
    destinations, silent = AllowedHosts(), {"a": Credential(SILENT), "b": Credential(f"{SILENT}b")}

    assert destinations.find_serving(place("https://api.groq.com/"), silent) == ["a", "b"]

    with pytest.raises(ForeignHost, match="who issued a, b was not said, and they were used for groq before"):
        destinations.find_serving(place("https://api.openai.com/"), silent)


@pytest.mark.parametrize("url", ["https://evil.com/", "http://api.openai.com/"])
def test_a_place_that_was_refused_does_not_become_the_provider_called_first(url: str) -> None:
    destinations, silent = AllowedHosts(), {"a": Credential(SILENT)}
    with pytest.raises(ForeignHost):
        destinations.find_serving(place(url), silent)

    assert destinations.find_serving(place("https://api.groq.com/"), silent) == ["a"]


@pytest.mark.parametrize(
    ("facts", "url", "why"),
    [
        (
            {"hosts": ["gw.example.com"]},
            "http://gw.example.com/v1",
            "it would travel unencrypted (who means that names the port: hosts=['gw.example.com:80'])",
        ),
        (
            {"hosts": ["*.example.com"]},
            "http://gw.example.com:4000/v1",
            "it would travel unencrypted (who means that names the port: hosts=['gw.example.com:4000'])",
        ),
        (
            {"secret": OPENAI},
            "wss://api.openai.com/v1/realtime",
            "only http and https go through the pool's transport, not wss "
            "(for that: with pool.lease() as lease, and lease.reveal() as the key)",
        ),
        (
            {"hosts": ["127.0.0.1"]},
            "ws://127.0.0.1:4000/",
            "only http and https go through the pool's transport, not ws "
            "(for that: with pool.lease() as lease, and lease.reveal() as the key)",
        ),
        (
            {"base_url": GATEWAY},
            "https://api.openai.com/v1",
            "whose requests mine is to serve at its base_url was not said",
        ),
        (
            {"provider": "openai", "secret": "planted\n0123456789"},
            "https://api.openai.com/v1",
            "no header can carry the secret of mine: it has blanks, line ends or the like",
        ),
    ],
)
def test_a_refusal_says_what_keeps_the_key_from_its_place(facts: dict[str, Any], url: str, why: str) -> None:
    with pytest.raises(ForeignHost) as refused:
        serving(url, mine=Credential(**{"secret": SILENT, **facts}))

    assert refused.value.detail == why


def test_a_place_whose_usual_port_is_not_known_is_shown_without_one() -> None:
    assert str(place("wss://api.openai.com/v1/realtime")) == "wss://api.openai.com"
    assert str(place("ws://127.0.0.1:4000/")) == "ws://127.0.0.1:4000"


def test_a_refusal_names_three_of_many_keys_and_counts_the_others() -> None:
    keys = {f"key-{number}": Credential(f"planted 012345678{number}", provider="openai") for number in range(5)}

    with pytest.raises(ForeignHost, match="the secret of key-0, key-1, key-2 and 2 more: "):
        serving("https://api.openai.com/v1", **keys)


@pytest.mark.parametrize("secret", ["planted 0123456789", "planted0123456789\n", "pl\u00e4nted0123456789"])
def test_a_key_whose_secret_no_header_can_carry_serves_nowhere_and_the_others_do(secret: str) -> None:
    keys = {
        "broken": Credential(secret, hosts=["gw.example.com"]),
        "good": Credential(SILENT, hosts=["gw.example.com"]),
    }

    assert serving("https://gw.example.com/v1", **keys) == ["good"]


def test_a_pool_without_credentials_says_so() -> None:
    with pytest.raises(ForeignHost, match="the pool has no credentials"):
        serving("https://api.openai.com/")


# -- keys that join later --------------------------------------------------------------------------------------------

AT_OPENAI = "https://api.openai.com/v1/chat/completions"


def told(request: Any) -> str:
    """The secret that a request carries."""
    return str(request.headers.get("x-api-key") or request.headers["authorization"].removeprefix("Bearer "))


@in_every_way
def test_a_foreign_key_that_joins_is_not_given_to_a_call_that_waits(way: Way) -> None:
    pool = CredentialCoordinator([OPENAI], clock=FakeClock(), debug=True)
    provider = Provider()
    transport = way.transport(pool, provider)
    with pool.lease():
        call = Background(lambda: way.ask(transport, AT_OPENAI))
        wait_in_line(pool)
        pool.add(ANTHROPIC)
        wait_in_line(pool)
        assert provider.seen == []

    assert call.result().status_code == 200
    assert [told(request) for request in provider.seen] == [OPENAI]


@in_every_way
def test_a_key_of_the_same_provider_that_joins_serves_a_call_that_waits(way: Way) -> None:
    pool = CredentialCoordinator([OPENAI], clock=FakeClock(), debug=True)
    provider = Provider()
    transport = way.transport(pool, provider)
    with pool.lease():
        call = Background(lambda: way.ask(transport, AT_OPENAI))
        wait_in_line(pool)
        pool.add(f"{OPENAI}-too")

        assert call.result().status_code == 200

    assert [told(request) for request in provider.seen] == [f"{OPENAI}-too"]


@in_every_way
def test_in_a_pool_of_several_providers_too_a_key_that_joins_serves_a_call_that_waits(way: Way) -> None:
    pool = CredentialCoordinator([OPENAI, ANTHROPIC], clock=FakeClock(), debug=True)
    provider = Provider()
    transport = way.transport(pool, provider)
    with pool.lease(), pool.lease():
        call = Background(lambda: way.ask(transport, AT_OPENAI))
        wait_in_line(pool)
        pool.add(f"{ANTHROPIC}-too")
        pool.add(f"{OPENAI}-too")

        assert call.result().status_code == 200

    assert [told(request) for request in provider.seen] == [f"{OPENAI}-too"]


@in_every_way
def test_a_foreign_key_that_joins_is_not_given_to_a_call_that_was_refused(way: Way) -> None:
    clock = FakeClock()
    pool = CredentialCoordinator([OPENAI], clock=clock, debug=True)

    def limited(_: Any) -> Says:
        pool.add(ANTHROPIC)
        return Says(429, {"error": {"message": "too many"}}, {"retry-after": "30"})

    provider = Provider(limited, WELL)
    transport = way.transport(pool, provider)
    call = Background(lambda: way.ask(transport, AT_OPENAI))
    clock.wait_for_sleepers(1)
    clock.advance(30)

    assert call.result().status_code == 200
    assert [told(request) for request in provider.seen] == [OPENAI, OPENAI]


@in_every_way
def test_a_transport_that_was_used_finds_the_keys_that_joined_since(way: Way) -> None:
    pool = CredentialCoordinator([OPENAI], clock=FakeClock(), debug=True)
    provider = Provider()
    transport = way.transport(pool, provider)
    way.ask(transport, AT_OPENAI)
    pool.add(ANTHROPIC)

    for _ in range(3):
        way.ask(transport, AT_OPENAI)
        way.ask(transport, "https://api.anthropic.com/v1/messages")

    assert [told(request) for request in provider.seen] == [OPENAI, *(3 * [OPENAI, ANTHROPIC])]


@in_every_way
def test_a_silent_key_that_joins_later_belongs_where_the_others_do(way: Way) -> None:
    pool = CredentialCoordinator([SILENT], clock=FakeClock(), debug=True)
    provider = Provider()
    transport = way.transport(pool, provider)
    way.ask(transport, AT_OPENAI)
    pool.add(f"{SILENT}-too")

    way.ask(transport, AT_OPENAI)
    way.ask(transport, AT_OPENAI)

    assert {told(request) for request in provider.seen} == {SILENT, f"{SILENT}-too"}
    with pytest.raises(ForeignHost):
        way.ask(transport, "https://api.anthropic.com/v1/messages")


# -- whatever is in the pool, and whatever is called -----------------------------------------------------------------

FACTS: list[dict[str, Any]] = [
    {},
    {"provider": "openai"},
    {"provider": "anthropic"},
    {"provider": "azure"},
    {"hosts": ["gw.example.com"]},
    {"hosts": ["*.example.com:8443"]},
    {"hosts": ["::1"]},
    {"base_url": GATEWAY},
    {"base_url": "https://mine.openai.azure.com/openai/v1"},
    {"base_url": "http://localhost:8080", "provider": "openai"},
]
HOSTS = [
    *("api.openai.com", "API.OPENAI.COM.", "api.openai.com.evil.com", "api.anthropic.com", "mine.openai.azure.com"),
    *("gw.example.com", "other.example.com", "localhost", "[::1]", "evil.com", "api.openai.com@evil.com"),
]
credentials = st.tuples(st.sampled_from(["sk-proj-", "sk-ant-", ""]), st.sampled_from(FACTS))
urls = st.builds(
    "{}://{}{}{}".format,
    st.sampled_from(["https", "http"]),
    st.sampled_from(HOSTS),
    st.sampled_from(["", ":443", ":80", ":8080", ":8443"]),
    st.sampled_from(["/", "/v1/messages", "//evil.com/", "/../../x", "/v1?key=a"]),
)


def may_have(credential: Credential, url: httpx2.URL) -> bool:
    """The promise, written out a second time: whether the key may really travel to *url*."""
    host = url.raw_host.decode().rstrip(".")
    port = url.port or {"http": 80, "https": 443}[url.scheme]
    if credential.base_url is not None:
        base = urlsplit(credential.base_url)
        usual = {"http": 80, "https": 443}[base.scheme]
        return (url.scheme, host, port) == (base.scheme, base.hostname, base.port or usual)
    if url.scheme == "https" and host == "gw.example.com" and "gw.example.com" in credential.hosts:
        return True
    if host.endswith(".example.com") and port == 8443 and "*.example.com:8443" in credential.hosts:
        return True
    if host == "::1" and "::1" in credential.hosts:
        return True
    looks = {"sk-proj-": "openai", "sk-ant-": "anthropic", "": None}[credential.secret.reveal().partition("planted")[0]]
    whose = credential.provider or looks
    homes = {"openai": "api.openai.com", "anthropic": "api.anthropic.com", "azure": "mine.openai.azure.com"}
    allowed = {homes[whose]} if whose else set() if credential.hosts else set(homes.values())
    return url.scheme == "https" and host in allowed


@at_any_pace
@given(st.lists(st.one_of(credentials, urls), min_size=2, max_size=12))
def test_no_key_ever_travels_to_a_place_it_may_not_go_to(story: list[Any]) -> None:
    pool = CredentialCoordinator(clock=FakeClock())
    provider = Provider(Says(body=b"{}"))
    transport = pool.transport(provider, max_wait=0)
    client = httpx2.Client(transport=transport)
    known: dict[str, Credential] = {}
    for number, step in enumerate(story):
        if isinstance(step, str):
            try:
                client.get(step)
            except ForeignHost:
                pass
        else:
            beginning, facts = step
            secret = f"{beginning}planted{number:010}"
            known[secret] = Credential(secret, **facts)
            pool.add(known[secret])

    for request in provider.seen:
        headers = [request.headers.get(name) for name in ("authorization", "x-api-key", "api-key", "x-goog-api-key")]
        (secret,) = [header.removeprefix("Bearer ") for header in headers if header]
        assert may_have(known[secret], request.url), f"{known[secret]!r} at {request.url}"
        assert request.headers["host"] == request.url.netloc.decode()


# -- to the base URL of a key ----------------------------------------------------------------------------------------

AZURE = "https://mine.openai.azure.com"


@pytest.mark.parametrize(
    ("base_url", "asked", "sent"),
    [
        # Azure, as it is now and as it was
        (f"{AZURE}/openai/v1", "https://api.openai.com/v1/responses", f"{AZURE}/openai/v1/responses"),
        (f"{AZURE}/openai/v1/", "https://api.openai.com/v1/responses", f"{AZURE}/openai/v1/responses"),
        (
            f"{AZURE}/openai/deployments/mine?api-version=2024-10-21",
            "https://api.openai.com/v1/chat/completions",
            f"{AZURE}/openai/deployments/mine/chat/completions?api-version=2024-10-21",
        ),
        (
            f"{AZURE}?api-version=2024-10-21",
            "https://other.openai.azure.com/openai/deployments/d/chat/completions?api-version=2025-01-01",
            f"{AZURE}/openai/deployments/d/chat/completions?api-version=2025-01-01",
        ),
        (
            f"{AZURE}/openai?api-version=2024-10-21",
            "https://other.openai.azure.com/openai/deployments/d/chat/completions?a=b",
            f"{AZURE}/openai/deployments/d/chat/completions?a=b&api-version=2024-10-21",
        ),
        # another region of the same provider
        ("https://eu.api.openai.com/v1", "https://api.openai.com/v1/models", "https://eu.api.openai.com/v1/models"),
        ("https://eu.api.openai.com", "https://api.openai.com/v1/models", "https://eu.api.openai.com/v1/models"),
        (
            "https://europe-west1-aiplatform.googleapis.com",
            "https://aiplatform.googleapis.com/v1/projects/p/locations/l/publishers/google/models/m:generateContent",
            "https://europe-west1-aiplatform.googleapis.com"
            "/v1/projects/p/locations/l/publishers/google/models/m:generateContent",
        ),
        # a gateway
        (GATEWAY, "https://api.openai.com/v1/models", f"{GATEWAY}/models"),
        (GATEWAY, "https://gw.example.com/tenant/v1/models", f"{GATEWAY}/models"),
        ("https://gw.example.com/oai", "https://api.openai.com/v1/models", "https://gw.example.com/oai/models"),
        ("https://gw.example.com", "https://api.openai.com/v1/models", "https://gw.example.com/v1/models"),
        ("https://gw.example.com/", "https://api.openai.com/v1/models", "https://gw.example.com/v1/models"),
        ("https://gw.example.com/a", "https://api.anthropic.com/v1/messages", "https://gw.example.com/a/v1/messages"),
        ("https://gw.example.com/g", "https://api.groq.com/openai/v1/models", "https://gw.example.com/g/models"),
        ("http://localhost:8080/v1", "https://api.openai.com/v1/models", "http://localhost:8080/v1/models"),
        ("http://[::1]:8080", "https://api.openai.com/v1/models", "http://[::1]:8080/v1/models"),
        (
            "https://gw.example.com/g",
            "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
            "https://gw.example.com/g/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
        ),
        # what stands in an address stays as it is written
        (GATEWAY, "https://api.openai.com/v1/files/a%2Fb%20c?x=%26&x=2", f"{GATEWAY}/files/a%2Fb%20c?x=%26&x=2"),
        ("https://gw.example.com/a%20b", "https://api.openai.com/v1/m", "https://gw.example.com/a%20b/m"),
        (GATEWAY, "https://api.openai.com/v1/", f"{GATEWAY}/"),
        (GATEWAY, "https://api.openai.com/", f"{GATEWAY}/"),
        (GATEWAY, "https://api.openai.com/v1//evil.com/", f"{GATEWAY}//evil.com/"),
        ("https://gw.example.com", "https://api.openai.com//evil.com/", "https://gw.example.com//evil.com/"),
        (f"{GATEWAY}#part", "https://api.openai.com/v1/models", f"{GATEWAY}/models"),
    ],
)
def test_a_request_goes_to_the_base_url_of_its_key(base_url: str, asked: str, sent: str) -> None:
    key = Credential(SILENT, name="mine", base_url=base_url, hosts=[httpx2.URL(asked).host])
    pool = CredentialCoordinator([key], clock=FakeClock())
    provider = Provider()
    client = httpx2.Client(transport=pool.transport(provider))

    client.get(asked)

    (request,) = provider.seen
    assert str(request.url) == sent
    assert request.headers["host"] == httpx2.URL(sent).netloc.decode()


@in_every_way
@pytest.mark.parametrize("later", [False, True])
def test_an_sdk_that_was_given_the_base_url_of_one_key_is_served_by_the_others(way: Way, later: bool) -> None:
    paths = ["/team-a/v1", "/team-b/v1", "/v1", "/v1/team-d", ""]
    keys = [Credential(f"{SILENT}-{n}", base_url=f"https://gw.example.com{path}") for n, path in enumerate(paths)]
    for pointed_at in paths:
        pool = CredentialCoordinator(keys[:1] if later else keys, clock=FakeClock())
        provider = Provider()
        transport = way.transport(pool, provider)
        if later:
            way.ask(transport, f"https://gw.example.com{paths[0]}/models")
            for key in keys[1:]:
                pool.add(key)
        provider.seen.clear()

        for _ in keys:
            way.ask(transport, f"https://gw.example.com{pointed_at}/models")

        assert {request.url.path for request in provider.seen} == {f"{path}/models" for path in paths}


@at_any_pace
@given(
    st.sampled_from([GATEWAY, AZURE, "http://[::1]:8080/a?b=c", "https://eu.api.openai.com/v1"]),
    st.sampled_from(["https://api.openai.com", "https://gw.example.com", "https://api.groq.com"]),
    st.text("/abv1.%2F:@?&=#;~\\", max_size=20),
    st.lists(st.sampled_from([GATEWAY, f"{GATEWAY}/a", "https://gw.example.com/a", AZURE]), max_size=3),
)
def test_whatever_is_asked_for_stays_below_the_base_url(base_url: str, there: str, rest: str, bases: list[str]) -> None:
    asked = httpx2.URL(f"{there}/{rest}")
    path, _, query = asked.raw_path.partition(b"?")

    goes_to, target = rewrite_target(base_url, place(there), path, query, tuple(bases))

    sent = asked.copy_with(scheme=goes_to.scheme, host=goes_to.host, port=goes_to.port, raw_path=target)
    assert place(str(sent)) == place(base_url) == goes_to
    assert sent.path.startswith(urlsplit(base_url).path)


@pytest.mark.parametrize("base_url", ["https://bücher.example/v1", "https://gw.example.com/straße"])
def test_a_base_url_that_could_be_read_in_two_ways_is_refused(base_url: str) -> None:
    with pytest.raises(ValueError, match="base_url must be an http:// or https:// address, without"):
        Credential(SILENT, base_url=base_url)


@pytest.mark.parametrize("labels", [{"agentos-to": "https://api.openai.com"}, ["agentos-to=https://api.openai.com"]])
def test_a_label_that_would_let_a_key_go_anywhere_is_refused(labels: Any) -> None:
    with pytest.raises(ValueError, match="labels must not begin with agentos-"):
        Credential(SILENT, labels=labels)
