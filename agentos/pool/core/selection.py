"""Which key a request should have, and from when: the choice, whoever waits for it.

Earliest start wins. Any key that can start the request now counts as now; among those the fewest leases, then the
longest unused; a request with an affinity keeps the key it had before, if that is one of them.
"""

from __future__ import annotations

from collections import OrderedDict

from .candidate_index import Lane
from .limits.base import FOREVER, WallTime
from .records import NO_LABELS, Ask, Key, KeySpec, Labels, Quota, Ticket
from .reservations import Claims, opens_at, starts_at
from .states import LIFE, Event, Life

_AFFINITIES_REMEMBERED = 10_000
_LANES_REMEMBERED = 64


def _barred(key: Key, ask: Ask) -> bool:
    """Whether the provider does not let this credential use that model."""
    return bool(key.barred) and ask.model in key.barred


class Chooser:
    """The keys and their quotas, indexed by kind of request."""

    def __init__(self, keep_free: int, wall: WallTime, straight: bool) -> None:
        self.keys: dict[str, Key] = {}
        self.quotas: dict[tuple[bool, str], Quota] = {}  # by (shared, name)
        self.wall = wall
        self.has_calendar = False
        self._used = 0
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

    # -- changes of keys and quotas ---------------------------------------------------------------------------

    def _admit(self, spec: KeySpec) -> Key:
        # A credential that shares no quota has one of its own, which no other can join by its name.
        shared = spec.quota is not None
        quota = self.quotas.get((shared, spec.quota or spec.name))
        if quota is None:
            quota = Quota(spec.quota or spec.name, spec.limits, self.wall)
            self.quotas[shared, quota.name] = quota
            self.has_calendar = self.has_calendar or quota.has_calendar()
            if any(limit.model for limit in spec.limits):
                self._models_do_matter()
        self._used += 1
        key = self.keys[spec.name] = Key(spec, quota, self._used)
        quota.keys.append(key)
        for lane in self._lane_list:
            if lane.labels <= key.labels:
                lane.insert(key)
                lane.limited = lane.limited or bool(quota.limits)
        return key

    def occupy(self, key: Key, elsewhere: tuple[str, ...]) -> None:
        """Others have so many leases on this key, in a pool that is shared. ``tick`` must follow."""
        leases = key.leases - len(key.elsewhere) + len(elsewhere)
        key.elsewhere = elsewhere
        if leases == key.leases:
            return
        self._move(key, leases, key.slots)

    def _move(self, key: Key, leases: int, slots: int) -> None:
        """So many of so many slots of a key are leased, from now on: its place in the lanes is another."""
        lanes = [lane for lane in self._lane_list if lane.labels <= key.labels and key not in lane.bounds]
        for lane in lanes:
            lane.remove(key)
        key.leases, key.slots = leases, slots
        if key.life is Life.ALIVE:
            for lane in lanes:
                lane.put_back(key)

    def _change_life(self, key: Key, event: Event, evidence: str, now: float) -> None:
        before, key.life = key.life, LIFE[key.life][event]
        if key.life is before:
            return
        key.evidence, key.since = evidence, now
        if key.life is not Life.ALIVE:
            for lane in self._lane_list:
                lane.remove(key)
        elif before is not Life.ALIVE:
            for lane in self._lane_list:
                if lane.labels <= key.labels:
                    lane.put_back(key)

    def _reopen(self, quota: Quota) -> None:
        for lane in self._lane_list:
            if lane.bounds:
                for key in quota.keys:
                    lane.reopen(key)

    def wall_moved(self, offset: float) -> None:
        """The wall clock was set: a new day is nearer, or further off, than was thought. ``tick`` must follow."""
        self.wall.offset = offset
        for quota in self.quotas.values():
            if quota.has_calendar():
                self._reopen(quota)

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

    def _models_do_matter(self) -> None:
        """Some limit or some cooling is for one model only: requests for a model queue apart from the others."""
        if self._models_matter:
            return
        self._models_matter = True
        for ticket in self.tickets():
            if ticket.ask.model is not None:
                ticket.lane.waiting.remove(ticket)
                ticket.lane = self._lane_for(ticket.ask.labels, ticket.ask.model)
                ticket.lane.waiting.add(ticket)

    def tickets(self) -> list[Ticket]:
        """Who waits, in order."""
        return sorted((t for lane in self._lane_list for t in lane.waiting), key=Ticket.rank)

    def lanes(self) -> list[Lane]:
        """The kinds of requests there have been, each with its index of the keys."""
        return list(self._lane_list)

    def earliest(self, ask: Ask, now: float) -> float:
        """When *ask* could start if nobody else waited; FOREVER: when somebody gives a slot back."""
        return self._find(self._lane_for(ask.labels, ask.model), ask, now, Claims())[1]
