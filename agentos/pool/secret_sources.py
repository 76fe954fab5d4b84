"""Read secrets from environment variables, files and commands. What is read is never shown, not even in part.

Each function returns secrets or raises ``SecretUnavailable`` with the source and what to do. Names of variables and
paths of files are shown only where they cannot be a secret: people also paste secrets there.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import re
import selectors
import shlex
import signal
import stat
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from ..errors import AgentOSError, error_fields

log = logging.getLogger("agentos")

COMMAND_TIMEOUT: Final = 30.0
_LONGEST_OUTPUT: Final = 64 * 1024
_LARGEST_FILE: Final = 1024 * 1024

_ASSIGNMENT: Final = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_.-]{0,63})\s*=\s*(.*)")
_LONGEST_SMALL_NAME: Final = 40
_PADDING: Final = re.compile(r"=*")
_ORDINARY_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# git reads settings from GIT_CONFIG_KEY_0 and the like, and some of those are commands.
_FOR_KEYS: Final = re.compile(r"(?!GIT_CONFIG_)\w*(?:KEY|TOKEN|SECRET)[0-9_]*")


@error_fields()
class SecretUnavailable(AgentOSError, ValueError):
    """A secret could not be read: its *source*, the *problem* and the *advice*."""

    source: str
    problem: str
    advice: str

    def describe(self) -> str:
        return f"{self.source} {self.problem}; {self.advice}"


def derive_name(variable: str) -> str:
    """Return the credential name for a variable: ``OPENAI_API_KEY_1`` is ``openai-api-key-1``."""
    return variable.strip("_").replace("_", "-").lower() or "key"


def displayable_name(variable: str) -> str:
    """Return the variable's name for display, unless it could be a secret pasted in the wrong place."""
    if _ORDINARY_VARIABLE.fullmatch(variable) and len(variable) <= 64:
        return f"the environment variable {variable}"
    return "the environment variable named there"


# -- environment ------------------------------------------------------------------------------------------------------


def from_env(variable: str, environ: Mapping[str, str]) -> str:
    """Return the secret in one environment variable."""
    if not _VARIABLE.fullmatch(variable):
        raise SecretUnavailable(
            source="what is named there",
            problem="is not the name of an environment variable",
            advice="name the variable, such as OPENAI_API_KEY, and put the secret into it",
        )
    found = environ.get(variable)
    if not found or not found.strip():
        problem = "is not set" if found is None else "is empty"
        raise SecretUnavailable(
            source=displayable_name(variable), problem=problem, advice="export it before the command"
        )
    return _checked(found.strip(), displayable_name(variable), "put the secret alone into it")


