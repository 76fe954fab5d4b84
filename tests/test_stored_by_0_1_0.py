"""Files and Redis records that commit eb80834 (version 0.1.0) wrote: today's code reads all that they hold.

``fixtures/of_0_1_0`` was written by that commit's own code, in processes that were killed while they held leases and
ran items. The pool file has the clock of the year 2096, so that no wall clock is past it, and a boot id of no machine.
"""

from __future__ import annotations

import gzip
import json
import re
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentos import (
    Credential,
    CredentialCoordinator,
    CredentialState,
    Lease,
    Limit,
    NoCredentialAvailable,
    NoUsableCredential,
    ParallelCoordinator,
    StoreUnavailable,
    Usage,
    WorkflowResult,
)
from agentos.cli.main import main
from agentos.runs.report.key_time import KeyTime
from agentos.testing import FakeClock

from .redis_server import fresh_pool, shared_server

FIXTURES = Path(__file__).parent / "fixtures" / "of_0_1_0"
WRITTEN_AT = 4_000_000_150.0  # the last moment in the pool file, by its wall clock

Agentos = Callable[..., tuple[int, str]]
Row = tuple[str, str, float, str, list[tuple[str, float]]]  # name, state, seconds until, why, what is left of limits


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, and no settings but its own."""
    found = tmp_path / "project"
    found.mkdir()
    monkeypatch.chdir(found)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AGENTOS_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NO_COLOR", "1")
    for name in ("XDG_CONFIG_HOME", "FORCE_COLOR", "AGENTOS_STORE", "AGENTOS_KEYS", "AGENTOS_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.fixture
def agentos(project: Path, capfd: pytest.CaptureFixture[str]) -> Agentos:
    """Run a command line in *project*; return its exit code and its standard output."""

    def typed(*arguments: str) -> tuple[int, str]:
        capfd.readouterr()
        code = main(list(arguments))
        return code, capfd.readouterr().out

    return typed


def objects(agentos: Agentos, *arguments: str) -> list[dict[str, Any]]:
    code, out = agentos(*arguments)
    assert code == 0
    return [json.loads(line) for line in out.splitlines()]


# -- the pool ---------------------------------------------------------------------------------------------------------


def key(name: str, **facts: Any) -> Credential:
    return Credential(f"sk-fixture-{name}-0123456789", name=name, labels={"key": name}, **facts)


def keys() -> list[Credential]:
    """The credentials as the process stated them that wrote the fixtures."""
    hourly = [Limit("requests", 10, per=3600, model="big-*"), Limit("output_tokens", 900, per=3600)]
    return [
        key("plain"),
        key("bucket", rpm=60, tpm=6000, slots=4),
        key("sliding", limits=[Limit("requests", 5, per=3600, window="sliding")], slots=4),
        key("daily", limits=[Limit("requests", 100, per="day", resets_at="07:00", tz="Europe/Berlin")], slots=4),
        key("family", limits=hourly, slots=4),
        key("told", slots=4),
        key("paced", slots=4),
        key("auto", slots="auto"),
        key("team-1", quota="team", rpm=30),
        key("team-2", quota="team", rpm=30),
        key("cooled"),
        key("cooled-model", slots=2),
        key("parked"),
        key("spent"),
        key("dead"),
        key("retired"),
        key("held", slots=2),
        key("reserved"),
        key("guess", tpm=600, slots=2),
    ]


def row(state: CredentialState, wall: float) -> Row:
    until = state.rate_limited_until and round(state.rate_limited_until - wall)
    return state.name, state.state, until, state.why, [(each.dimension, round(each.left, 1)) for each in state.limits]


@pytest.fixture
def pool_file(tmp_path: Path) -> Path:
    path = tmp_path / "pool.sqlite"
    path.write_bytes(gzip.decompress((FIXTURES / "pool.sqlite.gz").read_bytes()))
    return path


@pytest.fixture
def file_pool(pool_file: Path) -> Iterator[CredentialCoordinator]:
    """The pool in the file, ten seconds after it was left, on a machine whose monotonic clock is another."""
    clock = FakeClock(77.0, WRITTEN_AT + 10.0 - 77.0)
    with closing(CredentialCoordinator(keys(), store=pool_file, clock=clock)) as pool:
        yield pool


def test_a_pool_file_has_every_credential_as_it_was_left(file_pool: CredentialCoordinator) -> None:
    states = file_pool.snapshot()

    assert [row(state, WRITTEN_AT + 10.0) for state in states] == [
        ("plain", "available", 0.0, "", []),
        ("bucket", "available", 0.0, "", [("requests", 60), ("tokens", 5797.0)]),
        ("sliding", "available", 0.0, "", [("requests", 3.0)]),
        ("daily", "available", 0.0, "", [("requests", 93.0)]),
        ("family", "available", 0.0, "", [("requests", 9.4), ("output_tokens", 740.0)]),
        ("told", "available", 0.0, "", [("requests", 41.7), ("tokens", 4900.0)]),
        ("paced", "available", 0.0, "", [("requests", 3.0)]),
        ("auto", "available", 0.0, "", []),
        ("team-1", "parked", 6990, "rate_limited(retry_after=7000) by lease 36", [("requests", 30)]),
        ("team-2", "parked", 6990, "rate_limited(retry_after=7000) by lease 36", [("requests", 30)]),
        ("cooled", "cooling", 290, "rate_limited(retry_after=300) by lease 37", []),
        (
            *("cooled-model", "available", 0.0),
            "big-1 cooling for 390.0s more (rate_limited(retry_after=400) by lease 38)",
            [],
        ),
        ("parked", "parked", 86390, "the day's window is used up", []),
        ("spent", "spent", 0.0, "the bill was not paid", []),
        ("dead", "dead", 0.0, "401 invalid key", []),
        ("retired", "available", 0.0, "", []),  # by one process, for itself
        ("held", "available", 0.0, "", []),  # the process that had leased these three is gone
        ("reserved", "available", 0.0, "", []),
        ("guess", "available", 0.0, "", [("tokens", 600)]),
    ]
    assert {state.name: [(each.at - WRITTEN_AT, each.what) for each in state.history] for state in states} == {
        **{state.name: [] for state in states},
        "told": [
            (-150.0, "limit of 60 requests in 3600s, told by x-requests"),
            (-150.0, "limit of 9,000 tokens in 3600s, told by x-tokens"),
        ],
        "paced": [
            (-145.0, "looking for the rate: refused (429)"),
            (-70.0, "75 requests a minute, still looking: refused (429)"),
        ],
        "auto": [(0.0, "slots 4: all were used, and nothing was refused")],
    }
    learned = [(each.amount, each.per, each.set_aside) for each in states[5].limits]
    assert learned == [(60.0, 3600.0, False), (9000.0, 3600.0, True)]


def test_a_pool_file_goes_on_where_it_was_left(file_pool: CredentialCoordinator) -> None:
    leases: list[Lease] = []

    def acquire(name: str, **more: Any) -> int:
        leases.append(file_pool.acquire_nowait(labels={"key": name}, **more))
        return leases[-1].token

    tokens = [acquire("held"), acquire("held"), acquire("reserved"), acquire("guess")]
    assert tokens == [46, 47, 48, 49]  # the killed process had those up to 45
    assert [acquire("sliding") for _ in range(3)] == [50, 51, 52]
    with pytest.raises(NoCredentialAvailable):
        acquire("sliding")
    with pytest.raises(NoCredentialAvailable):
        acquire("cooled-model", model="big-1")
    assert acquire("cooled-model", model="small") == 53
    for name, state in (("spent", "spent"), ("dead", "dead")):
        with pytest.raises(NoUsableCredential, match=f"1 {state}"):
            acquire(name)
    for lease in leases:
        lease.release()


CONFIG = """
[[credentials]]
name = "bucket"
env = "BUCKET"
slots = 4
rpm = 60
tpm = 6000

