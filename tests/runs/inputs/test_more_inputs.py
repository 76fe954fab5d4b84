"""JSON arrays, compressed files, several files, repeated items, and readable ids."""

from __future__ import annotations

import gzip
import io
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentos import ParallelCoordinator
from agentos.runs.inputs import InputError, json_array, locate_files, open_items
from agentos.runs.inputs.file_items import FileItems
from agentos.runs.inputs.item_ids import FIRST_ID_RULES, IdFunction, number_duplicates
from agentos.runs.inputs.repeated_items import RepeatedItems
from agentos.runs.inputs.text_lines import NumberedLines

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        raw = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return path

    return write


def refusal(source: Any, **options: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        list(open_items(source, **options))
    return caught.value


# -- JSON arrays --------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    items=st.lists(JSON, max_size=8),
    indent=st.none() | st.integers(0, 3),
    ascii_only=st.booleans(),
    piece=st.integers(1, 40),
)
@example(items=[1.5e300, -0.25, 10**30, True, "\U0001f600\\\n"], indent=None, ascii_only=True, piece=1)
def test_an_array_is_read_in_pieces_of_any_size(
    items: list[Any], indent: int | None, ascii_only: bool, piece: int
) -> None:
    raw = ("\ufeff " + json.dumps(items, indent=indent, ensure_ascii=ascii_only) + "\n").encode()
    reader = io.BytesIO(raw)
    form = json_array.JsonArray()
    lines = NumberedLines("x", lambda size: reader.readline(min(size, piece)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_array, "_RETRY_ALWAYS", 4)

        records = list(form.records(lines))

    assert [item for *_, item in records] == items
    assert [form.parse(raw[offset : offset + size]) for _, offset, size, _ in records] == items
    assert [number for number, *_ in records] == [raw[:offset].count(b"\n") + 1 for _, offset, _, _ in records]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "a.json: no items in this file"),
        ("[1, 2", "a.json, line 1: not JSON (expecting ',' or ']' after an element of the array)"),
        ("[1,\n2 3]", "a.json, line 2: not JSON (expecting ',' or ']' after an element of the array)"),
        ("[1,\n {'a': 1}]", "a.json, line 2: not JSON (Expecting property name enclosed in double quotes at column 3)"),
        ('[{"a": 1},\n\n{"a": }]', "a.json, line 3: not JSON (Expecting value at column 7)"),
        ('["never closed', "a.json, line 1: not JSON (Unterminated string starting at at column 2)"),
        ("[1, 2,]", "a.json, line 1: not JSON (Expecting value at column 7)"),
        ("[NaN]", "a.json, line 1: not JSON that can be read (NaN is not a JSON value)"),
        ("[" * 100_000, "a.json, line 1: not JSON that can be read (nested too deeply)"),
        ("[1, 2]\n[3]", "a.json, line 2: there is more text after the end of the array"),
        (b'[\n"\xff"]', "a.json, line 2: not UTF-8 (byte 0xff)"),
        ("[1]".encode("utf-16"), "a.json, line 1: UTF-16 instead of UTF-8"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_array_is_named_with_its_line(content: str | bytes, message: str, write: Write) -> None:
    write("a.json", content)
    if content == "[1]".encode("utf-16"):  # its name alone does not make it an array
        assert str(refusal("a.json", format="json")) == message
        return

    assert str(refusal("a.json")) == message


def test_an_element_that_is_too_long_does_not_fill_the_memory(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "MAX_LINE", 1 << 20)
    write("a.json", f'["{"x" * (2 << 20)}"]')

    assert str(refusal("a.json")) == "a.json, line 1: an element longer than 1 MiB"


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_large_array_on_one_line_takes_little_memory(name: str, write: Write) -> None:
    """Only the places of the items and their ids are kept, as with JSON lines."""
    count, text = 2_000, "x" * 4_000
    write(name, json.dumps([{"id": number, "text": text} for number in range(count)]))
    tracemalloc.start()
    try:
        items = open_items(name)
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert isinstance(items, FileItems)
    assert (len(items), items[count - 1]) == (count, {"id": count - 1, "text": text})
    assert used < count * len(text) / 2


def test_an_array_can_come_on_standard_input() -> None:
    items = open_items("-", stdin=io.BytesIO(b'[{"id": "a"},\n {"id": "b"}]'), format="json")

    assert [items.id_of(item) for item in items] == ["a", "b"]


def test_json_lines_that_are_an_array_say_which_format_to_name(write: Write) -> None:
    write("a.jsonl", '[\n{"a": 1}\n]')

    assert "--format json" in str(refusal("a.jsonl").hint)


# -- gzip ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "items"),
    [
        ("a.txt.gz", "one\ntwo\n", ["one", "two"]),
        ("a.jsonl.GZ", '{"a": 1}\n', [{"a": 1}]),
        ("a.csv.gz", "a,b\n1,2\n", [{"a": "1", "b": "2"}]),
        ("a.tsv.gz", "a\tb\n1\t2\n", [{"a": "1", "b": "2"}]),
        ("a.json.gz", '[{"a": 1}, 5]', [{"a": 1}, 5]),
        ("a.gz", "one\n", ["one"]),
    ],
)
def test_a_compressed_file_is_read_as_the_file_in_it(name: str, content: str, items: list[Any], tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode()))
    found = open_items(path)
    path.unlink()  # it is not needed any more

    assert isinstance(found, FileItems)
    assert (list(found), found[-1]) == (items, items[-1])


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(b"one\ntwo\n" * 1_000)
    for raw, message in ((b"one\n", "Not a gzipped file"), (whole[:-9], "Compressed file ended")):
        (tmp_path / "a.txt.gz").write_bytes(raw)
        assert str(refusal("a.txt.gz")).startswith(f"a.txt.gz: not a whole gzip file ({message}")


