"""Items on other machines: a thread of the driver for each worker, which waits while its item runs elsewhere."""

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
from ....util.wakeup import ThreadBell
from ...core.records import Attempt
from ...core.states import Cause, Verdict
from ...engines.threads import ThreadEngine
from ...execution.attempt import PooledAttempt
from ...execution.dispatcher import Idle
from ...execution.error_policy import text_of
from ...output.capture import ItemOutput, Outputs
from ...remote.apply_report import log_line, replay, tell_lease
from ...remote.assignment import Assigner, Assignment
from ...remote.attempt_report import Line, Report, error_from
from ...remote.pickled import pack, unpack
from ...worker import SendsOutput
from ..wire.certificate import new_identity
from ..wire.messages import STREAM_OF, Channel
from ..worker.client import Post
from ..worker.slot import Job
from .driver_server import Hub
from .remote_attempt import Errand, Lost, NotTaken, Reported, Said, ToldToEnd
from .worker_process import Ask, Member

if TYPE_CHECKING:
    from ...execution.engine_run import EngineRun

log = logging.getLogger("agentos")

_MOST_LOST = 10_000  # attempts that are out, or of which a late result would be understood
_TTL = 10.0
TO_END = 2.0  # what a cancelled coroutine may take, there and back


class Seating(Protocol):
    """Who places seats on the machines of a cluster: each runs ``seat.sit(post)`` there."""

    def open(self, workers: int) -> tuple[str, int, int]:
        """Reach the cluster. Where to listen for its workers (host and port), and how many items a seat shall run."""
        ...

    def place(self, post: Post, hub: Hub) -> None:
        """Begin to place seats for that many workers, and to watch over them. They report to *hub*."""
        ...

    def one_more(self) -> None:
        """A seat for a worker that was left behind in its own, or in place of one where items cannot begin."""
        ...

    def needed(self) -> None:
        """There is work again: place seats that were let go because there was none. Must not wait."""
        ...

    def close(self) -> None:
        """The run is over, and no seat is needed any more. Must not wait."""
        ...


class _NoSeat(Exception):
    """The seat that had asked is gone or may have nothing now, and the attempt has not begun there."""