def from_env_pattern(pattern: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets in all variables that match *pattern* (``OPENAI_API_KEY*``), by variable, in numeric order.

    Empty ones are left out; two with the same secret are refused.
    """
    variables = find_variables(pattern, environ)
    if not variables:
        shown = f"matches {pattern}" if re.fullmatch(r"[A-Z0-9_*?\[\]]+", pattern) else "matches that pattern"
        raise SecretUnavailable(
            source="no environment variable", problem=shown, advice="export one that does, or correct the pattern"
        )
    found = {variable: from_env(variable, environ) for variable in variables}
    require_distinct((f"the environment variable {variable}", secret) for variable, secret in found.items())
    return found


def find_variables(pattern: str, environ: Mapping[str, str]) -> list[str]:
    """Return the variables that match *pattern* and are not empty: KEY_2 before KEY_10."""
    return sorted((v for v in environ if fnmatch.fnmatchcase(v, pattern) and environ[v].strip()), key=_by_number)


def _by_number(variable: str) -> list[tuple[int, int, str]]:
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part)
        for part in re.split(r"([0-9]{1,18})", variable)
        if part
    ]


# -- files ------------------------------------------------------------------------------------------------------------


def is_for_keys(variable: str) -> bool:
    """Return whether a variable is for a key by its name: OPENAI_API_KEY, OPENAI_API_KEY_2, GH_TOKEN."""
    return _FOR_KEYS.fullmatch(variable) is not None


def is_env_file(path: Path) -> bool:
    """Return whether a file holds a program's variables, by its name: .env, .env.local."""
    return path.name == ".env" or path.name.startswith(".env.")


def from_env_file(path: Path, *, pipes: bool = False) -> dict[str, str]:
    """Return the secrets in a ``.env`` file, by name, in its order: of variables whose names are for keys.

    Other variables, and those that are empty or hold text with blanks, are left out; so is a second name of a secret.
    """
    found: dict[str, str] = {}
    for line in _read_text(path, COMMAND_TIMEOUT if pipes else None).splitlines():
        match = _ASSIGNMENT.fullmatch(line.strip())
        if match is None or not is_for_keys(match[1]):
            continue
        secret = _strip_comment(match[2])
        if not secret or secret in found.values():
            continue
        if any(character.isspace() for character in secret):
            log.warning("%s: %s is left out: there is a space in it, so that it is no API key", path, match[1])
            continue
        found[derive_name(match[1])] = _checked(secret, f"{path}, {match[1]},", "put the secret alone into it")
    if not found:
        raise SecretUnavailable(
            source=str(path),
            problem="holds no variable whose name ends in KEY, TOKEN or SECRET",
            advice="name another file; in one of another name each line is a secret",
        )
    return found


def _strip_comment(value: str) -> str:
    """Return a value of a ``.env`` file without the comment after it."""
    quoted = re.match(r"""(['"])(.*?)\1\s*(?:#.*)?$""", value)
    return quoted[2] if quoted is not None else re.sub(r"(?:^|\s+)#.*", "", value).strip()


def from_file(path: Path, *, pipes: bool = False, timeout: float = COMMAND_TIMEOUT) -> dict[str, str]:
    """Return the secrets in a file, by name, in its order: one per line, alone or as ``NAME=secret``.

    Blank lines and lines that begin with ``#`` are skipped; ``export`` and quotes are accepted. A
    secret without a name is named by the file and its position: ``keys-1``. A file that others may read causes a
    warning. A device is refused, and so is a pipe, unless *pipes* are allowed; it has to end within *timeout*.
    """
    text = _read_text(path, timeout if pipes else None)
    stem = derive_name(re.sub(r"[^A-Za-z0-9_-]+", "-", path.name.removesuffix(path.suffix)).strip("-"))
    found: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        given, secret = _split_assignment(line.strip())
        name = derive_name(given) if given is not None else f"{stem}-{len(found) + 1}"
        where = f"{path}, line {number},"
        if name in found:
            raise SecretUnavailable(
                source=where,
                problem=f"gives the same name as line {lines[name]}",
                advice="give each secret a name of its own",
            )
        found[name] = _checked(secret, where, "each line holds one secret, or NAME=secret")
        lines[name] = number
    if not found:
        raise SecretUnavailable(source=str(path), problem="holds no secret", advice="put one in each line")
    require_distinct((f"{path}, line {lines[name]},", secret) for name, secret in found.items())
    return found


def _split_assignment(line: str) -> tuple[str | None, str]:
    """Return the name before the secret, if there is one, and the secret."""
    match = _ASSIGNMENT.fullmatch(line)
    if match is None:
        return None, _unquoted(line)
    name, value = match.groups()
    # A name is in one letter case. Otherwise it may be the first half of a secret, and names are shown.
    if name != name.upper() and (name != name.lower() or len(name) > _LONGEST_SMALL_NAME or _has_many_digits(name)):
        return None, _unquoted(line)
    # Base64 ends in "=", "==": then the line is a secret without a name.
    if _PADDING.fullmatch(value) and not (value == "" and _ORDINARY_VARIABLE.fullmatch(name) and "_" in name):
        return None, line
    return name, _unquoted(value)


def _has_many_digits(name: str) -> bool:
    return sum(character.isdigit() for character in name) * 4 > len(name)


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"" else value


def _read_text(path: Path, pipe_timeout: float | None) -> str:
    """Return the content of the file. A pipe is read only if a time limit applies."""
    try:
        mode, data = _content(path, pipe_timeout)
    except SecretUnavailable:
        raise
    except FileNotFoundError:
        raise SecretUnavailable(
            source="the file named there", problem="does not exist", advice="make it, or correct the path"
        ) from None
    except IsADirectoryError:
        raise SecretUnavailable(source=str(path), problem="is a folder", advice="name a file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise SecretUnavailable(
            source="the file named there", problem=f"cannot be read ({reason})", advice="correct that, or name another"
        ) from None
    if len(data) > _LARGEST_FILE:
        raise SecretUnavailable(source=str(path), problem="is larger than 1 MiB", advice="name a file of secrets")
    if os.name == "posix" and stat.S_ISREG(mode) and mode & 0o077:
        log.warning("others may read %s, which contains secrets; run chmod 600 on it", path)
    return data.decode("utf-8-sig", "replace")


def _content(path: Path, pipe_timeout: float | None) -> tuple[int, bytes]:
    """Return the mode of the file and its content, up to slightly more than the maximum."""
    # Non-blocking: a pipe without a writer would not even open.
    with open(path, "rb", opener=_without_waiting) as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISREG(mode):
            return mode, file.read(_LARGEST_FILE + 1)
        if stat.S_ISFIFO(mode) and pipe_timeout is not None:
            return mode, _from_pipe(path, file.fileno(), pipe_timeout)
    raise SecretUnavailable(
        source=str(path), problem="is not a regular file", advice="name a file that holds the secret alone"
    )


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _from_pipe(path: Path, descriptor: int, timeout: float) -> bytes:
    data = _drained(descriptor, _LARGEST_FILE, time.monotonic() + timeout)
    if data is None:
        raise SecretUnavailable(
            source=str(path),
            problem=f"did not end within {timeout:g}s",
            advice="the process that writes to this pipe must write the secrets and close it",
        )
    return data


# -- commands ---------------------------------------------------------------------------------------------------------


def from_command(command: str | Sequence[str], environ: Mapping[str, str], *, timeout: float = COMMAND_TIMEOUT) -> str:
    """Return the secret that a command prints: one line. It is run without a shell and without input.

    Neither its output nor the command itself is shown if it fails: either may contain a secret.
    """
    try:
        argv = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError:
        argv = []
    if not argv or any("\0" in word for word in argv):
        raise SecretUnavailable(
            source="the command", problem="cannot be split into words", advice='give a list: ["pass", "show", "acme"]'
        )
    code, output = _run_command(argv, environ, timeout)
    if code != 0:
        problem = f"ended with exit code {code}" if code > 0 else f"was killed by {_signal(-code)}"
        raise SecretUnavailable(
            source="the command", problem=problem, advice="run it by hand to see what it says; it is not shown here"
        )
    text = output.decode("ascii", "replace").removesuffix("\n").removesuffix("\r")
    return _checked(text, "the output of the command", "it has to print the secret alone, in one line")


def _run_command(argv: list[str], environ: Mapping[str, str], timeout: float) -> tuple[int, bytes]:
    """Return the exit code (below zero: a signal) and the output. On a timeout its process group is killed."""
    try:
        process = subprocess.Popen(  # noqa: S603 - the command is the user's own
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
            start_new_session=True,  # without a terminal it cannot wait for an answer from one
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its words are not usable"
        raise SecretUnavailable(
            source="the command", problem=f"cannot be started ({reason})", advice="install it, or correct its name"
        ) from None
    with process:
        try:
            return _finished(process, timeout)
        except BaseException:
            # It has not ended and was not waited for, so its process id is still its own.
            _kill(process.pid)
            raise


def _finished(process: subprocess.Popen[bytes], timeout: float) -> tuple[int, bytes]:
    output = _read(process, time.monotonic() + timeout)
    if output is None:
        raise SecretUnavailable(
            source="the command",
            problem=f"did not end within {timeout:g}s",
            advice="run it by hand: it may be waiting for a password",
        )
    if len(output) > _LONGEST_OUTPUT:
        raise SecretUnavailable(
            source="the command", problem="prints more than 64 KiB", advice="let it print the secret alone"
        )
    return process.wait(), output


def _read(process: subprocess.Popen[bytes], deadline: float) -> bytes | None:
    """Return its output, up to slightly more than the maximum; None: it did not end in time."""
    assert process.stdout is not None  # noqa: S101 - for the type checker
    output = _drained(process.stdout.fileno(), _LONGEST_OUTPUT, deadline)
    if output is not None and len(output) <= _LONGEST_OUTPUT:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
    return output


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass  # no process of the group is left


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# -- pipes ------------------------------------------------------------------------------------------------------------


def _drained(descriptor: int, most: int, deadline: float) -> bytes | None:
    """Return the output of a pipe, up to slightly more than *most*; None: it did not end in time."""
    found = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while len(found) <= most:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return None
            piece = os.read(descriptor, 65_536)
            if not piece:
                break
            found += piece
    return bytes(found)


# -- all sources ------------------------------------------------------------------------------------------------------


def require_distinct(secrets: Iterable[tuple[str, str]]) -> None:
    """Refuse the same secret from two sources: it would be leased to two users at once."""
    seen: dict[str, str] = {}
    for source, secret in secrets:
        first = seen.setdefault(secret, source)
        if first is not source:
            raise SecretUnavailable(
                source=source.removesuffix(","),
                problem=f"holds the same secret as {first.removesuffix(',')}",
                advice="leave one of them out: a key has one name",
            )


def _checked(secret: str, source: str, advice: str) -> str:
    problem = None
    if not secret:
        problem = "holds nothing"
    elif any(character.isspace() for character in secret):
        problem = "is no secret: there is a space or a line break in it"
    elif not (secret.isascii() and secret.isprintable()):
        problem = "is no secret: there is a character in it that keys do not have, such as a typographic quote"
    elif not any(character.isalnum() for character in secret):
        problem = "is no secret: there is no letter or digit in it"
    elif re.match(r"[a-z][a-z0-9+.-]*://", secret, re.IGNORECASE):
        problem = "is no secret: it is an address"
    if problem is not None:
        raise SecretUnavailable(source=source, problem=problem, advice=advice)
    return secret
