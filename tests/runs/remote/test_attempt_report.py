"""A remote error keeps the meaning it had where it was raised."""

from __future__ import annotations

import pickle
import re
import sys
import threading
from dataclasses import replace
from typing import Any

import pytest

from agentos import (
    Event,
    Interrupted,
    LeaseLost,
    NoCredentialAvailable,
    NoUsableCredential,
    RateLimited,
    RemoteError,
    Transient,
)
from agentos.errors import AgentOSError
from agentos.providers.clients.exceptions import find_own_error, from_exception
from agentos.runs.execution.error_policy import format_error, is_transient
from agentos.runs.execution.tracebacks import find_place, format_traceback
from agentos.runs.remote.attempt_report import build_error, build_failure


class Picky(TimeoutError):
    """Holds what cannot travel."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.lock = threading.Lock()


class Wordy(Exception):
    """Made again from its words it would say something else; unless somebody taught pickle better, as Dask does."""

    def __init__(self, word: str) -> None:
        super().__init__(f"the word was {word}")


class Overloaded(Transient):
    """A user's own, which may not be known at home."""

    def __init__(self, how: str) -> None:
        super().__init__(f"overloaded {how}")


class Refused(Exception):
    """As SDKs have them: with an answer that cannot travel."""

    def __init__(self) -> None:
        super().__init__("Error code: 429")
        self.status_code = 429
        self.response = _Response()


class _Response:
    status_code = 429
    headers: dict[str, str] = {"retry-after": "17"}  # noqa: RUF012

    def __init__(self) -> None:
        self.lock = threading.Lock()


def travelled(error: BaseException, **facts: Any) -> BaseException:
    """The error as it comes home."""
    try:
        raise error
    except BaseException as raised:
        failure = build_failure(raised, **facts)
    return build_error(pickle.loads(pickle.dumps(failure)))


def test_an_error_that_can_travel_is_the_very_same() -> None:
    error = travelled(KeyError("name"))

    assert type(error) is KeyError
    assert error.args == ("name",)


def test_one_that_cannot_bears_its_name_and_its_words() -> None:
    error = travelled(Picky(5, "too slow"))

    assert isinstance(error, RemoteError)
    assert (type(error).__qualname__, type(error).__module__, error.kind) == ("Picky", __name__, "Picky")
    assert str(error) == format_error(error) == "5: too slow"


def test_it_is_the_same_kind_of_builtin_error() -> None:
    assert isinstance(travelled(Picky(5, "too slow")), TimeoutError)
    assert not isinstance(travelled(Wordy("x")), OSError)


def test_one_that_would_say_something_else_is_not_made_again() -> None:
    error = travelled(Wordy("x"))

    assert (type(error).__qualname__, str(error)) == ("Wordy", "the word was x")


def test_one_that_came_home_can_travel_on() -> None:
    error = travelled(Picky(5, "too slow"))

    again = pickle.loads(pickle.dumps(error))

    assert (type(again), str(again)) == (type(error), str(error))


def test_its_class_may_be_missing_at_home() -> None:
    failure = build_failure(KeyError("x"))
    module = type(sys)("somewhere_else")
    gone = type("Gone", (ValueError,), {"__module__": "somewhere_else"})
    module.Gone = gone  # type: ignore[attr-defined]
    sys.modules["somewhere_else"] = module
    try:
        failure = build_failure(gone("no such item"))
    finally:
        del sys.modules["somewhere_else"]

    error = build_error(failure)

    assert isinstance(error, RemoteError)
    assert isinstance(error, ValueError)
    assert (type(error).__qualname__, str(error)) == ("Gone", "no such item")