def test_a_compressed_file_without_the_suffix_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(gzip.compress(b"one\n"))

    assert str(refusal("a.txt")) == "a.txt, line 1: compressed with gzip"


def test_a_folder_that_cannot_hold_the_unpacked_file_is_named(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))

    error = refusal(write("a.txt.gz", "one\n"))

    assert "cannot be unpacked (No such file or directory)" in str(error)
    assert "TMPDIR" in str(error.hint)


# -- several files ------------------------------------------------------------------------------------------------


def several(*names: str, **options: Any) -> FileItems:
    items = open_items(locate_files(names, named_format="format" in options), **options)
    assert isinstance(items, FileItems)
    return items


def test_the_items_of_several_files_follow_each_other(write: Write) -> None:
    write("a.jsonl", '{"id": "a1"}\n{"id": "a2"}\n')
    write("b.csv.gz", "id,n\nb1,1\n")
    write("c.json", '[{"id": "c1"}, {"id": "c2"}]')

    items = several("a.jsonl", "b.csv.gz", "c.json")

    assert items.ids == ["a1", "a2", "b1", "c1", "c2"]
    assert [item["id"] for item in items] == items.ids
    assert items[2] == {"id": "b1", "n": "1"}
    assert [item["id"] for item in items[4:0:-2]] == ["c2", "b1"]
    assert (items.kind, items.name) == ("files", "a.jsonl b.csv.gz c.json")


