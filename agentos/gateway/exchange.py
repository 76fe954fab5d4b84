"""One request through the gateway: wait for a key, send, pass the answer on, and account for it."""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from ..costs.usage import NO_USAGE
from ..costs.usage_log import UsageLog
from ..errors import NoCredentialAvailable, NoUsableCredential
from ..pool.lease import CURRENT_ATTEMPT
from ..pool.requests import NO_LABELS
from ..providers.wire_verdict import WireVerdict
from ..transport.call_options import EXTENSION, CallOptions
from .error_answers import POLITE_REFUSAL, build_parked_refusal
from .headers import find_key_headers, select_request_headers, select_response_headers
from .records import GatewayRequest
from .refusals import GatewayRefusal, build_stream_error
from .request_facts import RequestFacts, find_response_state
from .routes import Operation, Route, WireForm
from .waiting.hold import PLACE_KEPT, POLITE_DELAY, HoldMethod, HoldPlan, choose_hold, find_final_status

if TYPE_CHECKING:
    from ..util.http_server.request_parser import HttpRequest
    from .client_connection import GatewayConnection
    from .service import GatewayService
    from .tokens import TokenHolder
    from .waiting.timer_wheel import WheelTimer

log = logging.getLogger("agentos")

_OVERLAP: Final = 256  # bytes of a piece that are searched again with the next
_MOST_STATES: Final = 100  # of one answer
_FIRST_PARK_CHECK: Final = 0.1
_PARK_CHECK: Final = 5.0  # seconds between two looks at when a key opens


class ExchangePhase(Enum):
    """How far a request has come."""

    QUEUED = "queued"  # in its lane
    WAITING = "waiting"  # in the pool, for a key
    SENT = "sent"
    ANSWERED = "answered"  # the first byte of the answer is here: nothing is repeated


