"""Where the proxies of ``bench/gateway.py`` come from. ``make bench`` runs this file, which fetches what is missing.

nginx is that of ``bench/limiters_programs.py``. LiteLLM's proxy gets a virtual environment of its own inside this one,
because it wants other versions of our own dependencies; its version is that of the library measured elsewhere.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

import limiters_programs
from run import Failed

_LITELLM = Path(sys.prefix) / "litellm-proxy"


def litellm() -> str:
    """The program. Raises Failed if there is none."""
    program = _LITELLM / "bin" / "litellm"
    if not program.exists():
        raise Failed("no proxy of LiteLLM; `make bench` fetches it")
    return str(program)


def provide() -> None:
    """Fetch what is missing. What cannot be fetched is said, and its rows are left out of the table."""
    limiters_programs.provide()
    try:
        litellm()
    except Failed:
        try:
            _fetch_litellm()
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"LiteLLM could not be fetched: {error}", file=sys.stderr)


def _fetch_litellm() -> None:
    venv.create(_LITELLM, with_pip=True, clear=True)
    pip = (str(_LITELLM / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet")
    wanted = f"litellm[proxy]=={version('litellm')}"
    subprocess.run([*pip, "install", wanted], check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


if __name__ == "__main__":
    provide()