[[credentials]]
name = "team-1"
env = "TEAM"
quota = "team"
rpm = 30
"""


def shown(found: dict[str, Any]) -> tuple[Any, ...]:
    limits = {each["dimension"]: round(each["left"], 1) for each in found["limits"]}
    return found["state"], found["slots"], found["why"], found["holders"], limits


def test_agentos_keys_shows_a_pool_file_and_clears_a_key_in_it(
    agentos: Agentos, project: Path, pool_file: Path
) -> None:
    (project / "agentos.toml").write_text(CONFIG)
    store = ("--store", f"sqlite:///{pool_file}")

    found = {each["name"]: shown(each) for each in objects(agentos, "keys", "--json", "--all", *store)}

    free: tuple[Any, ...] = ("available", 1, "", [], {})
    assert found == {
        **dict.fromkeys(("plain", "sliding", "daily", "family", "retired", "held", "reserved", "guess"), free),
        "auto": ("available", 4, "", [], {}),
        "bucket": ("available", 4, "", [], {"requests": 57.0, "tokens": 4797.0}),
        "told": ("available", 1, "", [], {"requests": 41.5, "tokens": 4875.0}),
        "paced": ("available", 1, "", [], {"requests": 3.0}),
        "team-1": ("parked", 1, "rate_limited(retry_after=7000) by lease 36", [], {"requests": 28.0}),
        "team-2": ("parked", 1, "rate_limited(retry_after=7000) by lease 36", [], {"requests": 28.0}),
        "cooled": ("cooling", 1, "rate_limited(retry_after=300) by lease 37", [], {}),
        "cooled-model": (
            *("available", 1, "big-1 cooling for 400.0s more (rate_limited(retry_after=400) by lease 38)"),
            *([], {}),
        ),
        "parked": ("parked", 1, "the day's window is used up", [], {}),
        "spent": ("spent", 1, "the bill was not paid", [], {}),
        "dead": ("dead", 1, "401 invalid key", [], {}),
    }
    assert agentos("keys", "clear", "dead", "cooled", *store) == (0, "cleared dead\ncleared cooled\n")
    found = {each["name"]: shown(each) for each in objects(agentos, "keys", "--json", "--all", *store)}
    assert found["dead"] == found["cooled"] == free


# -- Redis ------------------------------------------------------------------------------------------------------------


def restore(later: float) -> str:
    """Write the records to a pool of their own, whose clock shows *later* seconds after they were written.

    Returns the pool's URL. The store's clock is the server's with an offset that is stored, and so is the server's id:
    after a restart of the server no lease would start for a while.
    """
    dump = json.loads((FIXTURES / "redis.json").read_text())
    name, server = fresh_pool(), shared_server()
    with closing(server.client()) as client:
        for command, stored_key, *words in dump["commands"]:
            client.execute_command(command, stored_key.replace("{fixture}", f"{{{name}}}"), *words)
        meta = {"shift": repr(dump["at"] + later - server.time()), "run": client.info("server")["run_id"]}
        client.hset(f"agentos:{{{name}}}:meta", mapping=meta)
    return server.url(name)


def test_records_on_redis_have_every_credential_as_it_was_left() -> None:
    with pytest.raises(StoreUnavailable, match="processes of an older agentos are using it"):
        CredentialCoordinator(keys(), store=restore(5.0))  # the killed process may still be there

    url, began = restore(35.0), time.time()
    with closing(CredentialCoordinator(keys(), store=url)) as pool:
        states = {state.name: state for state in pool.snapshot()}

    assert list(states) == [credential.name for credential in keys()]
    parked, limit = "rate_limited(retry_after=7000) by lease 1794840777639", "rate_limited(retry_after=300) by lease"
    process = "process 2051 on a-machine"
    resting = {name: (each.state, each.why, each.reserved_by) for name, each in states.items() if not each.is_available}
    assert resting == {
        "team-1": ("parked", parked, None),
        "team-2": ("parked", parked, None),
        "cooled": ("cooling", f"{limit} 1794840777640", None),
        "parked": ("parked", "the day's window is used up", None),
        "spent": ("spent", "the bill was not paid", None),
        "dead": ("dead", "401 invalid key", None),
        "held": ("leased", "every slot is leased", f"worker-7 ({process}), {process}"),
        "reserved": ("leased", "every slot is leased", f"agent-3 ({process})"),
        "guess": (
            *("limited", "a request of unknown cost is in flight; the next waits until it is settled"),
            f"guesser ({process})",
        ),
    }
    until = {name: each.rate_limited_until - began for name, each in states.items() if each.rate_limited_until}
    ends = {"team-1": 6_963.0, "team-2": 6_963.0, "cooled": 263.0, "parked": 86_363.0}
    assert until == pytest.approx(ends, abs=2.0)
    model = r"big-1 cooling for \d+\.\ds more \(rate_limited\(retry_after=400\) by lease 1794840777641\)"
    assert re.fullmatch(model, states["cooled-model"].why)
    left = {(name, each.dimension): each.left for name, state in states.items() for each in state.limits}
    assert 5_400 < left.pop(("bucket", "tokens")) <= 6_000
    day = 100.0 if time.time() >= 1_794_895_200 else 93.0  # the end of that day by the wall clock, at 07:00 in Berlin
    assert left == pytest.approx(
        {
            ("bucket", "requests"): 60.0,
            ("sliding", "requests"): 3.0,
            ("daily", "requests"): day,
            ("family", "requests"): 9.0,
            ("family", "output_tokens"): 702.0,
            ("told", "requests"): 39.1,
            ("told", "tokens"): 4_520.0,
            ("paced", "requests"): 3.0,
            ("team-1", "requests"): 30.0,
            ("team-2", "requests"): 30.0,
            ("guess", "tokens"): 600.0,
        },
        rel=0.02,
    )
    assert {name: [each.what for each in state.history] for name, state in states.items() if state.history} == {
        "told": [
            "limit of 60 requests in 3600s, told by x-requests",
            "limit of 9,000 tokens in 3600s, told by x-tokens",
        ],
        "paced": ["looking for the rate: refused (429)"],
        "auto": ["slots 4: all were used, and nothing was refused"],
    }


def test_leases_on_redis_end_when_the_time_to_live_of_their_process_is_over(agentos: Agentos) -> None:
    holders = {each["name"]: each["holders"] for each in objects(agentos, "keys", "--json", "--store", restore(5.0))}
    assert holders["held"] == ["worker-7 (process 2051 on a-machine)", "process 2051 on a-machine"]
    assert [*holders["reserved"], *holders["guess"]] == [
        f"{each} (process 2051 on a-machine)" for each in ("agent-3", "guesser")
    ]

    url = restore(60.0)
    assert not any(each["holders"] for each in objects(agentos, "keys", "--json", "--store", url))
    with closing(CredentialCoordinator(keys(), store=url)) as pool:
        for name in ("held", "reserved", "guess"):
            with pool.acquire(labels={"key": name}, timeout=60.0) as lease:
                assert lease.token > 1_794_840_777_648  # the last that the killed process had


# -- a journal --------------------------------------------------------------------------------------------------------


def extract(name: str, to: Path) -> None:
    with tarfile.open(FIXTURES / name) as archive:
        archive.extractall(to, filter="data")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Of a run that was stopped in its first session, and killed in its second one with two items in hand."""
    extract("journal.tar.gz", tmp_path)
    return tmp_path / "journal"


