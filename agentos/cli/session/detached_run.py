"""``agentos run --detach``: start the same command in the background, and return when its run has begun.

The command runs in a session of its own, without a terminal, so that closing the terminal does not end it. Once the
run's folder is its own it reports there: through a pipe it says so to the process that started it, and its output goes
to ``detached.log`` in the folder from then on.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ..exit_codes import ExitCode
from ..usage_error import UsageError

if TYPE_CHECKING:
    from ...util.private_folder import PrivateFolder
    from .argv import ParsedArguments

VARIABLE: Final = "AGENTOS_DETACHED"  # the descriptor of the pipe to the process that waits
LOG_NAME: Final = "detached.log"
FLAG: Final = "--detach"


def start_detached(typed: ParsedArguments, *, reads_stdin: bool, as_json: bool) -> int:
    """Start what was *typed* in the background; return when it has begun, or with its exit code if it has not."""
    if reads_stdin:
        raise UsageError("--detach: items of standard input end with this terminal", "put them into a file")
    if typed.reopen is not None:
        raise UsageError(
            "--detach is for agentos run", "retry in this terminal, or: agentos run --retry-failed --detach"
        )
    options = tuple(word for word in typed.options if word != FLAG)
    arguments = replace(typed, options=options).all_arguments
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as early:
        child = subprocess.Popen(  # noqa: S603 - this program
            [sys.executable, "-m", "agentos.cli", "run", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=early,
            stderr=early,
            env={**os.environ, VARIABLE: str(writer)},
            pass_fds=(writer,),
            start_new_session=True,
        )
        os.close(writer)
        try:
            with os.fdopen(reader, "rb") as pipe:
                told = pipe.read()
            code = 0 if told else child.wait()
        except KeyboardInterrupt:
            child.terminate()
            child.wait()
            raise
        early.seek(0)
        sys.stderr.write(early.read().decode("utf-8", "replace"))
        sys.stderr.flush()
    if not told:
        return code or ExitCode.OK
    child.returncode = 0  # it is not waited for, and nobody should be warned of that
    _print_begun(json.loads(told), child.pid, as_json=as_json)
    return ExitCode.OK


def _print_begun(facts: dict[str, str], pid: int, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"event": "detached", "pid": pid, **facts}), flush=True)
        return
    name = shlex.quote(facts["run"]) + facts["place"]
    print(f"{facts['run']} runs in the background as pid {pid}; its output: {facts['log']}")
    print(f"  agentos attach {name}  # its progress, here")
    print(f"  agentos watch {name}   # in a browser")
    print(f"  kill {pid}  # stop it; the same command continues")


def take_pipe(environ: MutableMapping[str, str]) -> int | None:
    """Return the descriptor of the waiting process, if there is one, and remove it from *environ*."""
    found = environ.pop(VARIABLE, "")
    if not (found.isascii() and found.isdecimal()):
        return None
    descriptor = int(found)
    try:
        os.set_inheritable(descriptor, False)
    except OSError:
        return None
    return descriptor


def report_begun(pipe: int, folder: PrivateFolder, name: str, place: str) -> None:
    """Tell the waiting process that the run has begun, and send further output to the run's folder."""
    try:
        log = folder.open(LOG_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    facts = {"run": name, "folder": str(folder.path), "log": str(folder.path / LOG_NAME), "place": place}
    try:
        os.write(pipe, json.dumps(facts).encode())
    except OSError:
        pass  # nobody waits any more
    os.close(pipe)
