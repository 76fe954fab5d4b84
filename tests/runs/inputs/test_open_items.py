"""Items of every kind of source, errors with their line number, and bounded memory."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos import InputFailed, ParallelCoordinator
from agentos.runs.execution.item_source import ItemSource
from agentos.runs.inputs import InputError, locate_input, open_items, split_words
from agentos.runs.inputs import text_lines as lines_module
from agentos.runs.inputs.fields import get_field
from agentos.runs.inputs.file_items import FileItems
from agentos.runs.inputs.item_ids import IdFunction
from agentos.runs.inputs.piped_items import StreamItems

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def stream(content: bytes, **options: Any) -> StreamItems:
    items = open_items("-", stdin=io.BytesIO(content), **options)
    assert isinstance(items, StreamItems)
    return items


def refusal(source: Any, **options: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        list(open_items(source, **options))
    return caught.value


# -- formats ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "items"),
    [
        ("a.txt", "one\ntwo\n", ["one", "two"]),
        ("a.txt", "one\r\ntwo", ["one", "two"]),
        ("a.txt", "\n  \none\n\t\n two \n\n", ["one", " two "]),
        ("a.txt", "\ufeffone\ntwo", ["one", "two"]),
        ("a.txt", "größe\n日本\u2028語\x0b!\n", ["größe", "日本\u2028語\x0b!"]),
        ("no-suffix", '{"a": 1}\n', ['{"a": 1}']),
        ("a.jsonl", '{"a": 1}\n\n[1, "x"]\n"text"\n5\nnull\n', [{"a": 1}, [1, "x"], "text", 5, None]),
        ("a.JSONL", '\ufeff{"a": 1}\r\n{"a": "\u2028"}', [{"a": 1}, {"a": "\u2028"}]),
        ("a.ndjson", '{"a": 1}', [{"a": 1}]),
        ("a.json", '\n{"a": 1}\n{"a": 2}\n', [{"a": 1}, {"a": 2}]),
        ("a.json", '[{"a": 1}, {"a": 2}]', [{"a": 1}, {"a": 2}]),
        ("a.csv", "a,b\n1,2\n\n3,\n", [{"a": "1", "b": "2"}, {"a": "3", "b": ""}]),
        ("a.csv", '\ufeffa, b\r\n"x\r\ny","say ""hi"""\r\n', [{"a": "x\r\ny", "b": 'say "hi"'}]),
        ("a.csv", "a\nx\u2028y\n", [{"a": "x\u2028y"}]),
        ("a.tsv", "a\tb\n1,5\t2\n", [{"a": "1,5", "b": "2"}]),
    ],
)
def test_a_file_is_read_by_its_name(name: str, content: str, items: list[Any], write: Write) -> None:
    found = open_items(write(name, content))

    assert (len(found), list(found)) == (len(items), items)  # type: ignore[arg-type]
    assert (found.kind, found.unchanging) == ("file", True)


def test_a_format_that_is_told_comes_before_the_name(write: Write) -> None:
    path = write("a.jsonl", "a\tb\n1\t2\n")

    assert list(open_items(path, format="text")) == ["a\tb", "1\t2"]
    assert list(open_items(path, format="tsv")) == [{"a": "1", "b": "2"}]
    assert "must be text, jsonl, json, csv or tsv" in str(refusal(path, format="xml"))


