"""Engine that runs attempts on a cluster: one driver thread per worker, which waits while its attempt runs remotely."""

from __future__ import annotations

import logging
import math
import pickle
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ....errors import EngineUnavailable, Interrupted, WorkerLost
from ....util.wakeup import ThreadWakeup
from ...core.records import Attempt
from ...core.states import Cause, Verdict
from ...engines.threads import ThreadEngine
from ...execution.attempt import PooledAttempt
from ...execution.dispatcher import Idle
from ...execution.error_policy import format_error
from ...output.capture import ItemOutput, OutputCapture
from ...remote.apply_report import apply_lease_message, apply_report, log_line
from ...remote.assignment import Assignment, AssignmentBuilder
from ...remote.attempt_report import AttemptReport, LogLine, build_error
from ...remote.pickled import pack, unpack
from ...worker import SendsOutput
from ..wire.certificate import create_identity
from ..wire.messages import STREAM_OF, Channel
from ..worker.client import DriverEndpoint
from ..worker.slot import WorkerJob
from .driver_server import DriverServer
from .remote_attempt import AttemptData, AttemptLost, AttemptReported, KillDelivered, NotAssigned, RemoteAttempt
from .worker_process import WorkerProcess, WorkRequest

if TYPE_CHECKING:
    from ...execution.engine_run import EngineRun

log = logging.getLogger("agentos")

_MAX_LOST = 10_000  # attempts assigned, or lost and still recognised if they report late
_TTL = 10.0
TIME_TO_END = 2.0  # seconds that a cancelled coroutine may take, including the round trip


class WorkerPlacement(Protocol):
    """Places worker slots on a cluster; each calls ``run_worker_slot(endpoint)`` there."""

    def open(self, workers: int) -> tuple[str, int, int]:
        """Connect to the cluster. Return host and port to listen on, and the number of items per slot."""
        ...

    def place(self, endpoint: DriverEndpoint, server: DriverServer) -> None:
        """Start to place and watch slots for that many workers; they connect to *server*."""
        ...

    def add_slot(self) -> None:
        """Place one more slot, for an abandoned worker or one on which items cannot begin."""
        ...

    def request_slots(self) -> None:
        """Place slots again that were dismissed for lack of work. Must not block."""
        ...

    def close(self) -> None:
        """Release all slots: the run is over. Must not block."""
        ...


class _NoSlot(Exception):
    """The slot is gone or gets no items now, and the attempt has not begun there."""


