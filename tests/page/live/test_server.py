"""The live page's server: what it serves, whom it refuses, and what it pushes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from agentos.page.item_columns import STATES
from agentos.page.packing import unpack
from agentos.runs.journal import Journal, encode_row

from ...runs.sample_runs import Child, run
from .watching import Watching


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run(tmp_path / "night", ["a", "b", "bad-1"])
    return tmp_path / "night"


def test_the_page_has_no_data_and_a_strict_policy(folder: Path) -> None:
    with Watching(folder) as watching:
        status, headers, body = watching.ask("/", token="")

    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["cache-control"] == "no-store"
    assert b"night" not in body
    assert watching.token.encode() not in body


def test_the_token_is_in_the_fragment_and_differs_for_each_server(folder: Path) -> None:
    with Watching(folder) as one, Watching(folder) as other:
        assert "/#token=" in one.address
        assert len(one.token) >= 40
        assert one.token != other.token
        assert one.ask("/api/runs", token=other.token)[0] == 401


@pytest.mark.parametrize(
    "path", ["/api/runs", "/api/runs/night/data", "/api/runs/night/events", "/api/runs/night/log?id=a"]
)
def test_nothing_is_told_without_the_token(folder: Path, path: str) -> None:
    with Watching(folder) as watching:
        for token in ("", "x", watching.token[:-1]):
            status, _, body = watching.ask(path, token=token)

            assert status == 401
            assert b"night" not in body


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
    ids=str,
)
def test_other_hosts_and_pages_are_refused_even_with_the_token(folder: Path, headers: dict[str, str]) -> None:
    with Watching(folder) as watching:
        assert watching.ask("/api/runs", **headers)[0] == 403


def test_its_own_page_is_served_under_both_names(folder: Path) -> None:
    with Watching(folder) as watching:
        for host in (f"127.0.0.1:{watching.port}", f"localhost:{watching.port}"):
            assert watching.ask("/api/runs", Host=host, Origin=f"http://{host}", Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_it_only_reads(folder: Path, method: str) -> None:
    with Watching(folder) as watching:
        assert watching.ask("/api/runs", method)[0] == 405


@pytest.mark.parametrize(
    "path", ["/x", "/api", "/api/runs/none/data", "/api/runs/night/none", "/api/runs/..%2Fnight/data"]
)
def test_an_unknown_address_is_not_found(folder: Path, path: str) -> None:
    with Watching(folder) as watching:
        assert watching.ask(path)[0] == 404


def test_all_runs_of_the_folder_are_listed(tmp_path: Path, folder: Path) -> None:
    run(tmp_path / "day", ["a"])
    with Watching(tmp_path / "day", folder, chosen="night") as watching:
        told = watching.get("/api/runs")

    assert told["chosen"] == "night"
    assert [(each["name"], each["done"], each["failed"]) for each in told["runs"]] == [("day", 1, 0), ("night", 2, 1)]


def test_the_data_of_a_run_is_that_of_its_report(folder: Path) -> None:
    with Watching(folder) as watching:
        status, _, body = watching.ask("/api/runs/night/data")

    facts, columns = unpack(body)
    assert status == 200
    assert sorted(columns["ids"]) == ["a", "b", "bad-1"]
    assert facts["report"]["counts"]["failed"] == 1


def test_an_item_and_its_log_can_be_asked_for(folder: Path) -> None:
    logs = folder / "logs"
    logs.mkdir(mode=0o700)
    (logs / "bad-1.log").write_bytes("first\nsecond é".encode()[:-1])
    (logs / "bad-1.log").chmod(0o600)
    with Watching(folder) as watching:
        item = watching.get("/api/runs/night/item?id=bad-1")
        log = watching.get("/api/runs/night/log?id=bad-1")
        (logs / "bad-1.log").write_bytes("first\nsecond é\nthird\n".encode())
        more = watching.get(f"/api/runs/night/log?id=bad-1&from={log['next']}")
        nothing = watching.get(f"/api/runs/night/log?id={quote('../night')}")

    assert item["input"] == "bad-1"
    assert "no 'fieldbad-1'" in item["error"]
    assert "Traceback" in item["traceback"]
    assert log["text"] == "first\nsecond "
    assert more["text"] == "é\nthird\n"
    assert nothing == {"text": "", "next": 0}


def test_new_entries_are_pushed_to_every_viewer(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    journal = Journal.open(folder, worker="work", total=2)
    writer = journal.writer(on_committed=_ignore, on_trouble=_ignore, on_lost=_ignore)
    writer.put(encode_row(time.time(), "start", "a", 1, 1, "k-1"))
    assert writer.flush(60)
    with Watching(folder) as watching:
        facts = unpack(watching.ask("/api/runs/r/data")[2])[0]
        streams = [watching.stream("r", facts) for _ in range(3)]
        heads = [next(stream) for stream in streams]

        writer.put(
            encode_row(time.time(), "limited", "a", 1, 1, "k-1", 0.5, error="429", detail='{"trouble": "limited"}')
        )
        writer.put(encode_row(time.time(), "done", "a", 2, 1, "k-1", 0.5, value='"tea"', content='"a"'))
        writer.put(
            encode_row(time.time(), "failed", "b", 3, 1, None, 0.5, error="no tea", detail='{"type": "TeaError"}')
        )
        assert writer.flush(60)
        told = [_items(stream) for stream in streams]
        journal.close(60)
        for stream in streams:
            stream.close()

    assert all(event == "head" for event, _ in heads)
    assert told[0] == told[1] == told[2]
    items, attempts = told[0]
    assert [(each[0], STATES[each[1]], each[2], each[-2], each[-1]) for each in items] == [
        ("a", "pending", "k-1", "", ""),
        ("a", "done", "k-1", "tea", ""),
        ("b", "failed", None, "", "no tea"),
    ]
    assert [(each[0], each[-1]) for each in attempts] == [("a", "429")]


def test_a_viewer_that_comes_back_is_told_what_it_missed(folder: Path) -> None:
    with Watching(folder) as watching:
        facts = unpack(watching.ask("/api/runs/night/data")[2])[0]
        stream = watching.stream("night", {**facts, "last_entry": 0})
        events = dict(next(stream) for _ in range(2))
        stream.close()

    assert {each[0] for each in events["items"]["items"]} == {"a", "b", "bad-1"}


def test_a_run_that_ends_changes_the_head_at_once(tmp_path: Path) -> None:
    with Child(tmp_path / "r") as child, Watching(tmp_path / "r") as watching:
        facts = unpack(watching.ask("/api/runs/r/data")[2])[0]
        stream = watching.stream("r", facts)
        assert next(stream)[1]["word"] == "running"

        child.let_go()
        words = [told["word"] for event, told in _until_word(stream, "finished") if event == "head"]
        stream.close()

    assert words[-1] == "finished"


def test_a_replaced_journal_resets_the_page(tmp_path: Path, folder: Path) -> None:
    with Watching(folder) as watching:
        facts = unpack(watching.ask("/api/runs/night/data")[2])[0]
        folder.rename(tmp_path / "night.1")
        run(folder, ["x"])
        stream = watching.stream("night", facts)
        events = [next(stream)[0] for _ in range(2)]
        stream.close()

        assert unpack(watching.ask("/api/runs/night/data")[2])[1]["ids"] == ["x"]
    assert "reset" in events


def test_a_head_file_that_is_behind_does_not_reset_the_page(folder: Path) -> None:
    """A kill between a commit and the writing of the head file leaves it so."""
    head = (folder / "journal.sqlite.head").read_bytes()
    run(folder, ["a", "b", "bad-1", "new"])
    (folder / "journal.sqlite.head").write_bytes(head)
    with Watching(folder) as watching:
        facts = unpack(watching.ask("/api/runs/night/data")[2])[0]
        stream = watching.stream("night", facts)
        first = next(stream)
        run(folder, ["a", "b", "bad-1", "new", "newer"], accept_loss=True)
        events = [next(event for event, _ in stream if event != "head")]
        stream.close()

    assert first[0] == "head"
    assert events == ["items"]


def test_a_run_without_a_journal_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    with Watching(tmp_path / "r") as watching:
        status, _, body = watching.ask("/api/runs/r/data")

    assert status == 503
    assert "does not exist" in json.loads(body)["error"]


def _items(stream: Iterator[tuple[str, Any]]) -> tuple[list[Any], list[Any]]:
    """What is told of items, until b has come."""
    items: list[Any] = []
    attempts: list[Any] = []
    for event, told in stream:
        if event == "items":
            items += told["items"]
            attempts += told["attempts"]
            if any(each[0] == "b" for each in items):
                break
    return items, attempts


def _until_word(stream: Iterator[tuple[str, Any]], word: str) -> Iterator[tuple[str, Any]]:
    for event, told in stream:
        yield event, told
        if event == "head" and told["word"] == word:
            return


def _ignore(_: object) -> None:
    pass
