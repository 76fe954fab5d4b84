"""The Redis store: opening it, error messages, and recovery from faults."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from agentos import CredentialCoordinator, LeaseLost, NoCredentialAvailable, PoolClosed
from agentos.errors import NotAStore, StoreDamaged, StoreTooNew, StoreUnavailable
from agentos.pool.store_protocol import StoreBusy
from agentos.stores.redis import server_time, store, store_connection
from agentos.stores.redis.metadata import FORMAT
from agentos.stores.redis.url import RedisLocation
from agentos.testing import FakeClock

from ...background_threads import Background
from ...contract.engine_contract import eventually
from ...redis_server import RedisServer, fresh_pool, shared_server

pytestmark = pytest.mark.usefixtures("unhurried")

KEY = "planted-secret-one"


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    with closing(shared_server().client()) as client:
        yield client


@pytest.fixture
def open_pool(place: RedisLocation) -> Iterator[Callable[..., CredentialCoordinator]]:
    """Pools whose time is a test's, so that a young server is no matter."""
    made: list[CredentialCoordinator] = []

    def make(url: str = f"{place.url}?pool={place.pool}", **options: Any) -> CredentialCoordinator:
        made.append(CredentialCoordinator([KEY], store=url, **({"clock": FakeClock()} | options)))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


Open = Callable[..., CredentialCoordinator]


# -- opening -------------------------------------------------------------------------------------------------------


def test_a_socket_of_this_machine_will_do(open_pool: Open) -> None:
    assert (_held := open_pool(shared_server().unix_url(fresh_pool())).acquire_nowait()).held


def test_pools_of_two_names_on_one_server_know_nothing_of_each_other(open_pool: Open) -> None:
    one, two = open_pool(shared_server().url(fresh_pool())), open_pool(shared_server().url(fresh_pool()))

    assert (_held := one.acquire_nowait()).held
    assert (_held_2 := two.acquire_nowait()).held


def test_a_key_of_another_program_is_refused_and_left_alone(
    open_pool: Open, place: RedisLocation, client: redis.Redis
) -> None:
    client.set(place.key("meta"), "mine")

    with pytest.raises(NotAStore) as caught:
        open_pool()

    assert place.shown in str(caught.value)
    assert client.get(place.key("meta")) == "mine"


def test_a_hash_without_our_format_is_no_store(open_pool: Open, place: RedisLocation, client: redis.Redis) -> None:
    client.hset(place.key("meta"), "colour", "blue")

    with pytest.raises(NotAStore):
        open_pool()


def test_a_store_of_a_newer_format_is_left_alone(open_pool: Open, place: RedisLocation, client: redis.Redis) -> None:
    open_pool().close()
    client.hset(place.key("meta"), "format", "99")

    with pytest.raises(StoreTooNew) as caught:
        open_pool()

    assert (caught.value.version, caught.value.newest) == (99, FORMAT)


@pytest.mark.parametrize("field", ["epoch", "shift", "token"])
def test_a_store_that_says_nothing_sensible_of_itself_is_damaged(
    open_pool: Open, place: RedisLocation, client: redis.Redis, field: str
) -> None:
    open_pool().close()
    client.hset(place.key("meta"), field, "nonsense") if field != "epoch" else client.hdel(place.key("meta"), field)

    with pytest.raises(StoreDamaged):
        open_pool()


def test_a_record_that_is_not_readable_is_said_to_be_damaged(
    open_pool: Open, place: RedisLocation, client: redis.Redis
) -> None:
    open_pool().close()
    client.hset(place.key("records"), "c1", "nonsense")

    with pytest.raises(StoreDamaged, match="delete its keys"):
        open_pool()


def test_an_unreachable_server_is_reported_without_the_password(
    open_pool: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_connection, "_INSIST", 0.0)
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

        with pytest.raises(StoreUnavailable) as caught:
            open_pool(f"redis://someuser:{KEY}@127.0.0.1:{port}/0")

    assert f"redis://127.0.0.1:{port}/0" in str(caught.value)
    assert not any(word in str(caught.value) for word in (KEY, "someuser"))


@pytest.mark.parametrize("option", [f"ssl_nonsense={KEY}", f"ssl_min_version={KEY}", f"ssl_cert_reqs={KEY}"])
def test_an_option_that_redis_py_does_not_take_is_refused_without_its_value(open_pool: Open, option: str) -> None:
    with pytest.raises(StoreUnavailable, match="an option of its URL") as caught:
        open_pool(f"rediss://127.0.0.1:1/0?{option}")

    assert KEY not in str(caught.value)


