"""Commands: a thread for each worker, which waits for one command at a time; a helper process starts and ends them."""

from __future__ import annotations

import errno
import heapq
import itertools
import logging
import os
import resource
import secrets
import select
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import CommandFailed, Interrupted, RateLimited, Transient
from .._core.records import Attempt
from .._core.states import Verdict
from ..attempts import PooledAttempt
from ..commands.command import Command
from ..commands.environment import Surroundings, base_environment
from ..commands.helper import kill_marked, signal_group
from ..commands.orphans import end, left_behind
from ..commands.output import Captured, ItemOutput, Outputs
from ..commands.redaction import Redaction
from ..commands.said import Misread, Said, read_said
from ..commands.spawner import Child, Spawner
from .threads import ThreadEngine

if TYPE_CHECKING:
    from ..run import Run

log = logging.getLogger("agentos")

_CHUNK = 65_536
_NAMED = 10
_DESCRIPTORS_EACH, _DESCRIPTORS_BESIDES = 8, 128
_PIPES_FULL = 8
_AFTER_ITS_END = 1.0  # for what a command has said, if something it left behind keeps its pipes open
_FORCED = 0.2  # what a command gets to end in when nobody waits for it any more


class CommandEngine(ThreadEngine):
    """Runs one command for each item, in a session and process group of its own."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        command = run.worker.call
        assert isinstance(command, Command)  # noqa: S101 - for the type checker: only then is this engine chosen
        self._command = command
        place = run.folder.place()
        self._end_orphans(place)
        for left in place.glob(".attempts-*"):
            shutil.rmtree(left, ignore_errors=True)
        session = secrets.token_hex(8)
        self._marks = (f"{session}.{number}" for number in itertools.count(1))
        self._attempts = place / f".attempts-{session}"  # what commands say of their end
        self._attempts.mkdir(mode=0o700)
        environ = os.environ if command.env is None else command.env
        holds_secret = (lambda _: False) if run.secrets is None else run.secrets.masker.is_in
        self._base = base_environment(environ, command.without, holds_secret)
        self._surroundings = Surroundings(command.run_id or _name_of_run(run), environ, self._attempts)
        self._spawner = Spawner(self._base, f"{session}.", self._attempts, command.cwd)
        redactors = None if run.secrets is None else Redaction(run.secrets.masker, run.secrets.secret_of).stream
        self._outputs = command.outputs or Outputs(None, redactors)
        self._slots: list[int] = []
        self._most_slots = 0
        self._slots_lock = threading.Lock()
        # A command that is to end may take this long; only then is it left behind.
        self.clean_up = command.kill_after + 1.0

    @staticmethod
    def _end_orphans(place: Path) -> None:
        """What an earlier session left running when it was killed, together with its helper."""
        orphans = left_behind(place)
        if orphans:
            named = ", ".join(map(str, orphans[:_NAMED])) + (" ..." if len(orphans) > _NAMED else "")
            log.warning("[COORDINATOR] ending %d processes of an earlier session of this run: %s", len(orphans), named)
            end(orphans)

    def start(self, workers: int) -> None:
        _make_room(_DESCRIPTORS_EACH * workers + _DESCRIPTORS_BESIDES)
        self._spawner.start()
        super().start(workers)

    def cancel(self, attempt: Attempt) -> bool:
        running = attempt.runner
        if running is None:
            return False
        running.end(self._spawner, _FORCED if attempt.cancelled == "stop" else self._command.kill_after)
        return True

    def close(self) -> None:
        self._spawner.close()
        shutil.rmtree(self._attempts, ignore_errors=True)
        try:
            self._attempts.parent.rmdir()
        except OSError:
            pass  # items that are not done keep something there

    # -- one command --------------------------------------------------------------------------------------------

    def _run_one(self, attempt: Attempt) -> Verdict:
        run = self._run
        value: Any = None
        error: BaseException | None = None
        running = attempt.runner = _Running(next(self._marks))
        slot = self._take_slot()
        try:
            if run.ledger.strict:
                self._wait_for_start(attempt)
            value = self._carry_out(attempt, running, slot)
        except BaseException as raised:  # noqa: BLE001 - whatever happens fails its item, not the run
            error = raised
        finally:
            self._give_slot(slot)
        try:
            return run.finish(attempt, value, error)
        finally:
            error = None  # or it and its traceback, which holds this frame, keep each other alive

    def _carry_out(self, attempt: Attempt, running: _Running, slot: int) -> dict[str, Any]:
        item, command = attempt.item, self._command
        argv = command.template.fill(item.payload, item.id, item.index + 1)
        text = command.template.text_of(item.payload)
        name = None if attempt.grant is None else attempt.grant.key.name
        checkpoint = self._run.folder.path_for(item.id)
        environment = self._surroundings.of(
            item_id=item.id,
            item=text,
            attempt=attempt.number,
            slot=slot,
            credential=name,
            checkpoint=checkpoint,
            mark=running.mark,
        )
        environment.update(self._credential(attempt, name))
        output = self._outputs.open(item.id, item.index, attempt.number, name)
        try:
            child = self._spawner.spawn(argv, environment, os.fsencode(text) if command.stdin else None)
            try:
                silent = self._follow(child, running, output)
            finally:
                child.close()
        finally:
            captured = output.finish()
        try:
            return self._outcome(attempt, running, captured, argv[0], silent)
        finally:
            self._surroundings.forget(item.id, attempt.number)

    def _credential(self, attempt: Attempt, name: str | None) -> dict[str, str]:
        secret = self._run.secret_for(attempt)
        if secret is None or name is None:
            return {}
        variables = {self._command.env_key_of(name): secret}
        if isinstance(attempt, PooledAttempt):
            credential = attempt.pool.credential(name)
            if credential.base_url is not None:
                variables["AGENTOS_BASE_URL"] = credential.base_url
            variables.update(credential.env)
        return variables

    def _follow(self, child: Child, running: _Running, output: ItemOutput) -> bool:
        """Take in what the command says until it has ended. True: it was silent for too long, and told to end."""
        poll = select.poll()
        streams = {child.stdout: "stdout", child.stderr: "stderr"}
        for descriptor in (child.status, *streams):
            poll.register(descriptor, select.POLLIN)
        idle, silent = self._command.idle_timeout, False
        heard_at, until = time.monotonic(), float("inf")
        open_streams = set(streams)
        leftovers = _PIPES_FULL  # of what it said, to be read after its end even if that took us long
        while open_streams or not running.ended:
            now = time.monotonic()
            if idle is not None and not silent and not running.ended:
                if now >= heard_at + idle and not poll.poll(0):
                    silent = True
                    running.end(self._spawner, self._command.kill_after)
                due = min(until, heard_at + idle) if not silent else until
            else:
                due = until
            if now >= until and (leftovers := leftovers - 1) < 0:
                break
            ready = poll.poll(None if due == float("inf") else max(0.0, due - now) * 1000 + 1)
            for descriptor, _ in ready:
                data = os.read(descriptor, _CHUNK)
                if descriptor == child.status:
                    if not running.hear(data, self._spawner):
                        poll.unregister(descriptor)
                    if running.ended:
                        until = time.monotonic() + _AFTER_ITS_END
                elif data:
                    running.writing = True
                    output.write(streams[descriptor], data)
                    running.writing = False
                    heard_at = time.monotonic()  # only now: whoever reads our own output may have taken his time
                else:
                    poll.unregister(descriptor)
                    open_streams.discard(descriptor)
        return silent

    # -- how it went --------------------------------------------------------------------------------------------

    def _outcome(
        self, attempt: Attempt, running: _Running, captured: Captured, program: str, silent: bool
    ) -> dict[str, Any]:
        """The value of a command that did its work; anything else is raised."""
        if running.fault is not None:
            raise _not_started(program, running.fault)
        if running.status is None:
            running.kill()  # the helper is gone, and can do it no more
        said = self._said(attempt)
        if said is not None:
            self._tell(attempt, said)
        if attempt.cancelled is not None and (running.asked_to_end or running.status != 0):
            raise Interrupted if attempt.cancelled == "stop" else self._run.timed_out()
        if silent and (running.asked_to_end or running.status != 0):
            raise TimeoutError(f"silent for {self._command.idle_timeout:g}s, and stopped")
        if said is not None and said.limited:
            raise RateLimited(said.rate_limited, model=said.model)  # which the pool is told by it
        if said is not None and (said.rejected or said.spent):
            raise CommandFailed(reason=f"its credential: {said.rejected or said.spent}", tail=captured.tail)
        if running.status is None:
            raise Transient("the process that starts commands ended, and this command with it")
        code = os.waitstatus_to_exitcode(running.status)
        if code or (said is not None and said.failed is not None):
            raise _failure(code, captured, said)
        value = {"exit": 0, "stdout": captured.stdout, "truncated": captured.truncated}
        return value if said is None or not said.usage else {**value, "usage": dict(said.usage)}

    def _said(self, attempt: Attempt) -> Said | None:
        path = self._surroundings.outcome_file(attempt.item.id, attempt.number)
        try:
            return read_said(path, self._run.clock.wall())
        except Misread as error:
            log.warning(
                "[COORDINATOR] %s: what its command wrote to AGENTOS_OUTCOME is not understood: %s",
                attempt.item.id,
                self._run.masked(str(error)),
            )
            return None

    @staticmethod
    def _tell(attempt: Attempt, said: Said) -> None:
        """What the pool is to know of the key, whatever becomes of the item."""
        if not isinstance(attempt, PooledAttempt) or attempt.grant is None:
            return
        lease = attempt.item_lease()
        try:
            if said.usage:
                lease.settle(said.usage)
            if said.rejected is not None:
                lease.rejected(said.rejected)
            if said.spent is not None:
                lease.spent(said.spent)
        except ValueError as error:
            log.warning("[COORDINATOR] %s: AGENTOS_OUTCOME: %s", attempt.item.id, error)

    # -- slots --------------------------------------------------------------------------------------------------

    def _take_slot(self) -> int:
        """The lowest number that no other running command has."""
        with self._slots_lock:
            if self._slots:
                return heapq.heappop(self._slots)
            self._most_slots += 1
            return self._most_slots

    def _give_slot(self, slot: int) -> None:
        with self._slots_lock:
            heapq.heappush(self._slots, slot)


class _Running:
    """A command from the moment it is asked for: what is known of it, and whether it is to end."""

    def __init__(self, mark: str) -> None:
        self.mark = mark  # what the environment of all its processes says
        self.pid: int | None = None
        self.status: int | None = None  # as the system tells it
        self.fault: int | None = None  # why it could not be started
        self.asked_to_end = False
        self.ended = False
        self.writing = False  # what it said waits to be shown: nothing is wrong with it
        self._end_after: float | None = None
        self._told = b""
        self._lock = threading.Lock()

    def hear(self, data: bytes, spawner: Spawner) -> bool:
        """Take in what the helper says. False: it will say nothing more."""
        self._told += data
        while b"\n" in self._told:
            line, _, self._told = self._told.partition(b"\n")
            kind, _, number = line.partition(b" ")
            if kind == b"K":
                self.asked_to_end = True
            elif kind == b"S":
                with self._lock:
                    self.pid = int(number)
                    asked = self._end_after
                if asked is not None:
                    spawner.kill(self.pid, asked, self.mark)  # it was to end before it had begun
            elif kind == b"E":
                self.fault = int(number)
                self.ended = True
            else:
                self.status = int(number)
                self.ended = True
        if not data:
            self.ended = True
        return bool(data)

    def kill(self) -> None:
        """Kill the command and all it started, without the helper."""
        if self.pid is not None:
            signal_group(self.pid, signal.SIGKILL)
        kill_marked(self.mark, whole=True)

    def end(self, spawner: Spawner, after: float) -> None:
        with self._lock:
            self._end_after = after
            pid = self.pid
        if pid is not None and not self.ended:
            spawner.kill(pid, after, self.mark)


def _name_of_run(run: Run) -> str:
    journal = run.options.journal
    return f"run-{secrets.token_hex(4)}" if journal is None else os.path.basename(os.path.abspath(journal))


def _make_room(descriptors: int) -> None:
    """Let this process have so many, as far as the system lets it: hundreds of commands have three pipes each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < descriptors:
        wanted = descriptors if hard == resource.RLIM_INFINITY else min(descriptors, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            pass  # then those that find none are tried again


def _not_started(program: str, number: int) -> Exception:
    if number in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        return Transient(f"the command could not be started: {os.strerror(number)}")
    reasons = {
        errno.ENOENT: f"command not found: {program}",
        errno.EACCES: f"{program} cannot be executed: permission denied",
        errno.E2BIG: "its arguments and environment are too long: use --stdin, or AGENTOS_ITEM_FILE",
    }
    reason = reasons.get(number, f"{program} cannot be executed: {os.strerror(number)}")
    return CommandFailed(reason=reason, exit=127 if number == errno.ENOENT else 126)


def _failure(code: int, captured: Captured, said: Said | None) -> CommandFailed:
    number = -code if code < 0 else None
    if said is not None and said.failed is not None:
        reason = said.failed
    elif number is not None:
        reason = f"killed by {_name_of(number)}"
    else:
        reason = f"exit {code}"
        if captured.last_error:
            reason += f": {captured.last_error}"
    return CommandFailed(reason=reason, exit=None if number else code, signal=number, tail=captured.tail)


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