IDS = ["text", "half", "nested", "none", "tuple", "set", "keys", "bytes", "big", "fails", "retried", "same", "steps"]
IDS += ["stops", "later", "killed", "slow", "never"]


def resume(journal: Path, **options: Any) -> tuple[list[tuple[str, int, str]], dict[str, WorkflowResult]]:
    """Run all items again; return what ran, as id, attempt and checkpoint, and all results."""
    ran = []

    def work(item: dict[str, str], credential: str, context: Any) -> str:
        checkpoint = context.checkpoint.read_text() if context.checkpoint.exists() else ""
        ran.append((item["id"], context.attempt, checkpoint))
        return "ran again"

    work.__module__, work.__qualname__ = "fixture", "work"  # as the journal has it
    coordinator = ParallelCoordinator(1, journal=journal, **options)
    _, results = coordinator.execute_parallel([{"id": name} for name in IDS], work, lambda item: str(item["id"]))
    return ran, {result.item_id: result for result in results}


def test_a_journal_gives_back_what_is_done_and_runs_only_what_is_not(journal: Path) -> None:
    ran, results = resume(journal)

    assert ran == [("killed", 2, ""), ("slow", 2, "half of it"), ("never", 1, "")]
    assert all(results[name].cached == (name not in ("killed", "slow", "never")) for name in IDS)
    assert {name: (each.value, each.value_repr) for name, each in results.items() if each.cached and each.success} == {
        "text": ("Gr\u00fc\u00dfe \u2603 \x00 end", None),
        "half": ("\ud800", None),
        "nested": ({"a": [1, 2.5, None, True], "b": {"\u00e4": "\u00fc"}}, None),
        "none": (None, None),
        "tuple": ([1, 2], None),
        "set": (None, "{3}"),
        "keys": (None, "{1: 'one'}"),
        "bytes": (None, r"b'\x00\xff'"),
        "big": (2**70, None),
        "retried": (2, None),
        "same": ("ran same", None),
        "steps": ("finished in session 2", None),
        "stops": ("stopped it", None),
        "later": ("ran later", None),
    }
    fails = results["fails"]
    assert (fails.success, fails.outcome, fails.error, fails.attempts) == (False, "failed", "bad value 17", 1)
    used = [(results[name].attempts, results[name].credential) for name in ("text", "half", "retried", "steps")]
    assert used == [(1, "one"), (1, "two"), (2, "one"), (2, "two")]
    assert resume(journal)[0] == []


