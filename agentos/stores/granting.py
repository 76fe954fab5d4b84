"""Decide whether a request is granted: the one rule for all stores."""

from __future__ import annotations

from ..pool.core.slot_sharing import count_usable_slots
from ..pool.store_protocol import SlotGranted, SlotRefused, SlotRequest, read_stated_slots
from .process_fairness import DECLINED, NOTIFY_TIMEOUT, StoreSession, charge, find_queue_position, sessions_ahead
from .step_queueing import QueueingStep


def grant(step: QueueingStep, bid: SlotRequest) -> SlotGranted | SlotRefused:
    """Lease the slot, unless a process that is ahead in the fair queue needs it or the pool's rules refuse it."""
    me, now = step.me, step.now
    if me.notified_at is not None:
        me.notified_at = DECLINED  # unless a grant or the fair queue overrides it below
        step.me_changed = True
    leases = 0
    elsewhere = []
    for session, request, token, at in step.leases_on(bid.credential):
        leases += 1
        if request == bid.request:
            return SlotGranted(token, at)
        if session != me.id:
            elsewhere.append(read_stated_slots(request))
    step.depend_on_queue_front(me)
    contended = any(other.waiting_since is not None for other in step.others)
    if contended:
        ahead = sessions_ahead(me, step.others, bid.credential, step.served, now)
        free = bid.free(lambda number: any(each.wants(number, now) for each in ahead)) if ahead else 0
        if ahead and len(ahead) >= free:
            if me.notified_at is not None:
                me.notified_at = None  # not declined: others are ahead
            ahead.sort(key=StoreSession.order)
            step.depend_on_sessions(ahead[-free:])  # the refusal stands while these stay as they are
            return SlotRefused(step.notify(ahead[0]) + NOTIFY_TIMEOUT)
    if leases >= count_usable_slots(bid.slots, read_stated_slots(bid.request), elsewhere, bid.learned):
        step.read(bid.credential, bid.quota)  # the quota too, for it says how many slots others have inferred
        return SlotRefused()
    if bid.sees_all:
        step.read_all()
    else:
        step.read(bid.credential, bid.quota)
    mine = find_queue_position(me, step.served, now)
    claimants = [other for other in step.others if other.claim is not None and other.order() < mine]
    reserved = bid.reserve(now, [other.claim for other in claimants if other.claim is not None])
    if reserved is None:
        step.depend_on_sessions(claimants)
        return SlotRefused()
    granted = step.lease(bid, reserved)
    if contended:
        step.served = charge(me, step.served)
        step.me_changed = True
    if me.waiting_since is not None:
        me.waiting_since = now if bid.still_waiting else None
        me.notified_at = me.claim = me.idle_until = None  # other waiters of this process announce again what they want
        step.me_changed = True
    return granted
