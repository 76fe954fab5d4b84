"""Steps work over TLS, and TLS errors are reported at once, with a remedy."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from agentos import Credential, CredentialCoordinator, NoCredentialAvailable
from agentos.errors import StoreUnavailable
from agentos.stores.redis import store_connection
from agentos.stores.redis.pubsub_wakeup import PubSubWakeup
from agentos.stores.redis.server_time import server_time_for
from agentos.stores.redis.store import RedisStore
from agentos.stores.redis.store_connection import StoreConnection
from agentos.stores.redis.url import parse_redis_url
from agentos.testing import FakeClock
from agentos.util.clock import SystemClock

from ...background_threads import Background
from ...certificates import Authority
from ...contract.engine_contract import eventually
from ...redis_server import PATIENCE, RedisServer, fresh_pool, shared_server
from ...tcp_proxy import Afterwards, TcpProxy
from ...tls_proxy import TlsProxy

Files = dict[str, Path]  # by the options of the URL that name them

SECRET, USER, PASSWORD = "planted-secret", "planted-user", "planted/pass:word@1"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    """An authority whom nobody knows."""
    return Authority(tmp_path, "stranger")


@pytest.fixture
def certified(authority: Authority) -> ssl.SSLContext:
    return authority.server()


@pytest.fixture
def tls(certified: ssl.SSLContext) -> Iterator[TlsProxy]:
    with TlsProxy(shared_server().port, certified) as proxy:
        yield proxy


@pytest.fixture
def said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not retry transient errors when opening a store."""
    monkeypatch.setattr(store_connection, "_INSIST", 0.0)


def url(
    port: int, believed: Authority | None = None, *, scheme: str = "rediss", login: str = "", files: Files | None = None
) -> str:
    named = {"ssl_ca_certs": believed.file} if believed else {}
    query = "".join(f"&{option}={quote(str(file))}" for option, file in (named | (files or {})).items())
    return f"{scheme}://{login}127.0.0.1:{port}/0?pool={fresh_pool()}{query}"


def login(user: str = USER, password: str = PASSWORD) -> str:
    return f"{user}:{quote(password, safe='')}@"


@contextmanager
def open_pool(store: str, *keys: Credential, **options: Any) -> Iterator[CredentialCoordinator]:
    """Its time is a test's, so that a young server is no matter. At the end none of its threads is left.

    One that were about to connect when the proxy ends would be reset before the handshake, and Python's own ssl (3.11)
    does not close such a connection. So a test has to give back what it took: for what it did not, a thread stays.
    """
    before = set(threading.enumerate())  # of pools that other tests have left to the garbage collector
    with CredentialCoordinator(keys or [SECRET], store=store, **({"clock": FakeClock()} | options)) as pool:
        yield pool
    eventually(lambda: not any(thread.name.startswith("agentos-") for thread in set(threading.enumerate()) - before))


def refusal(store: str) -> str:
    """Why no pool can be opened there, by all that a person would see; nothing of it is secret."""
    with pytest.raises(StoreUnavailable) as caught:
        CredentialCoordinator([SECRET], store=store)
    assert "planted" not in str(caught.getrepr(style="native"))
    return caught.value.detail


# -- it works ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_steps_pass(tls: TlsProxy, authority: Authority, unhurried: None, scheme: str) -> None:
    with open_pool(url(tls.port, authority, scheme=scheme)) as pool:
        assert pool.acquire_nowait().release()


def test_an_answer_of_several_records_of_tls_is_read_whole(
    tls: TlsProxy, authority: Authority, unhurried: None
) -> None:
    many = 200  # of each of which the answer has about a hundred bytes, where a record has 16 KiB
    key, store, clock = Credential(SECRET, slots=many + 1), url(tls.port, authority), FakeClock()
    with open_pool(store, key, clock=clock) as one:
        leases = [one.acquire_nowait() for _ in range(many)]

        with CredentialCoordinator([key], store=store, clock=clock) as other:
            leases.append(other.acquire_nowait())
            with pytest.raises(NoCredentialAvailable):
                other.acquire_nowait()
            assert all(lease.release() for lease in leases)


def test_a_notification_of_another_process_arrives(tls: TlsProxy, authority: Authority, unhurried: None) -> None:
    way = StoreConnection(parse_redis_url(url(tls.port, authority)), server_time_for(SystemClock()), 600.0)
    way.open()
    with closing(way), closing(PubSubWakeup(way)) as bell, closing(shared_server().client()) as client:
        waiting = Background(bell.acquire)

        assert client.publish(way.wakeup_channel(f"{bell.name}.1"), "") == 1

        assert waiting.result()
        assert bell.was_notified


def test_one_that_waits_is_woken_by_another_pool(tls: TlsProxy, authority: Authority, unhurried: None) -> None:
    store, clock = url(tls.port, authority), FakeClock()
    with open_pool(store, clock=clock) as one, CredentialCoordinator([SECRET], store=store, clock=clock) as other:
        lease = one.acquire_nowait()
        waiting = Background(lambda: other.acquire("w"))
        eventually(lambda: other.explain("w").state == "waiting")

        assert lease.release()

        assert waiting.result().release()


def test_a_server_that_knows_its_clients_by_certificate_is_shown_one(
    certified: ssl.SSLContext, authority: Authority, unhurried: None
) -> None:
    certified.verify_mode = ssl.CERT_REQUIRED
    certified.load_verify_locations(authority.file)
    mine = authority.certificate("client")
    with TlsProxy(shared_server().port, certified) as tls:
        store = url(tls.port, authority, files={"ssl_certfile": mine, "ssl_keyfile": mine})
        with open_pool(store) as pool:
            assert pool.acquire_nowait().release()