def test_a_failed_item_of_a_journal_runs_again_if_it_is_told_to(journal: Path) -> None:
    ran, results = resume(journal, retry_failed=True)

    assert ("fails", 2, "") in ran
    assert results["fails"].value == "ran again"


# -- a run folder -----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run with two keys that was interrupted, in its project."""
    extract("run.tar.gz", project)
    folder = project / ".agentos" / "runs" / "old"
    folder.parent.mkdir(parents=True)
    (project / "old").rename(folder)
    card = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**card, "cwd": str(project)}))
    monkeypatch.setenv("FIXTURE_ALPHA", "sk-fixture-alpha-0123456789")
    monkeypatch.setenv("FIXTURE_BETA", "sk-fixture-beta-0123456789")
    return folder


def test_a_run_folder_is_shown_with_all_that_happened_in_it(agentos: Agentos, run: Path, project: Path) -> None:
    state = {"text": "stopped by SIGINT", "word": "stopped", "why": "SIGINT", "pid": None, "host": None}
    place = {"name": "old", "folder": ".agentos/runs/old", "state": state}
    (brief,) = objects(agentos, "runs", "--json")
    (report,) = objects(agentos, "show", "old", "--json")
    items = objects(agentos, "show", "old", "--items", "--json")

    counts = {"done": 4, "failed": 1, "total": 7, "left": 2}
    times = {"started_at": 1_794_840_951.5791, "seconds": pytest.approx(3.7304), "problem": None}
    assert brief == {**place, **counts, **times}
    no_tokens = Usage().to_json()
    no_use = {"retried": 0, "waited": 0.0, "rejected": 0, "unreachable": 0, "cooling": 0.0, "usage": no_tokens}
    assert report == {
        **place,
        "total": 7,
        "counts": {"pending": 1, "running": 0, "done": 4, "failed": 1, "interrupted": 1, "parked": 0},
        "not_begun": 1,
        "sessions": [
            {
                "number": 1,
                "started_at": 1_794_840_951.5791,
                "ended_at": 1_794_840_955.3095,
                "ended": "stopped by SIGINT",
                "finished": 5,
                "pid": 23468,
                "host": "a-machine",
            }
        ],
        "keys": [
            {"name": "alpha", "done": 1, "failed": 0, "limited": 1, "seconds": pytest.approx(0.1841), **no_use},
            {"name": "beta", "done": 3, "failed": 1, "limited": 0, "seconds": pytest.approx(3.2238), **no_use},
        ],
        "attempts": 7,
        "retried": 0,
        "limited": 1,
        "durations": {"p50": 0.0057, "p95": 0.1732, "longest": 0.1732},
        "wall": pytest.approx(3.7304),
        "rate": pytest.approx(1.34034, abs=1e-4),
        "failures": [
            {
                "cause": "exit 3: it broke",
                "error_type": "CommandFailed",
                "count": 1,
                "example": "broken",
                "text": "exit 3: it broke",
                "place": None,
                "code": "3",
                "error": "exit 3: it broke",
                "traceback": None,
            }
        ],
        "other_failures": 0,
        "waiting": {"seconds": 0.0, "by_key": {}},
        "unfinished": {"interrupted": ["long"], "pending": ["never"]},
        "damage": None,
        "card": {
            "name": "old",
            "cwd": str(project),
            "arguments": [
                *("items.txt", "--name", "old", "-j", "1", "--retries", "0", "--progress", "none"),
                *("--joblog", "jobs.log", "--", "sh", "step.sh", "{}"),
            ],
            "source_kind": "file",
            "started": 1_794_840_951.7582598,
            "engine": None,
        },
        "left": 2,
        "rejected": 0,
        "unreachable": 0,
        "usage": no_tokens,
        "key_time": KeyTime().as_json(),
        "results": ".agentos/runs/old/results.jsonl",
        "redacted": 0,
        "not_json": 0,
        "interrupted": 1,
        "unanswered": 0,
        "retry_cause": None,
        "requests": {"requests": 0, "done": 0, "refused": 0, "left": 0, "refusals": 0, "waited": 0.0, "longest": 0.0},
        "agents": [],
        "bounds": {"by": {}, "lost": {}, "keys": {}},
    }
    assert [(each["id"], each["state"], each["attempts"], each["credential"], each["error"]) for each in items] == [
        ("good", "done", 1, "alpha", None),
        ("noisy", "done", 1, "beta", None),
        ("limited", "done", 2, "beta", None),
        ("broken", "failed", 1, "beta", "exit 3: it broke"),
        ("weird-name-x-c718a46e6429", "done", 1, "beta", None),
        ("long", "interrupted", 1, "beta", "stopped on request"),
        ("never", "pending", 0, None, None),
    ]
    code, log = agentos("logs", "old", "noisy")
    assert (code, log.splitlines()[1:]) == (0, ["out of noisy", "err of noisy"])
    assert ", key beta ---" in log