def test_where_it_happened_is_in_its_trace() -> None:
    error = travelled(Picky(5, "too slow"))

    assert "in travelled\n    raise error" in format_traceback(error)
    assert re.fullmatch(r".*test_attempt_report\.py:\d+ in travelled", find_place(error) or "")


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (ConnectionResetError("gone"), True),
        (TimeoutError("slow"), True),
        (Picky(5, "slow"), True),
        (Transient("503"), True),
        (Overloaded("today"), True),
        (ValueError("wrong"), False),
        (Wordy("x"), False),
        (Interrupted(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_it_is_worth_another_try_if_it_was_there(error: BaseException, transient: bool) -> None:
    assert is_transient(error) is transient
    assert is_transient(travelled(error)) is transient


@pytest.mark.parametrize(
    "own",
    [
        RateLimited(30, model="a-model"),
        Interrupted("half-way"),
        LeaseLost(name="key-1", token=3, detail="its process was paused"),
        NoCredentialAvailable(waited=3.0, next_free_in=7.0),
    ],
    ids=lambda own: type(own).__name__,
)
def test_an_error_raised_from_one_of_agentos_still_is(own: AgentOSError) -> None:
    error = Wordy("x")
    error.__cause__ = own

    found = find_own_error(travelled(error))

    assert type(found) is type(own)
    assert found is not None
    assert vars(found) == vars(own)


def test_a_subclass_that_is_not_known_at_home_is_what_it_descends_from() -> None:
    class Local(RateLimited): ...

    found = find_own_error(build_error(replace(build_failure(Local(12)), pickled_error=None)))

    assert type(found) is RateLimited
    assert found.retry_after == 12


class Unprovided(NoUsableCredential):
    """Made without the facts of its base."""

    def __init__(self) -> None:
        Exception.__init__(self, "ask the admin")


class Mine(AgentOSError):
    def __init__(self, word: str) -> None:
        super().__init__()
        self.args = (word,)


@pytest.mark.parametrize(("own", "words"), [(Unprovided(), "ask the admin"), (Mine("a word"), "a word")])
def test_a_subclass_of_which_none_of_ours_can_be_made_keeps_its_name_and_its_words(
    own: AgentOSError, words: str
) -> None:
    found = build_error(replace(build_failure(own), pickled_error=None))

    assert isinstance(found, RemoteError)
    assert (type(found).__qualname__, format_error(found)) == (type(own).__qualname__, words)


def test_but_where_it_is_known_it_is_itself() -> None:
    found = find_own_error(travelled(Unprovided()))

    assert type(found) is Unprovided


def test_nor_is_what_was_raised_from_it_taken_for_something_else() -> None:
    error = Refused()
    error.__dict__.clear()
    error.__cause__ = Unprovided()

    found = find_own_error(travelled(error))

    assert isinstance(found, RemoteError)
    assert (found.kind, is_transient(travelled(error))) == ("Unprovided", False)


def test_a_limit_whose_model_is_of_a_class_unknown_at_home_is_still_one() -> None:
    class Local(str): ...

    failure = build_failure(RateLimited(12, model=Local("a-model")))
    found = find_own_error(build_error(replace(failure, pickled_error=None)))

    assert type(found) is RateLimited
    assert (found.retry_after, found.model, type(found.model)) == (12, "a-model", str)


class Exits(TimeoutError):
    """Ends the process of whoever pickles it."""

    def __reduce__(self) -> Any:
        raise SystemExit(1)


def test_an_error_that_cannot_be_looked_at_travels_by_its_name() -> None:
    error = travelled(Exits("slow"), reported=True)

    assert isinstance(error, RemoteError)
    assert isinstance(error, TimeoutError)
    assert str(error) == "Exits"


def test_an_error_that_takes_no_notes_comes_home_without_one() -> None:
    error = KeyError("name")
    error.__notes__ = "none"  # type: ignore[assignment]

    assert build_error(build_failure(error)).args == ("name",)


def test_an_sdks_error_whose_answer_cannot_travel_means_what_it_meant() -> None:
    at_home = from_exception(Refused(), now=0.0)
    signal = from_exception(travelled(Refused()), now=0.0)

    assert at_home is not None
    assert (at_home.event, at_home.delay) == (Event.LIMITED, 17.0)
    assert signal == at_home
    assert find_own_error(travelled(Refused())) is None


def test_an_error_raised_from_an_sdks_means_what_that_meant() -> None:
    error = ValueError("no answer")
    error.__cause__ = Refused()

    signal = from_exception(travelled(error), now=0.0)

    assert signal is not None
    assert signal.event is Event.LIMITED


def test_the_model_that_was_asked_for_is_in_the_signal() -> None:
    signal = from_exception(travelled(Refused(), model="a-model"), now=0.0)

    assert signal is not None
    assert signal.model == "a-model"


def test_a_user_error_that_means_nothing_means_nothing_at_home() -> None:
    assert from_exception(travelled(Wordy("x")), now=0.0) is None
    assert find_own_error(travelled(ValueError("x"))) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=lambda e: type(e).__name__)
def test_what_is_no_exception_travels_too(error: BaseException) -> None:
    assert type(travelled(error)) is type(error)


def test_an_error_whose_text_cannot_be_had_travels_by_its_name() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even that")

    error = travelled(Mute())

    assert isinstance(error, RemoteError)
    assert str(error) == "Mute"
