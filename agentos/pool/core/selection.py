"""Which key a request should have, and from when: the choice, whoever waits for it.

Earliest start wins. Any key that can start the request now counts as now; among those the fewest leases, then the
longest unused; a request with an affinity keeps the key it had before, if that is one of them.
"""

from __future__ import annotations

from collections import OrderedDict

from .candidate_index import Lane
from .limits.base import FOREVER
from .records import NO_LABELS, Ask, Key, Labels
from .reservations import Claims, opens_at, starts_at
from .states import Life

_AFFINITIES_REMEMBERED = 10_000
_LANES_REMEMBERED = 64


def _barred(key: Key, ask: Ask) -> bool:
    """Whether the provider does not let this credential use that model."""
    return bool(key.barred) and ask.model in key.barred


class Chooser:
    """The keys, indexed by kind of request."""

    def __init__(self, keep_free: int, straight: bool) -> None:
        self.keys: dict[str, Key] = {}
        self.keep_free = keep_free
        self._plain = Lane(NO_LABELS, None)
        self._lanes: dict[tuple[Labels, str | None], Lane] = {(NO_LABELS, None): self._plain}
        self._lane_list = [self._plain]
        self._may_be_straight = straight
        self._straight = straight  # there is but one kind of request, and nothing to restrict it
        self._models_matter = False  # some limit or some cooling is for one model only
        self._affine: OrderedDict[str, Key] = OrderedDict()

    def _find(self, lane: Lane, ask: Ask, now: float, claims: Claims | None) -> tuple[Key | None, float]:
        """The key on which *ask* can start earliest, and when. Without *claims* only "now" is of interest."""
        if lane.later:
            lane.promote(now)
        if self.keep_free:
            at = self.spare_at(now)
            if at > now:
                return None, at
        if ask.affinity is not None:
            key = self._affine.get(ask.affinity)
            usable = key is not None and lane.holds_ready(key) and not _barred(key, ask)
            if usable and key is not None and self._starts_at(key, ask, now, claims) <= now:
                return key, now
        best: Key | None = None
        best_at = FOREVER
        closed: list[tuple[Key, float]] = []
        for key in lane.ready():
            if key.barred and _barred(key, ask):
                continue
            at = now if key.quota.open_wide else self._starts_at(key, ask, now, claims)
            if at <= now:
                best, best_at = key, at
                break
            if at < best_at:
                best, best_at = key, at
            bound = opens_at(key.quota, lane.model, now)
            if bound > now:
                closed.append((key, bound))
        for key, bound in closed:
            lane.postpone(key, bound)
        if best_at <= now or claims is None:
            return best, best_at
        looked_at: list[Key] = []
        while lane.next_bound() < best_at:
            key = lane.take_next()
            looked_at.append(key)
            if key.leases < key.slots and not _barred(key, ask):
                at = self._starts_at(key, ask, now, claims)
                if at < best_at:
                    best, best_at = key, at
        for key in looked_at:
            lane.postpone(key, opens_at(key.quota, lane.model, now))
        return best, best_at

    def _starts_at(self, key: Key, ask: Ask, now: float, claims: Claims | None) -> float:
        alone = starts_at(key.quota, ask, now)
        return alone if claims is None or key.quota not in claims else claims.starts_at(key, ask, now, alone)

    def starts_at(self, key: Key, ask: Ask, now: float) -> float:
        """When *ask* could start on *key*, if a slot of it is free and nobody here waits."""
        return self._starts_at(key, ask, now, None)

    def spare_at(self, now: float) -> float:
        """From when on one slot more than those to be kept free is free and open."""
        spare = -self.keep_free
        self._plain.promote(now)  # nobody may have looked there for long
        for key in self._plain.ready():  # enough of them is nearly always near
            if key.quota.open_wide or opens_at(key.quota, None, now) <= now:
                spare += key.slots - key.leases
                if spare > 0:
                    return now
        openings = []
        for key in self.keys.values():
            if key.leases < key.slots and key.life is Life.ALIVE and not key.quota.open_wide:
                at = opens_at(key.quota, None, now)
                if at > now:
                    openings.append((at, key.slots - key.leases))
        for at, free in sorted(openings):
            spare += free
            if spare > 0:
                return at
        return FOREVER

    def _remember(self, affinity: str, key: Key) -> None:
        self._affine[affinity] = key
        self._affine.move_to_end(affinity)
        if len(self._affine) > _AFFINITIES_REMEMBERED:
            self._affine.popitem(last=False)

    # -- kinds of requests ------------------------------------------------------------------------------------

    def _lane_for(self, labels: Labels, model: str | None) -> Lane:
        kind = (labels, model if self._models_matter else None)
        lane = self._lanes.get(kind)
        if lane is None:
            if len(self._lanes) >= _LANES_REMEMBERED:
                self._forget_lanes()
            lane = self._lanes[kind] = Lane(*kind)
            for key in sorted(self.keys.values(), key=lambda key: key.used):
                if lane.labels <= key.labels:
                    lane.limited = lane.limited or bool(key.quota.limits)
                    if key.life is Life.ALIVE and key.leases < key.slots:
                        lane.insert(key)
            self._lane_list.append(lane)
            self._straight = False
        return lane

    def _forget_lanes(self) -> None:
        """Drop the lanes nobody waits in; they are built again when asked for."""
        self._lanes = {kind: lane for kind, lane in self._lanes.items() if lane is self._plain or lane.waiting}
        self._lane_list = list(self._lanes.values())
        self._straight = self._may_be_straight and len(self._lane_list) == 1

    def lanes(self) -> list[Lane]:
        """The kinds of requests there have been, each with its index of the keys."""
        return list(self._lane_list)

    def earliest(self, ask: Ask, now: float) -> float:
        """When *ask* could start if nobody else waited; FOREVER: when somebody gives a slot back."""
        return self._find(self._lane_for(ask.labels, ask.model), ask, now, Claims())[1]
