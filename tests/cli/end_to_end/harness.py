"""The installed command, started as a person or a script would: with pipes, or in a terminal of its own.

Whatever is waited for is waited for by what it prints or writes, never by the clock; only when it does not come within
``PATIENCE`` the test fails, and shows what was printed instead.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE = 120.0
_LOOK_EVERY = 0.01
_SHOWN = 3_000  # characters of what was said, where it was not what should have been said

# Makes the terminal it was started on its own, as a login does, and becomes the command.
_TO_A_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
_AS_A_JOB = (str(Path(__file__).with_name("job_shell.py")),)
_ESCAPES = re.compile(r"\x1b\[[0-9;:?<=>]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][0-9A-B]|\x1b[=>78]")


def command() -> list[str]:
    """How to start it: the script that was installed beside the interpreter, else the module."""
    script = Path(sys.executable).with_name("agentos")
    return [str(script)] if script.exists() else [sys.executable, "-m", "agentos.cli"]


def plain(text: str) -> str:
    """What a terminal was sent, without its control sequences."""
    return _ESCAPES.sub("", text).replace("\r", "")


def flowing(text: str) -> str:
    """The same in one line: a terminal breaks lines where it ends, and a message is looked for in one piece."""
    return " ".join(plain(text).split())


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that another process does; *what* says which, if it does not."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"it did not come to this: {what}"
        time.sleep(_LOOK_EVERY)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """What ``--json`` printed."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Heard:
    """Everything that comes from a descriptor, read by a thread of its own so that nobody has to wait to be read."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._data = bytearray()
        self._over = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def text(self) -> str:
        with self._news:
            return self._text()

    def wait_for(self, text: str) -> str:
        """Wait until *text* is there, wherever its lines are broken. Returns all that was said."""
        with self._news:
            self._news.wait_for(lambda: self._over or text in flowing(self._text()), PATIENCE)
            said = flowing(self._text())
        assert text in said, f"{text!r} did not come; what came:\n... {said[-_SHOWN:]}"
        return said

    def close(self) -> None:
        """Wait for the end of it. Whoever still holds the other end is at fault."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), f"somebody keeps the output open; it said:\n{plain(self.text)[-_SHOWN:]}"

    def _text(self) -> str:
        return self._data.decode("utf-8", "backslashreplace")

    def _listen(self) -> None:
        while True:
            try:
                data = os.read(self._descriptor, 65536)
            except OSError:  # how a terminal says that nobody has it open any more
                data = b""
            with self._news:
                self._data += data
                self._over = not data
                self._news.notify_all()
            if not data:
                os.close(self._descriptor)
                return


