"""What a client's exception means, by its shape alone: classes made here, named as the clients name theirs."""

from __future__ import annotations

import asyncio
import errno
import http.client
import socket
import ssl
import urllib.error
from email.message import Message
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentos.errors import AgentOSError, LeaseLost, NoCredentialAvailable, NoUsableCredential, RateLimited, Transient
from agentos.providers import Event, Signal, from_exception, read_signal
from agentos.providers.clients.exceptions import find_own_error

from ..parameter_ids import named

NOW = 1_800_000_000.0
SECRET = "sk-planted-0123456789"


def made(name: str, *bases: type, **attributes: Any) -> Any:
    """An exception class of a client: *name* is ``module:Class``."""
    module, _, plain = name.rpartition(":")
    return type(plain, bases or (Exception,), {"__module__": module, **attributes})


def raised(name: str, *bases: type, **attributes: Any) -> Any:
    """An exception of such a class, with *attributes* of its own."""
    exc = made(name, *bases)()
    exc.__dict__.update(attributes)
    return exc


def response(status: int = 429, url: str = "https://example.org/v1", **attributes: Any) -> SimpleNamespace:
    headers = attributes.pop("headers", {"Retry-After": "7"})
    return SimpleNamespace(status_code=status, headers=headers, url=url, **attributes)


def signal_from(exc: BaseException) -> Signal:
    signal = from_exception(exc, now=NOW)
    assert signal is not None
    return signal


def event_of(exc: BaseException) -> Event | None:
    signal = from_exception(exc, now=NOW)
    return None if signal is None else signal.event


OPENAI_STATUS = made("openai:APIStatusError", made("openai:APIError"))
OPENAI_429 = raised("openai:RateLimitError", OPENAI_STATUS, response=response())


# -- no answer -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "aiohttp.client_exceptions:ClientConnectionError",
        "aiohttp.client_exceptions:ClientPayloadError",
        "anthropic:APIConnectionError",
        "botocore.exceptions:ConnectionError",
        "botocore.exceptions:HTTPClientError",
        "botocore.exceptions:IncompleteReadError",
        "cerebras.cloud.sdk:APIConnectionError",
        "google.auth.exceptions:TransportError",
        "groq:APIConnectionError",
        "h11:RemoteProtocolError",
        "httpcore:NetworkError",
        "httpcore2:TimeoutException",
        "httpx:TransportError",
        "httpx:DecodingError",
        "httpx2:TransportError",
        "mistralai.client.errors.no_response_error:NoResponseError",
        "openai:APIConnectionError",
        "requests.exceptions:ConnectionError",
        "requests.exceptions:Timeout",
        "requests.exceptions:ChunkedEncodingError",
        "together:APIConnectionError",
        "urllib3.exceptions:ProtocolError",
        "urllib3.exceptions:TimeoutError",
        "urllib3.exceptions:MaxRetryError",
    ],
)
def test_a_client_without_an_answer_is_the_network(name: str) -> None:
    """Also for a subclass, whether the client's or a user's."""
    base = made(name)
    for exc in (base(), made("somebody.else:Special", base)()):
        signal = signal_from(exc)

        assert (signal.event, signal.status) == (Event.NETWORK, None)
        assert signal.evidence[0].endswith("." + name.partition(":")[2])


GAVE_UP = [
    "aiohttp.client_exceptions:ServerTimeoutError",
    "botocore.exceptions:ReadTimeoutError",
    "httpcore:ReadTimeout",
    "httpcore2:PoolTimeout",
    "httpx:ReadTimeout",
    "httpx:WriteTimeout",
    "httpx2:ReadTimeout",
    "httpx2:PoolTimeout",
    "openai:APITimeoutError",
    "anthropic:APITimeoutError",
    "requests.exceptions:ReadTimeout",
    "urllib3.exceptions:ReadTimeoutError",
]


@pytest.mark.parametrize("name", GAVE_UP)
def test_a_caller_that_waits_no_longer_has_no_answer_and_says_nothing_of_the_network(name: str) -> None:
    base = made(name)
    for exc in (base(), made("somebody.else:Special", base)(), chain(RuntimeError(), base())):
        signal = signal_from(exc)

        assert (signal.event, signal.gave_up) == (Event.NETWORK, True)


@pytest.mark.parametrize(
    "exc",
    [
        raised(
            "aiohttp.client_exceptions:ConnectionTimeoutError", made("aiohttp.client_exceptions:ServerTimeoutError")
        ),
        raised("httpcore:ConnectTimeout", made("httpcore:TimeoutException")),
        raised("httpx2:ConnectTimeout", made("httpx2:TransportError")),
        raised("requests.exceptions:ConnectTimeout", made("requests.exceptions:ConnectionError")),
        raised("urllib3.exceptions:ConnectTimeoutError", made("urllib3.exceptions:TimeoutError")),
        raised("openai:APIConnectionError"),
        OSError(errno.ENETUNREACH, "unreachable"),
        TimeoutError(errno.ETIMEDOUT, "the system gave up"),
        urllib.error.URLError(TimeoutError()),
    ],
    ids=repr,
)
def test_a_connection_that_is_not_made_is_news_of_the_network_also_below_an_sdks_timeout(exc: Exception) -> None:
    for raised_so in (exc, chain(raised("openai:APITimeoutError"), exc)):
        signal = signal_from(raised_so)

        assert (signal.event, signal.gave_up) == (Event.NETWORK, False)


