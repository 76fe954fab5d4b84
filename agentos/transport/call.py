"""One call of a client: lease a key, send, classify the answer, and retry with other keys where that helps.

Nothing here waits or sends. The two transports do that, on a thread or in a task, and ask this class for the next step.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..errors import AgentOSError, ForeignHost, LeaseLost, NeverFits
from ..pool.lease import CURRENT_ATTEMPT, Abandonable
from ..pool.requests import ONE_REQUEST, Grant, LeaseRequest
from ..providers.answers.body_sniffer import BodySniffer
from ..providers.answers.headers import parse_body_type
from ..providers.answers.usage import StatedUsage
from ..providers.classify import classify
from ..providers.clients.exceptions import SENT_TO, from_exception
from ..providers.signal import Event, Signal
from .auth_header import RETRIES, find_special_headers
from .call_options import get_options
from .call_record import CallRecord, Refusal, find_request_id
from .error_body import ErrorBody, redact_response, shorten_timeout
from .estimate import NO_TOKENS
from .event_stream import EventStreamFilter
from .httpx_compat import find_library
from .outgoing import build_outgoing
from .settings import TransportSettings, get_replayable_body

# Refusals that another key, or the same key later, may not repeat. All others are passed to the caller.
_RETRYABLE = frozenset((Event.LIMITED, Event.PARKED, Event.RAMP, Event.KEY_DEAD, Event.MONEY_GONE, Event.NOT_ENTITLED))
# Refusals that end by themselves, so that a call that can only use its item's lease can wait for the end.
_TEMPORARY = frozenset((Event.LIMITED, Event.RAMP))

# A call that the same key rate-limits again pauses before its next attempt, longer each time. After this many refusals
# in all, or from one key that meanwhile served other calls, the last refusal is passed to the caller.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_MOST_REFUSALS, _MOST_BY_ONE_KEY = 20, 6
_FIRST_RETRY = 0.5  # seconds before a call is repeated after a server error; the next pauses double

_RETRY_PRIORITY = 0.5  # goes before all requests of the same priority, and after those of a higher one


class Call:
    """A call in progress. Its lease ends exactly once."""

    __slots__ = (
        "_deadline",
        "_estimate",
        "_events",
        "_grant",
        "_headers",
        "_host",
        "_item_lease",
        "_lease_request",
        "_lost_before",
        "_options",
        "_origin",
        "_outgoing",
        "_pool",
        "_refusals",
        "_repeatable",
        "_request",
        "_requester",
        "_retries",
        "_settings",
        "_size",
        "_sniffer",
        "_special_headers",
        "_status",
        "_successes_before",
        "_usage",
        "_usage_log",
        "_waited",
        "answer",
        "may_be_abandoned",
        "pause",
    )

    def __init__(self, settings: TransportSettings, request: Any) -> None:
        pool = settings.pool
        self._settings = settings
        self._pool = pool
        self._request = request
        self._size, self._origin, labels, self._host = settings.resolve_origin(request.url)
        self._special_headers = find_special_headers(request.headers)
        self._options = options = get_options(request)
        if RETRIES in self._special_headers and options is None:
            settings.retry_warning.check_request(self._special_headers)
        body = get_replayable_body(request)
        self._repeatable = body is not None
        self._estimate = settings.estimator.estimate(body, request.url.raw_path)
        attempt = CURRENT_ATTEMPT.get()
        self._usage_log = None if attempt is None else attempt.usage_log
        self._retries = settings.retries if attempt is None else 0  # left; a run retries its items itself
        self._item_lease = pool.current_item_lease()
        self._grant: Grant | None = None
        self._requester = settings.requester if options is None else options.requester or settings.requester
        if self._item_lease is None:
            self._lease_request = settings.build_request(request, self._estimate, labels, options)
        else:
            self._grant = self._item_lease.grant
            if not labels <= self._grant.key.labels:
                raise ForeignHost(
                    host=str(self._origin),
                    credentials=(self._grant.key.name,),
                    detail="the item that makes this call was started with a credential that may not be sent there",
                )
        self._deadline = settings.clock.now() + settings.find_wait_timeout(request)
        self._lost_before = False
        self._waited = 0.0
        self._refusals: tuple[Refusal, ...] = ()
        self._successes_before: dict[str, int] = {}  # successful calls of a key when it first refused this call
        self._sniffer: BodySniffer | None = None
        self._usage: Mapping[str, float] = {}
        self.answer: Any = None  # the last refusal, returned if no attempt succeeds
        self.pause = 0.0  # seconds to pause before the next attempt
        self._events: EventStreamFilter | None = None  # set if the answer is an event stream
        self.may_be_abandoned = False  # the body is read piece by piece and may be abandoned

    # -- lease ------------------------------------------------------------------------------------------------

    def take_now(self) -> bool:
        """Take a lease if one is free now."""
        while self._grant is None:
            grant = self._pool.take_now(self._lease_request, self._requester)
            if grant is None:
                return False
            self._accept(grant)
        return True

    def _accept(self, grant: Grant) -> bool:
        """Keep *grant* and return True; give it back and return False if it cannot be used.

        It cannot if its credential joined the pool after the request and may not go to this host, or if the lease was
        lost while the process was suspended.
        """
        if not self._lost_before and self._pool.find_loss_reason(grant) is not None:
            self._lost_before = True  # the next lost lease raises LeaseLost
            self._pool.give_back(grant)
            return False
        if self._pool.credential_count() != self._size:
            self._size, _, labels, _ = self._settings.resolve_origin(self._request.url)
            request = self._lease_request
            self._lease_request = LeaseRequest(
                request.cost, request.model, request.affinity, request.priority, request.labels | labels
            )
            if not labels <= grant.key.labels:
                self._pool.give_back(grant)
                return False
        self._grant = grant
        return True

    def wait_terms(self) -> tuple[LeaseRequest, str | None, float | None]:
        """Return the request, the requester and the longest wait in seconds."""
        left = self._deadline - self._settings.clock.now()
        if self._options is not None:
            self._options.lease_request = self._lease_request
        return self._lease_request, self._requester, None if left == math.inf else max(0.0, left)

    def on_granted(self, grant: Grant, began: float) -> bool:
        """Accept a grant that was waited for since *began*; False: it cannot be used, request again."""
        if not self._accept(grant):
            return False
        self._waited += self._settings.clock.now() - began
        return True

    def on_wait_failed(self, error: AgentOSError, began: float) -> bool:
        """Handle a wait since *began* that failed. True: request again with new terms; False: return ``answer``.

        Raises *error* if there is no answer.
        """
        if isinstance(error, NeverFits) and self._lease_request.cost is not ONE_REQUEST:
            # The cost is only an estimate, which must not make a request unservable.
            self._lease_request = _without_tokens(self._lease_request)
            return True
        if self.answer is None:
            raise error
        self.answer.extensions["agentos"].waited = self._waited + self._settings.clock.now() - began
        return False

    def release(self) -> None:
        """Give the lease back, unless it belongs to an item. Idempotent."""
        grant, self._grant = self._grant, None
        self._settings.open.discard(self)
        if grant is not None and self._item_lease is None:
            self._pool.give_back(grant)

    # -- request ----------------------------------------------------------------------------------------------

    def outgoing(self) -> Any:
        """Return a copy of the request with the secret in it, addressed to the base URL of the credential."""
        grant, request = self._grant, self._request
        assert grant is not None  # noqa: S101 - for the type checker: the caller has a lease
        name = grant.key.name
        why = self._pool.find_loss_reason(grant)
        if why is not None:
            raise LeaseLost(name=name, token=grant.token, detail=why)
        credential = self._pool.get_credential(name)
        bases = () if credential.base_url is None else self._pool.find_base_urls(self._origin)
        self._outgoing = sent = build_outgoing(
            credential, name, request, self._special_headers, self._origin, self._host, self._settings.auth, bases
        )
        options = self._options
        if options is not None:
            if options.headers is not None:
                sent.request.headers.update(options.headers(name))
            if options.on_sent is not None:
                options.on_sent(name)
        return sent.request

    # -- response ---------------------------------------------------------------------------------------------

    def on_transport_error(self, error: BaseException) -> bool:
        """Report that the answer is missing or incomplete, and release the lease.

        True: no connection was made, so send again after ``pause``. Otherwise the caller raises *error*.
        """
        grant = self._grant
        if grant is None:
            return False
        try:
            signal = None
            if isinstance(error, Exception):
                signal = from_exception(error, now=self._settings.clock.wall(), model=self._estimate.model)
                self._warn_of_retries()
            if signal is not None:
                self._report(signal, error)
            else:
                self._pool.mark_unknown_outcome(grant)
        finally:
            self.release()
        library = find_library(self._request)
        if isinstance(error, library.TransportError):
            self._request.extensions[SENT_TO] = str(self._outgoing.origin)  # the client puts this request in the error
        return isinstance(error, (library.ConnectError, library.ConnectTimeout)) and self._take_retry(None)

    def _take_retry(self, delay: float | None) -> bool:
        """Use one of the call's retries, and set ``pause``; *delay* is what the provider asks for. False: none left."""
        if not (self._retries and self._repeatable):
            return False
        self._retries -= 1
        usual = _FIRST_RETRY * 2.0 ** (self._settings.retries - self._retries - 1)
        self.pause = min(_LONGEST_PAUSE, max(usual, delay or 0.0))
        return self._settings.clock.now() + self.pause < self._deadline

    def error_body(self, response: Any) -> ErrorBody:
        """Return the buffer for the body of *response*, an error."""
        shorten_timeout(self._outgoing.request, response)
        return ErrorBody(self._pool.clock)

    def on_error_response(self, response: Any, body: ErrorBody) -> Any:
        """Report an error response. Return the response for the caller, or None to retry after ``pause``."""
        grant = self._grant
        assert grant is not None  # noqa: S101 - for the type checker: a request was sent, so there was a lease
        name = grant.key.name
        answer, content = redact_response(find_library(self._request), response, body, self._mask)
        raw = answer.headers.raw
        signal = self._classify(response.status_code, raw, content, url=str(self._outgoing.origin))
        acted = self._report(signal, answer)
        before = sum(refusal.credential == name for refusal in self._refusals)
        again = acted and self._repeatable and signal.event in _RETRYABLE and not self._is_futile(name, before)
        self.pause = self._pause_after(grant, signal, before) if again else 0.0
        again = again or (response.status_code >= 500 and self._take_retry(signal.delay))
        self._record(answer, name, raw)
        self.answer = answer
        if self._item_lease is None:
            self.release()
        if not again or self._settings.clock.now() + self.pause >= self._deadline:
            self._warn_of_retries()
            return answer
        self._refusals += (Refusal(name, response.status_code, signal.event, find_request_id(raw)),)
        self._waited += self.pause
        if self._item_lease is None:
            # This call has already waited, so it goes before later ones and after those of a higher priority. Not if
            # this key rate-limited it before: a call that is limited every time would keep the key closed for all
            # others.
            request = (
                self._pool.with_margin(self._lease_request, 1) if signal.event is Event.LIMITED else self._lease_request
            )
            priority = math.floor(request.priority) + (_RETRY_PRIORITY if not before else 0.0)
            self._lease_request = LeaseRequest(request.cost, request.model, request.affinity, priority, request.labels)
        return None

    def _is_futile(self, name: str, before: int) -> bool:
        """Return whether the call will probably always be refused: too often in all, or by a key that serves others."""
        if not before:
            self._successes_before[name] = self._settings.successes.get(name, 0)
        served_others = self._settings.successes.get(name, 0) > self._successes_before[name]
        return len(self._refusals) >= _MOST_REFUSALS or (before >= _MOST_BY_ONE_KEY and served_others)

    def _pause_after(self, grant: Grant, signal: Signal, before: int) -> float:
        """Return the seconds to pause after this key refused the call *before* times; infinity: do not retry.

        The pause grows whatever delay the provider states. It applies to the call, not to the key, which may serve
        others.
        """
        left = self._deadline - self._settings.clock.now()
        least = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** (before - 1), left / 2) if before else 0.0
        if self._item_lease is None:
            return least if signal.event in _TEMPORARY else 0.0
        return self._plan(grant, least) if signal.event in _TEMPORARY else math.inf

    def plan_first_call(self) -> None:
        """Set ``pause`` for a call with an item's lease, whose cost was not known when the lease began."""
        if self._item_lease is not None and self._grant is not None:
            wait = self._plan(self._grant, 0.0)
            self.pause = wait if self._settings.clock.now() + wait < self._deadline else 0.0

    def _plan(self, grant: Grant, least: float) -> float:
        request = LeaseRequest(self._estimate.cost, self._estimate.model)
        return self._pool.plan_call(grant, request, least, self._deadline - self._settings.clock.now())

    def on_success_response(self, response: Any) -> bool:
        """Prepare to pass on the body of a successful response, and to report it at its end.

        Returns False if the body is already read, as with ``MockTransport``: the call is then finished.
        """
        grant = self._grant
        assert grant is not None  # noqa: S101 - for the type checker
        status, raw = response.status_code, response.headers.raw
        kind, coding = parse_body_type(raw)
        self._status, self._headers = status, raw
        is_json = "json" in kind
        self.may_be_abandoned = not is_json and self._options is None  # a caller with options closes its responses
        if "event-stream" in kind or "eventstream" in kind:  # the spelling of Amazon
            self._events = EventStreamFilter(self._outgoing.secret, coding)
            self._sniffer = BodySniffer()
        elif is_json:
            self._sniffer = BodySniffer(coding)
        name = grant.key.name
        self._record(response, name, raw)
        successes = self._settings.successes
        successes[name] = successes.get(name, 0) + 1
        if status < 300 and (self._item_lease is not None or self._pool.wants_readings(grant)):
            signal = self._classify(status, raw, None)
            if signal.usage:  # from a header; the body is more exact
                self._usage, signal = signal.usage, replace(signal, usage={})
            self._report(signal, response)
        if not response.is_closed:
            if self._events is not None:
                self._events.prepare(response.headers)
            self._settings.open.add(self)
            return True
        if self._sniffer is not None:
            self._sniffer = BodySniffer()
            self._sniffer.feed(response.content)
        self.finish(whole=True)
        return False

    def track_stream(self, stream: Abandonable) -> None:
        """Register *stream*, through which the body is read, with the item's lease: it may be abandoned."""
        if self._item_lease is not None:
            self._item_lease.track_stream(stream)

    def feed(self, piece: bytes) -> bytes:
        """Inspect a piece of the body and return it for the caller, redacted if the body is an event stream."""
        events, sniffer = self._events, self._sniffer
        if events is None:
            if sniffer is not None:
                sniffer.feed(piece)
            return piece
        try:
            piece = events.decompress(piece)
        except zlib.error as error:
            raise find_library(self._request).DecodingError(str(error)) from error
        if sniffer is not None:
            sniffer.feed(piece)
        return events.redact(piece)

    def flush(self) -> bytes:
        """Return the bytes held back for redaction, at the end of the body."""
        return b"" if self._events is None else self._events.flush()

    def finish(self, *, whole: bool) -> None:
        """Report usage to the pool and release the lease; not *whole*: the body was not read to its end."""
        grant = self._grant
        if grant is None:
            return
        try:
            if self._status < 300:
                self._report_body(grant, whole)
        finally:
            self.release()

    def _report_body(self, grant: Grant, whole: bool) -> None:
        stated, sniffer = StatedUsage(self._usage), self._sniffer
        if sniffer is not None:
            # A document fetched with GET may contain errors that are not those of this call.
            error = sniffer.error() if self._events is not None or self._request.method == "POST" else None
            if error is not None:
                signal = self._classify(self._status, self._headers, error)
                if signal.event is not Event.OK:
                    self._report(signal, None, same_call=True)
            stated = sniffer.usage() or stated
            whole = whole or sniffer.is_over()
        if not stated or self._estimate.cost is NO_TOKENS:
            return
        if self._usage_log is not None:
            self._usage_log.add_call(grant.token, grant.key.name, stated.billed)
        usage = stated.counted
        if sniffer is not None and not whole:  # the output tokens produced so far are not known
            usage = {name: used for name, used in usage.items() if name == "input_tokens"}
            if not usage:
                return
        if "output_tokens" in usage:
            self._settings.estimator.record_usage(self._estimate, usage)
        if self._item_lease is not None:
            self._item_lease.add_usage(usage, whole=whole)
        else:
            self._pool.settle_usage(grant, usage, whole=whole)

    # -- helpers ----------------------------------------------------------------------------------------------

    def _classify(self, status: int, headers: object, body: bytes | None, url: str | None = None) -> Signal:
        return classify(
            status,
            headers,
            body,
            now=self._settings.clock.wall(),
            provider=self._outgoing.provider,
            url=url,
            model=self._estimate.model,
        )

    def _report(self, signal: Signal, answer: Any, *, same_call: bool = False) -> bool:
        grant = self._grant
        if grant is None:  # another thread has closed the transport: ignore the outcome
            return False
        if self._item_lease is not None:
            return self._item_lease.record_answer(signal, answer, calls=0 if same_call else 1)
        return self._pool.report_signal(grant, signal)[1]

    def _warn_of_retries(self) -> None:
        if self._options is None:  # else the client is another program, whose retries are its own affair
            self._settings.retry_warning.check_callers()

    def _record(self, response: Any, name: str, raw: Iterable[tuple[bytes, bytes]]) -> None:
        response.extensions["agentos"] = CallRecord(name, self._waited, self._refusals, raw)

    def _mask(self, text: str) -> str:
        grant = self._grant
        assert grant is not None  # noqa: S101 - for the type checker
        return self._pool.masked(text, grant.key.name)


def _without_tokens(request: LeaseRequest) -> LeaseRequest:
    """Return *request* without an estimate of tokens."""
    return LeaseRequest(ONE_REQUEST, request.model, request.affinity, request.priority, request.labels)
