"""The input becomes items in order, each with its id, read only as far as needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from agentos.errors import DuplicateItems
from agentos.runs.core.records import Item
from agentos.runs.execution import item_source as source_module
from agentos.runs.execution.item_source import CHUNK, ItemSource


def drain(source: ItemSource) -> list[Item]:
    """Everything, as a run takes it."""
    items: list[Item] = []
    if source.total is not None:
        more = True
        while more:
            batch, more = source.take_listed(7)
            items += batch
        return items
    while source.take(items.append):
        pass
    return items


def _giving(found: Any) -> Callable[[Any], Any]:
    return lambda _: found


class Lazy:
    """An iterable that is neither sized nor its own iterator."""

    def __iter__(self) -> Iterator[int]:
        return iter((3, 1, 2))


@pytest.mark.parametrize(
    ("given", "payloads"),
    [
        ([3, 1, 2], [3, 1, 2]),
        ((3, 1, 2), [3, 1, 2]),
        (range(20), list(range(20))),
        (deque([3, 1]), [3, 1]),
        ({"b": 1, "a": 2}, ["b", "a"]),
        ({"b": 1, "a": 2}.items(), [("b", 1), ("a", 2)]),
        (frozenset({5}), [5]),
        ([], []),
    ],
)
def test_what_has_a_length_is_known_as_a_whole(given: Any, payloads: list[Any]) -> None:
    source = ItemSource(given, str)

    assert source.total == len(payloads)
    assert source.ids == [str(payload) for payload in payloads]
    taken = drain(source)
    assert [item.payload for item in taken] == payloads
    assert [item.id for item in taken] == source.ids
    assert [item.index for item in taken] == list(range(len(payloads)))


@pytest.mark.parametrize("given", [iter([3, 1, 2]), (n for n in (3, 1, 2)), Lazy(), map(int, "312")])
def test_what_has_no_length_is_taken_as_it_comes(given: Iterable[int]) -> None:
    source = ItemSource(given, str)

    assert (source.total, source.ids) == (None, None)
    assert [(item.index, item.id, item.payload) for item in drain(source)] == [(0, "3", 3), (1, "1", 1), (2, "2", 2)]


def test_a_set_keeps_each_item_with_its_own_id() -> None:
    source = ItemSource({f"item-{number}" for number in range(500)}, lambda item: item.upper())

    assert all(item.id == item.payload.upper() for item in drain(source))


def test_an_async_iterable_is_known_as_one_and_not_begun() -> None:
    async def items() -> Any:
        yield 1

    source = ItemSource(items(), str)

    assert source.is_async
    assert (source.total, source.ids) == (None, None)
    assert [source.make(payload).id for payload in (1, 2)] == ["1", "2"]


@pytest.mark.parametrize("wrong", ["text", b"bytes", 5, None, object()])
def test_what_is_no_list_of_items_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^items must be a list of items or another iterable"):
        ItemSource(wrong, str)


# -- ids ----------------------------------------------------------------------------------------------------------


class Text(str):
    """A subclass, which would not be the same in a journal."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("found", "item_id"), [(7, "7"), (Text("a"), "a"), (("a", 1), "('a', 1)"), (0, "0"), (False, "False")]
)
def test_an_id_that_is_no_text_becomes_one(found: Any, item_id: str) -> None:
    for given in ([1], iter([1])):
        (item,) = drain(ItemSource(given, _giving(found)))

        assert (item.id, item.fault) == (item_id, None)
        assert type(item.id) is str


@pytest.mark.parametrize("found", [None, ""])
def test_an_item_without_an_id_gets_its_place_and_a_fault(found: Any) -> None:
    for given in (["a"], iter(["a"])):
        (item,) = drain(ItemSource(given, _giving(found)))

        assert item.id == "item-0"
        assert item.fault == "item_id_func gave no id for items[0]"


def test_ids_that_differ_only_in_kind_are_the_same() -> None:
    with pytest.raises(DuplicateItems, match=r"'1' at items\[0\] and items\[1\]"):
        ItemSource([1, "1"], lambda item: item)