def test_a_csv_field_may_be_longer_than_the_library_allows(write: Write) -> None:
    path = write("a.csv", f"a,b\n1,{'x' * 200_000}\n")

    (item,) = list[Any](open_items(path))
    assert len(item["b"]) == 200_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            '{"a": 1}\n\n{]\n',
            "line 3: not JSON (Expecting property name enclosed in double quotes at column 2",
        ),
        ("a.jsonl", "  x\n", "line 1: not JSON (Expecting value at column 3)"),
        ("a.jsonl", "1\n{} {}\n", "line 2: not JSON (Extra data at column 4)"),
        ("a.jsonl", '{"a": NaN}\n', "line 1: not JSON that can be read (NaN is not a JSON value)"),
        ("a.jsonl", "1\n" + "[" * 200_000, "line 2: not JSON that can be read (nested too deeply)"),
        ("a.jsonl", "9" * 5000, "line 1: not JSON that can be read (Exceeds the limit"),
        ("a.json", '{\n"a": 1}', "one JSON document that is not an array"),
        ("a.txt", b"one\nt\xffo\n", "line 2: not UTF-8 (byte 0xff at position 2)"),
        ("a.txt", b"one\n\ntw\0o\n", "line 3: has a NUL byte"),
        ("a.csv", b"a,b\n1,\0\n", "line 2: has a NUL byte"),
        ("a.txt", "one".encode("utf-16"), "line 1: UTF-16 instead of UTF-8"),
        ("a.csv", 'a,b\n"1\n2",x\n3\n', "line 4: 1 field, where the header has 2"),
        ("a.csv", "a,b\n1,2,3\n", "line 2: 3 fields, where the header has 2"),
        (
            "a.csv",
            'a,b\n1,2\n3,"never\nclosed\n',
            "line 3: not CSV (a quoted field that begins in this row is never closed)",
        ),
        ("a.csv", 'a,b\n"1"x,2\n', "line 2: not CSV (there is text between a closing quote and the next field"),
        ("a.csv", "a;b\n1;2\n", "line 1: the header is a single field, 'a;b'"),
        ("a.tsv", "a,b\n1,2\n", "line 1: the header is a single field, 'a,b'"),
        ("a.csv", ",b\n1,2\n", "line 1: column 1 of the header has no name"),
        ("a.csv", "\n\na,a\n1,2\n", "line 3: the header has two columns 'a'"),
        ("a.csv", "a,b\n", "no items in this file"),
        ("a.csv", "", "no items in this file"),
        ("a.txt", "\ufeff\n \n", "no items in this file"),
        ("a.json", "", "no items in this file"),
    ],
)
def test_what_is_wrong_with_a_file_is_named_with_its_line(
    name: str, content: str | bytes, message: str, write: Write
) -> None:
    write(name, content)

    error = refusal(name)

    assert str(error).startswith(f"{name}, {message}" if message.startswith("line") else f"{name}: {message}")
    assert (error.source, error.line is None) == (name, not message.startswith("line"))


def test_a_file_without_line_ends_does_not_fill_the_memory(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_LINE", 1 << 20)
    asked: list[int] = []

    class Endless(io.RawIOBase):
        def readline(self, size: int | None = -1, /) -> bytes:
            asked.append(size or 0)
            return b"x" * (size or 0)

    items = open_items("-", stdin=Endless(), format="text")  # type: ignore[arg-type]

    with pytest.raises(InputError, match=r"standard input, line 1: longer than 1 MiB"):
        next(items)  # type: ignore[arg-type]
    assert asked == [(1 << 20) + 1]


# -- files are read when they are asked for -----------------------------------------------------------------------


def test_items_of_a_file_are_a_sequence(write: Write) -> None:
    items = open_items(write("a.jsonl", "".join(f'{{"n": {n}}}\n\n' for n in range(1000))))
    assert isinstance(items, FileItems)

    assert items[0] == {"n": 0}
    assert items[-1] == {"n": 999}
    assert items[998:2000] == [{"n": 998}, {"n": 999}]
    assert items[10:0:-4] == [{"n": 10}, {"n": 6}, {"n": 2}]
    assert items[5:5] == []
    assert [item["n"] for item in items] == list(range(1000))
    assert {"n": 7} in items
    with pytest.raises(IndexError):
        items[1000]


def test_no_item_of_a_file_is_kept(write: Write) -> None:
    items = open_items(write("a.jsonl", '{"a": 1}\n'))
    assert isinstance(items, FileItems)

    assert items[0] == items[0]
    assert items[0] is not items[0]


def test_a_file_that_is_written_to_is_not_read_on(write: Write) -> None:
    path = write("a.txt", "one\ntwo\n")
    items = open_items("a.txt")
    with path.open("a") as file:
        file.write("three\n")

    with pytest.raises(InputError, match=r"^a\.txt: changed during the run$") as caught:
        items[0]  # type: ignore[index]
    assert "the same command again" in str(caught.value.hint)


def test_a_file_of_the_same_size_but_another_time_has_changed_too(write: Write) -> None:
    path = write("a.txt", "one\ntwo\n")
    items = open_items("a.txt")
    os.utime(path, ns=(1, 1))

    with pytest.raises(InputError, match="changed"):
        list(items)


@pytest.mark.parametrize("gone", [False, True])
def test_a_file_that_an_editor_replaced_or_somebody_removed_is_read_as_it_was(gone: bool, write: Write) -> None:
    path = write("a.txt", "one\ntwo\n")
    items = open_items("a.txt")
    path.unlink()
    if not gone:
        write("a.txt", "other\n")

    assert list(items) == ["one", "two"]


def test_a_closed_file_cannot_be_read(write: Write) -> None:
    items = open_items(write("a.txt", "one\n"))
    assert isinstance(items, FileItems)

    items.close()
    items.close()

    with pytest.raises(ValueError, match="were closed"):
        items[0]


def is_open(path: Path) -> bool:
    """Return whether this process has the file open. Others may close theirs meanwhile, so counting would not do."""
    file = path.stat()

    def is_file(descriptor: str) -> bool:
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            return os.path.samestat(os.fstat(int(descriptor)), file)
        return False

    return any(map(is_file, os.listdir("/dev/fd")))


def test_a_file_is_closed_when_its_items_are_dropped_or_it_is_refused(write: Write) -> None:
    path, bad = write("a.txt", "one\n"), write("bad.jsonl", "{\n")
    items = open_items(path)
    assert is_open(path)
    del items
    assert not is_open(path)

    refusal(bad)

    assert not is_open(bad)


def test_threads_may_read_a_file_at_once(write: Write) -> None:
    items = open_items(write("a.txt", "".join(f"line-{n}\n" for n in range(2000))))
    found: dict[int, list[str]] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: list(items)})) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(texts == [f"line-{n}" for n in range(2000)] for texts in found.values())
    assert len(found) == 4