class ClusterEngine(ThreadEngine):
    """Runs as many threads as the run has workers, each with one attempt on the cluster.

    A thread takes an attempt only after a slot has requested one, so that no attempt holds a key without a place to
    run. The same thread receives the attempt's messages and its report, and finishes it. An attempt that is lost with
    its worker counts as a try; what a lost worker reports later is recorded as evidence. Slots without work are
    dismissed after a while; a thread that is woken for work and finds no slot has some placed again.

    A worker that loses contact with the driver ends its attempts within *ttl* seconds. So leases of attempts that run
    remotely when this process ends do not end with it: see ``Store.delegate``.
    """

    clean_up = TIME_TO_END

    def __init__(self, run: EngineRun, placement: WorkerPlacement, *, ttl: float | None) -> None:
        super().__init__(run)
        self._placement = placement
        pool: Any = run.state.pool
        lease_ttl = getattr(pool, "lease_ttl", None)  # set by a shared store
        self._ttl = compute_ttl(ttl, lease_ttl)
        self._good_for: Callable[[], float] = (lambda: math.inf) if lease_ttl is None else pool.valid_for
        if lease_ttl is not None:
            pool.delegate(self, self._ttl)  # before the pool grants anything that is used remotely
        call = run.worker.call
        self._outputs: OutputCapture | None = call.outputs if isinstance(call, SendsOutput) else None
        self._can_be_ended = run.worker.is_async or run.worker.is_command  # a function can only be asked to end
        self._assigner = AssignmentBuilder(run, ship_secrets=run.state.options.ship_secrets)
        self._lock = threading.Lock()
        self._server: DriverServer | None = None
        self._has_begun = self._closed = False
        self._in_flight: dict[int, Attempt] = {}  # assigned and not yet reported, including lost ones
        self._late: queue.SimpleQueue[tuple[Attempt, bytes] | None] | None = None

    # -- engine interface -------------------------------------------------------------------------------------------

    def start(self, workers: int) -> None:
        # On a thread: the caller may be an event loop, perhaps the one on which its cluster runs.
        threading.Thread(target=self._open, args=(workers,), name="agentos-opening", daemon=True).start()

    def _open(self, workers: int) -> None:
        try:
            if self._run.source.total is not None:
                self._wait_for_work()  # items that are done already need no cluster
            if self._run.state.closing:
                self._placement.close()
                return
            host, port, width = self._placement.open(workers)
            identity = create_identity()
            server = DriverServer(
                identity,
                pickle.dumps(self._job(width)),
                ttl=self._ttl,
                width=width,
                good_for=self._good_for,
                on_late=self._on_late,
                on_excluded_slot=self._placement.add_slot,
                on_no_usable_worker=self._on_no_usable_worker,
                on_closed=self._on_closed,
            )
            host, port = _opened(server, host, port)
        except Exception as error:  # noqa: BLE001 - raised to the caller that waits for the run
            self._placement.close()
            self._run.shutdown.on_engine_unavailable(error)
            return
        with self._lock:
            self._server = server
            if self._closed:
                server.close()
                return
        endpoint = DriverEndpoint(self._assigner.run_id, host, port, identity.certificate, server.password, self._ttl)
        try:
            self._placement.place(endpoint, server)
            threading.Thread(target=self._forward_stop, args=(server,), name="agentos-stopping", daemon=True).start()
            super().start(workers)
        except Exception as error:  # noqa: BLE001 - see above; the server is closed with the engine
            self._run.shutdown.on_engine_unavailable(error)
        self._has_begun = True

    def replace(self) -> None:
        super().replace()
        if self._has_begun:
            self._placement.add_slot()

    def cancel(self, attempt: Attempt) -> bool:
        remote = attempt.runner
        if remote is None or self._server is None:
            return False
        self._server.kill(remote, self._time_to_end(attempt))
        return self._can_be_ended

    def _time_to_end(self, _attempt: Attempt) -> float:
        """Return the seconds an attempt may take to end before it is ended by force."""
        return 0.0

    def kill(self) -> None: ...

    def close(self) -> None:
        with self._lock:
            self._closed = True
            server = self._server
        if server is not None:
            server.close()  # it closes when no attempt is assigned, and then the placement
        self._run.shutdown.stopping.set()

    def disconnect_workers(self) -> None:
        """Send no more signs of life, because this process ends: remote attempts then end by themselves."""
        if self._server is not None:
            self._server.silent = True

    def _forward_stop(self, server: DriverServer) -> None:
        self._run.shutdown.stopping.wait()
        server.drain()

    def _job(self, width: int) -> WorkerJob:
        worker = self._run.worker
        return WorkerJob(pack(worker.call, "the worker function"), is_async=worker.is_async, width=width)

    # -- a worker thread ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        run, server = self._run, self._server
        assert server is not None  # noqa: S101 - for the type checker: threads start after it
        try:
            was_idle = False
            while (request := server.try_take_request() or self._next_request(server, was_idle)) is not None:
                attempt = run.next_attempt()
                if isinstance(attempt, Idle):
                    wakeup = ThreadWakeup()
                    attempt = self._recheck(wakeup)
                    if isinstance(attempt, Idle):
                        was_idle = True
                        server.return_request(request)
                        wakeup.wait()
                        continue
                was_idle = False
                if attempt is None:
                    server.dismiss(request)
                    return
                if self._run_remotely(server, request, attempt) is Verdict.LATE:
                    return
        except BaseException as error:
            log.exception("[COORDINATOR] a worker thread of agentos itself failed")
            run.shutdown.on_internal_error(error)

    def _next_request(self, server: DriverServer, was_idle: bool) -> WorkRequest | None:
        """Wait for a slot's request. Return None if there will be none."""
        run, dispatcher = self._run, self._run.dispatcher
        withdraws = was_idle and server.is_idle and bool(dispatcher.requests)
        if withdraws:
            dispatcher.withdraw_requests()  # until there is a slot, a key that was granted meanwhile is for others
        if server.is_idle:
            was_idle |= self._wait_for_work()  # perhaps no slot is needed at all
        if was_idle:
            self._placement.request_slots()
        request = server.next_request()
        if withdraws:
            run.state.idle.wake_all()  # the withdrawn work may be for any thread
        return request

    def _wait_for_work(self) -> bool:
        """Wait until there is work or none will come. Return whether that took any time."""
        run, slept = self._run, False
        while not run.dispatcher.has_work():
            wakeup = ThreadWakeup()
            run.state.idle.register(wakeup)
            if run.dispatcher.has_work():
                self._unregister(wakeup)
                break
            wakeup.wait()
            slept = True
        return slept

    def _run_remotely(self, server: DriverServer, request: WorkRequest, attempt: Attempt) -> Verdict:
        run = self._run
        value: Any = None
        error: BaseException | None = None
        try:
            if run.recorder.strict:
                self._wait_for_start(attempt)
            value, error = self._run_on_worker(server, request, attempt)
        except _NoSlot as why:
            return self._requeue(attempt, str(why))
        except BaseException as raised:  # noqa: BLE001 - whatever happens fails its item, not the run
            error = raised
        try:
            if not request.is_used:
                server.return_request(request)  # the item could not even be sent
                if isinstance(error, Interrupted):
                    return self._requeue(attempt, "the run stopped before it could begin")
            return run.finish(attempt, value, error)
        finally:
            error = None  # breaks the reference cycle between the error's traceback and this frame

    def _requeue(self, attempt: Attempt, why: str) -> Verdict:
        """Requeue an attempt that never left the driver, so that it does not count as interrupted."""
        if self._run.requeue(attempt, why):
            return Verdict.INTERRUPTED
        return self._run.finish(attempt, None, Interrupted())

    def _run_on_worker(
        self, server: DriverServer, request: WorkRequest, attempt: Attempt
    ) -> tuple[Any, BaseException | None]:
        """Run the attempt on the slot that made the request. Return its value or its error."""
        assignment = self._assigner.build(attempt)
        if self._outputs is None:
            return self._exchange(server, request, attempt, assignment)
        output = self._outputs.open_attempt(attempt)
        try:
            return self._exchange(server, request, attempt, assignment, output)
        finally:
            output.finish()

    def _exchange(
        self,
        server: DriverServer,
        request: WorkRequest,
        attempt: Attempt,
        assignment: Assignment,
        output: ItemOutput | None = None,
    ) -> tuple[Any, BaseException | None]:
        remote = attempt.runner = RemoteAttempt(attempt.token, pickle.dumps(assignment), _build_lease_check(attempt))
        self._check_still_wanted(attempt)  # after attempt.runner is set, so that a later cancellation finds it
        if len(self._in_flight) < _MAX_LOST:
            self._in_flight[attempt.token] = attempt
        server.assign(request, remote)
        end, failure = self._follow(server, attempt, remote, output)
        if not isinstance(end, AttemptLost):
            self._in_flight.pop(attempt.token, None)
        if isinstance(end, NotAssigned):
            raise _NoSlot("its worker slot was gone before it could begin")
        if failure is not None:
            return None, failure
        if isinstance(end, AttemptLost):
            return None, WorkerLost(end.reason)
        report: AttemptReport = pickle.loads(end.body)  # noqa: S301 - from a worker of this run
        if report.unready is not None:
            self._exclude_worker(server, request.worker, self._run.state.masked(report.unready))
            raise _NoSlot(f"it could not begin on worker {request.worker.name}")
        request.worker.has_worked = True
        return self._on_report(attempt, report)

    def _follow(
        self, server: DriverServer, attempt: Attempt, remote: RemoteAttempt, output: ItemOutput | None
    ) -> tuple[AttemptReported | AttemptLost | NotAssigned, BaseException | None]:
        """Process the attempt's data until its last event: until then its key is in use.

        If its data cannot be processed, ask the attempt to end and return that error as well.
        """
        failure: BaseException | None = None
        while isinstance(event := remote.events.get(), AttemptData | KillDelivered):
            if isinstance(event, KillDelivered):
                self._run.timers.wake()  # the time to end starts now
                continue
            try:
                self._on_data(attempt, remote, event, output)
            except BaseException as error:  # noqa: BLE001 - it becomes the item's error once the attempt has ended
                if failure is None:
                    failure = error
                    server.kill(remote, self._time_to_end(attempt))
            server.acknowledge(remote, event.number)
        return event, failure

    def _check_still_wanted(self, attempt: Attempt) -> None:
        self._run.check_still_wanted(attempt)
        if attempt.cancelled is not None:
            raise self._run.build_cancellation(attempt)

    def _on_data(self, attempt: Attempt, remote: RemoteAttempt, event: AttemptData, output: ItemOutput | None) -> None:
        """Process data of a running attempt. Raise the error that prevents its output from being written."""
        if event.channel is Channel.MESSAGE:
            self._on_message(attempt, event.data)
        elif output is not None:
            remote.writing = True
            try:
                output.write(STREAM_OF[event.channel], event.data)
            finally:
                remote.writing = False

    def _on_message(self, attempt: Attempt, data: bytes) -> None:
        try:
            message = pickle.loads(data)  # noqa: S301 - from a worker of this run
        except Exception as error:  # noqa: BLE001 - the message is lost, the attempt is not
            kind = type(error).__name__
            log.warning("[COORDINATOR] a message of %s cannot be read (%s)", attempt.item.id, kind)
            return
        if isinstance(message, LogLine):
            log_line(self._run, message)
        else:
            apply_lease_message(attempt, message)

    def _on_report(self, attempt: Attempt, report: AttemptReport) -> tuple[Any, BaseException | None]:
        if report.cancelled and attempt.cancelled is None:
            return None, WorkerLost("its worker lost touch with the run, and ended it")
        return apply_report(self._run, attempt, report)

    def _exclude_worker(self, server: DriverServer, worker: WorkerProcess, why: str) -> None:
        if server.exclude_worker(worker, why):
            log.warning("[COORDINATOR] worker %s gets no items because they cannot begin there: %s", worker.name, why)

    def _on_no_usable_worker(self, reasons: list[str]) -> None:
        """Stop the run, on another thread: the server's thread must not block."""
        if self._run.state.closing:
            return
        who = "a worker that" if len(reasons) == 1 else f"workers that, all {len(reasons)} of them,"
        reason = f"{who} could not begin: {reasons[-1]}"
        stop = partial(self._run.shutdown.stop, reason, cause=Cause.FAULT)
        threading.Thread(target=stop, name="agentos-nobody", daemon=True).start()

    def _on_late(self, token: int, body: bytes) -> None:
        """Queue the report of an attempt that was lost before. The server's thread must not spend time on it."""
        attempt = self._in_flight.pop(token, None)
        if attempt is None:
            return
        if self._late is None:
            self._late = queue.SimpleQueue()
            threading.Thread(target=self._record_late, args=(self._late,), name="agentos-late", daemon=True).start()
        self._late.put((attempt, body))

    def _on_closed(self) -> None:
        self._placement.close()
        if self._late is not None:
            self._late.put(None)

    def _record_late(self, late: queue.SimpleQueue[tuple[Attempt, bytes] | None]) -> None:
        while (came := late.get()) is not None:
            self._record_evidence(*came)

    def _record_evidence(self, attempt: Attempt, body: bytes) -> None:
        """Record a late report as evidence."""
        try:
            report: AttemptReport = pickle.loads(body)  # noqa: S301 - from a worker of this run
            value = None if report.value is None else unpack(report.value, "what its worker returned")
            error = (
                None if report.failure is None else self._run.state.masked(format_error(build_error(report.failure)))
            )
            self._run.recorder.record_late(attempt, value, error)
        except Exception as error:  # noqa: BLE001 - it is too late to matter
            log.warning("[COORDINATOR] a late result could not be read (%s)", type(error).__name__)
            return
        log.warning("[COORDINATOR] %s reported after its worker was lost; recorded as evidence", attempt.item.id)


