"""Errors of the server and the connection are translated into transient and permanent ones."""

from __future__ import annotations

import ssl

import pytest
from redis import exceptions

from agentos.errors import NotAStore, StoreDamaged, StoreUnavailable
from agentos.pool.store_protocol import TransientStoreError
from agentos.stores.redis.errors import build_opening_error, translate_error

WHERE = "redis://host:6379/0"


def of(error: Exception) -> Exception:
    return translate_error(error, WHERE, 0.25)


@pytest.mark.parametrize("error", [exceptions.TimeoutError("..."), TimeoutError("timed out")])
def test_no_answer_in_time_passes(error: Exception) -> None:
    found = of(error)

    assert isinstance(found, TransientStoreError)
    assert str(found) == "no answer from redis://host:6379/0 within 0.25 s"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), "still loading"),
        (exceptions.ReadOnlyError("You can't write against a read only replica."), "a replica"),
        (exceptions.MasterDownError("Link with MASTER is down"), "lost its master"),
        (exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), "memory is full"),
        (exceptions.ClusterDownError("The cluster is down"), "cluster is down"),
        (exceptions.ResponseError("LOADING Redis is loading the dataset in memory"), "still loading"),
        (exceptions.ResponseError("READONLY You can't write against a read only replica."), "a replica"),
        (exceptions.ResponseError("MISCONF Errors writing to the AOF file: No space left"), "cannot write to its disk"),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."), "too few replicas"),
        (exceptions.ResponseError("BUSY Redis is busy running a script."), "busy with a script"),
        (exceptions.ResponseError("ERR Error running script: @user_script: 12: -OOM command not allowed"), "memory"),
        (exceptions.ConnectionError("Error 111 connecting to host:6379. Connection refused."), "cannot be reached"),
        (exceptions.ResponseError("ERR max number of clients reached"), "max number of clients"),
        (ConnectionResetError(104, "Connection reset by peer"), "cannot be reached"),
    ],
)
def test_what_a_server_may_get_over_passes(error: Exception, why: str) -> None:
    found = of(error)

    assert isinstance(found, TransientStoreError)
    assert why in str(found)
    assert WHERE in str(found)


@pytest.mark.parametrize(
    "error",
    [
        exceptions.AuthenticationError("invalid username-password pair or user is disabled."),
        exceptions.NoPermissionError("this user has no permissions to run the 'evalsha' command"),
        exceptions.ResponseError("NOAUTH Authentication required."),
        exceptions.ResponseError("ERR Error running script: NOPERM this user has no permissions"),
        exceptions.ResponseError("ERR Error running script: The user executing the script can't run this command"),
        exceptions.ResponseError("ERR ACL failure in script: User sam has no permissions to run the 'zadd' command"),
    ],
)
def test_a_user_whom_the_server_refuses_is_said_to_be_refused(error: Exception) -> None:
    found = of(error)

    assert isinstance(found, StoreUnavailable)
    assert "refuses this user" in found.detail


@pytest.mark.parametrize(
    ("said", "wants_login"),
    [
        ("NOAUTH Authentication required.", True),
        ("WRONGPASS invalid username-password pair or user is disabled.", True),
        ("NOPERM this user has no permissions to run the 'evalsha' command", False),
    ],
)
def test_a_password_helps_where_the_server_does_not_know_who_asks(said: str, wants_login: bool) -> None:
    found = of(exceptions.ResponseError(said))

    assert isinstance(found, StoreUnavailable)
    assert found.wants_login is wants_login
    assert ("put user and password into the URL" in str(found)) is wants_login


NO_TLS = "if the server does not use TLS, the URL must begin with redis://"
TLS = "if the server uses TLS, the URL must begin with rediss://"
CLIENT = "if it requires a client certificate, name that with ?ssl_certfile=...&ssl_keyfile=... in the URL"


