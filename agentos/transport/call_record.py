"""Facts about a call for its caller: the key used, the refusals before it, the provider's request id."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..providers.signal import Event

# Headers with the provider's id of a call; the first one present counts.
_REQUEST_IDS = (b"x-request-id", b"request-id", b"apim-request-id", b"x-amzn-requestid", b"mistral-correlation-id")
_LONGEST_ID = 200


@dataclass(frozen=True, slots=True)
class Refusal:
    """An attempt that was refused before the one whose answer the caller gets."""

    credential: str
    status: int
    event: Event
    request_id: str | None = None


class CallRecord:
    """``response.extensions["agentos"]``: the credential's name, seconds waited for keys, refusals before it."""

    __slots__ = ("_headers", "credential", "refusals", "waited")

    def __init__(
        self, credential: str, waited: float, refusals: tuple[Refusal, ...], headers: Iterable[tuple[bytes, bytes]]
    ) -> None:
        self.credential = credential
        self.waited = waited
        self.refusals = refusals
        self._headers = headers

    @property
    def request_id(self) -> str | None:
        """The provider's id of this call, if the answer has one."""
        return find_request_id(self._headers)

    def __repr__(self) -> str:
        return (
            f"CallRecord(credential={self.credential!r}, request_id={self.request_id!r}, waited={self.waited:.3f}, "
            f"refusals={self.refusals!r})"
        )


def find_request_id(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the provider's id of a call from the headers of its answer."""
    named = {name.lower(): value for name, value in headers}
    for name in _REQUEST_IDS:
        value = named.get(name)
        if value:
            return value[:_LONGEST_ID].decode("ascii", "replace")
    return None
