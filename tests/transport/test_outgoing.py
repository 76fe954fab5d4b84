"""A request as it is sent: whither its headers and extensions say, and never with a secret that no header can carry."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentos import Credential, CredentialCoordinator, ForeignHost
from agentos.pool.allowed_hosts import build_origin
from agentos.testing import FakeClock
from agentos.transport.outgoing import build_outgoing

from .fakes import HOST, URL, Provider, Way, credential, in_both_libraries, in_every_way, leased, pool_of

# -- where it goes ---------------------------------------------------------------------------------------------------


@in_both_libraries
@pytest.mark.parametrize("host", ["evil.com", HOST.upper(), f"{HOST}:8443", ""])
def test_a_host_header_of_the_callers_own_is_replaced_by_the_host_of_the_address(way: Way, host: str) -> None:
    provider = Provider()

    way.ask(way.transport(pool_of(FakeClock(), "one"), provider), headers={"Host": host})

    (request,) = provider.seen
    assert request.headers.get_list("host") == [HOST]


@in_both_libraries
def test_a_host_header_names_the_port_of_an_address_that_has_one(way: Way) -> None:
    provider = Provider()

    way.ask(way.transport(pool_of(FakeClock(), "one"), provider), f"https://{HOST}:8443/", headers={"Host": HOST})

    (request,) = provider.seen
    assert request.headers.get_list("host") == [f"{HOST}:8443"]


@in_both_libraries
def test_a_target_that_is_not_that_of_the_address_is_not_sent(way: Way) -> None:
    provider = Provider()
    extensions = {"target": b"https://evil.com/", "sni_hostname": "elsewhere"}

    answer = way.ask(way.transport(pool_of(FakeClock(), "one"), provider), extensions=extensions)

    (request,) = provider.seen
    assert "target" not in request.extensions
    assert request.extensions["sni_hostname"] == "elsewhere"
    assert answer.request.extensions["target"] == b"https://evil.com/"  # the SDK's own is left as it is


# -- secrets that no header can carry --------------------------------------------------------------------------------

UNSENDABLE = ("planted\n0123456789", "planted 0123456789", "plänted0123456789", "planted\x000123456789")


def unsendable(number: int = 0, **facts: Any) -> Credential:
    facts.setdefault("hosts", [HOST])
    return Credential(UNSENDABLE[number], **facts)


def locals_above(error: BaseException | None) -> Iterator[tuple[str, str]]:
    """Where each frame of an error and its causes is, and its variables, as tools that tell of errors show them."""
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if not frame.f_globals["__name__"].startswith("tests."):
                yield frame.f_code.co_qualname, repr(frame.f_locals)
        error = error.__cause__ or error.__context__


def shown_by(error: BaseException) -> list[str]:
    """The places at which a piece of an unsendable secret shows, in what an error says and in the frames it passed."""
    places = [*locals_above(error), ("the error itself", f"{error} {error!r} {error.args!r}")]
    return [place for place, text in places if any(piece in text for piece in ("0123456789", "planted", "plänted"))]


MAKERS: dict[str, Callable[[CredentialCoordinator], Any]] = {
    "transport": CredentialCoordinator.transport,
    "async_transport": CredentialCoordinator.async_transport,
}
both_makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


@both_makers
def test_a_transport_names_every_credential_whose_secret_no_header_can_carry(
    make: Callable[[CredentialCoordinator], Any],
) -> None:
    names = [f"bad-{number}" for number in range(len(UNSENDABLE))]
    keys = [unsendable(number, name=name) for number, name in enumerate(names)]
    pool = CredentialCoordinator([keys[0], credential("good"), *keys[1:]], clock=FakeClock())

    with pytest.raises(ValueError, match="no header can carry the secret of bad-0, bad-1, bad-2, bad-3: ") as refused:
        make(pool)

    assert "good" not in str(refused.value)


@both_makers
@pytest.mark.parametrize("number", range(len(UNSENDABLE)))
def test_no_frame_of_that_refusal_shows_the_secret(make: Callable[[CredentialCoordinator], Any], number: int) -> None:
    pool = CredentialCoordinator([unsendable(number, name="mine")], clock=FakeClock())

    with pytest.raises(ValueError, match="mine") as refused:
        make(pool)

    assert shown_by(refused.value) == []


@in_every_way
def test_a_credential_that_joins_with_such_a_secret_is_never_picked(way: Way) -> None:
    pool, provider = pool_of(FakeClock(), "one"), Provider()
    transport = way.transport(pool, provider)
    way.ask(transport)
    pool.add(unsendable())

    for _ in range(3):
        way.ask(transport)

    assert provider.keys == ["one"] * 4


@in_both_libraries
@pytest.mark.parametrize("number", range(len(UNSENDABLE)))
def test_where_only_such_a_credential_is_left_the_call_says_so_and_no_frame_shows_the_secret(
    way: Way, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    pool, provider = CredentialCoordinator(clock=FakeClock()), Provider()
    transport = way.transport(pool, provider)
    pool.add(unsendable(number, name="late"))

    with pytest.raises(ForeignHost, match="no header can carry the secret of late: ") as refused:
        way.ask(transport)

    assert provider.seen == leased(pool) == []
    assert shown_by(refused.value) == []
    assert "0123456789" not in caplog.text


@in_both_libraries
def test_a_request_is_not_even_made_with_such_a_secret_and_no_frame_shows_it(way: Way) -> None:
    request = way.library.Request("POST", URL)

    with pytest.raises(ValueError, match="the secret of mine cannot be sent in a header") as refused:
        build_outgoing(unsendable(), "mine", request, {}, build_origin("https", HOST, None), HOST.encode(), None)

    assert shown_by(refused.value) == []
