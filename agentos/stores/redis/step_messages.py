"""StepRequest and StepReply: arguments and result of ``apply.lua``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from ...pool.store_protocol import StepAction


class StepRequest(NamedTuple):
    """One step to execute. Without a session it reads, or writes what needs no session."""

    session: str = ""
    number: int = 0  # increases with each step of a session
    joins: bool = False
    renew: float | None = None  # for this many seconds
    floor: int | None = None  # requests a token above this one
    read_versions: str = ""  # the records it depends on, with their versions
    writes: Mapping[str, str] = MappingProxyType({})
    ended: Sequence[str] = ()
    wakeup_sessions: Sequence[str] = ()  # their channels

    def encode(self, hour: str, version: str, between: tuple[str, str], seen: int) -> list[str]:
        """Return the script's arguments after its keys. An empty *hour* is the server's own time."""
        earliest, latest = between
        head = (
            f"{hour or '-'} {version} {earliest or '-'} {latest or '-'} {self.session or '-'} {self.number} "
            f"{'1' if self.joins else '-'} {'-' if self.renew is None else self.renew} "
            f"{'-' if self.floor is None else self.floor} {seen} {len(self.writes)} {len(self.ended)}"
        )
        words = [head, self.read_versions]
        for each in self.writes.items():
            words += each
        words += self.ended
        words += self.wakeup_sessions
        return words


READ_ONLY_REQUEST: Final = StepRequest()


class StepReply(NamedTuple):
    """The server's answer to a step.

    *what* is "done"; "news": a record it depends on has changed; "gone": the session has expired; "late": this or a
    later step of the session was already executed; "time": the server's time is outside the bounds; "meta": the store's
    metadata has another version. In all cases but the first nothing was written, except that with "news" the session
    was renewed.
    """

    what: str
    time: float
    sequence: int  # the newest change
    token: int | None
    last: str  # the session's last step, its last that wrote, and the token granted to it
    expiry: tuple[tuple[str, float], ...] | None  # the next sessions to expire, and when; None: not requested
    sessions: int | None  # how many have an expiry; None: not requested
    updates: list[str]

    def was_done(self, number: int) -> bool:
        """Return whether the session's last step that wrote something is that one."""
        return self.last.split(" ")[1:2] == [str(number)]

    def last_token(self) -> int | None:
        """Return the token granted to the session's last step that wrote something."""
        token = self.last.rpartition(" ")[2]
        return int(token) if token else None


def parse_reply(raw: bytes) -> StepReply:
    """Parse the reply. Raises ValueError if it is malformed."""
    what, hour, sequence, token, last, one, ends_one, two, ends_two, sessions, *news = raw.decode("ascii").split("\0")
    expiry = None
    if one:
        expiry = ((one, float(ends_one)), (two, float(ends_two))) if two else ((one, float(ends_one)),)
    return StepReply(
        what,
        float(hour),
        int(sequence or 0),
        int(token) if token else None,
        last,
        expiry,
        int(sessions) if sessions else None,
        news,
    )


class UnconfirmedStep(NamedTuple):
    """A step that may or may not have been executed."""

    number: int
    session: str
    acts: Sequence[StepAction]  # its deferred actions
    joins: bool
