"""Records of the pool: quotas, credentials, requests, leases and tickets.

They contain no secret: a credential is its name. A store keeps these fields; in memory ``candidate_index`` indexes
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ...providers.signal import PARKED_FROM
from ..limit import Limit
from .cost import ONE_REQUEST, Cost
from .learning.adaptive_concurrency import MAX_SLOTS, AdaptiveConcurrency
from .learning.common_evidence import CommonEvidence
from .learning.limit_doubt import LimitDoubt
from .learning.recent_starts import RecentStarts
from .learning.usage_stats import UsageStats
from .limits.base import FOREVER, LimitState
from .limits.calendar import CalendarWindow, WallTime
from .limits.create import build_limit_state
from .model_family import find_scopes
from .slot_sharing import AUTO, count_usable_slots, find_width
from .states import LIFE, Gate, Life, LifeEvent, TicketState

# The scope of a pause for an outage: it applies to every model, and no store keeps it, since another process may use
# another network or address.
OUTAGE: Final = "\0outage"
_WHOLE: Final = (None, OUTAGE)  # the scopes that apply to every model

Labels = frozenset[tuple[str, str]]
NO_LABELS: Labels = frozenset()


@dataclass(frozen=True, slots=True)
class KeySpec:
    """The description of a credential that joins the pool."""

    name: str
    slots: int = 1
    quota: str | None = None
    limits: tuple[Limit, ...] = ()
    labels: Labels = NO_LABELS
    auto: bool = False  # adaptive slots


@dataclass(frozen=True, slots=True)
class Block:
    """The reason why a quota, or one model family of it, is closed, and until when."""

    gate: Gate
    until: float
    since: float
    evidence: str
    probe: bool = False  # when it ends, one request goes first as a probe


class Quota:
    """The limits and blocks that one or more credentials share, by scope: a model family, or None for all."""

    __slots__ = (
        "_by_model",
        "_scopes",
        "admitted",
        "admitted_at",
        "blocks",
        "closed",
        "closed_until",
        "common",
        "concurrency",
        "costs",
        "doubt",
        "history",
        "inferred_elsewhere",
        "keys",
        "learned",
        "limits",
        "name",
        "named",
        "open_wide",
        "overflows",
        "parked_after",
        "probation",
        "provider",
        "recent_tokens",
        "refusals",
        "refused_at",
        "reported_at",
        "rounded_at",
        "scoped",
        "spent",
        "stated",
        "token_suspicion",
        "unscoped",
    )

    def __init__(self, name: str, limits: tuple[Limit, ...], wall: WallTime) -> None:
        self.name = name
        self.keys: list[Key] = []
        self.stated: tuple[LimitState, ...] = tuple(build_limit_state(limit, wall) for limit in limits)
        self.learned: dict[str, LimitState] = {}  # by their name in a record
        self.limits = self.stated  # stated and learned
        self.overflows = any(state.overflows for state in self.stated)
        self.named: list[tuple[str, LimitState]] | None = None  # cache of ``quota_codec.named_limits``
        self.unscoped = tuple(state for state in self.limits if state.scope is None)
        self.common = CommonEvidence()  # what all quotas of its provider have shown of it
        self.concurrency: AdaptiveConcurrency | None = None  # of credentials with adaptive slots
        self.inferred_elsewhere = 1  # slots, by processes with adaptive slots, if this one states a number
        self.history: list[tuple[float, str]] = []  # (instant, what was learned), the newest last
        self.doubt = LimitDoubt()  # that the known limits are as high as that; kept in this process only
        self.token_suspicion = 0.0  # that refusals are about tokens: the sum of a sequential test
        self.costs: UsageStats | None = None  # of the last calls, in tokens; kept in this process only
        self.recent_tokens: RecentStarts | None = None  # the same with their starts, of the last minute
        self.provider: str | None = None  # according to the last answer
        self.refusals = 0  # rate limits in a row, with nothing admitted between; those of one burst count once
        self.refused_at = -FOREVER  # when the last of them came
        self.admitted_at = -FOREVER  # start of the last call that was admitted
        self.admitted = 0  # calls that ended well; kept in this process only, as is the next
        self.parked_after = (-FOREVER, 0)  # when a call was last refused for long, and how many were admitted by then
        self.rounded_at = -FOREVER  # when a delay was last taken to be rounded up
        self.reported_at = -FOREVER  # of the last answer with an amount left
        # By scope, the instant at which one request alone began to probe after a long cooldown; -FOREVER: not yet.
        self.probation: dict[str | None, float] = {}
        self.blocks: dict[str | None, Block] = {}
        self.spent: Block | None = None
        self.closed = False  # there is a block for all models, ended or not
        self.closed_until = -FOREVER  # for all models: of whole_block(), FOREVER if spent
        self.scoped = False  # some block applies to one model family
        self.open_wide = not limits  # no limits, no blocks and stated slots: every request may start
        self._by_model: dict[str, tuple[LimitState, ...]] = {}
        self._scopes: dict[str, tuple[str, ...]] = {}

    @property
    def learned_slots(self) -> int:
        """The inferred number of slots of each of its credentials."""
        return self.inferred_elsewhere if self.concurrency is None else self.concurrency.slots

    def scopes(self, model: str | None) -> tuple[str, ...]:
        """Return the scopes that apply to a request for *model*, besides None."""
        if model is None:
            return ()
        found = self._scopes.get(model)
        if found is None:
            declared = dict.fromkeys(state.scope for state in self.limits if state.scope is not None)
            if len(self._scopes) > _MODELS_REMEMBERED:
                self._scopes.clear()
            found = self._scopes[model] = find_scopes(model, declared)
        return found

    def limits_for(self, model: str | None) -> tuple[LimitState, ...]:
        """Return the limits that apply to a request for *model*."""
        if model is None:
            return self.unscoped
        found = self._by_model.get(model)
        if found is None:
            if len(self._by_model) > _MODELS_REMEMBERED:
                self._by_model.clear()
            scopes = self.scopes(model)
            found = tuple(state for state in self.limits if state.scope is None or state.scope in scopes)
            self._by_model[model] = found
        return found

    def learn(self, name: str, state: LimitState) -> None:
        """Add a learned limit."""
        self.learned[name] = state
        state.share_evidence(self.common)
        self._index_limits()

    def unlearn(self, names: Iterable[str]) -> None:
        """Remove learned limits."""
        for name in list(names):
            del self.learned[name]
        self._index_limits()

    def _index_limits(self) -> None:
        self.limits = (*self.stated, *self.learned.values())
        self.unscoped = tuple(state for state in self.limits if state.scope is None)
        self.named = None
        self._by_model.clear()
        self._scopes.clear()
        self.refresh_blocks()

    def add_history(self, at: float, text: str, instead_of: str | None = None) -> None:
        """Record what was learned; replace the last entry if it begins with *instead_of*."""
        if instead_of is not None and self.history and self.history[-1][1].startswith(instead_of):
            self.history.pop()
        last = self.history[-1][0] if self.history else at
        self.history.append((max(at, last), text))
        del self.history[:-_HISTORY_LENGTH]

    def probe_holds_until(self, model: str | None) -> float:
        """Return when the next request for *model* may start while another one probes."""
        tried = [self.probation.get(scope, -FOREVER) for scope in (*_WHOLE, *self.scopes(model))]
        return max(tried) + PROBE_TIMEOUT

    def begin_probe(self, model: str | None, now: float) -> None:
        """Note that a request for *model* starts as the probe."""
        for scope in (*_WHOLE, *self.scopes(model)):
            if scope in self.probation:
                self.probation[scope] = now

    def find_probed_scopes(self, model: str | None, began_at: float) -> list[str | None]:
        """Return the scopes probed by a request for *model* that began at that instant."""
        return [
            scope
            for scope in (*_WHOLE, *self.scopes(model))
            if -FOREVER < self.probation.get(scope, FOREVER) <= began_at
        ]

    def end_probation(self, scopes: Iterable[str | None]) -> None:
        for scope in scopes:
            self.probation.pop(scope, None)
        self.refresh_blocks()

    def begin_probation(self, probation: dict[str | None, float]) -> None:
        self.probation = probation
        self.refresh_blocks()

    def block(self, scope: str | None, block: Block) -> bool:
        """Close *scope*; the later end wins. Return True if anything changed."""
        current = self.blocks.get(scope)
        if current is not None and current.until >= block.until:
            return False
        self.blocks[scope] = block
        self.refresh_blocks()
        return True

    def close_until(self, until: float, model: str | None, evidence: str, now: float) -> bool:
        """Close the quota, or the family of *model*, until that instant. Return False if nothing changed."""
        if until <= now:
            return False
        gate = Gate.COOLING if until - now <= PARKED_FROM else Gate.PARKED
        return self.block(None if model is None else self.scopes(model)[0], Block(gate, until, now, evidence))

    def reset_silence(self) -> None:
        """Forget that leases ended without reported usage: a request that was refused has none to report."""
        for state in self.limits:
            state.usage.silent = 0

    def spend(self, evidence: str, now: float) -> None:
        """Close the quota until a person acts: its money is gone."""
        self.reset_silence()
        self.set_spent(Block(Gate.SPENT, FOREVER, now, evidence))

    def set_spent(self, block: Block | None) -> None:
        """Set or remove (None) the block for money that is gone. Cooldowns in force stay."""
        self.spent = block
        self.refresh_blocks()

    def forget_ended_blocks(self, now: float) -> None:
        for scope, block in self.blocks.items():
            if block.probe and block.until <= now:
                self.probation[scope] = -FOREVER
        self.blocks = {scope: block for scope, block in self.blocks.items() if block.until > now}
        self.refresh_blocks()

    def reset(self) -> None:
        """Forget everything but the stated limits."""
        self.blocks, self.probation = {}, {}
        self.learned, self.history = {}, []
        self.doubt, self.token_suspicion, self.refusals = LimitDoubt(), 0.0, 0
        self.rounded_at = self.refused_at = self.admitted_at = -FOREVER
        if self.concurrency is not None:
            self.concurrency.reset()
        self._index_limits()
        self.set_spent(None)
        for state in self.limits:
            state.reset()
            state.usage.reset()

    def refresh_blocks(self) -> None:
        whole = self.spent or self.whole_block()
        self.closed = whole is not None
        self.closed_until = -FOREVER if whole is None else whole.until
        self.scoped = any(scope not in _WHOLE for scope in self.blocks)
        held_back = self.limits or self.blocks or self.probation or self.concurrency is not None
        self.open_wide = not held_back and self.spent is None

    def whole_block(self) -> Block | None:
        """Return the cooldown or pause that excludes every model longest, even if it has ended."""
        found = [self.blocks[scope] for scope in _WHOLE if scope in self.blocks]
        return max(found, key=lambda block: block.until, default=None)

    def model_blocks(self, now: float) -> dict[str, Block]:
        """Return the blocks in force that apply to one model family each."""
        found = self.blocks.items()
        return {scope: block for scope, block in found if scope not in (None, OUTAGE) and block.until > now}

    def block_for(self, model: str | None) -> Block | None:
        """Return the block that excludes a request for *model* longest, even if it has ended."""
        found = self.spent or self.whole_block()
        for scope in self.scopes(model):
            other = self.blocks.get(scope)
            if other is not None and (found is None or other.until > found.until):
                found = other
        return found

    def closed_for(self, model: str | None) -> float:
        """Return the instant until which a request for *model* is excluded."""
        if model is None or not self.scoped:
            return self.closed_until
        block = self.block_for(model)
        return -FOREVER if block is None else block.until

    def has_calendar(self) -> bool:
        return any(isinstance(state, CalendarWindow) for state in self.limits)


_MODELS_REMEMBERED, _HISTORY_LENGTH = 256, 20
PROBE_TIMEOUT = 60.0  # seconds of a probe after which the next request may be one
EVERY_MODEL = "*"  # in ``Key.barred``; no model has this name


class Key:
    """One credential: its slots, how many are leased, and its life."""

    __slots__ = (
        "auto",
        "barred",
        "barred_for_run",
        "evidence",
        "labels",
        "leases",
        "leases_elsewhere",
        "life",
        "name",
        "number",
        "proven",
        "quota",
        "refused_elsewhere",
        "since",
        "slots",
        "slots_elsewhere",
        "stated",
        "suspicions",
        "tried_at",
        "used",
    )

    def __init__(self, spec: KeySpec, quota: Quota, number: int) -> None:
        self.name = spec.name
        self.number = number  # in order of arrival in the pool
        self.stated = AUTO if spec.auto else spec.slots
        self.slots = spec.slots  # usable now: of a shared key, also as other processes use it
        self.labels = spec.labels
        self.quota = quota
        self.leases = 0  # of all processes
        self.leases_elsewhere: tuple[str, ...] = ()  # the holders in other processes of a shared pool
        self.slots_elsewhere: tuple[int, ...] = ()  # the slots that each of these leases was granted with, or AUTO
        self.auto = spec.auto  # adaptive slots
        self.proven = False  # a call with it has succeeded
        self.tried_at = FOREVER  # when the first call began of those that are to show it
        self.suspicions = 0  # consecutive refusals that may concern another credential
        self.refused_elsewhere = 0  # consecutive refusals by hosts that are not known to be its provider's
        self.barred: dict[str, str] = {}  # by model that it may not use, the evidence; kept in this process only
        self.barred_for_run: set[str] = set()  # the models of ``barred`` that only the current run may not use
        self.life = Life.ALIVE
        self.evidence = ""
        self.since = 0.0
        self.used = number  # rank of its last grant or release: smaller is longer unused

    def change_life(self, event: LifeEvent, evidence: str, now: float) -> bool:
        """Apply *event* to the life of the credential. Return False if nothing changed."""
        before, self.life = self.life, LIFE[self.life][event]
        if self.life is before:
            return False
        self.evidence, self.since = evidence, now
        return True

    def could_serve(self, labels: Labels, model: str | None) -> bool:
        """Return True if this key may be open to such a request at some instant, at any cost."""
        return (
            self.life is Life.ALIVE
            and labels <= self.labels
            and self.quota.closed_for(model) < FOREVER
            and not (self.barred and self.is_barred(model))
        )

    @property
    def own_slots(self) -> int:
        """How many leases this process may hold: few of an untried key with adaptive slots (``first_call``)."""
        if self.stated or self.proven:
            return self.stated or self.quota.learned_slots
        return min(MAX_SLOTS, self.leases - len(self.leases_elsewhere) + 1) if self.quota.overflows else 1

    @property
    def learned_slots(self) -> int:
        """The inferred number of slots. Until a call has succeeded it does not hold up that one."""
        return MAX_SLOTS if self.auto and not self.proven else self.quota.learned_slots

    def is_barred(self, model: str | None) -> bool:
        """Return True if this key must not be used for *model*."""
        return model in self.barred or EVERY_MODEL in self.barred

    def clear_bars(self) -> None:
        """Forget refusals that took it out of use, for a model or in this run."""
        self.barred.clear()
        self.barred_for_run.clear()
        self.suspicions = self.refused_elsewhere = 0

    def target_slots(self) -> int:
        """Return how many slots are usable now."""
        return count_usable_slots(self.own_slots, self.stated, self.slots_elsewhere, self.learned_slots)

    def is_full_for_us_only(self) -> bool:
        """Return True if this process holds as many leases as it may, and others may hold more."""
        mine, held = self.own_slots, self.leases - len(self.leases_elsewhere)
        return held >= mine and find_width(self.stated, self.slots_elsewhere, self.learned_slots) > mine


class LeaseRequest:
    """The requirements of a lease request. Many callers may share one."""

    __slots__ = ("affinity", "cost", "labels", "model", "plain", "priority", "special")

    def __init__(
        self,
        cost: Cost = ONE_REQUEST,
        model: str | None = None,
        affinity: str | None = None,
        priority: float = 0,
        labels: Labels = NO_LABELS,
    ) -> None:
        self.cost = cost
        self.model = model
        self.affinity = affinity
        self.priority = priority
        self.labels = labels
        self.special = affinity is not None or bool(labels)  # it restricts or prefers keys
        self.plain = model is None and not self.special


PLAIN = LeaseRequest()


# What a lease took from one limit, to be corrected when the true amount is known: the limit, the amount, True if that
# is an estimate (cost unknown, amount 0: counted in usage.in_flight until the lease ends or settles), and the limit's
# stamp. A plain tuple because two are made for every lease of a limited key.
Draw = tuple[LimitState, float, bool, Any]


class Grant:
    """A lease: one slot of one key, from *granted_at* until it is released. Tokens only grow."""

    __slots__ = ("cost", "draws", "granted_at", "key", "model", "requester", "settled", "token")

    def __init__(
        self,
        key: Key,
        token: int,
        requester: str | None,
        granted_at: float,
        request: LeaseRequest,
        draws: list[Draw] | tuple[Draw, ...],
    ) -> None:
        self.key = key
        self.token = token
        self.requester = requester
        self.granted_at = granted_at
        self.model = request.model
        self.cost = request.cost  # as declared
        self.draws = draws
        self.settled = False  # what it used is known


class Ticket:
    """A waiting request. *owner* belongs to the caller; the core does not use it."""

    __slots__ = (
        "error",
        "grant",
        "index",
        "order",
        "owner",
        "planned",
        "queued_at",
        "request",
        "requester",
        "starts_at",
        "state",
    )

    def __init__(self, request: LeaseRequest, requester: str | None, owner: Any = None) -> None:
        self.request = request
        self.requester = requester
        self.owner = owner
        self.state = TicketState.WAITING
        self.grant: Grant | None = None
        self.error: Exception | None = None
        self.order: tuple[float, int] = (0, 0)  # (-priority, arrival)
        self.queued_at = 0.0
        self.starts_at = FOREVER  # as last computed; FOREVER: when a lease ends
        self.planned: Key | None = None  # the key on which it then starts
        self.index: Any = None

    def rank(self) -> tuple[float, int]:
        """Return its position in the order of service: smaller is earlier."""
        return self.order