class ClusterEngine(ThreadEngine):
    """As many threads as the run has workers, each with one item elsewhere.

    A thread takes an attempt only when a seat has asked for one: nothing begins, and holds a key, that has no place to
    run in. The same thread hears what the attempt says, gets its report and finishes it. An attempt that is lost with
    its worker costs a try; what a lost worker brings later is evidence. Threads with nothing to do keep no seat: after
    a while the hub lets seats go that nobody wants, and whoever is woken for work and finds none has some placed again.

    A worker that does not hear of the driver ends what it has within *ttl* seconds. So leases of attempts that are out
    when this process ends do not end with it: see ``Store.lend``.
    """

    clean_up = TO_END

    def __init__(self, run: EngineRun, seating: Seating, *, ttl: float | None) -> None:
        super().__init__(run)
        self._seating = seating
        pool: Any = run.state.lessor
        lease_ttl = getattr(pool, "lease_ttl", None)  # of a shared store
        self._ttl = ttl_for(ttl, lease_ttl)
        self._good_for: Callable[[], float] = (lambda: math.inf) if lease_ttl is None else pool.good_for
        if lease_ttl is not None:
            pool.lend(self, self._ttl)  # before it grants anything that is then used elsewhere
        call = run.worker.call
        self._outputs: Outputs | None = call.outputs if isinstance(call, SendsOutput) else None
        self._can_be_ended = run.worker.is_async or run.worker.is_command  # a function can only be asked
        self._assigner = Assigner(run, ship_secrets=run.state.options.ship_secrets)
        self._lock = threading.Lock()
        self._hub: Hub | None = None
        self._has_begun = self._closed = False
        self._out: dict[int, Attempt] = {}  # handed to a seat, and not come back: lost ones are among them
        self._late: queue.SimpleQueue[tuple[Attempt, bytes] | None] | None = None

    # -- the engine's verbs -------------------------------------------------------------------------------------

    def start(self, workers: int) -> None:
        # Not here: the caller may be an event loop, perhaps the very one on which its cluster runs.
        threading.Thread(target=self._open, args=(workers,), name="agentos-opening", daemon=True).start()

    def _open(self, workers: int) -> None:
        try:
            if self._run.source.total is not None:
                self._wait_for_work()  # what is done already needs no cluster
            if self._run.state.closing:
                self._seating.close()
                return
            host, port, width = self._seating.open(workers)
            identity = new_identity()
            hub = Hub(
                identity,
                pickle.dumps(self._job(width)),
                ttl=self._ttl,
                width=width,
                good_for=self._good_for,
                on_late=self._on_late,
                on_unfit=self._seating.one_more,
                on_nobody=self._on_nobody,
                on_closed=self._on_closed,
            )
            host, port = _opened(hub, host, port)
        except Exception as error:  # noqa: BLE001 - raised by whoever waits for the run
            self._seating.close()
            self._run.shutdown.unable(error)
            return
        with self._lock:
            self._hub = hub
            if self._closed:
                hub.close()
                return
        post = Post(self._assigner.run_id, host, port, identity.certificate, hub.password, self._ttl)
        try:
            self._seating.place(post, hub)
            threading.Thread(target=self._pass_on_stop, args=(hub,), name="agentos-stopping", daemon=True).start()
            super().start(workers)
        except Exception as error:  # noqa: BLE001 - see above; the hub is closed with the engine
            self._run.shutdown.unable(error)
        self._has_begun = True

    def replace(self) -> None:
        super().replace()
        if self._has_begun:
            self._seating.one_more()

    def cancel(self, attempt: Attempt) -> bool:
        errand = attempt.runner
        if errand is None or self._hub is None:
            return False
        self._hub.kill(errand, self._time_to_end(attempt))
        return self._can_be_ended

    def _time_to_end(self, _attempt: Attempt) -> float:
        """How long an attempt that is to end may take, before it is ended by force."""
        return 0.0

    def kill(self) -> None: ...

    def close(self) -> None:
        with self._lock:
            self._closed = True
            hub = self._hub
        if hub is not None:
            hub.close()  # once nothing is out any more, and then the seating
        self._run.shutdown.stopping.set()

    def cut_off(self) -> None:
        """The process ends: what is out hears no more of it, and ends by itself."""
        if self._hub is not None:
            self._hub.silent = True

    def _pass_on_stop(self, hub: Hub) -> None:
        self._run.shutdown.stopping.wait()
        hub.drain()

    def _job(self, width: int) -> Job:
        worker = self._run.worker
        return Job(pack(worker.call, "the worker function"), is_async=worker.is_async, width=width)

    # -- a worker thread ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        run, hub = self._run, self._hub
        assert hub is not None  # noqa: S101 - for the type checker: threads start after it
        try:
            was_idle = False
            while (ask := hub.ask_now() or self._next_ask(hub, was_idle)) is not None:
                attempt = run.next_attempt()
                if isinstance(attempt, Idle):
                    bell = ThreadBell()
                    attempt = self._look_again(bell)
                    if isinstance(attempt, Idle):
                        was_idle = True
                        hub.put_back(ask)
                        bell.wait()
                        continue
                was_idle = False
                if attempt is None:
                    hub.dismiss(ask)
                    return
                if self._run_there(hub, ask, attempt) is Verdict.LATE:
                    return
        except BaseException as error:
            log.exception("[COORDINATOR] a worker thread of agentos itself failed")
            run.shutdown.crashed(error)

    def _next_ask(self, hub: Hub, was_idle: bool) -> Ask | None:
        """Wait for a seat. None: there will be none."""
        run, admission = self._run, self._run.admission
        recalls = was_idle and hub.is_idle and bool(admission.requests)
        if recalls:
            admission.recall()  # a key that has come meanwhile is for others until there is a seat
        if hub.is_idle:
            was_idle |= self._wait_for_work()  # perhaps no seat is needed at all
        if was_idle:
            self._seating.needed()
        ask = hub.next_ask()
        if recalls:
            run.state.idle.wake_all()  # what was recalled may be for any of us
        return ask

    def _wait_for_work(self) -> bool:
        """Until there is something to do, or nothing more will be. Returns whether that took any time."""
        run, slept = self._run, False
        while not run.admission.find_work():
            bell = ThreadBell()
            run.state.idle.register(bell)
            if run.admission.find_work():
                self._found_work(bell)
                break
            bell.wait()
            slept = True
        return slept

    def _run_there(self, hub: Hub, ask: Ask, attempt: Attempt) -> Verdict:
        run = self._run
        value: Any = None
        error: BaseException | None = None
        try:
            if run.ledger.strict:
                self._wait_for_start(attempt)
            value, error = self._carry_out(hub, ask, attempt)
        except _NoSeat as why:
            return self._not_begun(attempt, str(why))
        except BaseException as raised:  # noqa: BLE001 - whatever happens fails its item, not the run
            error = raised
        try:
            if not ask.used:
                hub.put_back(ask)  # the item could not even be sent
                if isinstance(error, Interrupted):
                    return self._not_begun(attempt, "the run stopped before it could begin")
            return run.finish(attempt, value, error)
        finally:
            error = None  # or it and its traceback, which holds this frame, keep each other alive

    def _not_begun(self, attempt: Attempt, why: str) -> Verdict:
        """It never left the driver: whoever counts what was interrupted must not count it."""
        if self._run.take_back(attempt, why):
            return Verdict.INTERRUPTED
        return self._run.finish(attempt, None, Interrupted())

    def _carry_out(self, hub: Hub, ask: Ask, attempt: Attempt) -> tuple[Any, BaseException | None]:
        """Have the attempt run by the seat that asked: its value, or its error."""
        assignment = self._assigner.assignment(attempt)
        if self._outputs is None:
            return self._exchange(hub, ask, attempt, assignment)
        output = self._outputs.of_attempt(attempt)
        try:
            return self._exchange(hub, ask, attempt, assignment, output)
        finally:
            output.finish()

    def _exchange(
        self, hub: Hub, ask: Ask, attempt: Attempt, assignment: Assignment, output: ItemOutput | None = None
    ) -> tuple[Any, BaseException | None]:
        errand = attempt.runner = Errand(attempt.token, pickle.dumps(assignment), _holding(attempt))
        self._check_still_wanted(attempt)  # only now: who cancels it from here on finds its errand
        if len(self._out) < _MOST_LOST:
            self._out[attempt.token] = attempt
        hub.hand_out(ask, errand)
        end, trouble = self._follow(hub, attempt, errand, output)
        if not isinstance(end, Lost):
            self._out.pop(attempt.token, None)
        if isinstance(end, NotTaken):
            raise _NoSeat("its seat was gone before it could begin")
        if trouble is not None:
            return None, trouble
        if isinstance(end, Lost):
            return None, WorkerLost(end.reason)
        report: Report = pickle.loads(end.body)  # noqa: S301 - from a seat of this run
        if report.unready is not None:
            self._set_aside(hub, ask.link, self._run.state.masked(report.unready))
            raise _NoSeat(f"it could not begin on worker {ask.link.name}")
        ask.link.has_worked = True
        return self._came_back(attempt, report)

    def _follow(
        self, hub: Hub, attempt: Attempt, errand: Errand, output: ItemOutput | None
    ) -> tuple[Reported | Lost | NotTaken, BaseException | None]:
        """Hear what the attempt says, to its end; never less, for until then its key is in use.

        If what it says cannot be taken it is told to end, and why is returned too.
        """
        trouble: BaseException | None = None
        while isinstance(event := errand.events.get(), Said | ToldToEnd):
            if isinstance(event, ToldToEnd):
                self._run.supervisor.wake()  # which knows how long it may take
                continue
            try:
                self._hear(attempt, errand, event, output)
            except BaseException as error:  # noqa: BLE001 - it is the item's error, once that has ended
                if trouble is None:
                    trouble = error
                    hub.kill(errand, self._time_to_end(attempt))
            hub.taken(errand, event.number)
        return event, trouble

    def _check_still_wanted(self, attempt: Attempt) -> None:
        self._run.check_still_wanted(attempt)
        if attempt.cancelled is not None:
            raise self._run.called_off(attempt)

    def _hear(self, attempt: Attempt, errand: Errand, said: Said, output: ItemOutput | None) -> None:
        """Something that the attempt said while it goes on. Raises what keeps its output from being taken."""
        if said.channel is Channel.NEWS:
            self._hear_news(attempt, said.data)
        elif output is not None:
            errand.writing = True
            try:
                output.write(STREAM_OF[said.channel], said.data)
            finally:
                errand.writing = False

    def _hear_news(self, attempt: Attempt, data: bytes) -> None:
        try:
            news = pickle.loads(data)  # noqa: S301 - from a seat of this run
        except Exception as error:  # noqa: BLE001 - it is lost; the attempt is not
            kind = type(error).__name__
            log.warning("[COORDINATOR] %s said something that cannot be read (%s)", attempt.item.id, kind)
            return
        if isinstance(news, Line):
            log_line(self._run, news)
        else:
            tell_lease(attempt, news)

    def _came_back(self, attempt: Attempt, report: Report) -> tuple[Any, BaseException | None]:
        if report.cancelled and attempt.cancelled is None:
            return None, WorkerLost("its worker lost touch with the run, and ended it")
        return replay(self._run, attempt, report)

    def _set_aside(self, hub: Hub, worker: Member, why: str) -> None:
        if hub.set_aside(worker, why):
            log.warning("[COORDINATOR] worker %s gets no items, they cannot begin there: %s", worker.name, why)

    def _on_nobody(self, reasons: list[str]) -> None:
        """On the hub's thread, which has no time for a stop."""
        if self._run.state.closing:
            return
        who = "a worker that" if len(reasons) == 1 else f"workers that, all {len(reasons)} of them,"
        reason = f"{who} could not begin: {reasons[-1]}"
        stop = partial(self._run.shutdown.stop, reason, cause=Cause.FAULT)
        threading.Thread(target=stop, name="agentos-nobody", daemon=True).start()

    def _on_late(self, token: int, body: bytes) -> None:
        """An attempt that was lost with its worker has come back. On the hub's thread, which has no time to read it."""
        attempt = self._out.pop(token, None)
        if attempt is None:
            return
        if self._late is None:
            self._late = queue.SimpleQueue()
            threading.Thread(target=self._keep_late, args=(self._late,), name="agentos-late", daemon=True).start()
        self._late.put((attempt, body))

    def _on_closed(self) -> None:
        self._seating.close()
        if self._late is not None:
            self._late.put(None)

    def _keep_late(self, late: queue.SimpleQueue[tuple[Attempt, bytes] | None]) -> None:
        while (came := late.get()) is not None:
            self._keep(*came)

    def _keep(self, attempt: Attempt, body: bytes) -> None:
        """What it brings is evidence."""
        try:
            report: Report = pickle.loads(body)  # noqa: S301 - from a seat of this run
            value = None if report.value is None else unpack(report.value, "what its worker returned")
            error = None if report.failure is None else self._run.state.masked(text_of(error_from(report.failure)))
            self._run.ledger.late(attempt, value, error)
        except Exception as error:  # noqa: BLE001 - it is too late to matter
            log.warning("[COORDINATOR] a late result could not be read (%s)", type(error).__name__)
            return
        log.warning("[COORDINATOR] %s came back after its worker was lost; kept as evidence", attempt.item.id)


