"""A worker's end of its link to the driver: one for each process and run, shared by the seats there.

It connects, and connects again; it beats; and when the driver has not answered for too long it ends what it has in
hand, before the driver gives those keys to others. All of it happens on a thread of its own.
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

_BEATS_PER_TTL = 3  # in one time to live
_CHECKS_PER_TTL = 12  # at the connection, in one time to live
_SILENT = 1 / 3  # of a time to live, after which a connection that owes us an answer is taken for dead
_CONNECT_TIMEOUT = 1.0  # at least; a quarter of a time to live, where that is more
_FIRST_PAUSE, _MAX_PAUSE = 0.05, 1.0  # between two attempts to connect
_OFFERS = 5  # times to live for which late results are offered to a driver that does not answer
_LEAVE_TIMEOUT = 1.0
_REFUSED = 0.5

Answer = Callable[[AssignedAttempt | None], object]


class Closeable(Protocol):
    """Something that ends with its link."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closeable)


class DriverUnreachable(ConnectionError):
    """The driver of the run cannot be reached from this worker, or does not want it."""


@dataclass(frozen=True, slots=True, repr=False)
class DriverEndpoint:
    """Where the driver of a run is, and how the two know each other. It shows nothing of that."""

    run_id: str
    host: str
    port: int
    certificate: bytes
    password: bytes
    ttl: float

    def __repr__(self) -> str:
        return "agentos seat"


