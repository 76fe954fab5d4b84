"""The folder of the demo: items, worker, configuration and keys."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from ...simulator import Running

PARALLEL: Final = 16
RUN: Final = ("run", "items.jsonl", "--worker", "ask.py:ask", "-j", str(PARALLEL))

_BASE: Final = ".agentos"
_STORE: Final = "pool.sqlite"
_PASSED_ON: Final = ("AGENTOS_NO_COLOR", "AGENTOS_DEBUG")

_CONFIG: Final = """\
[run]
max_parallel = {parallel}
store = "sqlite:///{store}"  # what is known of the keys; left out, it is kept in your home
deadline = "{deadline}"  # should the demo itself be killed, its provider is gone, and the run ends by this

# No limits are stated: agentos finds them out.
"""

_CREDENTIAL: Final = """
[[credentials]]
name = "{name}"
file = "keys/{name}"
quota = "{quota}"
slots = {slots}
hosts = ["{host}"]  # the provider of this key; a 401 by any other host would count for this run only
"""

_WORKER: Final = '''\
"""One call to the provider. What goes wrong is raised as it comes: agentos knows what a 429, a 401 or a 503 means."""

import json
import urllib.request

URL = "{base_url}/chat/completions"
straight = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))  # to this very machine, past any proxy


def ask(item, credential):
    question = {{"model": "demo", "messages": [{{"role": "user", "content": item["prompt"]}}]}}
    headers = {{"Authorization": f"Bearer {{credential}}", "Content-Type": "application/json"}}
    request = urllib.request.Request(URL, json.dumps(question).encode(), headers)
    with straight.open(request, timeout=30) as response:
        return json.load(response)["choices"][0]["message"]["content"]
'''


class DemoFolder:
    """The files of the demo, in the empty folder *path*."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, simulator: Running, slots: Mapping[str, int], items: int) -> None:
        """Write the items, the worker, the configuration and the keys. Raises OSError."""
        numbers = range(1, items + 1)
        prompts = ({"id": f"item-{number:03d}", "prompt": f"What is {number} squared?"} for number in numbers)
        self._write("items.jsonl", "".join(f"{json.dumps(each)}\n" for each in prompts))
        self._write("ask.py", _WORKER.format(base_url=simulator.base_url))
        deadline = f"{10 + items // 60}m"
        config = [_CONFIG.format(parallel=PARALLEL, store=_STORE, deadline=deadline)]
        host = urlsplit(simulator.base_url).netloc
        (self.path / "keys").mkdir(mode=0o700)
        for key in simulator.plan.keys:
            self._write(f"keys/{key.name}", f"{key.secret}\n")
            config.append(_CREDENTIAL.format(name=key.name, quota=key.quota, slots=slots[key.name], host=host))
        self._write("agentos.toml", "".join(config))

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the demo's commands: no settings of the user, no folder but this one."""
        kept = {name: value for name, value in environ.items() if not name.startswith("AGENTOS_")}
        kept |= {name: environ[name] for name in _PASSED_ON if name in environ}
        # They must import the same package as this process.
        package = str(Path(__file__).parents[3])
        return kept | {
            "AGENTOS_HOME": str(self.path),
            "AGENTOS_BASE_DIR": str(self.path / _BASE),
            "XDG_CONFIG_HOME": str(self.path / "config"),
            "PYTHONPATH": os.pathsep.join(filter(None, [package, environ.get("PYTHONPATH")])),
        }

    @property
    def run(self) -> Path | None:
        """The folder of the run; None before it starts."""
        return next((self.path / _BASE / "runs").glob("*"), None)

    def count_finished(self) -> int:
        """Return the number of results written so far."""
        run = self.run
        try:
            return 0 if run is None else (run / "results.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0  # not there yet, or being rewritten

    def find_leaks(self, secrets: tuple[str, ...]) -> list[str]:
        """Return the files that contain any of *secrets*, except the key files."""
        wanted = [secret.encode() for secret in secrets]
        found = []
        for path in sorted(self.path.rglob("*")):
            if path.is_file() and path.parent != self.path / "keys":
                content = path.read_bytes()
                if any(secret in content for secret in wanted):
                    found.append(str(path.relative_to(self.path)))
        return found

    def _write(self, name: str, text: str) -> None:
        # Private: agentos would warn of a secret that others may read.
        descriptor = os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
