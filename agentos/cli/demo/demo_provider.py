"""The provider of the demo: three organisations, eight keys, and something wrong with two of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ...simulator import ProviderPlan, Scripted

_SLOWNESS: Final = 8.0
_REST: Final = 4  # seconds in which globex turns all its callers away
_WHOLE: Final = 300  # items; with fewer, what takes time takes less


@dataclass(frozen=True, slots=True)
class Organisation:
    """*keys* share its limit; each bears *slots* calls at once. *told* is how the demo introduces it."""

    name: str
    keys: int
    slots: int
    rpm: float | None
    description: str


ORGANISATIONS: Final = (
    Organisation("acme", 4, 2, 600, "600 requests a minute, shared"),
    Organisation("globex", 2, 3, 360, "360 a minute, and some seconds of rest in between"),
    Organisation("initech", 2, 1, None, "one of them slow, the other one dead"),
)
SLOW: Final = "initech-1"
DEAD: Final = "initech-2"


def count_slots() -> dict[str, int]:
    """How many calls at once each key bears, by its name."""
    return {
        f"{organisation.name}-{number}": organisation.slots
        for organisation in ORGANISATIONS
        for number in range(1, organisation.keys + 1)
    }


def build_provider(items: int) -> ProviderPlan:
    """The plan for so many items, with secrets that were never used before."""
    import secrets

    from ...simulator import KeyPlan, Latency, ProviderPlan, QuotaPlan

    scale = min(1.0, items / _WHOLE)
    quotas = tuple(
        QuotaPlan(each.name, rpm=each.rpm, request_burst=None if each.rpm is None else each.rpm / 30)
        for each in ORGANISATIONS
    )
    keys = tuple(
        # Nothing but chance in them: a piece of a secret is masked wherever it shows, and a word would show.
        KeyPlan(
            secrets.token_hex(20),
            name.rpartition("-")[0],
            name=name,
            dead=name == DEAD,
            slowness=max(2.0, _SLOWNESS * scale) if name == SLOW else 1.0,
        )
        for name in count_slots()
    )
    return ProviderPlan(quotas, keys, latency=Latency(0.3, 0.3), script=_mishaps(items, max(1, round(_REST * scale))))


def _mishaps(items: int, seconds: int) -> tuple[Scripted, ...]:
    """What befalls single calls, in each half: a rest of *seconds*, errors of the provider, a lost connection."""
    from ...simulator import Scripted

    # Told by the calls of one key each, of which there are about items / 6; so no two fall on the same call.
    early, late = max(2, items // 40), max(3, items // 10)
    rest = {"retry-after": str(seconds), "retry-after-ms": str(seconds * 1_000)}
    return (
        Scripted(429, call=early, key="globex-1", headers=rest),
        Scripted(429, call=late, key="globex-2", headers=rest),
        Scripted(500, call=early, key="acme-1"),
        Scripted("drop", call=early, key="acme-2"),
        Scripted(503, call=late, key="acme-3"),
    )
