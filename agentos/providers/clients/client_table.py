"""Table of the exception classes of clients by name, so that no client has to be installed."""

from __future__ import annotations

from enum import Enum, auto


class ErrorKind(Enum):
    """The kind of an exception, by its class."""

    ANSWERED = auto()  # it carries an answer
    UNANSWERED = auto()  # no answer, or an incomplete one
    GAVE_UP = auto()  # the caller's timeout expired, unless the errno or the cause is more precise
    EXHAUSTED = auto()  # urllib3's retries are used up, with or without an answer
    PERHAPS = auto()  # the reason or the errno decides
    OURS = auto()  # the request could not be sent: not a network error


NO_ANSWER = frozenset((ErrorKind.UNANSWERED, ErrorKind.GAVE_UP))

_GENERATED = {  # clients made by the same generator, with the same classes
    "APIConnectionError": ErrorKind.UNANSWERED,
    "APITimeoutError": ErrorKind.GAVE_UP,
    "APIError": ErrorKind.ANSWERED,
}
# A connection that takes too long is a network error. Once it is open, the caller decides how long to wait.
_TIMEOUTS = dict.fromkeys(("ReadTimeout", "WriteTimeout", "PoolTimeout"), ErrorKind.GAVE_UP)
_HTTPX = {
    **_TIMEOUTS,
    "HTTPStatusError": ErrorKind.ANSWERED,
    "UnsupportedProtocol": ErrorKind.OURS,
    "LocalProtocolError": ErrorKind.OURS,
    "TransportError": ErrorKind.UNANSWERED,
    "DecodingError": ErrorKind.UNANSWERED,
}
_HTTPCORE = {
    **_TIMEOUTS,
    **dict.fromkeys(("NetworkError", "TimeoutException", "RemoteProtocolError", "ProxyError"), ErrorKind.UNANSWERED),
}

# By package (two parts for google), then class name. The first class of the method resolution order in the table
# decides, so an exception to a rule is listed beside it under the name of the subclass.
_CLASSES: dict[str, dict[str, ErrorKind]] = {
    "aiohttp": {
        "ClientResponseError": ErrorKind.ANSWERED,
        "InvalidURL": ErrorKind.OURS,
        "ConnectionTimeoutError": ErrorKind.UNANSWERED,
        "ServerTimeoutError": ErrorKind.GAVE_UP,
        **dict.fromkeys(("ClientConnectionError", "ClientPayloadError", "HttpProcessingError"), ErrorKind.UNANSWERED),
    },
    "anthropic": _GENERATED,
    "botocore": {
        "ClientError": ErrorKind.ANSWERED,
        "ReadTimeoutError": ErrorKind.GAVE_UP,
        **dict.fromkeys(("ConnectionError", "HTTPClientError", "IncompleteReadError"), ErrorKind.UNANSWERED),
    },
    "builtins": {
        "ConnectionError": ErrorKind.UNANSWERED,
        "TimeoutError": ErrorKind.GAVE_UP,
        "OSError": ErrorKind.PERHAPS,
    },
    "cerebras": _GENERATED,
    "google.api_core": {"GoogleAPICallError": ErrorKind.ANSWERED},
    "google.auth": {"TransportError": ErrorKind.UNANSWERED},
    "google.genai": {"APIError": ErrorKind.ANSWERED},
    "groq": _GENERATED,
    "h11": {"RemoteProtocolError": ErrorKind.UNANSWERED},
    "http": dict.fromkeys(("BadStatusLine", "IncompleteRead", "LineTooLong", "UnknownProtocol"), ErrorKind.UNANSWERED),
    "httpcore": _HTTPCORE,
    "httpcore2": _HTTPCORE,
    "httpx": _HTTPX,
    "httpx2": _HTTPX,
    "litellm": {},  # its exceptions are subclasses of openai's
    "mistralai": {
        **dict.fromkeys(("MistralError", "SDKError", "HTTPValidationError"), ErrorKind.ANSWERED),
        "NoResponseError": ErrorKind.UNANSWERED,
    },
    "openai": _GENERATED,
    "requests": {
        "HTTPError": ErrorKind.ANSWERED,
        "RetryError": ErrorKind.EXHAUSTED,
        "ReadTimeout": ErrorKind.GAVE_UP,
        **dict.fromkeys(
            ("ConnectionError", "Timeout", "ChunkedEncodingError", "ContentDecodingError"), ErrorKind.UNANSWERED
        ),
    },
    "socket": dict.fromkeys(("gaierror", "herror"), ErrorKind.UNANSWERED),
    "ssl": {"SSLError": ErrorKind.UNANSWERED},
    "together": _GENERATED,
    "urllib": {
        "HTTPError": ErrorKind.ANSWERED,
        "ContentTooShortError": ErrorKind.UNANSWERED,
        "URLError": ErrorKind.PERHAPS,
    },
    "urllib3": {
        "MaxRetryError": ErrorKind.EXHAUSTED,
        "LocationValueError": ErrorKind.OURS,
        "ReadTimeoutError": ErrorKind.GAVE_UP,
        **dict.fromkeys(
            (
                "DecodeError",
                "IncompleteRead",
                "InvalidChunkLength",
                "NewConnectionError",
                "ProtocolError",
                "ProxyError",
                "SSLError",
                "TimeoutError",
            ),
            ErrorKind.UNANSWERED,
        ),
    },
}

# The provider of a client, unless its URL is that of another.
PROVIDERS = {
    "anthropic": "anthropic",
    "cerebras": "cerebras",
    "google.genai": "gemini",
    "groq": "groq",
    "mistralai": "mistral",
    "openai": "openai",
}
SDKS = {*PROVIDERS, "litellm", "together"}


def find_kind(cls: type) -> tuple[str, ErrorKind | None, str]:
    """Return the package of an exception class, its kind, and a name that is safe to show: never the user's own."""
    maker = shown = ""
    for base in cls.__mro__:
        package = get_package(base)
        names = _CLASSES.get(package)
        if names is None:
            continue
        name = base.__name__
        if not maker:
            maker, shown = package, name if package == "builtins" else f"{package}.{name}"
        kind = names.get(name)
        if kind is not None:
            return maker, kind, shown
    return maker, None, ""


def get_package(cls: type) -> str:
    """Return the package of *cls*; two parts for google, which many packages share."""
    module: object = cls.__module__
    if not isinstance(module, str):
        return ""
    first, _, rest = module.partition(".")
    return f"google.{rest.partition('.')[0]}" if first == "google" else first


def find_maker(cls: type, *packages: str) -> str:
    """Return the first package of *cls* and its bases that is one of *packages*; empty if none."""
    return next((package for package in map(get_package, cls.__mro__) if package in packages), "")