# -- a run takes them as they are ---------------------------------------------------------------------------------


def test_a_run_does_not_copy_unchanging_items_and_does_not_read_them_again_for_their_ids(write: Write) -> None:
    items = open_items(write("a.jsonl", '{"id": "x"}\n{"id": "y"}\n'))
    assert isinstance(items, FileItems)
    source = ItemSource(items, items.id_of)

    assert source.payloads is items
    assert source.ids is items.ids
    batch, more = source.take_listed(2)
    assert [(item.id, item.payload) for item in batch] == [("x", {"id": "x"}), ("y", {"id": "y"})]
    assert not more


def test_a_run_with_ids_of_its_own_asks_for_them(write: Write) -> None:
    items = open_items(write("a.txt", "a\nb\n"))

    assert ItemSource(items, str.upper).ids == ["A", "B"]


def test_what_only_calls_itself_unchanging_by_accident_is_copied() -> None:
    class Odd(list[int]):
        unchanging = "no"

    items = Odd([1, 2])

    assert ItemSource(items, str).payloads is not items


def test_a_run_finishes_what_came_before_a_bad_line_and_names_it() -> None:
    items = stream(b'{"id": "a"}\n{"id": "b"}\n{"id"\n')

    with pytest.raises(InputFailed, match="standard input, line 3: not JSON") as caught:
        ParallelCoordinator(max_workers=1).execute_parallel(items, lambda item, _: item["id"], items.id_of)

    assert [result.value for result in caught.value.results] == ["a", "b"]
    assert isinstance(caught.value.__cause__, InputError)


def test_a_run_takes_a_file_as_it_is(write: Write) -> None:
    items = open_items(write("a.csv", "id,n\n" + "".join(f"x{n},{n}\n" for n in range(600))))

    stats, results = ParallelCoordinator(max_workers=2).execute_parallel(
        items, lambda item, _: int(item["n"]), items.id_of
    )

    assert (stats.total, stats.success_count) == (600, 600)
    assert sorted(result.value for result in results) == list(range(600))


