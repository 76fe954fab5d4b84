"""What is forgotten of a credential when a person says so: death, coolings, money gone, use, what was learned."""

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
    """What was forgotten. *quota* is None where the store does not say which one is the credential's."""

    name: str
    quota: str | None
    secrets: int


def reset_entries(step: Step, book: StoreDump, names: Sequence[str], specs: Mapping[str, KeySpec]) -> list[ResetResult]:
    """Forget the credentials of these names, and their quotas, in one step. Leases in force stay."""
    by_name = book.by_name()
    done = []
    for name in dict.fromkeys(names):
        entries = by_name.get(name, [])
        quotas = [_reset_entry(step, book, entry, specs.get(name)) for entry in entries]
        if entries:
            done.append(ResetResult(name, quotas[0], len(entries)))
    return done


def _reset_entry(step: Step, book: StoreDump, entry: DumpEntry, spec: KeySpec | None) -> str | None:
    step.write_life(entry.number, Life.ALIVE.value, "", step.now)
    quota = book.find_quota(entry, spec)
    if quota is None:
        return None
    number, record = book.quotas[quota]
    nothing = reset_record(record)
    if "width" in record:
        nothing["width"] = (
            AdaptiveConcurrency().pack()
        )  # left out, processes that find it out would keep what they found
    step.write_quota(number, nothing, opened=True)
    return quota
