"""A worker process's connection to the driver: one per process and run, shared by its slots.

The client connects, reconnects and sends heartbeats on a thread of its own. When the driver has not answered for too
long, it ends its attempts before the driver grants their keys to others.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..wire.certificate import build_client_context
from ..wire.framing import FramedConnection
from ..wire.loop_calls import LoopCalls
from ..wire.messages import (
    AttemptStatus,
    Channel,
    Frame,
    FrameKind,
    FrameReader,
    Hello,
    WireError,
    beat_body,
    compute_margin,
    hello_body,
    pack_frame,
    read_assign,
    read_beat_ack,
    read_data_ack,
    read_kill,
    read_welcome,
)
from .assigned_attempt import AssignedAttempt

_BEATS_PER_TTL = 3  # heartbeats per time to live
_CHECKS_PER_TTL = 12  # checks of the connection per time to live
_SILENT = 1 / 3  # fraction of a time to live after which an unanswered connection counts as dead
_CONNECT_TIMEOUT = 1.0  # seconds, at least; a quarter of a time to live, where that is more
_FIRST_PAUSE, _MAX_PAUSE = 0.05, 1.0  # seconds between attempts to connect
_OFFERS = 5  # times to live for which late results are offered to a driver that does not answer
_LEAVE_TIMEOUT = 1.0
_REFUSED = 0.5

Answer = Callable[[AssignedAttempt | None], object]


class Closeable(Protocol):
    """An object that is closed with its client."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closeable)


class DriverUnreachable(ConnectionError):
    """The driver cannot be reached from this worker, or refuses it."""


@dataclass(frozen=True, slots=True, repr=False)
class DriverEndpoint:
    """Address of a run's driver and the credentials to connect to it. Its repr shows none of that."""

    run_id: str
    host: str
    port: int
    certificate: bytes
    password: bytes
    ttl: float

    def __repr__(self) -> str:
        return "agentos seat"