# -- ids ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a", "src/main.py", "größe", "日本語", "user@host:22", "x" * 80, "/etc/hosts", "50%"])
def test_short_plain_text_is_its_own_id(text: str) -> None:
    assert IdFunction()(text) == text


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("Write a poem about the sea and about all its ships", "write-a-poem-about-the-sea-and"),
        ("two words", "two-words"),
        ("-rf", "rf"),
        ("x" * 81, "x" * 32),
        ("a\nb", "a-b"),
        ("\x1b[31mred", "31mred"),
    ],
)
def test_other_text_is_known_by_its_first_words_and_a_hash(text: str, slug: str) -> None:
    item_id = IdFunction()(text)

    assert item_id[:-13] == slug
    assert len(bytes.fromhex(item_id[-12:])) == 6
    assert item_id[-13] == "-"


def test_text_without_a_word_is_known_by_a_hash_alone() -> None:
    assert len(bytes.fromhex(IdFunction()("?!"))) == 6


@given(st.text(max_size=300))
def test_an_id_of_text_is_short_printable_and_always_the_same(text: str) -> None:
    item_id = IdFunction()(text)

    assert item_id == IdFunction()(text)
    assert 0 < len(item_id) <= 80
    assert item_id.isprintable()
    assert " " not in item_id
    assert not item_id.startswith("-")


@pytest.mark.parametrize(
    ("item", "item_id"),
    [
        ({"id": "x", "a": 1}, "x"),
        ({"id": 7}, "7"),
        ({"id": 0}, "0"),
        ({"id": 1.5}, "1.5"),
        ({"id": "two words"}, "two words"),
        (5, "5"),
        (True, "true"),
        (None, "null"),
    ],
)
def test_an_object_s_own_id_is_its_id(item: Any, item_id: str) -> None:
    assert IdFunction()(item) == item_id


@pytest.mark.parametrize("own", ["", "  ", None, True, [], {}])
def test_an_object_without_a_usable_id_is_known_by_its_content(own: Any) -> None:
    item_id = IdFunction()({"id": own, "a": 1, "b": 2})

    assert item_id == IdFunction()({"b": 2, "a": 1, "id": own})
    assert len(bytes.fromhex(item_id)) == 6
    assert item_id != IdFunction()({"id": own, "a": 1, "b": 3})


@pytest.mark.parametrize("own", ["x" * 201, "a\nb", "a\0b", "\x1b[2J"])
def test_an_id_that_was_given_is_kept_however_odd_it_is(own: str) -> None:
    assert IdFunction()({"id": own}) == IdFunction("id")({"id": own}) == own


def test_a_field_can_be_the_id_by_name_or_by_path(write: Write) -> None:
    path = write("a.jsonl", '{"id": 1, "user": {"name": "ann"}, "tags": ["x"]}\n')

    for field, item_id in (("user.name", "ann"), ("id", "1"), ("tags.0", "x"), (None, "1")):
        assert open_items(path, id_field=field).ids == [item_id]  # type: ignore[union-attr]


def test_a_field_whose_name_has_a_dot_comes_before_the_path() -> None:
    assert get_field({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    for missing in ("c", "a.c", "a.b.c", "l.1", "l.x", "l.²", ""):
        with pytest.raises(KeyError):
            get_field({"a": {"b": 2}, "l": [1]}, missing)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"b": 1}', "no field 'a' to be its id; it has 'b'"),
        ("{}", "no field 'a' to be its id; it has none"),
        ('{"a": null}', "field 'a' is null, not an id"),
        ('{"a": " "}', "field 'a' is empty, not an id"),
        ('{"a": [1]}', "field 'a' is an array, not an id"),
        ('{"a": {}}', "field 'a' is an object, not an id"),
        ('"text"', "not an object, so it has no field 'a' to be its id"),
    ],
)
def test_an_item_without_the_field_that_is_to_be_its_id_is_named(line: str, message: str, write: Write) -> None:
    content = f'{{"a": 1}}\n\n{line}\n'

    assert str(refusal(write("a.jsonl", content), id_field="a")).endswith(f"a.jsonl, line 3: {message}")
    items = stream(content.encode(), id_field="a", format="jsonl")
    assert next(items) == {"a": 1}
    with pytest.raises(InputError) as caught:
        next(items)
    assert str(caught.value) == f"standard input, line 3: {message}"


def test_text_has_no_field_to_be_an_id(write: Write) -> None:
    assert "line 1: not an object" in str(refusal(write("a.txt", "x\n"), id_field="a"))
    assert "nothing for --id" in str(refusal("-", id_field="a", format="text"))
    assert "words have no fields" in str(refusal(["a"], id_field="a"))
    assert "paths have no fields" in str(refusal("*", id_field="a"))


