"""The objects of a server's start are kept out of collections, in the processes that only serve."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FUNCTION = """
import gc
from agentos.util.startup_objects import exempt_startup_objects
exempt_startup_objects()
print(len(gc.get_objects()) < 100 and gc.get_freeze_count() > 1000)
"""
CHILD = """
import asyncio, gc
from agentos.cli.gateway import gateway_child as child

async def report(gateway, reading):
    print(gc.get_freeze_count() > 10_000)
    await reading

child._report_waiting, child._write = report, lambda message: None
asyncio.run(child._serve())
"""
CHILD_CONFIG = {
    "credentials": [{"secret": "sk-proj-Zq7vXw3Kp9LmT4rYs8Bd", "limits": []}],
    "store": "memory",
    "stem": "agentos-Zq7vXw3K",
    "items": [],
    "port": 0,
    "token": None,
    "max_wait": None,
    "park_after": None,
}
COMMAND = """
import asyncio, gc, os, signal
from types import SimpleNamespace
from agentos import CredentialCoordinator
from agentos.cli.gateway import gateway_session as session

def say_where(*_):
    print(gc.get_freeze_count() > 10_000)
    os.kill(os.getpid(), signal.SIGTERM)

session._say_where = say_where
file = SimpleNamespace(write=lambda **_: None, remove=lambda *_, **__: None)
served = CredentialCoordinator(["sk-proj-Zq7vXw3Kp9LmT4rYs8Bd"]).gateway()
asyncio.run(session._serve(served, file, SimpleNamespace(socket=None, port=0), [], None, None))
"""


@pytest.mark.parametrize(
    ("script", "stdin"),
    [(FUNCTION, ""), (CHILD, json.dumps(CHILD_CONFIG) + "\n"), (COMMAND, "")],
    ids=["function", "child of a run", "command"],
)
def test_no_collection_visits_the_objects_of_the_start(script: str, stdin: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.stdout, done.stderr) == ("True\n", "")