def test_a_server_that_comes_up_a_moment_later_is_waited_for(open_pool: Open, tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    server.kill()
    opening = Background(lambda: open_pool(server.url()))

    server.start()

    assert (_held := opening.result().acquire_nowait()).held
    server.close()


def test_a_password_that_is_wrong_is_refused_and_not_shown(open_pool: Open, tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server, closing(server.client()) as client:
        client.config_set("requirepass", "the-right-one")

        with pytest.raises(StoreUnavailable, match="refuses this user") as caught:
            open_pool(f"redis://:wrong-{KEY}@127.0.0.1:{server.port}/0")

        assert KEY not in str(caught.value)
        assert (_held := open_pool(f"redis://:the-right-one@127.0.0.1:{server.port}/0").acquire_nowait()).held


def test_a_missing_package_is_named_with_the_way_to_have_it(open_pool: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)

    with pytest.raises(ImportError, match=r"pip install redis$"):
        open_pool()


def test_a_pool_that_could_not_be_opened_leaves_no_connection(
    open_pool: Open, place: RedisLocation, client: redis.Redis
) -> None:
    client.set(place.key("meta"), "mine")
    before = len(client.client_list())

    with pytest.raises(NotAStore):
        open_pool()

    eventually(lambda: len(client.client_list()) <= before)


# -- a young server ------------------------------------------------------------------------------------------------


def test_on_a_young_server_a_waiter_gets_the_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer(tmp_path) as server, CredentialCoordinator([KEY], store=server.url(), lease_ttl=600.0) as pool:
        waiter = Background(lambda: pool.acquire("w"))
        eventually(
            lambda: any("leases from before its start may still be in use" in why for why in pool.explain("w").why)
        )
        pool.close()
        with pytest.raises(PoolClosed):
            waiter.result()

    eventually(lambda: "leases from before its start may still be in use" in caplog.text)


# -- a machine that sleeps -----------------------------------------------------------------------------------------


def test_a_lease_is_lost_to_a_holder_whose_machine_slept_for_longer_than_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = 0.0
    monkeypatch.setattr(server_time, "read_suspend_time", lambda: slept)
    with RedisServer(tmp_path, faketime=True) as server:
        server.jump(86_400.0)  # it looks as if it had run for long
        with CredentialCoordinator([KEY], store=server.url()) as pool:
            lease = pool.acquire(timeout=10.0)
            assert lease.reveal() == KEY

            slept = 60.0

            assert not lease.held
            with pytest.raises(LeaseLost):
                lease.reveal()


# -- what is got over ----------------------------------------------------------------------------------------------


def kill_connections(client: redis.Redis) -> None:
    client.client_kill_filter(_type="normal", skipme=True)


def test_a_connection_that_was_cut_is_made_again_within_the_step(tmp_path: Path, open_pool: Open) -> None:
    with RedisServer(tmp_path) as server, closing(server.client()) as client:
        pool = open_pool(server.url())
        lease = pool.acquire_nowait()
        kill_connections(client)

        assert lease.release()

        kill_connections(client)
        assert (_held := pool.acquire_nowait()).held


def test_scripts_that_the_server_has_forgotten_are_sent_again(tmp_path: Path, open_pool: Open) -> None:
    with RedisServer(tmp_path) as server, closing(server.client()) as client:
        pool = open_pool(server.url())
        client.script_flush()

        assert pool.acquire_nowait().release()


def test_a_server_that_cannot_be_written_for_a_while_is_trouble_that_passes(
    tmp_path: Path, open_pool: Open, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    with RedisServer(tmp_path) as server, closing(server.client()) as client:
        pool = open_pool(server.url(), clock=clock)
        client.config_set("min-replicas-to-write", 1)
        with pytest.raises(NoCredentialAvailable):
            pool.acquire_nowait()
        eventually(lambda: "it has too few replicas" in caplog.text)

        client.config_set("min-replicas-to-write", 0)

        def works() -> bool:
            eventually(lambda: clock.sleepers)  # whoever waits there mends what is broken
            clock.advance(0.5)
            try:
                return pool.acquire_nowait().release()
            except NoCredentialAvailable:
                return False

        eventually(works)
        eventually(lambda: "can be written again" in caplog.text)


def test_a_process_on_another_machine_is_named_with_it(open_pool: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    one = open_pool()
    monkeypatch.setattr(socket, "gethostname", lambda: "the-other-machine")
    two = open_pool()
    _held = one.acquire_nowait("worker-7")

    (row,) = two.snapshot()

    assert "worker-7" in str(row)
    assert " on " in str(row)


def test_who_looks_while_the_store_changes_what_it_says_of_itself_sees_nothing_and_fails_by_nothing(
    open_pool: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = open_pool()
    asked: list[object] = []

    def busy(*arguments: object) -> None:
        asked.append(arguments)
        raise StoreBusy

    assert isinstance(pool._runtime.store, store.RedisStore)
    monkeypatch.setattr(pool._runtime.store, "_exchange", busy)

    with pool._runtime.scheduler.locked():
        assert pool._runtime.store.refresh() is False
    assert asked
    monkeypatch.undo()
    assert (_held := pool.acquire_nowait()).held
