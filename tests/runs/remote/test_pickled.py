"""Objects are pickled, or the error says which cannot be, and why."""

from __future__ import annotations

import pickle
import sys
import threading
from importlib import import_module
from typing import Any

import pytest

from agentos import CredentialCoordinator, NotPicklable
from agentos.runs.remote.pickled import PickledObject, pack, unpack


class Unmakeable:
    """Goes, and does not arrive."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> None:
    raise LookupError("no such thing here")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("not even that")


class Untellable:
    def __reduce__(self) -> tuple[Any, ...]:
        raise Unspeakable


def test_what_was_packed_is_unpacked() -> None:
    thing = {"a": [1, 2.5, None], "b": ("ü", b"x")}

    assert unpack(pack(thing, "it"), "it") == thing


def test_a_parcel_shows_nothing_of_what_is_in_it() -> None:
    parcel = pack("sk-a-secret-0123456789", "it")

    assert "secret" not in f"{parcel!r} {parcel}"
    assert pickle.loads(pickle.dumps(parcel)) == parcel


def test_what_cannot_be_pickled_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cloudpickle", raising=False)

    with pytest.raises(NotPicklable, match=r"^the item cannot be pickled, .*cannot pickle '_thread.lock' object") as e:
        pack(threading.Lock(), "the item")

    assert e.value.what == "the item"


def test_where_cloudpickle_packs_it_is_cloudpickle_that_says_what_cannot_travel() -> None:
    """A function in a function can: it is what that one holds which cannot, and pickle does not look so far."""
    import_module("cloudpickle")
    lock = threading.Lock()

    def worker() -> None:
        lock.acquire()

    with pytest.raises(NotPicklable, match=r"cannot pickle '_thread.lock' object.*hold no lock, client or open file"):
        pack(worker, "the worker")


def test_what_cannot_be_made_again_is_called_by_its_name() -> None:
    with pytest.raises(NotPicklable, match=r"^the item .*unpickled there: LookupError: no such thing here"):
        unpack(pack(Unmakeable(), "the item"), "the item")


def test_an_object_whose_error_has_no_text_is_refused_all_the_same() -> None:
    with pytest.raises(NotPicklable, match="Unspeakable"):
        pack(Untellable(), "the item")


def test_with_cloudpickle_at_hand_a_function_without_a_name_travels() -> None:
    import_module("cloudpickle")
    number = 3

    made = unpack(pack(lambda: number + 1, "the worker"), "the worker")

    assert made() == 4


def test_what_is_in_main_travels_itself_unless_main_is_the_same_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name alone it would not be found."""
    import_module("cloudpickle")

    def in_main() -> int:
        return 5

    in_main.__module__, in_main.__qualname__ = "__main__", "in_main"
    monkeypatch.setattr(sys.modules["__main__"], "in_main", in_main, raising=False)
    by_value, by_name = pack(in_main, "it"), pack(in_main, "it", same_main=True)
    monkeypatch.delattr(sys.modules["__main__"], "in_main")

    assert unpack(by_value, "it")() == 5
    with pytest.raises(NotPicklable):
        unpack(by_name, "it")


def test_what_is_in_main_and_holds_what_cannot_travel_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool, for one, which a script has beside its worker: it would not be found there, by any name."""
    import_module("cloudpickle")
    pool = CredentialCoordinator(["sk-a-secret-0123456789"])

    def in_main() -> object:
        return pool.lease()

    in_main.__module__, in_main.__qualname__ = "__main__", "in_main"
    monkeypatch.setattr(sys.modules["__main__"], "in_main", in_main, raising=False)

    with pytest.raises(NotPicklable, match=r"the worker cannot be pickled.*hold no lock, client or open file"):
        pack(in_main, "the worker")


def test_a_parcel_is_a_value() -> None:
    assert PickledObject(b"a") == PickledObject(b"a") != PickledObject(b"b")


class ExitsWhenMade:
    """Whoever makes it again is told to end."""

    def __reduce__(self) -> Any:
        return sys.exit, (3,)


def test_an_object_that_exits_when_unpickled_is_reported_as_not_picklable() -> None:
    with pytest.raises(NotPicklable, match="it cannot be unpickled there: SystemExit: 3"):
        unpack(pack(ExitsWhenMade(), "it"), "what its worker returned")
