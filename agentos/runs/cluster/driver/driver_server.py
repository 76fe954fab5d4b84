"""The driver's end of all links: hands attempts to the seats that ask, takes what comes back, notices who is gone.

Everything in a hub happens on its own thread, on an event loop; the other threads of the driver talk to it by calls
that return at once, and hear of it by queues. So a slow input, a busy journal or a reader that takes its time never
delays a heartbeat.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import queue
import secrets
import threading
import time
from collections.abc import Callable

from ..wire.certificate import DriverIdentity
from ..wire.loop_calls import LoopCalls
from ..wire.messages import (
    PASSWORD_LENGTH,
    AttemptStatus,
    Frame,
    FrameKind,
    Hello,
    WireError,
    beat_ack_body,
    compute_margin,
    data_ack_body,
    kill_body,
    pack_frame,
    read_beat,
    read_data,
    read_hello,
    welcome_body,
)
from .listener import Listener
from .remote_attempt import (
    AttemptData,
    AttemptLost,
    AttemptReported,
    KillDelivered,
    NotAssigned,
    RemoteAttempt,
    RemoteEvent,
)
from .waiting_workers import WaitingWorkers
from .worker_connection import WorkerConnection
from .worker_process import WorkerProcess, WorkRequest

log = logging.getLogger("agentos")

_LEAVE_TIMEOUT = 1.0  # for the last words to be sent
_CLOSE_TIMEOUT = 0.01  # for sockets that nobody waits for
_CHECKS_PER_TTL = 6  # at the links, in one time to live
_UNUSED_TIMEOUT = 5.0  # seconds for which a seat waits for an item; then its cluster may use the place for others
_UNUSED_CHECKS = 5  # in that time
_JOIN_TIMEOUT = 5.0  # for a worker on which items can begin, once it is known that on others they cannot


class DriverServer:
    """Listens for the links of one run.

    *welcome* is what each of them is told first. Its seats ask for *width* items at once. A link that is silent for
    *ttl* seconds (and a little) is lost, with all it had in hand. *good_for* says for how many seconds leases are good.
    While it is ``silent`` no link hears that the driver is there. Called on the hub's thread: *on_late*, with the token
    and the report of an attempt that had been lost; *on_unfit*, for each seat that gets nothing because its worker was
    set aside; *on_nobody*, with the reasons, while there is no other worker; *on_closed* at the very end.
    """

    def __init__(
        self,
        identity: DriverIdentity,
        welcome: bytes,
        *,
        ttl: float,
        width: int = 1,
        good_for: Callable[[], float] = lambda: math.inf,
        on_late: Callable[[int, bytes], object],
        on_unfit: Callable[[], object] = lambda: None,
        on_nobody: Callable[[list[str]], object] = lambda _reasons: None,
        on_closed: Callable[[], object] = lambda: None,
    ) -> None:
        self.password = secrets.token_bytes(PASSWORD_LENGTH)
        self.has_joined = False  # at least one worker
        self.silent = False
        self._welcome = welcome
        self._ttl = ttl
        self._width = width
        self._good_for = good_for
        self._margin = compute_margin(ttl)
        self._on_late = on_late
        self._on_unfit = on_unfit
        self._on_no_usable_worker = on_nobody
        self._on_closed = on_closed
        self._loop = asyncio.new_event_loop()
        self._calls = LoopCalls(self._loop)
        self._requests = WaitingWorkers()
        self._workers: dict[str, WorkerProcess] = {}
        self._connections: set[WorkerConnection] = set()
        self._attempts: dict[int, tuple[RemoteAttempt, WorkerProcess]] = {}
        self._listener = Listener(lambda: WorkerConnection(self), identity, to_close=_LEAVE_TIMEOUT)
        self._over = asyncio.Event()
        self._unfit: dict[str, str] = {}  # workers that were set aside, and why
        self._refusals: set[str] = set()  # that were said
        self._may_reconnect = False  # one that was lost, and on which items could begin
        self._no_usable_worker_since = math.inf
        self._draining = self._closing = False
        self._checked_at = 0.0

    # -- for the driver's threads -------------------------------------------------------------------------------

    def open(self, host: str, port: int = 0) -> tuple[str, int]:
        """Listen there; returns the address. Raises OSError."""
        opened: queue.SimpleQueue[tuple[str, int] | BaseException] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(host, port, opened.put), name="agentos-hub", daemon=True).start()
        address = opened.get()
        if isinstance(address, BaseException):
            raise address
        return address

    def try_take_request(self) -> WorkRequest | None:
        """A seat that wants an item; None if there is none at the moment."""
        return self._requests.try_take()

    def next_request(self) -> WorkRequest | None:
        """Wait for a seat that wants an item. None: there will be no more."""
        return self._requests.take()

    def count_waiting(self, seconds: float = 0.0) -> int:
        """How many threads have waited for a seat for so long."""
        return self._requests.count_waiting(seconds)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is out."""
        return not self._attempts

    def assign(self, ask: WorkRequest, errand: RemoteAttempt) -> None:
        """Give the seat that asked this attempt, and no other."""
        ask.is_used = True
        if not self._calls.call(self._assign, ask, errand):
            errand.events.put(NotAssigned())

    def return_request(self, ask: WorkRequest) -> None:
        """It was not used: somebody else may have it."""
        self._requests.add(ask)

    def dismiss(self, ask: WorkRequest) -> None:
        """There is nothing for the seat that asked, and there will not be."""
        self._calls.call(self._dismiss, ask)

    def exclude_worker(self, member: WorkerProcess, why: str) -> bool:
        """Items cannot begin on that worker: it gets none, from this moment on. False: that was known."""
        is_news = self._requests.exclude(member)
        if is_news:
            self._calls.call(self._exclude_worker, member, why)
        return is_news

    def kill(self, errand: RemoteAttempt, after: float) -> None:
        """Ask the attempt to end within so many seconds."""
        self._calls.call(self._kill, errand, after)

    def acknowledge(self, errand: RemoteAttempt, number: int) -> None:
        """What the attempt said was taken, up to this number: it may say more."""
        self._calls.call(self._acknowledge, errand, number)

    def pause(self, on: bool) -> None:
        """Give no seat an attempt for now, nor anybody a seat, or (False) go on. Seats may ask all the same."""
        self._requests.pause(on)

    def drain(self) -> None:
        """The run stops: every attempt should finish soon, and none begins."""
        self._calls.call(self._drain)

    def close(self) -> None:
        """No seat gets anything any more. The hub itself stays until the last attempt has come back, or is lost."""
        self._calls.call(self._close)

    # -- the hub's own thread -----------------------------------------------------------------------------------

    def _serve(self, host: str, port: int, opened: Callable[[tuple[str, int] | BaseException], None]) -> None:
        loop = self._loop
        try:
            address = loop.run_until_complete(self._listener.open(host, port))
        except BaseException as error:  # noqa: BLE001 - raised by whoever opened it
            self._calls.close()
            opened(error)
            return
        opened(address)
        self._checked_at = time.monotonic()
        loop.call_later(self._ttl / _CHECKS_PER_TTL, self._check_workers)
        loop.call_later(_UNUSED_TIMEOUT / _UNUSED_CHECKS, self._release_unused)
        try:
            loop.run_until_complete(self._stay_open())
        finally:
            self._calls.close()
            self._on_closed()

    async def _stay_open(self) -> None:
        """Until it is over; then cut off whoever is still there, or just shaking hands."""
        await self._over.wait()
        await asyncio.sleep(0)  # who was let in just now begins to
        for connection in list(self._connections):
            connection.abort()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(_CLOSE_TIMEOUT)

    def _assign(self, ask: WorkRequest, errand: RemoteAttempt) -> None:
        link = ask.worker
        if errand.kill_within is not None or self._requests.is_paused or link.is_unusable:
            ask.is_used = False
            self._requests.add(ask)  # nobody wants it any more, or not now, but another one may come
            errand.events.put(NotAssigned())
            return
        if ask.is_void or link.requests.pop(ask.number, None) is None:
            errand.events.put(NotAssigned())
            return
        errand.request = ask
        link.attempts[errand.token] = errand
        self._attempts[errand.token] = errand, link
        link.send(errand.frame(ask.number))

    def _exclude_worker(self, link: WorkerProcess, why: str) -> None:
        self._unfit[link.name] = why
        for number in link.requests:
            self._ignore_request(link, number)

    def _ignore_request(self, link: WorkerProcess, number: int) -> None:
        """Its seat stays there without work: if it left, the cluster would have the next one there."""
        if number not in link.ignored_requests:
            link.ignored_requests.add(number)
            if (len(link.ignored_requests) - 1) % self._width == 0:
                self._on_unfit()

    def _dismiss(self, ask: WorkRequest) -> None:
        if not ask.is_void and ask.worker.requests.pop(ask.number, None) is not None:
            ask.worker.send(pack_frame(FrameKind.LEAVE, ask.number))

    def _kill(self, errand: RemoteAttempt, after: float) -> None:
        errand.kill_within = after
        known = self._attempts.get(errand.token)
        if known is not None:
            known[1].send(pack_frame(FrameKind.KILL, errand.token, kill_body(after)))

    def _acknowledge(self, errand: RemoteAttempt, number: int) -> None:
        errand.last_consumed = number
        known = self._attempts.get(errand.token)
        if known is not None:
            known[1].send(pack_frame(FrameKind.DATA_ACK, errand.token, data_ack_body(number)))

    def _drain(self) -> None:
        self._draining = True
        for link in self._workers.values():
            link.send(pack_frame(FrameKind.DRAIN))
        self._release_idle()

    def _release_idle(self) -> None:
        """Send all seats home that have nothing to do, and whoever waits for one."""
        self._requests.close()
        for link in self._workers.values():
            for ask in list(link.requests.values()):
                self._dismiss(ask)

    # -- links --------------------------------------------------------------------------------------------------

    def on_connect(self, connection: WorkerConnection) -> None:
        """Somebody connected; who it is, is not known yet."""
        self._connections.add(connection)

    def is_password(self, password: bytes) -> bool:
        """Whether that is the password of the run."""
        return hmac.compare_digest(password, self.password)

    def on_hello(self, connection: WorkerConnection, frame: Frame) -> WorkerProcess | None:
        """The first frame of a connection. None: it is none of ours."""
        if frame.kind is not FrameKind.HELLO or not self.is_password(frame.body[:PASSWORD_LENGTH]):
            log.warning("[COORDINATOR] somebody who does not know this run tried to join it as a worker")
            return None
        try:
            hello = read_hello(frame.body)
        except WireError as error:
            if str(error) not in self._refusals:  # it may come again and again
                self._refusals.add(str(error))
                log.warning("[COORDINATOR] a worker was refused: %s", error)
            connection.send(pack_frame(FrameKind.REFUSED, 0, str(error).encode()))
            return None
        if self.silent:
            return None
        link = self._workers.get(hello.link)
        if link is None:
            link = self._workers[hello.link] = WorkerProcess(hello.link, hello.name, unfit=hello.name in self._unfit)
        elif link.connection is not None:
            link.connection.abort()  # it broke, and we have not noticed
            self._cut_off(link)
        self.has_joined = True
        link.connection = connection
        link.last_frame_at = time.monotonic()
        # Again, for the first may not have arrived.
        connection.send(pack_frame(FrameKind.WELCOME, 0, welcome_body(self._good_for(), self._welcome)))
        if self._draining:
            connection.send(pack_frame(FrameKind.DRAIN))
        self._resume_attempts(link, hello)
        return link

    def _resume_attempts(self, link: WorkerProcess, hello: Hello) -> None:
        """What was under way when an earlier connection broke, or when the link was taken for lost."""
        for token in hello.in_hand:
            if token not in link.attempts:
                link.send(pack_frame(FrameKind.KILL, token, kill_body(0.0)))
        answered = {}
        for errand in list(link.attempts.values()):
            if errand.token in hello.in_hand:
                if (
                    errand.last_consumed
                ):  # what told of that may not have arrived, and output would wait for it for ever
                    link.send(pack_frame(FrameKind.DATA_ACK, errand.token, data_ack_body(errand.last_consumed)))
                self._resend_kills(link, errand)
            elif errand.request is not None and errand.request.number in hello.asks:
                answered[errand.request.number] = errand
            else:
                self._end(errand.token, AttemptLost("its worker does not know of it any more"))
        for number in hello.asks:
            if number in answered:
                link.send(answered[number].frame(number))  # the first time it was lost with the connection
                self._resend_kills(link, answered[number])
            else:
                self._on_request(link, number)

    @staticmethod
    def _resend_kills(link: WorkerProcess, errand: RemoteAttempt) -> None:
        if errand.kill_within is not None:
            link.send(pack_frame(FrameKind.KILL, errand.token, kill_body(errand.kill_within)))

    def on_frame(self, link: WorkerProcess, frame: Frame) -> None:
        """A frame of a link that has been welcomed. Raises ``WireError``."""
        kind, number, body = frame
        if kind is FrameKind.REPORT:
            link.send(pack_frame(FrameKind.REPORT_ACK, number))
            if number in link.attempts:
                self._end(number, AttemptReported(body))
            else:
                self._on_late(number, body)
        elif kind is FrameKind.ASK:
            self._on_request(link, number)
        elif kind is FrameKind.DATA:
            self._on_data(link, number, AttemptData(*read_data(body)))
        elif kind is FrameKind.BEAT:
            standings = [self._find_status(link, token) for token in read_beat(body)]
            if not self.silent:
                link.send_urgent(pack_frame(FrameKind.BEAT_ACK, number, beat_ack_body(self._good_for(), standings)))
        else:
            raise WireError(f"{kind.name} is not for a worker to say")

    @staticmethod
    def _on_data(link: WorkerProcess, token: int, said: AttemptData) -> None:
        errand = link.attempts.get(token)
        if errand is not None and said.number > errand.last_received:  # else it came before, on a connection that broke
            errand.last_received = said.number
            errand.events.put(said)

    def _on_request(self, link: WorkerProcess, number: int) -> None:
        if self._closing or self._draining:
            link.send(pack_frame(FrameKind.LEAVE, number))
            return
        ask = link.requests[number] = WorkRequest(link, number)
        self._requests.add(ask)
        if link.is_unusable:
            self._ignore_request(link, number)

    def _find_status(self, link: WorkerProcess, token: int) -> AttemptStatus:
        errand = link.attempts.get(token)
        if errand is None:
            return AttemptStatus.KILL
        if errand.kill_within is not None:
            if not errand.kill_delivered:
                errand.kill_delivered = True
                errand.events.put(KillDelivered())
            return AttemptStatus.KILL
        if not errand.is_lease_held():
            return AttemptStatus.LOST
        return AttemptStatus.DRAIN if self._draining else AttemptStatus.GO

    def on_disconnect(self, connection: WorkerConnection, link: WorkerProcess | None) -> None:
        """A connection ended. That alone is not the end of its link."""
        self._connections.discard(connection)
        if link is not None and link.connection is connection:
            self._cut_off(link)
        if not self._listener.is_open and not self._connections:
            self._over.set()

    def _cut_off(self, link: WorkerProcess) -> None:
        link.connection = None
        self._requests.withdraw(link)
        link.requests.clear()

    def _end(self, token: int, event: RemoteEvent) -> None:
        errand, link = self._attempts.pop(token)
        link.attempts.pop(token, None)
        errand.events.put(event)
        self._finish_if_idle()

    def _check_workers(self) -> None:
        """Declare those lost that have been silent for too long."""
        now, pause = time.monotonic(), self._ttl / _CHECKS_PER_TTL
        if now > self._checked_at + 3 * pause:
            # We ourselves stood still: what they said meanwhile has not been read yet.
            for link in self._workers.values():
                link.last_frame_at = now
        self._checked_at = now
        for link in list(self._workers.values()):
            if now > link.last_frame_at + self._ttl + self._margin:
                self._mark_lost(link)
        self._check_usable_workers(now)
        self._loop.call_later(pause, self._check_workers)

    def _check_usable_workers(self, now: float) -> None:
        """Say so if there have only been workers for a while on which items cannot begin."""
        if not self._unfit or self._may_reconnect or not all(link.is_unusable for link in self._workers.values()):
            self._no_usable_worker_since = math.inf
            return
        self._no_usable_worker_since = min(self._no_usable_worker_since, now)
        if not self._draining and now >= self._no_usable_worker_since + _JOIN_TIMEOUT:
            self._on_no_usable_worker(list(self._unfit.values()))

    def _mark_lost(self, link: WorkerProcess) -> None:
        del self._workers[link.id]
        self._may_reconnect |= link.has_worked and not link.is_unusable
        if link.connection is not None:
            link.connection.close()
            self._cut_off(link)
        if link.attempts:
            log.warning(
                "[COORDINATOR] worker %s has not been heard of for %gs; items that are lost with it: %d",
                link.name,
                self._ttl,
                len(link.attempts),
            )
        for token in list(link.attempts):
            self._end(token, AttemptLost(f"worker {link.name} was lost: not heard of for {self._ttl:g}s"))

    def _release_unused(self) -> None:
        """Let seats go for which there has been nothing to do for a while."""
        for ask in self._requests.release_unused(_UNUSED_TIMEOUT, self._can_release):
            self._dismiss(ask)
        self._loop.call_later(_UNUSED_TIMEOUT / _UNUSED_CHECKS, self._release_unused)

    def _can_release(self, link: WorkerProcess, asks: list[WorkRequest]) -> bool:
        """A seat with several asks ends with the last of them; so all of its worker go, or none."""
        return self._width == 1 or (not link.attempts and len(asks) == len(link.requests))

    # -- the end ------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._release_idle()
        self._finish_if_idle()

    def _finish_if_idle(self) -> None:
        if not self._closing or self._attempts or not self._listener.is_open:
            return
        self._listener.close()
        for connection in list(self._connections):
            connection.close()
        if self._connections:
            self._loop.call_later(_LEAVE_TIMEOUT, self._over.set)
        else:
            self._over.set()