def test_an_id_in_two_files_is_named_with_both_places(write: Write) -> None:
    write("a.jsonl", '{"id": "x"}\n{"id": "y"}\n')
    write("b.jsonl", '\n{"id": "y"}\n')

    with pytest.raises(InputError) as caught:
        several("a.jsonl", "b.jsonl")

    assert str(caught.value) == ("a.jsonl b.jsonl: item ids must differ: 'y' (a.jsonl, line 2 and b.jsonl, line 2)")


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("-", "-: standard input, or a pipe; only files can be given together"),
        ("folder", "folder: a folder; only files can be given together"),
        ("*.txt", "*.txt: a pattern; only files can be given together"),
        ("b.py", "b.py: are the lines of these files the items, or their paths?"),
        ("none.txt", "none.txt: no such file"),
    ],
)
def test_only_files_of_items_can_be_given_together(second: str, message: str, write: Write, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    write("a.txt", "one\n")
    write("b.py", "two\n")

    with pytest.raises(InputError) as caught:
        locate_files(["a.txt", second], named_format=False)

    assert str(caught.value) == message
    assert several("a.txt", "b.py", format="text").ids == ["one", "two"]


def test_all_files_are_closed_when_one_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.txt", "one\n")
    write("b.jsonl", "{\n")
    closed: list[int] = []
    close = os.close

    def note(handle: int) -> None:
        closed.append(handle)
        close(handle)

    monkeypatch.setattr(os, "close", note)

    with pytest.raises(InputError):
        several("a.txt", "b.jsonl")

    assert len(closed) == 2


# -- repeated and equal items -------------------------------------------------------------------------------------


def test_repeated_items_follow_each_other_with_numbered_ids(write: Write) -> None:
    items = open_items(write("a.txt", "x\ny\n"), repeat=3)

    assert isinstance(items, RepeatedItems)
    assert items.ids == ["x#1", "x#2", "x#3", "y#1", "y#2", "y#3"]
    assert list(items) == ["x", "x", "x", "y", "y", "y"]
    assert (items[3], items[1:4], items[5:1:-3], items[6:]) == ("y", ["x", "x", "y"], ["y", "x"], [])
    assert open_items(["a"], repeat=1).ids == ["a#1"]  # type: ignore[union-attr]


def test_equal_ids_get_a_number_if_they_are_allowed(write: Write) -> None:
    path = write("a.jsonl", "".join(f'{{"id": "{each}"}}\n' for each in ["x", "y", "x", "x", "x#2"]))

    assert "--allow-duplicates" in str(refusal(path).hint)
    assert open_items(path, allow_duplicates=True).ids == ["x", "y", "x#3", "x#4", "x#2"]  # type: ignore[union-attr]
    assert open_items(["a", "a"], allow_duplicates=True, repeat=2).ids == [  # type: ignore[union-attr]
        *["a#1", "a#2"],
        *["a#2#1", "a#2#2"],
    ]


@given(st.lists(st.sampled_from(["a", "b", "a#2", "a#3", "b#2#2"])))
def test_numbered_ids_are_always_unique(ids: list[str]) -> None:
    assert len(set(number_duplicates(ids))) == len(ids)


def test_a_stream_is_repeated_and_numbered_too() -> None:
    def ids(**options: Any) -> list[str]:
        items = open_items("-", stdin=io.BytesIO(b"x\ny\nx\n"), **options)
        _, results = ParallelCoordinator(1).execute_parallel(items, lambda item, key: item, items.id_of)
        assert all(result.success for result in results)
        return [result.item_id for result in results]

    assert ids(allow_duplicates=True) == ["x", "y", "x#2"]
    assert ids(allow_duplicates=True, repeat=2) == ["x#1", "x#2", "y#1", "y#2", "x#2#1", "x#2#2"]


# -- readable ids -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "slug"),
    [
        ({"name": "Ann", "age": 5}, "ann"),
        ({"age": 5, "blank": " ", "name": "Ann Müller", "city": "Rome"}, "ann-müller"),
        ({"prompt": "Write a poem about the sea and about all its ships"}, "write-a-poem-about-the-sea-and"),
        ([1, "Two words"], "two-words"),
    ],
)
def test_a_row_without_an_id_gets_its_first_text_and_a_hash_of_all(item: Any, slug: str) -> None:
    item_id = IdFunction()(item)

    assert item_id == IdFunction()(item)
    assert (item_id[:-7], item_id[-7], len(bytes.fromhex(item_id[-6:]))) == (slug, "-", 3)


def test_an_id_does_not_depend_on_the_position_of_the_row(write: Write) -> None:
    rows = ["Ann,5", "Bob,6", "Cem,7"]
    one = open_items(write("a.csv", "\n".join(["name,age", *rows])))
    other = open_items(write("b.csv", "\n".join(["name,age", *reversed(rows), "Dee,8"])))

    assert other.ids[2::-1] == one.ids  # type: ignore[union-attr]


def test_rows_whose_short_hashes_are_equal_get_longer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands of rows with the same first text, two have the same six digits."""
    hashes = {1: "aaaaaa11111122", 2: "aaaaaa22222233", 3: "bbbbbb33333344"}
    monkeypatch.setattr("agentos.runs.inputs.item_ids.fingerprint", lambda item: hashes[item["n"]])
    id_of = IdFunction()
    rows = [{"text": "same", "n": number} for number in (1, 2, 3, 1, 2)]

    assert list(map(id_of, rows)) == [
        *["same-aaaaaa", "same-aaaaaa222222", "same-bbbbbb"],
        *["same-aaaaaa", "same-aaaaaa222222"],
    ]


def test_a_stream_remembers_only_so_many_short_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.runs.inputs.item_ids._REMEMBERED", 3)
    id_of = IdFunction(streamed=True)
    for number in range(10):
        id_of({"text": "same", "n": number})

    assert len(id_of._seen) == 3


def test_the_first_rules_make_a_hash_alone() -> None:
    """These ids are in journals of version 0.1.0."""
    id_of = IdFunction(rules=FIRST_ID_RULES)

    assert id_of({"name": "Ann", "age": 5}) == "3579cfb9a921"
    assert id_of([1, "Two words"]) == "15736a29c871"