def ttl_for(told: float | None, lease_ttl: float | None) -> float:
    """For how long a worker goes on without its driver: *told*, or what fits the leases of a shared store.

    They are renewed when a third of their time is over. So a driver that vanishes leaves two thirds of it at least, and
    a worker that takes half has stopped before others get its key. ValueError: *told* is more.
    """
    most = math.inf if lease_ttl is None else lease_ttl / 2
    if told is None:
        return min(_TTL, most)
    if told > most:
        raise ValueError(
            f"ttl of the engine ({told:g} s) must be at most half of the pool's lease_ttl ({lease_ttl:g} s), so that a "
            "worker without its driver stops before others get its key: shorten the one, or lengthen the other"
        )
    return told


def _opened(hub: Hub, host: str, port: int) -> tuple[str, int]:
    try:
        return hub.open(host, port)
    except OSError as error:
        raise EngineUnavailable(
            place=f"{host}:{port}, where the cluster's workers are to report,", detail=str(error)
        ) from None


def _holding(attempt: Attempt) -> Callable[[], bool]:
    """Whether the attempt's lease is still in force."""
    if isinstance(attempt, PooledAttempt) and attempt.grant is not None:
        pool, grant = attempt.pool, attempt.grant
        return lambda: pool.loss_of(grant) is None
    return lambda: True