def test_a_run_folder_goes_on_with_what_is_not_done(agentos: Agentos, run: Path, project: Path) -> None:
    joblog = (project / "jobs.log").read_text()
    (project / "step.sh").write_text("echo again $1 $AGENTOS_ATTEMPT\n")
    assert agentos("retry", "old")[0] == 2  # it was not started by this user
    assert agentos("trust", "old")[0] == 0

    code, out = agentos("retry", "old")

    assert (code, out) == (0, "[broken] again broken 2\n[long] again long 2\n[never] again never 1\n")
    results = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    assert [(each["id"], each["outcome"], each["attempts"], each["value"]["stdout"]) for each in results] == [
        ("good", "done", 1, "done good\n"),
        ("noisy", "done", 1, "out of noisy\n"),
        ("limited", "done", 2, "second try\n"),
        ("weird-name-x-c718a46e6429", "done", 1, "done weird name/x\n"),
        ("broken", "done", 2, "again broken 2\n"),
        ("long", "done", 2, "again long 2\n"),
        ("never", "done", 1, "again never 1\n"),
    ]
    assert (project / "jobs.log").read_text().startswith(joblog)
    (report,) = objects(agentos, "show", "old", "--json")
    assert (report["state"]["text"], len(report["sessions"]), report["counts"]["done"]) == ("finished", 2, 7)