def compute_ttl(ttl: float | None, lease_ttl: float | None) -> float:
    """Return the seconds a worker goes on without its driver: *ttl*, or a value that fits a shared store's leases.

    Leases are renewed when a third of their time is over. So a driver that vanishes leaves at least two thirds of it,
    and a worker that stops after half has stopped before others get its key. Raise ValueError if *ttl* is more than
    half.
    """
    most = math.inf if lease_ttl is None else lease_ttl / 2
    if ttl is None:
        return min(_TTL, most)
    if ttl > most:
        raise ValueError(
            f"ttl of the engine ({ttl:g} s) must be at most half of the pool's lease_ttl ({lease_ttl:g} s), so that a "
            "worker without its driver stops before others get its key: decrease ttl or increase lease_ttl"
        )
    return ttl


def _opened(server: DriverServer, host: str, port: int) -> tuple[str, int]:
    try:
        return server.open(host, port)
    except OSError as error:
        raise EngineUnavailable(
            place=f"{host}:{port}, where the cluster's workers connect,", detail=str(error)
        ) from None


def _build_lease_check(attempt: Attempt) -> Callable[[], bool]:
    """Return a function that tells whether the attempt's lease is still in force."""
    if isinstance(attempt, PooledAttempt) and attempt.grant is not None:
        pool, grant = attempt.pool, attempt.grant
        return lambda: pool.find_loss_reason(grant) is None
    return lambda: True
