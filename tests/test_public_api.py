"""The table of contents is honest: what it lists is there, and what is public is listed."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path

import pytest

import agentos


@pytest.mark.parametrize("package", ["agentos", "agentos.pool", "agentos.testing", "agentos.workflows.parallel"])
def test_what_a_package_lists_is_there_and_explained(package: str) -> None:
    module = importlib.import_module(package)

    assert module.__doc__
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    for name in module.__all__:
        thing = getattr(module, name)
        assert name.startswith("__") or inspect.getdoc(thing), f"{package}.{name} is not explained"


def test_the_fixed_names_are_where_they_have_to_be() -> None:
    from agentos.workflows.parallel import coordinator, credential_coordinator

    assert credential_coordinator.CredentialCoordinator is agentos.CredentialCoordinator
    assert credential_coordinator.CredentialState is agentos.CredentialState
    assert coordinator.ParallelCoordinator is agentos.ParallelCoordinator
    assert coordinator.WorkflowResult is agentos.WorkflowResult
    assert coordinator.ProgressStats is agentos.ProgressStats
    assert agentos.RichProgress.__module__ == "agentos.runs.display.rich_display"


def test_what_the_originals_promised_of_a_run_is_still_there() -> None:
    """Scripts written for them name these positions, attributes and fields."""
    execute = inspect.signature(agentos.ParallelCoordinator.execute_parallel)
    assert list(execute.parameters) == ["self", "items", "worker_func", "item_id_func", "dry_run"]
    made = inspect.signature(agentos.ParallelCoordinator)
    assert list(made.parameters)[:2] == ["max_workers", "credential_coordinator"]
    positional = [p.name for p in made.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == ["max_workers", "credential_coordinator"]

    run = agentos.ParallelCoordinator()
    assert (run.max_workers, run.credential_coordinator) == (3, None)
    assert (run.DEFAULT_PARALLELISM, run.MAX_PARALLELISM) == (3, 10)
    assert run.get_checkpoints() == []

    stats = agentos.ProgressStats(total=4)
    assert (stats.total, stats.completed, stats.failed, stats.success_count) == (4, 0, 0, 0)
    assert stats.elapsed >= 0
    assert stats.completion_rate == 0.0
    result = agentos.WorkflowResult("id", True)
    assert (result.item_id, result.success, result.error, result.duration, result.metadata) == ("id", True, None, 0, {})


def test_a_list_of_checkpoints_is_a_copy() -> None:
    run = agentos.ParallelCoordinator(1, halt="soon,fail=1")
    run.execute_parallel([1, 2, 3], _fail, str)

    run.get_checkpoints().clear()

    assert run.get_checkpoints() == ["2", "3"]


def _fail(item: object, credential: str | None) -> None:
    raise ValueError("no")


def test_public_methods_are_explained() -> None:
    classes = (
        agentos.Context,
        agentos.CredentialCoordinator,
        agentos.Lease,
        agentos.Limit,
        agentos.ParallelCoordinator,
        agentos.ProgressStats,
        agentos.Secret,
    )
    for cls in classes:
        for name, member in inspect.getmembers(cls):
            if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{cls.__name__}.{name} is not explained"


def test_the_old_name_of_the_pool_still_works_with_a_warning() -> None:
    import agentos.credentials

    with pytest.warns(DeprecationWarning, match=r"agentos\.credentials\.Credential is now agentos\.pool\.Credential"):
        assert agentos.credentials.Credential is agentos.Credential
    assert {name for name in agentos.credentials.__all__ if not hasattr(agentos.pool, name)} == set()


def test_the_old_place_of_the_display_still_works_with_a_warning() -> None:
    import agentos.runs.display.rich_display

    with pytest.warns(DeprecationWarning, match=r"agentos\.runs\.display\.RichProgress is now .*rich_display"):
        assert agentos.runs.display.RichProgress is agentos.runs.display.rich_display.RichProgress


POOL_NAMES = """
    RATE_LIMIT_BACKOFF_SECONDS acquire acquire_async acquire_credential acquire_nowait add async_transport clear close
    explain forecast gateway get_available_count get_stats lease lease_ttl mark_rate_limited release release_credential
    reserve reserve_credential retire revive snapshot transport
"""
RUN_NAMES = """
    DEFAULT_PARALLELISM MAX_PARALLELISM execute_async execute_parallel get_checkpoints get_running get_waiting shutdown
    stats stream stream_async
"""
RUN_ATTRIBUTES = ["credential_coordinator", "max_parallelism", "max_workers"]


def public_names(thing: object) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


def test_the_public_names_of_a_pool_are_these(tmp_path: Path) -> None:
    assert public_names(agentos.CredentialCoordinator) == POOL_NAMES.split()
    assert public_names(agentos.CredentialCoordinator(["a-secret-of-ours"])) == POOL_NAMES.split()
    with agentos.CredentialCoordinator(["a-secret-of-ours"], store=tmp_path / "pool.db") as shared:
        assert public_names(shared) == POOL_NAMES.split()


def test_the_public_names_of_a_run_coordinator_are_these() -> None:
    assert public_names(agentos.ParallelCoordinator) == RUN_NAMES.split()
    run = agentos.ParallelCoordinator(1)
    run.execute_parallel([1], _fail, str)
    assert public_names(run) == sorted([*RUN_NAMES.split(), *RUN_ATTRIBUTES])


def test_the_status_of_a_credential_reads_as_plain_text() -> None:
    pool = agentos.CredentialCoordinator(["a-secret-of-ours"])
    (row,) = pool.snapshot()

    assert row.state == "available"
    assert f"{row.state} {row.state!r} {json.dumps(row.state)}" == "available 'available' \"available\""
    assert "state='available'" in repr(row)
