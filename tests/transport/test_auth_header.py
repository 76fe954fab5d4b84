"""The secret on its way out: in which header it leaves, what does not leave with it, and what the SDK keeps."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from agentos import Credential, CredentialCoordinator
from agentos.testing import FakeClock

from .fakes import URL, Provider, Way, in_both_libraries, in_every_way, leased, pool_of, secret_of

KEY_HEADERS = ("authorization", "x-api-key", "x-goog-api-key", "api-key")
SECRET = "planted0123456789"

ANTHROPIC = "https://api.anthropic.com/v1/messages"
AZURE = "https://mine.openai.azure.com/openai/v1/responses"
GEMINI = "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.5-pro:generateContent"
OPENAI = "https://api.openai.com/v1/responses"
ELSEWHERE = "https://gw.example.com/v1/x"


def sent(way: Way, url: str, headers: dict[str, str], auth: str | None = None, **facts: Any) -> Any:
    """The request that leaves, for one with these headers."""
    facts.setdefault("hosts", ["gw.example.com"] if "gw." in url else [])
    pool = CredentialCoordinator([Credential(SECRET, name="mine", **facts)], clock=FakeClock(), debug=True)
    provider = Provider()
    way.ask(way.transport(pool, provider, auth=auth), url, headers=headers)
    (request,) = provider.seen
    return request


def keys_in(headers: Any) -> dict[str, str]:
    return {name: headers[name] for name in KEY_HEADERS if name in headers}


BEARER = {"authorization": f"Bearer {SECRET}"}


@in_both_libraries
@pytest.mark.parametrize(
    ("url", "placed", "leaves"),
    [
        (OPENAI, {"Authorization": "Bearer pool"}, BEARER),
        (ANTHROPIC, {"X-Api-Key": "pool"}, {"x-api-key": SECRET}),
        (GEMINI, {"x-goog-api-key": "pool"}, {"x-goog-api-key": SECRET}),
        (AZURE, {"api-key": "pool"}, {"api-key": SECRET}),
        # where the SDK put none, the provider's own
        (OPENAI, {}, BEARER),
        (ANTHROPIC, {}, {"x-api-key": SECRET}),
        (GEMINI, {}, {"x-goog-api-key": SECRET}),
        (AZURE, {}, {"api-key": SECRET}),
        (ELSEWHERE, {}, BEARER),
        # where it put one, that: Anthropic takes OAuth tokens so, Azure those of Entra
        (ANTHROPIC, {"Authorization": "Bearer pool"}, BEARER),
        (AZURE, {"Authorization": "Bearer pool"}, BEARER),
        (ELSEWHERE, {"X-API-KEY": "pool"}, {"x-api-key": SECRET}),
        # several: the provider's own, and only that
        (ANTHROPIC, {"Authorization": "Bearer pool", "X-Api-Key": "pool"}, {"x-api-key": SECRET}),
        (ANTHROPIC, {"X-Api-Key": "pool", "Authorization": "Bearer pool"}, {"x-api-key": SECRET}),
        (GEMINI, {"x-goog-api-key": "pool", "Authorization": "Bearer pool"}, {"x-goog-api-key": SECRET}),
        (ELSEWHERE, {"api-key": "pool", "x-api-key": "pool"}, {"api-key": SECRET}),
        (OPENAI, dict.fromkeys(KEY_HEADERS, "pool"), BEARER),
        # what a client makes of a user and password in the address is no key of ours
        ("https://user:password@api.openai.com/v1/responses", {}, BEARER),
    ],
)
def test_the_secret_leaves_in_the_one_header_where_it_is_expected(
    way: Way, url: str, placed: dict[str, str], leaves: dict[str, str]
) -> None:
    assert keys_in(sent(way, url, placed).headers) == leaves


@in_both_libraries
@pytest.mark.parametrize(
    ("auth", "leaves"),
    [("bearer", BEARER), ("Bearer", BEARER), ("X-Api-Key", {"x-api-key": SECRET}), ("api-key", {"api-key": SECRET})],
)
def test_the_secret_leaves_where_the_user_told(way: Way, auth: str, leaves: dict[str, str]) -> None:
    assert keys_in(sent(way, GEMINI, dict.fromkeys(KEY_HEADERS, "pool"), auth).headers) == leaves


@in_both_libraries
def test_the_user_may_tell_a_header_of_their_own(way: Way) -> None:
    headers = sent(way, OPENAI, {"Authorization": "Bearer pool"}, "Ocp-Apim-Subscription-Key").headers

    assert headers["ocp-apim-subscription-key"] == SECRET
    assert keys_in(headers) == {}


@in_both_libraries
@pytest.mark.parametrize(
    ("facts", "leaves"),
    [
        ({"base_url": "https://mine.openai.azure.com/openai/v1"}, {"api-key": SECRET}),
        ({"base_url": "https://eu.api.openai.com/v1"}, BEARER),
        ({"base_url": "https://gw.example.com/azure", "provider": "azure"}, {"api-key": SECRET}),
        ({"base_url": "https://gw.example.com/v1", "provider": "openai"}, BEARER),
    ],
)
def test_a_request_that_is_sent_to_another_base_has_the_key_as_it_is_expected_there(
    way: Way, facts: dict[str, Any], leaves: dict[str, str]
) -> None:
    assert keys_in(sent(way, OPENAI, {"Authorization": "Bearer pool"}, **facts).headers) == leaves


@in_both_libraries
def test_a_gateway_nobody_knows_gets_the_key_where_the_sdk_put_its_placeholder(way: Way) -> None:
    request = sent(way, ELSEWHERE, {"X-Api-Key": "pool"}, base_url="https://gw.example.com")

    assert keys_in(request.headers) == {"x-api-key": SECRET}


@in_both_libraries
@pytest.mark.parametrize("name", ["x-agentos-affinity", "X-AgentOS-Anything", "X-AGENTOS-"])
def test_a_header_meant_for_agentos_does_not_leave(way: Way, name: str) -> None:
    request = sent(way, OPENAI, {name: "for us alone", "x-other": "goes on"})

    assert name not in request.headers
    assert b"for us alone" not in [value for _, value in request.headers.raw]
    assert request.headers["x-other"] == "goes on"


@in_both_libraries
def test_headers_that_stand_twice_leave_twice_and_those_of_keys_once(way: Way) -> None:
    pool = pool_of(FakeClock(), "one")
    provider = Provider()
    headers = [("X-Twice", "a"), ("x-twice", "b"), ("Authorization", "Bearer a"), ("authorization", "Bearer b")]

    way.ask(way.transport(pool, provider), headers=headers)

    (request,) = provider.seen
    assert request.headers.get_list("x-twice") == ["a", "b"]
    assert request.headers.get_list("authorization") == [f"Bearer {secret_of('one')}"]


@in_every_way
def test_the_request_of_the_sdk_keeps_its_placeholder(way: Way) -> None:
    pool = pool_of(FakeClock(), "one")
    provider = Provider()
    placed = {"Authorization": "Bearer pool", "X-AgentOS-Affinity": "a", "Accept-Encoding": "br"}

    answer = way.ask(way.transport(pool, provider), headers=placed)

    own = answer.request
    assert own is not provider.seen[0]
    assert {name: own.headers[name] for name in placed} == placed
    assert own.url == URL
    assert "planted" not in repr(own.headers.raw) + repr(own.extensions)


@in_every_way
def test_what_the_sdk_asked_for_is_sent_unchanged(way: Way) -> None:
    provider = Provider()

    way.ask(
        way.transport(pool_of(FakeClock(), "one"), provider),
        f"{URL}?b=2&a=1&a=%2F",
        method="PUT",
        content=b"\x00\xffbody",
        extensions={"sni_hostname": "elsewhere"},
    )

    (request,) = provider.seen
    assert (request.method, str(request.url)) == ("PUT", f"{URL}?b=2&a=1&a=%2F")
    assert request.read() == b"\x00\xffbody"
    assert request.extensions["sni_hostname"] == "elsewhere"


@in_both_libraries
@pytest.mark.parametrize(
    ("offered", "leaves"),
    [
        ("gzip, deflate, br, zstd", "gzip, deflate"),
        ("br;q=1.0", "gzip, deflate"),
        ("zstd", "gzip, deflate"),
        ("gzip", "gzip"),
        ("identity", "identity"),
    ],
)
def test_only_codings_that_can_be_read_in_passing_are_offered(way: Way, offered: str, leaves: str) -> None:
    assert sent(way, OPENAI, {"Accept-Encoding": offered}).headers["accept-encoding"] == leaves


@in_both_libraries
@pytest.mark.parametrize(
    ("query", "leaves"),
    [
        ("?key=pool", ""),
        ("?key=pool&alt=sse", "?alt=sse"),
        ("?alt=sse&key=pool&key=pool", "?alt=sse"),
        ("?k=v", "?k=v"),
    ],
)
def test_a_key_in_the_query_does_not_leave_for_gemini(way: Way, query: str, leaves: str) -> None:
    assert str(sent(way, GEMINI + query, {}).url) == GEMINI + leaves


@in_both_libraries
def test_a_query_that_only_looks_like_a_key_stays(way: Way) -> None:
    assert sent(way, f"{GEMINI}?monkey=a", {}).url.params["monkey"] == "a"
    assert sent(way, f"{ELSEWHERE}?key=mine", {}).url.params["key"] == "mine"


@in_every_way
@pytest.mark.parametrize("secret", ["planted\n0123456789", "planted 0123456789", "plänted0123456789", "planted\t0123"])
def test_a_secret_that_no_header_can_carry_is_refused_by_name(
    way: Way, secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    pool = CredentialCoordinator([Credential(secret, name="mine", hosts=["api.example.com"])], debug=True)
    provider = Provider()

    with pytest.raises(ValueError, match="no header can carry the secret of mine") as refused:
        way.ask(way.transport(pool, provider))

    assert provider.seen == []
    assert leased(pool) == []
    chain = [refused.value, refused.value.__cause__, refused.value.__context__]
    assert not any(part in f"{chain!r} {caplog.text}" for part in ("0123", "planted", "plänted"))
