"""The pickled task of a worker slot, also where agentos is missing."""

from __future__ import annotations

import pickle
import secrets
import subprocess
import sys
from typing import Any

import pytest

from agentos.runs.cluster.worker import bootstrap
from agentos.runs.cluster.worker.client import DriverEndpoint

POST = DriverEndpoint("a run", "host-of-the-driver", 4711, b"a certificate", secrets.token_hex(16).encode(), ttl=5.0)
BARE = """
import pickle, sys
function, argument = pickle.load(sys.stdin.buffer)
print(function, argument)
try:
    function(argument)
except ModuleNotFoundError as error:
    print("raised", error)
"""


@pytest.fixture
def sat(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The posts at which somebody sat down."""
    posts: list[Any] = []
    monkeypatch.setattr(bootstrap, "run_worker_slot", posts.append)
    return posts


def test_a_python_without_agentos_can_read_it_and_fails_only_when_it_is_called() -> None:
    sent = pickle.dumps(bootstrap.build_slot_task(POST, None))

    told = subprocess.run([sys.executable, "-I", "-S", "-c", BARE], input=sent, capture_output=True, check=True)

    assert b"raised No module named 'agentos'" in told.stdout
    assert told.stderr == b""


def test_it_shows_nothing_of_the_post() -> None:
    shown = repr(pickle.loads(pickle.dumps(bootstrap.build_slot_task(POST, None))))

    assert "BytesIO object" in shown
    assert POST.password.decode()[:4] not in shown
    assert POST.host not in shown


@pytest.mark.parametrize("python", [None, sys.version_info[:2]])
def test_where_it_is_called_it_sits_down(sat: list[Any], python: bootstrap.Python | None) -> None:
    function, argument = pickle.loads(pickle.dumps(bootstrap.build_slot_task(POST, python)))

    function(argument)

    assert sat == [POST]


def test_another_python_is_refused_before_it_is_given_a_function(sat: list[Any]) -> None:
    function, argument = bootstrap.build_slot_task(POST, (3, 5))

    with pytest.raises(ImportError, match=r"has Python 3\.\d+\.\d+, and the run's is 3\.5"):
        function(argument)

    assert sat == []
