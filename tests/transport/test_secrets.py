"""No key shows: not in errors, not in what they carry, not in any log, also where the provider quotes it back."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Callable, Iterator
from typing import Any

import brotli
import pytest

from agentos.simulator import KeyPlan, Latency, ProviderPlan, QuotaPlan, Scripted, Simulator

from . import calls
from .calls import SYNC, Way, every_sdk, every_way, every_whole_way, failure, keeping, pool_of
from .sdks import SDKS, Sdk, httpx2

SECRETS = ("k-Zq8vW3nLx7Rt5Kd1Yp4M", "k-Hb6jC9sTf2Gu0Ea3Xo5N")
PIECES = tuple(secret[3:11] for secret in SECRETS)


def quoting(status: int, headers: dict[str, str] | None = None) -> Scripted:
    """Answers that quote both keys, as some providers' do."""
    body = {
        "type": "error",
        "error": {
            "code": "invalid_api_key",
            "type": "authentication_error",
            "status": "UNAUTHENTICATED",
            "message": f"Incorrect API key provided: {SECRETS[0]}; not {SECRETS[1]} either.",
        },
    }
    return Scripted(status, at=0.0, until=1e6, headers=headers or {}, body=body)


def provided(*script: Scripted) -> ProviderPlan:
    keys = tuple(KeyPlan(secret, "acme") for secret in SECRETS)
    return ProviderPlan((QuotaPlan("acme"),), keys, Latency(0.0, 0.0), rejection_latency=0.0, script=script)


@pytest.fixture
def logs(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Everything that any logger says."""
    caplog.set_level(logging.DEBUG)
    for name in ("openai", "anthropic", "google_genai", "mistralai", "httpx2", "httpcore2", "asyncio", "agentos"):
        caplog.set_level(logging.DEBUG, name)
    return caplog


def shown(text: str) -> list[str]:
    """The secrets of which *text* shows a piece."""
    return [piece for piece in PIECES if piece in text]


def all_of(error: BaseException | None) -> Iterator[str]:
    """What an error says and carries, and those it was raised from."""
    while error is not None:
        yield from (str(error), repr(error), repr(error.args), repr(vars(error)))
        response = getattr(error, "response", None) or getattr(error, "raw_response", None)
        request = getattr(error, "request", None) or getattr(response, "request", None)
        for thing in (response, request):
            yield from (repr(thing), str(getattr(thing, "url", "")), repr(list(getattr(thing, "headers", {}).items())))
        yield text_of(response)
        yield repr(getattr(response, "extensions", ""))
        error = error.__cause__ or error.__context__


def text_of(response: Any) -> str:
    try:
        return str(response.text)
    except (AttributeError, httpx2.ResponseNotRead):
        return ""  # there is none; or it was streamed, and the SDK has put what it read into the error


@every_sdk
@every_way
@pytest.mark.parametrize("status", [401, 500])
def test_an_answer_that_quotes_the_keys_goes_up_without_them(
    sdk: Sdk, way: Way, status: int, logs: pytest.LogCaptureFixture
) -> None:
    with Simulator(provided(quoting(status))) as provider:
        pool = pool_of(provider)
        error = failure(lambda: way.ask(sdk, pool, sdk.url(provider)))

    assert shown("\n".join(all_of(error))) == []
    assert shown(logs.text) == []
    assert shown(repr(pool.snapshot())) == []


class Packing(httpx2.BaseTransport):  # type: ignore[name-defined, misc]  # it is imported by its name
    """Sends by another transport, and packs the errors that come back as some gateway would."""

    def __init__(self, wire: Any, codings: str, pack: Callable[[bytes], bytes]) -> None:
        self._wire = wire
        self._codings = codings
        self._pack = pack

    def handle_request(self, request: Any) -> Any:
        response = self._wire.handle_request(request)
        body = self._pack(response.read())
        headers = {"content-type": "application/json", "content-encoding": self._codings}
        return httpx2.Response(response.status_code, headers=headers, stream=httpx2.ByteStream(body))

    def close(self) -> None:
        self._wire.close()


@every_sdk
@pytest.mark.parametrize(
    ("codings", "pack", "told"),
    [
        ("gzip, identity", gzip.compress, "Incorrect API key provided: <secret>"),
        ("gzip, gzip", lambda body: gzip.compress(gzip.compress(body)), "Incorrect API key provided: <secret>"),
        ("br", brotli.compress, "Incorrect API key provided: <secret>"),
        ("zstd", lambda body: b"(\xb5/\xfd\0" + body, "its content coding zstd cannot be decoded"),
    ],
    ids=["gzip and identity", "gzip twice", "brotli", "a coding that cannot be decoded"],
)
def test_an_error_in_any_coding_is_raised_by_the_sdk_without_the_keys(
    sdk: Sdk, codings: str, pack: Callable[[bytes], bytes], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = calls.wire
    monkeypatch.setattr(calls, "wire", lambda: Packing(wire(), codings, pack))
    with Simulator(provided(quoting(400))) as provider:
        error = failure(lambda: SYNC.ask(sdk, pool_of(provider), sdk.url(provider)))

    assert "400" in "\n".join(all_of(error))
    assert told in "\n".join(all_of(error))
    assert shown("\n".join(all_of(error))) == []


@every_sdk
@pytest.mark.parametrize("status", [401, 500])
def test_a_key_quoted_in_a_header_is_neither_handed_up_nor_logged(
    sdk: Sdk, status: int, logs: pytest.LogCaptureFixture
) -> None:
    with Simulator(
        provided(quoting(status, {"www-authenticate": f'Bearer realm="x", key="{SECRETS[0]}"'}))
    ) as provider:
        error = failure(lambda: SYNC.ask(sdk, pool_of(provider), sdk.url(provider)))

    assert "www-authenticate" in "\n".join(all_of(error))
    assert shown("\n".join(all_of(error))) == []
    assert 'realm="x", key="<secret>"' in logs.text  # httpcore2 has logged that header
    assert shown(logs.text) == []


@every_whole_way
def test_a_key_quoted_by_an_answer_that_goes_well_is_not_in_the_log(way: Way, logs: pytest.LogCaptureFixture) -> None:
    script = Scripted(200, at=0.0, until=1e6, headers={"x-quoted": f"{SECRETS[0]}, {SECRETS[1].upper()}"})
    with Simulator(provided(script)) as provider:
        way.ask(SDKS[0], pool_of(provider), SDKS[0].url(provider))

    assert "(b'x-quoted', b'<secret>, <secret>')" in logs.text
    assert shown(logs.text) == []


@every_sdk
@every_way
@pytest.mark.parametrize("mishap", ["drop", "cut"])
def test_a_network_error_carries_no_key(sdk: Sdk, way: Way, mishap: Any, logs: pytest.LogCaptureFixture) -> None:
    with Simulator(provided(Scripted(mishap, at=0.0, until=1e6))) as provider:
        error = failure(lambda: way.ask(sdk, pool_of(provider), sdk.url(provider)))

    assert shown("\n".join(all_of(error))) == []
    assert shown(logs.text) == []


@every_sdk
@every_way
def test_a_good_answer_and_its_request_carry_no_key(sdk: Sdk, way: Way, logs: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []

    with Simulator(provided()) as provider:
        answers = way.ask(sdk, pool_of(provider), sdk.url(provider), http=keeping(seen, way))

    (response,) = seen
    assert "pool" in repr(list(response.request.headers.items()))
    said = (repr(answers), repr(response), repr(response.extensions), repr(list(response.request.headers.items())))
    assert shown("\n".join(said)) == []
    assert shown(logs.text) == []
