"""Which classes of which client mean what, by their names alone: no client has to be installed."""

from __future__ import annotations

from enum import Enum, auto


class ErrorKind(Enum):
    """What an exception of a client tells of the call, by its class alone."""

    ANSWERED = auto()  # it carries an answer
    UNANSWERED = auto()  # no answer, or not a whole one
    GAVE_UP = auto()  # none in the time that its caller gave it, unless its errno or its cause knows better
    EXHAUSTED = auto()  # urllib3 asked again until it gave up: for an answer, or for none
    PERHAPS = auto()  # only its reason or its errno tells
    OURS = auto()  # the request could not even be sent as it was: nothing of the network


NO_ANSWER = frozenset((ErrorKind.UNANSWERED, ErrorKind.GAVE_UP))

_GENERATED = {  # clients made by one generator, so that they share their classes
    "APIConnectionError": ErrorKind.UNANSWERED,
    "APITimeoutError": ErrorKind.GAVE_UP,
    "APIError": ErrorKind.ANSWERED,
}
# A connection that takes too long is the network's. Once there is one, how long to wait is for the caller to say.
_OUT_OF_PATIENCE = dict.fromkeys(("ReadTimeout", "WriteTimeout", "PoolTimeout"), ErrorKind.GAVE_UP)
_HTTPX = {
    **_OUT_OF_PATIENCE,
    "HTTPStatusError": ErrorKind.ANSWERED,
    "UnsupportedProtocol": ErrorKind.OURS,
    "LocalProtocolError": ErrorKind.OURS,
    "TransportError": ErrorKind.UNANSWERED,
    "DecodingError": ErrorKind.UNANSWERED,
}
_HTTPCORE = {
    **_OUT_OF_PATIENCE,
    **dict.fromkeys(("NetworkError", "TimeoutException", "RemoteProtocolError", "ProxyError"), ErrorKind.UNANSWERED),
}

# Where a class comes from (two words for google), then its name. The first class of the method resolution order that
# is in the table decides, so that an exception to a rule stands beside it under the name of the subclass.
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

# Whose client it is says whom it asks, unless its address says otherwise.
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
    """Whose exception it is, of which kind, and a name of it that is safe to show: the maker's, never a user's."""
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
    """The package *cls* comes from; of google, which shares one name among many, two words."""
    module: object = cls.__module__
    if not isinstance(module, str):
        return ""
    first, _, rest = module.partition(".")
    return f"google.{rest.partition('.')[0]}" if first == "google" else first


def find_maker(cls: type, *packages: str) -> str:
    """The first package of *cls* and its bases that is one of *packages*; empty if none."""
    return next((package for package in map(get_package, cls.__mro__) if package in packages), "")