@pytest.mark.parametrize(
    ("scheme", "trouble", "thoughts"),
    [
        ("rediss", "no answer from rediss://host:6379/0 within 1 s", [NO_TLS]),
        ("valkeys", "it cannot be reached ([SSL: WRONG_VERSION_NUMBER] wrong version number)", [NO_TLS]),
        ("rediss", "it cannot be reached ([SSL: SSLV3_ALERT_HANDSHAKE_FAILURE] alert handshake failure)", []),
        ("rediss", "it cannot be reached (Error 8 while writing. EOF occurred in violation of protocol)", [CLIENT]),
        ("rediss", "it cannot be reached ([SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred)", [NO_TLS, CLIENT]),
        ("rediss", "it cannot be reached (Connection refused)", []),
        ("redis", "it cannot be reached (Connection closed by server.)", [TLS]),
        ("valkey", "it cannot be reached ((104, 'Connection reset by peer'))", [TLS]),
        ("redis", "it cannot be reached (Protocol Error: b'\\x15\\x03\\x03')", [TLS]),
        ("redis", "no answer from redis://host:6379/0 within 1 s", []),
        ("redis", "it cannot be reached (Connection refused)", []),
        ("unix", "it cannot be reached (Connection closed by server.)", []),
    ],
)
def test_what_may_be_wrong_with_the_url_is_thought_of_at_the_first_connection(
    scheme: str, trouble: str, thoughts: list[str]
) -> None:
    found = build_opening_error(TransientStoreError(trouble), f"{scheme}://host:6379/0")

    assert found.detail.replace("valkey", "redis") == "; ".join([trouble, *thoughts])


def of_redis_py(cause: Exception) -> Exception:
    """It, as redis-py hands it on."""
    try:
        try:
            raise cause
        except OSError as error:
            raise exceptions.ConnectionError(f"Error connecting to host:6379. {error}") from None
    except exceptions.ConnectionError as error:
        return error


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize(
    "alert", ["TLSV13_ALERT_CERTIFICATE_REQUIRED", "TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_BAD_CERTIFICATE"]
)
def test_a_server_that_wants_another_certificate_of_its_client_is_told_apart_with_advice(
    alert: str, wrapped: bool
) -> None:
    error = ssl.SSLError(1, f"[SSL: {alert}] (_ssl.c:2580)")

    found = translate_error(of_redis_py(error) if wrapped else error, "rediss://host:6379/0", 0.25)

    assert isinstance(found, StoreUnavailable)
    assert "?ssl_certfile=...&ssl_keyfile=..." in found.detail


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file or directory"),
        IsADirectoryError(21, "Is a directory"),
        ssl.SSLError(136, "[X509: NO_CERTIFICATE_OR_CRL_FOUND] no certificate or crl found (_ssl.c:4154)"),
        ssl.SSLError(9, "[SSL] PEM lib (_ssl.c:3905)"),
        ssl.SSLError("No cipher can be selected."),
    ],
)
def test_an_option_for_tls_that_is_of_no_use_is_for_a_person_to_put_right(error: Exception) -> None:
    found = translate_error(of_redis_py(error), "rediss://host:6379/0", 0.25)

    assert isinstance(found, StoreUnavailable)
    assert found.detail.startswith("what an option ssl_... of its URL names cannot be used (")
    assert "_ssl.c" not in found.detail


def test_a_socket_that_is_not_there_yet_may_come() -> None:
    error = of_redis_py(FileNotFoundError(2, "No such file or directory"))

    assert isinstance(translate_error(error, "unix:///run/redis.sock", 0.25), TransientStoreError)


def test_a_node_of_a_cluster_that_has_other_keys_is_told_apart_with_advice() -> None:
    found = of(exceptions.ResponseError("MOVED 3999 127.0.0.1:6381"))

    assert isinstance(found, StoreUnavailable)
    assert "name that one in the URL" in found.detail


def test_keys_of_another_kind_are_no_store() -> None:
    error = exceptions.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")

    assert isinstance(of(error), NotAStore)


def test_a_script_that_stumbles_over_what_it_finds_means_damage() -> None:
    error = exceptions.ResponseError("ERR Error running script: user_script:52: attempt to compare nil with number")

    assert isinstance(of(error), StoreDamaged)


def test_a_user_that_is_refused_is_not_named() -> None:
    found = of(exceptions.NoPermissionError("User sam has no permissions to access one of the channels"))

    assert "sam" not in str(found)
    assert "this user has no permissions" in str(found)