class WorkerClient:
    """Connection of this process to the driver of one run.

    ``welcome`` resolves to the driver's first message, or fails with ``DriverUnreachable`` if there is none within one
    time to live. ``fenced``: the driver has been silent for too long; new slots need another client.
    """

    def __init__(self, endpoint: DriverEndpoint) -> None:
        self.welcome: Future[bytes] = Future()
        self.fenced = False
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.ttl = endpoint.ttl
        self._id = uuid.uuid4().hex
        self._endpoint = endpoint
        self._margin = compute_margin(endpoint.ttl)
        self._loop = asyncio.new_event_loop()
        self._calls = LoopCalls(self._loop)
        self._connection: _DriverConnection | None = None
        self._greeted = False  # on the current connection
        self._numbers = itertools.count(1)
        self._requests: dict[int, Answer] = {}
        self._attempts: dict[int, AssignedAttempt] = {}
        self._reports: dict[int, bytes] = {}  # reports sent and not yet confirmed
        self._beats: dict[int, float] = {}  # send times of unanswered heartbeats
        self._deadline = time.monotonic() + endpoint.ttl
        self._good_until = -math.inf  # end of all leases, as last reported by the driver
        self._last_error = "no answer"  # why there is no connection
        self._refused_since = math.inf
        self._draining = False
        self._closing = False
        self._ended = threading.Event()
        self._sharing = threading.Lock()
        self._shared: Any = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="agentos-link", daemon=True).start()

    # -- called by slots --------------------------------------------------------------------------------------------

    def request_work(self, answer: Answer) -> None:
        """Request an attempt. *answer* gets it, or None to end the slot; it is called on the client's thread."""
        if not self._calls.call(self._request_work, answer):
            answer(None)

    def send_data(self, attempt: AssignedAttempt, channel: Channel, data: bytes) -> None:
        """Send data of a running attempt. Output may block until the driver has confirmed some."""
        attempt.send_data(channel, data, lambda frame: self._calls.call(self._send, frame))

    def report(self, attempt: AssignedAttempt, body: bytes) -> None:
        """Report the end of the attempt. Raise ``FrameTooLarge`` if the report cannot be sent."""
        self._calls.call(self._report, attempt, pack_frame(FrameKind.REPORT, attempt.token, body))

    def shared(self, make: Callable[[], T]) -> T:
        """Return the object that all slots of this client share; it is made once and closed with the client."""
        with self._sharing:
            if self._shared is None:
                self._shared = make()
            made: T = self._shared
            return made

    def close(self) -> None:
        """End after the last slot has left, once all reports are confirmed or the driver is gone."""
        self._calls.call(self._close)
        self._ended.wait(self._endpoint.ttl)
        if self._shared is not None:
            self._shared.close()

    # -- on the client's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._stay_connected())
        except BaseException as error:  # noqa: BLE001 - after any error, release the slots that wait for this client
            self._give_up(DriverUnreachable(f"the connection to the driver failed: {type(error).__name__}: {error}"))
        finally:
            self._fence()
            self._calls.close()
            self._ended.set()

    async def _stay_connected(self) -> None:
        self._loop.call_at(self._deadline, self._check_deadline)
        tls = build_client_context(self._endpoint.certificate)
        pause = _FIRST_PAUSE
        while not self._is_over():
            connection = _DriverConnection(self)
            try:
                async with asyncio.timeout(self._connect_timeout()):
                    await self._loop.create_connection(
                        lambda: connection,  # noqa: B023 - called once, before this is over
                        self._endpoint.host,
                        self._endpoint.port,
                        ssl=tls,
                        server_hostname="",
                    )
            except (OSError, TimeoutError) as error:
                connection.abort()  # it may have been established just as the time ran out
                self._last_error = str(error) or type(error).__name__
                self._check_refused(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE)
                continue
            self._refused_since = math.inf
            try:
                await self._run_connection(connection)
            finally:
                self._connection = None
                await connection.close_and_wait()
            if self._greeted:
                pause = _FIRST_PAUSE
            elif not self._is_over():
                await asyncio.sleep(pause)

    async def _run_connection(self, connection: _DriverConnection) -> None:
        """Serve the connection until it breaks or is no longer needed."""
        self._connection = connection
        self._greeted = False
        self._beats = {0: time.monotonic()}  # HELLO counts as one
        connection.named = frozenset(self._requests)
        hello = Hello(self._id, self.name, tuple(self._requests), tuple(self._attempts))
        connection.send_urgent(
            pack_frame(FrameKind.HELLO, 0, hello_body(self._endpoint.password, hello))
        )  # not in pieces: nothing else is read before it
        beat_at = time.monotonic() + self._endpoint.ttl / _BEATS_PER_TTL
        while not connection.closed.is_set() and not self._is_over():
            try:
                async with asyncio.timeout(self._endpoint.ttl / _CHECKS_PER_TTL):
                    await connection.closed.wait()
            except TimeoutError:
                now = time.monotonic()
                if self._is_dead(connection, now):
                    self._last_error = "the connection went silent"
                    connection.abort()
                elif self._greeted and now >= beat_at:
                    self._beat(connection, now)
                    beat_at = now + self._endpoint.ttl / _BEATS_PER_TTL

    def _beat(self, connection: _DriverConnection, now: float) -> None:
        number = next(self._numbers)
        self._beats[number] = now
        connection.beaten[number] = tokens = tuple(self._attempts)
        connection.send_urgent(pack_frame(FrameKind.BEAT, number, beat_body(tokens)))

    def _is_dead(self, connection: _DriverConnection, now: float) -> bool:
        """Return True if the connection owes an answer and transfers nothing: a new one may still be in time."""
        since = now - _SILENT * self._endpoint.ttl
        return connection.moved_at < since and any(sent_at < since for sent_at in self._beats.values())

    def _connect_timeout(self) -> float:
        """Return the seconds one attempt to connect may take."""
        return max(0.2, min(self._deadline - time.monotonic(), max(_CONNECT_TIMEOUT, self._endpoint.ttl / 4)))

    def _is_over(self) -> bool:
        if self._closing and not self._attempts:
            return True
        return self.fenced and (not self._attempts or time.monotonic() > self._deadline + _OFFERS * self._endpoint.ttl)

    # -- frames of the driver ---------------------------------------------------------------------------------------

    def on_frame(self, connection: _DriverConnection, frame: Frame) -> None:
        """Handle a frame of the driver. Raise ``WireError`` if it is not one a driver sends."""
        kind, number, body = frame
        if connection is not self._connection:
            return
        if kind is FrameKind.ASSIGN:
            self._on_assign(number, body)
        elif kind is FrameKind.LEAVE:
            self._answer(number, None)
        elif kind is FrameKind.REPORT_ACK:
            self._attempts.pop(number, None)
            self._reports.pop(number, None)
            if self._closing and not self._attempts:
                connection.close()
        elif kind is FrameKind.DATA_ACK:
            if number in self._attempts:
                self._attempts[number].acknowledge(read_data_ack(body))
        elif kind is FrameKind.BEAT_ACK:
            good_for, statuses = read_beat_ack(body)
            self._on_beat_reply(number, good_for)
            self._apply_status(connection.beaten.pop(number, ()), statuses)
        elif kind is FrameKind.KILL:
            if number in self._attempts:
                self._attempts[number].kill(read_kill(body))
                self._beat(connection, time.monotonic())  # at once, to confirm the request
        elif kind is FrameKind.DRAIN:
            self._draining = True
            for attempt in self._attempts.values():
                attempt.stopping.set()
        elif kind is FrameKind.WELCOME:
            self._on_welcome(body)
        elif kind is FrameKind.REFUSED:
            self._give_up(DriverUnreachable(f"the driver refused this worker: {body.decode(errors='replace')}"))
        else:
            raise WireError(f"{kind.name} is not a frame of a driver")

    def _on_welcome(self, body: bytes) -> None:
        self._greeted = True
        good_for, job = read_welcome(body)
        self._on_beat_reply(0, good_for)
        if not self.welcome.done():
            self.welcome.set_result(job)
        for request in self._requests:
            if self._connection is not None and request not in self._connection.named:
                self._send(pack_frame(FrameKind.ASK, request))
        for attempt in self._attempts.values():  # data sent before the connection broke may be lost
            for frame in attempt.unacknowledged():
                self._send(frame)
        for frame in self._reports.values():
            self._send(frame)

    def _on_beat_reply(self, beat: int, good_for: float) -> None:
        """Extend the deadline: the driver has seen this worker at or after the time the heartbeat was sent.

        The driver keeps the keys for the time to live, and its store for *good_for* seconds. Both count from when the
        heartbeat was sent, because the answer may have taken long.
        """
        sent_at = self._beats.pop(beat, None)
        if sent_at is not None and not self.fenced:
            self._deadline = max(self._deadline, sent_at + self._endpoint.ttl - self._margin)
            self._good_until = sent_at + good_for

    def _lease_ends_at(self) -> float:
        """Return when leases end without further news, whether or not this thread gets to run by then."""
        return min(self._good_until, self._deadline)

    def _on_assign(self, token: int, body: bytes) -> None:
        request, assignment = read_assign(body)
        if request not in self._requests:
            return  # a repetition after a reconnect
        attempt = self._attempts[token] = AssignedAttempt(token, assignment)
        attempt.lost.until = self._lease_ends_at()
        if self._draining:
            attempt.stopping.set()
        self._answer(request, attempt)

    def _answer(self, request: int, attempt: AssignedAttempt | None) -> None:
        answer = self._requests.pop(request, None)
        if answer is not None:
            answer(attempt)

    def _apply_status(self, tokens: tuple[int, ...], statuses: list[AttemptStatus]) -> None:
        for token, status in zip(tokens, statuses, strict=False):
            attempt = self._attempts.get(token)
            if attempt is None:
                continue
            if status is not AttemptStatus.LOST:
                attempt.lost.until = self._lease_ends_at()
            if status is AttemptStatus.GO:
                continue
            if status is AttemptStatus.KILL:
                if not attempt.is_killed:  # else a kill with its own time limit came before
                    attempt.kill(0.0)
            elif status is AttemptStatus.LOST:
                attempt.lost.set()
            else:
                attempt.stopping.set()

    # -- frames of the slots ----------------------------------------------------------------------------------------

    def _send(self, frame: bytes) -> None:
        if self._connection is not None and self._greeted:
            self._connection.send(frame)

    def _request_work(self, answer: Answer) -> None:
        if self.fenced or self._closing:
            answer(None)
            return
        number = next(self._numbers)
        self._requests[number] = answer
        self._send(pack_frame(FrameKind.ASK, number))

    def _report(self, attempt: AssignedAttempt, frame: bytes) -> None:
        if attempt.token in self._attempts:
            self._reports[attempt.token] = frame
            self._send(frame)

    def _close(self) -> None:
        self._closing = True
        if not self._attempts and self._connection is not None:
            self._connection.close()

    # -- without a driver -------------------------------------------------------------------------------------------

    def _check_refused(self, error: BaseException) -> None:
        """Give up if nothing listens at the address any more and no attempt is assigned: the run is over."""
        now = time.monotonic()
        self._refused_since = min(self._refused_since, now) if isinstance(error, ConnectionRefusedError) else math.inf
        if now > self._refused_since + _REFUSED and not self._attempts:
            self._on_unreachable()

    def _check_deadline(self) -> None:
        if time.monotonic() < self._deadline:
            self._loop.call_at(self._deadline, self._check_deadline)
        else:
            self._on_unreachable()

    def _on_unreachable(self) -> None:
        where = f"the run's driver at {self._endpoint.host}:{self._endpoint.port}"
        advice = "give the engine an address that its workers can reach, such as listen='10.0.0.5:9000'"
        self._give_up(
            DriverUnreachable(f"{where} cannot be reached from {socket.gethostname()} ({self._last_error}): {advice}")
        )

    def _give_up(self, error: DriverUnreachable) -> None:
        self._fence()  # first, so that a slot placed as a replacement does not join this client
        if not self.welcome.done():
            self.welcome.set_exception(error)

    def _fence(self) -> None:
        """End all attempts; those that cannot be ended learn that their key is lost."""
        if self.fenced:
            return
        self.fenced = True
        for attempt in self._attempts.values():
            attempt.mark_lost()
        for request in list(self._requests):
            self._answer(request, None)


class _DriverConnection(FramedConnection):
    """One connection to the driver."""

    def __init__(self, client: WorkerClient) -> None:
        super().__init__(FrameReader())
        self.closed = asyncio.Event()
        self.named: frozenset[int] = frozenset()  # requests listed in its HELLO
        self.beaten: dict[int, tuple[int, ...]] = {}  # tokens listed in each heartbeat
        self.moved_at = time.monotonic()  # when data was last sent or received
        self._client = client

    def resume_writing(self) -> None:
        self.moved_at = time.monotonic()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        self.moved_at = time.monotonic()
        try:
            for frame in self.read(data):
                self._client.on_frame(self, frame)
        except WireError:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.closed.set()

    async def close_and_wait(self) -> None:
        """Close the connection and wait until it is closed."""
        self.close()
        try:
            async with asyncio.timeout(_LEAVE_TIMEOUT):
                await self.closed.wait()
        except TimeoutError:
            self.abort()
            await self.closed.wait()
