"""Errors say what happened and what to do, and travel."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

import agentos
from agentos import (
    AgentOSError,
    CommandFailed,
    DuplicateItems,
    EngineUnavailable,
    ForeignHost,
    InputFailed,
    Interrupted,
    InvariantViolated,
    JournalDamaged,
    JournalError,
    JournalInUse,
    JournalMismatch,
    JournalTooNew,
    JournalUnavailable,
    LeaseLost,
    NeverFits,
    NoCredentialAvailable,
    NotAJournal,
    NotAStore,
    NotPicklable,
    NoUsableCredential,
    PoolClosed,
    ProgressStats,
    RateLimited,
    RemoteError,
    RunStopped,
    StoreDamaged,
    StoreElsewhere,
    StoreError,
    StoreOnNetworkShare,
    StoreTooNew,
    StoreUnavailable,
    Transient,
    ValueNotRecorded,
    WorkerLost,
    WorkflowResult,
    WouldBlockLoop,
)
from agentos import errors as module
from agentos.pool.secret_sources import SecretUnavailable
from agentos.runs.commands.template import TemplateError
from agentos.runs.inputs.input_error import InputError

ERRORS = [
    NoCredentialAvailable(waited=30.0, next_free_in=4.2),
    NoUsableCredential(reason="the pool is empty; add a credential"),
    NeverFits(dimension="tokens", cost=9000, largest=8000),
    PoolClosed(),
    WouldBlockLoop(instead="async with pool.lease()"),
    ForeignHost(host="api.example.com", credentials=("key-1", "key-2"), detail="the keys are those of openai"),
    InvariantViolated(name="L1", detail="two leases on one slot"),
    RateLimited(),
    RateLimited(30, model="a-model"),
    Transient(),
    Transient("503 from upstream"),
    WorkerLost(),
    WorkerLost("the worker on node-3 was not heard of for 10s"),
    EngineUnavailable(place="the Dask scheduler at tcp://10.0.0.5:8786", detail="connection refused"),
    RemoteError(kind="APIError", text="the model is gone"),
    ValueNotRecorded(detail="an entry of 300 characters is too long"),
    NotPicklable(what="the item", detail="TypeError: cannot pickle a lock"),
    Interrupted(),
    CommandFailed(reason="exit 3: oh no", exit=3, tail=("oh no",)),
    Interrupted("half-way"),
    DuplicateItems(examples=[("a", 0, 2), ("b", 1, 3)], count=7),
    InputFailed(reason="OSError: gone", stats=ProgressStats(total=3), results=[WorkflowResult("a", True, value=1)]),
    InputFailed(reason="OSError: gone"),
    RunStopped(stopped_by="halt at now,fail=1", stats=ProgressStats(total=3, failed=1)),
    JournalInUse(path="/run", owner="run x (pid 7)"),
    NotAJournal(path="/run", found="not an SQLite database"),
    JournalTooNew(path="/run", version=9, known=1),
    JournalDamaged(path="/run", detail="entry 3 is missing"),
    JournalDamaged(path="/run", detail="2 entries are missing at its end", missing=2),
    JournalMismatch(path="/run", what="worker", recorded="a:b", given="c:d"),
    JournalUnavailable(path="/run", detail="the disk is gone"),
    LeaseLost(name="key-a", token=7, detail="its process was paused for longer than 30s"),
    StoreUnavailable(path="/pool", detail="the disk is full"),
    NotAStore(path="/pool", detail="not an SQLite database"),
    StoreTooNew(path="/pool", version=9, newest=1),
    StoreDamaged(path="/pool", detail="its tables are not as they were made"),
    StoreElsewhere(path="/pool", detail="since 12:00"),
    StoreOnNetworkShare(path="/pool", kind="nfs4"),
]

# The constructors as they were written by hand before `error_fields` built them.
SIGNATURES = {
    "AgentOSError": "(**facts: 'Any') -> 'None'",
    "NoCredentialAvailable": "(*, waited: 'float', next_free_in: 'float | None' = None) -> 'None'",
    "NoUsableCredential": "(*, reason: 'str') -> 'None'",
    "NeverFits": "(*, dimension: 'str', cost: 'float', largest: 'float') -> 'None'",
    "PoolClosed": "(**facts: 'Any') -> 'None'",
    "WouldBlockLoop": "(*, instead: 'str') -> 'None'",
    "ForeignHost": "(*, host: 'str', credentials: 'tuple[str, ...]', detail: 'str') -> 'None'",
    "InvariantViolated": "(*, name: 'str', detail: 'str') -> 'None'",
    "LeaseLost": "(*, name: 'str', token: 'int', detail: 'str') -> 'None'",
    "StoreError": "(**facts: 'Any') -> 'None'",
    "StoreUnavailable": "(*, path: 'str', detail: 'str', wants_login: 'bool' = False) -> 'None'",
    "NotAStore": "(*, path: 'str', detail: 'str') -> 'None'",
    "StoreTooNew": "(*, path: 'str', version: 'int', newest: 'int') -> 'None'",
    "StoreDamaged": "(*, path: 'str', detail: 'str') -> 'None'",
    "StoreElsewhere": "(*, path: 'str', detail: 'str') -> 'None'",
    "StoreOnNetworkShare": "(*, path: 'str', kind: 'str') -> 'None'",
    "RateLimited": "(retry_after: 'Any' = None, *, model: 'str | None' = None) -> 'None'",
    "Transient": "(reason: 'str' = 'transient failure') -> 'None'",
    "Interrupted": "(reason: 'str' = 'stopped on request') -> 'None'",
    "CommandFailed": (
        "(*, reason: 'str', exit: 'int | None' = None, signal: 'int | None' = None, "
        "tail: 'tuple[str, ...]' = ()) -> 'None'"
    ),
    "WorkerLost": "(reason: 'str' = 'the worker that ran it was lost') -> 'None'",
    "EngineUnavailable": "(*, place: 'str', detail: 'str') -> 'None'",
    "RemoteError": "(*, kind: 'str', text: 'str') -> 'None'",
    "NotPicklable": "(*, what: 'str', detail: 'str') -> 'None'",
    "ValueNotRecorded": "(*, detail: 'str') -> 'None'",
    "DuplicateItems": "(*, examples: 'list[tuple[str, int, int]]', count: 'int') -> 'None'",
    "InputFailed": "(*, reason: 'str', stats: 'Any' = None, results: 'Any' = None) -> 'None'",
    "RunStopped": "(*, stopped_by: 'str', stats: 'ProgressStats') -> 'None'",
    "JournalError": "(**facts: 'Any') -> 'None'",
    "JournalInUse": "(*, path: 'str', owner: 'str') -> 'None'",
    "NotAJournal": "(*, path: 'str', found: 'str') -> 'None'",
    "JournalTooNew": "(*, path: 'str', version: 'int', known: 'int') -> 'None'",
    "JournalDamaged": "(*, path: 'str', detail: 'str', missing: 'int | None' = None) -> 'None'",
    "JournalMismatch": "(*, path: 'str', what: 'str', recorded: 'str', given: 'str') -> 'None'",
    "JournalUnavailable": "(*, path: 'str', detail: 'str') -> 'None'",
    "SecretUnavailable": "(*, source: 'str', problem: 'str', advice: 'str') -> 'None'",
    "InputError": "(*, source: 'str', detail: 'str', line: 'int | None' = None, hint: 'str | None' = None) -> 'None'",
    "TemplateError": "(message: 'str', hint: 'str | None' = None) -> 'None'",
}


def test_constructors_have_the_recorded_signatures() -> None:
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, AgentOSError)]
    kinds += [RunStopped, SecretUnavailable, InputError, TemplateError]

    assert {kind.__name__: str(inspect.signature(kind)) for kind in kinds} == SIGNATURES


def test_a_missing_or_unknown_argument_is_a_type_error_that_names_the_class() -> None:
    with pytest.raises(TypeError, match=r"NeverFits\.__init__\(\) missing 2 required keyword-only arguments"):
        NeverFits(dimension="tokens")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Transient\.__init__\(\) got an unexpected keyword argument 'cause'"):
        Transient(cause="503")  # type: ignore[call-arg]


def test_a_subclass_with_annotations_keeps_the_constructor_of_its_base() -> None:
    class Busy(Transient):
        region: str = "eu"

    assert inspect.signature(Busy) == inspect.signature(Transient)
    assert vars(Busy("503")) == {"reason": "503"}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_copied_with_its_facts_and_equals_only_itself(error: AgentOSError) -> None:
    again = copy.copy(error)

    assert (type(again), repr(again), vars(again)) == (type(error), repr(error), vars(error))
    assert repr(error) == f"{type(error).__name__}({str(error)!r})"
    assert again != error


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: AgentOSError) -> None:
    again = pickle.loads(pickle.dumps(error))

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_a_timeout_says_when_the_next_credential_is_due() -> None:
    error = NoCredentialAvailable(waited=30.0, next_free_in=4.2)

    assert isinstance(error, TimeoutError)
    assert str(error) == "no credential became free in 30.0s; the next is due in 4.2s"
    assert str(NoCredentialAvailable(waited=1)).endswith("the next is free when a holder releases one")


def test_an_error_says_what_to_do() -> None:
    assert "split the request or add a credential" in str(NeverFits(dimension="tokens", cost=9000, largest=8000))
    assert "`async with pool.lease()`" in str(WouldBlockLoop(instead="async with pool.lease()"))


def test_a_key_kept_from_a_host_says_which_why_and_what_to_do() -> None:
    error = ForeignHost(host="api.example.com", credentials=("key-1",), detail="key-1 is one of openai")

    assert (error.host, error.credentials, error.detail) == ("api.example.com", ("key-1",), "key-1 is one of openai")
    assert str(error).startswith("no key was sent to api.example.com: add hosts=['api.example.com'] to the credential ")
    assert str(error).endswith("; key-1 is one of openai")
    assert all(argument in str(error) for argument in ("hosts=", "provider=", "base_url="))


def test_a_host_without_encryption_is_named_with_its_port() -> None:
    error = ForeignHost(host="http://llm.example.com", credentials=(), detail="")

    assert "hosts=['llm.example.com:80']" in str(error)


def test_every_error_is_shown_to_pickle() -> None:
    public = {thing for thing in vars(agentos).values() if isinstance(thing, type) and issubclass(thing, AgentOSError)}

    assert {type(error) for error in ERRORS} == public - {AgentOSError, JournalError, StoreError}


def test_a_subclass_of_a_users_own_travels_too() -> None:
    again = pickle.loads(pickle.dumps(Overloaded("503")))

    assert type(again) is Overloaded
    assert again.reason == "503"


class Overloaded(Transient):
    pass


def test_errors_can_be_caught_as_what_they_are() -> None:
    assert isinstance(DuplicateItems(examples=[], count=0), ValueError)
    assert issubclass(JournalMismatch, JournalError)
    assert not issubclass(RateLimited, Transient)  # a limit is waited for, and is no failed try


def test_duplicates_show_where_they_are_and_how_many_more_there_are() -> None:
    shown = str(DuplicateItems(examples=[("a", 0, 2), ("b", 1, 3)], count=7))

    where = "'a' at items[0] and items[2]; 'b' at items[1] and items[3] and 5 more"
    assert shown == f"item ids must differ: {where}; nothing was started"


def test_errors_of_a_journal_say_which_one_and_what_to_do() -> None:
    for error in ERRORS:
        if isinstance(error, JournalError):
            assert error.path == "/run"
            assert "/run" in str(error)
    assert "accept_loss=True" in str(JournalDamaged(path="/run", detail="entry 3 is missing"))
    assert "recorded a:b, now c:d" in str(JournalMismatch(path="/run", what="worker", recorded="a:b", given="c:d"))
    assert "cannot be used: the disk is gone" in str(JournalUnavailable(path="/run", detail="the disk is gone"))


def test_errors_of_the_shared_state_say_which_file_and_what_to_do() -> None:
    said = {type(error): str(error) for error in ERRORS if isinstance(error, StoreError)}

    assert all("/pool" in text for text in said.values())
    assert "cannot be used: the disk is full" in said[StoreUnavailable]
    assert "not an SQLite database" in said[NotAStore]
    assert "format 9, and this agentos knows formats up to 1; nothing was changed" in said[StoreTooNew]
    assert "move the file away. Limits and cooldowns are then learned again" in said[StoreDamaged]
    assert "use one file per machine" in said[StoreElsewhere]
    assert "a network share (nfs4)" in said[StoreOnNetworkShare]
    assert "AGENTOS_HOME" in said[StoreOnNetworkShare]


def test_a_lost_lease_says_which_and_that_it_must_not_be_used() -> None:
    error = LeaseLost(name="key-a", token=7, detail="its process was paused for longer than 30s")

    assert not isinstance(error, StoreError)
    assert str(error) == (
        "lease 7 on credential key-a is lost: its process was paused for longer than 30s; start no more calls with it, "
        "ask the pool for a new lease"
    )


def test_a_limit_says_how_long() -> None:
    assert str(RateLimited()) == "rate-limited"
    assert str(RateLimited(30)) == "rate-limited, retry after 30 s"
    assert str(RateLimited(7.895966053009033)) == "rate-limited, retry after 7.9 s"
    assert str(RateLimited("tomorrow")) == "rate-limited, retry after tomorrow"
