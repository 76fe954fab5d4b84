"""What goes to the server in one step, and what comes back: the two sides of ``apply.lua``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple


class StepRequest(NamedTuple):
    """One step, decided. Without a session it only looks, or does what everybody may."""

    session: str = ""
    number: int = 0  # of the step; a session's numbers grow
    joins: bool = False
    renew: float | None = None  # for so many seconds
    floor: int | None = None  # a token is wanted, above this one
    read_versions: str = ""  # the records it rests on, and the version of each
    writes: Mapping[str, str] = MappingProxyType({})
    ended: Sequence[str] = ()
    wakeup_sessions: Sequence[str] = ()  # channels

    def encode(self, hour: str, version: str, between: tuple[str, str], seen: int) -> list[str]:
        """As the script is told, after its keys. An empty *hour* is the server's own."""
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
    """What the server said.

    *what* is "done"; "news": what it rests on has changed; "gone": the session has run out; "late": that step or a
    later one of the session was done; "time": it came at another hour than it was meant for; "meta": the store says
    something else of itself by now. In all cases but the first nothing was done, except that a session was renewed if
    there were "news".
    """

    what: str
    hour: float
    sequence: int  # the newest change
    token: int | None
    last: str  # the session's last step, its last that wrote, and the token that one was given
    expiry: tuple[tuple[str, float], ...] | None  # the first sessions to run out, and when; None: not asked for
    sessions: int | None  # how many can run out; None: not asked for
    updates: list[str]

    def was_done(self, number: int) -> bool:
        """Whether the session's last step that wrote something is that one."""
        return self.last.split(" ")[1:2] == [str(number)]

    def last_token(self) -> int | None:
        """The token that the session's last step that wrote something was given."""
        token = self.last.rpartition(" ")[2]
        return int(token) if token else None


def parse_reply(said: bytes) -> StepReply:
    """Take it apart. Raises ValueError if it is none."""
    what, hour, sequence, token, last, one, ends_one, two, ends_two, sessions, *news = said.decode("ascii").split("\0")
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