# -- it is interrupted ---------------------------------------------------------------------------------------------


def test_a_step_whose_connection_is_cut_is_done_once_and_answered(
    certified: ssl.SSLContext, authority: Authority, unhurried: None
) -> None:
    with (
        TcpProxy(shared_server().port) as network,
        TlsProxy(network.port, certified) as tls,
        open_pool(url(tls.port, authority)) as pool,
    ):
        first = pool.acquire_nowait()
        assert first.release()
        network.lose_reply(b"EVALSHA", Afterwards.RESET)

        lease = pool.acquire_nowait()

        assert len(network.lost) == 1
        assert lease.token == first.token + 1
        assert lease.release()


def test_a_certificate_that_goes_bad_in_use_is_waited_for_as_long_as_told(
    certified: ssl.SSLContext, authority: Authority, stranger: Authority
) -> None:
    with TcpProxy(shared_server().port) as network, TlsProxy(network.port, certified) as tls:
        store = url(tls.port, authority)
        with open_pool(store, clock=None, lease_ttl=0.6) as pool:
            assert pool.acquire(timeout=PATIENCE).release()
            certified.load_cert_chain(stranger.certificate("127.0.0.1"))
            network.cut()
            network.heal()

            with pytest.raises(NoCredentialAvailable):
                pool.acquire(timeout=0.3)

            assert isinstance(pool._runtime.store, RedisStore)
            way = pool._runtime.store._connection
            eventually(lambda: way.why.startswith("its certificate is not accepted"))
            certified.load_cert_chain(authority.certificate("127.0.0.1"))
            assert pool.acquire(timeout=PATIENCE).release()


# -- it cannot work ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("certificate", "what", "cure"),
    [
        (lambda ours, other: other.server(), "unable to get local issuer", "name the file of the authority"),
        (lambda ours, other: ours.server("keys.internal"), "not valid for '127.0.0.1'", "name the server as"),
        (lambda ours, other: ours.server(days=-1), "expired", "the clock of this machine"),
    ],
    ids=["of a stranger", "of another host", "of yesterday"],
)
def test_a_certificate_that_is_not_good_is_said_at_the_first_connection_with_what_to_do(
    authority: Authority,
    stranger: Authority,
    unhurried: None,
    certificate: Callable[[Authority, Authority], ssl.SSLContext],
    what: str,
    cure: str,
) -> None:
    context = certificate(authority, stranger)
    with TlsProxy(shared_server().port, context) as tls, TcpProxy(tls.port) as network:
        detail = refusal(url(network.port, authority, login=login()))

        assert network.accepted == 1
    assert detail.startswith("its certificate is not accepted (")
    assert what in detail
    assert cure in detail


def test_a_server_without_tls_is_thought_of(authority: Authority, said_at_once: None) -> None:
    detail = refusal(url(shared_server().port, authority, login=login()))

    assert detail.endswith("; if the server does not use TLS, the URL must begin with redis://")


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_a_server_with_tls_is_thought_of_where_the_url_means_none(
    tls: TlsProxy, said_at_once: None, scheme: str
) -> None:
    detail = refusal(url(tls.port, scheme=scheme, login=login()))

    assert detail.endswith(f"; if the server uses TLS, the URL must begin with {scheme}s://")


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile"])
@pytest.mark.parametrize("there", [True, False])
def test_a_file_that_is_no_certificate_is_said_at_the_first_connection(
    tls: TlsProxy, tmp_path: Path, unhurried: None, option: str, there: bool
) -> None:
    file = tmp_path / "planted.pem"
    if there:
        file.write_text("nothing of the kind")

    detail = refusal(url(tls.port, files={option: file}))

    assert detail.startswith("what an option ssl_... of its URL names cannot be used")


# -- who may -------------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path, certified: ssl.SSLContext) -> Iterator[Callable[..., TlsProxy]]:
    """Behind TLS a server of this test's own, whose user has those rights."""
    with RedisServer(tmp_path / "redis") as server, TlsProxy(server.port, certified) as tls:

        def make(*rights: str) -> TlsProxy:
            with closing(server.client()) as client:
                client.execute_command("ACL", "SETUSER", USER, "reset", "resetchannels", "on", f">{PASSWORD}", *rights)
            return tls

        yield make


def test_user_and_password_are_those_of_the_url(
    guarded: Callable[..., TlsProxy], authority: Authority, unhurried: None
) -> None:
    tls = guarded("~agentos:*", "&agentos:*", "+@all")

    with open_pool(url(tls.port, authority, login=login())) as pool:
        assert pool.acquire_nowait().release()


def test_a_wrong_password_is_said_without_showing_it(
    guarded: Callable[..., TlsProxy], authority: Authority, unhurried: None
) -> None:
    tls = guarded("~*", "&*", "+@all")

    detail = refusal(url(tls.port, authority, login=login(password="planted-and-wrong")))

    assert detail.startswith("the server refuses this user (")


@pytest.mark.parametrize(
    "rights",
    [
        ("~*", "&*", "+@all", "-evalsha", "-script"),
        ("~*", "&*", "+@all", "-publish"),
        ("~*", "&*", "+@all", "-subscribe"),
        ("~others:*", "&*", "+@all"),
        ("~*", "&others:*", "+@all"),
    ],
    ids=["no scripts", "no publishing", "no subscription", "no such keys", "no such channels"],
)
def test_a_user_without_permission_is_refused_without_showing_the_name(
    guarded: Callable[..., TlsProxy], authority: Authority, unhurried: None, rights: tuple[str, ...]
) -> None:
    tls = guarded(*rights)

    detail = refusal(url(tls.port, authority, login=login()))

    assert detail.startswith("the server refuses this user (")
