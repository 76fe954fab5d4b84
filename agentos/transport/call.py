"""One call of a client's, with as many keys as it takes: what is asked of the pool, sent, told, and handed up.

Nothing here waits or sends. The two transports do, one with a thread and one with a task, and ask here what is next.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..errors import AgentOSError, ForeignHost, LeaseLost, NeverFits
from ..pool.lease import Abandonable
from ..pool.requests import ONE_REQUEST, Grant, LeaseRequest
from ..providers.answers.body_sniffer import BodySniffer
from ..providers.answers.headers import parse_body_type
from ..providers.classify import classify
from ..providers.clients.exceptions import from_exception
from ..providers.signal import Event, Signal
from .auth_header import RETRIES, special_headers
from .call_record import CallRecord, Refusal, find_request_id
from .error_body import ErrorBody, redact_response, shorten_timeout
from .estimate import NO_TOKENS
from .event_stream import EventStreamFilter
from .httpx_compat import find_library
from .outgoing import build_outgoing
from .settings import TransportSettings, get_replayable_body

# What another key, or the same one later, may well answer otherwise. All else is for the caller.
_WORTH_ANOTHER_TRY = frozenset(
    (Event.LIMITED, Event.PARKED, Event.RAMP, Event.KEY_DEAD, Event.MONEY_GONE, Event.NOT_ENTITLED)
)
# What passes by itself, so that the holder of an item's only lease can wait for it.
_PASSES = frozenset((Event.LIMITED, Event.RAMP))

# A call that is limited by the same key again rests so long, and longer each time. After so many refusals in all, or
# of one key that meanwhile served others, the caller has to know.
_FIRST_REST, _LONGEST_REST = 1.0, 60.0
_MOST_REFUSALS, _MOST_OF_ONE = 20, 6

_AHEAD = 0.5  # of all of its own priority, and of none of a higher one


class Call:
    """A call under way. Its lease ends exactly once, whoever ends it."""

    __slots__ = (
        "_estimate",
        "_events",
        "_found",
        "_grant",
        "_headers",
        "_host",
        "_item_lease",
        "_lease_request",
        "_lost_one",
        "_origin",
        "_pool",
        "_refusals",
        "_repeatable",
        "_request",
        "_sent",
        "_settings",
        "_size",
        "_sniffer",
        "_status",
        "_until",
        "_usage",
        "_waited",
        "_well_before",
        "answer",
        "lingers",
        "pause",
    )

    def __init__(self, caller: TransportSettings, request: Any) -> None:
        keeper = caller.pool
        self._settings = caller
        self._pool = keeper
        self._request = request
        self._size, self._origin, labels, self._host = caller.resolve_origin(request.url)
        self._found = special_headers(request.headers)
        if RETRIES in self._found:
            caller.retry_warning.check_request(self._found)
        body = get_replayable_body(request)
        self._repeatable = body is not None
        self._estimate = caller.estimator.estimate(body, request.url.raw_path)
        self._item_lease = keeper.current_item_lease()
        self._grant: Grant | None = None
        if self._item_lease is None:
            self._lease_request = caller.build_request(request, self._estimate, labels)
        else:
            self._grant = self._item_lease.grant
            if not labels <= self._grant.key.labels:
                raise ForeignHost(
                    host=str(self._origin),
                    credentials=(self._grant.key.name,),
                    detail="the item that makes this call was started with a credential that may not go there",
                )
        self._until = caller.clock.now() + caller.find_wait_timeout(request)
        self._lost_one = False
        self._waited = 0.0
        self._refusals: tuple[Refusal, ...] = ()
        self._well_before: dict[str, int] = {}  # how many calls a key had served when it first refused this one
        self._sniffer: BodySniffer | None = None
        self._usage: Mapping[str, float] = {}
        self.answer: Any = None  # the last refusal, to be handed up if there is no better
        self.pause = 0.0  # seconds to rest before the next try
        self._events: EventStreamFilter | None = None  # the answer comes as events
        self.lingers = False  # it is read bit by bit, and may be left before its end

    # -- a lease ----------------------------------------------------------------------------------------------

    def take_now(self) -> bool:
        """Take a lease if one is to be had at once."""
        while self._grant is None:
            grant = self._pool.take_now(self._lease_request, self._settings.requester)
            if grant is None:
                return False
            self._accept(grant)
        return True

    def _accept(self, grant: Grant) -> bool:
        """Keep *grant*, unless it is of a credential that joined the pool after we asked, and belongs elsewhere.

        Nor if it is lost by now, because the process stood still meanwhile.
        """
        if not self._lost_one and self._pool.find_loss_reason(grant) is not None:
            self._lost_one = True  # the next will be sent, or complained of
            self._pool.give_back(grant)
            return False
        if self._pool.credential_count() != self._size:
            self._size, _, labels, _ = self._settings.resolve_origin(self._request.url)
            ask = self._lease_request
            self._lease_request = LeaseRequest(ask.cost, ask.model, ask.affinity, ask.priority, ask.labels | labels)
            if not labels <= grant.key.labels:
                self._pool.give_back(grant)
                return False
        self._grant = grant
        return True

    def wait_terms(self) -> tuple[LeaseRequest, str | None, float | None]:
        """What to wait for: the request, in whose name, and how long at most."""
        left = self._until - self._settings.clock.now()
        return self._lease_request, self._settings.requester, None if left == math.inf else max(0.0, left)

    def on_granted(self, grant: Grant, began: float) -> bool:
        """It came, after a wait since *began*. False: but it was none for us, ask again."""
        if not self._accept(grant):
            return False
        self._waited += self._settings.clock.now() - began
        return True

    def on_wait_failed(self, error: AgentOSError, began: float) -> bool:
        """No lease came, after a wait since *began*. True: ask again, differently; False: hand ``answer`` up.

        Raises *error* if there is no answer.
        """
        if isinstance(error, NeverFits) and self._lease_request.cost is not ONE_REQUEST:
            # The cost is an estimate of ours, and an estimate must not make a request hopeless.
            self._lease_request = _without_tokens(self._lease_request)
            return True
        if self.answer is None:
            raise error
        self.answer.extensions["agentos"].waited = self._waited + self._settings.clock.now() - began
        return False

    def release(self) -> None:
        """Give the lease back, unless it is an item's. Again: changes nothing."""
        grant, self._grant = self._grant, None
        self._settings.open.discard(self)
        if grant is not None and self._item_lease is None:
            self._pool.give_back(grant)

    # -- out --------------------------------------------------------------------------------------------------

    def outgoing(self) -> Any:
        """The request as it is sent: a copy with the secret in its place, to the base URL of the credential."""
        grant, request = self._grant, self._request
        assert grant is not None  # noqa: S101 - for the type checker: it is called with a lease
        name = grant.key.name
        why = self._pool.find_loss_reason(grant)
        if why is not None:
            raise LeaseLost(name=name, token=grant.token, detail=why)
        credential = self._pool.get_credential(name)
        bases = () if credential.base_url is None else self._pool.find_base_urls(self._origin)
        self._sent = sent = build_outgoing(
            credential, name, request, self._found, self._origin, self._host, self._settings.auth, bases
        )
        return sent.request

    # -- back -------------------------------------------------------------------------------------------------

    def on_transport_error(self, error: BaseException) -> None:
        """There was no answer, or not all of one. The caller gets *error* as it is."""
        grant = self._grant
        if grant is None:
            return
        try:
            signal = None
            if isinstance(error, Exception):
                signal = from_exception(error, now=self._settings.clock.wall(), model=self._estimate.model)
                self._settings.retry_warning.check_callers()
            if signal is not None:
                self._report(signal, error)
            else:
                self._pool.mark_unknown_outcome(grant)
        finally:
            self.release()

    def error_body(self, response: Any) -> ErrorBody:
        """What the body of *response*, an error, is to be read into."""
        shorten_timeout(self._sent.request, response)
        return ErrorBody(self._pool.clock)

    def on_error_response(self, response: Any, body: ErrorBody) -> Any:
        """An answer that is an error, and its *body*: what to hand up; None: try again, after ``pause``."""
        grant = self._grant
        assert grant is not None  # noqa: S101 - for the type checker: there was a lease, or nothing was sent
        name = grant.key.name
        answer, content = redact_response(find_library(self._request), response, body, self._mask)
        raw = answer.headers.raw
        signal = self._classified(response.status_code, raw, content, url=str(self._sent.origin))
        acted = self._report(signal, answer)
        before = sum(refusal.credential == name for refusal in self._refusals)
        again = acted and self._repeatable and signal.event in _WORTH_ANOTHER_TRY and not self._never_fits(name, before)
        self.pause = self._pause_after(grant, signal, before) if again else 0.0
        self._record(answer, name, raw)
        self.answer = answer
        if self._item_lease is None:
            self.release()
        if not again or self._settings.clock.now() + self.pause >= self._until:
            self._settings.retry_warning.check_callers()
            return answer
        self._refusals += (Refusal(name, response.status_code, signal.event, find_request_id(raw)),)
        self._waited += self.pause
        if self._item_lease is None:
            # Its turn had come already: it goes before those who came later, and after any of a higher priority. Not if
            # it was limited by this key before: one that is limited every time would close the key for everybody.
            ask = (
                self._pool.with_margin(self._lease_request, 1) if signal.event is Event.LIMITED else self._lease_request
            )
            priority = math.floor(ask.priority) + (_AHEAD if not before else 0.0)
            self._lease_request = LeaseRequest(ask.cost, ask.model, ask.affinity, priority, ask.labels)
        return None

    def _never_fits(self, name: str, before: int) -> bool:
        """Whether this call, most likely, will be refused for ever: so often by all, or by a key that serves others."""
        if not before:
            self._well_before[name] = self._settings.went_well.get(name, 0)
        served_others = self._settings.went_well.get(name, 0) > self._well_before[name]
        return len(self._refusals) >= _MOST_REFUSALS or (before >= _MOST_OF_ONE and served_others)

    def _pause_after(self, grant: Grant, signal: Signal, before: int) -> float:
        """How long to rest, after this key had refused the call *before* so often; infinite: there is no next try.

        Whatever its provider says of waiting, a call does not hammer. It rests, not the key, which may serve others.
        """
        left = self._until - self._settings.clock.now()
        least = min(_LONGEST_REST, _FIRST_REST * 2.0 ** (before - 1), left / 2) if before else 0.0
        if self._item_lease is None:
            return least if signal.event in _PASSES else 0.0
        return (
            max(least, self._pool.cooldown_remaining(grant, self._estimate.model))
            if signal.event in _PASSES
            else math.inf
        )

    def on_success_response(self, response: Any) -> bool:
        """An answer that goes well so far: remember what will be needed when its body has passed.

        False: it had been read before it came here, as what a ``MockTransport`` makes is, and the call is over.
        """
        grant = self._grant
        assert grant is not None  # noqa: S101 - for the type checker
        status, raw = response.status_code, response.headers.raw
        kind, coding = parse_body_type(raw)
        self._status, self._headers = status, raw
        self.lingers = "json" not in kind
        if "event-stream" in kind or "eventstream" in kind:  # as Amazon writes it
            self._events = EventStreamFilter(self._sent.secret, coding)
            self._sniffer = BodySniffer()
        elif not self.lingers:
            self._sniffer = BodySniffer(coding)
        name = grant.key.name
        self._record(response, name, raw)
        well = self._settings.went_well
        well[name] = well.get(name, 0) + 1
        if status < 300 and (self._item_lease is not None or self._pool.wants_readings(grant)):
            signal = self._classified(status, raw, None)
            if signal.usage:  # in a header; the body will tell it better
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
        """The body is read by way of *stream*, which may be left before its end."""
        if self._item_lease is not None:
            self._item_lease.track_stream(stream)

    def feed(self, piece: bytes) -> bytes:
        """A piece of the body passes: as it goes on. An error event of a stream may quote the key, too."""
        events, passing = self._events, self._sniffer
        if events is None:
            if passing is not None:
                passing.feed(piece)
            return piece
        try:
            piece = events.decompress(piece)
        except zlib.error as error:
            raise find_library(self._request).DecodingError(str(error)) from error
        if passing is not None:
            passing.feed(piece)
        return events.redact(piece)

    def flush(self) -> bytes:
        """What is still to be handed on when all of the body has passed."""
        return b"" if self._events is None else self._events.flush()

    def finish(self, *, whole: bool) -> None:
        """The body has passed, or (not *whole*) nobody wants the rest of it: tell the pool, give the lease back."""
        grant = self._grant
        if grant is None:
            return
        try:
            if self._status < 300:
                self._report_body(grant, whole)
        finally:
            self.release()

    def _report_body(self, grant: Grant, whole: bool) -> None:
        usage, passing = self._usage, self._sniffer
        if passing is not None:
            # A document that was fetched, not answered, may tell of anybody's errors.
            error = passing.error() if self._events is not None or self._request.method == "POST" else None
            if error is not None:
                signal = self._classified(self._status, self._headers, error)
                if signal.event is not Event.OK:
                    self._report(signal, None, once_more=True)
            usage = passing.usage() or usage
            whole = whole or passing.is_over()
            if not whole:  # what came out until then is told by nobody
                usage = {name: used for name, used in usage.items() if name == "input_tokens"}
        if not usage or self._estimate.cost is NO_TOKENS:
            return
        if "output_tokens" in usage:
            self._settings.estimator.record_usage(self._estimate, usage)
        if self._item_lease is not None:
            self._item_lease.add_usage(usage, whole=whole)
        else:
            self._pool.settle_usage(grant, usage, whole=whole)

    # -- small parts ------------------------------------------------------------------------------------------

    def _classified(self, status: int, headers: object, body: bytes | None, url: str | None = None) -> Signal:
        return classify(
            status,
            headers,
            body,
            now=self._settings.clock.wall(),
            provider=self._sent.provider,
            url=url,
            model=self._estimate.model,
        )

    def _report(self, signal: Signal, answer: Any, *, once_more: bool = False) -> bool:
        grant = self._grant
        if grant is None:  # another thread has closed the transport meanwhile: what became of the call is no news
            return False
        if self._item_lease is not None:
            return self._item_lease.record_answer(signal, answer, calls=0 if once_more else 1)
        return self._pool.report_signal(grant, signal)[1]

    def _record(self, response: Any, name: str, raw: Iterable[tuple[bytes, bytes]]) -> None:
        response.extensions["agentos"] = CallRecord(name, self._waited, self._refusals, raw)

    def _mask(self, text: str) -> str:
        grant = self._grant
        assert grant is not None  # noqa: S101 - for the type checker
        return self._pool.masked(text, grant.key.name)


def _without_tokens(ask: LeaseRequest) -> LeaseRequest:
    """*ask*, with nothing said of its tokens."""
    return LeaseRequest(ONE_REQUEST, ask.model, ask.affinity, ask.priority, ask.labels)
