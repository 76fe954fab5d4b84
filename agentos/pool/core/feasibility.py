"""Find requests that can never start, so that they fail at once instead of waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from ...errors import NeverFits, NoUsableCredential
from .cost import DIMENSIONS
from .limits.base import LimitState
from .records import EVERY_MODEL, Key, LeaseRequest, Ticket
from .reservations import declared_amount, find_exceeded_limit
from .states import CredentialStatus, Life


def why_infeasible(
    keys: Collection[Key], request: LeaseRequest, keep_free: int
) -> NoUsableCredential | NeverFits | None:
    """Return why *request* can never start at present; None if there may be an instant at which it can."""
    widest: LimitState | None = None
    for key in keys:
        if key.could_serve(request.labels, request.model):
            limit = find_exceeded_limit(key.quota, request)
            if limit is None:
                return _all_kept_free(keys, keep_free) if keep_free else None
            # The largest of one dimension; of several the first, since tokens and requests are not comparable.
            if widest is None or (limit.dimension == widest.dimension and limit.largest > widest.largest):
                widest = limit
    if widest is None:
        return NoUsableCredential(reason=_why_unusable(keys, request))
    cost = declared_amount(widest, request) or 0.0
    return NeverFits(dimension=DIMENSIONS[widest.dimension], cost=cost, largest=widest.largest)


def find_infeasible(tickets: Collection[Ticket], keys: Collection[Key], keep_free: int) -> list[Ticket]:
    """Return the tickets that can never start, each with its error."""
    for ticket in tickets:
        ticket.error = why_infeasible(keys, ticket.request, keep_free)
    return [ticket for ticket in tickets if ticket.error is not None]


def _all_kept_free(keys: Collection[Key], keep_free: int) -> NoUsableCredential | None:
    if sum(key.slots for key in keys if key.life is Life.ALIVE and key.quota.spent is None) > keep_free:
        return None
    return NoUsableCredential(
        reason=f"keep_free={keep_free} keeps every slot of the live credentials free; revive or add a credential"
    )


def _why_unusable(keys: Collection[Key], request: LeaseRequest) -> str:
    if not keys:
        return "the pool is empty; add a credential"
    fitting = [key for key in keys if request.labels <= key.labels]
    if not fitting:
        wanted = ", ".join(f"{name}={value}" if value else name for name, value in sorted(request.labels))
        return f"none of {len(keys)} has the labels {wanted}"
    counts = Counter(_describe_state(key, request) for key in fitting)
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    of_the_model = request.model is not None and {CredentialStatus.SPENT, "not entitled"} & counts.keys()
    model = f" for model {request.model}" if of_the_model else ""
    revive = "agentos keys clear NAME, from Python pool.revive(name)"
    advice = f"add another, or revive one: {revive}"
    if any(key.life is Life.DEAD for key in fitting):
        advice = f"replace the secret of a dead one; if the same one works again, revive it: {revive}"
    if all(EVERY_MODEL in key.barred for key in fitting):
        advice = "if it is, name it in hosts or base_url of the credentials"
    return f"of {len(fitting)} that could serve{model}, {summary}; {advice}"


def _describe_state(key: Key, request: LeaseRequest) -> str:
    if key.life is not Life.ALIVE:
        return str(key.life.value)
    if EVERY_MODEL in key.barred:
        return "refused three times by a host that is not known to be its provider's"
    return "not entitled" if request.model in key.barred else CredentialStatus.SPENT
