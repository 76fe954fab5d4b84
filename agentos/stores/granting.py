"""Whether a request is granted now, whatever store keeps the leases: the one place where that is decided."""

from __future__ import annotations

from ..pool.core.fair_queue import PASSED, PATIENCE, Session, ahead_of, charge, place_of
from ..pool.store_protocol import Bid, Granted, Refused
from .step_queueing import LineStep


def grant(step: LineStep, bid: Bid) -> Granted | Refused:
    """Lease the slot, if nobody who is ahead needs it and the rules allow it at this moment."""
    me, now = step.me, step.now
    if me.called_at is not None:
        me.called_at = PASSED  # unless there is something for us
        step.me_changed = True
    leases = 0
    for request, token, at in step.leases_on(bid.credential):
        leases += 1
        if request == bid.request:
            return Granted(token, at)
    step.rest_on_who_is_before(me)
    contended = any(other.waiting_since is not None for other in step.others)
    if contended:
        ahead = ahead_of(me, step.others, bid.credential, step.served, now)
        free = bid.free(lambda number: any(each.wants(number, now) for each in ahead)) if ahead else 0
        if ahead and len(ahead) >= free:
            if me.called_at is not None:
                me.called_at = None  # it is not our turn
            ahead.sort(key=Session.order)
            step.rest_on(ahead[-free:])  # those suffice, whatever becomes of the rest
            return Refused(step.call(ahead[0]) + PATIENCE)
    if leases >= bid.slots:
        step.read(bid.credential)
        return Refused()
    if bid.sees_all:
        step.read_all()
    else:
        step.read(bid.credential, bid.quota)
    mine = place_of(me, step.served, now)
    claimants = [other for other in step.others if other.claim is not None and other.order() < mine]
    reserved = bid.reserve(now, [other.claim for other in claimants if other.claim is not None])
    if reserved is None:
        step.rest_on(claimants)
        return Refused()
    granted = step.lease(bid, reserved)
    if contended:
        step.served = charge(me, step.served)
        step.me_changed = True
    if me.waiting_since is not None:
        me.waiting_since = now if bid.still_waiting else None
        me.called_at = me.claim = me.idle_until = None  # if others wait here, they say anew for what
        step.me_changed = True
    return granted
