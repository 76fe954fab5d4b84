"""Where the browser and the checker of the browser tests come from; ``make browser`` runs this file as a script.

The browser is Chromium: the one that ``AGENTOS_TEST_CHROMIUM`` names, else the one on the PATH, else, as root on
Debian, the package ``chromium``. axe-core, which finds what people with screen readers and keyboards cannot use, is
fetched from npm into the virtual environment; its hash is checked.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome")
AXE_VERSION = "4.14.0"
_AXE_HASH = "9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2GOm3zzpcQ=="

# In a container Chromium runs as root, without its own sandbox; and it is not to look for news at its maker's.
BROWSER_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class NoBrowser(Exception):
    """This machine lacks a program of the browser tests, and it could not be fetched."""


def find_browser() -> str:
    """The browser's path. Raises NoBrowser."""
    chosen = os.environ.get("AGENTOS_TEST_CHROMIUM")
    found = chosen or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        raise NoBrowser("there is no chromium on the PATH: run `make browser`, or set AGENTOS_TEST_CHROMIUM")
    return found


def find_axe() -> Path:
    """The path of axe-core's script. Raises NoBrowser."""
    path = Path(sys.prefix) / "axe-core" / AXE_VERSION / "axe.min.js"
    if not path.exists():
        raise NoBrowser(f"there is no axe-core {AXE_VERSION} in {sys.prefix}: run `make browser`")
    return path


def _install_browser() -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NoBrowser("there is no chromium: install it, or set AGENTOS_TEST_CHROMIUM to the path of the program")
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    packages = ("chromium", "fonts-dejavu-core")
    for words in (("update",), ("install", "-y", "--no-install-recommends", *packages)):
        subprocess.run(["apt-get", "-qq", *words], check=True, env=environ, stdout=subprocess.DEVNULL)


def _fetch_axe() -> None:
    with tempfile.TemporaryDirectory() as folder:
        npm = shutil.which("npm")
        if npm is None:
            raise NoBrowser("there is no npm to fetch axe-core with: install Node")
        subprocess.run(
            [npm, "pack", "--silent", f"axe-core@{AXE_VERSION}"], cwd=folder, check=True, stdout=subprocess.DEVNULL
        )
        (packed,) = Path(folder).glob("*.tgz")
        if base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode() != _AXE_HASH:
            raise NoBrowser(f"axe-core {AXE_VERSION} is not the one that these tests were written with")
        with tarfile.open(packed) as archive:
            script = archive.extractfile("package/axe.min.js")
            assert script is not None
            target = Path(sys.prefix) / "axe-core" / AXE_VERSION / "axe.min.js"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(script.read())


def provide() -> None:
    """Fetch what is missing. Raises NoBrowser."""
    for find, fetch in ((find_browser, _install_browser), (find_axe, _fetch_axe)):
        try:
            find()
        except NoBrowser:
            fetch()
            find()


if __name__ == "__main__":
    try:
        provide()
    except (NoBrowser, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"make browser: {error}")
    sys.stdout.write(f"{find_browser()}\n")
