"""Ids are compared by digests that no two ids share; where only 64 bits are kept, the ids themselves decide."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from agentos.errors import JournalMismatch
from agentos.runs.exports.result_line import result_lines
from agentos.runs.journal import locate_files
from agentos.runs.report.item_states import build_end_check, list_items
from agentos.runs.report.run_report import build_report
from agentos.runs.report.run_summary import build_summary
from agentos.util import id_digest as module
from agentos.util.id_digest import id_digest
from agentos.workflows.parallel import ParallelCoordinator

from ..runs.sample_runs import run, stop_after

# CPython's hash of a text is that of its buffer: on a little-endian machine "no" and "潮" have the same bytes.
PAIRS = ["no", "潮", "of", "景"]


class EqualFirstHalves:
    """Stands in for the keyed hash state: the first 64 bits of all digests are equal."""

    def __init__(self) -> None:
        self._data = b""

    def copy(self) -> EqualFirstHalves:
        return EqualFirstHalves()

    def update(self, data: bytes) -> None:
        self._data += data

    def digest(self) -> bytes:
        return bytes(8) + blake2b(self._data, digest_size=8).digest()


@pytest.fixture(params=["real digests", "equal first halves"])
def _digests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "equal first halves":
        monkeypatch.setattr(module, "_KEYED", EqualFirstHalves())


def test_equal_ids_have_equal_digests_and_others_have_not() -> None:
    ids = [*PAIRS, "", "\0", "\ud800", "\udc80", "é", "e\u0301", "a" * 1000]

    assert [id_digest(each) for each in ids] == [id_digest(str(each)) for each in ids]
    for half in (0, 1):
        assert len({id_digest(each)[half] for each in ids}) == len(ids)


def test_only_a_text_has_a_digest() -> None:
    with pytest.raises(TypeError):
        id_digest(None)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_digests")
@pytest.mark.parametrize("kind", [list, iter])
def test_ids_with_equal_hashes_run_once_each_and_are_resumed(tmp_path: Path, kind: Callable[[list[str]], Any]) -> None:
    begun: list[str] = []
    broken = {"潮"}

    def work(item: str, credential: str | None) -> str:
        begun.append(item)
        if item in broken:
            raise ValueError(item)
        return item * 2

    for _ in range(2):
        results = run(tmp_path / "r", kind(PAIRS), work)
        assert {each.item_id: each.value for each in results} == {"no": "nono", "潮": None, "of": "ofof", "景": "景景"}
    assert sorted(begun) == sorted(PAIRS)

    broken.clear()
    results = run(tmp_path / "r", kind([*PAIRS, "later"]), work, retry_failed=True)

    assert {each.item_id: each.value for each in results} == {each: each * 2 for each in [*PAIRS, "later"]}
    assert sorted(begun) == sorted([*PAIRS, "潮", "later"])


@pytest.mark.usefixtures("_digests")
def test_reports_and_results_tell_ids_with_equal_hashes_apart(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    stop_after(folder, ["bad-1", *PAIRS], 3)  # "of" and "景" are not begun
    files = locate_files(folder)

    report, brief = build_report(folder), build_summary(folder)

    assert (report.total, report.counts["done"], report.counts["failed"], report.not_begun) == (5, 2, 1, 2)
    assert report.unfinished["pending"] == ("of", "景")
    assert (brief.total, brief.done, brief.failed, brief.left) == (5, 2, 1, 2)
    assert {each.id: each.state for each in list_items(files)} == {
        "bad-1": "failed",
        "no": "done",
        "潮": "done",
        "of": "pending",
        "景": "pending",
    }
    assert [build_end_check(files, "done")(each) for each in PAIRS] == [True, True, False, False]
    assert [(line["id"], line["index"]) for line in map(json.loads, result_lines(files))] == [
        *[("bad-1", 0), ("no", 1), ("潮", 2)]
    ]


@pytest.mark.usefixtures("_digests")
def test_a_changed_item_is_refused_and_one_whose_digest_is_equal_is_not(tmp_path: Path) -> None:
    def id_of(item: dict[str, str]) -> str:
        return item["id"]

    def work(item: dict[str, str], credential: str | None) -> str:
        return item["text"]

    def start(*items: dict[str, str]) -> list[Any]:
        coordinator = ParallelCoordinator(1, journal=tmp_path / "r", worker_version="work")
        return [result.value for result in coordinator.execute_parallel(list(items), work, id_of)[1]]

    no, tide = {"id": "no", "text": "one"}, {"id": "潮", "text": "two"}
    assert start(no) == ["one"]

    assert sorted(start(tide, no)) == ["one", "two"]
    with pytest.raises(JournalMismatch, match="content of 1 items") as caught:
        start({"id": "潮", "text": "three"}, no)
    assert "'潮'" in caught.value.recorded