class WorkerClient:
    """The link of this process to the driver of one run.

    ``welcome`` is what the driver tells all of them first; it fails with ``DriverUnreachable`` if none answers in one
    time to live. ``fenced``: the driver has not been heard of for too long; new seats need another link.
    """

    def __init__(self, post: DriverEndpoint) -> None:
        self.welcome: Future[bytes] = Future()
        self.fenced = False
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.ttl = post.ttl
        self._id = uuid.uuid4().hex
        self._endpoint = post
        self._margin = compute_margin(post.ttl)
        self._loop = asyncio.new_event_loop()
        self._calls = LoopCalls(self._loop)
        self._connection: _DriverConnection | None = None
        self._greeted = False  # on the present connection
        self._numbers = itertools.count(1)
        self._requests: dict[int, Answer] = {}
        self._attempts: dict[int, AssignedAttempt] = {}
        self._reports: dict[int, bytes] = {}  # of attempts in hand: sent, and perhaps not arrived
        self._beats: dict[int, float] = {}  # when those were sent that have no answer yet
        self._deadline = time.monotonic() + post.ttl
        self._good_until = -math.inf  # all leases, by what the driver last said
        self._last_error = "no answer"  # why it is not connected
        self._refused_since = math.inf
        self._draining = False
        self._closing = False
        self._ended = threading.Event()
        self._sharing = threading.Lock()
        self._shared: Any = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="agentos-link", daemon=True).start()

    # -- for seats ----------------------------------------------------------------------------------------------

    def request_work(self, answer: Answer) -> None:
        """Ask for an attempt. *answer* gets it, or None: go home. It is called on the link's thread."""
        if not self._calls.call(self._request_work, answer):
            answer(None)

    def send_data(self, handed: AssignedAttempt, channel: Channel, data: bytes) -> None:
        """Something for the driver while the attempt goes on. Output may wait here until the driver has taken some."""
        handed.send_data(channel, data, lambda frame: self._calls.call(self._send, frame))

    def report(self, handed: AssignedAttempt, body: bytes) -> None:
        """The attempt has ended. Raises ``FrameTooLarge``."""
        self._calls.call(self._report, handed, pack_frame(FrameKind.REPORT, handed.token, body))

    def shared(self, make: Callable[[], T]) -> T:
        """What all seats of this link share: made for the first of them, and closed with the link."""
        with self._sharing:
            if self._shared is None:
                self._shared = make()
            made: T = self._shared
            return made

    def close(self) -> None:
        """The last seat has gone: end, once all reports have arrived, or nobody is there to take them."""
        self._calls.call(self._close)
        self._ended.wait(self._endpoint.ttl)
        if self._shared is not None:
            self._shared.close()

    # -- the link's own thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._stay_connected())
        except BaseException as error:  # noqa: BLE001 - whatever it is, nobody may wait for this link any more
            self._give_up(DriverUnreachable(f"the link to the driver failed: {type(error).__name__}: {error}"))
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
                connection.abort()  # it may have been made in the very moment in which the time was over
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
        """Until the connection breaks, or is needed no more."""
        self._connection = connection
        self._greeted = False
        self._beats = {0: time.monotonic()}  # the greeting counts as one
        connection.named = frozenset(self._requests)
        hello = Hello(self._id, self.name, tuple(self._requests), tuple(self._attempts))
        connection.send_urgent(
            pack_frame(FrameKind.HELLO, 0, hello_body(self._endpoint.password, hello))
        )  # whole: it opens the door
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
        """Whether it owes an answer and nothing moves on it any more: a new one may still be in time."""
        since = now - _SILENT * self._endpoint.ttl
        return connection.moved_at < since and any(sent_at < since for sent_at in self._beats.values())

    def _connect_timeout(self) -> float:
        """To connect in."""
        return max(0.2, min(self._deadline - time.monotonic(), max(_CONNECT_TIMEOUT, self._endpoint.ttl / 4)))

    def _is_over(self) -> bool:
        if self._closing and not self._attempts:
            return True
        return self.fenced and (not self._attempts or time.monotonic() > self._deadline + _OFFERS * self._endpoint.ttl)

    # -- what the driver says -----------------------------------------------------------------------------------

    def on_frame(self, connection: _DriverConnection, frame: Frame) -> None:
        """A frame of the driver. Raises ``WireError``."""
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
            good_for, standings = read_beat_ack(body)
            self._on_beat_reply(number, good_for)
            self._apply_status(connection.beaten.pop(number, ()), standings)
        elif kind is FrameKind.KILL:
            if number in self._attempts:
                self._attempts[number].kill(read_kill(body))
                self._beat(connection, time.monotonic())  # at once: the driver wants to know that we know
        elif kind is FrameKind.DRAIN:
            self._draining = True
            for handed in self._attempts.values():
                handed.stopping.set()
        elif kind is FrameKind.WELCOME:
            self._on_welcome(body)
        elif kind is FrameKind.REFUSED:
            self._give_up(DriverUnreachable(f"the driver refused this worker: {body.decode(errors='replace')}"))
        else:
            raise WireError(f"{kind.name} is not for a driver to say")

    def _on_welcome(self, body: bytes) -> None:
        self._greeted = True
        good_for, job = read_welcome(body)
        self._on_beat_reply(0, good_for)
        if not self.welcome.done():
            self.welcome.set_result(job)
        for ask in self._requests:
            if self._connection is not None and ask not in self._connection.named:
                self._send(pack_frame(FrameKind.ASK, ask))
        for handed in self._attempts.values():  # what was said before the connection broke may not have arrived
            for frame in handed.unacknowledged():
                self._send(frame)
        for frame in self._reports.values():
            self._send(frame)

    def _on_beat_reply(self, beat: int, good_for: float) -> None:
        """The driver knew of us when we sent this one, or later: it will not give our keys away before its time.

        Nor will its store, for *good_for* seconds. Both count from when we asked: the answer may have taken long.
        """
        sent_at = self._beats.pop(beat, None)
        if sent_at is not None and not self.fenced:
            self._deadline = max(self._deadline, sent_at + self._endpoint.ttl - self._margin)
            self._good_until = sent_at + good_for

    def _lease_ends_at(self) -> float:
        """When leases are over if nothing more is heard: by the clock, whenever this thread comes to say so."""
        return min(self._good_until, self._deadline)

    def _on_assign(self, token: int, body: bytes) -> None:
        ask, assignment = read_assign(body)
        if ask not in self._requests:
            return  # it came before, on a connection that broke
        handed = self._attempts[token] = AssignedAttempt(token, assignment)
        handed.lost.until = self._lease_ends_at()
        if self._draining:
            handed.stopping.set()
        self._answer(ask, handed)

    def _answer(self, ask: int, handed: AssignedAttempt | None) -> None:
        answer = self._requests.pop(ask, None)
        if answer is not None:
            answer(handed)

    def _apply_status(self, tokens: tuple[int, ...], standings: list[AttemptStatus]) -> None:
        for token, standing in zip(tokens, standings, strict=False):
            handed = self._attempts.get(token)
            if handed is None:
                continue
            if standing is not AttemptStatus.LOST:
                handed.lost.until = self._lease_ends_at()
            if standing is AttemptStatus.GO:
                continue
            if standing is AttemptStatus.KILL:
                if not handed.is_killed:  # else it knows, and how long it may take
                    handed.kill(0.0)
            elif standing is AttemptStatus.LOST:
                handed.lost.set()
            else:
                handed.stopping.set()

    # -- what seats say -----------------------------------------------------------------------------------------

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

    def _report(self, handed: AssignedAttempt, frame: bytes) -> None:
        if handed.token in self._attempts:
            self._reports[handed.token] = frame
            self._send(frame)

    def _close(self) -> None:
        self._closing = True
        if not self._attempts and self._connection is not None:
            self._connection.close()

    # -- without a driver ---------------------------------------------------------------------------------------

    def _check_refused(self, error: BaseException) -> None:
        """Where nobody listens any more, the run is over: a seat without work does not wait to be sure of that."""
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
        self._fence()  # first: a seat that comes in place of one that was told must not join this link
        if not self.welcome.done():
            self.welcome.set_exception(error)

    def _fence(self) -> None:
        """End all that is in hand; what cannot be ended is told that its key is lost."""
        if self.fenced:
            return
        self.fenced = True
        for handed in self._attempts.values():
            handed.mark_lost()
        for ask in list(self._requests):
            self._answer(ask, None)


class _DriverConnection(FramedConnection):
    """One connection to the driver."""

    def __init__(self, link: WorkerClient) -> None:
        super().__init__(FrameReader())
        self.closed = asyncio.Event()
        self.named: frozenset[int] = frozenset()  # the asks in its greeting
        self.beaten: dict[int, tuple[int, ...]] = {}  # the tokens in each beat
        self.moved_at = time.monotonic()  # when something last came, or went
        self._client = link

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
        """Close it, and do not return before it is closed."""
        self.close()
        try:
            async with asyncio.timeout(_LEAVE_TIMEOUT):
                await self.closed.wait()
        except TimeoutError:
            self.abort()
            await self.closed.wait()
