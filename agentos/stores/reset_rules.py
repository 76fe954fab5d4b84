"""Reset credentials in a store: rejections, cooldowns, exhausted balances, usage and learned limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..pool.core.learning.adaptive_concurrency import AdaptiveConcurrency
from ..pool.core.quota_codec import reset_record
from ..pool.core.records import KeySpec
from ..pool.core.states import Life
from ..pool.store_protocol import Step
from .dump import DumpEntry, StoreDump


@dataclass(frozen=True, slots=True)
class ResetResult:
    """One credential that was reset. *quota* is None if the store does not show which quota is the credential's."""

    name: str
    quota: str | None
    secrets: int


def reset_entries(step: Step, dump: StoreDump, names: Sequence[str], specs: Mapping[str, KeySpec]) -> list[ResetResult]:
    """Reset the credentials of these names and their quotas in one step. Leases in force stay."""
    by_name = dump.by_name()
    done = []
    for name in dict.fromkeys(names):
        entries = by_name.get(name, [])
        quotas = [_reset_entry(step, dump, entry, specs.get(name)) for entry in entries]
        if entries:
            done.append(ResetResult(name, quotas[0], len(entries)))
    return done


def _reset_entry(step: Step, dump: StoreDump, entry: DumpEntry, spec: KeySpec | None) -> str | None:
    step.write_life(entry.number, Life.ALIVE.value, "", step.now)
    quota = dump.find_quota(entry, spec)
    if quota is None:
        return None
    number, record = dump.quotas[quota]
    empty = reset_record(record)
    if "width" in record:
        # Without it, processes would keep the concurrency that they have learned.
        empty["width"] = AdaptiveConcurrency().pack()
    step.write_quota(number, empty, opened=True)
    return quota