class Exchange:
    """One request in progress. While it runs it is the current attempt, so that the transport reports usage to it."""

    __slots__ = (
        "_began",
        "_committed",
        "_connection",
        "_facts",
        "_hold",
        "_is_finished",
        "_is_left",
        "_is_moving",
        "_is_told",
        "_key",
        "_lane",
        "_number",
        "_options",
        "_outcome",
        "_phase",
        "_pin",
        "_queued",
        "_refusal",
        "_refusals",
        "_request",
        "_request_id",
        "_route",
        "_service",
        "_status",
        "_task",
        "_timer",
        "_verdict",
        "_waited",
        "holder",
        "usage_log",
    )

    pool = None  # as a current attempt: it has no lease of an item
    ended = False

    def __init__(
        self,
        service: GatewayService,
        connection: GatewayConnection,
        request: HttpRequest,
        holder: TokenHolder,
        route: Route,
        facts: RequestFacts,
    ) -> None:
        self._service = service
        self._connection = connection
        self._request = request
        self._route = route
        self._facts = facts
        self.holder = holder
        self.usage_log = UsageLog()
        self._hold: HoldPlan = choose_hold(route, facts, request.headers)
        self._began = service.clock.now()
        self._number, priority = service.places.enter(facts.digest, self._began)
        self._options = CallOptions(
            affinity=facts.affinity,
            priority=priority,
            requester=holder.item_id or "gateway",
            headers=self._find_key_headers,
            on_sent=self._on_sent,
        )
        self._pin = service.sessions.find_pin(facts)
        self._phase = ExchangePhase.QUEUED
        self._lane = service.lanes.get((route.provider, facts.model, self._pin))
        self._committed = False  # status 200 was sent before the answer
        self._is_finished = False
        self._is_left = False
        self._is_moving = False
        self._is_told = False  # the client has the whole answer
        self._refusal: GatewayRefusal | None = None
        self._verdict: WireVerdict | None = None
        self._key: str | None = None
        self._status = 0
        self._outcome = ""
        self._waited = 0.0
        self._queued = 0.0  # seconds in the lane
        self._refusals = 0
        self._request_id: str | None = None
        self._timer: WheelTimer | None = None
        self._task: asyncio.Task[None] | None = None

    def item_lease(self) -> None:
        """Return None: each request has its own lease."""
        return

    def start(self) -> None:
        """Serve the request in a task."""
        self.holder.held += 1
        self._service.exchanges.add(self)
        first = self._first_tick()
        if first is not None:
            self._timer = self._service.wheel.add(first, self._tick)
        self._lane.enter(self._number, self)

    def begin(self) -> None:
        """Wait in the pool from now on."""
        self._phase = ExchangePhase.WAITING
        max_wait = self._service.settings.max_wait
        if max_wait is not None:
            self._options.max_wait = max(0.0, max_wait - (self._service.clock.now() - self._began))
        self._queued = self._service.clock.now() - self._began
        self._task = self._connection.loop.create_task(self._run())
        self._task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Account for a task that was cancelled before its first step: nothing of it was executed."""
        if not self._is_finished:
            self._on_cancelled()
            self._finish()
        elif not task.cancelled() and task.exception() is not None:
            log.error("[GATEWAY] a request ended with %s", type(task.exception()).__name__)

    @property
    def is_queued(self) -> bool:
        """Return True while the request waits in its lane."""
        return self._phase is ExchangePhase.QUEUED

    @property
    def is_waiting(self) -> bool:
        """Return True while the request waits for a key."""
        return self._phase in (ExchangePhase.QUEUED, ExchangePhase.WAITING) and self._refusal is None

    @property
    def is_held(self) -> bool:
        """Return True while the request waits for its first key, or for another after one was refused."""
        return self.is_waiting or self._options.lease_request is not None

    @property
    def elapsed(self) -> float:
        """Return the seconds since the request arrived."""
        return self._service.clock.now() - self._began

    def on_client_left(self) -> None:
        """End the upstream call and give the lease back: nobody waits for the answer."""
        if self._is_told:
            return  # it has its answer, and only the accounts are left to be done
        self._is_left = True
        if self.is_waiting:
            self._service.places.keep(self._facts.digest, self._number, self._service.clock.now() + PLACE_KEPT)
        self._cancel()

    @property
    def told_task(self) -> asyncio.Task[None] | None:
        """Return the task of a request whose client has the whole answer, and which is not yet recorded."""
        return self._task if self._is_told else None

    def end(self) -> asyncio.Task[None] | None:
        """End the request, unless its client has the whole answer; return its task, if it has one."""
        if not self._is_told:
            self._cancel()
        return self._task

    def _cancel(self) -> None:
        if self._phase is ExchangePhase.QUEUED:
            self._phase = ExchangePhase.ANSWERED
            self._lane.note_gone()
            self._on_cancelled()
            self._finish()
        elif self._task is not None:
            self._task.cancel()

    def _on_cancelled(self) -> None:
        if self._refusal is not None and not self._is_left:
            self._refuse(self._refusal)
            return
        self._outcome = "left" if self._is_left else "cut off"
        if not self._is_left:
            self._connection.abort()

    # -- sending ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        CURRENT_ATTEMPT.set(self)
        try:
            while True:
                try:
                    response = await self._send()
                    break
                except asyncio.CancelledError:
                    if not self._is_moving:
                        raise
                    self._is_moving, self._pin = False, None
                    self._task.uncancel()  # type: ignore[union-attr]
                except NoUsableCredential:
                    if self._pin is None:
                        raise
                    self._pin = None  # its quota is dead or spent: the session moves
            try:
                await self._pass_on(response)
            finally:
                await response.aclose()
        except asyncio.CancelledError:
            self._on_cancelled()
        except Exception as error:  # noqa: BLE001 - any error becomes an answer
            self._on_error(error)
        finally:
            self._finish()

    async def _send(self) -> Any:
        service, options = self._service, self._options
        options.labels = NO_LABELS if self._pin is None else service.pool.find_quota_labels(self._pin)
        return await service.send(self._route, self._request, self._build_headers(), {EXTENSION: options})

    def _build_headers(self) -> list[tuple[str, str]]:
        request = self._request
        # Blanks, and a status that was sent before, go with plain bodies only. Those of responses are read for state.
        early = self._facts.stream or self._hold.method is HoldMethod.WHITE_SPACE
        headers = select_request_headers(request.headers, identity=early or self._route.form is WireForm.RESPONSES)
        if request.method != "GET":
            headers.append(("content-length", str(request.body.size)))
        return headers

    def _find_key_headers(self, name: str) -> dict[str, str]:
        return find_key_headers(self._route.provider, self._service.pool.get_credential(name).env)

    def _on_sent(self, name: str) -> None:
        self._key = name
        self._options.lease_request = None  # set again if its key is refused and it waits for another
        if self._phase is ExchangePhase.WAITING:
            self._phase = ExchangePhase.SENT
            self._lane.leave_pool()
        if self._facts.affinity is not None:
            self._service.sessions.note_session(self._facts, self._service.pool.find_quota(name))

    # -- waiting ------------------------------------------------------------------------------------------------

    def _first_tick(self) -> float | None:
        settings, hold = self._service.settings, self._hold
        due = [] if hold.method is HoldMethod.WITHHOLD else [hold.after]
        due += [] if settings.park_after is None else [_FIRST_PARK_CHECK]
        due += [] if settings.max_wait is None else [settings.max_wait]
        return min(due, default=None)

    def _tick(self) -> float | None:
        """Keep the client waiting, or refuse it; return the seconds until the next look."""
        if self._phase is ExchangePhase.ANSWERED or self._refusal is not None or self._is_left:
            return None
        settings, hold = self._service.settings, self._hold
        elapsed = self._service.clock.now() - self._began
        due: list[float] = []
        if settings.park_after is not None:
            if self._check_park(settings.park_after):
                return None
            due.append(_PARK_CHECK)
        if self._phase is ExchangePhase.QUEUED and settings.max_wait is not None:
            if elapsed >= settings.max_wait:
                self._stop(self._service.explain(NoCredentialAvailable(waited=elapsed, next_free_in=None)))
                return None
            due.append(settings.max_wait - elapsed)
        if hold.method is not HoldMethod.WITHHOLD:
            if elapsed < hold.after:
                due.append(hold.after - elapsed)
            elif hold.method is not HoldMethod.REFUSE:
                self._keep_alive()
                due.append(hold.every)
            elif self.is_waiting or self._options.lease_request is not None:
                self._refuse_politely()
                return None
        return min(due, default=None)

    def _check_park(self, park_after: float) -> bool:
        """Refuse the request if its key opens only after the agreed time; return True if it will not wait."""
        request = self._options.lease_request
        if request is None:
            return False
        wait = self._service.pool.seconds_until_open(request)
        if wait <= park_after:
            return False
        if self._pin is not None:
            self._is_moving = True  # to another quota: its own is parked for too long
            self._cancel()
            return False
        resets_at = None if wait == float("inf") else self._service.clock.wall() + wait
        self._stop(build_parked_refusal(wait, resets_at, find_final_status(self._request.headers)))
        return True

    def _refuse_politely(self) -> None:
        """Send the client away for a short time; its place in line is kept."""
        now = self._service.clock.now()
        self._service.places.keep(self._facts.digest, self._number, now + POLITE_DELAY + PLACE_KEPT)
        self._stop(POLITE_REFUSAL)

    def _stop(self, refusal: GatewayRefusal) -> None:
        self._refusal = refusal
        self._cancel()

    def _keep_alive(self) -> None:
        connection = self._connection
        if not self._committed:
            self._committed = True
            self._status = 200
            kind = "text/event-stream; charset=utf-8" if self._facts.stream else "application/json"
            headers = [("content-type", kind), ("cache-control", "no-cache"), ("x-agentos-held", "1")]
            connection.write_head(self._request, 200, headers, length=None)
        if not connection.is_full:
            connection.write_piece(self._request, self._hold.keep_alive)

    # -- the answer ---------------------------------------------------------------------------------------------

    async def _pass_on(self, response: Any) -> None:
        self._phase = ExchangePhase.ANSWERED
        facts = response.extensions["agentos"]
        self._key, self._waited = facts.credential, self._queued + facts.waited
        self._refusals, self._request_id = len(facts.refusals), facts.request_id
        status = response.status_code
        if status >= 400:
            await self._pass_on_error(response, status)
            return
        if 300 <= status < 400:
            self._refuse(
                GatewayRefusal(502, f"agentos: the provider answered with a redirect ({status})", why="network")
            )
            return
        self._status = status
        connection, request = self._connection, self._request
        length = response.headers.get("content-length")
        if not self._committed:
            connection.write_head(request, status, self._answer_headers(response), length=length)
        quota = self._service.pool.find_quota(facts.credential)
        watches = self._route.form is WireForm.RESPONSES
        self._note_turn_state(response, quota)
        seen, tail = 0, b""
        raw = length is not None and not self._committed
        async for piece in response.stream:
            if not piece:
                continue
            if watches and seen < _MOST_STATES:
                for state in find_response_state(tail + piece):
                    seen += 1
                    self._service.sessions.note_state(state, quota)
                tail = piece[-_OVERLAP:]
            if raw:
                connection.write(piece)
            else:
                connection.write_piece(request, piece)
            if connection.is_full:
                await connection.wait_until_drained()
        connection.write_end(request, raw=raw)
        self._is_told, self._outcome = True, "done"

    def _note_turn_state(self, response: Any, quota: str) -> None:
        state = response.headers.get("x-codex-turn-state")
        if state:
            self._service.note_turn_state(state, quota)

    def _answer_headers(self, response: Any) -> list[tuple[str, str]]:
        return [
            *select_response_headers(response.headers.raw),
            ("x-agentos-key", self._key or ""),
            ("x-agentos-waited", f"{self._waited:.3f}"),
        ]

    async def _pass_on_error(self, response: Any, status: int) -> None:
        body = b"".join([piece async for piece in response.stream])
        self._outcome = "refused"
        self._verdict = self._service.judge(status, response.headers.raw, body, self._route.provider, self._facts.model)
        connection, request = self._connection, self._request
        if self._committed:
            self._fail_stream(status, body)
            return
        self._status = status
        headers = self._answer_headers(response)
        connection.write_head(request, status, headers, length=str(len(body)))
        connection.write(body)
        connection.write_end(request, raw=True)
        self._is_told = True

    # -- refusals -----------------------------------------------------------------------------------------------

    def _on_error(self, error: Exception) -> None:
        if self._phase is ExchangePhase.ANSWERED:
            self._outcome = "cut off"  # nothing is repeated after the first byte
            self._verdict = WireVerdict("network", self._status, self._facts.model)
            log.warning("[GATEWAY] an answer broke off: %s", type(error).__name__)
            self._connection.abort()
            return
        self._refuse(self._service.explain(error, self._route.provider))

    def _refuse(self, refusal: GatewayRefusal) -> None:
        """Answer with an error of the gateway."""
        self._outcome = refusal.why
        self._verdict = WireVerdict(refusal.why, refusal.status, self._facts.model, refusal.resets_at)
        self._waited = self._waited or self._service.clock.now() - self._began
        body = refusal.body(self._route.form)
        if self._committed:
            self._fail_stream(refusal.status, body)
            return
        self._status = refusal.status
        headers = [("content-type", "application/json"), *refusal.headers()]
        headers.append(("x-agentos-waited", f"{self._waited:.3f}"))
        self._connection.write_head(self._request, refusal.status, headers, length=str(len(body)))
        self._connection.write(body)
        self._connection.write_end(self._request, raw=True)
        self._is_told = True

    def _fail_stream(self, status: int, body: bytes) -> None:
        """Tell the client of a failure inside the answer that has begun."""
        piece = build_stream_error(self._route.form, status, body) if self._facts.stream else body
        self._status = status
        self._connection.write_piece(self._request, piece)
        self._connection.write_end(self._request, raw=False)
        self._is_told = True

    # -- the end ------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        service, holder = self._service, self.holder
        self._is_finished = True
        if self._phase is ExchangePhase.WAITING:
            self._lane.leave_pool()
        holder.held -= 1
        service.exchanges.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        size = self._request.body.size
        self._request.body.close()
        used = NO_USAGE
        for credential, usage in self.usage_log.take().items():
            used += usage
            if holder.usage_log is not None:
                holder.usage_log.add_call(None, credential, usage)
        holder.wire.waited += self._waited
        is_call = self._route.operation is Operation.GENERATE and self._outcome not in ("left", "")
        if is_call and holder.item_id is not None:
            holder.wire.add_call(self._facts.model, size, self._verdict)
        now = service.clock.now()
        seconds = now - self._began
        service.record(
            GatewayRequest(
                at=service.clock.wall() - seconds,
                item=holder.item_id,
                attempt=holder.attempt,
                key=self._key,
                provider=self._route.provider,
                operation=self._route.operation,
                model=self._facts.model,
                session=self._facts.session,
                agent=self._facts.agent,
                status=self._status if self._outcome != "left" else 0,
                outcome=self._outcome or "cut off",
                waited=self._waited,
                seconds=seconds,
                refusals=self._refusals,
                request_id=self._request_id,
                usage=used,
            )
        )
        self._connection.on_exchange_done(self._request)