def test_duplicates_of_a_list_are_counted_and_the_first_few_shown() -> None:
    with pytest.raises(DuplicateItems) as caught:
        ItemSource([0, 1, *range(10), 0], str)

    assert caught.value.count == 3
    assert caught.value.examples == [("0", 0, 2), ("1", 1, 3), ("0", 0, 12)]
    with pytest.raises(DuplicateItems, match="and 5 more; nothing was started"):
        ItemSource([*range(10), *range(10)], str)


def test_a_duplicate_of_an_iterator_is_that_items_fault() -> None:
    items = drain(ItemSource(iter(["a", "b", "a"]), str, with_fingerprints=True))

    assert [item.duplicate for item in items] == [False, False, True]
    assert "duplicate id: an earlier item is 'a' too" in str(items[2].fault)
    assert items[2].fingerprint is None


def test_items_get_a_fingerprint_only_if_there_is_a_journal(caplog: pytest.LogCaptureFixture) -> None:
    for given in ([1, object(), object()], iter([1, object(), object()])):
        caplog.clear()
        first, second, _ = drain(ItemSource(given, lambda item: id(item), with_fingerprints=True))

        assert first.fingerprint
        assert second.fingerprint is None
        assert [record.message for record in caplog.records] == [
            f"[COORDINATOR] item {second.id} is not JSON: such items are identified by their id alone"
        ]
    assert drain(ItemSource([1], str))[0].fingerprint is None


# -- how much is taken --------------------------------------------------------------------------------------------


def test_no_more_is_taken_of_an_iterator_than_was_asked_for() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    source = ItemSource(items(), str)
    assert taken == 0
    assert source.take(list[Item]().append, 5)
    assert taken <= 5
    assert source.take(list[Item]().append)
    assert taken <= 5 + CHUNK


def test_a_slow_input_is_asked_for_one_item_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a worker would wait for sixty-four items before it may begin the first."""
    now = 0.0

    class Time:
        @staticmethod
        def monotonic() -> float:
            return now

    def items() -> Iterator[int]:
        nonlocal now
        for number in range(3):
            now += 0.01
            yield number

    monkeypatch.setattr(source_module, "time", Time)
    source = ItemSource(items(), str)
    counts = []
    more = True
    while more:
        taken: list[Item] = []
        more = source.take(taken.append)
        counts.append(len(taken))

    assert counts == [1, 1, 1, 0]


def test_the_end_of_an_iterator_is_told_once_it_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_SLOW", float("inf"))
    source = ItemSource(iter([1, 2]), str)
    taken: list[Item] = []

    assert source.take(taken.append, 2)
    assert not source.take(taken.append, 2)
    assert not source.take(taken.append, 2)
    assert len(taken) == 2


def test_a_list_says_whether_there_is_more() -> None:
    source = ItemSource(range(4), str)

    assert [(len(batch), more) for batch, more in (source.take_listed(3), source.take_listed(3))] == [
        (3, True),
        (1, False),
    ]
    assert source.take_listed(3) == ([], False)


# -- lists that change while they are run -------------------------------------------------------------------------


def test_a_list_that_grows_is_run_as_it_was_when_it_was_given() -> None:
    items = [0, 1, 2]
    source = ItemSource(items, str)
    items.append(3)

    assert [item.id for item in drain(source)] == ["0", "1", "2"]
    assert source.total == 3


def test_a_list_that_shrinks_is_run_as_it_was_when_it_was_given_too() -> None:
    items = list(range(10))
    source = ItemSource(items, str)
    source.take_listed(4)
    items.clear()

    assert [(item.id, item.payload) for item in drain(source)] == [(str(n), n) for n in range(4, 10)]


def test_an_item_put_in_front_does_not_move_the_ids_of_the_others() -> None:
    items = ["a", "b", "c"]
    source = ItemSource(items, str)
    source.take_listed(1)
    items.insert(0, "new")

    batch, _ = source.take_listed(2)
    assert all(item.id == item.payload for item in batch)


class Once:
    """Has a length, and can be gone through once: ``tqdm(generator, total=3)`` is one."""

    def __init__(self) -> None:
        self._items = iter([1, 2, 3])

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return self._items


def test_what_has_a_length_and_can_be_gone_through_once_is_run() -> None:
    assert [item.payload for item in drain(ItemSource(Once(), str))] == [1, 2, 3]
