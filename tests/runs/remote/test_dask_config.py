"""Valid and invalid arguments of Dask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentos import Dask


@pytest.mark.parametrize("address", ["dask://10.0.0.5:8786", "tcp://host:8786", "tls://host:8786"])
def test_a_cluster_is_known_by_the_address_of_its_scheduler(address: str) -> None:
    assert Dask(address).cluster == address


@pytest.mark.parametrize("address", ["dask://host", "dask://host:0", "tcp://host:99999", "tls://[::1]:port"])
def test_an_address_without_a_port_that_can_be_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="its port, a number from 1 to 65535"):
        Dask(address)


@pytest.mark.parametrize("cluster", ["10.0.0.5:8786", "redis://host", "dask://", None, 3])
def test_what_is_no_cluster_is_refused(cluster: Any) -> None:
    with pytest.raises(ValueError, match="Dask"):
        Dask(cluster)


@pytest.mark.parametrize(
    "options",
    [
        *({"worker_slots": 0}, {"worker_slots": True}, {"seats": 0}, {"seats": True}),
        *({"ttl": 0.5}, {"ttl": float("inf")}, {"listen": "10.0.0.5"}),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_its_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Dask("dask://host:8786", **options)


@pytest.mark.parametrize(
    ("listen", "listening"), [("10.0.0.5:9000", ("10.0.0.5", 9000)), ("[::1]:0", ("::1", 0)), (None, None)]
)
def test_it_is_told_where_to_listen(listen: str | None, listening: tuple[str, int] | None) -> None:
    assert Dask("dask://host:8786", listen=listen).listening == listening


@pytest.mark.parametrize("name", ["worker_slots", "seats"])
def test_worker_slots_are_accepted_and_readable_under_both_names(name: str) -> None:
    options: dict[str, Any] = {name: 3}
    cluster = Dask("dask://host:8786", **options)
    assert cluster.worker_slots == cluster.seats == 3
    assert cluster == Dask("dask://host:8786", worker_slots=3)
    assert replace(cluster, ttl=5.0) == Dask("dask://host:8786", worker_slots=3, ttl=5.0)


def test_worker_slots_under_both_names_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match="not both"):
        Dask("dask://host:8786", worker_slots=3, seats=3)
