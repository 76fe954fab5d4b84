"""Server of the driver: assigns attempts to worker slots, receives their reports and detects lost workers.

All of its state belongs to one thread with an event loop. Other threads of the driver submit calls that return at once
and receive events through queues. So a slow input, journal or output consumer never delays a heartbeat.
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

_LEAVE_TIMEOUT = 1.0  # seconds to send what is queued before a connection closes
_CLOSE_TIMEOUT = 0.01  # seconds for the event loop to close aborted sockets
_CHECKS_PER_TTL = 6  # checks for silent workers per time to live
_UNUSED_TIMEOUT = 5.0  # seconds a slot waits for an item; then the cluster may reuse its place
_UNUSED_CHECKS = 5  # checks per _UNUSED_TIMEOUT
_JOIN_TIMEOUT = 5.0  # seconds to wait for a usable worker once the others are known to be unusable


class DriverServer:
    """Accepts the worker processes of one run and exchanges frames with them.

    *welcome* is the payload of the first frame to each worker. Each slot runs *width* items at once. A worker that is
    silent for *ttl* seconds (plus a margin) is lost, with its attempts. *good_for* returns for how many seconds leases
    are valid. While ``silent`` is set, workers receive no sign of life from the driver.

    Callbacks, made on the server's thread: *on_late* with the token and report of an attempt that was already lost;
    *on_excluded_slot* for each slot that gets no items because its worker was excluded; *on_no_usable_worker* with the
    reasons while all workers are excluded; *on_closed* last.
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
        on_excluded_slot: Callable[[], object] = lambda: None,
        on_no_usable_worker: Callable[[list[str]], object] = lambda _reasons: None,
        on_closed: Callable[[], object] = lambda: None,
    ) -> None:
        self.password = secrets.token_bytes(PASSWORD_LENGTH)
        self.has_joined = False
        self.silent = False
        self._welcome = welcome
        self._ttl = ttl
        self._width = width
        self._good_for = good_for
        self._margin = compute_margin(ttl)
        self._on_late = on_late
        self._on_excluded_slot = on_excluded_slot
        self._on_no_usable_worker = on_no_usable_worker
        self._on_closed = on_closed
        self._loop = asyncio.new_event_loop()
        self._calls = LoopCalls(self._loop)
        self._requests = WaitingWorkers()
        self._workers: dict[str, WorkerProcess] = {}
        self._connections: set[WorkerConnection] = set()
        self._attempts: dict[int, tuple[RemoteAttempt, WorkerProcess]] = {}
        self._listener = Listener(lambda: WorkerConnection(self), identity, to_close=_LEAVE_TIMEOUT)
        self._over = asyncio.Event()
        self._excluded: dict[str, str] = {}  # excluded workers: name to reason
        self._refusals: set[str] = set()  # refusals that were logged
        self._may_reconnect = False  # a usable worker was lost and may come back
        self._no_usable_worker_since = math.inf
        self._draining = self._closing = False
        self._checked_at = 0.0

    # -- called by the driver's threads -----------------------------------------------------------------------------

    def open(self, host: str, port: int = 0) -> tuple[str, int]:
        """Listen on *host* and *port* and return the address. Raise OSError if that fails."""
        opened: queue.SimpleQueue[tuple[str, int] | BaseException] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(host, port, opened.put), name="agentos-hub", daemon=True).start()
        address = opened.get()
        if isinstance(address, BaseException):
            raise address
        return address

    def try_take_request(self) -> WorkRequest | None:
        """Return a waiting slot's request for an item, or None."""
        return self._requests.try_take()

    def next_request(self) -> WorkRequest | None:
        """Wait for a slot's request for an item. Return None once there will be no more."""
        return self._requests.take()

    def count_waiting(self, seconds: float = 0.0) -> int:
        """Return the number of threads that have waited for a slot for at least *seconds*."""
        return self._requests.count_waiting(seconds)

    @property
    def is_idle(self) -> bool:
        """True while no attempt is assigned to a worker."""
        return not self._attempts

    def assign(self, request: WorkRequest, remote: RemoteAttempt) -> None:
        """Assign the attempt to the slot that made the request."""
        request.is_used = True
        if not self._calls.call(self._assign, request, remote):
            remote.events.put(NotAssigned())

    def return_request(self, request: WorkRequest) -> None:
        """Make an unused request available to other threads."""
        self._requests.add(request)

    def dismiss(self, request: WorkRequest) -> None:
        """Let the slot go: there will be no item for it."""
        self._calls.call(self._dismiss, request)

    def exclude_worker(self, worker: WorkerProcess, why: str) -> bool:
        """Assign no more items to a worker on which items cannot begin. Return False if it was excluded before."""
        is_news = self._requests.exclude(worker)
        if is_news:
            self._calls.call(self._exclude_worker, worker, why)
        return is_news

    def kill(self, remote: RemoteAttempt, after: float) -> None:
        """Ask the attempt to end within *after* seconds."""
        self._calls.call(self._kill, remote, after)

    def acknowledge(self, remote: RemoteAttempt, number: int) -> None:
        """Confirm the attempt's data up to *number*, so that it may send more."""
        self._calls.call(self._acknowledge, remote, number)

    def pause(self, on: bool) -> None:
        """Stop assigning attempts and handing out requests, or resume with False. Slots may still send requests."""
        self._requests.pause(on)

    def drain(self) -> None:
        """Ask all attempts to finish soon and assign no more."""
        self._calls.call(self._drain)

    def close(self) -> None:
        """Dismiss the waiting slots. The server itself closes when the last attempt is reported or lost."""
        self._calls.call(self._close)

    # -- on the server's thread -------------------------------------------------------------------------------------

    def _serve(self, host: str, port: int, opened: Callable[[tuple[str, int] | BaseException], None]) -> None:
        loop = self._loop
        try:
            address = loop.run_until_complete(self._listener.open(host, port))
        except BaseException as error:  # noqa: BLE001 - raised by open()
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
        """Wait for the end of the run, then abort the remaining connections and handshakes."""
        await self._over.wait()
        await asyncio.sleep(0)  # lets tasks of connections accepted just now start
        for connection in list(self._connections):
            connection.abort()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(_CLOSE_TIMEOUT)

    def _assign(self, request: WorkRequest, remote: RemoteAttempt) -> None:
        worker = request.worker
        if remote.kill_within is not None or self._requests.is_paused or worker.is_unusable:
            request.is_used = False
            self._requests.add(request)  # the attempt cannot start now; the request serves another one
            remote.events.put(NotAssigned())
            return
        if request.is_void or worker.requests.pop(request.number, None) is None:
            remote.events.put(NotAssigned())
            return
        remote.request = request
        worker.attempts[remote.token] = remote
        self._attempts[remote.token] = remote, worker
        worker.send(remote.frame(request.number))

    def _exclude_worker(self, worker: WorkerProcess, why: str) -> None:
        self._excluded[worker.name] = why
        for number in worker.requests:
            self._ignore_request(worker, number)

    def _ignore_request(self, worker: WorkerProcess, number: int) -> None:
        """Leave the slot waiting without work: if it ended, the cluster would place its next slot on that worker."""
        if number not in worker.ignored_requests:
            worker.ignored_requests.add(number)
            if (len(worker.ignored_requests) - 1) % self._width == 0:
                self._on_excluded_slot()

    def _dismiss(self, request: WorkRequest) -> None:
        if not request.is_void and request.worker.requests.pop(request.number, None) is not None:
            request.worker.send(pack_frame(FrameKind.LEAVE, request.number))

    def _kill(self, remote: RemoteAttempt, after: float) -> None:
        remote.kill_within = after
        known = self._attempts.get(remote.token)
        if known is not None:
            known[1].send(pack_frame(FrameKind.KILL, remote.token, kill_body(after)))

    def _acknowledge(self, remote: RemoteAttempt, number: int) -> None:
        remote.last_consumed = number
        known = self._attempts.get(remote.token)
        if known is not None:
            known[1].send(pack_frame(FrameKind.DATA_ACK, remote.token, data_ack_body(number)))

    def _drain(self) -> None:
        self._draining = True
        for worker in self._workers.values():
            worker.send(pack_frame(FrameKind.DRAIN))
        self._release_idle()

    def _release_idle(self) -> None:
        """Dismiss all slots without an attempt and wake the threads that wait for a slot."""
        self._requests.close()
        for worker in self._workers.values():
            for request in list(worker.requests.values()):
                self._dismiss(request)

    # -- connections ------------------------------------------------------------------------------------------------

    def on_connect(self, connection: WorkerConnection) -> None:
        """Record a connection that has not identified itself yet."""
        self._connections.add(connection)

    def is_password(self, password: bytes) -> bool:
        """Return True if that is the password of the run."""
        return hmac.compare_digest(password, self.password)

    def on_hello(self, connection: WorkerConnection, frame: Frame) -> WorkerProcess | None:
        """Register the worker that sent the first frame of a connection. Return None to refuse it."""
        if frame.kind is not FrameKind.HELLO or not self.is_password(frame.body[:PASSWORD_LENGTH]):
            log.warning("[COORDINATOR] refused a connection to the run's port: wrong password")
            return None
        try:
            hello = read_hello(frame.body)
        except WireError as error:
            if str(error) not in self._refusals:  # the worker may retry many times
                self._refusals.add(str(error))
                log.warning("[COORDINATOR] a worker was refused: %s", error)
            connection.send(pack_frame(FrameKind.REFUSED, 0, str(error).encode()))
            return None
        if self.silent:
            return None
        worker = self._workers.get(hello.link)
        if worker is None:
            worker = self._workers[hello.link] = WorkerProcess(
                hello.link, hello.name, is_unusable=hello.name in self._excluded
            )
        elif worker.connection is not None:
            worker.connection.abort()  # broken, but not yet detected
            self._cut_off(worker)
        self.has_joined = True
        worker.connection = connection
        worker.last_frame_at = time.monotonic()
        # Repeated on each connection: the first one may not have arrived.
        connection.send(pack_frame(FrameKind.WELCOME, 0, welcome_body(self._good_for(), self._welcome)))
        if self._draining:
            connection.send(pack_frame(FrameKind.DRAIN))
        self._resume_attempts(worker, hello)
        return worker

    def _resume_attempts(self, worker: WorkerProcess, hello: Hello) -> None:
        """Reconcile the attempts with what the worker still has after a reconnect."""
        for token in hello.in_hand:
            if token not in worker.attempts:
                worker.send(pack_frame(FrameKind.KILL, token, kill_body(0.0)))
        answered = {}
        for remote in list(worker.attempts.values()):
            if remote.token in hello.in_hand:
                if remote.last_consumed:  # the earlier acknowledgement may be lost, and the worker's output would block
                    worker.send(pack_frame(FrameKind.DATA_ACK, remote.token, data_ack_body(remote.last_consumed)))
                self._resend_kills(worker, remote)
            elif remote.request is not None and remote.request.number in hello.asks:
                answered[remote.request.number] = remote
            else:
                self._end(remote.token, AttemptLost("its worker no longer has it"))
        for number in hello.asks:
            if number in answered:
                worker.send(answered[number].frame(number))  # the first assignment was lost with the connection
                self._resend_kills(worker, answered[number])
            else:
                self._on_request(worker, number)

    @staticmethod
    def _resend_kills(worker: WorkerProcess, remote: RemoteAttempt) -> None:
        if remote.kill_within is not None:
            worker.send(pack_frame(FrameKind.KILL, remote.token, kill_body(remote.kill_within)))

    def on_frame(self, worker: WorkerProcess, frame: Frame) -> None:
        """Handle a frame of an identified worker. Raise ``WireError`` if it is not one a worker sends."""
        kind, number, body = frame
        if kind is FrameKind.REPORT:
            worker.send(pack_frame(FrameKind.REPORT_ACK, number))
            if number in worker.attempts:
                self._end(number, AttemptReported(body))
            else:
                self._on_late(number, body)
        elif kind is FrameKind.ASK:
            self._on_request(worker, number)
        elif kind is FrameKind.DATA:
            self._on_data(worker, number, AttemptData(*read_data(body)))
        elif kind is FrameKind.BEAT:
            statuses = [self._find_status(worker, token) for token in read_beat(body)]
            if not self.silent:
                worker.send_urgent(pack_frame(FrameKind.BEAT_ACK, number, beat_ack_body(self._good_for(), statuses)))
        else:
            raise WireError(f"{kind.name} is not a frame of a worker")

    @staticmethod
    def _on_data(worker: WorkerProcess, token: int, event: AttemptData) -> None:
        remote = worker.attempts.get(token)
        if remote is not None and event.number > remote.last_received:  # else a repetition after a reconnect
            remote.last_received = event.number
            remote.events.put(event)

    def _on_request(self, worker: WorkerProcess, number: int) -> None:
        if self._closing or self._draining:
            worker.send(pack_frame(FrameKind.LEAVE, number))
            return
        request = worker.requests[number] = WorkRequest(worker, number)
        self._requests.add(request)
        if worker.is_unusable:
            self._ignore_request(worker, number)

    def _find_status(self, worker: WorkerProcess, token: int) -> AttemptStatus:
        remote = worker.attempts.get(token)
        if remote is None:
            return AttemptStatus.KILL
        if remote.kill_within is not None:
            if not remote.kill_delivered:
                remote.kill_delivered = True
                remote.events.put(KillDelivered())
            return AttemptStatus.KILL
        if not remote.is_lease_held():
            return AttemptStatus.LOST
        return AttemptStatus.DRAIN if self._draining else AttemptStatus.GO

    def on_disconnect(self, connection: WorkerConnection, worker: WorkerProcess | None) -> None:
        """Forget a connection that ended. Its worker may reconnect until its time to live is over."""
        self._connections.discard(connection)
        if worker is not None and worker.connection is connection:
            self._cut_off(worker)
        if not self._listener.is_open and not self._connections:
            self._over.set()

    def _cut_off(self, worker: WorkerProcess) -> None:
        worker.connection = None
        self._requests.withdraw(worker)
        worker.requests.clear()

    def _end(self, token: int, event: RemoteEvent) -> None:
        remote, worker = self._attempts.pop(token)
        worker.attempts.pop(token, None)
        remote.events.put(event)
        self._finish_if_idle()

    def _check_workers(self) -> None:
        """Declare workers lost that have been silent for too long."""
        now, pause = time.monotonic(), self._ttl / _CHECKS_PER_TTL
        if now > self._checked_at + 3 * pause:
            # This process was suspended: frames that arrived meanwhile have not been read yet.
            for worker in self._workers.values():
                worker.last_frame_at = now
        self._checked_at = now
        for worker in list(self._workers.values()):
            if now > worker.last_frame_at + self._ttl + self._margin:
                self._mark_lost(worker)
        self._check_usable_workers(now)
        self._loop.call_later(pause, self._check_workers)

    def _check_usable_workers(self, now: float) -> None:
        """Report if for a while all workers have been ones on which items cannot begin."""
        if (
            not self._excluded
            or self._may_reconnect
            or not all(worker.is_unusable for worker in self._workers.values())
        ):
            self._no_usable_worker_since = math.inf
            return
        self._no_usable_worker_since = min(self._no_usable_worker_since, now)
        if not self._draining and now >= self._no_usable_worker_since + _JOIN_TIMEOUT:
            self._on_no_usable_worker(list(self._excluded.values()))

    def _mark_lost(self, worker: WorkerProcess) -> None:
        del self._workers[worker.id]
        self._may_reconnect |= worker.has_worked and not worker.is_unusable
        if worker.connection is not None:
            worker.connection.close()
            self._cut_off(worker)
        if worker.attempts:
            log.warning(
                "[COORDINATOR] worker %s is lost after %gs without contact; attempts lost with it: %d",
                worker.name,
                self._ttl,
                len(worker.attempts),
            )
        for token in list(worker.attempts):
            self._end(token, AttemptLost(f"worker {worker.name} was lost: no contact for {self._ttl:g}s"))

    def _release_unused(self) -> None:
        """Dismiss slots that have had nothing to do for a while."""
        for request in self._requests.release_unused(_UNUSED_TIMEOUT, self._can_release):
            self._dismiss(request)
        self._loop.call_later(_UNUSED_TIMEOUT / _UNUSED_CHECKS, self._release_unused)

    def _can_release(self, worker: WorkerProcess, requests: list[WorkRequest]) -> bool:
        """Return True if these requests may be dismissed: with several per slot, all of a worker's requests or none."""
        return self._width == 1 or (not worker.attempts and len(requests) == len(worker.requests))

    # -- shutdown ---------------------------------------------------------------------------------------------------

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
