"""Redis URLs are parsed, and nothing secret of them is shown."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from agentos.stores.redis.url import RedisLocation
from agentos.stores.sqlite.location import parse_location


def place(url: str) -> RedisLocation:
    found = parse_location(url, {})
    assert isinstance(found, RedisLocation)
    return found


@pytest.mark.parametrize(
    ("url", "shown", "pool"),
    [
        ("redis://host", "redis://host:6379/0", "agentos"),
        ("redis://host:7000/3", "redis://host:7000/3", "agentos"),
        ("redis://host/3/", "redis://host:6379/3", "agentos"),
        ("redis://host?db=2", "redis://host:6379/2", "agentos"),
        ("rediss://host:7000?pool=night", "rediss://host:7000/0?pool=night", "night"),
        ("redis://[::1]:7000/1", "redis://[::1]:7000/1", "agentos"),
        ("unix:///run/redis.sock?pool=a&db=4", "unix:///run/redis.sock db 4?pool=a", "a"),
        ("valkey://host", "valkey://host:6379/0", "agentos"),
        ("valkeys://host", "valkeys://host:6379/0", "agentos"),
        ("REDIS://Host", "redis://host:6379/0", "agentos"),
    ],
)
def test_a_url_means_a_server_and_a_pool(url: str, shown: str, pool: str) -> None:
    found = place(url)

    assert (found.shown, found.pool) == (shown, pool)


@pytest.mark.parametrize(
    ("url", "passwords"),
    [
        ("redis://host", ()),
        ("redis://user@host", ()),
        ("redis://:planted@host", ("planted",)),
        ("redis://user:pl%61nt%40ed@host", ("plant@ed", "pl%61nt%40ed")),
        ("rediss://:planted@host?ssl_password=of%20a%20key", ("planted", "of a key")),
        ("unix://user:planted@/run/redis.sock", ("planted",)),
    ],
)
def test_the_passwords_of_a_url_are_known_decoded_and_as_they_are_written(url: str, passwords: tuple[str, ...]) -> None:
    found = place(url)

    assert found.passwords == passwords
    assert "plant" not in repr(found)


@pytest.mark.parametrize(
    ("url", "for_redis_py"),
    [
        ("valkey://host", "redis://host:6379/0"),
        ("redis://me:pass%40word@host/1?pool=a", "redis://me:pass%40word@host:6379/1"),
        (
            "valkeys://host?ssl_ca_certs=%2Fetc%2Fca.pem&ssl_cert_reqs=none",
            "rediss://host:6379/0?ssl_ca_certs=%2Fetc%2Fca.pem&ssl_cert_reqs=none",
        ),
    ],
)
def test_what_redis_py_has_to_know_is_passed_on(url: str, for_redis_py: str) -> None:
    assert place(url).url == for_redis_py


@pytest.mark.parametrize(
    ("options", "checked"),
    [("", "true"), ("?ssl_cert_reqs=optional", "true"), ("?ssl_check_hostname=no", "no"), ("?ssl_cert_reqs=none", "")],
)
def test_a_certificate_has_to_name_the_host_unless_that_is_told_otherwise(options: str, checked: str) -> None:
    passed_on = parse_qs(urlsplit(place(f"rediss://host{options}").url).query)

    assert passed_on.get("ssl_check_hostname", [""]) == [checked]


def test_neither_user_nor_password_nor_an_option_is_shown() -> None:
    found = place("rediss://someuser:planted-secret@host/0?ssl_keyfile=planted-file&pool=a")

    for text in (found.shown, repr(found), str(found)):
        assert not any(word in text for word in ("someuser", "planted-secret", "planted-file"))


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis://:secret@",
        "redis://host:port/0",
        "redis://host:70000/0",
        "redis://me:secret@host/db",
        "redis://host/1?db=2",
        "redis://host?pool=",
        "redis://host?pool=a{b}",
        "redis://host?pool=a b",
        "redis://host?password=secret",
        "redis://host?socket_timeout=100",
        "redis://host#secret",
        "redis://ho\nst",
        "unix://",
        "unix://host",
        "unix://me:secret@/run/a@b.sock",
    ],
)
def test_what_is_no_such_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ValueError, match=r"^store must be .*'redis://host:port/db\?pool=name'") as caught:
        parse_location(url, {})

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("redis://host?pol=secret", "its option 'pol' is not one of those"),
        ("redis://host?sk-secret=1", "one of its options is not one of those"),
        ("redis://host/secret", "its database must be a number"),
        ("redis://host?pool=", "its pool must be"),
        ("redis://host:secret", "its port must be a number"),
        ("redis://:sec#ret@host", "it has a '#'"),
        ("redis://:secret@", "it names no host"),
        ("redis://host?secret", "what follows its '?' must be"),
        (
            "redis://host?ssl_ca_certs=secret",
            "its option 'ssl_ca_certs' is for TLS, which needs a URL that begins with rediss",
        ),
        ("unix:///run/redis.sock?ssl_keyfile=secret", "its option 'ssl_keyfile' is for TLS"),
        ("unix://host", "it names no socket"),
    ],
)
def test_the_part_that_is_wrong_is_named_and_its_value_is_not(url: str, part: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"URL is not: {part}")) as caught:
        parse_location(url, {})

    assert "secret" not in str(caught.value)


def test_all_keys_of_a_pool_have_its_hash_tag() -> None:
    assert place("redis://host?pool=night").key("meta") == "agentos:{night}:meta"
