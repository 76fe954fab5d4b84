"""The table of contents is honest: what it lists is there, and what is public is listed."""

from __future__ import annotations

import importlib
import inspect

import pytest

import agentos


@pytest.mark.parametrize("package", ["agentos", "agentos.credentials", "agentos.testing", "agentos.workflows.parallel"])
def test_what_a_package_lists_is_there_and_explained(package: str) -> None:
    module = importlib.import_module(package)

    assert module.__doc__
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    for name in module.__all__:
        thing = getattr(module, name)
        assert name.startswith("__") or inspect.getdoc(thing), f"{package}.{name} is not explained"


def test_the_fixed_names_are_where_they_have_to_be() -> None:
    from agentos.workflows.parallel import credential_coordinator

    assert credential_coordinator.CredentialCoordinator is agentos.CredentialCoordinator
    assert credential_coordinator.CredentialState is agentos.CredentialState


def test_public_methods_are_explained() -> None:
    for cls in (agentos.CredentialCoordinator, agentos.Lease, agentos.Limit, agentos.Secret):
        for name, member in inspect.getmembers(cls):
            if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{cls.__name__}.{name} is not explained"