def test_repeated_ids_are_named_with_both_lines_before_anything_starts(write: Write) -> None:
    write("a.txt", "".join(f"{n}\n" for n in [*range(8), "", 0, *range(8)]))

    error = refusal("a.txt")

    assert str(error) == (
        "a.txt: item ids must differ: '0' (lines 1 and 10), '0' (lines 1 and 11), '1' (lines 2 and 12), "
        "'2' (lines 3 and 13), '3' (lines 4 and 14) and 4 more"
    )
    assert "--id FIELD" in str(error.hint)


# -- words, folders, globs ----------------------------------------------------------------------------------------


def test_words_are_items() -> None:
    items = open_items(["b", "a", "two words"])

    assert (list(items), items.kind, items.unchanging) == (["b", "a", "two words"], "words", True)
    assert items.ids[:2] == ["b", "a"]  # type: ignore[union-attr]
    assert items[1:] == ("a", "two words")  # type: ignore[index]


@pytest.mark.parametrize(
    ("given_words", "message"),
    [
        ([], "0 words: no items"),
        (["a", ""], "2 words: word 2 is empty"),
        (["a", "b", "a"], "3 words: item ids must differ: 'a' (words 1 and 3)"),
        (["\udcff"], r"1 word: '\udcff' is not UTF-8"),
    ],
)
def test_words_that_cannot_be_items_are_refused(given_words: list[str], message: str) -> None:
    assert str(refusal(given_words)) == message


@pytest.mark.parametrize("text", ["a,b,c", "a b c", " a, b\tc,\n", "a,,b c"])
def test_a_list_may_have_commas_or_spaces(text: str) -> None:
    assert split_words(text) == ["a", "b", "c"]


def test_a_glob_gives_the_paths_it_matches_sorted(write: Write) -> None:
    for name in ("in/b.txt", "in/a.txt", "in/.hidden.txt", "in/c.md", "in/deep/d.txt"):
        write(name, "x")

    assert list(open_items("in/*.txt")) == ["in/a.txt", "in/b.txt"]
    assert list(open_items("in/**/*.txt")) == ["in/a.txt", "in/b.txt", "in/deep/d.txt"]
    assert open_items("in/?.md").kind == "glob"
    assert str(refusal("in/*.pdf")).startswith("in/*.pdf: no path matches this pattern")


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(write: Write) -> None:
    write("a[1].txt", "x\n")

    assert (locate_input("a[1].txt").kind, list(open_items("a[1].txt"))) == ("file", ["x"])


def test_a_folder_gives_its_files_sorted(write: Write) -> None:
    for name in ("in/b.txt", "in/a.txt", "in/.hidden", "in/deep/d.txt"):
        write(name, "x")

    items = open_items("in")

    assert (list(items), items.kind) == (["in/a.txt", "in/b.txt"], "folder")
    assert "leave --format out" in str(refusal("in", format="csv"))


def test_a_folder_without_files_says_how_to_get_its_folders(write: Write) -> None:
    write("in/deep/a.txt", "x")

    error = refusal("in")

    assert str(error) == "in: no files in this folder"
    assert "'in/*'" in str(error.hint)


# -- what cannot be read ------------------------------------------------------------------------------------------


def test_a_name_that_was_mistyped_is_guessed(write: Write) -> None:
    write("prompts.jsonl", "1\n")

    error = refusal("promts.jsonl")

    assert (str(error), error.hint) == ("promts.jsonl: no such file", "did you mean prompts.jsonl?")
    assert refusal("zzz").hint is None
    assert str(refusal("nowhere/a.txt")) == "nowhere/a.txt: no such file: there is no folder 'nowhere'"


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 5000])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    assert refusal(name).line is None


def test_a_file_that_may_not_be_read_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.txt", "x\n")

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)

    assert str(refusal("a.txt")) == "a.txt: cannot be read (Permission denied)"


