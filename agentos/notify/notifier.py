"""The process that sends messages: ``python -m agentos.notify.notifier``, with the driver's reports on its input.

The first line says what to send where; then come facts about the run, and at last how it ended. If the input ends
without that, the driver has died.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ..util.durations import format_duration
from ..util.private_folder import PrivateFolder
from .channels import TRIES, NotSent, send
from .rules import RunWatch, choose_command, may_tell, name_end
from .targets import NotifyTarget

STATE_NAME: Final = "notified.json"
LOG_NAME: Final = "notify.log"

_LOOK: Final = 1.0  # seconds between two looks at the clock
_PAUSES: Final = (0.5, 2.0)  # seconds between two tries
_LAST: Final = 30.0  # seconds that messages have after the run's end
_MOST_LOG: Final = 1_000_000  # bytes

_WORDS: Final = {
    "ended": "ended",
    "stopped": "was stopped",
    "halted": "halted early",
    "keys": "has no usable key left: all are dead or spent",
    "cooling": "stands still: all keys are cooling down",
    "stuck": "has finished nothing for a while",
    "crashed": "crashed: its process is gone",
}


class Notifier:
    """Takes the lines of one driver and sends what is news. *start* runs a function on a thread."""

    def __init__(
        self,
        hello: Mapping[str, Any],
        *,
        send_to: Callable[[NotifyTarget, Mapping[str, Any]], None] = send,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._run = hello["run"]
        self._folder = Path(hello["folder"])
        self._commands = hello["commands"]
        self._targets = [NotifyTarget.from_json(each) for each in hello["targets"]]
        self._watches = [RunWatch(target.cooling_after, target.stuck_after) for target in self._targets]
        self._send_to = send_to
        self._wall = wall
        self._began = wall()
        self._facts: dict[str, Any] = {"done": 0, "failed": 0, "left": None, "keys": 0, "usable": 0, "resting": 0}
        self._stopping: str | None = None
        self._end: dict[str, Any] | None = None
        self._told = self._read_told()
        self._log_lock = threading.Lock()
        self.threads: list[threading.Thread] = []

    def take(self, line: Mapping[str, Any], now: float) -> None:
        """Take one line of the driver."""
        if "facts" in line:
            self._facts = line["facts"]
            for target, watch in zip(self._targets, self._watches, strict=True):
                for kind in watch.observe(self._facts, now, self._wall()):
                    self._tell(kind, [target])
        elif "stopping" in line:
            self._stopping = line["stopping"]
        elif "end" in line:
            self._end = line["end"]

    def look(self, now: float) -> None:
        """Find out whether nothing has finished for long."""
        for target, watch in zip(self._targets, self._watches, strict=True):
            for kind in watch.look(now):
                self._tell(kind, [target])

    def close(self) -> None:
        """Send how the run ended; its input has ended."""
        if self._end is not None:
            self._facts = {**self._facts, **self._end["facts"]}
        self._tell(name_end(self._end, self._stopping), self._targets)

    def _tell(self, kind: str, targets: list[NotifyTarget]) -> None:
        wanted = [target for target in targets if kind in target.on]
        now = self._wall()
        if not wanted or not may_tell(kind, self._told, now):
            return
        self._told[kind] = now
        self._write_told()
        message = self._build_message(kind, now)
        for target in wanted:
            thread = threading.Thread(target=self._send, args=(target, message), daemon=True)
            thread.start()
            self.threads.append(thread)

    def _build_message(self, kind: str, now: float) -> dict[str, Any]:
        facts = self._facts
        total = facts.get("total")
        of = "" if total is None else f" of {total:,}"
        parts = [f"{facts['done']:,}{of} done", f"{facts['failed']:,} failed"]
        if facts.get("left"):
            parts.append(f"{facts['left']:,} left")
        why = (self._end or {}).get("why") or self._stopping
        word = _WORDS[kind] + (f" ({why})" if why and kind in ("stopped", "halted") else "")
        following = choose_command(kind, self._commands, facts)
        text = f"{self._run} {word}. {', '.join(parts)}, after {format_duration(now - self._began)}.\nNext: {following}"
        return {
            "event": kind,
            "run": self._run,
            "folder": str(self._folder),
            "text": text,
            "next": following,
            "at": now,
            "done": facts["done"],
            "failed": facts["failed"],
            "left": facts.get("left"),
            "total": total,
            "seconds": round(now - self._began, 3),
            "exit": None if self._end is None else self._end["code"],
        }

    def _send(self, target: NotifyTarget, message: Mapping[str, Any]) -> None:
        for attempt in range(1, TRIES + 1):
            try:
                self._send_to(target, message)
            except NotSent as error:
                self._log(f"{message['event']} to {target.describe()}, try {attempt}: {error}")
                if attempt < TRIES:
                    time.sleep(_PAUSES[attempt - 1])
            except Exception as error:  # noqa: BLE001 - other targets are still to be told
                self._log(f"{message['event']} to {target.describe()}: {type(error).__name__}")
                return
            else:
                self._log(f"{message['event']} to {target.describe()}: sent")
                return

    # -- files in the run's folder ----------------------------------------------------------------------------

    def _read_told(self) -> dict[str, float]:
        try:
            with PrivateFolder.at(self._folder) as folder:
                found = json.loads(folder.read(STATE_NAME, 64 * 1024))
            return {str(kind): float(at) for kind, at in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _write_told(self) -> None:
        try:
            with PrivateFolder.at(self._folder) as folder:
                folder.write(STATE_NAME, json.dumps(self._told).encode(), durable=False)
        except OSError:
            pass  # the run's folder is gone; a message may come twice

    def _log(self, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode()
        with self._log_lock:
            try:
                with PrivateFolder.at(self._folder) as folder:
                    file = folder.open(LOG_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                try:
                    if os.fstat(file).st_size < _MOST_LOG:
                        os.write(file, line)
                finally:
                    os.close(file)
            except OSError:
                pass


def main() -> int:
    """Serve one driver, whose reports come on standard input."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the driver, and this process tells of its end
    if os.fork():
        os._exit(0)  # what is left is no child of the driver, which kills its children when it is forced to stop
    pending = b""
    notifier: Notifier | None = None
    while True:
        ready, _, _ = select.select([0], [], [], _LOOK)
        if ready:
            data = os.read(0, 65_536)
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                found = json.loads(line)
                if notifier is None:
                    notifier = Notifier(found["hello"])
                else:
                    notifier.take(found, time.monotonic())
        if notifier is not None:
            notifier.look(time.monotonic())
    if notifier is not None:
        notifier.close()
        until = time.monotonic() + _LAST
        for thread in notifier.threads:
            thread.join(max(0.0, until - time.monotonic()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
