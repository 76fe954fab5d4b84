"""The real agent programs that ``make agents`` installs, and how a test runs one of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentos.agents.programs import PROGRAMS
from agentos.agents.settings import write_settings

AGENTS = Path(os.environ.get("AGENTOS_AGENTS", Path(__file__).parents[2] / ".agents"))
_BIN = AGENTS / "node_modules" / ".bin"
EXECUTABLES: Mapping[str, Path] = {
    "claude": _BIN / "claude",
    "codex": _BIN / "codex",
    "gemini": _BIN / "gemini",
    "opencode": _BIN / "opencode",
    "qwen": _BIN / "qwen",
    "goose": AGENTS / "node_modules" / "@aaif" / "goose-binary-linux-x64" / "bin" / "goose",
    "aider": AGENTS / "python" / "bin" / "aider",
}
# The shortest command that asks for one answer, in the program's structured form. A model that gemini has not to
# choose: it asks another one for that, and the simulator's answer is no choice.
ASK: Mapping[str, Sequence[str]] = {
    "claude": ("-p", "say hi", "--output-format", "stream-json", "--verbose"),
    "codex": ("exec", "--json", "--skip-git-repo-check", "say hi"),
    "gemini": ("-m", "gemini-2.5-flash", "-p", "say hi", "--output-format", "stream-json"),
    "opencode": ("run", "--format", "json", "-m", "openai/gpt-4o-mini", "say hi"),
    "qwen": ("-m", "gpt-4o-mini", "-p", "say hi", "--output-format", "stream-json"),
    "goose": ("run", "--output-format", "stream-json", "--provider", "openai", "--model", "gpt-4o", "-t", "say hi"),
    "aider": ("--message", "say hi", "--model", "openai/gpt-4o-mini", "--yes-always", "--no-git", "--no-stream"),
}
# opencode would fetch a list of models, plugins and language servers when it starts.
QUIET: Mapping[str, str] = {
    "OPENCODE_PURE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
}


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what it printed."""

    code: int | None  # None: it was stopped after its time
    stdout: str
    stderr: str


def environment(name: str, url: str, token: str, home: Path) -> dict[str, str]:
    """Return all variables of a program whose home is *home*."""
    home.mkdir(parents=True, exist_ok=True)
    program = PROGRAMS[name]
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", "LANG": "C.UTF-8"}
    variables |= {**QUIET, **program.environment(url, token)}
    if program.settings is not None:
        variables |= write_settings(program.settings, home / "settings", variables)
    return variables


def run_program(
    name: str,
    url: str,
    token: str,
    home: Path,
    words: Sequence[str] | None = None,
    timeout: float = 120.0,
    more: Mapping[str, str] | None = None,
) -> Ended:
    """Run the real program once, in a folder below *home*."""
    folder = home / "work"
    folder.mkdir(parents=True, exist_ok=True)
    variables = {**environment(name, url, token, home), **(more or {})}
    argv = [str(EXECUTABLES[name]), *PROGRAMS[name].arguments(url, token), *(ASK[name] if words is None else words)]
    process = subprocess.Popen(
        argv,
        env=variables,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        stdout, stderr = process.communicate()
        return Ended(None, stdout, stderr)
    return Ended(process.returncode, stdout, stderr)


def start_once(name: str, folder: Path, environ: Mapping[str, str]) -> None:
    """Let opencode make its database in a new home: several of its processes at once would make it twice, and fail."""
    if name == "opencode":
        words = [str(EXECUTABLES[name]), "session", "list"]
        subprocess.run(words, cwd=folder, env=environ, check=True, stdin=subprocess.DEVNULL, capture_output=True)


def find_missing() -> list[str]:
    """Return the programs that are not installed. goose is there for Linux on x86 alone."""
    return [name for name, path in EXECUTABLES.items() if not path.exists() and (name != "goose" or _has_goose())]


def _has_goose() -> bool:
    return sys.platform == "linux" and os.uname().machine == "x86_64"