def test_a_timeout_below_another_is_still_the_callers() -> None:
    layers = ["openai:APITimeoutError", "httpx2:ReadTimeout", "httpcore2:ReadTimeout"]

    assert signal_from(chain(*[raised(name) for name in layers], TimeoutError())).gave_up


@pytest.mark.parametrize(("reason", "gave_up"), [("ReadTimeoutError", True), ("NewConnectionError", False)])
def test_urllib3_that_asked_in_vain_gave_up_if_its_last_try_did(reason: str, gave_up: bool) -> None:
    exc = raised("urllib3.exceptions:MaxRetryError", reason=raised(f"urllib3.exceptions:{reason}"))

    assert signal_from(exc).gave_up is gave_up


@pytest.mark.parametrize(
    "exc",
    [
        ConnectionError(),
        ConnectionRefusedError(),
        ConnectionResetError(),
        BrokenPipeError(),
        TimeoutError(),
        socket.gaierror(),
        socket.herror(),
        ssl.SSLError(),
        OSError(errno.ENETUNREACH, "unreachable"),
        OSError(errno.EHOSTUNREACH, "no route"),
        http.client.RemoteDisconnected(""),
        http.client.IncompleteRead(b""),
        http.client.BadStatusLine("junk"),
        urllib.error.URLError(ConnectionRefusedError()),
        urllib.error.URLError(socket.gaierror()),
        urllib.error.URLError(OSError(errno.ENETUNREACH, "unreachable")),
        urllib.error.ContentTooShortError("short", ("", Message())),
    ],
    ids=repr,
)
def test_the_networks_own_errors_are_the_network(exc: Exception) -> None:
    assert event_of(exc) is Event.NETWORK


@pytest.mark.parametrize(
    "exc",
    [
        ValueError("429"),
        KeyError("status"),
        RuntimeError("Error code: 429 - rate limit reached"),
        FileNotFoundError(errno.ENOENT, "not there"),
        OSError("something"),
        http.client.InvalidURL(),
        http.client.CannotSendRequest(),
        urllib.error.URLError("unknown url type: nonsense"),
        urllib.error.URLError(FileNotFoundError(errno.ENOENT, "file:///not/there")),
        raised("httpx:UnsupportedProtocol", made("httpx:TransportError")),
        raised("httpx2:LocalProtocolError", made("httpx2:TransportError")),
        raised("aiohttp:InvalidURL", made("aiohttp:ClientError")),
        raised("requests.exceptions:InvalidURL", made("requests.exceptions:RequestException", OSError)),
        raised("requests.exceptions:JSONDecodeError", made("requests.exceptions:RequestException", OSError)),
        raised("urllib3.exceptions:LocationParseError", made("urllib3.exceptions:LocationValueError")),
        raised("botocore.exceptions:NoCredentialsError", made("botocore.exceptions:BotoCoreError")),
        raised("openai:LengthFinishReasonError", made("openai:OpenAIError")),
        raised("openai:APIError", request=None, body=None, message="rate limit reached"),
        raised("redis.exceptions:ConnectionError"),
        KeyboardInterrupt(),
        SystemExit(1),
        asyncio.CancelledError(),
    ],
    ids=lambda exc: f"{type(exc).__module__}.{type(exc).__name__}-{exc}",
)
def test_what_is_not_about_a_call_is_no_signal(exc: BaseException) -> None:
    assert event_of(exc) is None


# -- an answer -----------------------------------------------------------------------------------------------------


WORDS = {"code": "insufficient_quota", "message": f"you, {SECRET}, have no money"}
BODY = {"error": WORDS}
RETRY = {"Retry-After": "7"}
GENAI = made("google.genai.errors:ClientError", made("google.genai.errors:APIError"))
MISTRAL = made("mistralai.client.errors.sdkerror:SDKError", made("mistralai.client.errors.mistralerror:MistralError"))
AIOHTTP = made("aiohttp.client_exceptions:ClientResponseError", made("aiohttp.client_exceptions:ClientError"))
CLIENT_ERROR = made("botocore.exceptions:ClientError")


def with_facts(cls: Any, **facts: Any) -> Any:
    exc = cls()
    exc.__dict__.update(facts)
    return exc


def boto(code: str, status: int = 429, operation: str = "Converse", **about: Any) -> Any:
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": RETRY, "RetryAttempts": 0, **about}
    facts = {"Error": {"Code": code, "Message": SECRET}, "ResponseMetadata": metadata}
    return with_facts(CLIENT_ERROR, response=facts, operation_name=operation)


