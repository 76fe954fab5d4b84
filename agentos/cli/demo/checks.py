"""Check what agentos promises against the journal and the provider's statistics of the demo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..terminal.phrases import format_count

if TYPE_CHECKING:
    from ...simulator import Statistics

# A limit that is not stated is found by exceeding it: a few refusals per quota, and a small share of all calls.
_REFUSALS_PER_QUOTA: Final = 4
_REFUSED_SHARE: Final = 0.03
# A 401 may come from another server, so only the third refusal in a row makes a key dead.
_TRIES_OF_A_DEAD_KEY: Final = 3
_ANSWERS_ABOUT_A_KEY: Final = frozenset(("dead_key", "unknown_key"))


@dataclass(frozen=True, slots=True)
class Evidence:
    """The facts at the end of the demo.

    ``done`` maps the ids of done items to the instants in the journal. ``leaks`` are files that contain a secret,
    ``ended_badly`` describes commands with an unexpected exit code.
    """

    items: int
    done_before: Mapping[str, float]
    done: Mapping[str, float]
    at_kill: Statistics
    at_end: Statistics
    slots: Mapping[str, int]
    dead: str
    leaks: tuple[str, ...] = ()
    ended_badly: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DemoPromise:
    """One promise, and whether it was kept."""

    kept: bool
    text: str


def check_promises(seen: Evidence) -> Iterator[DemoPromise]:
    """Yield each promise with its figures."""
    yield DemoPromise(len(seen.done) == seen.items, f"{len(seen.done):,} of {format_count(seen.items, 'item')} done")
    yield _nothing_twice(seen)
    yield _few_refusals(seen)
    yield _within_slots(seen)
    yield _dead_key_left_alone(seen)
    where = f"found in {', '.join(seen.leaks)}" if seen.leaks else "in no journal, log or result"
    yield DemoPromise(not seen.leaks, f"the secrets of the {len(seen.slots)} keys: {where}")
    yield from (DemoPromise(False, each) for each in seen.ended_badly)


def _nothing_twice(seen: Evidence) -> DemoPromise:
    again = [item for item, at in seen.done_before.items() if seen.done.get(item) != at]
    left = seen.items - len(seen.done_before)
    answered = seen.at_end.total.ok - seen.at_kill.total.ok
    twice = f"{len(again):,} of them ran again" if again else "none of them ran again"
    text = f"{len(seen.done_before):,} done before the kill, {twice}: "
    text += f"{format_count(answered, 'answer')} after it for the {left:,} left"
    return DemoPromise(not again and answered == left, text)


def _few_refusals(seen: Evidence) -> DemoPromise:
    total = seen.at_end.total
    refused = sum(number for reason, number in total.rejected.items() if reason not in _ANSWERS_ABOUT_A_KEY)
    allowed = max(_REFUSALS_PER_QUOTA * len(seen.at_end.quotas), int(total.calls * _REFUSED_SHARE))
    share = 100 * refused / max(1, total.calls)
    text = f"{format_count(total.calls, 'call')} in all, {refused:,} of them refused for a limit (429): {share:.1f} %"
    return DemoPromise(refused <= allowed, text)


def _within_slots(seen: Evidence) -> DemoPromise:
    most = {name: tally.most_in_flight for name, tally in seen.at_end.keys.items()}
    above = [f"{name} had {most[name]}, and has {slots}" for name, slots in seen.slots.items() if most[name] > slots]
    text = "never more calls at once on a key than it has slots"
    return DemoPromise(
        not above, text if not above else f"more calls at once on a key than it has slots: {'; '.join(above)}"
    )


def _dead_key_left_alone(seen: Evidence) -> DemoPromise:
    calls = seen.at_end.keys[seen.dead].calls
    after = calls - seen.at_kill.keys[seen.dead].calls
    later = f"{after:,} of them" if after else "not once"
    text = f"the dead key was tried {format_count(calls, 'time')}, {later} after the kill"
    # A run that is killed before the third refusal loses the count of the first two.
    return DemoPromise(max(calls - after, after) <= _TRIES_OF_A_DEAD_KEY, text)
