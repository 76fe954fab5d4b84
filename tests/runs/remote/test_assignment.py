"""The repr of an assignment shows only its item."""

from __future__ import annotations

import pickle
import threading
from enum import StrEnum
from typing import Any

import pytest

from agentos import CredentialCoordinator, NotPicklable, ParallelCoordinator
from agentos.runs.commands.command import Command
from agentos.runs.core.records import Attempt
from agentos.runs.execution.engine_run import EngineRun
from agentos.runs.execution.item_source import ItemSource
from agentos.runs.remote.assignment import AssignmentBuilder, ShippedSecret, compute_proof
from agentos.runs.remote.pickled import pack, unpack
from agentos.runs.worker import inspect_worker
from agentos.util.wakeup import ThreadWakeup

from .sample_assignments import SECRET, assignment


def begun(
    worker: Any, pool: CredentialCoordinator | None = None, *, item: Any = 1, **options: Any
) -> tuple[EngineRun, Attempt]:
    """A run without an engine, and the first attempt of its one item."""
    coordinator = ParallelCoordinator(1, pool, **options)
    run = coordinator._prepare(
        inspect_worker(worker), ItemSource([item], lambda item: "the-item"), ThreadWakeup()
    ).attempts
    attempt = run.next_attempt()
    assert isinstance(attempt, Attempt)
    return run, attempt


def plain(item: Any, credential: str | None) -> None: ...


def with_context(item: Any, credential: str | None, context: Any) -> None: ...


def test_it_shows_the_item_and_the_attempt_and_nothing_else() -> None:
    made = assignment({"prompt": "private"}, attempt=2)

    assert repr(made) == str(made) == "<assignment item-1 attempt 2>"


def test_it_arrives_as_it_was_sent() -> None:
    made = assignment({"n": 1})

    again = pickle.loads(pickle.dumps(made))

    assert unpack(again.payload, "the item") == {"n": 1}
    assert again.secret.reveal() == SECRET
    assert [again.item_id, again.token, again.lease] == ["item-1", 7, 42]


def test_a_secret_that_travels_shows_itself_nowhere() -> None:
    shipped = ShippedSecret(SECRET)

    assert SECRET not in f"{shipped!r} {shipped} {[shipped]}"


def test_a_proof_is_of_one_secret_in_one_run() -> None:
    assert compute_proof(SECRET, b"nonce") == compute_proof(SECRET, b"nonce")
    assert compute_proof(SECRET, b"nonce") != compute_proof(SECRET, b"other")
    assert compute_proof(SECRET, b"nonce") != compute_proof(f"{SECRET}0", b"nonce")


def test_the_secret_goes_along_only_if_that_is_asked_for() -> None:
    run, attempt = begun(plain, CredentialCoordinator([SECRET]))

    shipped = AssignmentBuilder(run, ship_secrets=True).build(attempt)
    kept = AssignmentBuilder(run, ship_secrets=False).build(attempt)

    assert shipped.secret is not None
    assert shipped.secret.reveal() == SECRET
    assert kept.secret is None
    assert kept.proof == compute_proof(SECRET, kept.nonce)
    assert SECRET.encode() not in pickle.dumps(kept)


def test_what_passes_a_scheduler_takes_no_secret_along_though_that_is_asked_for() -> None:
    run, attempt = begun(plain, CredentialCoordinator([SECRET]))

    made = AssignmentBuilder(run, ship_secrets=True, scheduled=True).build(attempt)

    assert (made.secret, made.scheduled) == (None, True)
    assert made.proof == compute_proof(SECRET, made.nonce)
    assert SECRET.encode() not in pickle.dumps(made)


def test_it_says_which_attempt_of_which_item_it_is_and_on_which_lease() -> None:
    run, attempt = begun(plain, CredentialCoordinator([SECRET]), model_func=lambda item: "a-model")

    made = AssignmentBuilder(run, ship_secrets=False).build(attempt)

    assert (made.item_id, made.index, made.attempt, made.token) == ("the-item", 0, 1, attempt.token)
    assert (made.credential, made.lease, made.model) == ("key-1", attempt.grant.token, "a-model")
    assert (made.wants_context, made.checkpoint) == (False, None)


def test_without_a_pool_there_is_no_credential_and_no_proof() -> None:
    run, attempt = begun(plain)

    made = AssignmentBuilder(run, ship_secrets=True).build(attempt)

    assert (made.credential, made.secret, made.proof, made.lease) == (None, None, b"", None)


def test_a_worker_that_wants_a_context_gets_the_path_of_its_items_checkpoint() -> None:
    run, attempt = begun(with_context)

    made = AssignmentBuilder(run, ship_secrets=False).build(attempt)

    assert made.checkpoint == str(run.folder.path_for("the-item"))
    run.folder.on_run_end()


class Model(StrEnum):
    """A model by a name of the user's own."""

    SMALL = "small-1"


def test_names_travel_as_text_whatever_the_user_made_them_of() -> None:
    run, attempt = begun(plain, CredentialCoordinator([SECRET]), model_func=lambda item: Model.SMALL)

    made = AssignmentBuilder(run, ship_secrets=False).build(attempt)

    assert (made.model, type(made.model)) == ("small-1", str)


def test_an_item_that_cannot_travel_is_named() -> None:
    run, attempt = begun(plain, item=threading.Lock())

    with pytest.raises(NotPicklable, match=r"^the item cannot be pickled"):
        AssignmentBuilder(run, ship_secrets=False).build(attempt)


def test_it_need_not_travel_where_something_goes_in_its_place() -> None:
    run, attempt = begun(Command(["true"]), item=threading.Lock())

    made = AssignmentBuilder(run, ship_secrets=False).build(attempt, pack("an order", "the command"))

    assert unpack(made.payload, "it") == "an order"
