"""The names and the order of all that is stored or sent, as literal data: renaming an attribute must change none of it.

Red here means that files, servers or programs of other versions would not be understood any more.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from agentos import Credential, CredentialCoordinator, Lease, Limit, NoCredentialAvailable, ParallelCoordinator
from agentos.cli.main import main
from agentos.providers import Event, Reading, Signal
from agentos.runs.cluster.wire import messages
from agentos.simulator import KeyPlan, ProviderPlan, QuotaPlan, Scripted, Statistics, Tally
from agentos.testing import FakeClock

from .redis_server import fresh_pool, shared_server

Agentos = Callable[..., tuple[int, str]]


@pytest.fixture
def agentos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Agentos:
    """Run a command line in an empty folder; return its exit code and its standard output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AGENTOS_HOME", str(tmp_path / "state"))
    for name in ("XDG_CONFIG_HOME", "AGENTOS_STORE", "AGENTOS_KEYS", "AGENTOS_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def typed(*arguments: str) -> tuple[int, str]:
        capfd.readouterr()
        code = main(list(arguments))
        return code, capfd.readouterr().out

    return typed


def shape(value: Any) -> Any:
    """The names in *value*, with the type of each value in its place."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value]
    return "null" if value is None else type(value).__name__


# -- the pool ---------------------------------------------------------------------------------------------------------


def use(store: str, **options: Any) -> tuple[CredentialCoordinator, list[Lease]]:
    """Leave a record of every kind in *store*. Returns the pool, and the leases it has given."""
    limits = {
        "bucket": [Limit("tokens", 600)],
        "guess": [Limit("tokens", 600)],
        "sliding": [Limit("requests", 5, per=3600, window="sliding")],
        "day": [Limit("requests", 100, per="day", resets_at="07:00", tz="UTC", model="big-*")],
    }
    names = ("plain", "bucket", "guess", "sliding", "day", "told", "paced", "cooled", "probed", "spent", "dead")
    credentials = [
        Credential(f"sk-shape-{name}-0123456789", name=name, labels={"key": name}, slots=2, limits=limits.get(name, ()))
        for name in names
    ]
    auto = Credential("sk-shape-auto-0123456789", name="auto", labels={"key": "auto"}, slots="auto", quota="shared")
    pool = CredentialCoordinator([*credentials, auto], store=store, **options)

    def lease(name: str, requester: str | None = None, **more: Any) -> Lease:
        return pool.acquire(requester, labels={"key": name}, timeout=60.0, **more)

    with lease("bucket", cost={"tokens": 50}) as held:
        held.settle({"input_tokens": 15, "output_tokens": 15})
    with lease("sliding"), lease("day", model="big-1"), lease("auto") as held:
        held.report(Signal(Event.OK))
    with lease("told") as held:
        held.report(Signal(Event.OK, readings=(Reading("requests", 60.0, 40.0, window=60.0, source="x-left"),)))
    with lease("paced") as held:
        held.report(Signal(Event.LIMITED, None, evidence=("429",), status=429))
    with lease("cooled", model="big-1") as held:
        held.rate_limited(300, model="big-1")
    with lease("probed") as held:
        held.report(Signal(Event.PARKED, 7_200.0, evidence=("used up",), status=429))
    with lease("spent") as held:
        held.spent("no money")
    with lease("dead") as held:
        held.rejected("401")
    return pool, [lease("plain", "worker-1"), lease("guess")]


QUOTAS: dict[str, Any] = {
    "plain": {},
    "bucket": {
        "limits": {
            "tokens per 60s continuous": {
                "empty_at": 4943.0,
                "takes": 1,
                "fullest": [[1, 0.0]],
                "usage": {"amounts": [30], "count": 1, "in_flight": 0, "silent": 0, "set_aside": False},
            }
        }
    },
    "guess": {
        "limits": {
            "tokens per 60s continuous": {
                "empty_at": 4940.0,
                "takes": 1,
                "fullest": [[1, 0.0]],
                "usage": {"amounts": [], "count": 0, "in_flight": 1, "silent": 0, "set_aside": False},
            }
        }
    },
    "sliding": {
        "limits": {
            "requests per 3600s sliding": {
                "starts": [[5000.0, 1.0]],
                "refused_starts": [],
                "echoes": 0,
                "takes": 1,
                "guard": 1e-4 * 3600.0,
                "lag": 0.0,
                "allowance": [None, None, 1.0, 0.0, 1, False, 0.0, 1],
                "retry_at": None,
                "lowered_at": None,
                "proven_at": None,
                "is_window": None,
                "probe": 0,
                "mark": 0,
                "probe_at": None,
                "full_until": 5000.0,
            }
        }
    },
    "day": {
        "limits": {
            "requests per day from 07:00 UTC continuous big-*": {
                "ends_at": 1_700_031_600.0,
                "used": 1.0,
                "allowance": [None, None, 1.0, 0.0, 1, False, 0.0, 1],
                "retry_at": None,
                "lowered_at": None,
                "proven_at": None,
            }
        }
    },
    "told": {
        "history": [[5000.0, "limit of 60 requests, told by x-left"]],
        "limits": {
            "told requests per 60s": {
                "learned": ["told", "requests", None, 60.0, 60.0],
                "empty_at": 4960.02,
                "renewed_at": None,
                "heard_at": 5000.0,
                "mentioned_at": 5000.0,
                "heard_taken": 0.0,
                "taken": 0.0,
                "remaining": 40.0,
                "allowance": 41.0,
                "starts": [],
                "hint": 60.0,
                "least_rate": 0.0,
                "obeyed": True,
                "trust": 1.0,
                "renews": False,
                "slides": False,
                "total": None,
                "blocked_at": None,
                "usable": [None, None, 1.0, 0.0, 1, False, 0.0, 1],
                "retry_at": None,
                "lowered_at": None,
                "proven_at": None,
                "mark": 0.0,
                "probe": [-1.0, 1.0],
                "evidence": ["bucket", [0.0, 0.0, 0.0], False, 0.0, None, 0.0, [0.0, 0.0], 0, 0.0],
                "anchor": None,
                "since": 5000.0,
                "admitted": 0.0,
                "confirmed": 1,
            }
        },
    },
    "paced": {
        "blocks": {"": ["cooling", 5001.0, 5000.0, "the provider answered 429", False]},
        "history": [[5000.0, "looking for the rate: refused (the provider answered 429)"]],
        "limits": {
            "pace": {
                "learned": ["pace", None, None],
                "anchor_at": 5000.0,
                "anchor_taken": 0.0,
                "anchor_left": 0.0,
                "at": 5000.0,
                "base": 0.25,
                "found": 0.0,
                "found_in": 0.0,
                "lag": 0.0,
                "level": 1.0 - 0.25 / math.log(2.0),
                "mark": 0.0,
                "overflowed": False,
                "plateau": 50.0,
                "pressed": 0.0,
                "rate": 0.25,
                "refused": 0.0,
                "resting_until": 5001.0,
                "row": 0,
                "searching_since": 5000.0,
                "taken": 0.0,
                "took_at": 5000.0,
                "unpressed": 0.0,
                "idle": 0.0,
                "since": 5000.0,
                "admitted": 0.0,
                "confirmed": 0,
            }
        },
    },
    "cooled": {"blocks": {"big-1": ["cooling", 5300.0, 5000.0, "the caller reported a rate limit", False]}},
    "probed": {"blocks": {"": ["parked", 12_200.0, 5000.0, "the provider answered 429: used up", True]}},
    "spent": {"spent": ["spent", None, 5000.0, "no money", False]},
    "dead": {},
    "auto": {
        "width": {"slots": 4, "known": False, "proven": 1, "suspected": 0, "step": 1, "patience": 100},
        "history": [[5000.0, "slots 4: all were used, and nothing was refused"]],
    },
}

STORED = [{"version": 1, **record} for record in QUOTAS.values()]
STORED[0] = {}  # of a quota that was never written


def test_the_pool_file(tmp_path: Path) -> None:
    path = tmp_path / "pool.sqlite"
    clock = FakeClock(5000.0, 1_700_000_000.0 - 5000.0)
    pool, leases = use(f"sqlite:///{path}", clock=clock)
    with closing(pool), closing(sqlite3.connect(path)) as file:

        def rows(query: str) -> list[tuple[Any, ...]]:
            return file.execute(query).fetchall()

        records = [
            (name, json.loads(record)) for name, record in rows("select name, record from quotas order by number")
        ]
        assert [record for _, record in records] == STORED
        assert [json.dumps(record) for _, record in records] == list(map(json.dumps, STORED))  # in this order
        digests = [f"key {digest}" for (digest,) in rows("select fingerprint from credentials order by number")]
        assert [name for name, _ in records] == [*digests[:-1], "quota shared"]
        found = rows("select name, life, evidence, since from credentials order by number")
        assert found == [(name, *(("dead", "401") if name == "dead" else ("alive", "")), 5000.0) for name in QUOTAS]
        assert rows("select credential, token, requester, granted_at, quota, guessed from leases order by token") == [
            (1, 11, "worker-1", 5000.0, 1, None),
            (3, 12, None, 5000.0, 3, '["tokens per 60s continuous"]'),
        ]
        assert rows(
            "select s.id = l.session, expires_at, weight, served, waiting_since, wanted, called_at, idle_until, claim, "
            "pid, out_for, gone_until from sessions s join leases l where l.token = 11"
        ) == [(1, 5030.0, 1.0, 0.0, None, None, None, None, None, os.getpid(), None, None)]
        meta = dict(rows("select key, value from meta"))
        assert (sorted(meta), shape(json.loads(meta["moment"]))) == (["moment", "salt"], ["str", "float", "float"])
        for lease in leases:
            lease.release()


def test_a_claim_of_one_who_waits_and_what_it_wants(tmp_path: Path) -> None:
    """Of a process that waits, others know which credentials it wants, and the refill that it waits for."""
    path = tmp_path / "pool.sqlite"
    clock = FakeClock(5000.0)
    credentials = [Credential("sk-shape-one-0123456789", name="one", tpm=60, slots=2)]
    first, second = (CredentialCoordinator(credentials, store=path, clock=clock) for _ in range(2))
    with closing(first), closing(second), closing(sqlite3.connect(path)) as file:
        first.acquire(cost={"tokens": 60}).release()
        with pytest.raises(NoCredentialAvailable):
            second.acquire_nowait(cost={"tokens": 30})
        waiter = Thread(target=lambda: second.acquire(cost={"tokens": 30}).release())
        waiter.start()
        query = "select waiting_since, wanted, idle_until, claim from sessions where claim is not null"
        while not (found := file.execute(query).fetchall()):
            time.sleep(0.01)
        clock.advance(30.0)
        waiter.join()
    assert found == [(5000.0, " 1 ", 5030.0, "1 5030.0 30 tokens per 60s continuous")]


def test_the_records_on_redis() -> None:
    name = fresh_pool()
    pool, leases = use(shared_server().url(name), lease_ttl=1.0)
    with closing(pool), closing(shared_server().client()) as client:
        places = [f"agentos:{{{name}}}:{each}" for each in ("changes", "expiry", "meta", "records")]
        assert sorted(client.keys(f"*{name}*")) == places
        meta, records = client.hgetall(places[2]), client.hgetall(places[3])
        for lease in leases:
            lease.release()
    (session,) = (each[1:] for each in records if each[0] == "s")
    fields = ["before", "epoch", "format", "longest", "paused_until", "run", "salt", "sequence", "shift", "token"]
    assert sorted(meta) == sorted([session, *fields, "version", "why"])
    assert meta["format"] == "2"
    plain, held = map(json.loads, records["c1"].splitlines())
    assert (plain[1:4], shape(plain)) == (["plain", "alive", ""], ["str", "str", "str", "str", "float"])
    assert (held[1], held[3], held[5], shape(held)) == (
        session,
        "worker-1",
        1,
        ["int", *["str"] * 3, "float", "int", "null"],
    )
    assert json.loads(records["c3"].splitlines()[1])[6] == ["tokens per 60s continuous"]
    assert json.loads(records["c11"])[1:4] == ["dead", "dead", "401"]
    quotas = [records[f"q{number}"].splitlines() for number in range(1, len(QUOTAS) + 1)]
    assert [shape(json.loads(known)) for _, known in quotas] == [shape(record) for record in STORED]
    assert [json.loads(name) for name, _ in quotas][::11] == [f"key {plain[0]}", "quota shared"]
    assert json.loads(records["line"]) == [0.0, [session]]
    told = json.loads(records[f"s{session}"])
    assert told == [0.0, session, 1.0, 1.0, 0.0, *[None] * 5, os.getpid(), socket.gethostname()]


def test_the_keys_for_programs(agentos: Agentos, tmp_path: Path) -> None:
    pool, leases = use(f"sqlite:///{tmp_path}/pool.sqlite")
    _, out = agentos("keys", "--json", "--store", f"sqlite:///{tmp_path}/pool.sqlite")
    for lease in leases:
        lease.release()
    pool.close()

    rows = {row["name"]: row for row in map(json.loads, out.splitlines())}
    (found,) = rows["told"]["limits_in_force"]
    in_force = {"dimension": "requests", "left": found["left"], "certainty": found["certainty"]}
    limit = {"dimension": "requests", "amount": 60.0, "left": rows["told"]["limits"][0]["left"], "model": None}
    assert rows["told"] == {
        "name": "told",
        "state": "available",
        "available": True,
        "until": None,
        "why": "",
        "quota": "told",
        "slots": 1,
        "leases": 0,
        "holders": [],
        "limits": [{**limit, "set_aside": False, "per": 60.0, "learned": True}],
        "secrets": 1,
        "paused_until": None,
        "paused_why": "",
        "secrets_in_use": 0,
        "limits_in_force": [{**in_force, "amount": 60.0, "per": 60.0, "source": "reported", "model": None}],
        "slots_source": "stated",
    }
    # The cooldown of "paced" is a second long: on a busy machine it may be over by now.
    states = {name: row["state"] for name, row in rows.items() if row["state"] != "available" and name != "paced"}
    assert states == {
        "probed": "parked",
        "spent": "spent",
        "dead": "dead",
        **dict.fromkeys(("plain", "guess"), "leased"),
    }


# -- a run ------------------------------------------------------------------------------------------------------------


def test_the_journal(tmp_path: Path) -> None:
    def work(item: str, credential: str) -> Any:
        if item == "bad":
            raise ValueError("it is bad")
        return [item, 1j]

    pool = CredentialCoordinator([Credential("sk-shape-one-0123456789", name="one")])
    ParallelCoordinator(1, pool, journal=tmp_path, retries=0).execute_parallel(["good", "bad"], work, str)

    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as file:
        cursor = file.execute("select * from entries where kind not in ('start')")
        columns = [each[0] for each in cursor.description]
        entries = {entry[2]: dict(zip(columns, entry, strict=True)) for entry in cursor}
        meta = dict(file.execute("select key, value from meta"))
    assert columns == [
        *("seq", "at", "kind", "item", "token", "attempt", "credential", "duration", "fingerprint", "value", "error"),
        *("detail", "chain", "content", "usage", "flags"),
    ]
    assert list(entries) == ["session", "plan", "done", "failed", "closed"]
    session = json.loads(entries["session"]["detail"])
    names = {"session": "int", "worker": "str", "agentos": "str", "pid": "int", "host": "str", "total": "int"}
    assert list(shape(session).items()) == list(names.items())
    assert json.loads(entries["plan"]["detail"]) == ["good", "bad"]
    done, failed = entries["done"], entries["failed"]
    assert [done[name] for name in ("item", "attempt", "credential", "detail")] == ["good", 1, "one", "['good', 1j]"]
    assert [(each["content"], each["usage"], each["flags"]) for each in (done, failed)] == [
        ('"good"', None, '{"value_type":"list"}'),
        ('"bad"', None, None),
    ]
    assert (failed["item"], failed["error"]) == ("bad", "it is bad")
    failure = json.loads(failed["detail"])
    assert (list(failure), failure["type"]) == (["type", "place", "traceback"], "ValueError")
    assert (sorted(meta), meta["session"], meta["worker"]) == (["session", "worker"], "1", session["worker"])
    owner = json.loads((tmp_path / "journal.sqlite.lock").read_text())
    assert list(shape(owner).items()) == [("pid", "int"), ("host", "str"), ("started", "float"), ("run", "str")]


RESULT: dict[str, Any] = {
    "id": "str",
    "outcome": "str",
    "item": "str",
    "value": "null",
    "error": "str",
    "error_type": "str",
}
RESULT |= {"attempts": "int", "credential": "null", "duration": "float", "index": "int", "finished_at": "float"}
RESULT |= {"usage": "null", "place": "null", "traceback": "null", "tail": []}


def test_the_files_of_a_run_and_what_it_prints_for_programs(agentos: Agentos, tmp_path: Path) -> None:
    words = ("--name", "r", "--joblog", "jobs", "--progress", "none", "--retries", "0")
    code, out = agentos("run", "--json", *words, "--", "false", "{}", ":::", "a")
    run = tmp_path / ".agentos" / "runs" / "r"
    start, item, done = map(json.loads, out.splitlines())

    assert code == 1
    assert shape(start) == {"event": "str", "run": "str", "folder": "str", "total": "int"}
    assert list(shape(item).items()) == list({"event": "str", "cached": "bool", **RESULT}.items())
    counts = dict.fromkeys(("exit", "done", "failed", "total", "cached", "left"), "int")
    ends: dict[str, Any] = {"stopped_by": "null", "wakes_at": "null", "seconds": "float"}
    ends |= dict.fromkeys(("retried", "limited", "rejected", "unreachable"), "int") | {"unreachable_since": "null"}
    ends["usage"] = dict.fromkeys(("input", "output", "cache_read", "cache_write", "reasoning"), "int")
    assert list(shape(done).items()) == list({"event": "str", "run": "str", **counts, **ends}.items())
    assert [start["event"], item["event"], done["event"]] == ["start", "item", "done"]
    assert list(shape(json.loads((run / "results.jsonl").read_text())).items()) == list(RESULT.items())
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    session, bound = shape(events)
    assert session == {"at": "float", "kind": "str", "pid": "int", "parallel": "int"}
    assert list(bound) == ["at", "kind", "since", "until", "parallel", "running", "by", "idle"]
    assert list(json.loads((run / "run.json").read_text())) == [
        *("format", "name", "created", "started", "cwd", "arguments", "command", "worker", "source", "parallel"),
        *("engine", "keys", "agentos", "id_rules"),
    ]
    assert (tmp_path / "jobs").read_text().splitlines()[0].split("\t") == [
        *("Seq", "Host", "Starttime", "JobRuntime", "Send", "Receive", "Exitval", "Signal", "Command")
    ]
    (known,) = (tmp_path / "state").rglob("run-*.json")
    assert shape(json.loads(known.read_text())) == {"path": "str", "id": "str", "cards": ["str"], "any_owner": "bool"}
    facts = ["error_type", "place", "traceback", "tail"]
    (item_state,) = (json.loads(line) for line in agentos("show", "r", "--items", "--json")[1].splitlines())
    assert list(item_state) == ["id", "state", "begun", "attempts", "credential", "duration", "error", "at", *facts]


def test_the_progress_for_programs(agentos: Agentos, capfd: pytest.CaptureFixture[str]) -> None:
    main(["run", "--progress", "json", "--retries", "0", "--", "false", "{}", ":::", "a"])
    events = {event["kind"]: event for event in map(json.loads, capfd.readouterr().err.splitlines())}
    counts = [
        "total",
        "completed",
        "failed",
        "retried",
        "limited",
        "rejected",
        "unreachable",
        "cached",
        "unreachable_since",
        "interrupted",
        "parked",
        "done",
        "elapsed",
        "usage",
    ]
    result = ["outcome", "duration", "attempts", "credential", "error", "error_type", "place", "traceback"]
    assert list(events["item_finished"]) == ["at", "kind", "item", *result, *counts]


# -- between processes ------------------------------------------------------------------------------------------------


def test_the_messages_of_a_cluster() -> None:
    hello = messages.hello_body(bytes(messages.PASSWORD_LENGTH), messages.Hello("link-1", "worker-1", (1,), (2, 3)))
    told = json.loads(hello[messages.PASSWORD_LENGTH :])
    assert list(told) == ["format", "link", "name", "asks", "in_hand"]
    assert list(told.values())[1:] == ["link-1", "worker-1", [1], [2, 3]]
    assert sorted(messages.FrameKind) == [1, 2, 3, 4, 5, *range(16, 25), 32, 33]
    assert [standing.value for standing in messages.AttemptStatus] == [b"g", b"d", b"l", b"k"]
    assert ({**messages.CHANNEL_OF}, sorted(messages.Channel)) == ({"stdout": 0, "stderr": 1}, [0, 1, 2])


def test_the_simulator() -> None:
    plan = ProviderPlan((QuotaPlan("q"),), (KeyPlan("sk-shape", "q", name="k"),), script=(Scripted(500, call=1),))
    assert json.loads(json.dumps(plan.to_dict())) == {
        "quotas": [
            {
                "name": "q",
                **dict.fromkeys(("rpm", "tpm", "request_burst", "token_burst", "concurrency", "daily_requests")),
                "spent": False,
                "money": None,
                "refill": "continuous",
                "window": 60.0,
                "changes_at": None,
                "changes_to": 0.5,
            }
        ],
        "keys": [
            {
                "secret": "sk-shape",
                "quota": "q",
                "dead": False,
                "dies_after": None,
                "concurrency": None,
                "name": "k",
                "slowness": 1.0,
            }
        ],
        "latency": {"median": 0.3, "sigma": 0.3, "least": 0.0},
        "style": "openai",
        "dialect": "full",
        "retry_after": "seconds",
        "count_rejections": False,
        "error_rate": 0.0,
        "overload_rate": 0.0,
        "rejection_latency": 0.005,
        "output_tokens": 16,
        "refund_tokens": False,
        "seed": 0,
        "script": [{"status": 500, "call": 1, "at": None, "until": None, "key": None, "headers": [], "body": None}],
    }
    counts = dict.fromkeys(("calls", "admitted", "ok", "failed", "left", "in_flight", "most_in_flight", "tokens"), 0)
    tally: dict[str, Any] = {**counts, "rejected": {}, "first_at": None, "last_at": None}
    assert Statistics(Tally(), {"k": Tally()}, {"q": Tally()}).to_dict() == {
        "total": tally,
        "keys": {"k": tally},
        "quotas": {"q": tally},
        "violations": (),
    }
