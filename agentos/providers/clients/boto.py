"""Read the dicts of boto: responses of AWS, and errors in its exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .answer import Answer
from .untrusted import parse_count, parse_status

# All of AWS shares one exception class: an error about a bucket or a table is not about a model.
_BEDROCK_OPERATIONS = {
    "ApplyGuardrail",
    "Converse",
    "ConverseStream",
    "CountTokens",
    "InvokeModel",
    "InvokeModelWithBidirectionalStream",
    "InvokeModelWithResponseStream",
    "StartAsyncInvoke",
}


def parse_boto_answer(response: object, operation: object = None, *, streamed: bool = False) -> Answer | None:
    """Parse a dict of boto: ``Error`` has the error, ``ResponseMetadata`` the status and headers."""
    if not isinstance(response, Mapping):
        return None
    metadata = response.get("ResponseMetadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    headers = metadata.get("HTTPHeaders")
    status = parse_status(metadata.get("HTTPStatusCode"))
    error = response.get("Error")
    body: dict[str, Any] = {}
    provider = None
    if isinstance(operation, str):
        provider = "bedrock" if operation in _BEDROCK_OPERATIONS else "default"
    if isinstance(error, Mapping):
        body = {"error": {"Code": error.get("Code"), "Message": error.get("Message")}}
        if streamed and str(error.get("Code")).lower() != "validationexception":
            status = 200  # botocore reports every error in an event stream as 400
    elif usage := _find_usage(response.get("usage"), headers):
        body, provider = {"usage": usage}, "bedrock"  # only Bedrock counts tokens
    if status is None:
        return None
    return Answer(status, headers, body, provider=provider, retried=parse_count(metadata.get("RetryAttempts")))


def _find_usage(usage: object, headers: object) -> Mapping[str, Any]:
    """Return the usage, which Converse states in the answer and InvokeModel in headers."""
    if isinstance(usage, Mapping):
        return usage
    if not isinstance(headers, Mapping):
        return {}
    counts = {name: headers.get(f"x-amzn-bedrock-{name}-token-count") for name in ("input", "output")}
    return {f"{name}_tokens": parse_count(count) for name, count in counts.items() if count is not None}
