"""Hosts in any spelling are normalized to one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.pool.host_patterns import normalize_host


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("api.example.com", "api.example.com"),
        ("API.Example.COM", "api.example.com"),
        ("api.example.com.", "api.example.com"),
        ("api.example.com.:443", "api.example.com:443"),
        ("localhost", "localhost"),
        ("localhost:08080", "localhost:8080"),
        ("my_service", "my_service"),
        ("3com.example", "3com.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("*.example.com", "*.example.com"),
        ("*.example.com:8443", "*.example.com:8443"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("[::1]:8080", "[::1]:8080"),
        ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
        ("[2001:db8::0:1]:80", "[2001:db8::1]:80"),
    ],
)
def test_a_host_has_one_way_of_writing(written: str, kept: str) -> None:
    assert normalize_host(written) == kept
    assert normalize_host(kept) == kept


@pytest.mark.parametrize(
    "written",
    [
        "",
        ".",
        "*",
        "*.",
        "*example.com",
        "api.*.com",
        "*.*.com",
        "[a-z].example.com",
        "api?.example.com",
        "https://api.example.com",
        "api.example.com/v1",
        "user@api.example.com",
        "api example.com",
        " api.example.com",
        "api.example.com\n",
        "api\\.example.com",
        "api..example.com",
        ".example.com",
        "-api.example.com",
        "api-.example.com",
        "bücher.example",
        "\N{KELVIN SIGN}elvin.example",
        "a" * 64 + ".example.com",
        ".".join(["a" * 60] * 5),
        "api.example.com:",
        "api.example.com:0",
        "api.example.com:65536",
        "api.example.com:http",
        "api.example.com:80:80",
        "127.1",
        "1.2.3.256",
        "127.0.0.01",
        "2130706433",
        "0x7f000001",
        "*.0.0.1",
        "[127.0.0.1]",
        "[api.example.com]",
        "[::1",
        "::1]",
        "[::1]8080",
        "fe80::1%eth0",
        "[fe80::1%25eth0]",
    ],
)
def test_what_is_no_host_is_not_taken_for_one(written: str) -> None:
    assert normalize_host(written) is None


@pytest.mark.parametrize("thing", [None, 3, b"api.example.com", ["api.example.com"]])
def test_what_is_no_text_is_not_taken_for_a_host(thing: object) -> None:
    assert normalize_host(thing) is None


@given(st.text(max_size=40) | st.text("a.*:[]0-/@", max_size=12))
def test_any_text_is_a_host_in_its_one_way_of_writing_or_none(text: str) -> None:
    kept = normalize_host(text)

    assert kept is None or normalize_host(kept) == kept
