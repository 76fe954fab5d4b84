"""The audit notices a provider that breaks its own rules."""

from __future__ import annotations

from agentos.simulator.audit import Audit
from agentos.simulator.plan import QuotaPlan


def test_requests_tokens_and_concurrency_above_the_limit_are_noticed() -> None:
    audit = Audit(QuotaPlan("acme", rpm=60, request_burst=2, tpm=600, token_burst=100, concurrency=2), tokens=True)

    audit.admitted(50, 1, 0.0)
    audit.admitted(50, 2, 0.0)
    assert audit.violations == []
    audit.admitted(0, 2, 0.9)
    audit.admitted(85, 1, 8.9)
    audit.admitted(15, 3, 9.4)

    assert audit.violations == [
        "quota acme: requests above the limit at 0.900",
        "quota acme: tokens above the limit at 9.400",
        "quota acme: 3 calls in flight at 9.400, above 2",
    ]


def test_only_the_first_violations_are_kept() -> None:
    audit = Audit(QuotaPlan("acme", concurrency=1), tokens=True)
    for _ in range(100):
        audit.admitted(1, 2, 0.0)

    assert len(audit.violations) == 20