@pytest.mark.parametrize(
    ("exc", "provider"),
    [
        (raised("openai:RateLimitError", OPENAI_STATUS, response=response(), body=WORDS), "openai"),
        (raised("openai:RateLimitError", OPENAI_STATUS, status_code=429, body=WORDS, headers=RETRY), "openai"),
        (raised("anthropic:APIStatusError", made("anthropic:APIError"), response=response(), body=BODY), "anthropic"),
        (raised("groq:RateLimitError", made("groq:APIError"), response=response(), body=BODY), "groq"),
        (with_facts(GENAI, code=429, status="X", details=BODY, response=response()), "gemini"),
        (with_facts(GENAI, code=429, status="X", details=BODY, response=None), "gemini"),
        (
            with_facts(MISTRAL, status_code=429, headers=RETRY, body='{"error": {"code": "insufficient_quota"}}'),
            "mistral",
        ),
        (with_facts(MISTRAL, raw_response=response(), body='{"error": {"code": "insufficient_quota"}}'), "mistral"),
        (raised("httpx:HTTPStatusError", response=response(_content=b"{")), "default"),
        (raised("requests.exceptions:HTTPError", OSError, response=response(_content=b"{")), "default"),
        (with_facts(AIOHTTP, status=429, headers=RETRY, message="Too Many Requests"), "default"),
        (boto("ThrottlingException"), "bedrock"),
        (
            raised(
                "google.api_core.exceptions:TooManyRequests",
                made("google.api_core.exceptions:GoogleAPICallError"),
                code=429,
                message="slower",
            ),
            "default",
        ),
        (urllib.error.HTTPError("https://example.org", 429, "no", Message(), None), "default"),
    ],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}" if isinstance(value, Exception) else value,
)
def test_an_answer_is_found_where_each_client_keeps_it(exc: Exception, provider: str) -> None:
    signal = signal_from(exc)

    has_body = hasattr(exc, "details") or hasattr(exc, "body")
    assert signal.event is (Event.MONEY_GONE if has_body else Event.LIMITED)
    assert (signal.status, signal.provider) == (429, provider)
    assert SECRET not in repr(signal)


def test_the_delay_is_read_from_the_headers_of_the_response() -> None:
    assert signal_from(OPENAI_429).delay == 7.0
    assert signal_from(with_facts(AIOHTTP, status=429, headers=RETRY)).delay == 7.0
    assert signal_from(boto("ThrottlingException")).delay == 7.0


