"""The command with a real Dask cluster and a real Redis server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ...redis_server import RedisServer, fresh_pool
from ...runs.cluster.dask_processes import Processes
from .harness import Place

pytestmark = pytest.mark.timeout(300)  # a cluster, and several processes one after the other

KEY, SHIPPED = "planted-on-both-machines", "planted-on-the-drivers-alone"

ASK = """
import os, sys
from beside import shout

def ask(item, key, context):
    print("asked", item, "with", key)
    print("in passing", file=sys.stderr)
    context.log.warning("logged there")
    return [shout(item), "ON_THE_WORKER" in os.environ]

async def slowly(item, key):
    print("slowly", item)
    return shout(item)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    environ = {"ON_THE_WORKER": "yes", "ACME_KEY_1": KEY}
    processes = Processes(tmp_path_factory.mktemp("cluster"), environ=environ)
    processes.add_workers(1, 4)
    yield processes
    processes.close()


@pytest.fixture
def old_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One that seems to have been up for a day: a young one would have its leases wait."""
    with RedisServer(tmp_path_factory.mktemp("redis"), faketime=True) as server:
        server.jump(86_400)
        yield server


def write_worker(place: Place) -> None:
    place.write("ask.py", ASK)
    place.write("beside.py", "def shout(item):\n    return item.upper()\n")


def test_a_run_that_began_here_goes_on_there_and_its_output_comes_home(place: Place, cluster: Processes) -> None:
    write_worker(place)
    run = ("run", "--worker", "ask.py:ask", "--name", "r", "--keys", "env:ACME_KEY_1", "--store", "memory")

    first = place.run(*run, ":::", "tea", env={"ACME_KEY_1": KEY})
    ended = place.run(*run, "--engine", cluster.address, ":::", "tea", "sea", env={"ACME_KEY_1": KEY})

    assert (first.code, ended.code) == (0, 0), ended.err
    assert {result["id"]: result["value"] for result in place.results()} == {
        "tea": ["TEA", False],
        "sea": ["SEA", True],
    }
    assert ended.lines == ["[sea] asked sea with <secret>"]
    assert "[sea] in passing" in ended.err.splitlines()
    assert "[sea] logged there" in ended.err
    assert (place.run_folder() / "logs" / "sea.log").read_text().splitlines()[1:3] == [
        "asked sea with <secret>",
        "in passing",
    ]
    assert f", on {cluster.address}" in place.run("show", "r").out
    assert KEY not in cluster.logged()


def test_commands_and_coroutines_run_there(place: Place, cluster: Processes) -> None:
    write_worker(place)
    command = ("sh", "-c", 'echo "$AGENTOS_ITEM $ON_THE_WORKER $ACME_KEY"; echo oh >&2')
    keys = ("--keys", "env:ACME_KEY_1", "--store", "memory", "--engine", cluster.address)

    ran = place.run("run", "--name", "c", *keys, "--", *command, ":::", "tea", env={"ACME_KEY_1": KEY})
    slow = place.run(
        "run", "--worker", "ask.py:slowly", "--name", "s", "--engine", cluster.address, ":::", "tea", "sea"
    )

    assert (ran.code, slow.code) == (0, 0), ran.err + slow.err
    assert ran.lines == ["[tea] tea yes <secret>"]
    assert "[tea] oh" in ran.err.splitlines()
    assert sorted(slow.lines) == ["[sea] slowly sea", "[tea] slowly tea"]
    assert [result["value"] for result in place.results("c")] == [
        {"exit": 0, "stdout": "tea yes <secret>\n", "truncated": False}
    ]


def test_a_key_that_a_worker_has_not_stops_the_run_and_may_be_shipped(place: Place, cluster: Processes) -> None:
    write_worker(place)
    run = ("run", "--worker", "ask.py:ask", "--name", "r", "--keys", "env:ACME_KEY_2", "--store", "memory")
    there = ("--engine", cluster.address)

    missing = place.run(*run, *there, ":::", "tea", env={"ACME_KEY_2": SHIPPED})
    shipped = place.run(*run, *there, "--ship-secrets", ":::", "tea", env={"ACME_KEY_2": SHIPPED})

    assert missing.code == 70
    assert "the credential acme-key-2 was not found on" in missing.err
    assert "export ACME_KEY_2 there" in missing.err
    assert "--ship-secrets" in missing.err
    assert shipped.code == 0, shipped.err
    assert shipped.lines == ["[tea] asked tea with <secret>"]
    assert SHIPPED not in missing.err + shipped.err + cluster.logged()


def test_drivers_share_their_keys_over_a_server(place: Place, old_server: RedisServer) -> None:
    keys = {"ACME_KEY_1": KEY, "KEYS_URL": old_server.url(fresh_pool())}
    run = ("run", "--keys", "env:ACME_KEY_1", "--store", "env:KEYS_URL")
    limited = ("sh", "-c", 'echo "{\\"park_until\\": \\"2100-01-01\\"}" > "$AGENTOS_OUTCOME"; exit 1')

    dry = place.run(*run, "--dry-run", "--", "true", ":::", "a", env=keys)
    before = place.run("keys", "--store", "env:KEYS_URL", env=keys)
    place.run(*run, "--name", "b", "--no-wait", "--", *limited, ":::", "a", env=keys)
    parked = place.run(*run, "--name", "c", "--no-wait", "--", "true", ":::", "a", env=keys)
    cleared = place.run("keys", "clear", "acme-key-1", "--store", "env:KEYS_URL", env=keys)

    assert dry.code == 0, dry.err
    assert before.out.startswith(f"no run has used a store at {keys['KEYS_URL']} yet")
    assert parked.code == 75, parked.err
    assert cleared.lines == ["cleared acme-key-1"]
