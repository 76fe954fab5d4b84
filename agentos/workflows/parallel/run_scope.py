"""Signal handling and input feeding around a run."""

from __future__ import annotations

from ...runs.execution.run import Run
from ...runs.execution.signal_watcher import WATCH
from ...util.wakeup import ThreadWakeup


class SignalScope:
    """Within this scope, signals of the process stop the run, and Ctrl-Z suspends it."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __enter__(self) -> None:
        try:
            WATCH.job_control.add(self._run)
            WATCH.join(self._run)
        except BaseException:
            try:
                self.__exit__()
            finally:
                self._run.conclude()  # it was never started, but its journal is open
            raise

    def __exit__(self, *_: object) -> None:
        WATCH.job_control.remove(self._run)
        WATCH.leave(self._run)


def feed_input(run: Run) -> None:
    """Feed the items of an input that may block to the run, as far as there is room, on a thread of its own."""
    room = ThreadWakeup()
    run.state.on_room = room.wake
    try:
        for payload in run.source.iterator:
            run.dispatcher.push(payload)
            while run.dispatcher.input_room() <= 0 and not run.state.closing:
                room.wait()
            if run.state.closing:
                return
    except Exception as error:  # noqa: BLE001 - the user's input; the run ends and reports it
        if not run.is_over:
            run.shutdown.on_input_error(error)
    finally:
        run.dispatcher.end_input()
