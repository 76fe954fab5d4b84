"""The simulated provider of the demo: three organisations and eight keys, one of them slow and one dead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ...simulator import ProviderPlan, Scripted

_SLOWNESS: Final = 8.0
_COOLDOWN: Final = 4  # seconds for which globex rate-limits all calls
_WHOLE: Final = 300  # items; with fewer, delays are shorter


@dataclass(frozen=True, slots=True)
class Organisation:
    """*keys* share its limit; each has *slots*. *description* is shown at the start of the demo."""

    name: str
    keys: int
    slots: int
    rpm: float | None
    description: str


ORGANISATIONS: Final = (
    Organisation("acme", 4, 2, 600, "600 requests a minute, shared"),
    Organisation("globex", 2, 3, 360, "360 a minute, and cooldowns of some seconds"),
    Organisation("initech", 2, 1, None, "one of them slow, the other one dead"),
)
SLOW: Final = "initech-1"
DEAD: Final = "initech-2"


def count_slots() -> dict[str, int]:
    """Return the number of slots of each key, by name."""
    return {
        f"{organisation.name}-{number}": organisation.slots
        for organisation in ORGANISATIONS
        for number in range(1, organisation.keys + 1)
    }


def build_provider(items: int) -> ProviderPlan:
    """Return the provider's plan for *items*, with new random secrets."""
    import secrets

    from ...simulator import KeyPlan, Latency, ProviderPlan, QuotaPlan

    scale = min(1.0, items / _WHOLE)
    quotas = tuple(
        QuotaPlan(each.name, rpm=each.rpm, request_burst=None if each.rpm is None else each.rpm / 30)
        for each in ORGANISATIONS
    )
    keys = tuple(
        # Random only: a part of a secret is redacted wherever it appears, and a word would appear.
        KeyPlan(
            f"sk-proj-{secrets.token_hex(20)}",
            name.rpartition("-")[0],
            name=name,
            dead=name == DEAD,
            slowness=max(2.0, _SLOWNESS * scale) if name == SLOW else 1.0,
        )
        for name in count_slots()
    )
    return ProviderPlan(
        quotas, keys, latency=Latency(0.3, 0.3), script=_build_faults(items, max(1, round(_COOLDOWN * scale)))
    )


def _build_faults(items: int, seconds: int) -> tuple[Scripted, ...]:
    """Return faults of single calls in each half: a cooldown of *seconds*, provider errors, a dropped connection."""
    from ...simulator import Scripted

    # Each counts the calls of one key, about items / 6, so that no two apply to the same call.
    early, late = max(2, items // 40), max(3, items // 10)
    cooldown = {"retry-after": str(seconds), "retry-after-ms": str(seconds * 1_000)}
    return (
        Scripted(429, call=early, key="globex-1", headers=cooldown),
        Scripted(429, call=late, key="globex-2", headers=cooldown),
        Scripted(500, call=early, key="acme-1"),
        Scripted("drop", call=early, key="acme-2"),
        Scripted(503, call=late, key="acme-3"),
    )
