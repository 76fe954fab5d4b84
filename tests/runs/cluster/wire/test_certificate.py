"""A worker trusts only the driver whose certificate it was given."""

from __future__ import annotations

import ssl

import pytest

from agentos.runs.cluster.wire.certificate import DriverIdentity, build_client_context, create_identity


def shake_hands(server: DriverIdentity, certificate: bytes) -> None:
    """A handshake without sockets. Raises what the worker's side raises."""
    to_server, to_worker = ssl.MemoryBIO(), ssl.MemoryBIO()
    worker = build_client_context(certificate).wrap_bio(to_worker, to_server)
    driver = server.server.wrap_bio(to_server, to_worker, server_side=True)
    for side in (worker, driver, worker):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue


def test_a_worker_believes_the_driver_whose_certificate_it_was_told() -> None:
    driver = create_identity()

    shake_hands(driver, driver.certificate)


def test_a_worker_believes_nobody_else_though_his_certificate_looks_the_same() -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(create_identity(), create_identity().certificate)


def test_an_identity_shows_nothing_of_itself() -> None:
    assert repr(create_identity()) == "<identity of a run>"