def test_an_error_in_a_stream_has_a_body_but_no_status() -> None:
    limited = raised("openai:APIError", body={"code": "rate_limit_exceeded", "message": "slower"}, request=None)
    overloaded = raised(
        "anthropic:APIStatusError",
        made("anthropic:APIError"),
        response=response(200, headers={}),
        body={"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    )

    assert event_of(limited) is Event.LIMITED
    assert event_of(overloaded) is Event.BUSY


@pytest.mark.parametrize(
    ("code", "event"),
    [
        ("throttlingException", Event.LIMITED),
        ("modelStreamErrorException", Event.BUSY),
        ("internalServerException", Event.BUSY),
        ("validationException", Event.CALLER),
    ],
)
def test_an_error_in_a_stream_of_bedrock_is_not_a_400(code: str, event: Event) -> None:
    exc = boto(code, status=400, operation="ConverseStream")
    streamed = raised("botocore.exceptions:EventStreamError", CLIENT_ERROR, **exc.__dict__)

    assert event_of(streamed) is event


def test_an_answer_that_is_not_http_is_not_a_400() -> None:
    exc = with_facts(AIOHTTP, status=400, headers=None, message="bad status line")
    exc.__cause__ = raised("aiohttp.http_exceptions:BadStatusLine", made("aiohttp.http_exceptions:HttpProcessingError"))

    assert event_of(exc) is Event.NETWORK


@pytest.mark.parametrize(
    ("said", "event"),
    [
        ("too many 429 error responses", Event.LIMITED),
        ("too many 503 error responses", Event.BUSY),
        ("too many redirects", None),
    ],
)
def test_urllib3_tells_the_last_status_in_words(said: str, event: Event | None) -> None:
    ended = raised("urllib3.exceptions:MaxRetryError", reason=made("urllib3.exceptions:ResponseError")(said))
    by_requests = made("requests.exceptions:RetryError", OSError)(ended)

    assert event_of(ended) is event
    assert event_of(by_requests) is event


def test_an_exception_about_an_answer_in_which_nothing_is_wrong_is_no_signal() -> None:
    assert (
        event_of(raised("openai:APIResponseValidationError", made("openai:APIError"), response=response(200))) is None
    )
    assert event_of(with_facts(AIOHTTP, status=200, headers={}, message="unexpected mimetype")) is None


def test_litellm_tells_by_its_own_fields() -> None:
    """Its responses are made up, and so are their addresses."""
    exc = raised(
        "litellm.exceptions:RateLimitError",
        OPENAI_STATUS,
        response=response(headers={}, url="https://api.openai.com/v1"),
        litellm_response_headers=RETRY,
        llm_provider="vertex_ai",
        model="a-model",
        num_retries=2,
        message="litellm.RateLimitError: slower",
    )

    signal = signal_from(exc)

    assert (signal.event, signal.delay, signal.provider) == (Event.LIMITED, 7.0, "gemini")
    assert (signal.model, signal.retried) == ("a-model", 2)


# -- somebody's own exceptions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "facts",
    [
        {"status": 401},
        {"code": 429},
        {"status_code": 429},
        {"status_code": 429, "headers": RETRY, "body": BODY},
        {"response": "429"},
        {"response": SimpleNamespace(status_code=429)},
        {"response": SimpleNamespace(status_code="429", headers={})},
        {"response": SimpleNamespace(status_code=True, headers={})},
        {"response": SimpleNamespace(status_code=1008, headers={})},
        {"response": {"ResponseMetadata": {"HTTPStatusCode": 429}}},
    ],
    ids=repr,
)
def test_a_number_alone_is_not_an_http_status(facts: dict[str, Any]) -> None:
    assert event_of(raised("somebody.else:MyError", **facts)) is None


@pytest.mark.parametrize("name", ["status_code", "status"])
def test_any_exception_with_a_response_is_a_clients(name: str) -> None:
    answer = SimpleNamespace(headers=RETRY, **{name: 429})

    signal = signal_from(raised("some.unheard_of.client:Oops", response=answer))

    assert (signal.event, signal.delay) == (Event.LIMITED, 7.0)


def test_what_aws_says_of_a_bucket_is_not_said_of_a_model() -> None:
    of_a_model = boto("AccessDeniedException", 403, HTTPHeaders={})
    of_a_bucket = boto("AccessDeniedException", 403, "GetObject", HTTPHeaders={})

    assert (signal_from(of_a_model).provider, signal_from(of_a_model).event) == ("bedrock", Event.NOT_ENTITLED)
    assert (signal_from(of_a_bucket).provider, signal_from(of_a_bucket).event) == ("default", Event.CALLER)


@pytest.mark.parametrize(
    "exc", [RateLimited(20), Transient("flaky"), NoCredentialAvailable(waited=1.0)], ids=lambda exc: type(exc).__name__
)
def test_the_runs_own_vocabulary_is_left_to_the_run(exc: Exception) -> None:
    """NoCredentialAvailable is a TimeoutError too, and none of the network."""
    assert event_of(exc) is None
    exc.__cause__ = OPENAI_429
    assert event_of(exc) is None
    assert event_of(chain(RuntimeError(), exc)) is None


# -- exceptions around exceptions ----------------------------------------------------------------------------------


def chain(*excs: BaseException) -> BaseException:
    """The first, raised from the second, and so on."""
    for outer, inner in pairwise(excs):
        outer.__cause__ = inner
    return excs[0]


def test_an_exception_raised_from_a_clients_counts_as_that_one() -> None:
    assert event_of(chain(RuntimeError("call failed"), OPENAI_429)) is Event.LIMITED


def test_the_outer_signal_counts_before_the_inner_one() -> None:
    dead = raised("openai:AuthenticationError", OPENAI_STATUS, response=response(401))

    assert event_of(chain(dead, ConnectionError())) is Event.KEY_DEAD


def test_a_bug_in_an_except_clause_is_not_a_rate_limit() -> None:
    bug = KeyError("typo")
    bug.__context__ = OPENAI_429

    assert event_of(bug) is None


def test_a_cause_that_was_cut_off_is_not_looked_at() -> None:
    def fail() -> None:
        try:
            raise OPENAI_429
        except Exception:
            raise ValueError("my own") from None

    with pytest.raises(ValueError, match="my own") as caught:
        fail()

    assert caught.value.__context__ is OPENAI_429
    assert event_of(caught.value) is None


@pytest.mark.parametrize(("between", "event"), [(4, Event.NETWORK), (5, None)])
def test_causes_are_looked_at_five_deep(between: int, event: Event | None) -> None:
    outer = chain(RuntimeError(), *(RuntimeError() for _ in range(between)), ConnectionError())

    assert event_of(outer) is event


def test_causes_in_a_circle_end() -> None:
    first, second = RuntimeError(), RuntimeError()
    first.__cause__, second.__cause__ = second, first

    assert event_of(first) is None


def test_of_a_group_the_gravest_signal_counts() -> None:
    dead = raised("openai:AuthenticationError", OPENAI_STATUS, response=response(401))
    group = ExceptionGroup("all", [ValueError(), ConnectionError(), ExceptionGroup("some", [OPENAI_429, dead])])

    assert event_of(group) is Event.KEY_DEAD
    assert event_of(chain(RuntimeError(), group)) is Event.KEY_DEAD
    assert event_of(ExceptionGroup("none", [ValueError(), KeyError()])) is None


def test_of_equally_grave_signals_the_first_counts() -> None:
    later = raised("openai:RateLimitError", OPENAI_STATUS, response=response(headers={"Retry-After": "99"}))

    assert signal_from(ExceptionGroup("both", [OPENAI_429, later])).delay == 7.0


def test_the_signals_in_a_group_outlive_a_cancellation_beside_them() -> None:
    assert event_of(BaseExceptionGroup("both", [asyncio.CancelledError(), OPENAI_429])) is Event.LIMITED


def test_a_group_of_very_many_is_looked_at_in_part() -> None:
    looked_at = 0

    class Counted(Exception):
        @property
        def response(self) -> None:
            nonlocal looked_at
            looked_at += 1

    groups = [ExceptionGroup("some", [Counted() for _ in range(50)]) for _ in range(50)]

    assert event_of(ExceptionGroup("all", groups)) is None
    assert looked_at <= 64


# -- agentos' own errors, on their way through a client ------------------------------------------------------------


OURS = NoUsableCredential(reason="all are dead")


def no_answer(name: str = "anthropic:APIConnectionError") -> Any:
    return raised(name, made(name.replace("Timeout", "Connection")))


@pytest.mark.parametrize(
    "own",
    [NoCredentialAvailable(waited=1.0), OURS, LeaseLost(name="a", token=1, detail="it expired"), Transient()],
    ids=lambda own: type(own).__name__,
)
@pytest.mark.parametrize(
    "wrapper",
    [
        no_answer(),
        no_answer("anthropic:APITimeoutError"),
        no_answer("openai:APIConnectionError"),
        no_answer("httpx2:TransportError"),
        no_answer("urllib3.exceptions:MaxRetryError"),
        ConnectionError(),
        TimeoutError(),
    ],
    ids=lambda wrapper: f"{type(wrapper).__module__}.{type(wrapper).__name__}",
)
def test_an_error_of_ours_that_a_client_calls_a_connection_error_is_none_of_the_network(
    wrapper: Exception, own: AgentOSError
) -> None:
    assert event_of(chain(wrapper, own)) is None
    assert find_own_error(wrapper) is own


def test_an_error_of_ours_is_found_below_what_others_raised_from_it() -> None:
    outer = chain(RuntimeError("my own"), no_answer(), ValueError("a hook"), OURS)

    assert event_of(outer) is None
    assert find_own_error(outer) is OURS


def test_one_wrapper_around_another_makes_no_network_error_of_an_error_of_ours() -> None:
    outer = chain(no_answer("openai:APIConnectionError"), no_answer(), OURS)

    assert event_of(outer) is None
    assert find_own_error(outer) is OURS


def test_an_error_of_ours_is_the_error_itself_whatever_it_was_raised_from() -> None:
    own = Transient()

    assert find_own_error(chain(own, OURS)) is own


@pytest.mark.parametrize(("between", "found", "event"), [(4, OURS, None), (5, None, Event.NETWORK)])
def test_an_error_of_ours_is_looked_for_five_deep(
    between: int, found: AgentOSError | None, event: Event | None
) -> None:
    outer = chain(no_answer(), *(RuntimeError() for _ in range(between)), OURS)

    assert find_own_error(outer) is found
    assert event_of(outer) is event


def test_an_error_of_ours_that_was_only_being_handled_just_then_decides_nothing() -> None:
    error = no_answer()
    error.__context__ = OURS

    assert event_of(error) is Event.NETWORK
    assert find_own_error(error) is None


def test_a_connection_error_that_is_one_stays_one() -> None:
    error = chain(no_answer(), no_answer("httpx2:TransportError"), ConnectionRefusedError())

    assert event_of(error) is Event.NETWORK
    assert find_own_error(error) is None


def test_an_answer_counts_before_an_error_of_ours_below_it() -> None:
    limited = chain(raised("openai:RateLimitError", OPENAI_STATUS, response=response()), OURS)

    assert event_of(limited) is Event.LIMITED
    assert find_own_error(limited) is None
    assert find_own_error(chain(RuntimeError(), limited)) is None


def test_an_error_of_ours_is_found_in_a_group() -> None:
    group = BaseExceptionGroup("some", [ValueError(), chain(no_answer(), OURS)])

    assert event_of(group) is None
    assert find_own_error(group) is OURS
    assert find_own_error(chain(RuntimeError(), group)) is OURS


def test_a_signal_in_a_group_counts_before_an_error_of_ours_beside_it() -> None:
    group = ExceptionGroup("both", [OURS, OPENAI_429])

    assert event_of(group) is Event.LIMITED
    assert find_own_error(group) is None


def test_a_cancellation_has_nothing_of_ours_below_it() -> None:
    assert find_own_error(chain(asyncio.CancelledError(), OURS)) is None


def test_an_exception_whose_cause_cannot_be_read_is_not_ours() -> None:
    assert find_own_error(made("somebody.else:MyError", **broken("__cause__"))()) is None


# -- how often the client asked by itself --------------------------------------------------------------------------


def request(retries: str) -> SimpleNamespace:
    return SimpleNamespace(url="https://example.org/v1", headers={"x-stainless-retry-count": retries})


@pytest.mark.parametrize(
    ("exc", "retried"),
    [
        (raised("openai:APIError", response=response(), request=request("2")), 2),
        (raised("openai:APIError", response=response(request=request("2"))), 2),
        (raised("anthropic:APIConnectionError", request=request("1")), 1),
        (raised("openai:APIConnectionError", request=request("many")), 0),
        (raised("openai:APIConnectionError", request=request("9" * 50)), 0),
        (boto("ThrottlingException", RetryAttempts=4, MaxAttemptsReached=True), 4),
        (boto("ThrottlingException", RetryAttempts="junk"), 0),
    ],
)
def test_the_clients_own_retries_are_counted(exc: Exception, retried: int) -> None:
    assert signal_from(exc).retried == retried


def test_urllib3s_redirects_are_not_retries() -> None:
    again, moved = SimpleNamespace(redirect_location=None), SimpleNamespace(redirect_location="/there")
    raw = SimpleNamespace(retries=SimpleNamespace(history=(again, moved, again)))

    assert signal_from(raised("requests.exceptions:HTTPError", OSError, response=response(raw=raw))).retried == 2


def test_tenacity_tells_its_attempts() -> None:
    outer = raised("tenacity:RetryError", last_attempt=SimpleNamespace(attempt_number=4))

    assert signal_from(chain(outer, OPENAI_429)).retried == 3
    somebodys = raised("somebody.else:RetryError", last_attempt=SimpleNamespace(attempt_number=4))
    assert signal_from(chain(somebodys, OPENAI_429)).retried == 0


# -- which provider ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("https://api.groq.com/openai/v1/chat/completions", "groq"),
        ("https://api.openai.com/v1", "openai"),
        ("http://gateway.example/v1", "openai"),
        ("not an address", "openai"),
        ("http://[", "openai"),
    ],
)
def test_the_address_decides_before_the_clients_name(url: str, provider: str) -> None:
    answered = raised("openai:APIError", response=response(url=url))
    unanswered = raised("openai:APIConnectionError", request=SimpleNamespace(url=url))

    assert signal_from(answered).provider == provider
    assert signal_from(unanswered).provider == provider