# -- standard input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "items"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b'\n{"a": 1}\n\n5\n', [{"a": 1}, 5]),
        (b"{not json}\n", ["{not json}"]),
        (b'[1]\n{"a": 1}\n', ["[1]", '{"a": 1}']),
        (b"\xef\xbb\xbf{}\n", [{}]),
        (b"", []),
        (b"\n\n", []),
    ],
)
def test_the_first_line_of_standard_input_tells_its_format(content: bytes, items: list[Any]) -> None:
    found = stream(content)

    assert (list(found), found.count, found.kind) == (items, len(items), "stdin")
    assert not hasattr(found, "__len__")


def test_a_bad_line_of_standard_input_comes_after_the_good_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "agentos.runs.execution.item_source._SLOW", float("inf")
    )  # else it may be taken an item at a time
    source = ItemSource(stream(b'{"a": 1}\n{"a": 2}\n\n{"a"\n{"a": 4}\n'), IdFunction())
    taken: list[Any] = []

    with pytest.raises(InputError, match=r"^standard input, line 4: not JSON \(Expecting ':' delimiter at column 5\)$"):
        source.take(taken.append)

    assert [item.payload for item in taken] == [{"a": 1}, {"a": 2}]


def test_nothing_is_read_of_standard_input_before_it_is_asked_for_and_then_a_line_at_a_time() -> None:
    class Slow(io.RawIOBase):
        given = 0

        def readline(self, size: int | None = -1, /) -> bytes:
            self.given += 1
            return b"line-%d\n" % self.given

    endless = Slow()
    items = open_items("-", stdin=endless)  # type: ignore[arg-type]

    assert endless.given == 0
    assert [next(items), next(items)] == ["line-1", "line-2"]  # type: ignore[arg-type]
    assert endless.given == 2


def test_a_table_may_come_by_standard_input() -> None:
    assert list(stream(b'a,b\n1,"x\ny"\n', format="csv")) == [{"a": "1", "b": "x\ny"}]


def test_a_standard_input_that_fails_or_is_closed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.RawIOBase):
        def readline(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(InputError, match=r"^standard input, line 1: cannot be read \(Input/output error\)$"):
        next(open_items("-", stdin=Broken()))  # type: ignore[arg-type]
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match=r"^standard input: closed"):
        next(open_items("-"))  # type: ignore[arg-type]


def test_a_pipe_with_a_name_is_read_once_like_standard_input(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    items = open_items(pipe)
    writer = threading.Thread(target=pipe.write_text, args=('{"a": 1}\n',))
    writer.start()

    found = list(items)
    writer.join()

    assert (found, items.kind) == ([{"a": 1}], "stdin")


# -- the whole ----------------------------------------------------------------------------------------------------

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(_JSON, min_size=1, max_size=8), st.booleans())
def test_whatever_is_json_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, items: Any, ascii_: bool
) -> None:
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    rows = [{"id": f"item-{number}", "value": item} for number, item in enumerate(items)]
    text = "".join(json.dumps(row, ensure_ascii=True if ascii_ else _has_surrogates(row)) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8", newline="")

    assert list(open_items(path)) == rows


def _has_surrogates(value: Any) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in json.dumps(value, ensure_ascii=False))


@given(
    st.lists(
        st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=2, max_size=2)
    )
)
def test_whatever_is_written_as_csv_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    import csv

    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(
            [["id", "a", "b"], *([str(number), *row] for number, row in enumerate(rows))]
        )
    expected = [{"id": str(number), "a": row[0], "b": row[1]} for number, row in enumerate(rows)]

    assert (list(open_items(path)) if rows else []) == expected


@given(st.binary(max_size=200))
def test_any_bytes_are_items_or_an_input_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "a"
    path.write_bytes(content)
    for form in ("text", "jsonl", "csv", "tsv"):
        try:
            items = open_items(path, format=form)
        except InputError:
            continue
        assert len(list(items)) == len(items.ids)  # type: ignore[union-attr]


def test_an_input_error_travels() -> None:
    error = InputError(source="a", detail="b", line=3, hint="c")
    again = pickle.loads(pickle.dumps(error))

    assert (str(again), again.source, again.detail, again.line, again.hint) == ("a, line 3: b", "a", "b", 3, "c")
    assert isinstance(again, ValueError)


def test_an_iterator_is_what_a_stream_is() -> None:
    assert isinstance(stream(b""), Iterator)
