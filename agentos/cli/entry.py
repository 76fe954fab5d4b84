"""Entry point of the installed command, which runs before any other import."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import NoReturn


def entry() -> NoReturn:
    """Run the command and exit with its code."""
    # Ctrl-C during the imports ends the process without a traceback.
    interrupted = signal.getsignal(signal.SIGINT)
    if interrupted is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _open_the_standard_streams()
    _escape_what_cannot_be_encoded()
    from ..util.process_hardening import harden_process

    harden_process()
    from ..runs.execution import process_exit
    from .forced_exit import ForcedExit
    from .main import main

    process_exit.owner = forced_exit = ForcedExit()
    if interrupted is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted)
    code = main()
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        code = _not_written(error, code)
    forced_exit.exit(code)


def _open_the_standard_streams() -> None:
    """Open /dev/null for standard streams that the parent closed, so that no file gets their descriptors."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115 - stays open


def _escape_what_cannot_be_encoded() -> None:
    """Write an escape where the locale's encoding has no ``é``, as standard error does already."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and (out.encoding.lower(), out.errors) != ("utf-8", "surrogateescape"):
        out.reconfigure(errors="backslashreplace")


def _not_written(error: OSError | ValueError, code: int) -> int:
    from .main import discard_stdout, print_error

    discard_stdout()  # so that the interpreter has nothing to flush at exit
    if isinstance(error, BrokenPipeError):
        return code  # the reader closed the pipe
    print_error(f"agentos: standard output cannot be written: {getattr(error, 'strerror', None) or error}")
    return code or 74