class Program:
    """A command that is on, with pipes."""

    def __init__(self, process: subprocess.Popen[bytes], out: Heard, err: Heard) -> None:
        self.process = process
        self.out = out
        self.err = err

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> Ended:
        """Wait for its end."""
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            said = f"{plain(self.out.text)[-_SHOWN:]}\n{plain(self.err.text)[-_SHOWN:]}"
            raise AssertionError(f"it does not end; it said:\n{said}") from None
        self.out.close()
        self.err.close()
        self._let_go()
        return Ended(code, self.out.text, self.err.text)

    def end(self) -> None:
        """For the end of a test: whatever state it is in, it is not there any more."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.out._thread.join(PATIENCE)
        self.err._thread.join(PATIENCE)
        self._let_go()

    def _let_go(self) -> None:
        if self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass


class Terminal(Program):
    """A command that is on in a terminal: both of its streams are one, and keys are pressed."""

    def __init__(self, process: subprocess.Popen[bytes], screen: Heard, keyboard: int) -> None:
        super().__init__(process, screen, screen)
        self._keyboard: int | None = keyboard

    def press(self, keys: bytes) -> None:
        """Type; ``^C`` goes through the terminal to everybody in its foreground."""
        assert self._keyboard is not None
        os.write(self._keyboard, keys)

    def hang_up(self) -> None:
        """What the system tells the command when the window is closed."""
        os.kill(self.process.pid, signal.SIGHUP)

    def _let_go(self) -> None:
        if self._keyboard is not None:
            os.close(self._keyboard)
            self._keyboard = None


class Place:
    """A folder to work in, a home, a folder for temporary files, and an environment that knows only of these."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cwd = root / "work"
        self.home = root / "home"
        self.temporary = root / "tmp"
        self.agentos_home = root / "state"
        self._asked_for: set[Path] = set()
        self._on: list[Program] = []
        for folder in (self.cwd, self.home, self.temporary):
            folder.mkdir()
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "AGENTOS_HOME": str(self.agentos_home),
            "XDG_CONFIG_HOME": str(self.home / ".config"),
            "XDG_STATE_HOME": str(self.home / ".local" / "state"),
            "XDG_CACHE_HOME": str(self.home / ".cache"),
            "TMPDIR": str(self.temporary),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    # -- files --------------------------------------------------------------------------------------------------

    def write(self, name: str, text: str) -> Path:
        """A file that the test puts there."""
        path = self.asked_for(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def asked_for(self, name: str) -> Path:
        """A file that the command may write, because it was told to."""
        path = self.cwd / name
        self._asked_for.add(path)
        return path

    def lines(self, name: str) -> list[str]:
        """The whole lines of a file that items write to. None so far, if there is no such file."""
        path = self.asked_for(name)
        return path.read_text().splitlines() if path.exists() else []

    def wait_for_lines(self, name: str, count: int) -> list[str]:
        wait_until(lambda: len(self.lines(name)) >= count, f"{count} lines in {name}, which has {self.lines(name)}")
        return self.lines(name)

    def run_folder(self, name: str | None = None) -> Path:
        """Of the run *name*, or of the only one."""
        runs = self.cwd / ".agentos" / "runs"
        if name is not None:
            return runs / name
        (only,) = runs.iterdir()
        return only

    def results(self, name: str | None = None) -> list[dict[str, Any]]:
        """What is in ``results.jsonl`` of a run; nothing, before it has begun."""
        path = self.run_folder(name) / "results.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def outcomes(self, name: str | None = None) -> dict[str, str]:
        """Of each item its outcome; each must be there once."""
        results = self.results(name)
        outcomes = {result["id"]: result["outcome"] for result in results}
        assert len(outcomes) == len(results), "an item is in the results twice"
        return outcomes

    # -- the command --------------------------------------------------------------------------------------------

    def start(
        self,
        *arguments: str,
        stdin: int | None = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
        wrapped_in: Sequence[str] = (),
    ) -> Program:
        """Start it with pipes."""
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        process = subprocess.Popen(
            [*wrapped_in, *command(), *arguments],
            cwd=self.cwd,
            env={**self.environment, **(env or {})},
            stdin=stdin,
            stdout=out_end,
            stderr=err_end,
        )
        os.close(out_end)
        os.close(err_end)
        return self._note(Program(process, Heard(out), Heard(err)))

    def run(self, *arguments: str, stdin: str | None = None, env: Mapping[str, str] | None = None) -> Ended:
        """Start it and wait for its end. *stdin* is what it finds there; no more than a pipe holds."""
        if stdin is None:
            return self.start(*arguments, env=env).ended()
        program = self.start(*arguments, stdin=subprocess.PIPE, env=env)
        assert program.process.stdin is not None
        program.process.stdin.write(stdin.encode())
        program.process.stdin.close()
        return program.ended()

    def run_each(self, starts: Sequence[Sequence[str]]) -> list[Ended]:
        """Start them all, each of them with nothing to do with the others, and wait for their ends."""
        programs = [self.start(*arguments) for arguments in starts]
        return [program.ended() for program in programs]

    def terminal(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        columns: int = 100,
        lines: int = 30,
        as_a_job: bool = False,
        piped_to: str = "",
    ) -> Terminal:
        """Start it in a terminal; *as_a_job* of a shell there, which says when it stops and continues it on ``fg``.

        Only its standard error is the terminal if it is *piped_to* another program there.
        """
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        started = ["/bin/sh", "-c", f'"$@" | {piped_to}', "sh", *command()] if piped_to else command()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", *(_AS_A_JOB if as_a_job else ("-c", _TO_A_TERMINAL)), *started, *arguments],
            cwd=self.cwd,
            env={**self.environment, **(env or {})},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        terminal = Terminal(process, Heard(os.dup(master)), master)
        self._on.append(terminal)
        return terminal

    def _note(self, program: Program) -> Program:
        self._on.append(program)
        return program

    # -- after a test -------------------------------------------------------------------------------------------

    def processes(self) -> dict[int, str]:
        """What still runs of all that was started here, whoever started it: by what its environment says."""
        return dict(_mentioning(str(self.root).encode()))

    def end(self) -> None:
        """End what the test left on."""
        for program in self._on:
            program.end()

    def check(self) -> None:
        """Nothing runs any more, and nothing was written but where it may be."""
        wait_until(lambda: not self.processes(), f"no process is left behind; there is {self.processes()}")
        may_be = (self.cwd / ".agentos", self.agentos_home, *self._asked_for)
        found = [path for path in _files_below(self.root) if not any(path.is_relative_to(place) for place in may_be)]
        assert found == [], "written where nothing was to be written"


def _mentioning(what: bytes) -> Iterable[tuple[int, str]]:
    try:
        entries = os.listdir("/proc")
    except OSError:
        return
    for entry in entries:
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        try:
            environment = Path("/proc", entry, "environ").read_bytes()
            words = Path("/proc", entry, "cmdline").read_bytes()
        except OSError:
            continue  # it has ended, or is another user's
        if what in environment and words:
            yield int(entry), words.replace(b"\0", b" ").decode("utf-8", "replace").strip()


def _files_below(root: Path) -> list[Path]:
    return [Path(folder) / name for folder, _, names in os.walk(root) for name in names]
