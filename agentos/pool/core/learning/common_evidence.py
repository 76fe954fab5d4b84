"""Evidence that the quotas of one provider have in common: what its answers mean, and how its windows work.

That is a matter of the provider, not of a key. So what calls of one key found out need not be paid for again, with a
refused call, by each other key. How much a key may use is its own, and is never concluded from others alone.
Kept in this process only: a store keeps what each quota has found.
"""

from __future__ import annotations

from ..limits.base import FOREVER

_PROBE_TIMEOUT = 0.25  # seconds in which a refusal of a call that tries arrives
_LATER = 4.0  # times as long until the next one tries, if it was refused
_PROVEN_AFTER = 16.0  # seconds: what one waits after two calls that were refused
_COUNTED = 4  # refusals that only refused calls explain, less twice as many that they did not prevent
_PROOFS = 2  # limits that must have proved to be windows, for others to be taken as such
_SHARE = 0.1  # of a share by which another one may differ and confirm it
_REMEMBERED = 16  # shares


class CommonEvidence:
    """What the quotas of one provider have shown of it."""

    __slots__ = (
        *("_admitted", "_buckets", "_echoes", "_longest", "_probe_until", "_shares", "_windows"),
        *("opened", "probe_after"),
    )

    def __init__(self) -> None:
        self.probe_after = 0.0  # seconds without anything left until a call tries if a reported limit is true
        self.opened = 0  # how often calls may try earlier than before
        self._admitted = False  # the last such call was admitted
        self._probe_until = -FOREVER  # one of them is on its way until then
        self._longest: dict[object, float] = {}  # the longest reset, by what is reported
        self._echoes: dict[object, int] = {}  # by limit
        self._windows = self._buckets = 0  # limits that proved to be windows, and to refill continuously
        self._shares: list[tuple[object, float]] = []  # by limit, the share of it that could be used

    # -- calls that try if a reported limit is true ------------------------------------------------------------

    def probe_at(self, blocked_at: float) -> float:
        """Return when a call may try, under a limit of which nothing is left since then."""
        return max(blocked_at + self.probe_after, -FOREVER if self._admitted else self._probe_until)

    @property
    def reports_are_true(self) -> bool:
        """True if calls that tried some reported limits were refused, and none was admitted lately."""
        return self.probe_after >= _PROVEN_AFTER and not self._admitted

    def probe_started(self, now: float) -> None:
        self._admitted = self._admitted or now >= self._probe_until > -FOREVER  # the last one was not refused in time
        self._probe_until = now + _PROBE_TIMEOUT

    def probe_ended(self, waited: float = 0.0, *, admitted: bool = False) -> None:
        """Note how a call ended that tried a limit under which nothing was left for so long; 0: it did not start."""
        self._probe_until = -FOREVER
        if waited:
            self.opened += admitted and not self._admitted
            self._admitted = admitted
            after = waited if admitted else _LATER * waited
            self.probe_after = min(self.probe_after, after) if admitted else max(self.probe_after, after)

    def note_reset(self, what: object, resets_in: float) -> float:
        """Note the seconds until a reported limit is renewed. Return the most that any key was told of *what*."""
        longest = self._longest[what] = max(resets_in, self._longest.get(what, 0.0))
        return longest

    # -- windows -----------------------------------------------------------------------------------------------

    def counts_refused(self, limit: object) -> bool:
        """Return True if refused calls count under other limits than this one."""
        return sum(echoes for which, echoes in self._echoes.items() if which is not limit) >= _COUNTED

    def note_echoes(self, limit: object, echoes: int) -> None:
        """Note how many calls were refused that would fit but for refused ones, less twice those that were admitted."""
        self._echoes[limit] = echoes
        if len(self._echoes) > _REMEMBERED:
            del self._echoes[next(iter(self._echoes))]

    @property
    def has_windows(self) -> bool:
        """True if limits proved to be windows, and none to refill continuously."""
        return self._windows >= _PROOFS and not self._buckets

    def note_window(self, is_window: bool) -> None:
        """Note how a limit proved to refill."""
        self._windows += is_window
        self._buckets += not is_window

    def confirms_share(self, limit: object, share: float, slack: float) -> bool:
        """Note the share of a limit that could be used. Return True if as much of another one could be used."""
        others = [known for which, known in self._shares if which is not limit]
        self._shares = [each for each in self._shares if each[0] is not limit][1 - _REMEMBERED :]
        self._shares.append((limit, share))
        return any(abs(known - share) <= max(slack, _SHARE * share) for known in others)