def test_rows_without_an_id_are_recognised_by_the_ids_they_were_given(agentos: Agentos, project: Path) -> None:
    """Ids of such rows were hashes alone; with today's ids, the rows that are done would be run and paid again."""
    extract("rows.tar.gz", project)
    folder = project / ".agentos" / "runs" / "rows"
    folder.parent.mkdir(parents=True)
    (project / "rows").rename(folder)
    command = json.loads((folder / "run.json").read_text())["arguments"]
    with (project / "rows.csv").open("a") as rows:
        rows.write("Dee,Kiel\n")
    assert agentos("trust", "rows")[0] == 0

    assert agentos("run", *command)[0] == 1  # Bob had failed

    assert (project / "ran").read_text().split() == ["Ann", "Bob", "Cem", "Dee"]
    results = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert [each["id"] for each in results][:3] == ["b16cddda5af5", "7ef7158b80ca", "4552fab29e87"]
    assert json.loads((folder / "run.json").read_text())["id_rules"] == 1

    assert agentos("run", "--fresh", *command)[0] == 1

    results = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert [each["id"].partition("-")[0] for each in results] == ["ann", "bob", "cem", "dee"]
    assert agentos("run", *command)[0] == 1
    assert (project / "ran").read_text().split()[4:] == ["Ann", "Bob", "Cem", "Dee"]