@pytest.mark.parametrize(
    ("exc", "provider"),
    [
        (
            raised(
                "botocore.exceptions:EndpointConnectionError",
                made("botocore.exceptions:ConnectionError"),
                kwargs={"endpoint_url": "https://bedrock-runtime.us-east-1.amazonaws.com/model"},
            ),
            "bedrock",
        ),
        (
            raised("aiohttp:ClientConnectorError", made("aiohttp:ClientConnectionError"), host="api.mistral.ai"),
            "mistral",
        ),
        (
            with_facts(
                AIOHTTP, status=429, headers={}, request_info=SimpleNamespace(real_url="https://api.anthropic.com/v1")
            ),
            "anthropic",
        ),
        (
            raised(
                "urllib3.exceptions:MaxRetryError",
                reason=None,
                pool=SimpleNamespace(scheme="https", host="api.openai.com"),
            ),
            "openai",
        ),
        (urllib.error.HTTPError("https://api.groq.com/v1", 429, "no", Message(), None), "groq"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_the_address_is_found_where_each_client_keeps_it(exc: Exception, provider: str) -> None:
    assert signal_from(exc).provider == provider


def test_the_callers_model_is_the_one_it_is_about() -> None:
    signal = from_exception(OPENAI_429, now=NOW, model="a-model")

    assert signal is not None
    assert signal.model == "a-model"


# -- hostile things ------------------------------------------------------------------------------------------------


class Broken:
    """Nothing of it can be read."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(SECRET)

    def __str__(self) -> str:
        raise RuntimeError(SECRET)

    __repr__ = __str__

    def __bool__(self) -> bool:
        raise RuntimeError(SECRET)


def broken(*names: str) -> dict[str, Any]:
    def fail(self: object) -> Any:
        raise RuntimeError(SECRET)

    return {name: property(fail) for name in names}


EVERY = ("response", "raw_response", "request", "request_info", "body", "details", "message", "headers", "model", "url")


def test_an_attribute_that_raises_is_not_there() -> None:
    exc = made("openai:RateLimitError", OPENAI_STATUS, status_code=429, **broken(*EVERY, "__str__", "__repr__"))()

    assert (signal_from(exc).event, signal_from(exc).provider) == (Event.LIMITED, "openai")


def test_a_response_of_which_only_the_status_and_headers_can_be_read_is_enough() -> None:
    attributes = {"status_code": 429, "headers": RETRY, **broken("url", "request", "content", "_content", "raw")}
    answer = made("httpx:Response", object, **attributes)()

    signal = signal_from(raised("httpx:HTTPStatusError", response=answer))

    assert (signal.event, signal.delay) == (Event.LIMITED, 7.0)


@pytest.mark.parametrize("name", [*EVERY, "kwargs", "host", "reason", "pool", "operation_name", "code", "status"])
@pytest.mark.parametrize(
    "client",
    [
        "openai:APIError",
        "openai:APIConnectionError",
        "google.genai.errors:APIError",
        "aiohttp:ClientResponseError",
        "aiohttp:ClientConnectionError",
        "botocore.exceptions:ClientError",
        "botocore.exceptions:ConnectionError",
        "requests.exceptions:RetryError",
        "urllib3.exceptions:MaxRetryError",
        "somebody.else:MyError",
    ],
)
def test_a_value_of_which_nothing_can_be_read_never_raises(client: str, name: str) -> None:
    exc = raised(client, **{"status_code": 429, "response": response(), name: Broken()})

    assert SECRET not in repr(from_exception(exc, now=NOW))


def test_a_thing_of_which_nothing_can_be_read_says_nothing() -> None:
    assert read_signal(Broken(), now=NOW) is None
    assert read_signal({"status": 200, "headers": Broken()}, now=NOW) is None
    assert read_signal({"ResponseMetadata": Broken()}, now=NOW) is None


def test_a_class_without_a_proper_module_is_nobodys() -> None:
    assert event_of(type("Odd", (Exception,), {"__module__": 5})()) is None


@pytest.mark.parametrize(
    "exc",
    [
        raised("openai:APIError", message=SECRET, body={"message": SECRET, "code": SECRET}, response=response(401)),
        raised("httpx:HTTPStatusError", response=response(url=f"https://user:{SECRET}@example.org/?key={SECRET}")),
        raised("httpx:TransportError", request=SimpleNamespace(url=f"https://example.org/?key={SECRET}")),
        raised("openai:APIConnectionError", message=SECRET),
        boto(SECRET),
        made("openai:RateLimitError", OPENAI_STATUS)(SECRET, SECRET),
        chain(RuntimeError(SECRET), raised(f"{SECRET}:{SECRET}", response=response())),
        raised(f"somebody:{SECRET}", OPENAI_STATUS, response=response()),
        ConnectionError(SECRET),
    ],
)
def test_a_secret_in_an_exception_is_not_in_the_signal(exc: Exception) -> None:
    assert SECRET not in repr(from_exception(exc, now=NOW))


def test_a_secret_in_an_address_goes_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def listen(*args: Any, **options: Any) -> Signal:
        seen.append(options["url"])
        return Signal(Event.LIMITED)

    monkeypatch.setattr("agentos.providers.clients.exceptions.classify", listen)
    url = f"https://user:{SECRET}@example.org:443/v1/models?key={SECRET}#{SECRET}"

    assert event_of(raised("httpx:HTTPStatusError", response=response(url=url))) is Event.LIMITED
    assert seen == ["https://example.org/v1/models"]


at_any_pace = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is not a fault
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=8) | st.sampled_from(["error", "Error", "status", "headers"]), inner, max_size=3
        )
        | st.builds(lambda status, headers: SimpleNamespace(status_code=status, headers=headers), inner, inner)
    ),
    max_leaves=8,
)


@at_any_pace
@given(
    st.sampled_from(["openai:APIError", "google.genai.errors:APIError", "botocore.exceptions:ClientError", "a.b:C"]),
    st.dictionaries(st.sampled_from([*EVERY, "code", "status", "status_code", "kwargs", "host"]), ANYTHING, max_size=5),
)
def test_junk_never_raises(client: str, facts: dict[str, Any]) -> None:
    signal = from_exception(raised(client, **facts), now=NOW)

    assert signal is None or signal.event is not Event.OK


@at_any_pace
@given(ANYTHING)
def test_junk_at_hand_never_raises(thing: object) -> None:
    read_signal(thing, now=NOW)


# -- whatever a worker has in hand ---------------------------------------------------------------------------------


CHAT = {"usage": {"prompt_tokens": 11, "completion_tokens": 7}, "model": "a-model"}
USED = {"input_tokens": 11.0, "output_tokens": 7.0}


def at_hand(thing: object) -> Signal:
    signal = read_signal(thing, now=NOW)
    assert signal is not None
    return signal


def test_a_signal_is_taken_as_it_is() -> None:
    signal = Signal(Event.BUSY)

    assert read_signal(signal, now=NOW) is signal


def test_an_exception_is_looked_into() -> None:
    assert at_hand(OPENAI_429).event is Event.LIMITED
    assert read_signal(ValueError(), now=NOW) is None


@pytest.mark.parametrize("name", ["status", "status_code"])
@pytest.mark.parametrize("headers", [RETRY, [("Retry-After", "7")]], ids=["mapping", "pairs"])
def test_a_dict_with_a_status_and_headers_is_an_answer(name: str, headers: object) -> None:
    signal = at_hand({name: 429, "headers": headers, "url": "https://api.groq.com/v1"})

    assert (signal.event, signal.delay, signal.provider) == (Event.LIMITED, 7.0, "groq")
    assert at_hand({name: 200, "headers": headers, "body": CHAT}).usage == USED


def test_a_dict_of_boto_is_an_answer() -> None:
    about = {"HTTPStatusCode": 200, "HTTPHeaders": {"x-amzn-requestid": "1"}, "RetryAttempts": 1}

    signal = at_hand({"ResponseMetadata": about, "usage": {"inputTokens": 11, "outputTokens": 7}})

    assert (signal.event, signal.provider, signal.retried, signal.usage) == (Event.OK, "bedrock", 1, USED)


def test_a_body_that_was_not_read_is_not_asked_for() -> None:
    def fetch(self: object) -> bytes:
        raise AssertionError("the network was asked")

    of_requests = made("requests.models:Response", object, content=property(fetch), text=property(fetch))()
    of_requests.__dict__.update(status_code=200, headers={}, url=None, _content=False)
    of_aiohttp = made("aiohttp.client_reqrep:ClientResponse", object, read=fetch, text=fetch)()
    of_aiohttp.__dict__.update(status=200, headers={}, _body=None)

    assert at_hand(of_requests).usage == {}
    assert at_hand(of_aiohttp).usage == {}
    of_requests._content = of_aiohttp._body = b'{"usage": {"input_tokens": 11, "output_tokens": 7}}'
    assert at_hand(of_requests).usage == at_hand(of_aiohttp).usage == USED


def test_the_body_of_httpx_is_read_by_its_public_name() -> None:
    of_httpx = made("httpx:Response", object, content=b'{"usage": {"input_tokens": 11, "output_tokens": 7}}')()
    of_httpx.__dict__.update(status_code=200, headers={})

    assert at_hand(of_httpx).usage == USED


def test_a_raw_response_has_the_clients_under_it() -> None:
    raw = with_facts(
        made("openai._legacy_response:LegacyAPIResponse", object), http_response=response(), retries_taken=1
    )

    signal = at_hand(raw)

    assert (signal.event, signal.provider, signal.retried) == (Event.LIMITED, "openai", 1)


@pytest.mark.parametrize(
    ("name", "facts", "provider"),
    [
        (
            "openai.types.chat:ChatCompletion",
            {"usage": SimpleNamespace(prompt_tokens=11, completion_tokens=7)},
            "openai",
        ),
        ("openai.types.responses:Response", {"usage": SimpleNamespace(input_tokens=11, output_tokens=7)}, "openai"),
        (
            "anthropic.types:Message",
            {"usage": SimpleNamespace(input_tokens=9, cache_creation_input_tokens=2, output_tokens=7)},
            "anthropic",
        ),
        (
            "google.genai.types:GenerateContentResponse",
            {"usage_metadata": SimpleNamespace(prompt_token_count=11, candidates_token_count=7)},
            "gemini",
        ),
    ],
)
def test_a_parsed_answer_tells_its_usage(name: str, facts: dict[str, Any], provider: str) -> None:
    signal = at_hand(with_facts(made(name, object), model="a-model", **facts))

    assert (signal.event, signal.provider, signal.model) == (Event.OK, provider, "a-model")
    assert signal.usage == USED


def test_a_parsed_answer_that_failed_on_its_way_is_not_fine() -> None:
    error = SimpleNamespace(code="rate_limit_exceeded", message="slower")

    assert at_hand(with_facts(made("openai.types.responses:Response", object), error=error)).event is Event.LIMITED


@pytest.mark.parametrize(
    "thing",
    [
        None,
        "429",
        b"429",
        429,
        [429],
        {},
        {"status": 429},
        {"status": "failed", "headers": {}},
        {"status": 429, "headers": None},
        {"usage": {"prompt_tokens": 11}},
        {"ResponseMetadata": {}},
        object(),
        SimpleNamespace(usage=SimpleNamespace(input_tokens=1), model="a-model"),
        SimpleNamespace(status_code=429),
        SimpleNamespace(status_code=429, headers=None),
        with_facts(made("openai.types.chat:ChatCompletionChunk", object), usage=None, model="a-model"),
        Exception,
    ],
    ids=named,
)
def test_anything_else_says_nothing(thing: object) -> None:
    assert read_signal(thing, now=NOW) is None


def test_who_does_not_tell_the_hour_means_this_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)

    assert from_exception(OPENAI_429) == from_exception(OPENAI_429, now=NOW) is not None


def test_a_date_to_wait_for_is_reckoned_from_this_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 784_111_777.0)
    error: Any = type("HTTPStatusError", (Exception,), {"__module__": "httpx"})("429")
    error.response = SimpleNamespace(status_code=429, headers={"retry-after": "Sun, 06 Nov 1994 08:50:00 GMT"})

    signal = from_exception(error)

    assert signal is not None
    assert (signal.event, signal.delay) == (Event.LIMITED, 23.0)
